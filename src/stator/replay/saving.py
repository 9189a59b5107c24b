"""Replays whose graphs write to inputs before something that may fail: what was there before is kept, and put back.

Enters: a replay, and which of the values that it takes it may have written to when it fails. Leaves: one that C code
can call as it calls any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _native
from ..support.graph_numbers import Failed
from ..support.tensor_memory import refuse_short

# Of these a Python number says all.
_NUMBERS = frozenset({torch.float64, torch.float32, torch.int64, torch.int32})

Values = tuple[Any, ...]


def keep(tensor: torch.Tensor) -> Any:
    """What a tensor holds: a copy, or a number, which takes a fraction of the time. Its memory must be there."""
    memory = _native.tensor_memory(tensor) if tensor.dim() == 0 and tensor.dtype in _NUMBERS else None
    if (
        memory is not None
        and memory[0]
        and tensor.is_cpu
        and memory[1] >= tensor.itemsize
        and not tensor.storage_offset()
    ):
        return tensor.item()
    refuse_short(tensor)
    return tensor.detach().clone()


def put_back(tensor: torch.Tensor, contents: Any) -> None:
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(contents) if isinstance(contents, torch.Tensor) else tensor.fill_(contents)


def saving(replay: Callable[[Values], Any], places: Sequence[int], *, always: bool) -> Callable[[Values], Any]:
    """The replay; where it raises, what these values held is put back. Not `always`: where a number in it fails."""

    def run(values: Values) -> Any:
        kept = [keep(values[place]) for place in places]
        try:
            return replay(values)
        except Exception as error:
            if always or isinstance(error, Failed):
                for place, contents in zip(places, kept, strict=True):
                    put_back(values[place], contents)
            raise

    return run
