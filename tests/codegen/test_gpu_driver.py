"""Modules and functions of the CUDA driver, checked by a stand-in for its library that notes what it is called with."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from driver import Driver
from gpu_cases import function_kernel

import stator
from stator.codegen import cache, gpu_driver, jit, ptx
from stator.codegen.gpu_driver import Loaded


def exp(length: int = 5000, name: str = "k") -> ptx.PtxKernel:
    return ptx.write(function_kernel("exp", 1, torch.float32, length), name)


def test_a_variant_is_loaded_when_it_is_wanted(driver: Driver) -> None:
    loaded = Loaded([exp(), exp(700, "other")], 3)
    assert driver.count("modules") == 1, "all first variants are one module"
    first = loaded.addresses(0, 0)
    assert first == loaded.addresses(0, 0) == (0x7000001000,)
    assert loaded.context == 0x103
    for _ in range(3):
        assert loaded.addresses(0, 1) == (0x7000001001,)
    assert driver.count("modules") == 2
    del loaded
    assert driver.count("unloaded") == 2


def test_the_context_is_as_it_was(driver: Driver) -> None:
    driver.set_address("current", 0x105)
    Loaded([exp()], 3)
    assert driver.address("current") == 0x105 and driver.count("contexts_set") == 2
    driver.set_address("current", 0)
    Loaded([exp()], 3)
    assert driver.address("current") == 0x103, "where there was none, the device's stays"


def test_errors_say_what_failed(driver: Driver) -> None:
    with pytest.raises(jit.Unavailable, match="line 7: no"):
        Loaded([exp(10, "kernel_bad")], 0)


def test_ptx_is_kept_on_disk(driver: Driver, tmp_path: Path) -> None:
    with stator.options.patch(cache_dir=str(tmp_path)):
        before = replace(cache.counts)
        Loaded([exp(10)], 0)
        Loaded([exp(10)], 0)
        assert cache.counts.compiled == before.compiled + 1
        assert cache.counts.on_disk == before.on_disk + 1
    assert driver.count("modules") == 2


def test_without_a_driver_nothing_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_driver, "LIBRARY", "libcuda.so.none")
    monkeypatch.setattr(gpu_driver, "_cuda", None)
    with pytest.raises(jit.Unavailable, match="no CUDA driver"):
        gpu_driver.cuda()
