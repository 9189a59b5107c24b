"""What the frame hook tells of a watched run: which frames start, and which of them nobody can look into.

Enters: the watched run and the function or code of a frame. Leaves: what the segment notes of it, or its end.
"""

from __future__ import annotations

import types
from typing import Any

from ..graph_break import BreakGraph
from ..models import other_compiler, user_hints
from ..objects.functions_entered import note_function, note_made_function
from ..tensors import gradients, leaf_interiors
from . import marked_functions, module_calls, policy
from .call_handlers import SPREAD
from .module_calls import GETATTR
from .segment_ends import failed_inside
from .watched_run import WatchedRun


def enter(run: WatchedRun, function: types.FunctionType) -> None:
    """A function's frame starts for the first time in this recording."""
    run.frames.append(function.__code__)
    if function is run.segment.root:
        return
    if marked_functions.is_marked(function):
        run.marked.append(function)
        run.watcher.take_whole(function)
    origin = run.segment.ledger.find(function)
    if origin is None:
        if run.watcher.fresh(function) or function.__code__ is SPREAD:
            note_made_function(run.segment.ledger, function)
            if run.segment.symbols is not None:  # the frame has its arguments already
                run.segment.symbols.specialise_in((function.__defaults__, function.__kwdefaults__))
            return
        origin = run.segment.classes.place_of_special(function)
    if origin is not None:
        note_function(run.segment.ledger, origin, function)
    else:
        failed_inside(run, BreakGraph("unknown-function", function.__qualname__))


def transparent(run: WatchedRun, function: types.FunctionType, slots: tuple[Any, ...]) -> bool:
    """A frame of `nn.Module` whose reads are noted as one, or a mark for torch's own compiler that is one for us;
    False: it has to be watched in full."""
    if other_compiler.is_mark(function.__code__):
        marked = other_compiler.break_at(function, run.watcher.frames()[0][-1][2])
        if marked is not None:
            failed_inside(run, marked)
        return marked is not None
    if function.__code__ in policy.PASSES:
        entered = gradients.Gradients(run.segment).entered()
        if entered is not None:  # else it is watched, up to the engine
            failed_inside(run, entered)
        return entered is not None
    if function.__code__ is GETATTR:
        run.segment.attributes.read_registered(slots[0], slots[1])
        return True
    return module_calls.note(run.segment, slots[0])


def leaf(run: WatchedRun, payload: str | None, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
    if payload is None:
        return marked_functions.call(run.segment, function, slots)
    if payload in ("transform", "apply"):
        return leaf_interiors.Interiors(run.segment).call(payload, function, slots)
    if payload == "engine":
        return gradients.Gradients(run.segment).call(function, slots)
    return run.leaves.call(payload, function, slots)


def blind(run: WatchedRun, code: types.CodeType, reason: str | None) -> None:
    asked_for = user_hints.break_of(code)
    known = {"finalizer": "finalizer", "recursion": "recursion", "resumed": "outside-generator"}
    reason_id = known.get(reason or "", "unwatchable-code")
    stop = BreakGraph(reason_id, code.co_qualname, transient=reason_id in ("finalizer", "recursion"))
    failed_inside(run, asked_for or stop)


def foreign(run: WatchedRun, code: types.CodeType) -> None:
    """A frame of the program's starts inside of an operation: nobody sees what it reads. The body of an operator
    of its own is run by every replay, and may read what it likes."""
    if run.segment.tracer.in_operator:
        return
    failed_inside(run, BreakGraph("foreign-frame", code.co_qualname))
