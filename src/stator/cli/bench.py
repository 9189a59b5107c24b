"""`python -m stator bench FILE:FUNCTION`: plain against compiled, in turn, medians."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import inspect
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from ..api import compile as stator_compile
from ..backends.registry import DEFAULT
from .misuse import Misused, check_readable
from .tracebacks import print_error

ENOUGH = 5e-3  # seconds that one timing should take; short functions are called several times for it
MOST_CALLS = 10_000


def run(given: argparse.Namespace) -> int:
    try:
        function, inputs = _what_to_call(given.target, given.inputs)
    except Misused:
        raise
    except Exception as error:  # of the file, or of the function that gives the arguments
        print_error(error)
        return 1
    compiled = stator_compile(function, backend=given.backend or DEFAULT, options={"background_compile": False})
    try:
        first = _timed(functools.partial(compiled, *inputs), 1)
        plain, fast = in_turn(
            functools.partial(function, *inputs), functools.partial(compiled, *inputs), rounds=given.rounds
        )
    except Exception as error:
        print_error(error)
        return 1
    times = plain / fast
    print(f"{given.target}, backend {given.backend or DEFAULT}, medians of {given.rounds} rounds in turn")
    print(f"  first call  {duration(first)}")
    print(f"  plain       {duration(plain)}")
    print(f"  compiled    {duration(fast)}  ({times:.2f} times as fast)")
    handle = getattr(compiled, "stator", None)
    if handle is not None:
        print(f"  graphs {len(handle.graphs)}, graph breaks {len(handle.break_reasons)}, replays {handle.hits}")
        for why in handle.break_reasons:
            print(f"  graph break: {why.reason} at {why.place}")
    if given.at_least is not None and times < given.at_least:
        print(f"  that is less than {given.at_least:g}")
        return 3
    return 0


def _what_to_call(target: str, giver: str | None) -> tuple[Any, Sequence[Any]]:
    """The function that is meant, and its arguments."""
    module = load(target)
    name = target.rpartition(":")[2]
    function = _find(module, name)
    inputs = _find(module, giver)() if giver else ()
    if not isinstance(inputs, (tuple, list)):
        inputs = (inputs,)
    try:
        inspect.signature(function).bind(*inputs)
    except TypeError as error:
        advice = f"{giver} gave {len(inputs)}" if giver else "--inputs names a function of the file that gives them"
        raise Misused(f"{name}: {error} ({advice})") from error
    except ValueError:  # some functions of C have no signature
        pass
    return function, inputs


def in_turn(*functions: Callable[[], Any], rounds: int) -> list[float]:
    """Median seconds of one call of each; timed in turn, so that a busy machine is busy for all of them."""
    for function in functions:
        for _ in range(3):  # the second call makes guards in C, the third finds caches warm
            function()
    longest = max(_timed(function, 1) for function in functions)
    calls = min(max(int(ENOUGH / max(longest, 1e-9)), 1), MOST_CALLS)
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, own in zip(functions, times, strict=True):
            own.append(_timed(function, calls))
    return [statistics.median(own) for own in times]


def _timed(function: Callable[[], Any], calls: int) -> float:
    synchronise()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    synchronise()
    return (time.perf_counter() - start) / calls


def synchronise() -> None:
    """Wait for what was started on a GPU."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def load(target: str) -> ModuleType:
    """The module in front of the colon of `FILE:FUNCTION`."""
    path, colon, name = target.rpartition(":")
    if not colon or not path or not name:
        raise Misused(f"{target!r} is not of the form FILE:FUNCTION")
    check_readable(path)
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(path))[0], path)
    if spec is None or spec.loader is None:
        raise Misused(f"{path!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec.loader.exec_module(module)
    return module


def _find(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise Misused(f"{module.__file__} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise Misused(f"{name!r} of {module.__file__} is {found!r}, which cannot be called")
    return found


def duration(seconds: float) -> str:
    """In the unit that is read most easily."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
