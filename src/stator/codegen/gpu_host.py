"""The host function of a graph on a GPU: what `host.build` needs to know of it.

Enters: a `Program` (any object of that form: this room does not know `fuse`), and on which device each value is.
Leaves: a target for `host.build`. Kernels go to the stream that is current in the call; buffers between them, and
scratch memory, lie in one block of the caching allocator, which is taken anew in each call, so it is that stream's;
library calls go through the dispatcher. Nothing waits for the device: numbers that lie on the CPU travel by value. A
checked index that lies outside stops the kernel, as eager's assertion does: the next synchronisation raises.
"""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import _native as n
from . import gpu_driver, host, ptx
from .host import Deferred, NotCompiled, Size, Tables, dtype_code

_MOST_PARAMETERS = 254  # buffers and sizes of a kernel: what `_native/host_gpu.c` has room for
_LINE = 64  # bytes in the arena for a number


class Gpu:
    """Kernels are the driver's. `load` makes them callable, `kinds` says torch's numbers of kinds of devices (others in
    tests)."""

    draws_again = False  # where a check of an index fails, nothing runs any more

    def __init__(
        self,
        program: Any,
        devices: Mapping[str, torch.device],
        device: torch.device,
        load: Callable[[list[Any], list[ptx.PtxKernel], int], Any] | None = None,
    ) -> None:
        self._program, self._devices, self._device = program, devices, device
        self._index = device.index or 0
        kernels: dict[str, Any] = {}
        self._numbers: dict[int, int] = {}  # by step
        for step in program.steps:
            if hasattr(step, "kernel"):
                key = step.kernel.key()
                kernels.setdefault(key, step.kernel)
                self._numbers[id(step)] = list(kernels).index(key)
        self._written = [ptx.write(kernel, f"kernel{i}") for i, kernel in enumerate(kernels.values())]
        for written in self._written:
            if written.buffers + len(written.sizes) > _MOST_PARAMETERS:
                raise NotCompiled(f"a kernel with {written.buffers} buffers and {len(written.sizes)} sizes")
        make = load or (lambda _, written, index: gpu_driver.Loaded(written, index))
        self._loaded: Any = make([*kernels.values()], self._written, self._index)
        self._specs: dict[int, Deferred] = {}
        self._numbers_there: dict[str, int] = {}  # buffers of numbers that lie on the CPU

    @property
    def facts(self) -> tuple[Any, ...]:
        keys = _keys(self._device.type)
        dtypes = {place.dtype for place in self._program.places.values()} | {torch.uint8}
        allocate = functools.partial(_allocate, {dtype_code(d): d for d in dtypes}, self._device)
        return (_kind(self._device), self._index, *keys, self._loaded.context, allocate)

    def kind(self, name: str) -> int:
        return _kind(self._devices.get(name, self._device))

    def size(self, planned: Size) -> Size:
        """Numbers lie behind the buffers."""
        return planned + _LINE * len(self._numbers_there)

    def launch(self, t: Tables, step: Any) -> list[Any]:
        rows: list[Any] = []
        number = self._numbers[id(step)]
        buffers = [self._number(t, name, rows) if self._on_cpu(name) else t.buffer(name) for name in step.buffers]
        sizes = tuple(map(t.slot, self._written[number].sizes))
        if number not in self._specs:
            self._specs[number] = self._spec(t, number)
        return [*rows, (n.HOST_LAUNCH, tuple(buffers), sizes, (), 0, self._specs[number])]

    def _on_cpu(self, name: str) -> bool:
        """A number: a float, or a tensor without dimensions on the CPU."""
        return name not in self._program.places or self._devices.get(name, self._device).type != self._device.type

    def _number(self, t: Tables, name: str, rows: list[Any]) -> int:
        """The buffer of a number, which is written there before the first launch that reads it."""
        if name not in self._numbers_there:
            offset = t.plan.size + _LINE * len(self._numbers_there)
            self._numbers_there[name] = buffer = t.part_of_arena(offset)
            place = self._program.places.get(name)
            bytes_ = 8 if place is None else place.dtype.itemsize
            rows.append((n.HOST_UPLOAD, (buffer,), (), (t.register(name), bytes_), 0, None))
        return self._numbers_there[name]

    def _spec(self, t: Tables, number: int) -> Deferred:
        """How a kernel is launched, for all steps that launch it."""
        written = self._written[number]
        variants = []
        for variant in written.variants:
            aligned = tuple([(r.what, r.of - 1) for r in variant.requirements if r.kind == "aligned"])
            conditions = tuple([
                (t.slot(r.what), r.of, r.kind == "multiple") for r in variant.requirements if r.kind != "aligned"
            ])  # fmt: skip
            grids = tuple([(t.slot(grid.blocks), grid.splits, grid.threads) for grid in variant.launches])
            variants.append((aligned, conditions, t.slot(variant.scratch), grids))
        load = functools.partial(self._loaded.addresses, number)
        return Deferred(tuple(variants), lambda parts, count: n.GpuKernel(parts, written.buffers, count, load))


def is_available() -> str | None:
    """None, or why there can be no host functions for GPUs here."""
    if (why := host.is_available()) is not None:
        return why
    return None if _learned(gpu_driver.LIBRARY, _torch_library()) else "torch's C functions for CUDA were not found"


@functools.cache
def _learned(driver: str, library: str) -> bool:
    return n.gpu_learn(driver, library)


def _torch_library() -> str:
    found = glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so*"))
    return found[0] if found else "libtorch_cuda.so"


@functools.cache
def _kind(device: torch.device) -> int:
    return 1 if device.type == "cuda" else 0


@functools.cache
def _keys(kind: str) -> tuple[int, int]:
    """Dispatch keys that a tensor which is plain memory may have, and must have."""
    keys = []
    for inference in (False, True):  # tensors of inference have fewer
        with _disable_current_modes(), torch.inference_mode(inference):
            keys.append(n.tensor_keys(torch.empty(0, device=kind)) or 0)
    return keys[0] | keys[1], keys[0] & keys[1]


def _allocate(
    dtypes: Mapping[int, torch.dtype], device: torch.device, sizes: list[int], strides: list[int], dtype: int
) -> torch.Tensor:
    """Asked where there was no memory: this says so in torch's own words."""
    return torch.empty_strided(sizes, strides, dtype=dtypes[dtype], device=device)
