"""Products of few rows: bfloat16 reads the weight once and sums in float32; every way of changing a weight counts."""

from __future__ import annotations

import pytest
import torch
from native_check import compare
from torch import Tensor

import stator


@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 64, 48), (1, 37, 5), (3, 100, 12), (8, 64, 7)])
def test_few_rows_of_bfloat16(rows: int, depth: int, columns: int) -> None:
    def product(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ w.t()) + 1

    def make(seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, depth + 3, generator=generator)[:, :depth].bfloat16()
        return [x, torch.randn(columns, depth, generator=generator).bfloat16()]

    seen = compare(product, make, grads=False)
    assert seen.gemms == 1 and not seen.calls


def test_more_rows_of_bfloat16_are_a_call() -> None:
    def product(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.t() * 2

    def make(seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(n, 32, generator=generator).bfloat16() for n in (9, 16)]

    seen = compare(product, make, grads=False)
    assert seen.gemms == 0 and len(seen.calls) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_change_count_at_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 48, bias=False, dtype=dtype).requires_grad_(False)
    compiled = stator.compile(layer, backend="native")
    x = torch.randn(2, 64).to(dtype)
    changes = (
        lambda w: None,
        lambda w: w.mul_(2),
        lambda w: w.data.add_(1),
        lambda w: setattr(w, "data", torch.randn_like(w)),
        lambda w: w.set_(torch.randn_like(w)),
    )
    for change in changes:
        change(layer.weight)
        tolerance = 1e-4 if dtype is torch.float32 else 3e-2
        torch.testing.assert_close(compiled(x), layer(x), rtol=tolerance, atol=tolerance * 10)
