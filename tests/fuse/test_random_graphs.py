"""Random graphs with the native backend: what `random_graphs` makes and checks, and what it has found."""

from __future__ import annotations

import pytest
import torch
from native_check import compare
from random_graphs import check_graph, launches

EACH = 10


@pytest.mark.parametrize("first", range(0, 100, EACH))
def test_random_graphs(first: int) -> None:
    """Each is called three times; machine code and evaluator are compared with ATen in each call."""
    made = [check_graph(seed) for seed in range(first, first + EACH)]
    assert all(made) and sum(map(launches, made)) >= EACH


def test_what_is_loaded_is_not_computed_in_the_same_kernel() -> None:
    """`cat` reads `y` from memory, under a condition, beside others that take it from a register."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = -x
        return torch.slice_scatter(x, y, 1, 0, 2), y, y.double() * 2, torch.nn.functional.pad(y, (0, 0)) + y

    seen = compare(f, lambda seed: [torch.randn(5, 2, generator=torch.Generator().manual_seed(seed))])
    assert seen.kernels > 0


def test_a_row_behind_a_flip() -> None:
    """The index runs backwards through two dimensions that are seen as one."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        padded = torch.nn.functional.pad(x, (1, 1), value=3.0)
        return padded.view(-1) == padded.view(-1).flip(0), padded, padded.view(-1).flip(0).view(3, 2) + 1

    seen = compare(f, lambda seed: [torch.randn(2, 1, generator=torch.Generator().manual_seed(seed))])
    assert seen.kernels > 0


def test_a_kernel_with_a_scan_over_nothing_stores_the_rest() -> None:
    """What is computed once per row is wanted, however short the rows are."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.flip(0)
        return y, (x[:, 1:] + y).cumsum(1), y[2:].expand(7, 3) * 2

    seen = compare(f, lambda seed: [torch.randn(9, 1, generator=torch.Generator().manual_seed(seed))])
    assert seen.kernels > 0


def test_a_scan_along_an_axis_that_is_split_twice() -> None:
    """First for the first view of what is scanned, then for a second one."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.abs()
        return y, y.view(255, 1).cumsum(0), (x.view(85, 3) * 2).view(-1).cumsum(0), x.view(255).cumsum(0).view(5, 51)

    seen = compare(f, lambda seed: [torch.randn(5, 17, 3, generator=torch.Generator().manual_seed(seed))])
    assert seen.kernels > 0
