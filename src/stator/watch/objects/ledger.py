"""The table of known outside objects: by identity, with origin, checks, and what the segment changed of them.

Enters: every value that the recorder sees being read from outside, with the way it was reached. Leaves: the list of
origins (parents before children) with their checks, and the list of changes. In between: an object has one origin, the
first one; reaching it by another one adds a check that both are the same object. Values are noted as they were when
first read. Known objects are kept alive until the recording ends, so that an identity names one object only.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ... import _native
from ...recording import Check, Edge, Fact, Origin
from ...support.builtin_types import TYPE_MODELS, types_where
from ...support.guard_readers import VALUE_TYPES, plain_value
from ..graph_break import BreakGraph
from .constants import DEEPEST, KINDS, constant_fact, is_constant
from .fingerprints import Fingerprints

_KEYED_FACTS = frozenset(
    {
        *(Fact.HAS, Fact.LACKS, Fact.NO_ENTRY, Fact.OWN_ENTRY, Fact.NO_SLOT, Fact.OTHER),
        *(Fact.HAS_KEYED, Fact.LACKS_KEYED),
    }
)


_MADE_OF = {model.type: model.made_of for model in TYPE_MODELS if model.made_of is not None}
COMPOSED = frozenset(_MADE_OF)  # constants, if all that they are made of are
# Objects of C types that are equal, and have one hash, if what they hold is the same.
HELD = {model.type: model.held for model in TYPE_MODELS if model.held is not None}
_native.enter(types_where(lambda model: model.entered))


@dataclass(eq=False, slots=True)
class Change:
    """What the segment did to one outside object (or to one slot or class entry of it)."""

    kind: str  # "dict", "list", "set", "deque", "cell", "slot", "grad", "class"
    origin: Origin
    target: Any
    initial: Any = None  # contents before the first change
    written: dict[Any, None] = field(default_factory=dict)  # dict keys, class entries, slot descriptors
    removed: set[Any] = field(default_factory=set)  # dict keys that were deleted at some time, perhaps set again
    whole: bool = False  # anything may have changed: compare all contents
    structure_noted: bool = False


_EDGES = tuple(Edge)
_FACTS = tuple(Fact(number) for number in range(len(Fact)))


def _value_of(value: Any) -> tuple[type, Any]:
    """What is expected of an instance of a subclass of `int`, `str`, …: the base, and the value as one of it."""
    base = next(base for base in VALUE_TYPES if issubclass(type(value), base))
    return base, plain_value(base, value)


class Ledger(_native.Ledger):
    """The table itself is in C: `find`, `local`, `constant`, `read`, `touch`, `lacks`."""

    def __init__(self, watcher: _native.Watcher) -> None:
        self._watcher = watcher
        super().__init__(watcher, Check, _EDGES, _FACTS, dict(KINDS), constant_fact, _value_of)
        self.fingerprints = Fingerprints()
        self.note_tensor = self.fingerprints.note
        self.changes: dict[tuple[int, bool], Change] = {}  # by identity; slots apart from contents
        self.identity_used: dict[int, Origin] = {}
        self._unguarded: dict[int, Origin] = {}  # numbers whose value nothing has depended on yet, by identity
        self._noted: set[tuple[int, Fact, Any]] = set()
        self.changed_at = -1  # number of the probe that noted the last change
        self.sealed = ""  # who is at work that may neither change anything nor read what was changed; "": nobody

    # -- numbers behind a break

    def unguarded(self, index: int, name: str, number: Any) -> None:
        """An argument slot holds a number which is guarded only once something depends on it. It must be an object
        that is nowhere else, so that its identity tells where it came from.
        """
        origin = self.local(index, name, None)
        origin.checks.clear()
        self._unguarded[id(number)] = origin
        self.alive.append(number)
        self._watcher.leave_unguarded(number)

    def specialize(self, number: Any) -> None:
        """Something depends on an unguarded number: its value is guarded from here on."""
        self.check(self._unguarded.pop(id(number)), Fact.EQUAL, number)

    def find_unguarded(self, value: Any) -> Origin | None:
        return self._unguarded.get(id(value)) if self._unguarded else None

    # -- checks

    def require(self, origin: Origin, fact: Fact, expected: Any) -> None:
        """Add a check, once. What is expected of one fact is the same every time, where it is not part of the key."""
        noted = (origin.index, fact, expected if fact in _KEYED_FACTS else None)
        if noted not in self._noted:
            self._noted.add(noted)
            self.check(origin, fact, expected)

    def use_identity(self, value: Any, depth: int = 0) -> None:
        """The program's course depends on which object this is among the outside objects; if the run has made it, on
        those that it is made of."""
        origin = self.find(value)
        if origin is not None:
            self.identity_used[origin.index] = origin
        elif type(value) in HELD:
            if depth == DEEPEST:
                raise BreakGraph("unguardable", "a key or a set's member that is nested too deep")
            for part in HELD[type(value)](value):
                self.use_identity(part, depth + 1)
        elif type(value) in _MADE_OF and self.is_made_of_objects(value):
            raise BreakGraph("unguardable", "a generic alias made of an object")

    def is_made_of_objects(self, value: Any, depth: int = 0) -> bool:
        """`list[x]` is a constant by its identity, unless the run has made it of an object that may be another one."""
        cls = type(value)
        if cls not in COMPOSED:
            return not is_constant(value)
        if cls not in HELD and self.find(value) is not None:
            return False
        parts = _MADE_OF[cls](value)
        return depth == DEEPEST or any(self.is_made_of_objects(part, depth + 1) for part in parts)

    # -- changes

    def change(self, kind: str, origin: Origin, target: Any) -> Change:
        if self.sealed:
            raise BreakGraph("autograd-function", f"{self.sealed}, which changes objects from outside")
        self.changed_at = self._watcher.events
        change = self.changes.get((id(target), kind == "slot"))
        if change is None:
            change = self.changes[id(target), kind == "slot"] = Change(kind, origin, target)
            self.note_change(target)
        return change

    def changed(self, target: Any, *, slots: bool = False) -> Change | None:
        found = self.changes.get((id(target), slots)) if self.changes else None
        if found is not None and self.sealed:
            raise BreakGraph("autograd-function", f"{self.sealed}, which looks at objects that were changed before")
        return found

    @contextlib.contextmanager
    def seal(self, who: str) -> Iterator[None]:
        """Until it ends, objects from outside are not changed, and those that were are not looked at."""
        former, self.sealed = self.sealed, who
        try:
            yield
        finally:
            self.sealed = former

    def close(self) -> None:
        """The recording is over: nothing is kept alive any more."""
        super().close()
        self.changes.clear()
        self.fingerprints.forget()
        self._noted.clear()

    def known_objects(self) -> Iterator[tuple[Origin, Any]]:
        seen: set[int] = set()
        for value in self.alive:
            origin = self.find(value)
            if origin is not None and id(value) not in seen:
                seen.add(id(value))
                yield origin, value


def give_back_contents(ledger: Ledger, originals: dict[int, tuple[Any, Any]]) -> None:
    """What the segment has put into outside containers becomes what the program knows it as: `is` tells the number
    that stands for another one. No code of the program's is run.
    """
    for change in ledger.changes.values() if originals else ():
        for put, value in _contents(change):
            if id(value) in originals:
                put(originals[id(value)][1])


def _contents(change: Change) -> list[tuple[Callable[[Any], None], Any]]:
    target = change.target
    if change.kind == "list":
        return [
            (functools.partial(list.__setitem__, target, index), value)
            for index, value in enumerate(list.__iter__(target))
        ]
    if change.kind == "dict":
        keys = list(dict.keys(target) if change.whole else change.written)
        return [
            (functools.partial(dict.__setitem__, target, key), dict.__getitem__(target, key))
            for key in keys
            if not issubclass(type(_native.mro_lookup(type(key), "__hash__")), types.FunctionType)
            and dict.__contains__(target, key)
        ]
    if change.kind == "slot":
        return [(functools.partial(slot.__set__, target), _slot_value(slot, target)) for slot in change.written]
    if change.kind == "cell" and target != types.CellType():
        return [(functools.partial(setattr, target, "cell_contents"), target.cell_contents)]
    return []


def _slot_value(slot: Any, target: Any) -> Any:
    try:
        return slot.__get__(target)
    except AttributeError:
        return None
