"""A stand-in for the CUDA driver's library, and for torch's functions for CUDA: it notes what it is called with, and
lets a Python function do a launch."""

from __future__ import annotations

import ctypes
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stator.codegen import gpu_driver, gpu_host
from stator.codegen.gpu_driver import Cuda

SOURCE = r"""
#include <stdint.h>
#include <stddef.h>
#include <string.h>
typedef void *P;
int fail_launch, contexts_set, modules, unloaded, launches, guards, freed, sets;
P current, stream = (P)0xABC000000001;
P last_function, last_stream;
unsigned last_grid[6];
char text[1 << 24];
int (*hook)(P function, P *params);
int cuInit(unsigned f) { return f; }
int cuDriverGetVersion(int *v) { *v = 12080; return 0; }
int cuGetErrorString(int code, const char **s) { *s = "it failed"; return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDevicePrimaryCtxRetain(P *c, int d) { *c = (P)(intptr_t)(0x100 + d); return 0; }
int cuCtxGetCurrent(P *c) { *c = current; return 0; }
int cuCtxSetCurrent(P c) { current = c; contexts_set++; return 0; }
int cuModuleLoadDataEx(P *m, const char *image, unsigned n, int *options, P *values) {
    if (n != 2 || options[0] != 5 || options[1] != 6) return 1;
    if (strstr(image, "kernel_bad")) { strcpy(values[0], "line 7: no"); return 218; }
    strncpy(text, image, sizeof text - 1);
    *m = (P)(intptr_t)(0x1000 + modules++);
    return 0;
}
int cuModuleGetFunction(P *f, P m, const char *name) {
    if (!strstr(text, name)) return 500;
    *f = (P)(0x7000000000 + (intptr_t)m);
    return 0;
}
int cuModuleUnload(P m) { unloaded++; return 0; }
int cuLaunchKernel(P f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared,
                   P at, P *params, P *extra) {
    if (fail_launch) return 700;
    last_function = f; last_stream = at;
    unsigned grid[] = {a, b, c, d, e, g};
    memcpy(last_grid, grid, sizeof grid);
    launches++;
    return shared || extra ? 1 : hook ? hook(f, params) : 0;
}
static int set(uint64_t to, void *v, size_t size, size_t n, P at) {
    sets++;
    memcpy((P)to, v, size);
    return n != 1 || at != stream;
}
int cuMemsetD8Async(uint64_t to, unsigned char v, size_t n, P at) { return set(to, &v, sizeof v, n, at); }
int cuMemsetD16Async(uint64_t to, unsigned short v, size_t n, P at) { return set(to, &v, sizeof v, n, at); }
int cuMemsetD32Async(uint64_t to, unsigned v, size_t n, P at) { return set(to, &v, sizeof v, n, at); }
int aoti_torch_create_cuda_guard(int device, P *guard) { guards++; *guard = (P)0x60; return 0; }
int aoti_torch_delete_cuda_guard(P guard) { freed++; return guard != (P)0x60; }
int aoti_torch_get_current_cuda_stream(int device, P *to) { *to = stream; return 0; }
"""
_COUNTS = ("fail_launch", "contexts_set", "modules", "unloaded", "launches", "guards", "freed", "sets")
Hook = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))


class Driver:
    """What the stand-in has noted."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._hook: Any = None
        for name in _COUNTS:
            self.set(name, 0)
        library.cuCtxSetCurrent(None)
        self.set("contexts_set", 0)
        self.on_launch(None)

    def count(self, name: str) -> int:
        return ctypes.c_int.in_dll(self._library, name).value

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self._library, name).value = value

    def address(self, name: str) -> int:
        return ctypes.c_uint64.in_dll(self._library, name).value

    def set_address(self, name: str, value: int) -> None:
        ctypes.c_uint64.in_dll(self._library, name).value = value

    def grid(self) -> list[int]:
        return list((ctypes.c_uint * 6).in_dll(self._library, "last_grid"))

    def on_launch(self, run: Callable[[int, Any], int] | None) -> None:
        """`run(function, parameters)`: parameters[n][0] is the n-th argument, as 64 bits."""
        self._hook = Hook(run) if run is not None else None
        address = ctypes.cast(self._hook, ctypes.c_void_p).value if self._hook is not None else 0
        self.set_address("hook", address or 0)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("driver")
    (folder / "cuda.c").write_text(SOURCE)
    path = folder / "libcuda.so"
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(folder / "cuda.c")], check=True)
    return str(path)


@pytest.fixture
def driver(library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    stand_in = Driver(ctypes.CDLL(library))
    monkeypatch.setattr(gpu_driver, "LIBRARY", library)
    monkeypatch.setattr(gpu_driver, "_cuda", Cuda())
    monkeypatch.setattr(gpu_host, "_torch_library", lambda: library)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert gpu_host.is_available() is None
    yield stand_in
    stand_in.on_launch(None)
    gpu_host._learned.cache_clear()
