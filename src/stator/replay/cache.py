"""The recordings of one code object, most recently used first."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .. import _native
from ..errors import BreakReason, is_unwritten
from ..recording import ResumePoint, path_of
from ..support.by_identity import WeakValues
from ..support.graph_numbers import Failed
from .emit import Replay, settle
from .guards import EntryGuards
from .saving import saving


@dataclass(eq=False, slots=True)
class Entry:
    """One recording, ready to be used: under its guards, run its replay (or the plain function if it has none)."""

    name: str
    guards: EntryGuards
    replay: Replay | None
    mutates: bool  # the graph writes into its inputs: a failed call cannot be repeated, unless
    restores: tuple[int, ...]  # these values, by position, are put back first
    partly: bool = False  # it writes to others, too: they are enough if what failed came before that, and says so
    acts: bool = False  # a node runs Python code of the program's: what that raises is not what a repetition raises
    early: tuple[int, ...] = ()  # if a number in the graph fails, nothing but these was written
    lock: int | None = None  # this value, by position, is a lock that is taken while the replay runs,
    keeps_lock: bool = False  # and stays taken behind it
    step: _native.BreakStep | None = None  # after a replay that ends at a break
    graph: Any = None  # the captured graph module
    number: int = 0  # of the graph, among those of the function; 0: there is none
    replay_source: str = ""
    break_reason: BreakReason | None = None
    symbolic: tuple[str, ...] = ()  # sizes and numbers that may be others than in the recorded call
    specialised: tuple[str, ...] = ()  # those which were meant to be, and why they are not
    seconds: float = 0.0
    count: _native.Count = field(default_factory=_native.Count)
    published: bool = False  # C code checks and replays it
    owner: weakref.ref[Any] | None = None  # who recorded it, of those that share the cache

    @property
    def hits(self) -> int:
        """How often it was used."""
        return self.count.value

    def is_undone(self, error: BaseException) -> bool:
        """Is all that a replay has written, which raised this, among what was kept?"""
        return isinstance(error, Failed) or (bool(self.restores) and (not self.partly or is_unwritten(error)))

    @property
    def segments(self) -> int:
        return 1


@dataclass(eq=False, slots=True)
class Pending:
    """A recording whose graph is being compiled. Until that is done, calls that it fits run as plain Python."""

    guards: EntryGuards
    break_reason: BreakReason | None


class Cache:
    """The entries stand in a table from which C code takes them too."""

    def __init__(self, *kept: Any) -> None:
        self._kept = kept  # what the cache was made for, kept alive so that its identity stays its own
        self.table = _native.EntryTable()
        self.continuations: dict[tuple[int, ...], tuple[ResumePoint, Cache]] = {}  # where breaks lead
        self.changing: set[int] = set()  # slots of a continuation whose numbers and texts were seen to change
        self.symbols: dict[tuple[Any, ...], set[int | None]] = {}  # sizes and numbers that were seen to change, by path
        self.pending: tuple[Pending, ...] = ()  # recordings that will be entries; replaced, never changed
        self.unexpected = 0  # how often a recording went by a number that was another one in a later call
        self._lock = threading.RLock()  # re-entrant: garbage collected under it may run code that resets
        self._resets = 0
        self.recording = threading.Lock()  # held by the thread that records

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.table.entries

    def note_change(self, guards: EntryGuards, inputs: tuple[Any, ...]) -> None:
        """These guards failed. If that was because of a number or a text in a slot, it is known to change now."""
        slot = guards.changed_slot(inputs)
        if slot is not None:
            self.changing.add(slot)

    def note_symbols(self, inputs: tuple[Any, ...], guards: Iterable[EntryGuards]) -> None:
        """No guards fit. Sizes and numbers that alone kept one of them from it will be symbols."""
        for each in guards:
            for origin, steps, dims in each.changes(inputs):
                self.symbols.setdefault((*path_of(origin), *steps), set()).update(dims)

    def add(self, entry: Entry) -> None:
        self.table.add(entry)

    def expect(self, pending: Pending) -> None:
        """It will be delivered, or forgotten."""
        with self._lock:
            self.pending = (pending, *self.pending)

    def awaits(self, pending: Pending) -> bool:
        """Has it not been forgotten?"""
        return pending in self.pending

    def deliver(self, pending: Pending, entry: Entry) -> bool:
        """The entry that a recording has become. False: it was forgotten meanwhile, and so is the entry."""
        with self._lock:
            if pending not in self.pending:
                return False
            resets = self._resets
            self.table.add(entry)  # first: a call that finds neither would record again
            self.pending = tuple(other for other in self.pending if other is not pending)
            if self._resets == resets:
                return True
        self.remove(entry)  # it was forgotten meanwhile, on this very thread
        return False

    def forget(self, pending: Pending) -> None:
        with self._lock:
            self.pending = tuple(other for other in self.pending if other is not pending)

    def free(self) -> None:
        """Who held the lock is not there any more: this is the child of a fork."""
        self._lock = threading.RLock()

    def remove(self, entry: Entry) -> None:
        """An entry that did not hold what it promised."""
        with self._lock:
            former = self.entries  # what is let go of dies behind the lock
            resets = self._resets
            self.table.clear()
            for other in reversed(former):
                if other is not entry and self._resets == resets:
                    other.published = False
                    self.table.add(other)
        del former

    def recorded_by(self, owner: Any) -> int:
        """How many entries there are of this one, among all that share the cache; pending ones count for everybody."""
        return len(self.pending) + sum(entry.owner is not None and entry.owner() is owner for entry in self.entries)

    def drop_orphans(self) -> None:
        """Entries of owners that are gone."""
        for entry in self.entries:
            if entry.owner is not None and entry.owner() is None:
                self.remove(entry)

    def used(self, entry: Entry) -> None:
        """A hit: the entry moves to the front."""
        entry.count.value += 1
        self.table.used(entry)

    def publish(self, entry: Entry) -> None:
        """From now on C code checks the entry's guards, and calls its replay, unless it takes a lock."""
        engine = entry.guards.engine
        if entry.replay is not None:
            settle(entry.replay)
        if engine is not None:
            replay = entry.replay if entry.lock is None else None
            if replay is not None and (entry.restores or entry.early):
                replay = saving(replay, entry.restores or entry.early, entry.is_undone)
            self.table.publish(entry, engine, replay, entry.step, entry.count)
        entry.published = True

    def publish_all(self, *, broken: bool) -> None:
        """C code is to tell by itself that none fits. `broken`: those that end at a break, too."""
        for entry in self.entries:
            if not entry.published and (broken or entry.break_reason is None):
                self.publish(entry)

    def continuation(self, point: ResumePoint) -> Cache:
        """The recordings of the program from `point` on."""
        with self._lock:
            return self.continuations.setdefault(point.key, (point, Cache()))[1]

    def all_entries(self) -> list[Entry]:
        """Most recently used first; after them those of the continuations, in the order in which they were reached."""
        found = list(self.entries)
        for _, cache in list(self.continuations.values()):
            found += cache.entries
        return found

    def is_pending(self) -> bool:
        """Is something being compiled, here or behind a break?"""
        return bool(self.pending) or any(cache.pending for _, cache in list(self.continuations.values()))

    def clear(self) -> None:
        with self._lock:
            self._resets += 1
            former = self.entries, self.pending, self.continuations  # they die behind the lock
            self.pending, self.continuations = (), {}
            self.table.clear()
            self.changing, self.symbols = set(), {}
        for _, cache in former[2].values():  # calls that are under way know them
            cache.clear()


_by_code: WeakValues[tuple[Any, ...], Cache] = WeakValues()


def cache_for(code: types.CodeType, backend: Any, *settings: Any) -> Cache:
    """The cache of all functions with this code, compiled in this way: closures made again and again find their
    recordings again. (Which function it is, and what its cells hold, is guarded like any argument.)
    """
    key = (id(code), id(backend), *settings)
    cache = _by_code.get(key)
    if cache is None:
        cache = _by_code[key] = Cache(code, backend)
    return cache
