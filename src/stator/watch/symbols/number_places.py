"""Places outside from which symbolic numbers are read: for as long as a segment runs, the symbol lies there itself.

Enters: the origin of a number, and the symbol for it. Leaves: the symbol in a list, a dict, a tuple, a class, a cell or
a slot, if the segment has not written there and a way leads to it. At the end the program's own number lies there.
"""

from __future__ import annotations

import collections
import contextlib
import operator
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ... import _native
from ...recording import Edge, Origin
from ...support.guard_readers import class_dict, has_own_hash, is_open
from ..objects.run_context import RunContext

_Way = tuple[Callable[[], Any], Callable[[Any], Any]]  # reads what lies there, and writes


class _Put(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    symbol: Any
    number: Any  # what was there


class NumberPlaces:
    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._put: list[_Put] = []
        self.opened: list[Any] = []  # tuples that the ledger is about to know

    def put(self, origin: Origin, number: Any, make: Callable[[], Any]) -> bool:
        """Put the symbol that `make` gives in the place of a number. False: it cannot lie there."""
        way = self._way_to(origin)
        if way is None:
            return False
        symbol = make()
        way[1](symbol)
        self._put.append(_Put(*way, symbol, number))
        return True

    def restore(self) -> None:
        """The program's numbers lie there again: `is` tells an equal one from them."""
        for read, write, symbol, number in reversed(self._put):
            with contextlib.suppress(LookupError, AttributeError, ValueError):
                if read() is symbol:
                    write(number)
        self._put.clear()

    def _way_to(self, origin: Origin) -> _Way | None:
        """How a number is read where it was read from, and put there."""
        assert origin.parent is not None
        if origin.parent.edge is Edge.SLOT and origin.parent.key is _native.proxied:
            return None  # a mappingproxy's dict is not ours to write: a class's lookups rely on being told
        try:
            key, parent = origin.key, self.value_of(origin.parent)
        except (LookupError, AttributeError, ValueError):
            return None  # by now that way leads nowhere
        known = origin.parent.edge is Edge.CONST or self._context.ledger.find(parent) is origin.parent
        known = known or any(parent is opened for opened in self.opened)
        if not known:
            return None  # by now that way leads to another object
        if any(self._may_have_changed(parent, key, slots) for slots in (False, True)):
            return None  # what was read is what lay there when the segment began
        if origin.edge is Edge.ITEM and type(parent) is list:
            return lambda: parent[key], lambda number: operator.setitem(parent, key, number)
        if origin.edge is Edge.ITEM and isinstance(parent, dict):
            return lambda: dict.__getitem__(parent, key), lambda number: dict.__setitem__(parent, key, number)
        if origin.edge is Edge.ITEM and isinstance(parent, tuple):
            return lambda: tuple.__getitem__(parent, key), lambda number: _native.swap_item(parent, key, number)
        if origin.edge is Edge.ITEM and type(parent) is collections.deque:
            return lambda: parent[key], lambda number: operator.setitem(parent, key, number)
        if origin.edge is Edge.MRO and isinstance(parent, type):
            return self._way_into_class(parent, key)
        if origin.edge is Edge.ATTR and key == "cell_contents":
            return lambda: parent.cell_contents, lambda number: setattr(parent, key, number)
        if origin.edge is Edge.SLOT and "__slots__" in class_dict(
            key.__objclass__
        ):  # else of a C class: perhaps read-only
            return lambda: key.__get__(parent), lambda number: key.__set__(parent, number)
        return None

    def _way_into_class(self, cls: type, name: str) -> _Way | None:
        """The same for an attribute of a class, which lies in one of its bases; lookups are told of it."""
        holder = next((base for base in cls.__mro__ if name in class_dict(base)), None)
        if (
            holder is None
            or not is_open(holder)
            or name.startswith("__")
            or self._may_have_changed(holder, name, False)
        ):
            return None
        return lambda: class_dict(holder)[name], lambda number: type.__setattr__(holder, name, number)

    def _may_have_changed(self, container: Any, key: Any, slots: bool) -> bool:
        """Has the segment written to this place?"""
        change = self._context.ledger.changed(container, slots=slots)
        if change is None:
            return False
        return change.kind == "cell" or change.whole or key in change.written or key in change.removed

    def value_of(self, origin: Origin) -> Any:
        """The object at an origin; MISSING where that is not easy to tell."""
        if origin.edge is Edge.LOCAL:
            index = origin.key[0]
            return self._context.slot_values[index]
        if origin.edge is Edge.CONST:
            return origin.key
        parent = self.value_of(origin.parent) if origin.parent is not None else _native.MISSING
        if parent is _native.MISSING:
            return parent
        if origin.edge is Edge.ATTR:
            plainly = object.__getattribute__ if origin.key == "__dict__" else getattr
            return plainly(parent, origin.key)
        if origin.edge is Edge.ITEM:
            base: Any = next(
                (base for base in (dict, list, tuple, collections.deque) if isinstance(parent, base)), None
            )
            return _native.MISSING if base is None else base.__getitem__(parent, origin.key)
        if origin.edge is Edge.SLOT:
            return origin.key.__get__(parent)
        if origin.edge is Edge.CALL and type(parent) is weakref.ReferenceType:
            found = parent()
            return _native.MISSING if found is None else found
        if origin.edge is Edge.KEYED:
            key = self.value_of(origin.key)
            if isinstance(parent, dict) and has_own_hash(key):
                return dict.get(parent, key, _native.MISSING)
        return _native.MISSING
