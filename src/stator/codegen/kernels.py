"""Kernels as functions in memory: equal kernels are compiled once.

Enters: kernels of a program. Leaves: for each, the address of its function and how the host calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..support.by_identity import WeakValues
from . import cache, cpu, jit, small_gemm

_NAME = "kernel"
_FACTS = ("sizes", "count", "align", "work", "scratch")


@dataclass(frozen=True, eq=False)  # kept weakly, by identity
class CompiledKernel:
    """A kernel's function. It stays in memory while somebody holds this."""

    code: jit.Code
    address: int
    sizes: list[Any]
    count: Any
    align: int
    work: Any
    scratch: Any


_compiled: WeakValues[str, CompiledKernel] = WeakValues()


def compile_kernels(kernels: Sequence[Any]) -> list[CompiledKernel]:
    return [_compile(kernel) for kernel in kernels]


def _compile(kernel: Any) -> CompiledKernel:
    width = vector_width()
    key = f"cpu {width} {kernel.key()}"
    found = _compiled.get(key)
    if found is None:
        found = _compiled[key] = _made(kernel, key, width)
    return found


def _made(kernel: Any, key: str, width: int) -> CompiledKernel:
    written: list[cpu.CpuKernel] = []

    def write() -> cpu.CpuKernel:
        if not written:
            written.append(cpu.write(kernel, _NAME, width))
        return written[0]

    def facts() -> list[Any]:
        return [getattr(write(), name) for name in _FACTS]

    if kernel.is_static:  # its own text says all, and the facts may come with the code
        code = cache.compile_cached(key, lambda: cache.Source(write().text, [_NAME], facts()))
        return CompiledKernel(code, code.address(_NAME), *code.facts)
    # What a kernel over expressions reads of sizes, and in what order, its text does not say for sure. So it is written
    # in any case, and its LLVM IR is what the code goes by; kernels of one IR may differ in the facts.
    code = cache.compile_cached(f"cpu {width} {write().text}", lambda: cache.Source(write().text, [_NAME]))
    return CompiledKernel(code, code.address(_NAME), *facts())


def llvm_text(kernels: Sequence[Any]) -> str:
    """The LLVM IR of these kernels, equal ones once."""
    texts = {kernel.key(): (kernel.name, kernel) for kernel in kernels}
    width = vector_width()
    return "\n\n".join(f"; {name}\n{cpu.write(kernel, _NAME, width).text}" for name, kernel in texts.values())


def compile_small_gemm(shape: small_gemm.GemmShape) -> jit.Code:
    return cache.compile_cached(shape.key, lambda: cache.Source(small_gemm.write(shape, _NAME), [_NAME]))


def vector_width() -> int:
    """Lanes of 32 bits in the widest vectors that this processor has."""
    features = jit.host_target().features
    return 16 if "+avx512f" in features else 8 if "+avx2" in features else 4
