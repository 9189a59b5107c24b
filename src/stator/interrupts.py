"""Exceptions that come from outside of what is running: raised by a signal handler of the program, or put into the
thread by another one (`PyThreadState_SetAsyncExc`: watchdogs, time limits).

Python lets both in between any two instructions, ours included. They are meant for the program, wherever they came:
nothing of ours may take them for a fault of an operation, or of stator, and go on.
"""

from __future__ import annotations

import dis
import signal
import traceback
import types
from collections.abc import Iterator
from typing import Any

from ._native import frame_takes

# Instructions at whose end CPython looks whether somebody has put an exception into the thread. (An import takes its
# own frames out of tracebacks.)
_WHERE_THEY_ARRIVE = ("RESUME", "CALL", "PRECALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "IMPORT")
_ARRIVING = frozenset(code for name, code in dis.opmap.items() if name.startswith(_WHERE_THEY_ARRIVE))
_OF_C_CODE = (StopIteration, StopAsyncIteration, GeneratorExit, MemoryError)  # which raises these without a message


def let_through(error: BaseException) -> None:
    """Raises it again if it is none of ours: for who takes an exception for an answer, and goes on."""
    if is_from_outside(error):
        raise error


def is_from_outside(error: BaseException) -> bool:
    """Was this raised inside of a signal handler, or by another thread?"""
    return is_put_in(error) or is_from_handler(error)


def is_put_in(error: BaseException) -> bool:
    """Has another thread put it in? Then nobody has raised it: it begins at an instruction that raises nothing by
    itself, or at a call, and is made of its class alone, which C code does to next to nothing."""
    last = error.__traceback__
    if last is None or isinstance(error, _OF_C_CODE) or not _can_be_made_of_nothing(error):
        return False
    while last.tb_next is not None:
        last = last.tb_next
    code = last.tb_frame.f_code.co_code
    return 0 <= last.tb_lasti < len(code) and code[last.tb_lasti] in _ARRIVING


def _can_be_made_of_nothing(error: BaseException) -> bool:
    """`E()`: what a class of the program's writes into its arguments then, nobody knows."""
    namespaces = [_NAMESPACE_OF_TYPE.__get__(cls) for cls in type(error).__mro__]
    maker = next(space[name] for space in namespaces for name in ("__init__", "__new__") if name in space)
    maker = maker.__func__ if type(maker) is staticmethod else maker
    if type(maker) is not types.FunctionType:
        return error.args == ()
    code, defaults, named = maker.__code__, maker.__defaults__ or (), maker.__kwdefaults__ or {}
    only_named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return code.co_argcount - len(defaults) <= 1 and all(name in named for name in only_named)


_NAMESPACE_OF_TYPE: Any = type.__dict__["__dict__"]


def is_from_handler(error: BaseException) -> bool:
    """Was this raised inside a signal handler?"""
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
    return frame.f_back is not None and frame_takes(frame, frame.f_back)
