"""Builtin iterators and views: types whose objects keep a place in something else, which nobody can read."""

from __future__ import annotations

import collections
import itertools
import types
from typing import Any

_ITERABLES: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), set(), "", b"", range(0), collections.deque())
_FOUND: Any = (
    {type(iter(iterable)) for iterable in _ITERABLES}
    | {type(reversed([])), type(reversed({})), enumerate, zip, map, filter, reversed}
    | {cls for cls in vars(itertools).values() if isinstance(cls, type)}
    | {types.GeneratorType, type({}.keys()), type({}.values()), type({}.items())}
    | {type(collections.OrderedDict().keys()), type(collections.OrderedDict().items())}
    | {type(collections.OrderedDict().values()), type(iter(collections.OrderedDict()))}
)
ITERATOR_TYPES: tuple[type, ...] = tuple(_FOUND)
