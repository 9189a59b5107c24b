"""What autograd itself keeps for its formulas: nobody may write to it before the backward, whatever a compiled graph
keeps.

Enters: the results of a traced function, before their graph of autograd is let go of. Leaves: for the storages that its
nodes hold tensors of, from which results they are reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .kept import names_of_saved


def storages_kept(results: Sequence[Tensor]) -> dict[int | None, int]:
    """Storages by address; results as bits."""
    reached: dict[Any, int] = {}
    pending: list[tuple[Any, int]] = [(result.grad_fn, 1 << place) for place, result in enumerate(results)]
    while pending:
        node, bits = pending.pop()
        known = reached.get(node, 0)
        if node is not None and known | bits != known:
            reached[node] = known | bits
            pending += [(former, known | bits) for former, _ in node.next_functions]
    found: dict[int | None, int] = {}
    for node, bits in reached.items():
        for tensor in _held_by(node):
            storage = storage_of(tensor)
            if storage is not None:
                found[storage] = found.get(storage, 0) | bits
    return found


def storage_of(tensor: Tensor) -> int | None:
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else None


def _held_by(node: Any) -> Iterator[Tensor]:
    kind: Any = type(node)
    for name in names_of_saved(kind):
        try:
            held = getattr(node, name)
        except RuntimeError:  # it is gone
            continue
        for value in held if isinstance(held, (tuple, list)) else (held,):
            if isinstance(value, Tensor):
                yield value
