"""The recordings of one code object, most recently used first."""

from __future__ import annotations

import threading
import types
import weakref
from dataclasses import dataclass
from typing import Any

from ..errors import BreakReason
from ..recording import Way
from .emit import Leave, Replay
from .guards import Guards


@dataclass(eq=False, slots=True)
class Entry:
    """One recording, ready to be used: under its guards, run its replay (or the plain function if it has none)."""

    name: str
    guards: Guards
    replay: Replay | None
    mutates: bool  # the graph writes into its inputs: a failed call cannot be repeated, unless
    restores: tuple[int, ...]  # these values, by position, are put back first
    leave: Leave | None = None  # after a replay that ends at a break
    graph: Any = None  # the captured graph module
    replay_source: str = ""
    break_reason: BreakReason | None = None
    seconds: float = 0.0
    hits: int = 0

    @property
    def segments(self) -> int:
        return 1


class Cache:
    """Readers take the tuple of entries as it is; writers replace it under the lock."""

    def __init__(self, *kept: Any) -> None:
        self._kept = kept  # what the cache was made for, kept alive so that its identity stays its own
        self.entries: tuple[Entry, ...] = ()
        self.continuations: dict[tuple[int, ...], tuple[Way, Cache]] = {}  # where breaks lead
        self._lock = threading.Lock()
        self.recording = threading.Lock()  # held by the thread that records

    def add(self, entry: Entry) -> None:
        with self._lock:
            self.entries = (entry, *self.entries)

    def used(self, entry: Entry) -> None:
        """A hit: the entry moves to the front."""
        entry.hits += 1
        if self.entries and self.entries[0] is not entry:
            with self._lock:
                if entry in self.entries:
                    self.entries = (entry, *(other for other in self.entries if other is not entry))

    def continuation(self, way: Way) -> Cache:
        """The recordings of the program from `way` on."""
        with self._lock:
            return self.continuations.setdefault(way.key, (way, Cache()))[1]

    def all_entries(self) -> list[Entry]:
        """Most recently used first; after them those of the continuations, in the order in which they were reached."""
        found = list(self.entries)
        for _, cache in list(self.continuations.values()):
            found += cache.entries
        return found

    def clear(self) -> None:
        with self._lock:
            self.entries = ()
            self.continuations = {}


_by_code: weakref.WeakValueDictionary[tuple[Any, ...], Cache] = weakref.WeakValueDictionary()


def cache_for(code: types.CodeType, backend: Any, *settings: Any) -> Cache:
    """The cache of all functions with this code, compiled in this way: closures made again and again find their
    recordings again. (Which function it is, and what its cells hold, is guarded like any argument.)
    """
    key = (id(code), id(backend), *settings)
    cache = _by_code.get(key)
    if cache is None:
        cache = _by_code[key] = Cache(code, backend)
    return cache
