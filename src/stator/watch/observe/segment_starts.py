"""How a segment starts: of a run, or behind a break where the program has gone on.

Enters: the watched run, what the segment starts with, and what is known of recordings that there are. Leaves: the run
with a new segment, whose ledger knows the arguments.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch

from ... import _native
from ...recording import ResumePoint
from ...support.guard_readers import MODE_COUNT
from ..finish.resume_points import NotResumable, ReachedPoint, arrive
from ..models import user_hints
from ..objects.functions_entered import note_function
from ..objects.own_objects import is_unguarded
from ..segment import Segment, SegmentSettings
from ..tensors import failing_ops
from ..tensors.leaves import Leaves
from .call_handlers import TABLE
from .recorded import CacheHistory
from .segment_ends import lost
from .watched_run import WatchedRun

_MOST_REPEATS = 100


def begin_segment(run: WatchedRun, point: ResumePoint | None, state: tuple[Any, ...], known: CacheHistory) -> None:
    """A segment starts: nothing is known, nothing recorded."""
    changing = None if known.recorded else known.symbols
    run.steps_over = known.several and not run.whole
    captures = run.settings.capture_scalar_outputs
    symbolic = changing is not None and (changing or user_hints.has_marks() or captures)
    keeps = known.writes_last or run.whole
    settings = SegmentSettings(
        captures,
        run.settings.reorder_print,
        known.expects,
        failing_ops.MOST_BYTES if keeps else failing_ops.MOST_BYTES_ELSE,
        changing if symbolic else None,
        run.whole,
    )
    run.segment = Segment(run.name, point, state, run.own, run.course, settings, TABLE)
    run.mode.follow(run.segment)
    run.leaves = Leaves(run.segment)
    run.known_already = False


def note_slots(
    run: WatchedRun,
    function: types.FunctionType,
    names: Iterable[str],
    slots: tuple[Any, ...],
    fixed: frozenset[int] = frozenset(),
) -> tuple[Any, ...]:
    """What a segment starts with. Behind a break numbers may be mere counters, texts mere messages: they are
    guarded when something depends on them. Gives the slots with symbols in them. What is `fixed` cannot be another
    object in its place, such as a number that is found elsewhere too: it is guarded as it is.
    """
    run.segment.root = function
    run.segment.context.slot_values = [*slots, function]
    for index, (name, value) in enumerate(zip(names, slots, strict=True)):
        own = index not in fixed
        symbol = run.segment.symbols.slot(index, name, value) if run.segment.symbols is not None and own else None
        if symbol is not None:
            run.segment.context.slot_values[index] = symbol
        elif run.segment.point is not None and own and is_unguarded(value):
            run.segment.ledger.unguarded(index, name, value)
        else:
            run.segment.ledger.local(index, name, value)
    root = run.segment.ledger.local(len(slots), function.__name__, function)
    note_function(run.segment.ledger, root, function, bound=True)
    return tuple(run.segment.context.slot_values[:-1])


def resume(run: WatchedRun, probe: Any) -> bool:
    """The instruction has run natively and the program goes on: a new segment. True: not yet."""
    if run.stopping:
        lost(run, False)
        return False
    goes_on = probe.kind == _native.NEXT or (run.last_break is not None and run.last_break.goes_past(probe))
    if goes_on or torch._C._is_torch_function_all_disabled():
        return True
    with torch._C.DisableTorchFunction():
        try:
            there = arrive(run.watcher, run.last_break)
        except NotResumable:
            there = None
        state = run.mode.state_without()
        if there is None or run.repeated > _MOST_REPEATS or state[MODE_COUNT]:
            lost(run, False)
        else:
            _start_segment(run, there, state)
    return False


def _start_segment(run: WatchedRun, there: ReachedPoint, state: tuple[Any, ...]) -> None:
    known = run.ask(run.segments, there.point, (*there.slots, there.functions[0]), state)
    if known.full:
        lost(run, False)
        return
    slots = _make_distinct(run, there)
    run.hopeless = {id(slots[index]) for index in known.changing}
    before = run.last_break.states[-1].values() if run.last_break is not None else ()
    carried = {id(run.own.original(value)) for value in before}
    made = {id(new) for old, new in zip(there.slots, slots, strict=True) if id(old) not in carried}
    run.changing = run.hopeless | made
    root_code = run.segment.root_code
    run.segment.release()
    begin_segment(run, there.point, state, known)
    run.segment.root_code = root_code
    run.known_already, run.waiting = known.recorded, False
    run.repeated = run.repeated + 1 if known.recorded else 0
    run.continued = {id(a): (b, a) for a, b in zip(there.originals, there.functions, strict=True)}
    fixed = frozenset(index for index, (_, place) in enumerate(there.places) if place < 0)
    noted = note_slots(run, there.functions[0], there.names, slots, fixed)
    for index, (calls, place) in enumerate(there.places):
        if noted[index] is not slots[index]:
            run.watcher.put(calls, place, noted[index])
    run.last_break = None
    for inner in there.functions[1:]:
        origin = run.segment.ledger.find(inner)
        assert origin is not None
        note_function(run.segment.ledger, origin, inner, bound=True)
    run.mode.put_on()
    run.segment.tracer.begin()


def _make_distinct(run: WatchedRun, there: ReachedPoint) -> tuple[Any, ...]:
    """Numbers and texts in the frames become objects of their own."""
    slots = list(there.slots)
    for index, (calls, place) in enumerate(there.places):
        if place >= 0 and is_unguarded(slots[index]):
            slots[index] = run.own.make(slots[index])
            run.watcher.put(calls, place, slots[index])
    return tuple(slots)
