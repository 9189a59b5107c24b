"""Watching one run, and the recording it adds up to.

Enters: a function and its argument slots. Leaves: the run's own result (or exception), and a `Recording`, or the reason
why there is none. Each handler is called just before its instruction executes and notes what it is going to read or
change; nothing here alters the course of the program.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ... import _native
from ...options import View
from ...recording import Recording, ResumePoint
from ...support.guard_readers import torch_state
from ..finish import conclude
from ..graph_break import BreakGraph
from ..models.calls import INTERCEPTED
from ..objects.ledger import give_back_contents
from ..segment import Course, Segment
from ..tensors.tensor_mode import TensorMode
from . import frame_events, policy, segment_ends, segment_starts
from .break_reasons import reason_of
from .handlers import HANDLERS
from .recorded import Ask, CacheHistory, RecordedSegment
from .specializing import specialize_operand
from .watched_run import WatchedRun

# What the frame hook calls, with the run.
CALLBACKS: dict[str, Callable[..., Any]] = {
    "enter": frame_events.enter,
    "leaf": frame_events.leaf,
    "blind": frame_events.blind,
    "foreign": frame_events.foreign,
    "transparent": frame_events.transparent,
    "failed": segment_ends.failed,
    "on_lost": segment_ends.lost,
    "on_mark": segment_ends.at_mark,
    "on_resume": segment_starts.resume,
}


class Recorder(WatchedRun):
    def __init__(
        self, name: str, program: object, settings: View, ask: Ask, known: CacheHistory, *, whole: bool = False
    ) -> None:
        super().__init__(name, program, settings, ask, whole)
        self.watcher = None
        self.mode = TensorMode(self)
        stop, fail = partial(segment_ends.stop_recording, self), partial(segment_ends.failed_inside, self)
        self.course = Course(self._take_over, stop, fail, partial(frame_events.enter, self))
        segment_starts.begin_segment(self, None, torch_state(), known)

    def _take_over(self, segment: Segment) -> _native.Watcher:
        """The watcher of a segment: of the whole run, or of the rest of it."""
        former, watcher = self.watcher, self._new_watcher(segment)
        self.watcher = watcher
        if former is not None:
            former.hand_over(watcher)
        return watcher

    def _new_watcher(self, segment: Segment) -> _native.Watcher:
        watcher = _native.Watcher(self.handlers(segment), **self.callbacks())
        for code in INTERCEPTED:
            watcher.intercept(code)
        return watcher

    def handlers(self, segment: Segment) -> dict[int, Callable[..., Any]]:
        """What probes call."""
        bound = {kind: types.MethodType(handler, segment) for kind, handler in HANDLERS.items()}
        return {**bound, _native.PACK: types.MethodType(specialize_operand, self)}

    def callbacks(self) -> dict[str, Callable[..., Any]]:
        bound = {name: types.MethodType(callback, self) for name, callback in CALLBACKS.items()}
        return {**bound, "classify": policy.classify}

    def prepare(
        self,
        function: types.FunctionType,
        names: tuple[str, ...],
        slots: Sequence[Any],
        point: ResumePoint | None,
        changing: frozenset[int],
    ) -> None:
        """Note what the run is given: the arguments, and the function itself. A list of them is emptied when the run
        begins.
        """
        self.segment.root_code = function.__code__
        self.segment.point = point
        self.given = slots if isinstance(slots, list) else []
        if point is not None:
            self.beginning = None  # the call began before this
        self.slots = tuple(slots if point is None else map(self.own.make, slots))
        self.changing = self.hopeless = {id(self.slots[index]) for index in changing}
        self.callers = {id(value) for value in slots} if point is None else set()
        self.slots = segment_starts.note_slots(self, function, names, self.slots)

    def run(self) -> Any:
        """Call the function watched. An exception is the program's own if it is `raised`."""
        if self.segment.point is None:
            self.beginning = []  # now that the collector rests
        try:
            self.mode.put_on()
            self.segment.tracer.begin()
            return self._run_watched()
        finally:
            self.mode.take_off()
            with contextlib.suppress(AttributeError):  # a segment that could not be begun has none
                self.segment.tracer.active = False

    def _run_watched(self) -> Any:
        try:
            self.returned = (self.watcher.run(self.segment.root, [*self.slots], self.given),)
            return self.returned[0]
        except BaseException as error:
            assert error.__traceback__ is not None
            if error.__traceback__.tb_next is not None:  # it comes from the function, not from the call of it
                self.raised = error
            raise

    def finish(self, result: Any) -> list[RecordedSegment]:
        """The recordings of a run that returned."""
        if self.watcher.error is not None:
            self.collapse(self.watcher.error)
            return []
        if not self.over and not self.waiting and not self.known_already:
            try:
                segment_ends.add(self, segment_ends.lasting(self, conclude.at_return(self.segment, result)))
                give_back_contents(self.segment.ledger, self.own.originals)
            except (BreakGraph, RecursionError) as error:
                stop = error if isinstance(error, BreakGraph) else BreakGraph("rebuild", "a result nested too deep")
                segment_ends.give_up(self, stop, reason_of(stop, self.watcher.last_probe))
                del stop  # its traceback has this frame: together they would keep what the program lets go
        return self.segments

    def collapse(self, fault: BaseException) -> None:
        segment_ends.collapse(self, fault)

    def plain_recording(self) -> Recording:
        """What is known of a run that cannot be replayed."""
        return segment_ends.plain_recording(self)

    def operations(self) -> int:
        """How many operations the segment that is being recorded has so far."""
        return self.segment.tracer.operations

    def release(self) -> None:
        """Let go of everything at once: the parts of a recorder know each other, and would wait for the collector."""
        self.segment.release()
        self.slots, self.last_break, self.segments = (), None, []
        self.continued.clear()
        del self.segment, self.watcher, self.mode, self.ask, self.leaves, self.course
