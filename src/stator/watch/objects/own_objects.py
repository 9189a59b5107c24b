"""Numbers and texts as objects of their own: behind a break they are told by identity wherever they go.

Enters: a number or a text of the program. Leaves: an equal object that nobody else has, and, when the segment ends, the
object that the program knows it as: `is` tells them apart.
"""

from __future__ import annotations

from typing import Any

from ... import _native

UNGUARDED_TYPES = (int, float, str)
_LONGEST = 100_000  # characters of a text that is copied to be told from others


def is_unguarded(value: Any) -> bool:
    """Can it be made an object of its own, and told by that wherever it goes?"""
    if type(value) is float:
        return value == value  # a NaN is told by its identity already
    return type(value) is int or (type(value) is str and 0 < len(value) <= _LONGEST)


class OwnObjects:
    """Those of one run, over all of its segments."""

    def __init__(self) -> None:
        self.originals: dict[int, tuple[Any, Any]] = {}  # by identity: (the object of its own, what it stands for)

    def make(self, value: Any) -> Any:
        if not is_unguarded(value):
            return value
        own = _native.distinct(value)
        self.originals[id(own)] = (own, self.original(value))
        return own

    def stands_for(self, own: Any, value: Any) -> None:
        """The program knows this number as another object."""
        self.originals.setdefault(id(own), (own, self.original(value)))

    def original(self, value: Any) -> Any:
        """What the program knows a number or a text as."""
        return self.originals.get(id(value), (value, value))[1]
