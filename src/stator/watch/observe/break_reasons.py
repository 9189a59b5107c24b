"""What is told of a break: the reason in words, and the line of the program that it is due to."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from traceback import FrameSummary

from ... import _native, source_lines
from ...errors import REASONS, BreakReason, break_reason
from ..graph_break import BreakGraph
from . import policy


def reason_of(stop: BreakGraph, probe: _native.Probe | None) -> BreakReason:
    """The break at the instruction of `probe`, or, inside a library, at the line that called it."""
    stack = _user_stack()
    reason = break_reason(
        stop.reason,
        probe.code if probe is not None else None,
        probe.offset if probe is not None else None,
        what=stop.detail,
        user_stack=stack[:-1],
    )
    if stack and not _is_users(reason.filename):  # inside a library: show who called it
        caller = stack[-1]
        reason = replace(
            reason,
            filename=caller.filename,
            lineno=caller.lineno or 0,
            line=source_lines.line(caller.filename, caller.lineno).strip(),
            function=caller.name,
            user_stack=stack,
            columns=None,
        )
    return reason


def words(why: BreakGraph | RecursionError) -> str:
    """Why the program cannot go on compiled behind a break."""
    if isinstance(why, BreakGraph):
        return REASONS[why.reason].reason.replace("{what}", why.detail)
    return "the values at hand are nested too deep"


def _is_users(filename: str) -> bool:
    """Is it neither a library nor code of ours that stands around a function?"""
    return not policy.is_trusted(filename) and not filename.startswith("<stator ")


def _user_stack() -> tuple[FrameSummary, ...]:
    """The program's own frames, outermost first."""
    frames: list[FrameSummary] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < 50:
        code = frame.f_code
        if _is_users(code.co_filename):
            frames.append(FrameSummary(code.co_filename, frame.f_lineno, code.co_qualname, lookup_line=False))
        frame = frame.f_back
    return tuple(reversed(frames))
