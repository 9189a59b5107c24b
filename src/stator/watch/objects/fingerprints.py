"""The fingerprints of outside tensors, taken when the program first reaches them.

C code that the tensor mode does not see may change a tensor before its first operation, or one that is no operand at
all. Enters: every tensor that the ledger gets to know. Leaves: `BreakGraph`, if one is not as it was
and no node changed it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import torch

from ... import _native
from ..._native import AliasSet
from ..graph_break import BreakGraph

Fingerprint = tuple[int | None, int, Any, tuple[int, ...], bool]

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_STRIDED = torch.strided
_TensorBase = torch._C.TensorBase


def is_tensor(value: Any) -> bool:
    return issubclass(type(value), _TensorBase)


def fingerprint(tensor: Any) -> Fingerprint:
    """(version, address, dtype, shape, requires_grad). Read with no torch function mode on."""
    return _native.fingerprint(tensor, _STRIDED)


class Fingerprints:
    def __init__(self) -> None:
        self._noted: dict[int, tuple[Any, Fingerprint]] = {}  # by identity; the ledger keeps the tensors alive

    def note(self, tensor: Any) -> None:
        """Called by the ledger: the program has reached an outside tensor. (Others than plain ones take no part in a
        graph, and may run Python code when asked.)"""
        if type(tensor) in PLAIN_TENSORS and id(tensor) not in self._noted:
            with torch._C.DisableTorchFunction():
                if not tensor.is_nested:  # has no shape, and takes no part either
                    self._noted[id(tensor)] = (tensor, fingerprint(tensor))

    def compare(self, tensor: Any, found: Fingerprint, alias_sets: Iterable[tuple[Any, AliasSet]]) -> AliasSet | None:
        """An outside tensor has its first operation. Has it changed since it was reached? The alias set that it turns
        out to belong to, if nodes have written to its memory in between. `alias_sets`: the inputs so far, with theirs.
        """
        _, noted = self._noted.get(id(tensor), (tensor, found))
        if found[1:] != noted[1:]:
            raise BreakGraph("tensor-changed", "metadata")
        if found[0] == noted[0]:
            return None
        for other, alias_set in alias_sets:
            if alias_set.epoch and alias_set.version == found[0] and _share_memory(other, tensor):
                return alias_set
        raise BreakGraph("tensor-changed", "version")

    def counts_no_write(self, tensor: Any) -> bool:
        """Has torch counted no write to this outside tensor since it was reached?"""
        noted = self._noted.get(id(tensor))
        return noted is not None and noted[1][0] is not None and noted[1][0] == fingerprint(tensor)[0]

    def verify(self, known: Container[int], alias_sets: Iterable[tuple[Any, AliasSet]]) -> None:
        """The segment ends. Those that had no operation must be as they were."""
        for key, (tensor, _) in self._noted.items():
            if key not in known:
                self.compare(tensor, fingerprint(tensor), alias_sets)

    def forget(self) -> None:
        self._noted.clear()


def _share_memory(one: Any, other: Any) -> bool:
    if one.layout is not _STRIDED or other.layout is not _STRIDED:
        return False
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
