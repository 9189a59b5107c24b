"""A function under compilation: what is known of it from earlier calls, as data. The stages are in `pipeline.py`.

A function whose graph breaks is a program with *continuations*: programs too, each the rest of the function from one
resume point on.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from . import _native
from .backends.registry import Backend
from .calling import Given, hand_over
from .errors import BreakReason, break_reason
from .options import View
from .recording import ResumePoint
from .replay.backoff import Backoff
from .replay.cache import Cache, Entry
from .replay.guard_text import Miss
from .support.by_identity import ByIdentity
from .watch.models import other_compiler

Slots = tuple[Any, ...]
ChooseCallee = Callable[[types.FunctionType], Callable[[types.FunctionType, list[Any]], Any] | bool | None]


def slot_names(code: types.CodeType) -> tuple[str, ...]:
    """The argument slots of a code object, in the order of its local variables."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


class Plain:
    """A call is not compiled: it runs as plain Python."""

    __slots__ = ()


PLAIN = Plain()
LookupResult = tuple[Entry, Slots] | Plain | None


class _OfThread(threading.local):
    """What the calling thread has added to the counts: others count at the same time."""

    noted = 0


@dataclass(slots=True)
class Stats:
    """What has happened in the calls of a function, its continuations included."""

    count: _native.Count = field(default_factory=_native.Count)  # calls served by replays alone
    recordings: int = 0  # watched runs that gave an entry
    plain: int = 0  # calls of which a part ran as plain Python
    last_miss: Miss | None = None
    graphs: list[fx.GraphModule] = field(default_factory=list)
    break_reasons: list[BreakReason] = field(default_factory=list)
    passed: _native.Count = field(default_factory=_native.Count)  # plain calls that nobody looked at
    complained: bool = False  # a fault of ours was warned of
    failures: list[tuple[Program, BaseException]] = field(default_factory=list)  # in the background, not told yet
    here: _OfThread = field(default_factory=_OfThread)

    def add_recording(self) -> None:
        self.recordings += 1
        self.here.noted += 1

    def add_plain(self) -> None:
        self.plain += 1
        self.here.noted += 1

    def add_passed(self) -> None:
        self.passed.value += 1
        self.here.noted += 1

    @property
    def hits(self) -> int:
        return self.count.value

    @property
    def plain_calls(self) -> int:
        return self.plain + self.passed.value

    @property
    def calls(self) -> int:
        return self.hits + self.recordings + self.plain_calls


def _why_not(function: types.FunctionType) -> BreakReason | None:
    code = function.__code__
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return break_reason("coroutine-root", code, what=code.co_qualname)
    if code.co_flags & inspect.CO_GENERATOR:
        return break_reason("generator-root", code, what=code.co_qualname)
    if other_compiler.is_entry(code):
        return break_reason("other-compiler", code, what=function.__qualname__)
    return None


class Program:
    """One function and its recordings."""

    def __init__(
        self,
        function: types.FunctionType,
        call_plain: Callable[[types.FunctionType, Given], Any],
        *,
        name: str,
        backend: tuple[str, Backend],
        settings: View,
        fullgraph: bool,
        cache: Cache,
        start: Program | None = None,
        point: ResumePoint | None = None,
    ) -> None:
        """`start` and `point`: this is what follows `start` behind a break."""
        self.function = function
        self.name = name
        self.call_plain = call_plain
        self.backend = backend
        self.settings = settings
        self.fullgraph = fullgraph
        self.names = slot_names(function.__code__) if point is None else point.names
        self.cache = cache
        self.start = start or self
        self.point = point
        self.stats: Stats = start.stats if start is not None else Stats()
        self.continuations: dict[tuple[int, ...], Program] = {}
        # Of functions that are disabled, but not what they call.
        self.callees: ByIdentity[types.CodeType, Program] = ByIdentity()
        self.choose_callee: ChooseCallee | None = None  # what becomes of one
        self.transient = 0
        self.raised = 0
        self.warned = False
        self.backoff = Backoff()
        self.seen_plain = False  # a first call has run plain, as the stance wanted
        self.unwatchable = self.break_at_root = _why_not(function)

    def reset(self) -> None:
        """Forget every recording."""
        self.cache.clear()
        self.continuations = {}
        self.callees = ByIdentity()
        self.stats.last_miss = None
        self.stats.graphs.clear()
        self.stats.break_reasons.clear()
        self.stats.complained = False
        self.stats.failures.clear()
        self.transient = self.raised = 0
        self.warned = self.seen_plain = False
        self.backoff.reset()

    def continuation(self, point: ResumePoint) -> Program:
        """The program from `point` on."""
        found = self.continuations.get(point.key)
        if found is None:
            code, namespace = point.frames[0]
            found = self.continuations[point.key] = Program(
                types.FunctionType(code, namespace, code.co_name, None, self.function.__closure__),
                hand_over,
                name=self.name,
                backend=self.backend,
                settings=self.settings,
                fullgraph=self.fullgraph,
                cache=self.cache.continuation(point),
                start=self,
                point=point,
            )
        return found

    def give_up(self, reason_id: str) -> None:
        """This function is never to be watched."""
        self.unwatchable = self.break_at_root = break_reason(reason_id, None, what=self.name)
