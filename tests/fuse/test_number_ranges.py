"""Numbers that change, and the range of the type that eager converts them to: outside of it eager raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import stator
from stator import events

WHOLE: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "alpha": lambda x, y, n: torch.add(x, y, alpha=n) * 1,
    "alpha of a difference": lambda x, y, n: x.sub(y, alpha=n),
    "clamp": lambda x, y, n: x.clamp(-5, n),
    "full": lambda x, y, n: x + torch.full((3,), n, dtype=x.dtype),
    "where": lambda x, y, n: torch.where(x > 1, x, n),
    "masked_fill": lambda x, y, n: x.masked_fill(y > 1, n),
    "fill": lambda x, y, n: x.clone().fill_(n),
    "value": lambda x, y, n: torch.addcmul(x, x, y, value=n),
    "beside a tensor": lambda x, y, n: torch.stack([x * n, n - y]),
    "compared": lambda x, y, n: (x == n) | (x < n),
}
FRACTIONS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "alpha": lambda x, y, n: torch.add(x, y, alpha=n) * 1,
    "clamp": lambda x, y, n: x.clamp(-5, n),
    "masked_fill": lambda x, y, n: x.masked_fill(y > 1, n),
    "computed": lambda x, y, n: x.masked_fill(y > 1, n + 1.5),
    "computed, written": lambda x, y, n: x.add_(y, alpha=1 - n),
    "computed, filled": lambda x, y, n: x + torch.full((3,), n + 1.5, dtype=x.dtype),
    "beside a tensor": lambda x, y, n: torch.stack([x * n, n - y]),
}


def outcome(fn: Callable[..., Tensor], *args: Any) -> Any:
    try:
        return fn(*args)
    except RuntimeError as error:
        return str(error)


def check(fn: Callable[..., Tensor], dtype: torch.dtype, numbers: Sequence[Any]) -> None:
    """Eager's results and exceptions for all of them, by recordings of machine code."""
    made: list[Any] = []
    x, y = torch.tensor([1, 0, 90]).to(dtype), torch.tensor([3, 1, 2]).to(dtype)
    unsubscribe = events.subscribe(made.append, events.CodeGenerated)
    try:
        compiled = stator.compile(fn, backend="native")
        for number in numbers:
            got, want = outcome(compiled, x.clone(), y, number), outcome(fn, x.clone(), y, number)
            same = got == want if isinstance(want, str) else torch.equal(got.nan_to_num(), want.nan_to_num())
            assert same, (number, got, want)
    finally:
        unsubscribe()
    assert 1 <= len(made) <= len(compiled.stator.entries) <= 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float16])
def test_whole_numbers(name: str, dtype: torch.dtype) -> None:
    check(WHOLE[name], dtype, [3, 4, 5, 300, 6, -7, -300, 70000, 9, 2**40])


@pytest.mark.parametrize("name", FRACTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_fractions(name: str, dtype: torch.dtype) -> None:
    check(FRACTIONS[name], dtype, [3.5, 4.5, 5.5, 1e6, 0.5, -1e6, 2.5, 1e39, -1e39, float("inf"), float("nan"), 1.5])


@pytest.mark.parametrize("alpha", [False, 0, 2, True])
def test_a_factor_of_truth_values(alpha: Any) -> None:
    check(lambda x, y, n: torch.add(x > 0, y > n, alpha=alpha), torch.int64, [2, 2, 2, 1, 1])
