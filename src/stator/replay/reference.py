"""How Python reads what guards ask about, one value at a time: what the rows in `guard_edges.py` and `guard_facts.py`
call.

Nothing here runs code of the program, except where an origin itself is a call. The guards in C do the same, quickly.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _native
from ..recording import TensorFacts
from ..support.builtin_types import BASES
from ..support.guard_readers import (
    class_dict,
    container_kind,
    fits_numbers,
    has_own_hash,
    keys_of,
    same_constant,
    special_methods,
)

MISSING = _native.MISSING


def behind(cls: type, key: tuple[type, str]) -> Any:
    """The entry that `super(key[0], …)` finds in the MRO of a class."""
    start, name = key
    mro = cls.__mro__
    for base in mro[mro.index(start) + 1 :]:
        if name in class_dict(base):
            return class_dict(base)[name]
    raise AttributeError(name)


def attribute(value: Any, name: str) -> Any:
    """A part of an object; the instance dict is taken past a `__getattribute__` of the class."""
    return object.__getattribute__(value, name) if name == "__dict__" else getattr(value, name)


def item(container: Any, key: Any) -> Any:
    """An item of a builtin container or of the container that a subclass is."""
    kind = container_kind(type(container))
    if kind == "dict" and not dict.__contains__(container, key):
        raise KeyError(key)  # and `__missing__` is not asked
    return BASES[kind].__getitem__(container, key) if kind is not None else container[key]


def has_entry(mapping: Any, key: Any) -> bool:
    """Is this very object a key of a dict?"""
    return isinstance(mapping, dict) and has_own_hash(key) and dict.__contains__(mapping, key)


def entry_of(mapping: Any, key: Any) -> Any:
    """What a dict has under this very object."""
    if not has_entry(mapping, key):
        raise KeyError("an object")
    return dict.__getitem__(mapping, key)


def length(container: Any) -> int:
    kind = container_kind(type(container))
    return int(BASES[kind].__len__(container)) if kind is not None else len(container)


def keys(container: Any) -> tuple[Any, ...]:
    return tuple(keys_of(container)) if isinstance(container, dict) else tuple(container)


def same_keys(container: Any, expected: tuple[Any, ...]) -> bool:
    found = keys(container)
    return len(found) == len(expected) and all(map(same_constant, found, expected))


def has(container: Any, key: Any) -> bool:
    return dict.__contains__(container, key) if isinstance(container, dict) else key in container


def specials_unchanged(cls: type, expected: list[Any]) -> bool:
    """The version tag of a class moved: compare its special methods, and remember the new tag if they are the same."""
    version = _native.type_version(cls)
    found, wanted = special_methods(cls), expected[1]
    if len(found) != len(wanted) or any(found.get(name) is not value for name, value in wanted.items()):
        return False
    expected[0] = version or -1
    return True


def is_unset(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def no_slot(value: Any, slot: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return True
    return False


def same_tensor(value: Any, e: TensorFacts) -> bool:
    """Do the facts hold of this tensor? Asked in the order of what changes most often."""
    cls: Any = type(value)
    return bool(
        cls is e.type
        and fits_numbers(value.shape, e.size)
        and value.dtype is e.dtype
        and value.requires_grad is e.requires_grad
        and (fits_numbers(value.stride(), e.stride) if value.layout is torch.strided else not e.stride)
        and _dispatch_keys(value).raw_repr() == e.keys
        and value.device == e.device
        and value.is_leaf is e.is_leaf
    )


_dispatch_keys = torch._C._dispatch_keys
