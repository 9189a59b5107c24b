"""What happened while somebody looked: events, in order, with their times.

What enters: events, from all threads. What leaves: a list of them, for who makes a report of it, and how long
compiled graphs ran.
What holds: texts of graphs that a later stage may change are rendered when they come; the time which that takes is
taken out of all times given here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from stator import events
from stator.events import Event

E = TypeVar("E", bound=Event)

# Not those that come with every call: they are only counted, and to listen to replays makes calls slow.
KINDS: tuple[type[Event], ...] = (
    events.Recorded,
    events.CacheMiss,
    events.GraphBreak,
    events.BackendCompiled,
    events.BackwardDerived,
    events.CodeGenerated,
    events.NotDerived,
    events.NotGenerated,
    events.NotCaptured,
    events.InternalFailure,
)


class Noted(NamedTuple):
    """An event, and the stretch of time that it is about, in seconds since the event log began."""

    event: Event
    start: float
    end: float
    thread: int


class Ran(NamedTuple):
    """How often a compiled graph ran, and for how long, in seconds."""

    times: int  # all of them
    timed: Sequence[float]  # those that were timed
    backward: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.timed) if self.timed else 0.0

    @property
    def total(self) -> float:
        """Of all of them; by the median, where not all were timed."""
        return sum(self.timed) if len(self.timed) == self.times else self.median * self.times


class EventLog:
    """A context manager: inside of it, events are noted. It may be entered again and then goes on.

    `replays`: replays are timed, too, all of them; otherwise those inside of `timing`.
    """

    def __init__(self, *, replays: bool = False) -> None:
        self.noted: list[Noted] = []
        self._replays = replays
        self._forward: dict[int, tuple[Any, list[float]]] = {}  # seconds by recording, which is kept alive with them
        self._backward: dict[int, tuple[Any, list[float]]] = {}  # by captured graph
        self._lock = threading.RLock()
        self._began = time.perf_counter()
        self._aside: list[tuple[float, float]] = [(self._began, 0.0)]  # when rendering ended, and all of it up to then
        self._ends: list[Callable[[], None]] = []

    def __enter__(self) -> EventLog:
        hot = (events.BackwardRan, events.CacheHit) if self._replays else (events.BackwardRan,)
        self._ends = [events.subscribe(self._note, *KINDS), events.subscribe(self._count, *hot)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._ends:
            self._ends.pop()()

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Inside of it replays are timed; calls take longer meanwhile."""
        end = events.subscribe(self._count, events.CacheHit)
        try:
            yield
        finally:
            end()

    def ran(self, entry: Any) -> Ran:
        """How the graph of a recording ran; `entry`: as `Recorded` has it."""
        with self._lock:
            _, timed = self._forward.get(id(entry), (None, []))
            _, backward = self._backward.get(id(getattr(entry, "graph", None)), (None, []))
            return Ran(max(getattr(entry, "hits", 0), len(timed)), tuple(timed), tuple(backward))

    def _count(self, event: Event) -> None:
        """No more than that: there may be thousands of calls."""
        if isinstance(event, events.CacheHit):
            with self._lock:
                self._forward.setdefault(id(event.entry), (event.entry, []))[1].append(event.seconds)
        elif isinstance(event, events.BackwardRan):
            with self._lock:
                self._backward.setdefault(id(event.source), (event.source, []))[1].append(event.seconds)

    def now(self) -> float:
        """Seconds since the beginning, without those that went into rendering."""
        with self._lock:
            return self._own_time(time.perf_counter())

    def _note(self, event: Event) -> None:
        arrived = time.perf_counter()
        seconds = float(getattr(event, "seconds", 0.0))
        with self._lock:
            times = self._own_time(arrived - seconds), self._own_time(arrived)
            event = _RENDER.get(type(event), _as_it_is)(event)
            self.noted.append(Noted(event, *times, threading.get_ident()))
            self._aside.append((time.perf_counter(), self._aside[-1][1] + time.perf_counter() - arrived))

    def _own_time(self, moment: float) -> float:
        aside = next((spent for end, spent in reversed(self._aside) if end <= moment), 0.0)
        return max(moment - self._began - aside, 0.0)

    def of(self, kind: type[E]) -> list[E]:
        """The events of a kind."""
        with self._lock:
            return [noted.event for noted in self.noted if isinstance(noted.event, kind)]


def _derived(event: events.BackwardDerived) -> events.BackwardDerived:
    joint, forward, backward, kept = event.joint(), event.forward(), event.backward(), event.kept()
    return events.BackwardDerived(
        seconds=event.seconds,
        joint=lambda: joint,
        forward=lambda: forward,
        backward=lambda: backward,
        steps=event.steps,
        label=event.label,
        kept=lambda: kept,
        operations=event.operations,
        source=event.source,
    )


def _recorded(event: events.Recorded) -> events.Recorded:
    """Scripts that run by themselves hold examples of a call's inputs; an event log must not keep those alive."""
    return dataclasses.replace(event, guards_script=lambda: "", replay_script=lambda: "")


def _as_it_is(event: Event) -> Event:
    return event


_RENDER: dict[type[Event], Callable[..., Event]] = {events.BackwardDerived: _derived, events.Recorded: _recorded}
