"""Where a segment ends at a break, and where the program can go on from there.

Enters: the frames of a watched run, just before the instruction at which it breaks. Leaves: a `Break`: what the frames
live on with, the native step over the instruction, and the points it can resume at. When the live run has made that
step by itself, `arrive` says which of them it reached, and with what.
"""

from __future__ import annotations

from collections.abc import Callable
from types import (
    BuiltinMethodType,
    ClassMethodDescriptorType,
    FunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

from ... import _native
from ...recording import Continuation, ResumePoint
from ...support.builtin_types import types_where
from ..bytecode.break_step import StepEnd, begins_loop, makes_text, moves, step
from ..bytecode.continuation import Layout, raise_at, resume
from ..bytecode.flow import NotResumable
from ..bytecode.suspend import Choose, Suspended, handled_around, made_function, suspended
from ..objects.finalizers import is_noticed, may_be_noticed


class Break(NamedTuple):
    """The state of all frames before a break, and the points it can resume at."""

    frames: list[Suspended]  # outermost first
    states: list[dict[str, Any]]  # of each frame, by the names under which continuations take it
    step: Continuation
    resume_points: list[ResumePoint]
    exits: list[StepEnd]  # of the step
    moves: tuple[int, ...] | None  # of a step that only calls a method, which lies before its object at the end
    passes: frozenset[int]  # kinds of probes that the step goes past, to the end of an f-string or into a loop

    def goes_past(self, probe: _native.Probe) -> bool:
        """Is this an instruction on the way of the step?"""
        return probe.kind in self.passes and (probe.kind != _native.PACK or probe.arg == "text")

    def emptied(self, keeps: Callable[[Any], bool]) -> Break:
        """What `arrive` needs, and of the values those alone: the program may let go of the others meanwhile."""
        states = [{name: value for name, value in state.items() if keeps(value)} for state in self.states]
        return self._replace(frames=[frame._replace(values=()) for frame in self.frames], states=states)


class ReachedPoint(NamedTuple):
    """Where the run went on, and the call that would go on there."""

    point: ResumePoint
    functions: list[FunctionType]  # the continuations of all frames, outermost first
    originals: list[FunctionType]  # the functions that the frames belong to
    slots: tuple[Any, ...]  # what the outermost takes
    places: list[tuple[int, int]]  # of each slot: how many calls away from the innermost frame, and where in that
    names: list[str]  # of each slot


def break_here(watcher: _native.Watcher, *, inside: bool) -> Break:
    """The break before the instruction that the run is about to execute, or which is at work (`inside`)."""
    frames = suspended(watcher, _holds)
    last = frames[-1]
    if inside:
        _check_untouched(watcher)
    handled = handled_around(frames)
    held = [name for name, value in zip(last.bound, last.values, strict=False) if may_be_noticed(value)]
    loops = not inside and _calls_range(watcher) and begins_loop(last.code, last.offset)
    code, exits = step(
        last.code, last.offset, last.bound, last.stack, handled=handled is not None, held=held, loops=loops
    )
    values = last.values if handled is None else (*last.values, handled)
    state = dict(zip(code.co_varnames, values, strict=False))
    outer = [dict(zip(_argument_names(frame), frame.values, strict=False)) for frame in frames[:-1]]
    resume_points = [_resume_point(frames, exit) for exit in exits]
    moved = None if handled is not None else moves(last.code, last.offset, last.bound, last.stack, exits)
    made = Continuation(code, last.function.__globals__)
    passed = {_native.ITER} if loops else {_native.FORMAT, _native.PACK} if makes_text(last.code, last.offset) else ()
    return Break(frames, [*outer, state], made, resume_points, exits, moved, frozenset(passed))


def _calls_range(watcher: _native.Watcher) -> bool:
    probe = watcher.last_probe
    if probe is None or probe.kind != _native.CALL:
        return False
    operands = watcher.stack(0, probe.depth)[probe.depth - probe.span :]
    return operands[1 if operands[0] is _native.MISSING else 0] is range


# C code which is given one of these may have moved or changed it before it came to what breaks the graph.
_CHANGEABLE = types_where(lambda model: model.changes)
_METHODS = (MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType)


def _check_untouched(watcher: _native.Watcher) -> None:
    """The instruction at work will be executed once more, from the state before it: it must not have changed any."""
    entries, _ = watcher.frames()
    probe: _native.Probe = entries[-1][-1]
    error = None
    if probe is not watcher.last_probe:
        error = NotResumable("other code has run inside the instruction")
    elif probe.kind == _native.NEXT or not _untouched(watcher.stack(0, probe.depth)[probe.depth - probe.span :]):
        error = NotResumable("the instruction may have changed what it works on already")
    if error is not None:
        error.probe = probe
        raise error


def _untouched(operands: list[Any]) -> bool:
    for operand in operands:
        owner = operand.__self__ if issubclass(type(operand), BuiltinMethodType) else None
        changes = issubclass(operand.__objclass__, _CHANGEABLE) if issubclass(type(operand), _METHODS) else False
        if (
            changes
            or issubclass(type(owner), _CHANGEABLE)
            or any(hasattr(type(x), "__next__") for x in (operand, owner))
        ):
            return False
    return True


def _argument_names(frame: Suspended) -> tuple[str, ...]:
    return resume(frame.code, frame.offset, frame.bound, frame.stack, 0, frame.finish).co_varnames


def _resume_point(frames: list[Suspended], exit: StepEnd | Suspended) -> ResumePoint:
    """The continuations of all frames, when the innermost stands at `exit`."""
    raises = isinstance(exit, StepEnd) and exit.raises
    go_on = raise_at if raises else resume
    code = go_on(frames[-1].code, exit.offset, exit.bound, exit.stack)
    found = [Continuation(code, frames[-1].function.__globals__)]
    for frame in reversed(frames[:-1]):
        code = resume(frame.code, frame.offset, frame.bound, frame.stack, code.co_argcount, frame.finish)
        found.append(Continuation(code, frame.function.__globals__))
    return ResumePoint(tuple(reversed(found)), raises)


def _holds(value: Any, times: int) -> bool:
    """Is a value not to die before the frame whose variable has it? Its death may be noticed; or, if it is in other
    places of the frames too, come to be noticed there."""
    return is_noticed(value) or (times > 1 and may_be_noticed(value))


def _chosen_by(broken: Break | None) -> Choose:
    """The variables that frames go on with behind a break: what the step gives back, and what the callers had."""

    def choose(number: int, offset: int, stack: Layout, bound: frozenset[str]) -> tuple[str, ...] | None:
        if broken is None:
            return None
        if number < len(broken.frames) - 1:
            return broken.frames[number].bound
        here = [exit.bound for exit in broken.exits if exit[:1] + exit[2:] == (offset, stack, False)]
        return max((names for names in here if bound.issuperset(names)), key=len, default=None)

    return choose


def arrive(watcher: _native.Watcher, broken: Break | None) -> ReachedPoint | None:
    """Where the live run stands now that the step is made; None if that is none of the points it can resume at."""
    frames = suspended(watcher, _holds, _chosen_by(broken))
    point = _resume_point(frames, frames[-1])
    if broken is not None and point.key not in {known.key for known in broken.resume_points}:
        return None
    functions = [made_function(c.code, frame.function) for frame, c in zip(frames, point.frames, strict=True)]
    slots: list[Any] = []
    places: list[tuple[int, int]] = []
    names: list[str] = []
    for calls, function, frame in zip(reversed(range(len(frames))), functions, frames, strict=True):
        if function is not functions[0]:
            slots.append(function)
            places.append((calls, -1))
            names.append(function.__name__)
        slots += frame.values
        places += [(calls, place) for place in frame.places]
        names += frame.labels
    return ReachedPoint(point, functions, [frame.function for frame in frames], tuple(slots), places, names)


__all__ = ["Break", "NotResumable", "ReachedPoint", "arrive", "break_here"]
