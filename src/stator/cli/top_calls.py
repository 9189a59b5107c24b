"""Calls of modules from outside of any module: compiled, and timed by place in the program.

What enters: a program that runs inside of the context manager. What leaves: `TopCalls.sites`.
What holds: every call gives what plain Python gives. From the third call with the same shapes on, every second call
runs plain, so that there is something to compare with; in the second call, and then in every eighth, each replay is
timed by itself, and the call as a whole does not count. Only the thread that entered is looked at.

The door is the code of `nn.Module.__call__`, which is another one between top calls. Inside of one it is torch's own,
so that what is recorded, guarded and timed is what a program without all this would see. (To replace the method instead
would make CPython forget what it knows of every class of modules, twice in every call.)
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.modules.module as torch_module

import stator

from ..api import compile as stator_compile
from ..backends.registry import DEFAULT
from .bench import synchronise

_NAME = "_stator_top_call"
_DOOR: Any = torch.nn.Module.__call__
_OWN = tuple(os.path.join(folder, "") for folder in (torch.__path__[0], os.path.dirname(os.path.dirname(__file__))))
EVERY = 8  # calls: of so many, the replays of one are timed by themselves
MOST_MODULES = 8  # compiled at one place; a program that makes a module for every call gains nothing from more


def _detour(self: Any, *args: Any, **kwargs: Any) -> Any:
    return _stator_top_call(self, args, kwargs)  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Times:
    """Seconds of calls with the same shapes."""

    calls: int = 0
    plain: list[float] = field(default_factory=list)
    compiled: list[float] = field(default_factory=list)


@dataclass
class TopCallSite:
    """One place that calls something."""

    filename: str
    lineno: int
    name: str  # of what is called
    first: float = 0.0  # seconds of the first call
    recording: float = 0.0  # seconds of all calls in which something was recorded
    modules: set[int] = field(default_factory=set)
    by_shapes: dict[Any, Times] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.filename}:{self.lineno}"

    @property
    def calls(self) -> int:
        return sum(times.calls for times in self.by_shapes.values())

    @property
    def too_many(self) -> bool:
        return len(self.modules) > MOST_MODULES

    @property
    def medians(self) -> tuple[float, float] | None:
        """Plain and compiled, of the shapes that were timed most often on both sides; None: there are none."""
        measured = [times for times in self.by_shapes.values() if times.plain and times.compiled]
        if not measured:
            return None
        most = max(measured, key=lambda times: min(len(times.plain), len(times.compiled)))
        return statistics.median(most.plain), statistics.median(most.compiled)

    @property
    def won(self) -> float | None:
        """Seconds that all replays together took less than plain calls would have, by the medians."""
        measured = [(t.plain, t.compiled) for t in self.by_shapes.values() if t.plain and t.compiled]
        if not measured:
            return None
        median = statistics.median
        return sum((median(plain) - median(compiled)) * len(compiled) for plain, compiled in measured)


class TopCalls:
    """A context manager: inside of it, top calls are compiled."""

    def __init__(
        self,
        backend: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
        timing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._timing = timing  # inside of it replays are timed by themselves
        self.sites: dict[tuple[str, int, str], TopCallSite] = {}
        self.handles: list[Any] = []  # `compiled.stator` of everything that was compiled
        self._compiled: dict[int, tuple[Any, Any]] = {}  # by identity: module (so that it stays) and compiled module
        self._settings: dict[int, dict[str, Any]] = {}  # what the program asks for, by identity of the module
        self._thread = 0

    def __enter__(self) -> TopCalls:
        self._thread = threading.get_ident()
        self._original: types.CodeType = _DOOR.__code__
        self._plain = types.FunctionType(self._original, _DOOR.__globals__, _DOOR.__name__)
        setattr(torch_module, _NAME, self._top_call)
        self._former = stator.compile, stator.compile_
        self._offer(self._compile, self._compile_in_place)
        _DOOR.__code__ = _detour.__code__
        return self

    def __exit__(self, *exception: object) -> None:
        _DOOR.__code__ = self._original
        self._offer(*self._former)
        delattr(torch_module, _NAME)

    @staticmethod
    def _offer(compile: Callable[..., Any], compile_: Callable[..., Any]) -> None:
        """What the program finds as `stator.compile` and `stator.compile_`."""
        vars(stator).update(compile=compile, compile_=compile_)

    # -- calls

    def _top_call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread or module._compiled_call_impl is not None:
            return self._plain(module, *args, **kwargs)
        site = self._site(type(module).__qualname__)
        site.modules.add(id(module))
        if site.too_many:
            return self._behind_the_door(site, module, module, None, args, kwargs)
        known = self._compiled.get(id(module))
        if known is None:
            known = self._compiled[id(module)] = module, self._inside(self._module, module)
        return self._behind_the_door(site, module, known[1], known[1].stator, args, kwargs)

    def _inside(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call something with torch's own code in the door."""
        _DOOR.__code__ = self._original
        try:
            return function(*args)
        finally:
            _DOOR.__code__ = _detour.__code__

    def _module(self, module: Any) -> Any:
        settings = self._settings.get(id(module), {})
        backend = self._backend or settings.get("backend", DEFAULT)
        compiled = stator_compile(module, **{**_at_once(settings), "backend": backend})
        self.handles.append(compiled.stator)
        return compiled

    def _behind_the_door(
        self, site: TopCallSite, plain: Any, compiled: Any, handle: Any, args: Any, kwargs: Any
    ) -> Any:
        shapes = (torch.is_grad_enabled(), getattr(plain, "training", None), _shapes(args), _shapes(kwargs))
        times = site.by_shapes.setdefault(shapes, Times())
        times.calls += 1
        turn = handle is None or (times.calls > 2 and times.calls % 2 == 1)
        recordings = 0 if handle is None else handle.recordings
        closely = times.calls % EVERY == 2
        synchronise()
        start = self._clock()
        with self._timing() if closely else contextlib.nullcontext():
            result = self._inside(functools.partial(plain if turn else compiled, *args, **kwargs))
        synchronise()
        spent = self._clock() - start
        if site.calls == 1:
            site.first = spent
        if turn:
            times.plain.append(spent)
        elif handle.recordings != recordings:
            site.recording += spent
        elif not closely:  # nor would the second call count otherwise: it makes guards in C
            times.compiled.append(spent)
        return result

    def _site(self, name: str) -> TopCallSite:
        """The line of the program that calls."""
        frame = sys._getframe(1)
        while frame.f_back is not None and (frame.f_code.co_filename.startswith((*_OWN, "<stator"))):
            frame = frame.f_back
        key = (frame.f_code.co_filename, frame.f_lineno, name)
        return self.sites.setdefault(key, TopCallSite(*key))

    # -- what the program compiles by itself

    def _compile(self, fn: Any = None, **settings: Any) -> Any:
        """`stator.compile`, for the program: modules are compiled where they are called, functions are timed."""
        if fn is None:
            return functools.partial(self._compile, **settings)
        if isinstance(fn, torch.nn.Module):
            self._settings[id(fn)] = settings
            return fn
        compiled = stator_compile(fn, **{**_at_once(settings), **({"backend": self._backend} if self._backend else {})})
        handle = getattr(compiled, "stator", None)
        if handle is None:
            return compiled
        self.handles.append(handle)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread or _DOOR.__code__ is self._original:  # inside of a top call
                return compiled(*args, **kwargs)
            site = self._site(getattr(fn, "__qualname__", type(fn).__qualname__))
            return self._behind_the_door(site, fn, compiled, handle, args, kwargs)

        call.stator = handle  # type: ignore[attr-defined]
        return call

    def _compile_in_place(self, module: Any, **settings: Any) -> Any:
        self._settings[id(module)] = settings
        return module


def _at_once(settings: dict[str, Any]) -> dict[str, Any]:
    """Not in the background: calls that wait for it would be timed as compiled ones."""
    return {**settings, "options": {**(settings.get("options") or {}), "background_compile": False}}


def _shapes(value: Any) -> Any:
    """What tells calls apart that take different times: sizes and types of tensors, and the values of numbers."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.device, value.requires_grad
    if isinstance(value, (tuple, list)):
        return tuple(map(_shapes, value))
    if isinstance(value, dict):
        return tuple((str(key), _shapes(item)) for key, item in value.items())
    return value if isinstance(value, (int, float, str, bool, type(None))) else type(value)
