"""A watched run, as plain data: what it was given, what it has yielded, the segment it is in, how far it has come.

The functions around it work on it: `segment_starts.py` begins segments, `segment_ends.py` ends them, `frame_events.py`
hears of frames that start, and `recorder.py` runs the whole.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from ...options import View
from ..finish.resume_points import Break
from ..objects.own_objects import OwnObjects
from ..segment import Course, Segment
from ..tensors.leaves import Leaves
from ..tensors.tensor_mode import TensorMode
from .recorded import Ask, RecordedSegment


class WatchedRun:
    # while a segment is watched; gone when the run is released
    segment: Segment
    watcher: Any
    leaves: Leaves
    mode: TensorMode
    course: Course
    slots: tuple[Any, ...]

    def __init__(self, name: str, program: object, settings: View, ask: Ask, whole: bool) -> None:
        """`program`: who records; it learns from each recording where the next ones had better break. `whole`: it is
        to be one graph.
        `ask(segments, point, inputs, state)`: what is known of the program from a resume point on, the segments of this
        run included, when it arrives there with these inputs?
        """
        self.name = name
        self.program = program
        self.settings = settings
        self.ask = ask
        self.whole = whole
        # what comes of it
        self.segments: list[RecordedSegment] = []
        self.returned: tuple[()] | tuple[Any] = ()  # by the program: its result, if it has come to an end
        self.raised: BaseException | None = None  # by the program
        self.failure: BaseException | None = None
        self.exhausted = False  # the program has used up the stack, and left nothing for us
        self.frames: list[types.CodeType] = []  # that were run with probes, each function's once
        self.on_stop: Callable[[], None] = lambda: None
        # how far it has come
        self.over = False
        self.waiting = False  # between a break and the next segment
        self.stopping = False  # nothing is recorded any more, only the mode is still to be taken off
        self.last_break: Break | None = None  # if the program was suspended there
        self.known_already = False  # is there a recording of this segment?
        self.repeated = 0  # segments in a row that were known already
        self.steps_over = False  # Python may make a step of which no recording would hold for long
        # what is known of values
        self.own = OwnObjects()
        self.beginning: list[None] | None = []  # what is younger was made by the run; None: what is young at all
        self.changing: set[int] = set()  # unguarded values, by identity, that are not worth a guard
        self.hopeless: set[int] = set()  # those of them which have been seen to change
        self.callers: set[int] = set()  # what the caller has given
        self.marked: list[types.FunctionType] = []  # leaves by the program's own word
        self.continued: dict[int, tuple[types.FunctionType, types.FunctionType]] = {}
