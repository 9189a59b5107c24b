"""Launching a kernel from Python, without a host function: on device memory with guard bands, or simulated."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from stator.codegen import gpu_driver
from stator.codegen.gpu_values import Size
from stator.codegen.ptx import PtxKernel, Variant


class Chosen:
    """A variant of a kernel with numbers for its sizes, and room for the arguments of a launch."""

    def __init__(self, variant: Variant, sizes: Sequence[int], buffers: int, evaluate: Callable[[Size], int]) -> None:
        self.variant = variant
        self.scratch = evaluate(variant.scratch)
        self.grids = [(g.name, evaluate(g.blocks), g.splits, g.threads) for g in variant.launches]
        self.grids = [grid for grid in self.grids if grid[1]]
        self.aligned = [(r.what, r.of - 1) for r in variant.requirements if r.kind == "aligned"]  # powers of two
        self.pointers = buffers + 2
        count = self.pointers + len(sizes)
        self.values: Any = (ctypes.c_uint64 * count)(*[0] * self.pointers, *[size & (2**64 - 1) for size in sizes])
        first = ctypes.addressof(self.values)
        self.args = (ctypes.c_void_p * count)(*[first + 8 * n for n in range(count)])
        self.lock = threading.Lock()  # the arguments of one launch at a time; the driver copies them


class Bound:
    """A kernel with numbers for its sizes."""

    def __init__(self, loaded: Any, written: PtxKernel, buffers: int, evaluate: Callable[[Size], int]) -> None:
        self._loaded = loaded
        sizes = [evaluate(size) for size in written.sizes]
        self._fitting = [Chosen(v, sizes, buffers, evaluate) for v in written.variants if _sizes_fit(v, evaluate)]

    def choose(self, pointers: Sequence[int]) -> Chosen:
        """The fastest that these addresses allow. The last one needs nothing."""
        for chosen in self._fitting:
            for buffer, bits in chosen.aligned:
                if pointers[buffer] & bits:
                    break
            else:
                break
        return chosen

    def variant(self, pointers: Sequence[int]) -> Variant:
        return self.choose(pointers).variant

    def scratch(self, pointers: Sequence[int]) -> int:
        """Bytes of scratch memory that a launch on these addresses needs."""
        return self.choose(pointers).scratch

    def launch(self, pointers: Sequence[int], scratch: int, status: int, stream: int) -> None:
        """`pointers`: to the buffers, in the kernel's order; `scratch` and `status`: 0 where there is none."""
        self._loaded.enter()
        self.start(self.choose(pointers), [*pointers, scratch, status], stream)

    def start(self, chosen: Chosen, pointers: list[int], stream: int) -> None:
        """The same, behind `Loaded.enter`. `pointers`: scratch memory and status are the last two."""
        with chosen.lock:
            chosen.values[: chosen.pointers] = pointers
            for name, blocks, splits, threads in chosen.grids:
                self._loaded.launch(chosen.variant, name, blocks, splits, threads, stream, chosen.args)


def _sizes_fit(variant: Variant, evaluate: Callable[[Size], int]) -> bool:
    for r in variant.requirements:
        if r.kind == "multiple" and evaluate(r.what) % r.of:
            return False
        if r.kind == "at_most" and evaluate(r.what) > r.of:
            return False
    return True


class Launching(gpu_driver.Loaded):
    """Kernels on a device, with a way to launch them."""

    def bind(self, number: int, evaluate: Callable[[Size], int]) -> Bound:
        return Bound(self, self._kernels[number], self._kernels[number].buffers, evaluate)

    def enter(self) -> None:
        now = ctypes.c_void_p()
        self._cuda.check("cuCtxGetCurrent", ctypes.byref(now))
        if now.value != self.context:
            self._cuda.check("cuCtxSetCurrent", ctypes.c_void_p(self.context))

    def launch(
        self, variant: Variant, name: str, blocks: int, splits: int, threads: int, stream: int, args: Any
    ) -> None:
        for written in self._kernels:
            if variant in written.variants:
                self.addresses(self._kernels.index(written), written.variants.index(variant))
        function = ctypes.c_void_p(self._functions[name])
        numbers = [ctypes.c_uint(number) for number in (blocks, splits, 1, threads, 1, 1, 0)]
        self._cuda.check("cuLaunchKernel", function, *numbers, ctypes.c_void_p(stream), args, None)
