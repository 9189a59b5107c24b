"""Torch's meta kernels that are written in Python, without the import of torch's own compiler.

Many of them are wrapped so that TorchDynamo does not trace into them, and the wrapper imports TorchDynamo when it is
first called: seconds, in a process that does not use it. Until somebody else has imported it, the wrapped function is
called directly.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

_WRAPPER = torch._compile._disable_dynamo(lambda: None).__code__
_MARK = "__dynamo_disable"  # where the wrapper keeps what it calls
_MODULES = ("torch._refs", "torch._refs.nn.functional", "torch._refs.special", "torch._refs.linalg", "torch._refs.fft")


@functools.cache
def call_directly() -> None:
    """Once in a process, before the first meta kernel runs."""
    from torch._decomp import global_decomposition_table

    tables: list[dict[Any, Any]] = list(global_decomposition_table.values())
    tables += [vars(sys.modules[name]) for name in _MODULES if name in sys.modules]
    for table in tables:
        for function in list(table.values()):
            for wrapper in _wrappers(function):
                _bypass(wrapper)


def _wrappers(function: Any, depth: int = 6) -> Iterator[Any]:
    """The wrappers around a kernel: each holds the next function in its closure."""
    if isinstance(function, types.FunctionType) and depth:
        if function.__code__ is _WRAPPER:
            yield function
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty one
                yield from _wrappers(cell.cell_contents, depth - 1)


def _bypass(wrapper: Any) -> None:
    wrapped: Any = wrapper.__closure__[_WRAPPER.co_freevars.index("fn")].cell_contents
    if hasattr(wrapped, _MARK):
        return

    def plain(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" in sys.modules and vars(wrapped).get(_MARK) is plain:
            delattr(wrapped, _MARK)  # it is there now: the wrapper does what it was made for
            return wrapper(*args, **kwargs)
        return wrapped(*args, **kwargs)

    setattr(wrapped, _MARK, plain)
