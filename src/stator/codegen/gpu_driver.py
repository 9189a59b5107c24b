"""The CUDA driver: PTX in, functions that can be launched out. No toolkit: `libcuda.so.1` alone.

Enters: kernels as `ptx.write` leaves them. Leaves: `Loaded`, which launches them on a stream. What holds: a variant is
compiled when it is first wanted; those that are wanted at first are one module. Every return code of the driver is
looked at; what cannot be done here raises `Unavailable` before anything was launched.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from . import cache, jit
from .gpu_values import Size
from .jit import Unavailable
from .ptx import Variant, WrittenForGpu, module_text

TRIPLE = "nvptx64-nvidia-cuda"
LIBRARY = "libcuda.so.1"
# Capability, the oldest driver (as CUDA's version) that takes it, and the version of PTX that is written for it.
_TARGETS = [((10, 0), 12080, 86), ((9, 0), 12000, 80), ((8, 0), 12000, 80)]
_LOG_BYTES = 8192
_MOST_PARAMETERS = 500  # 4 KiB
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  # CUjit_option


class CudaError(RuntimeError):
    """A call of the driver failed."""


def target(capability: tuple[int, int], driver: int) -> jit.Target:
    """What PTX is written for: the newest that both the device and its driver take."""
    for known, oldest, version in _TARGETS:
        if capability >= known and driver >= oldest:
            return jit.Target(TRIPLE, f"sm_{known[0]}{known[1]}", f"+ptx{version}")
    raise Unavailable(f"no PTX for capability {capability[0]}.{capability[1]} with a driver for CUDA {driver / 1000:g}")


def assembly(variants: Sequence[Variant], to: jit.Target) -> str:
    """PTX of kernels in one module."""
    return cache.assembly_cached(module_text(variants), to)


class Cuda:
    """The driver's library, and the primary contexts that torch works in."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise Unavailable(f"there is no CUDA driver: {error}") from error
        self._launch: Any = self._library.cuLaunchKernel
        number, pointer = ctypes.c_uint, ctypes.c_void_p
        self._launch.argtypes = [pointer, *[number] * 7, pointer, pointer, pointer]
        version = ctypes.c_int()
        self.check("cuInit", 0)
        self.check("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._lock = threading.RLock()

    def check(self, name: str, *args: Any) -> None:
        code = getattr(self._library, name)(*args)
        if code:
            self._fail(name, code)

    def _fail(self, name: str, code: int) -> NoReturn:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        raise CudaError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")

    def enter(self, device: int) -> None:
        """A thread that never called CUDA has no context yet."""
        with self._lock:
            if device not in self._contexts:
                handle, context = ctypes.c_int(), ctypes.c_void_p()
                self.check("cuDeviceGet", ctypes.byref(handle), device)
                self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
                self._contexts[device] = context
        now = ctypes.c_void_p()
        self.check("cuCtxGetCurrent", ctypes.byref(now))
        if now.value != self._contexts[device].value:
            self.check("cuCtxSetCurrent", self._contexts[device])

    def load(self, text: str, device: int) -> ctypes.c_void_p:
        self.enter(device)
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        try:
            self.check("cuModuleLoadDataEx", ctypes.byref(module), text.encode() + b"\0", 2, options, values)
        except CudaError as error:
            raise CudaError(f"{error}\n{log.value.decode(errors='replace')}") from error
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> int:
        function = ctypes.c_void_p()
        self.check("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        assert function.value is not None
        return function.value

    def launch(self, function: int, blocks: int, splits: int, threads: int, stream: int, args: Any) -> None:
        code = self._launch(function, blocks, splits, 1, threads, 1, 1, 0, stream, args, None)
        if code:
            self._fail("cuLaunchKernel", code)

    def unload(self, module: ctypes.c_void_p) -> None:
        self._library.cuModuleUnload(module)  # at the end of the process its context may be gone


_cuda: Cuda | None = None
_cuda_lock = threading.RLock()


def cuda() -> Cuda:
    global _cuda
    with _cuda_lock:
        if _cuda is None:
            _cuda = Cuda()
        return _cuda


class Chosen:
    """A variant of a kernel with numbers for its sizes, and room for the arguments of a launch."""

    def __init__(self, variant: Variant, sizes: Sequence[int], buffers: int, evaluate: Callable[[Size], int]) -> None:
        self.variant = variant
        self.scratch = evaluate(variant.scratch)
        self.grids = [(g.name, evaluate(g.blocks), g.splits, g.threads) for g in variant.launches]
        self.grids = [grid for grid in self.grids if grid[1]]
        self.aligned = [(r.what, r.of - 1) for r in variant.requirements if r.kind == "aligned"]  # powers of two
        self.pointers = buffers + 2
        self._sizes = [size & (2**64 - 1) for size in sizes]
        self.room = self.make_room()
        self.lock = threading.Lock()  # the arguments of one launch at a time; the driver copies them

    def make_room(self) -> tuple[Any, Any]:
        """Values of arguments, and their addresses as the driver takes them."""
        count = self.pointers + len(self._sizes)
        values = (ctypes.c_uint64 * count)(*[0] * self.pointers, *self._sizes)
        first = ctypes.addressof(values)
        return values, (ctypes.c_void_p * count)(*[first + 8 * n for n in range(count)])


class Bound:
    """A kernel with numbers for its sizes."""

    def __init__(self, loaded: Any, written: WrittenForGpu, buffers: int, evaluate: Callable[[Size], int]) -> None:
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
        if not chosen.lock.acquire(blocking=False):  # another thread's launch, or one that this one has interrupted
            self._start(chosen, chosen.make_room(), pointers, stream)
            return
        try:
            self._start(chosen, chosen.room, pointers, stream)
        finally:
            chosen.lock.release()

    def _start(self, chosen: Chosen, room: tuple[Any, Any], pointers: list[int], stream: int) -> None:
        values, args = room
        values[: chosen.pointers] = pointers
        for name, blocks, splits, threads in chosen.grids:
            self._loaded.launch(chosen.variant, name, blocks, splits, threads, stream, args)


def _sizes_fit(variant: Variant, evaluate: Callable[[Size], int]) -> bool:
    for r in variant.requirements:
        if r.kind == "multiple" and evaluate(r.what) % r.of:
            return False
        if r.kind == "at_most" and evaluate(r.what) > r.of:
            return False
    return True


class Loaded:
    """Kernels of one graph on one device."""

    def __init__(self, kernels: Sequence[WrittenForGpu], device: int) -> None:
        self._cuda, self.device = cuda(), device
        self._target = target(torch.cuda.get_device_capability(device), self._cuda.version)
        self._kernels = list(kernels)
        self._modules: list[ctypes.c_void_p] = []
        self._functions: dict[str, int] = {}
        self._lock = threading.RLock()
        if any(k.buffers + len(k.sizes) > _MOST_PARAMETERS for k in kernels):
            raise Unavailable(f"a kernel with more than {_MOST_PARAMETERS} buffers and sizes")
        try:
            if kernels:
                self._load([k.variants[0] for k in kernels])
        except CudaError as error:
            raise Unavailable(f"the driver does not take the kernels: {' '.join(str(error).split())}") from error

    def _load(self, variants: Sequence[Variant]) -> None:
        module = self._cuda.load(assembly(variants, self._target), self.device)
        self._modules.append(module)
        for variant in variants:
            for launch in variant.launches:
                self._functions[launch.name] = self._cuda.function(module, launch.name)

    def bind(self, number: int, evaluate: Callable[[Size], int]) -> Bound:
        return Bound(self, self._kernels[number], self._kernels[number].buffers, evaluate)

    def enter(self) -> None:
        """Before launches: the calling thread gets the device's context."""
        self._cuda.enter(self.device)

    def launch(
        self, variant: Variant, name: str, blocks: int, splits: int, threads: int, stream: int, args: Any
    ) -> None:
        function = self._functions.get(name)
        if function is None:
            with self._lock:
                if name not in self._functions:
                    self._load([variant])
            function = self._functions[name]
        self._cuda.launch(function, blocks, splits, threads, stream, args)

    def __del__(self) -> None:
        for module in getattr(self, "_modules", ()):
            self._cuda.unload(module)
