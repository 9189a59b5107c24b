"""Writing LLVM IR as text: one function, blocks, loops, vectors.

Enters: instructions without a name. Leaves: the function's text, and the declarations that it needs. It is the
`Emitter` that `math` and `scalar` write with.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import torch

ELEMENT = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.bool: "i1",
}
IN_MEMORY = {**ELEMENT, torch.bool: "i8", torch.bfloat16: "i16", torch.float16: "half"}
ATTRIBUTES = '"no-trapping-math"="true" "denormal-fp-math"="ieee,ieee"'
LoopBody = Callable[[str, list[str]], Sequence[str]]


def literal(number: float | int | bool, dtype: torch.dtype) -> str:
    if dtype is torch.bool:
        return "true" if number else "false"
    if dtype is torch.float32:
        number = struct.unpack("f", struct.pack("f", _clipped(float(number))))[0]
    if dtype.is_floating_point:
        return "0x" + struct.pack(">d", float(number)).hex().upper()
    return str(int(number))


def _clipped(number: float) -> float:
    """A float64 that rounds beyond the range of float32 is infinite there; `struct` refuses it."""
    try:
        struct.pack("f", number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    return number


class Module:
    """The functions and declarations of one module."""

    def __init__(self) -> None:
        self._declared: dict[str, None] = {}
        self.functions: list[str] = []

    def declare(self, declaration: str) -> None:
        self._declared[declaration] = None

    def declared(self) -> list[str]:
        return list(self._declared)

    def text(self) -> str:
        return "\n".join([*self._declared, *self.functions])


class Function:
    """A function that is being written. `width`: lanes of the vectors; 1 means scalars."""

    index_type = "i64"  # of positions and counters

    def __init__(
        self, module: Module, name: str, parameters: str, width: int, attributes: str = "", convention: str = ""
    ) -> None:
        self.module, self.lanes = module, width
        self.width = width
        self._head = f"define {convention} void @{name}({parameters}) nounwind {ATTRIBUTES} {attributes} {{\nentry:"
        self._lines: list[str] = []
        self._count = 0
        self.block = "entry"
        self.opaque_counters = False  # see `_stepped`

    # -- the emitter

    def emit(self, text: str) -> str:
        self._count += 1
        name = f"%n{self._count}"
        self._lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def declare(self, declaration: str) -> None:
        self.module.declare(declaration)

    def label(self, name: str) -> None:
        self._lines.append(f"{name}:")
        self.block = name

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def finish(self) -> None:
        self.module.functions.append("\n".join([self._head, *self._lines, "  ret void", "}"]))

    # -- types

    def vector(self, element: str, width: int | None = None) -> str:
        width = self.width if width is None else width
        return element if width == 1 else f"<{width} x {element}>"

    def constant(self, number: float | int | bool, dtype: torch.dtype) -> str:
        text = literal(number, dtype)
        return text if self.width == 1 else f"splat ({ELEMENT[dtype]} {text})"

    def call(self, name: str, result: str, *operands: tuple[str, str], attributes: str = "") -> str:
        self.declare(f"declare {result} @{name}({', '.join([t for t, _ in operands])})")
        return self.emit(f"call {attributes}{result} @{name}({', '.join([f'{t} {v}' for t, v in operands])})")

    def intrinsic(self, name: str, element: str, *operands: str) -> str:
        """An intrinsic on operands of its result's type."""
        kind = self.vector(element)
        suffix = {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)
        full = f"llvm.{name}.{suffix}" if self.width == 1 else f"llvm.{name}.v{self.width}{suffix}"
        return self.call(full, kind, *[(kind, o) for o in operands])

    def splat(self, scalar: str, element: str) -> str:
        """A scalar in all lanes of the function's vectors."""
        if self.lanes == 1:
            return scalar
        kind = f"<{self.lanes} x {element}>"
        one = self.emit(f"insertelement {kind} poison, {element} {scalar}, i64 0")
        return self.emit(f"shufflevector {kind} {one}, {kind} poison, <{self.lanes} x i32> zeroinitializer")

    # -- integers

    def arithmetic(self, op: str, a: str, b: str) -> str:
        """On positions, with what is known folded."""
        if a.lstrip("-").isdigit() and b.lstrip("-").isdigit() and op in _FOLD:
            return str(_FOLD[op](int(a), int(b)))
        if op == "add" and "0" in (a, b):
            return b if a == "0" else a
        if op == "mul" and ("0" in (a, b) or "1" in (a, b)):
            return "0" if "0" in (a, b) else b if a == "1" else a
        if op == "udiv" and b == "1":
            return a
        if op == "urem" and b == "1":
            return "0"
        return self.emit(f"{op} {self.index_type} {a}, {b}")

    def smaller(self, a: str, b: str) -> str:
        if a == b:
            return a
        less = self.emit(f"icmp slt {self.index_type} {a}, {b}")
        return self.emit(f"select i1 {less}, {self.index_type} {a}, {self.index_type} {b}")

    # -- loops

    def _stepped(self, counter: str, step: int) -> str:
        """The instruction for a loop's next counter.

        Opaque: LLVM does not look behind `expect`, which is a hint and no machine code. Of a counter that it
        understands it makes one pointer for each access (loop strength reduction). That takes a third of the time of
        code generation, and gains nothing on machines which add base and counter in the access."""
        if not self.opaque_counters:
            return f"add {self.index_type} {counter}, {step}"
        self.declare("declare i64 @llvm.expect.i64(i64, i64)")
        added = self.emit(f"add i64 {counter}, {step}")
        return f"call i64 @llvm.expect.i64(i64 {added}, i64 0)"

    def loop(
        self,
        start: str,
        stop: str,
        step: int,
        body: LoopBody,
        carried: Sequence[tuple[str, str]] = (),
        *,
        whole: bool = False,
    ) -> tuple[str, list[str]]:
        """for i in range(start, stop, step): carried = body(i, carried). `whole`: only while a whole step fits.

        `carried`: (type, value) before the loop. Gives the counter and the carried values behind it.
        """
        head, inside, done = (self.fresh(p) for p in ("head", "body", "done"))
        before = self.block
        self.do(f"br label %{head}")
        self.label(head)
        phis = len(self._lines)
        counter, following = f"%i_{head}", f"%next_{head}"
        names = [f"%c{k}_{head}" for k in range(len(carried))]
        end = self.emit(f"add {self.index_type} {counter}, {step}") if whole else counter
        more = self.emit(f"icmp {'sle' if whole else 'slt'} {self.index_type} {end}, {stop}")
        self.do(f"br i1 {more}, label %{inside}, label %{done}")
        self.label(inside)
        results = body(counter, list(names))
        self.do(f"{following} = {self._stepped(counter, step)}")
        self.do(f"br label %{head}")
        last = self.block
        lines = [f"  {counter} = phi {self.index_type} [{start}, %{before}], [{following}, %{last}]"]
        for name, (kind, value), result in zip(names, carried, results, strict=True):
            lines.append(f"  {name} = phi {kind} [{value}, %{before}], [{result}, %{last}]")
        self._lines[phis:phis] = lines
        self.label(done)
        return counter, names


_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}
