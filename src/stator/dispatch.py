"""From a callable to a compiled callable: binding arguments as the callable itself would.

Enters: a Python function and its `Program`. Leaves: a function with the same signature, name and defaults whose body
hands the argument slots to the program. Wrong arguments raise what the plain function raises: CPython binds them.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from . import _native, pipeline
from .calling import Given
from .program import Program, Slots, slot_names
from .watch.observe.policy import recording

_FILE = "<stator dispatch>"


def _slot(index: int) -> str:
    """What an argument is called in the text. The program's names are put into the code that is made of it, so that
    they need not be identifiers, and cannot meet ours."""
    return f"a{index}"


def _spread(code: types.CodeType, slot: Callable[[int], str]) -> str:
    """The arguments of a call that fills these slots again; `names` has the names of all slots."""
    count = code.co_argcount
    parts = [slot(i) for i in range(count)]
    index = count + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{slot(index)}")
        index += 1
    parts += [f"**{{names[{i}]: {slot(i)}}}" for i in range(count, count + code.co_kwonlyargcount)]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{slot(index)}")
    return ", ".join(parts)


def _parameters(code: types.CodeType) -> str:
    count, keyword_only = code.co_argcount, code.co_kwonlyargcount
    parts = [_slot(i) for i in range(count)]
    if code.co_posonlyargcount:
        parts.insert(code.co_posonlyargcount, "/")
    index = count + keyword_only
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{_slot(index)}")
        index += 1
    elif keyword_only:
        parts.append("*")
    parts += [_slot(i) for i in range(count, count + keyword_only)]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{_slot(index)}")
    return ", ".join(parts)


def _make(text: str, name: str, names: dict[str, Any]) -> Any:
    exec(compile(text, _FILE, "exec"), names)
    return names[name]


def plain_caller(function: types.FunctionType) -> Callable[[types.FunctionType, Given], Any]:
    """What calls functions with this signature with their argument slots."""
    arguments = _spread(function.__code__, lambda index: f"slots[{index}]")
    text = f"def call(function, slots): return function({arguments})"
    return _make(text, "call", {"names": slot_names(function.__code__)})  # type: ignore[no-any-return]


class _Default:
    """Stands for a default in the signature of a dispatcher: the function's own are looked up in each call."""

    def __repr__(self) -> str:
        return "<default>"


_DEFAULT = _Default()


def _find_default(function: types.FunctionType, index: int | None, name: str) -> Any:
    """The default that the function has now; it may have been replaced, or taken away."""
    if index is None:
        if name in (function.__kwdefaults__ or ()):
            return function.__kwdefaults__[name]  # type: ignore[index]
    elif -index <= len(function.__defaults__ or ()):
        return function.__defaults__[index]  # type: ignore[index]
    kind = "keyword-only" if index is None else "positional"
    raise TypeError(f"{function.__qualname__}() missing 1 required {kind} argument: {name!r}")


def _fill_defaults(function: types.FunctionType) -> list[str]:
    code = function.__code__
    count = len(function.__defaults__ or ())
    lines = []
    for index in range(code.co_argcount - count, code.co_argcount):
        where = index - code.co_argcount
        lines.append(f"if {_slot(index)} is default: {_slot(index)} = find(function, {where}, names[{index}])")
    named = function.__kwdefaults__ or {}
    for index in range(code.co_argcount, code.co_argcount + code.co_kwonlyargcount):
        if code.co_varnames[index] in named:
            lines.append(f"if {_slot(index)} is default: {_slot(index)} = find(function, None, names[{index}])")
    return lines


def dispatcher(function: types.FunctionType, run: Callable[[Slots], Any]) -> types.FunctionType:
    """The compiled callable. Inside a recording it is the plain function, so that it is watched like any other."""
    code = function.__code__
    slots = slot_names(code)
    lines = [
        *_fill_defaults(function),
        f"if recording() or explaining_gradients(): return function({_spread(code, _slot)})",
        f"return run(({''.join(f'{_slot(index)}, ' for index in range(len(slots)))}))",
    ]
    text = f"def dispatch({_parameters(code)}):\n    " + "\n    ".join(lines) + "\n"
    names = {
        "find": _find_default,
        "recording": recording,
        "explaining_gradients": torch.is_anomaly_enabled,  # who called what is all that it has to show
        "function": function,
        "run": run,
        "default": _DEFAULT,
        "names": slots,
    }
    compiled: types.FunctionType = _make(text, "dispatch", names)
    compiled.__code__ = compiled.__code__.replace(co_varnames=slots)
    compiled.__defaults__ = tuple(_DEFAULT for _ in function.__defaults__ or ()) or None
    compiled.__kwdefaults__ = dict.fromkeys(function.__kwdefaults__ or (), _DEFAULT) or None
    functools.update_wrapper(compiled, function)
    compiled.__qualname__ = function.__qualname__
    return compiled


def compiled(function: types.FunctionType, program: Program) -> Any:
    """The compiled callable: C code before a dispatcher in Python."""
    return in_front(dispatcher(function, functools.partial(pipeline.run, program)), function, program)


def in_front(fallback: Callable[..., Any], function: types.FunctionType, program: Program) -> Any:
    """C code that checks and replays, and leaves everything else to `fallback`, with the name and signature of that."""
    quick = _native.Compiled(
        fallback=fallback,
        function=function,
        table=program.cache.table,
        hits=program.stats.count,
        resume=functools.partial(pipeline.resume, program),
        failed=functools.partial(pipeline.replay_failed, program),
        go_on=functools.partial(pipeline.go_on, program),
        passing=program.backoff.left,
        spared=program.backoff.spared,
        passed=program.stats.passed,
    )
    functools.update_wrapper(quick, fallback)
    return quick


class Handle:
    """`compiled.stator`: what is known of a compiled callable."""

    def __init__(self, program: Program) -> None:
        self._program = program

    entries = property(lambda self: self._program.cache.all_entries(), doc="The recordings, continuations' last.")
    hits = property(lambda self: self._program.stats.hits, doc="Calls served by replays alone.")
    recordings = property(lambda self: self._program.stats.recordings, doc="Watched runs that gave an entry.")
    plain = property(lambda self: self._program.stats.plain_calls, doc="Calls of which a part ran as plain Python.")
    name = property(lambda self: self._program.name, doc="Of the function.")
    calls = property(lambda self: self._program.stats.calls, doc="All of them.")
    limit = property(lambda self: self._program.settings.cache_size_limit, doc="Recordings that it may have.")
    last_miss = property(lambda self: self._program.stats.last_miss, doc="Why the last call that missed did so.")
    graphs = property(lambda self: list(self._program.stats.graphs), doc="Every captured graph.")
    break_reasons = property(lambda self: list(self._program.stats.break_reasons), doc="Why graphs ended early.")

    def reset(self) -> None:
        """Forget all recordings."""
        self._program.reset()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until what was recorded is compiled (with `options.background_compile`), at most `timeout` seconds; is
        it? What failed there is told, or raised, here or in the next call."""
        return pipeline.wait(self._program, timeout)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of a module that is compiled in place is a plain one: recordings are not carried."""
        return type(None), ()

    def __repr__(self) -> str:
        name, stats = self._program.name, self._program.stats
        return f"<stator {name}: {len(self.entries)} recordings, {stats.hits} hits, {stats.plain_calls} plain calls>"
