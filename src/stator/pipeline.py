"""The stages that a call passes through, in order.

1. `lookup.py`: does a recording fit? Its guards are checked, and give the values that the replay needs.
2. If so, the replay runs (`replay/`); where it ends at a break, Python makes the step (`_follow`), and the rest of the
   function from the resume point on is a program again, which passes through the same stages.
3. If not, `record.py`: the call is watched (`watch/`), and what it did becomes entries (`build.py`: guards, a graph for
   the backend, a replay), stored for the next call.
4. `fallback.py`: if neither is possible, or something fails, the function runs as plain Python.

C code (`_native/dispatch.c`) does 1 and 2 by itself where it can, and calls `resume`, `go_on` and `replay_failed` where
it cannot go on; everything else begins with `run`.
"""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from . import _native, events
from .calling import Given, hand_over
from .errors import StatorError
from .fallback import internal_failure, not_found, plain, repeat, tell_failures
from .interrupts import is_from_outside
from .lookup import look, look_again, refuse_breaks
from .program import LookupResult, Plain, Program, Slots
from .record import record
from .replay.cache import Entry
from .replay.saving import keep, put_back
from .support import background
from .support.graph_numbers import Unexpected

LookUp = Callable[[Program, Slots], LookupResult]


def run(program: Program, slots: Slots) -> Any:
    """A call of the compiled function. Nothing here holds on to what a segment was given."""
    outcome = _call(program, program.function, slots)
    return _follow(program, outcome) if type(outcome) is BreakReached else outcome


def run_as(program: Program, function: types.FunctionType, slots: Given) -> Any:
    """A call of another function with the same code."""
    outcome = _call(program, function, slots)
    return _follow(program, outcome) if type(outcome) is BreakReached else outcome


def _call(program: Program, function: types.FunctionType, slots: Given) -> Any:
    """The result, or a `BreakReached`: where a replay has come to a break."""
    return _proceed(program, look, function, slots)


def _proceed(program: Program, find: LookUp, function: types.FunctionType, slots: Given) -> Any:
    """Look what is to be done about a call, and do it."""
    try:
        found = find(program, (*slots, function))
    except StatorError:  # meant for the user
        raise
    except Exception as error:
        if is_from_outside(error):
            raise
        found = not_found(program, error)
    if found is None:  # first of all: the lock is held, and a signal may come in any call
        try:
            return record(program, function, slots)
        finally:
            program.cache.recording.release()
    if isinstance(found, Plain):
        return program.call_plain(function, slots)
    return _replay(program, *found, function, slots)


# ---- an entry fits: its replay


def _replay(program: Program, entry: Entry, values: Slots, function: types.FunctionType, slots: Given) -> Any:
    error: Exception
    saved: list[tuple[torch.Tensor, Any]] = []
    program.stats.count.value += program.start is program and entry.step is None
    start = time.perf_counter()
    try:
        if entry.lock is None:
            result = _run(entry, values, saved)
        else:
            result = _run_locked(entry, values[entry.lock], (*slots, function), saved)
    except Exception as raised:
        error = raised
    else:
        if events.READERS:
            _tell_hit(program, entry, time.perf_counter() - start)
        return result if entry.step is None else BreakReached(entry.step, function, result)
    undone = entry.is_undone(error)
    if undone:
        for tensor, contents in saved:
            put_back(tensor, contents)
    if type(error) is Unexpected:
        return _proceed(program, _look_again(entry), function, slots)
    if type(error) is _Overtaken:
        return _proceed(program, look, function, slots)
    return repeat(program, entry, error, undone, function, slots)


def _look_again(entry: Entry) -> LookUp:
    return lambda program, inputs: look_again(program, entry, inputs)


def _run(entry: Entry, values: Slots, saved: list[tuple[torch.Tensor, Any]]) -> Any:
    for position in entry.restores or entry.early:
        saved.append((values[position], keep(values[position])))
    return entry.replay(values)  # type: ignore[misc]  # those without one are not replayed


def _run_locked(entry: Entry, lock: Any, inputs: Slots, saved: list[tuple[torch.Tensor, Any]]) -> Any:
    """The program takes this lock. Another thread may have held it until now, and changed what the guards found."""
    with contextlib.ExitStack() as held:
        held.enter_context(lock)
        values = entry.guards.check(inputs)
        if values is None or entry.lock is None or values[entry.lock] is not lock:
            raise _Overtaken
        result = _run(entry, values, saved)
        if entry.keeps_lock:
            held.pop_all()
        return result


class _Overtaken(Exception):
    """Another thread has changed what a replay relies on, before it had the lock."""


def _tell_hit(program: Program, entry: Entry, seconds: float) -> None:
    try:
        if events.listening(events.CacheHit):
            events.emit(events.CacheHit(program.name, entry.number, seconds, entry))
    except Exception as error:
        internal_failure(program, "telling of a hit", error)


# ---- the replay ends at a break: the step, and what follows it


_MOST_IDLE = 1000  # a loop with a break in it and nothing to compute: the rest of the call runs plain


class BreakReached:
    """A replay of `function` has come to a break: `step` makes the step, and says where the program goes on."""

    __slots__ = ("function", "state", "step")

    def __init__(self, step: _native.BreakStep, function: types.FunctionType, state: Slots) -> None:
        self.step = step
        self.function = function
        self.state = state

    def go(self) -> _native.PendingResume:
        state, self.state = self.state, ()
        try:
            return self.step.go(self.function, state)
        finally:
            del state  # the traceback of what the step raises may have this frame


def _follow(program: Program, outcome: Any) -> Any:
    """From break to break, up to the result. Nothing here holds on to what a segment was given."""
    stats = program.stats
    before = stats.here.noted
    idle = 0  # segments without a graph, one after the other
    try:
        while True:
            if type(outcome) is BreakReached:
                idle = idle + 1 if outcome.step.idle else 0
                outcome = outcome.go()
            elif type(outcome) is _native.PendingResume:
                outcome = _land(program, outcome, idle > _MOST_IDLE)
            else:
                return outcome
    finally:
        stats.count.value += stats.here.noted == before


def _land(program: Program, pending: _native.PendingResume, idle: bool) -> Any:
    target = pending.target
    function, slots = pending.take()
    behind, passes = (None, False) if target.point.raises else _program_behind(program, target)
    # No program: a handler, or nothing but the way out; or a fault of ours.
    if behind is None:
        return hand_over(function, slots)
    if passes or idle:
        behind.stats.add_passed()
        return behind.call_plain(function, slots)
    return _call(behind, function, slots)


def _program_behind(program: Program, target: _native.ResumeTarget) -> tuple[Program | None, bool]:
    """The program from a resume point on, and whether nobody looks at this call of it."""
    try:
        found = program.continuation(target.point)
        if target.table is not found.cache.table:
            target.open(found.cache.table)
        return found, found.backoff.lets_pass()
    except Exception as error:
        internal_failure(program, "going on behind a break", error)
        return None, False


# ---- what C code calls


def resume(program: Program, entry: Entry, values: Slots, slots: Slots) -> Any:
    """C code found that an entry's guards hold, and that there is more to do than to call its replay."""
    entry.count.value += 1
    refuse_breaks(program, entry)
    if entry.replay is None:
        plain(program, entry.break_reason)
        return program.call_plain(program.function, slots)
    outcome = _replay(program, entry, values, program.function, slots)
    return _follow(program, outcome) if type(outcome) is BreakReached else outcome


def go_on(program: Program, pending: _native.PendingResume) -> Any:
    """C code has made a step and found no recording for what follows."""
    return _follow(program, pending)


def replay_failed(
    program: Program, entry: Entry, error: BaseException, function: types.FunctionType, slots: Slots
) -> Any:
    """A replay that C code called raised: one of ours, or of a continuation of ours."""
    # What was written before a number failed has been put back.
    owner = _owner_of(program, entry) if type(error) is Unexpected else None
    if owner is None:
        return repeat(program, entry, error, entry.is_undone(error), function, slots)
    outcome = _proceed(owner, _look_again(entry), function, slots)
    return _follow(program, outcome) if type(outcome) is BreakReached else outcome


def _owner_of(program: Program, entry: Entry) -> Program | None:
    """The program, this one or a continuation, whose recording this is."""
    programs = (program, *program.start.continuations.values())
    return next((each for each in programs if entry in each.cache.entries), None)


def wait(program: Program, timeout: float | None) -> bool:
    """Until nothing is being compiled in the background, or so many seconds. What failed there is told."""
    done = background.wait(lambda: not program.cache.is_pending(), timeout)
    tell_failures(program)
    return done
