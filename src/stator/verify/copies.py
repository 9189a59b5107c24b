"""Copies of a graph's inputs that a graph cannot tell from the inputs themselves.

Enters: tensors and numbers. Leaves: others with the same contents, sizes, strides and flags, which lie in storages of
their own but share them as the originals do; and the leaves at which gradients arrive.
What holds: nothing that is done to the copies, backward included, is seen by the originals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Box:
    """A tensor that autograd does not see."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class _Arrive(torch.autograd.Function):
    """The boxed tensor as a result of some computation: no leaf and no view, so that it may be written to."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, box: _Box) -> Tensor:
        return box.tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class Copies:
    """One set of copies."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._made: dict[int, Any] = {}  # the same object may be given twice
        self.leaves: list[Tensor] = []
        self.values: list[Any] = [self._copy(value) for value in inputs]

    def _copy(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._made:
            with torch.inference_mode(value.is_inference()), torch.no_grad():
                copy = self._contents(value)
            self._made[id(value)] = self._with_gradients(value, copy)
        return self._made[id(value)]

    def _contents(self, value: Tensor) -> Tensor:
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            return value.detach().clone()
        storage = value.untyped_storage()
        found = self._storages.get(storage._cdata)
        if found is None:
            found = self._storages[storage._cdata] = storage.clone()  # type: ignore[no-untyped-call]
        copy = torch.empty(0, dtype=value.dtype, device=value.device)
        return copy.set_(found, value.storage_offset(), value.shape, value.stride())

    def _with_gradients(self, value: Tensor, copy: Tensor) -> Tensor:
        if not value.requires_grad:
            return torch.nn.Parameter(copy, requires_grad=False) if isinstance(value, torch.nn.Parameter) else copy
        if value.is_leaf:
            leaf = torch.nn.Parameter(copy) if isinstance(value, torch.nn.Parameter) else copy.requires_grad_()
            self.leaves.append(leaf)
            return leaf
        leaf = copy.detach().clone().requires_grad_()
        self.leaves.append(leaf)
        with torch.enable_grad():
            arrived: Tensor = _Arrive.apply(leaf, _Box(copy))  # type: ignore[no-untyped-call]
        return arrived
