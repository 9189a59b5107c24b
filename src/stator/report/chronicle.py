"""What happened while somebody looked: events, in order, with their times.

What enters: events, from all threads. What leaves: a list of them, for who makes a report of it.
What holds: texts of graphs that a later stage may change are rendered when they come; the time which that takes is
taken out of all times given here.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, TypeVar

from stator import events
from stator.events import Event

E = TypeVar("E", bound=Event)

# Not those that come with every call: to listen to them makes calls slow.
KINDS: tuple[type[Event], ...] = (
    events.Recorded,
    events.CacheMiss,
    events.GraphBreak,
    events.BackendCompiled,
    events.BackwardDerived,
    events.CodeGenerated,
    events.NotDerived,
    events.InternalFailure,
)


class Noted(NamedTuple):
    """An event, and the stretch of time that it is about, in seconds since the chronicle began."""

    event: Event
    start: float
    end: float
    thread: int


class Chronicle:
    """A context manager: inside of it, events are noted. It may be entered again and then goes on."""

    def __init__(self) -> None:
        self.noted: list[Noted] = []
        self._lock = threading.Lock()
        self._began = time.perf_counter()
        self._aside: list[tuple[float, float]] = [(self._began, 0.0)]  # when rendering ended, and all of it up to then
        self._end: Callable[[], None] | None = None

    def __enter__(self) -> Chronicle:
        self._end = events.subscribe(self._note, *KINDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._end is not None:
            self._end()
            self._end = None

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
    """Scripts that run by themselves hold examples of a call's inputs; a chronicle must not keep those alive."""
    return dataclasses.replace(event, guards_script=lambda: "", replay_script=lambda: "")


def _as_it_is(event: Event) -> Event:
    return event


_RENDER: dict[type[Event], Callable[..., Event]] = {events.BackwardDerived: _derived, events.Recorded: _recorded}
