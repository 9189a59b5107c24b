"""What a disabled function calls, where only it is disabled: `disable(fn, recursive=False)`.

Enters: a function that starts while a step is made that calls such a function (`_native/callees.c`). Leaves: whether
it runs as it is, and so does what it calls, or a call of its program. Each function of the program's is one of its own,
with the backend and the settings of the function that came to the break.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

from . import pipeline
from .dispatch import plain_caller
from .interrupts import is_from_outside
from .program import Program
from .replay.cache import Cache
from .watch.observe import policy

_MOST = 64  # functions that may be compiled for one


def choose(
    program: weakref.ref[Program], function: types.FunctionType
) -> Callable[[types.FunctionType, list[Any]], Any] | bool | None:
    """None: the function runs as it is. False: so does all that it calls."""
    try:
        compiles = policy.compiles_callee(function.__code__)
        caller = program()
        if not compiles or caller is None:
            return compiles
        callee = _program_of(caller, function)
        return None if callee is None else functools.partial(pipeline.run_as, callee)
    except Exception as error:
        if is_from_outside(error):
            raise
        return False  # it was no use, and does no harm


def _program_of(caller: Program, function: types.FunctionType) -> Program | None:
    found = caller.callees.get(function.__code__)
    if found is None and len(caller.callees) < _MOST:
        found = Program(
            function,
            plain_caller(function),
            name=function.__qualname__,
            backend=caller.backend,
            settings=caller.settings,
            fullgraph=False,
            cache=Cache(),
        )
        found.choose_callee = functools.partial(choose, weakref.ref(found))
        caller.callees[function.__code__] = found
    return found
