"""Support for tests of kernels: compile one for some machine, run it over any ranges of its units."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from guarded import Guarded

from stator.codegen import cpu, jit
from stator.fuse.builder import KernelBuilder, V
from stator.fuse.loops import Buffer, Index, Kernel, check, computed_in, concrete

SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
)
AVX2 = jit.Target("x86_64-unknown-linux-gnu", "haswell", "")
SSE4 = jit.Target("x86_64-unknown-linux-gnu", "nehalem", "")
AARCH64 = jit.Target("aarch64-unknown-linux-gnu", "generic", "")
Ranges = Callable[[int, int], list[tuple[int, int]]]


def whole(count: int, align: int) -> list[tuple[int, int]]:
    return [(0, count)]


class Compiled:
    """A kernel as machine code; it is called with the addresses of its buffers."""

    def __init__(self, kernel: Kernel, width: int, target: jit.Target | None = None) -> None:
        check(kernel)
        self.written = cpu.write(kernel, "kernel", width)
        self._code = jit.compile_ir(self.written.text, ["kernel"], target)
        self._call = SIGNATURE(self._code.address("kernel"))

    def __call__(
        self, addresses: Sequence[int], symbols: Mapping[Any, int] | None = None, ranges: Ranges = whole
    ) -> bool:
        """Whether all checks held."""
        symbols = symbols or {}
        numbers = [concrete(size, symbols) for size in self.written.sizes]
        sizes = (ctypes.c_int64 * max(1, len(numbers)))(*numbers)
        buffers = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        scratch = Guarded(torch.full((concrete(self.written.scratch, symbols),), 0xAA, dtype=torch.uint8), at_end=True)
        status = ctypes.c_int64(0)
        for lo, hi in ranges(concrete(self.written.count, symbols), self.written.align):
            self._call(
                ctypes.addressof(buffers), ctypes.addressof(sizes), lo, hi, scratch.address, ctypes.addressof(status)
            )
        return status.value == 0


def pointwise(formula: Callable[..., V], operands: Sequence[torch.dtype], result: torch.dtype, extent: Any) -> Kernel:
    """result[i] = formula(operand[i], …), over one axis."""
    b = KernelBuilder()
    at = Index.axis(0)
    args = [b.load(n, at, dtype) for n, dtype in enumerate(operands)]
    value = formula(*args)
    assert value.dtype is computed_in(result), (value.dtype, result)
    b.add("store", (value.id,), value.dtype, (len(operands), at))
    buffers = [Buffer(f"b{n}", dtype) for n, dtype in enumerate([*operands, result])]
    return Kernel("kernel", [extent], [0], [], buffers, b.values)


def run_pointwise(
    formula: Callable[..., V],
    operands: Sequence[torch.Tensor],
    result: torch.dtype,
    width: int,
    target: jit.Target | None = None,
) -> torch.Tensor:
    n = operands[0].numel()
    out = torch.full((n,), 7).to(result)
    compiled = Compiled(pointwise(formula, [o.dtype for o in operands], result, n), width, target)
    given = [o.contiguous() for o in operands]
    assert compiled([*[o.data_ptr() for o in given], out.data_ptr()])
    return out
