"""Calls of the CUDA driver, checked by a stand-in for its library that notes what it is called with."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from gpu_cases import CASES, function_kernel, program_of

import stator
from stator.codegen import cache, gpu_driver, jit, ptx
from stator.codegen.gpu_driver import Cuda, CudaError, Loaded
from stator.fuse.loops import Launch, concrete

SOURCE = r"""
#include <stdint.h>
#include <stddef.h>
#include <string.h>
typedef void *P;
int fail_launch, contexts_set, modules, unloaded, launches, words = 16;
static P current;
struct { P function, stream; unsigned grid[3], block[3], shared; uint64_t args[64]; P extra; } last[16];
char text[1 << 20];
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
                   P stream, P *params, P *extra) {
    if (fail_launch) return 700;
    last[launches].function = f; last[launches].stream = stream; last[launches].extra = extra;
    last[launches].grid[0] = a; last[launches].grid[1] = b; last[launches].grid[2] = c;
    last[launches].block[0] = d; last[launches].block[1] = e; last[launches].block[2] = g;
    last[launches].shared = shared;
    for (int i = 0; i < words; i++) last[launches].args[i] = *(uint64_t *)params[i];
    launches++;
    return 0;
}
"""


class Record(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("args", ctypes.c_uint64 * 64),
        ("extra", ctypes.c_uint64),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "cuda.c").write_text(SOURCE)
    path = folder / "libcuda.so"
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(folder / "cuda.c")], check=True)
    return str(path)


@pytest.fixture
def driver(library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    stand_in = ctypes.CDLL(library)
    stand_in.cuCtxSetCurrent(None)
    for name in ("fail_launch", "contexts_set", "modules", "unloaded", "launches"):
        ctypes.c_int.in_dll(stand_in, name).value = 0
    monkeypatch.setattr(gpu_driver, "LIBRARY", library)
    monkeypatch.setattr(gpu_driver, "_cuda", Cuda())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    yield stand_in


def count(driver: Any, name: str) -> int:
    return ctypes.c_int.in_dll(driver, name).value


def records(driver: Any, words: int) -> list[Record]:
    return list((Record * 16).in_dll(driver, "last"))[: count(driver, "launches")]


def expect(driver: Any, words: int) -> None:
    ctypes.c_int.in_dll(driver, "words").value = words


def test_a_launch_has_its_arguments_in_order(driver: Any) -> None:
    written = ptx.write(function_kernel("exp", 1, torch.float32, 5000), "k")
    loaded = Loaded([written], 3)
    bound = loaded.bind(0, int)
    expect(driver, 4)
    for turn, pointers in enumerate(([0x10000, 0x20000], [0xFFFF_FFFF_FFF0, 0x40])):
        bound.launch(pointers, 0x50, 0x60, 0xABC000000001)
        made = records(driver, 4)[turn]
        assert list(made.args[:4]) == [*pointers, 0x50, 0x60]
        shape = written.variants[0].shape
        assert list(made.grid) == [-(-5000 // (shape.threads * shape.slots * shape.groups)), 1, 1]
        assert list(made.block) == [shape.threads, 1, 1]
        assert (made.stream, made.extra, made.shared) == (0xABC000000001, 0, 0)
        assert made.function == 0x7000001000
    assert count(driver, "contexts_set") == 1, "the context is set once"
    assert count(driver, "modules") == 1


def test_unaligned_addresses_load_the_other_variant_once(driver: Any) -> None:
    loaded = Loaded([ptx.write(function_kernel("exp", 1, torch.float32, 5000), "k")], 0)
    bound = loaded.bind(0, int)
    expect(driver, 4)
    for _ in range(3):
        bound.launch([0x10004, 0x20000], 0, 0, 0)
    bound.launch([0x10000, 0x20000], 0, 0, 0)
    assert [r.function - 0x7000001000 for r in records(driver, 4)] == [1, 1, 1, 0]
    assert count(driver, "modules") == 2
    del bound, loaded
    assert count(driver, "unloaded") == 2


def test_sizes_follow_the_pointers_and_launches_their_order(driver: Any) -> None:
    case = next(c for c in CASES if c.name == "dynamic_sum_31x77")
    program, _, symbols = program_of(case)
    step = next(s for s in program.steps if isinstance(s, Launch))
    written = ptx.write(step.kernel, "k")
    bound = Loaded([written], 0).bind(0, lambda size: concrete(size, symbols))
    pointers = [0x1000 * (n + 1) for n in range(written.buffers)]
    expect(driver, written.buffers + 2 + len(written.sizes))
    bound.launch(pointers, 0x99, 0, 0)
    made = records(driver, 0)
    assert len(made) == len(bound.variant(pointers).launches) == 2
    for record in made:
        sizes = list(record.args[written.buffers + 2 : written.buffers + 2 + len(written.sizes)])
        assert sizes == [concrete(size, symbols) for size in written.sizes]
        assert record.args[written.buffers] == 0x99
    assert made[0].grid[1] > 1 and made[1].grid[1] == 1


def test_no_blocks_no_launch(driver: Any) -> None:
    bound = Loaded([ptx.write(function_kernel("exp", 1, torch.float32, 0), "k")], 0).bind(0, int)
    bound.launch([0, 0], 0, 0, 0)
    assert records(driver, 0) == []


def test_errors_say_what_failed(driver: Any) -> None:
    bound = Loaded([ptx.write(function_kernel("exp", 1, torch.float32, 10), "k")], 0).bind(0, int)
    expect(driver, 4)
    ctypes.c_int.in_dll(driver, "fail_launch").value = 1
    with pytest.raises(CudaError, match=r"cuLaunchKernel: it failed \(700\)"):
        bound.launch([0x100, 0x100], 0, 0, 0)
    with pytest.raises(jit.Unavailable, match="line 7: no"):
        Loaded([ptx.write(function_kernel("exp", 1, torch.float32, 10), "kernel_bad")], 0)


def test_ptx_is_kept_on_disk(driver: Any, tmp_path: Path) -> None:
    written = ptx.write(function_kernel("exp", 1, torch.float32, 10), "k")
    with stator.options.patch(cache_dir=str(tmp_path)):
        before = replace(cache.counts)
        Loaded([written], 0)
        Loaded([written], 0)
        assert cache.counts.compiled == before.compiled + 1
        assert cache.counts.on_disk == before.on_disk + 1
    assert count(driver, "modules") == 2


def test_without_a_driver_nothing_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_driver, "LIBRARY", "libcuda.so.none")
    monkeypatch.setattr(gpu_driver, "_cuda", None)
    with pytest.raises(jit.Unavailable, match="no CUDA driver"):
        gpu_driver.cuda()
