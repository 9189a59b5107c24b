"""Kernels as functions in memory: equal kernels are compiled once.

Enters: kernels of a program. Leaves: for each, the address of its function and how the host calls it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


_compiled: weakref.WeakValueDictionary[str, CompiledKernel] = weakref.WeakValueDictionary()


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

    def source() -> cache.Source:
        facts = [getattr(write(), name) for name in _FACTS]
        return cache.Source(write().text, [_NAME], facts if _is_plain(facts) else None)

    # What a kernel reads of sizes, and in what order, its own text does not say for sure: for expressions it is written
    # in any case, and its LLVM IR is what the code goes by.
    code = cache.compile_cached(key if kernel.is_static else f"cpu {width} {write().text}", source)
    facts = code.facts or [getattr(write(), name) for name in _FACTS]  # expressions are not kept on disk
    return CompiledKernel(code, code.address(_NAME), *facts)


def llvm_text(kernels: Sequence[Any]) -> str:
    """The LLVM IR of these kernels, equal ones once."""
    texts = {kernel.key(): (kernel.name, kernel) for kernel in kernels}
    width = vector_width()
    return "\n\n".join(f"; {name}\n{cpu.write(kernel, _NAME, width).text}" for name, kernel in texts.values())


def compile_small_gemm(shape: small_gemm.GemmShape) -> jit.Code:
    return cache.compile_cached(shape.key, lambda: cache.Source(small_gemm.write(shape, _NAME), [_NAME]))


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, int)


def vector_width() -> int:
    """Lanes of 32 bits in the widest vectors that this processor has."""
    features = jit.host_target().features
    return 16 if "+avx512f" in features else 8 if "+avx2" in features else 4
