"""Exceptions that come from outside of what is running: raised by a signal handler of the program.

Python runs a handler between any two instructions, ours included. What it raises is meant for the program, wherever it
came: nothing of ours may take it for a fault of an operation, or of stator, and go on.
"""

from __future__ import annotations

import inspect
import signal
import traceback
import types
from collections.abc import Iterator


def let_through(error: BaseException) -> None:
    """Raises it again if it is none of ours: for who takes an exception for an answer, and goes on."""
    if is_from_handler(error):
        raise error


def is_from_handler(error: BaseException) -> bool:
    """Was this raised inside of a signal handler?"""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames:
        return False
    handlers = set(_handlers())
    return any(frame.f_code in handlers or _is_called_with_its_caller(frame) for frame in frames)


def _handlers() -> Iterator[types.CodeType]:
    for number in signal.valid_signals():
        handler: object = signal.getsignal(number)
        function = getattr(handler, "__func__", handler)
        if isinstance(function, types.FunctionType):
            yield function.__code__


def _is_called_with_its_caller(frame: types.FrameType) -> bool:
    """A handler is given the frame that it has interrupted; it may not be installed any more."""
    if frame.f_back is None:
        return False
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)]
    values = [frame.f_locals.get(name) for name in names]
    return any(v is frame.f_back or (type(v) is tuple and any(w is frame.f_back for w in v)) for v in values)
