"""Sparse tensors: how many elements they hold, and whether they are coalesced, no guard knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


def sparse(*indices: int, coalesced: bool = False, dense: int = 0) -> torch.Tensor:
    values = torch.arange(1.0, len(indices) + 1)
    size: tuple[int, ...] = (4,)
    if dense:
        values, size = values[:, None].expand(-1, 4).contiguous(), (4, 4)
    made = torch.sparse_coo_tensor(torch.tensor([indices]), values, size)
    return made.coalesce() if coalesced else made


def flat() -> torch.Tensor:
    return torch.ones(4, 4).to_sparse()


SPARSE = [
    *(sparse(0, 1, coalesced=True), sparse(0, 1, coalesced=True), sparse(1, 1), sparse(2, 2, 2)),
    *(sparse(3, coalesced=True), sparse(1, 1)),
]
PROGRAMS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "coalesce": (lambda s: (s.coalesce() is s, s.coalesce().values() * 2), SPARSE),
    "what is coalesced": (lambda s: (s.coalesce().to_dense() + 1, s.coalesce()._nnz()), SPARSE),
    "indices": (lambda s: (s.coalesce().indices() + 1, 0), SPARSE),
    "dimensions": (
        lambda s: (s.to_dense() * 2, s.sparse_dim(), s.dense_dim()),
        [flat(), flat(), sparse(0, 1, dense=1), flat(), sparse(0, 1, dense=1)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sparse_tensors_of_other_contents(name):
    fn, arguments = PROGRAMS[name]
    compiled = stator.compile(lambda s, x: (fn(s), x * 2), backend="eager")
    for number, argument in enumerate(arguments):
        x = torch.full((2,), float(number))
        wanted, found = fn(argument), compiled(argument, x)
        assert torch.equal(found[1], x * 2)
        same = [
            torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(wanted, found[0], strict=True)
        ]
        assert all(same), (number, wanted, found)
    assert compiled.stator.recordings


def test_dimensions_of_strided_tensors_are_facts():
    compiled = stator.compile(lambda x: (x * 2, x.sparse_dim(), x.dense_dim()), backend="eager")
    for number in range(3):
        assert compiled(torch.full((2, 2), float(number)))[1:] == (0, 2)
    assert (compiled.stator.recordings, compiled.stator.hits, compiled.stator.break_reasons) == (1, 2, [])
