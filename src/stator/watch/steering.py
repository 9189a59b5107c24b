"""Functions with which a program steers its own compilation."""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

from . import world
from .breaks import Drop

_DISABLED_FILE = "<stator disabled>"
_reasons: weakref.WeakKeyDictionary[types.CodeType, str] = weakref.WeakKeyDictionary()


def disabled(fn: Any, reason: str = "") -> Any:
    """A function that breaks the graph and runs unwatched, callees included. `reason` is told with the break."""
    if not callable(fn):
        raise TypeError(f"stator.disable takes a function, not {fn!r}")

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    # A code object of its own, so that the frame hook can tell this wrapper from any other.
    call.__code__ = call.__code__.replace(co_name=getattr(fn, "__name__", "call"), co_filename=_DISABLED_FILE)
    functools.update_wrapper(call, fn)
    _reasons[call.__code__] = reason
    return call


def graph_break(reason: str = "") -> None:
    """Break the graph here. Outside of a recording nothing happens."""


def breaks_at(code: types.CodeType) -> bool:
    """Does a frame of this code mean a break?"""
    return code is graph_break.__code__ or code.co_filename == _DISABLED_FILE


def break_of(code: types.CodeType) -> Drop | None:
    """The break that a frame of this code means: the program asked for one, or it reaches the world outside."""
    if code is graph_break.__code__:
        return Drop("user-graph-break")
    if code.co_filename == _DISABLED_FILE:
        reason = _reasons.get(code)
        return Drop("disabled-function", f"{code.co_name}: {reason}" if reason else code.co_name)
    found = world.break_in(code)
    return Drop(*found) if found is not None else None
