"""A sample of what `opinfo.py` compares: every operator of torch's database, in one of the three types."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from opinfo import DTYPES, OPERATORS, Summary, check_operator, is_pointwise, is_reduction


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


CHOSEN = [
    (name, kinds[turn % len(kinds)])
    for turn, (name, op) in enumerate(OPERATORS.items())
    if (kinds := [dtype for dtype in DTYPES if dtype in op.dtypes])
]


def test_there_are_enough() -> None:
    for dtype in DTYPES:
        assert sum(dtype in op.dtypes for op in OPERATORS.values()) > 400


@pytest.mark.parametrize(("name", "dtype"), CHOSEN, ids=lambda value: str(value).removeprefix("torch."))
def test_an_operator(name: str, dtype: torch.dtype) -> None:
    for checked in check_operator(name, dtype, 2, extremes=False):
        assert not checked.wrong, checked.label


def test_pointwise_operators_and_reductions_are_fused() -> None:
    summary = Summary()
    for name, op in OPERATORS.items():
        if is_pointwise(op) or is_reduction(op):
            summary.all += check_operator(name, torch.float32, 2, extremes=False)
    fused, whole = summary.share(lambda op: is_pointwise(op) or is_reduction(op))
    assert whole > 200
    assert fused >= 0.95 * whole, list(summary.lines())
