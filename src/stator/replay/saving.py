"""Replays whose graphs write to inputs before something that may fail: what was there before is kept, and put back.

Enters: a replay, and which of the values that it takes it may have written to when it fails. Leaves: one that C code
can call as it calls any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _native
from ..support.tensor_memory import refuse_short

# Of these a Python number says all.
_NUMBERS = frozenset({torch.float64, torch.float32, torch.int64, torch.int32})

Values = tuple[Any, ...]


def keep(tensor: torch.Tensor) -> Any:
    """What a tensor holds: a copy, or a number, which takes a fraction of the time. Its memory must be there."""
    if not _is_whole(tensor):
        refuse_short(tensor)
    elif tensor.is_cpu and not tensor.dim() and tensor.dtype in _NUMBERS:
        return tensor.item()
    return tensor.detach().clone() if tensor.requires_grad else tensor.clone()


def _is_whole(tensor: torch.Tensor) -> bool:
    """Does it surely have all of its memory? Most do, and that is found out in no time."""
    if tensor.layout is not torch.strided or tensor.storage_offset() or not tensor.is_contiguous():
        return False
    memory = _native.tensor_memory(tensor)
    return memory is not None and bool(memory[0]) and memory[1] >= tensor.nbytes


def put_back(tensor: torch.Tensor, contents: Any) -> None:
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(contents) if isinstance(contents, torch.Tensor) else tensor.fill_(contents)


def saving(
    replay: Callable[[Values], Any], places: Sequence[int], is_undone: Callable[[Exception], bool]
) -> Callable[[Values], Any]:
    """The replay; where it raises, what these values held is put back, if with that all is undone."""

    def run(values: Values) -> Any:
        kept = [keep(values[place]) for place in places]
        try:
            return replay(values)
        except Exception as error:
            if is_undone(error):
                for place, contents in zip(places, kept, strict=True):
                    put_back(values[place], contents)
            raise

    return run
