"""Pooling and enlarging as kernels: values, positions, strides and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native_check import compare
from torch import Tensor

INF = float("inf")
FUSED: dict[str, Callable[[Tensor], Any]] = {
    "largest of 2": lambda x: F.max_pool2d(x, 2),
    "and where": lambda x: F.max_pool2d(x, 3, 2, return_indices=True),
    "with a border": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "with borders": lambda x: F.max_pool2d(x, (2, 4), (1, 3), (1, 2), return_indices=True),
    "nothing but borders": lambda x: F.max_pool2d(torch.where(x > 2, INF, -INF), 3, 2, 1, return_indices=True),
    "mean of 2": lambda x: F.avg_pool2d(x.relu(), 2) * 2,
    "windows that overlap": lambda x: F.avg_pool2d(x, (3, 2), 1),
    "another divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "three dimensions": lambda x: F.avg_pool2d(x[0], 2),
    "twice as large": lambda x: F.interpolate(x, scale_factor=2) + 1,
    "unevenly": lambda x: F.interpolate(x, scale_factor=(2, 4)),
    "to a size": lambda x: F.interpolate(x, size=(34, 40)),
}
LEFT: dict[str, Callable[[Tensor], Any]] = {
    "a mean with a border": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "a part of a window": lambda x: F.avg_pool2d(x, 2, ceil_mode=True),
    "gaps": lambda x: F.max_pool2d(x, 2, dilation=2),
    "large windows": lambda x: F.max_pool2d(x, 5),
    "by 3": lambda x: F.interpolate(x, scale_factor=3),
    "channels last": lambda x: F.max_pool2d(x.contiguous(memory_format=torch.channels_last), 2),
}


def images(dtype: torch.dtype) -> Callable[[int], list[Tensor]]:
    def make(seed: int) -> list[Tensor]:
        x = torch.randn(2, 3, 17, 20, generator=torch.Generator().manual_seed(seed)).to(dtype)
        x[1, 1, 4:6, 6:8] = 1.0  # equal ones
        return [x]

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUSED)
def test_windows_are_kernels(name: str, dtype: torch.dtype) -> None:
    assert compare(FUSED[name], images(dtype), grads=False).calls == []


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left_to_aten(name: str) -> None:
    assert len(compare(LEFT[name], images(torch.float32), grads=False).calls) == 1


def test_of_nans_the_last_one_counts() -> None:
    def make(seed: int) -> list[Tensor]:
        (x,) = images(torch.float32)(seed)
        x[0, 0, 3, 4:6] = x[0, 0, 2 + seed, 4] = float("nan")
        return [x]

    compare(lambda x: [t.nan_to_num(7) for t in F.max_pool2d(x, 3, 2, 1, return_indices=True)], make, grads=False)


def test_gradients() -> None:
    def fn(x: Tensor) -> Tensor:
        return (
            F.max_pool2d(x, 3, 2, 1).sin().sum()
            + F.avg_pool2d(x, 2).cos().sum()
            + F.interpolate(x, scale_factor=2).exp().sum()
        )

    compare(fn, images(torch.float64))


def test_sizes_that_change() -> None:
    """Windows are for sizes that are known."""

    def make(seed: int) -> list[Tensor]:
        return [torch.randn(2, 3, 17 + seed, 20, generator=torch.Generator().manual_seed(seed))]

    compare(lambda x: F.max_pool2d(x, 2) * 2, make, grads=False, dynamic=True)
