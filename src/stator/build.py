"""From a recording to something that can be called: backend, guards, replay."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _native, events, reporting
from .backends import eager
from .backends.registry import Backend, is_ours
from .errors import BackendError, SpecializationError
from .interrupts import let_through
from .options import View
from .recording import Assumptions, Recording
from .replay.cache import Entry
from .replay.emit import emit, wanted_origins
from .replay.engine import compile_guards
from .replay.graph import restoring
from .replay.guards import EntryGuards
from .replay.runtime_asserts import checking
from .support.guard_readers import STATE_NAMES, WRITES, draws_numbers
from .support.symbolic_exprs import symbols_in_words
from .verify import Subject, reference, verifying

_DTYPE = STATE_NAMES.index("default dtype")


def build(
    recording: Recording,
    assumptions: Assumptions | None,
    name: str,
    backend: tuple[str, Backend],
    settings: View,
    number: int,
) -> Entry:
    """The entry for the cache. The backend is called; what it assumed of sizes is guarded, too. `number`: of the graph,
    among those of the function `name`.
    """
    if settings.verify:
        recording.validate()
    wanted = wanted_origins(recording)
    compiled: Callable[..., Any] | None = None
    restores = tuple(wanted.index(origin) for origin in recording.restores)
    unkept = tuple(wanted.index(origin) for origin in recording.unkept)
    partly = False
    if not recording.plain and recording.graph is not None:
        captured = reference(recording.graph) if settings.verify else None
        random = draws_numbers(recording.graph.graph)  # asked before a backend changes it
        compiled = _compile(recording, assumptions, name, backend, settings, number)
        if getattr(compiled, "writes_last", False):
            restores = ()
        elif isinstance(compiled, _native.Tape) and any(WRITES in node.meta for node in recording.graph.graph.nodes):
            partly = bool(restores)
        elif restores or recording.keeps_all:  # who knows when a graph that is run in another way writes
            restores += unkept
        compiled = restoring(compiled, recording.graph, random)
        if captured is not None:
            compiled = verifying(compiled, captured, Subject(name, backend, settings.debug_dir))
        if recording.checks is not None:
            compiled = checking(compiled, recording.checks)
    if assumptions is not None:
        _take(assumptions, recording)
    early = tuple(wanted.index(origin) for origin in recording.early)
    guards = EntryGuards(recording, wanted, compile_guards)
    entry = Entry(recording.name, guards, None, recording.mutates, restores, partly, recording.acts, early)
    entry.lock = None if recording.lock is None else wanted.index(recording.lock)
    entry.keeps_lock = recording.keeps_lock
    entry.break_reason = recording.break_reason
    entry.symbolic, entry.specialised = symbols_in_words(recording)
    if recording.plain:
        return entry
    entry.graph = recording.graph
    entry.replay, entry.step, entry.replay_source = emit(recording, wanted, compiled)
    entry.number = number if compiled is not None else 0
    if entry.step is not None:
        entry.step.idle = compiled is None or _is_of_numbers(recording)
    return entry


def _is_of_numbers(recording: Recording) -> bool:
    """Does the graph compute with numbers alone?"""
    assert recording.graph is not None
    targets = [node.target for node in recording.graph.graph.nodes if node.op not in ("placeholder", "output")]
    homes = {str(getattr(target, "__module__", "")).split(".")[0] for target in targets}
    return homes <= _OF_NUMBERS and not any(isinstance(value, torch.Tensor) for value in recording.example_inputs)


_OF_NUMBERS = {"_operator", "math", "builtins", "stator"}  # modules of what takes no tensor, unless it is given one


def _take(assumptions: Assumptions, recording: Recording) -> None:
    recording.relations = assumptions.relations()
    broken = assumptions.violated()
    if broken is not None:
        raise SpecializationError(recording.name, broken)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    former = torch.get_default_dtype()
    if dtype is former:  # the usual case; it is one for all threads
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(former)


def _compile(
    recording: Recording,
    assumptions: Assumptions | None,
    name: str,
    backend: tuple[str, Backend],
    settings: View,
    number: int,
) -> Callable[..., Any]:
    assert recording.graph is not None
    recording.graph.meta["label"] = reporting.label(name, number)
    recording.graph.meta["native_random"] = settings.native_random and not settings.verify
    recording.graph.meta["frozen_weights"] = settings.frozen_weights
    recording.graph.meta["cuda_graphs"] = settings.cuda_graphs
    if events.listening(events.GraphCaptured):
        events.emit(reporting.captured(name, number, recording))
    start = time.perf_counter()
    depth = sys.getrecursionlimit()
    try:
        if assumptions is not None and not is_ours(backend[1]):
            assumptions.describe_nodes()
        # As it is where the graph will run: the program may have set it otherwise since.
        with torch.set_grad_enabled(recording.state[0]), _default_dtype(recording.state[_DTYPE]):
            compile_graph = eager.compile_graph if recording.shows_nodes and is_ours(backend[1]) else backend[1]
            compiled = compile_graph(recording.graph, recording.example_inputs)
        if not callable(compiled):
            raise TypeError(f"the backend gave back {compiled!r}, which is not callable")
    except Exception as error:
        let_through(error)
        text = f"{recording.graph.print_readable(print_output=False)}\n{type(error).__name__}: {error}\n"
        raise BackendError(backend[0], error, reporting.save(text, "graph", settings.debug_dir)) from error
    finally:
        if sys.getrecursionlimit() != depth:  # it is the program's, and some programs read it
            sys.setrecursionlimit(depth)
    spent = time.perf_counter() - start
    events.emit(reporting.compiled(name, backend[0], spent, number, recording.graph, compiled))
    return compiled
