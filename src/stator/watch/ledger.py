"""The table of known outside objects: by identity, with origin, checks, and what the segment changed of them.

Enters: every value that the recorder sees being read from outside, with the way it was reached. Leaves: the list of
origins (parents before children) with their checks, and the list of changes. In between: an object has one origin, the
first one; reaching it by another one adds a check that both are the same object. Values are noted as they were when
first read. Known objects are kept alive until the recording ends, so that an identity names one object only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .. import _native
from ..facts import VALUE_TYPES, plain_value
from ..recording import Check, Edge, Fact, Origin, Place
from .constants import constant_fact

_KEYED_FACTS = frozenset({Fact.HAS, Fact.LACKS, Fact.NO_ENTRY, Fact.NO_SLOT, Fact.OTHER})


@dataclass(eq=False, slots=True)
class Change:
    """What the segment did to one outside object (or to one slot or class entry of it)."""

    kind: str  # "dict", "list", "set", "deque", "cell", "slot", "class"
    origin: Origin
    target: Any
    initial: Any = None  # contents before the first change
    written: dict[Any, None] = field(default_factory=dict)  # dict keys, class entries, slot descriptors
    removed: set[Any] = field(default_factory=set)  # dict keys that were deleted at some time, perhaps set again
    whole: bool = False  # anything may have changed: compare all contents
    structure_noted: bool = False


class Ledger:
    def __init__(self, watcher: _native.Watcher) -> None:
        self._watcher = watcher
        self.origins: list[Origin] = []
        self._by_identity: dict[int, Origin] = {}
        self._constants: dict[int, Origin] = {}
        self._alive: list[Any] = []
        self.changes: dict[tuple[int, bool], Change] = {}  # by identity; slots apart from contents
        self.place: Place | None = None
        self.identity_used: dict[int, Origin] = {}
        self._loose: dict[int, Origin] = {}  # numbers whose value nothing has depended on yet, by identity
        self._noted: set[tuple[int, Fact, Any]] = set()
        self._touched: set[int] = set()

    # -- origins

    def find(self, value: Any) -> Origin | None:
        return self._by_identity.get(id(value))

    def local(self, index: int, name: str, value: Any) -> Origin:
        origin = self._new(Edge.LOCAL, None, (index, name))
        self._identify(origin, value)
        return origin

    def loose(self, index: int, name: str, number: Any) -> None:
        """An argument slot holds a number which is guarded only once something depends on it. It must be an object
        that is nowhere else, so that its identity tells where it came from.
        """
        origin = self._new(Edge.LOCAL, None, (index, name))
        self._loose[id(number)] = origin
        self._alive.append(number)
        self._watcher.loosen(number)

    def settle(self, number: Any) -> None:
        """Something depends on a loose number: its value is guarded from here on."""
        origin = self._loose.pop(id(number))
        origin.checks.append(Check(Fact.EQUAL, number, self.place))

    def find_loose(self, value: Any) -> Origin | None:
        return self._loose.get(id(value)) if self._loose else None

    def constant(self, value: Any) -> Origin:
        """The origin of an object that is its own guard: a class, a module's dict, a function of a class."""
        origin = self._constants.get(id(value))
        if origin is None:
            origin = self._constants[id(value)] = self._new(Edge.CONST, None, value)
            self._alive.append(value)
            if id(value) not in self._by_identity:
                self._know(origin, value)
        return origin

    def read(self, parent: Origin, edge: Edge, key: Any, value: Any) -> Origin:
        """Note that `value` was found at `edge`, `key` of parent."""
        children = parent.children
        if children is None:
            children = parent.children = {}
        origin = children.get((edge, key))
        if origin is None:
            origin = children[edge, key] = self._new(edge, parent, key)
            self._identify(origin, value)
        return origin

    def lacks(self, origin: Origin, key: str) -> None:
        """A dict of names has no such name. (A repeated check does no harm.)"""
        origin.checks.append(Check(Fact.LACKS, key, self.place))

    def _new(self, edge: Edge, parent: Origin | None, key: Any) -> Origin:
        origin = Origin(len(self.origins), edge, parent, key, self.place)
        self.origins.append(origin)
        return origin

    def _identify(self, origin: Origin, value: Any) -> None:
        fact = constant_fact(value)
        if fact is not None:
            origin.checks.append(Check(fact, value, self.place))
            if fact is Fact.EQUAL:
                return
        first = self._by_identity.get(id(value))
        if first is None:
            self._know(origin, value)
        elif fact is None:
            origin.checks.append(Check(Fact.SAME, first.index, self.place))

    def _know(self, origin: Origin, value: Any) -> None:
        self._by_identity[id(value)] = origin
        self._alive.append(value)
        self._watcher.know(value)

    # -- checks

    def require(self, origin: Origin, fact: Fact, expected: Any) -> None:
        """Add a check, once. What is expected of one fact is the same every time, where it is not part of the key."""
        noted = (origin.index, fact, expected if fact in _KEYED_FACTS else None)
        if noted not in self._noted:
            self._noted.add(noted)
            origin.checks.append(Check(fact, expected, self.place))

    def touch(self, origin: Origin, value: Any) -> None:
        """The program's course depends on the type of this object."""
        if origin.index not in self._touched:
            self._touched.add(origin.index)
            cls = type(value)
            origin.checks.append(Check(Fact.TYPE, cls, self.place))
            if issubclass(cls, VALUE_TYPES) and cls not in VALUE_TYPES:
                base = next(base for base in VALUE_TYPES if issubclass(cls, base))
                origin.checks.append(Check(Fact.VALUE, (base, plain_value(base, value)), self.place))

    def use_identity(self, value: Any) -> None:
        """The program's course depends on which object this is among the outside objects."""
        origin = self.find(value)
        if origin is not None:
            self.identity_used[origin.index] = origin

    # -- changes

    def change(self, kind: str, origin: Origin, target: Any) -> Change:
        change = self.changes.get((id(target), kind == "slot"))
        if change is None:
            change = self.changes[id(target), kind == "slot"] = Change(kind, origin, target)
        return change

    def changed(self, target: Any, *, slots: bool = False) -> Change | None:
        return self.changes.get((id(target), slots)) if self.changes else None

    def known_objects(self) -> Iterator[tuple[Origin, Any]]:
        seen: set[int] = set()
        for value in self._alive:
            origin = self._by_identity.get(id(value))
            if origin is not None and id(value) not in seen:
                seen.add(id(value))
                yield origin, value
