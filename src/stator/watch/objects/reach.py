"""What C code can get hold of by itself: numbers of ours in there become those that the program knows.

Enters: operands of an instruction. Leaves: every container, iterator, bound method or the like that C code reaches from
them, holding the program's own numbers. Objects that Python code alone looks into are left as they are: what that does
with numbers is watched.
"""

from __future__ import annotations

import collections
import gc
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ... import _native
from ...support.guard_readers import VALUE_TYPES, is_open
from .fingerprints import is_tensor

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_LEFT_TO_PYTHON = (types.FunctionType, types.ModuleType, types.CodeType, type)
_PLAIN_KEYS = (str, bytes, *VALUE_TYPES, type(None))

Originals = dict[int, tuple[Any, Any]]


def in_reach(values: Iterable[Any]) -> Iterator[Any]:
    """All objects that C code gets to from these, and these."""
    waiting, seen = list(values), set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        cls = type(value)
        entered = issubclass(cls, _CONTAINERS) or not is_open(cls)
        if entered and not issubclass(cls, _LEFT_TO_PYTHON) and not is_tensor(value):
            waiting += gc.get_referents(value)


def put_originals(holders: Iterable[Any], originals: Originals) -> bool:
    """False: one of them holds a number of ours at a place that nobody can write to."""
    done = True
    for holder in holders:
        for own, original in [originals[id(part)] for part in gc.get_referents(holder) if id(part) in originals]:
            done &= own is original or _put(holder, own, original)
    return done


def _put(holder: Any, own: Any, original: Any) -> bool:
    for cls, put in _PUT.items():
        if issubclass(type(holder), cls):
            return put(holder, own, original)
    return _native.swap(holder, own, original)


def _put_into_dict(holder: Any, own: Any, original: Any) -> bool:
    if not all(type(key) in _PLAIN_KEYS for key in dict.keys(holder)):  # code of its own would be asked for a hash
        return False
    base = collections.OrderedDict if issubclass(type(holder), collections.OrderedDict) else dict
    items = [tuple(original if part is own else part for part in item) for item in base.items(holder)]
    if any(key is own for key in dict.keys(holder)):
        base.clear(holder)
    for key, value in items:
        base.__setitem__(holder, key, value)
    return True


def _put_into_deque(holder: Any, own: Any, original: Any) -> bool:
    for index, value in enumerate(collections.deque.__iter__(holder)):
        if value is own:
            collections.deque.__setitem__(holder, index, original)
    return True


_PUT: dict[type, Callable[[Any, Any, Any], bool]] = {dict: _put_into_dict, collections.deque: _put_into_deque}
