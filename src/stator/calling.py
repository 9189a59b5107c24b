"""Calling a function so that it alone holds what it is given.

`function(*slots)` keeps the arguments until the call is over: an object that the function lets go of lives on. CPython
moves arguments into the callee's frame where they lie on the caller's stack and nowhere else; so they are taken from
a list, one by one, by a function with as many places for them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

Given = tuple[Any, ...] | list[Any]  # argument slots; a list of them is emptied when the function has begun


def hand_over(function: types.FunctionType, slots: Given) -> Any:
    """The function's result."""
    if isinstance(slots, tuple):  # somebody wants to keep them
        return function(*slots)
    call = _caller(len(slots))
    slots.reverse()
    return call(function, slots.pop)


@functools.cache
def _caller(count: int) -> Callable[[types.FunctionType, Callable[[], Any]], Any]:
    names: dict[str, Any] = {}
    arguments = ", ".join(["take()"] * count)
    exec(compile(f"def call(function, take): return function({arguments})", __file__, "exec"), names)
    return names["call"]  # type: ignore[no-any-return]
