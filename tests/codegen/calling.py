"""Support for tests of math functions: an emitter, and a function as a loop over arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from stator.codegen import jit, math

TYPES: dict[str, Any] = {"float": np.float32, "double": np.float64}


class Lines:
    """An emitter that keeps what it is given."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.body: list[str] = []
        self.declarations: dict[str, None] = {}

    def emit(self, text: str) -> str:
        name = f"%v{len(self.body)}"
        self.body.append(f"  {name} = {text}")
        return name

    def declare(self, declaration: str) -> None:
        self.declarations[declaration] = None


def module(name: str, type_name: str, width: int, arguments: int) -> str:
    """IR of `f(n, result, argument, ...)`, for n a multiple of the width."""
    lines = Lines(width)
    value = type_name if width == 1 else f"<{width} x {type_name}>"
    size = 4 if type_name == "float" else 8
    operands = []
    for number in range(arguments):
        place = lines.emit(f"getelementptr {type_name}, ptr %a{number}, i64 %i")
        operands.append(lines.emit(f"load {value}, ptr {place}, align {size}"))
    result = math.FUNCTIONS[name](lines, type_name, *operands)
    place = lines.emit(f"getelementptr {type_name}, ptr %out, i64 %i")
    parameters = ", ".join(f"ptr %a{number}" for number in range(arguments))
    return "\n".join(
        [
            *lines.declarations,
            f'define void @f(i64 %n, ptr %out, {parameters}) "prefer-vector-width"="512" {{',
            "entry:",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [0, %entry], [%next, %loop]",
            *lines.body,
            f"  store {value} {result}, ptr {place}, align {size}",
            f"  %next = add i64 %i, {width}",
            "  %more = icmp ult i64 %next, %n",
            "  br i1 %more, label %loop, label %end",
            "end:",
            "  ret void",
            "}",
        ]
    )


def function(
    name: str, type_name: str, width: int, arguments: int = 1, target: jit.Target | None = None
) -> Callable[..., np.ndarray[Any, Any]]:
    """The compiled function of arrays, of any length."""
    code = jit.compile_ir(module(name, type_name, width, arguments), ["f"], target)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (arguments + 1))
    call = kind(code.address("f"))

    def run(*inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        keep = code  # the machine code lives as long as this function
        n = len(inputs[0])
        padded = -n % width
        given = [np.ascontiguousarray(np.pad(a.astype(TYPES[type_name]), (0, padded))) for a in inputs]
        out = np.empty(n + padded, TYPES[type_name])
        call(n + padded, out.ctypes.data, *[a.ctypes.data for a in given])
        del keep
        return out[:n]

    return run
