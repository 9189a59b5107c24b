"""How many recordings a function is going to make, foretold from its first calls.

Enters: the misses of a function, each with the number of the call that it was in, and how many calls there were.
Leaves: a `Forecast`, in numbers and in words, with the lines that cause more recordings. What holds: a recording that
was made in the second half of the calls is one of many; what has settled down in the first half is settled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from stator.events import CacheMiss

from .style import short_path, source_line

ENOUGH = 10  # calls


class Cause(NamedTuple):
    """What made the recordings of the second half."""

    guard: str
    place: str  # `file:line`; empty: none
    times: int


class Forecast(NamedTuple):
    name: str
    calls: int  # so far
    recordings: int  # so far
    limit: int
    latest: int  # the call in which the last one was made
    every: float  # so many calls there is one more recording; 0: there are to be no more
    causes: tuple[Cause, ...]

    @property
    def total(self) -> int:
        """How many recordings there will be, however long the job."""
        return max(self.limit, self.recordings) if self.every else self.recordings

    @property
    def full_at(self) -> int | None:
        """From which call on the function runs as plain Python; None: never."""
        if not self.every:
            return None
        return max(round(self.latest + (self.limit - self.recordings + 1) * self.every), self.latest)

    def lines(self) -> Iterator[str]:
        so_far = f"{self.name}: {_count(self.recordings, 'recording')} in {self.calls:,} calls"
        if not self.every:
            yield f"{so_far}, and no more to come"
            return
        if self.recordings >= self.limit:
            yield f"{so_far}, which are as many as it may have: calls that none fits run as plain Python"
        else:
            yield (
                f"{so_far}, and one more every {self.every:.0f}: {self.total} before call {self.full_at:,}, which are "
                "as many as it may have; from there on calls that none fits run as plain Python"
            )
        for cause in self.causes:
            line = source_line(cause.place) if cause.place else ""
            where = f", needed by {short_path(cause.place)}{': ' if line else ''}{line}" if cause.place else ""
            yield f"  {cause.guard} was another one {_times(cause.times)} of late{where}"


def forecast(name: str, misses: Sequence[CacheMiss], calls: int, recordings: int, limit: int) -> Forecast | None:
    """None: it is too early to tell."""
    if calls < ENOUGH:
        return None
    made = [1, *(miss.call for miss in misses if miss.why is not None)]
    late = [miss for miss in misses if miss.why is not None and miss.call > calls / 2]
    before = max((call for call in made if call <= calls / 2), default=1)
    counts: dict[tuple[str, str], int] = {}
    for miss in late:
        why: Any = miss.why
        key = (str(getattr(why, "guard", why)), str((getattr(why, "places", None) or [""])[0]))
        counts[key] = counts.get(key, 0) + 1
    causes = tuple([Cause(*key, times) for key, times in sorted(counts.items(), key=lambda item: -item[1])])
    every = max((made[-1] - before) / len(late), 1.0) if late else 0.0
    return Forecast(name, calls, recordings, limit, made[-1], every, causes)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
