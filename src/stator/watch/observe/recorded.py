"""What a watched run yields, and what it is told of the recordings that there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...recording import Assumptions, Recording, ResumePoint
from ..symbols.symbolic_numbers import Changing


class RecordedSegment(NamedTuple):
    """A stretch of the run, recorded: from the function's start, or from `point` on."""

    point: ResumePoint | None
    recording: Recording
    assumptions: Assumptions | None = None  # of its symbolic numbers, until the graph is compiled
    transient: bool = False  # it was given up, for a reason that may be gone in the next call
    again: bool = False  # or that will be gone


class CacheHistory(NamedTuple):
    """What is known of the program from a resume point on."""

    recorded: bool  # is there a recording that fits what it arrives with?
    changing: frozenset[int]  # slots whose numbers and texts have been seen to change
    symbols: Changing | None = None  # sizes and numbers that have been seen to change, if they may be symbols
    expects: bool = True  # may it go by how comparisons of numbers in the graph come out?
    several: bool = False  # has it been recorded more than once?
    writes_last: bool = False  # do its graphs, as a rule, write to their inputs when all else is done?
    full: bool = False  # there are as many recordings as there may be, and none of them fits


Ask = Callable[[list[RecordedSegment], ResumePoint, tuple[Any, ...], tuple[Any, ...]], CacheHistory]
