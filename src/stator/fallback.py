"""The ways back to eager: plain calls, graph breaks, replays that raise, faults of ours.

Whatever goes wrong, the program gets eager's result or eager's exception. What is meant for the user (a backend that
fails, a broken graph under `fullgraph`) is raised; a fault of ours is reported, and the call runs as plain Python.
"""

from __future__ import annotations

import traceback
import types
from typing import Any

import torch

from . import events, reporting
from .calling import Given, hand_over
from .errors import (
    BackendError,
    BreakReason,
    GraphBreakError,
    InternalError,
    SpecializationError,
    StorageError,
    VerificationError,
    break_reason,
    is_half_done,
    is_unwritten,
)
from .interrupts import is_from_outside, let_through
from .program import PLAIN, Plain, Program
from .replay.cache import Entry
from .replay.graph import may_have_run
from .support.graph_numbers import Failed
from .watch.observe import policy

TRANSIENT_LIMIT = 3  # failures in a row that another call might not have
# What torch's operations raise for the data that they are given.
_OF_OPERATIONS = (IndexError, RuntimeError, ValueError, AssertionError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
_OF_COLLECTIVES: tuple[type[BaseException], ...] = (getattr(torch.distributed, "DistError", GraphBreakError),)
FOR_THE_USER = (BackendError, GraphBreakError, InternalError, SpecializationError)


def _comes_from_program(error: BaseException) -> bool:
    """Was it raised by Python code of the program's that a graph has called? (TorchInductor writes files, too.)"""
    names = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(not (name.startswith("<") or policy.is_trusted(name) or "torchinductor" in name) for name in names)


def plain(program: Program, why: Any) -> Plain:
    """A call is going to run as plain Python."""
    program.stats.add_plain()
    if events.RanPlain in events.READERS:
        events.emit(events.RanPlain(program.name, why))
    return PLAIN


def internal_failure(program: Program, where: str, error: BaseException | None) -> None:
    """A fault of ours: the program keeps its result; we keep a report, and warn of the first one. What a signal handler
    of the program has raised, or another thread, is none: the program gets it, as late as this."""
    if error is not None and is_from_outside(error):
        try:
            raise error
        finally:
            del error  # its traceback has this frame
    program.stats.add_plain()
    program.transient += 1
    fault = error or RuntimeError("no recording")
    warned, program.stats.complained = program.stats.complained, True
    try:
        reporting.failure(program.name, where, fault, program.settings, quiet=warned)
    except (InternalError, Warning):
        raise
    except Exception as failed:  # not even that can be told
        let_through(failed)
        if not program.settings.suppress_errors:
            raise InternalError(where, fault) from fault


def not_found(program: Program, error: Exception) -> Plain:
    """Looking for a recording has failed. Those that are there are not tried again."""
    program.cache.clear()
    internal_failure(program, "looking for a recording", error)
    return PLAIN


def repeat(
    program: Program, entry: Entry, error: BaseException, restored: bool, function: types.FunctionType, slots: Given
) -> Any:
    """A replay raised. What it changed is as before: the function itself raises what eager raises. If it does not
    raise, it has handled what an operation raised, or the fault is ours, or the backend's. What is not as before,
    and what no operation has raised, goes to the program.
    """
    if isinstance(error, (VerificationError, StorageError)) or is_half_done(error) or is_from_outside(error):
        raise error
    if entry.acts and (_comes_from_program(error) or isinstance(error, _OF_COLLECTIVES)):
        raise error
    if entry.mutates and not restored and not is_unwritten(error) and may_have_run(entry.replay, error):
        error.add_note(f"raised by the replay of {program.name}, which had already written to its inputs")
        raise error
    result = program.call_plain(function, slots) if function is program.function else hand_over(function, slots)
    expected = isinstance(error, Failed) or restored or type(error) in _OF_OPERATIONS
    if not expected:
        internal_failure(program, "a replay", error)
    return result


def not_kept(program: Program, error: BaseException) -> None:
    """A recording has come to nothing: said, or raised."""
    if isinstance(error, BackendError) and error.__cause__ is not None and is_from_outside(error.__cause__):
        error = error.__cause__
    if isinstance(error, BackendError) and program.settings.suppress_errors:
        program.transient = TRANSIENT_LIMIT
        program.stats.add_plain()
        reporting.warn(f"{error}; {program.name} runs as plain Python")
    elif isinstance(error, FOR_THE_USER) or not isinstance(error, Exception) or is_from_outside(error):
        try:
            raise error
        finally:
            del error  # its traceback has this frame
    else:
        internal_failure(program, "making a replay", error)


def tell_failures(program: Program) -> None:
    """Those of the background, of this program and its continuations."""
    while program.stats.failures:
        failed = program.stats.failures.pop(0)
        program.stats.recordings -= 1  # the call that was recorded counts as a plain one
        try:
            not_kept(failed[0], failed[1])
        finally:
            del failed


def break_at(program: Program, reason_id: str, what: str = "") -> BreakReason:
    reason = break_reason(reason_id, program.function.__code__, what=what or program.name)
    program.stats.break_reasons.append(reason)
    events.emit(events.GraphBreak(reason))
    return reason
