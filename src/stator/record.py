"""Recording a call: watch, build an entry for each segment, store them. The call's result is the watched run's.

Enters: a program and a call that no recording fits. Leaves: the result. What comes to nothing on the way is told, or
raised, by `fallback.py`; what the program raises reaches the program.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import _native, async_compile, events, reporting
from .backends import eager
from .backends.registry import is_ours
from .build import build
from .calling import Given
from .errors import BreakReason, GraphBreakError, break_reason
from .fallback import FOR_THE_USER, TRANSIENT_LIMIT, break_at, internal_failure, not_kept, plain
from .interrupts import is_from_outside
from .lookup import is_full, known_guards, note_symbols
from .program import Program, Slots
from .recording import ResumePoint
from .replay.cache import Entry
from .replay.guards import EntryGuards
from .support.torch_modes import ModesKept
from .watch.finish.conclude import assumptions
from .watch.models import user_hints
from .watch.observe.recorded import CacheHistory, RecordedSegment
from .watch.observe.recorder import Recorder
from .watch.symbols.symbolic_numbers import Changing

_MOST_UNEXPECTED = 4  # recordings of a function that may turn out to go by numbers that change


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Finalizers of earlier garbage would run inside the recording, and full collections take longer than it does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def record(program: Program, function: types.FunctionType, slots: Given) -> Any:
    """Watch the call; its result is the call's result, whatever becomes of the recording."""
    start = time.perf_counter()
    recorder = _prepare(program, function, slots)
    if recorder is None:
        return program.call_plain(function, slots)
    segments: list[RecordedSegment] = []
    misled = displaced = sent = False
    try:
        recorder.on_stop = gc.enable if gc.isenabled() else recorder.on_stop  # the program may wait for it
        with _collector_paused(), reporting.watching(program.name, recorder):
            result = recorder.run()
            displaced = recorder.watcher.displaced
            sent = recorder.watcher.interrupted
            misled = recorder.watcher.misled or recorder.exhausted or displaced or sent
            segments = [] if misled else _finish(recorder, result)
    except BaseException as error:
        if recorder.raised is error:
            recorder.raised = None  # who holds an exception holds its frames, and these the recorder
            _note_raise(program, recorder)
            raise
        if not isinstance(error, Exception):
            raise
        recorder.failure = recorder.failure or error
        if hasattr(recorder, "watcher"):  # it has not been taken apart
            recorder.collapse(error)
            _let_go(recorder)
    if recorder.raised is not None:  # the fault came while that was on its way
        internal_failure(program, "watching", recorder.failure)
        raise recorder.raised
    if not recorder.returned:
        _not_begun(program, recorder.failure)
        return program.call_plain(function, slots)
    if misled:  # our own code could not run, or not as it is written, or did not see everything
        program.transient += not (displaced or sent)
        program.stats.add_plain()
        _let_go(recorder)
        if recorder.failure is not None and not sent and is_from_outside(recorder.failure):
            raise recorder.failure
    else:
        _try_to_keep(program, recorder, segments, start)
    return recorder.own.original(recorder.returned[0])


def _prepare(program: Program, function: types.FunctionType, slots: Given) -> Recorder | None:
    """A recorder that is ready to run the call; None after a fault of ours."""
    try:
        with _collector_paused():  # what the first symbol imports makes thousands of objects
            user_hints.adopt_marks([*slots])
            ask, known = functools.partial(_ask, program), _history(program, False)
            recorder = Recorder(program.name, program.start, program.settings, ask, known, whole=program.fullgraph)
            recorder.prepare(function, program.names, slots, program.point, frozenset(program.cache.changing))
    except Exception as error:
        internal_failure(program, "preparing to watch", error)
        return None
    return recorder


def _not_begun(program: Program, why: BaseException | None) -> None:
    """A run did not even start."""
    if isinstance(why, _native.Unwatchable):
        program.unwatchable = break_at(program, "unwatchable-code", str(why))
        plain(program, program.unwatchable)
    else:
        internal_failure(program, "watching", why)


def _try_to_keep(program: Program, recorder: Recorder, segments: list[RecordedSegment], start: float) -> None:
    try:
        try:
            with ModesKept():
                _keep(program, recorder, segments, start)
        except Exception as error:
            not_kept(program, error)
    except (*FOR_THE_USER, Warning):
        raise
    except Exception as error:
        if is_from_outside(error):
            raise
        internal_failure(program, "telling what has failed", error)


def _finish(recorder: Recorder, result: Any) -> list[RecordedSegment]:
    """All segments of the run; none, and the failure noted, if that went wrong. The recorder is taken apart."""
    segments: list[RecordedSegment] = []
    try:
        segments = recorder.finish(result)
    except Exception as error:
        recorder.collapse(error)
    _let_go(recorder)
    return segments


def _let_go(recorder: Recorder) -> None:
    try:
        recorder.release()
    except Exception as error:
        recorder.collapse(error)


def _ask(
    program: Program, segments: list[RecordedSegment], point: ResumePoint, inputs: Slots, state: tuple[Any, ...]
) -> CacheHistory:
    """What a call that arrives at `point` with this would find."""
    there = program.start.continuation(point)
    guards = [EntryGuards(s.recording, []) for s in segments if s.point is not None and s.point.key == point.key]
    new = len(guards)
    guards = [*reversed(guards), *known_guards(there)]
    recorded = any(guard.check(inputs, state) is not None for guard in guards)
    if not recorded and guards:
        there.cache.note_change(guards[0], inputs)
        note_symbols(there, inputs, guards)
    full = not recorded and is_full(there, new)
    return _history(there, recorded)._replace(full=full)


def _history(program: Program, recorded: bool) -> CacheHistory:
    changing = None
    if program.settings.dynamic_shapes:
        rates = any(reason.id == "scheduler-step" for reason in program.stats.break_reasons)
        # As it is now: other threads go on adding to it.
        seen = {path: {*dims} for path, dims in program.cache.symbols.copy().items()}
        changing = Changing(seen, not program.settings.assume_static_by_default, rates)
    expects = program.cache.unexpected < _MOST_UNEXPECTED
    several = max(len(known_guards(program)), len(known_guards(program.start))) > 1
    last = is_ours(program.backend[1]) and program.backend[1] is not eager.compile_graph
    return CacheHistory(recorded, frozenset(program.cache.changing), changing, expects, several, last)


def _keep(program: Program, recorder: Recorder, segments: list[RecordedSegment], start: float) -> None:
    if recorder.failure is not None or not segments:
        internal_failure(program, "watching", recorder.failure or RuntimeError("no recording"))
        return
    in_background = program.settings.background_compile and not getattr(program.backend[1], "benchmarks", False)
    parts = []
    for segment in segments:
        owner = program if segment.point is None else program.start.continuation(segment.point)
        if _is_lasting(owner, segment):
            make = functools.partial(_make_entry, owner, segment, start, recorder.frames)
            part = async_compile.part(owner.cache, segment.recording, make) if in_background else None
            if part is None:
                make(functools.partial(_store, owner))
            else:
                parts.append((owner, part))
    failed = functools.partial(_failed_later, program)
    if parts and not async_compile.Compilation([part for _, part in parts], failed).submit():
        for owner, part in parts:
            part.make(functools.partial(_store, owner))
    if any(not segment.transient and not segment.again for segment in segments):
        program.stats.add_recording()
    reasons = [segment.recording.break_reason for segment in segments if segment.recording.break_reason]
    if program.fullgraph and reasons:
        raise GraphBreakError(reasons[0], has_run=True)


def _failed_later(program: Program, error: BaseException) -> None:
    program.stats.failures.append((program, error))


def _is_lasting(program: Program, segment: RecordedSegment) -> bool:
    """Is a segment to become an entry?"""
    reason = segment.recording.break_reason
    if reason is not None:
        program.stats.break_reasons.append(reason)
        events.emit(events.GraphBreak(reason))
    if segment.transient or (segment.again and not program.fullgraph):  # else it is refused before it runs once more
        program.transient += segment.transient
        program.stats.add_plain()
        return False
    return True


def _make_entry(
    program: Program,
    segment: RecordedSegment,
    start: float,
    frames: list[types.CodeType],
    store: Callable[[Entry], bool],
) -> None:
    recording = segment.recording
    stage = f"compiling with {program.backend[0]}"
    with events.stage(stage, program.name, lambda: recording.operations, program.settings.debug_dir):
        number = len(program.stats.graphs) + 1
        entry = build(recording, segment.assumptions, program.name, program.backend, program.settings, number)
        entry.seconds = time.perf_counter() - start
        entry.owner = weakref.ref(program.start)
        if entry.step is not None and recording.break_reason is not None:
            _let_callees_be_compiled(program.start, entry.step, recording.break_reason)
        if not store(entry):
            return
        program.transient = program.raised = 0
        if entry.number:
            program.stats.graphs.append(entry.graph)
        if events.listening(events.Recorded):
            shown = frames if program.point is None else []
            events.emit(reporting.recorded(program.name, entry, recording, shown, program.names))
    recording.example_inputs = []


def _let_callees_be_compiled(program: Program, step: _native.BreakStep, reason: BreakReason) -> None:
    """The step calls a function that is disabled, but not what it calls."""
    if reason.id == "disabled-frame" and program.choose_callee is not None:
        step.callees = program.choose_callee


def _store(program: Program, entry: Entry) -> bool:
    program.cache.add(entry)
    return True


def _note_raise(program: Program, recorder: Recorder) -> None:
    """The program raised: nothing is kept, unless it keeps raising. A failure here must not hide its exception."""
    program.raised += 1
    program.stats.add_plain()
    fault, sent = recorder.failure or recorder.watcher.error, recorder.watcher.interrupted
    try:
        if program.raised >= TRANSIENT_LIMIT and fault is None and not recorder.segments:
            recording = recorder.plain_recording()
            if recording.break_reason is None:
                recording.break_reason = break_reason("raises", program.function.__code__, what=program.name)
            assumed = assumptions(recorder.segment)
            program.cache.add(build(recording, assumed, program.name, program.backend, program.settings, 0))
        recorder.release()
    except Exception as error:
        recorder.collapse(error)
        fault = error if is_from_outside(error) else fault or error
    if isinstance(fault, Exception) and not sent:
        internal_failure(program, "watching", fault)
