"""An instruction is about to use a number or text that may be another one in the next call: is its value guarded, does
it stay a symbol, or does Python make the step?

Enters: the watched run, a probe, and the value. Leaves: the value guarded or left, or the segment ended before it.
"""

from __future__ import annotations

from typing import Any

from ... import _native
from ..objects.own_objects import UNGUARDED_TYPES
from .segment_ends import step_over
from .unguarded_values import (
    give_back,
    is_ignored,
    is_left_to_python,
    is_specialised,
    use_scalar,
    use_symbol,
    works_on_tensors,
)
from .watched_run import WatchedRun


def specialize_operand(run: WatchedRun, probe: Any, value: Any) -> None:
    """An unguarded value is about to matter: its value is guarded; or, where that would not hold for long (it has
    just come from Python, or was seen to change), Python makes one more step.
    """
    run.segment.ledger.place = probe
    if is_specialised(run.segment, value):
        give_back(run.segment)
        run.watcher.leave_unguarded(value)  # it may lie in a container, too
        return
    if run.segment.symbols is not None and (
        type(value) not in UNGUARDED_TYPES or run.segment.symbols.was_symbol(value)
    ):
        if not _leaves_to_python(run, probe, value):
            use_symbol(run.segment, probe, value)
        return
    if probe.arg == "returned" and probe.kind == _native.PACK and _is_in_root(run, probe):
        return  # it is part of the result
    if is_ignored(run.segment, probe):
        run.watcher.leave_unguarded(value)
        return
    if run.segment.tracer.is_scalar(value):
        return use_scalar(run.segment, probe, value)
    waits = id(value) in run.hopeless or not works_on_tensors(run.segment, probe)
    if (id(value) in run.changing and waits and step_over(run)) or _leaves_to_python(run, probe, value):
        return
    run.segment.ledger.specialize(value)
    give_back(run.segment)


def _leaves_to_python(run: WatchedRun, probe: Any, value: Any) -> bool:
    return run.steps_over and is_left_to_python(run.segment, probe, value) and step_over(run)


def _is_in_root(run: WatchedRun, probe: Any) -> bool:
    return probe.code is run.segment.root_code and len(run.watcher.frames()[0]) == 1
