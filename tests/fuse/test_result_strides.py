"""Results have eager's strides, those of dimensions of size 1 too, which torch's meta kernels often get wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stator

STRIDES = [
    ((1, 4), (1, 1)),
    ((1, 4), (7, 1)),
    ((4, 1), (1, 9)),
    ((1, 4, 1, 3), (1, 3, 1, 1)),
    ((1, 4, 3, 3), (1, 9, 3, 1)),
    ((2, 1, 3), (1, 7, 2)),
    ((2, 3, 1), (3, 1, 5)),
    ((2, 1, 4, 4), (16, 1, 4, 1)),
    ((2, 4, 1, 1), (4, 1, 4, 4)),
    ((2, 4, 3, 3), (36, 1, 12, 4)),
]


def scaled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * 2,)


def computed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * 2 + 1, -x, x > 0, x.relu(), nn.functional.gelu(x), 1 - x, torch.where(x > 0, x, 1.0), x.double()


def made_like(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.zeros_like(x), torch.full_like(x, 3), nn.functional.hardtanh(x), x.masked_fill(x > 0, 0.5), x.clone()


def normed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return nn.functional.layer_norm(x, x.shape[-1:]), x.softmax(-1), x.log_softmax(0), nn.functional.mse_loss(
        x, x * 2, reduction="none"
    )  # fmt: skip


def shared(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.expand(3, *x.shape) * x, (x + x.sum()).expand(2, *x.shape).exp(), torch.div(x, 2, rounding_mode="floor")


def given(size: tuple[int, ...], stride: tuple[int, ...], seed: int) -> torch.Tensor:
    made = torch.empty_strided(size, stride)
    return made.copy_(torch.randn(size, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("function", [scaled, computed, made_like, normed, shared])
@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_are_those_of_eager(function, dynamic) -> None:
    def all_of_them(given: list[torch.Tensor]) -> list[torch.Tensor]:
        return [part for x in given for part in function(x)]

    compiled = stator.compile(all_of_them, backend="native", dynamic=dynamic, fullgraph=True)
    for seed in range(3):
        inputs = [given(size, stride, seed) for size, stride in STRIDES]
        for number, (one, other) in enumerate(zip(all_of_them(inputs), compiled(inputs), strict=True)):
            torch.testing.assert_close(other, one)
            assert other.stride() == one.stride(), number
    assert compiled.stator.hits == 2


def test_strides_follow_sizes_that_change() -> None:
    compiled = stator.compile(computed, backend="native", dynamic=True)
    for columns in (4, 5, 9, 2):
        x = given((columns, 1), (1, 1), columns).t()
        for one, other in zip(computed(x), compiled(x), strict=True):
            torch.testing.assert_close(other, one)
            assert other.stride() == one.stride()


def test_a_backward_of_such_strides_is_right() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x * 2) * 3

    for dynamic in (False, True):
        compiled = stator.compile(function, backend="native", dynamic=dynamic)
        for seed in range(3):
            gradients = []
            for call in (function, compiled):
                x = given((1, 4), (1, 1), seed).requires_grad_()
                call(x).sum().backward()
                gradients.append(x.grad)
            torch.testing.assert_close(gradients[1], gradients[0])
            assert gradients[1].stride() == gradients[0].stride()
