"""The CUDA driver: PTX in, functions that can be launched out. No toolkit: `libcuda.so.1` alone.

Enters: kernels as `ptx.write` leaves them. Leaves: `Loaded`, which knows the addresses of their functions. What holds:
a variant is compiled when it is first wanted; those that are wanted at first are one module. Every return code of the
driver is looked at; what cannot be done here raises `Unavailable` before anything was launched.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch

from . import cache, jit
from .jit import Unavailable
from .ptx import PtxKernel, Variant, module_text

TRIPLE = "nvptx64-nvidia-cuda"
LIBRARY = "libcuda.so.1"
# Capability, the oldest driver (as CUDA's version) that takes it, and the version of PTX that is written for it.
_TARGETS = [((10, 0), 12080, 86), ((9, 0), 12000, 80), ((8, 0), 12000, 80)]
_LOG_BYTES = 8192
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

    def context(self, device: int) -> ctypes.c_void_p:
        """The one of this device that torch works in."""
        with self._lock:
            if device not in self._contexts:
                handle, context = ctypes.c_int(), ctypes.c_void_p()
                self.check("cuDeviceGet", ctypes.byref(handle), device)
                self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
                self._contexts[device] = context
            return self._contexts[device]

    @contextlib.contextmanager
    def inside(self, device: int) -> Iterator[None]:
        """A thread that never called CUDA has no context yet; one that works on another device goes on there."""
        now, context = ctypes.c_void_p(), self.context(device)
        self.check("cuCtxGetCurrent", ctypes.byref(now))
        if now.value == context.value:
            yield
            return
        self.check("cuCtxSetCurrent", context)
        try:
            yield
        finally:
            if now.value is not None:
                self.check("cuCtxSetCurrent", now)

    def load(self, text: str) -> ctypes.c_void_p:
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


class Loaded:
    """Kernels of one graph on one device."""

    def __init__(self, kernels: Sequence[PtxKernel], device: int) -> None:
        self._cuda, self.device = cuda(), device
        self._target = target(torch.cuda.get_device_capability(device), self._cuda.version)
        self._kernels = list(kernels)
        self._modules: list[ctypes.c_void_p] = []
        self._functions: dict[str, int] = {}
        self._lock = threading.RLock()
        try:
            if kernels:
                self._load([k.variants[0] for k in kernels])
        except CudaError as error:
            raise Unavailable(f"the driver does not take the kernels: {' '.join(str(error).split())}") from error

    def _load(self, variants: Sequence[Variant]) -> None:
        with self._cuda.inside(self.device):
            module = self._cuda.load(assembly(variants, self._target))
            self._modules.append(module)
            for variant in variants:
                for launch in variant.launches:
                    self._functions[launch.name] = self._cuda.function(module, launch.name)

    @property
    def context(self) -> int:
        return self._cuda.context(self.device).value or 0

    def addresses(self, kernel: int, variant: int) -> tuple[int, ...]:
        """The functions of a kernel's variant, in the order of their launches."""
        wanted = self._kernels[kernel].variants[variant]
        with self._lock:
            if any(launch.name not in self._functions for launch in wanted.launches):
                self._load([wanted])
        return tuple([self._functions[launch.name] for launch in wanted.launches])

    def __del__(self) -> None:
        for module in getattr(self, "_modules", ()):
            self._cuda.unload(module)
