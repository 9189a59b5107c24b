"""Where a segment ends at a break, and where the program can go on from there.

Enters: the frames of a watched run, just before the instruction at which it breaks. Leaves: a `Break`: what the frames
live on with, the native step over the instruction, and the ways that lead on from it. When the live run has made that
step by itself, `arrive` says which of the ways it took, and with what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import (
    BuiltinMethodType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

from .. import _native
from ..recording import Continuation, Way
from .continuation import find_site, raise_at, resume
from .flow import NotResumable, flow_of
from .step import Exit, step
from .suspend import Suspended, made_function, suspended


class Break(NamedTuple):
    """The state of all frames before a break, and the ways on from it."""

    frames: list[Suspended]  # outermost first
    states: list[dict[str, Any]]  # of each frame, by the names under which continuations take it
    step: Continuation
    exits: Sequence[Exit]  # of the step
    ways: list[Way]  # one for each exit


class Arrival(NamedTuple):
    """Where the run went on, and the call that would go on there."""

    way: Way
    functions: list[FunctionType]  # the continuations of all frames, outermost first
    slots: tuple[Any, ...]  # what the outermost takes


def break_here(watcher: _native.Watcher, *, inside: bool) -> Break:
    """The break before the instruction that the run is about to execute, or which is at work (`inside`)."""
    frames = suspended(watcher)
    last = frames[-1]
    if inside:
        _check_untouched(watcher, last)
    code, exits = step(last.code, last.offset, last.bound, last.stack)
    outer = [dict(zip(_argument_names(frame, 0), frame.values, strict=False)) for frame in frames[:-1]]
    state = dict(zip(code.co_varnames, last.values, strict=False))
    ways = [_way(frames, exit) for exit in exits]
    return Break(frames, [*outer, state], Continuation(code, last.function.__globals__), exits, ways)


# C code which is given one of these may have moved or changed it before it came to what breaks the graph.
_CHANGEABLE = (list, dict, set, deque, bytearray)
_METHODS = (MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType)


def _check_untouched(watcher: _native.Watcher, frame: Suspended) -> None:
    """The instruction at work will be executed once more, from the state before it: it must not have changed any."""
    probe = watcher.last_probe
    assert probe is not None
    site = find_site(probe.code, probe.offset)
    if (site.code, flow_of(site.code).offset(site.k)) != (frame.code, frame.offset):
        raise NotResumable("other code has run inside the instruction")
    if probe.kind == _native.NEXT:
        raise NotResumable("an iterator has moved on already")
    for operand in watcher.stack(0, probe.depth)[probe.depth - probe.span :]:
        owner = operand.__self__ if isinstance(operand, BuiltinMethodType) else None
        changes = issubclass(operand.__objclass__, _CHANGEABLE) if isinstance(operand, _METHODS) else False
        if changes or isinstance(owner, _CHANGEABLE) or any(hasattr(type(x), "__next__") for x in (operand, owner)):
            raise NotResumable("the instruction may have changed what it works on already")


def _argument_names(frame: Suspended, inner: int) -> tuple[str, ...]:
    return resume(frame.code, frame.offset, frame.bound, frame.stack, inner, frame.finish).co_varnames


def _way(frames: list[Suspended], exit: Exit) -> Way:
    """The continuations of all frames, when the innermost stands at `exit`."""
    continue_ = raise_at if exit.raises else resume
    code = continue_(frames[-1].code, exit.offset, exit.bound, exit.stack)
    found = [Continuation(code, frames[-1].function.__globals__)]
    for frame in reversed(frames[:-1]):
        code = resume(frame.code, frame.offset, frame.bound, frame.stack, code.co_argcount, frame.finish)
        found.append(Continuation(code, frame.function.__globals__))
    return Way(tuple(reversed(found)), exit.raises)


def arrive(watcher: _native.Watcher, broken: Break) -> Arrival | None:
    """Where the live run stands now that the step is made; None if not at the end of one of the known ways."""
    frames = suspended(watcher)
    last = frames[-1]
    for exit, way in zip(broken.exits, broken.ways, strict=True):
        there = (last.offset, last.bound, last.stack) == (exit.offset, exit.bound, exit.stack)
        if there and not exit.raises and _same_callers(frames, broken.frames):
            return Arrival(way, *_call(frames, [frame.code for frame in way.frames]))
    return None


def _same_callers(frames: list[Suspended], before: list[Suspended]) -> bool:
    """Do all frames but the innermost stand where they stood?"""
    return len(frames) == len(before) and all(
        (now.code, now.offset, now.bound, now.stack) == (then.code, then.offset, then.bound, then.stack)
        for now, then in zip(frames[:-1], before[:-1], strict=True)
    )


def _call(frames: list[Suspended], codes: list[CodeType]) -> tuple[list[FunctionType], tuple[Any, ...]]:
    """The continuations and what the outermost is called with."""
    functions = [made_function(code, frame.function) for frame, code in zip(frames, codes, strict=True)]
    slots: list[Any] = list(frames[0].values)
    for function, frame in zip(functions[1:], frames[1:], strict=True):
        slots += [function, *frame.values]
    return functions, tuple(slots)


__all__ = ["Arrival", "Break", "NotResumable", "arrive", "break_here"]
