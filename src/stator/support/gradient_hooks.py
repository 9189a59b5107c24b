"""Is a hook called when the gradient of a leaf tensor arrives?

Hooks are set on the tensor itself, and on the node of autograd that accumulates its gradient, as
`DistributedDataParallel` does. Torch tells nobody which hooks a node has, so the places of the two lists are looked for
in a node of our own: they are what changes when a hook is set. What holds: if they are not found, every tensor has
hooks.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any

import torch

from .torch_builds import is_read_up

_WORDS = 32  # of a node: it is larger, in any torch in which the lists are found
_HEAD = 16  # of a Python object
_KIND = "AccumulateGrad"  # the only nodes whose memory is read


def _accumulator(tensor: Any) -> Any:
    """The node that accumulates the gradient of a leaf. It lives as long as somebody holds it, as hooks' owners do."""
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        return tensor.view_as(tensor).grad_fn.next_functions[0][0]


def _content(node: Any) -> tuple[int, ...]:
    """The words of a node in C++; its Python object begins with a pointer to it."""
    address = ctypes.c_uint64.from_address(id(node) + _HEAD).value
    return struct.unpack(f"{_WORDS}Q", ctypes.string_at(address, 8 * _WORDS))


def _list_in(before: tuple[int, ...], after: tuple[int, ...]) -> int | None:
    """The place of a list that was empty: begin, end and room, all null, and then three that follow each other."""
    changed = [place for place in range(_WORDS) if before[place] != after[place]]
    if len(changed) != 3 or changed[2] - changed[0] != 2 or any(before[place] for place in changed):
        return None
    begin, end, room = (after[place] for place in changed)
    return changed[0] if begin < end <= room else None


@functools.cache
def _places() -> tuple[int, int] | None:
    """Where a node keeps the hooks that are called before it, and those that are called after it."""
    if not is_read_up():
        return None
    with torch.inference_mode(False):
        node = _accumulator(torch.empty(1, requires_grad=True))
    if type(node).__name__ != _KIND:
        return None
    plain = _content(node)
    node.register_prehook(print)
    first = _content(node)
    node.register_hook(print)
    before, after = _list_in(plain, first), _list_in(first, _content(node))
    return None if before is None or after is None else (before, after)


def has_gradient_hooks(tensor: Any) -> bool:
    """Also true of what is no leaf that requires a gradient, and of leaves whose gradient is to be of another dtype."""
    places = _places()
    if places is None or not isinstance(tensor, torch.Tensor) or not tensor.is_leaf or not tensor.requires_grad:
        return True
    if getattr(tensor, "grad_dtype", tensor.dtype) is not tensor.dtype:
        return True
    if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
        return True
    node = _accumulator(tensor)
    if type(node).__name__ != _KIND:
        return True
    found = _content(node)
    return any(found[place] != found[place + 1] for place in places)


class HooksOfGradient:
    """The same as a descriptor, by which guards reach what it says: `parameter.gradient_hooks == False`."""

    __name__ = "gradient_hooks"

    def __get__(self, tensor: Any, owner: Any = None) -> bool:
        return has_gradient_hooks(tensor)


HOOKS = HooksOfGradient()
