"""The end of a segment: what it adds up to, how to make its result, or its frames' state, again.

Enters: a segment whose run has returned, or is about to break. Leaves: the `Recording`. Effects are differences: what
the segment wrote is set again to what it was at the end. Fresh objects are described by what they are at the end.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import fx

from ...errors import BreakReason
from ...recording import (
    Construct,
    Effect,
    Exit,
    Fresh,
    Read,
    Recording,
    ValueRef,
)
from ...support.guard_readers import (
    share_foreign_memory,
    shared_storages,
)
from ...support.symbolic_exprs import Relation
from ..graph_break import BreakGraph
from ..objects.fingerprints import is_tensor
from ..segment import Segment
from ..symbols.symbolic_numbers import Symbols
from .rebuild import NOTHING, Rebuilder, has_finalizer
from .resume_points import Break
from .side_effects import EFFECTS


def at_return(segment: Segment, result: Any) -> Recording:
    """The recording of a run that returned `result`."""
    rebuild = Rebuilder(segment)
    segment.graph.close()
    return _recording(segment, rebuild, rebuild.ref(result))


def at_break(
    segment: Segment,
    here: Break,
    held: Iterable[Any],
    known: Callable[[types.FunctionType], types.FunctionType],
) -> Recording:
    """The recording of a run that is about to break. `held`: what its frames' variables hold and nobody else may.
    `known`: the function of the segment that stands for one of the program's."""
    rebuild = Rebuilder(segment)
    segment.graph.close()
    passed_on = {id(value) for state in here.states for value in state.values()}
    for value in held:
        if has_finalizer(type(value)):
            raise BreakGraph("rebuild", f"{type(value).__qualname__} has a finalizer")
        if id(value) not in passed_on and _is_looked_for(value):
            raise BreakGraph("rebuild", f"{type(value).__qualname__} has weak references, and nothing else reads it")
    owners = [known(frame.function) for frame in here.frames]
    functions = [rebuild.ref(function) if function.__closure__ else NOTHING for function in owners]
    states = [{name: rebuild.ref(value) for name, value in state.items()} for state in here.states]
    grad_mode = segment.graph.balance()
    recording = _recording(segment, rebuild, NOTHING)
    recording.exit = Exit(functions, states, here.step, here.resume_points, _read(here))
    recording.grad_mode = grad_mode
    return recording


def _read(here: Break) -> Read | None:
    """The step as a read of a tensor's value. Elsewhere than on the CPU torch may warn of that,
    and names the line of a frame."""
    if here.moves is None:
        return None
    method, tensor = here.frames[-1].values[-2:]
    if method is not torch.Tensor.item or type(tensor) is not torch.Tensor or tensor.device.type != "cpu":
        return None
    return Read(method, torch.Tensor, here.moves)


def _is_looked_for(value: Any) -> bool:
    """Can the program see that it dies? (Classes are in the tables of their bases; of tensors we have references.)"""
    if is_tensor(value) or issubclass(type(value), type):
        return False
    return weakref.getweakrefcount(value) > 0


def symbolic_part(segment: Segment) -> dict[str, Any]:
    """What a recording says of symbolic numbers."""
    symbols = segment.symbols
    if symbols is None:
        return {}
    return {
        "relations": symbols.relations(),
        "specialised": symbols.specialised,
        "symbolic": symbols.names(),
    }


class SymbolsAtWork(NamedTuple):
    """The `Assumptions` beside a recording. No tensor is in it, for they may outlive the program's."""

    symbols: Symbols
    nodes: list[fx.Node]

    def describe_nodes(self) -> None:
        if self.symbols.matter:
            self.symbols.tell(self.nodes)  # takes longer than all the rest

    def relations(self) -> list[Relation]:
        return self.symbols.relations()

    def violated(self) -> str | None:
        return self.symbols.violated()


def assumptions(segment: Segment) -> SymbolsAtWork | None:
    """What goes with a recording of this segment until its graph is compiled."""
    return None if segment.symbols is None else SymbolsAtWork(segment.symbols, segment.graph.operation_nodes())


def _recording(segment: Segment, rebuild: Rebuilder, result: ValueRef) -> Recording:
    tracer = segment.graph
    effects: list[Effect] = []
    for change in segment.ledger.changes.values():
        effects += EFFECTS[change.kind](change, rebuild)
    _check_late(rebuild.constructs, effects)
    outputs = len(tracer.outputs)
    checks = tracer.checking.conclude()  # they go by the places of operations, some of which move now
    early = tracer.early_inputs()
    graph = tracer.module(segment.name)
    if tracer.mutates and share_foreign_memory(tensor for _, tensor, _ in tracer.inputs):
        raise BreakGraph("unguardable", "a write to one of two tensors that share memory without torch's knowledge")
    return Recording(
        name=segment.name,
        origins=segment.ledger.origins,
        state=tracer.state,
        graph=graph,
        inputs=[origin.index for origin in (*(origin for origin, _, _ in tracer.inputs), *tracer.numbers())],
        example_inputs=tracer.example_inputs(),
        outputs=outputs,
        constructs=rebuild.constructs,
        effects=effects,
        result=result,
        distinct=_distinct(segment),
        storages=shared_storages(tensor for _, tensor, _ in tracer.inputs) if tracer.mutates else None,
        mutates=tracer.mutates,
        acts=tracer.acted,
        restores=[origin.index for origin, _, _ in tracer.inputs if origin.index in tracer.kept],
        unkept=[index for index in tracer.written_inputs() if index not in tracer.kept] if tracer.mutates else [],
        keeps_all=tracer.mutates and tracer.may_keep_all(),
        early=early,
        lock=segment.locks.origin,
        keeps_lock=segment.locks.held,
        checks=checks,
        operations=tracer.operations,
        prints=[(rebuild.refs(arguments), keywords) for arguments, keywords in segment.prints],
        probes=segment.watcher.events,
        shows_nodes=tracer.shows_nodes,
        **symbolic_part(segment),
    )


def _check_late(constructs: list[Construct], effects: list[Effect]) -> None:
    """What is made when all else is done cannot be a part of something else."""
    pending: list[Any] = [effect.value for effect in effects]
    for b in constructs:
        if not b.late:
            pending += [b.parts, [r for _, r in b.attributes], [r for _, r in b.slots]]
    while pending:
        ref = pending.pop()
        if isinstance(ref, Fresh) and constructs[ref.index].late:
            raise BreakGraph("rebuild", "an object that keeps an iterator of a dict or a set")
        if type(ref) in (list, tuple):
            pending.extend(ref)


def _distinct(segment: Segment) -> list[tuple[int, ...]]:
    """Groups of objects that were different ones, where that mattered: compared by identity, or one was changed."""
    groups: list[tuple[int, ...]] = []
    ledger = segment.ledger
    if len(ledger.identity_used) > 1:
        groups.append(tuple(sorted(ledger.identity_used)))
    members: dict[int, list[int]] = {id(type(change.target)): [] for change in ledger.changes.values()}
    for origin, value in ledger.known_objects() if members else ():
        if id(type(value)) in members:
            members[id(type(value))].append(origin.index)
    groups += [tuple(group) for group in members.values() if len(group) > 1]
    return groups


def plain(segment: Segment, reason: BreakReason | None, *, bare: bool) -> Recording:
    """What is known of a run that cannot be replayed."""
    return Recording(
        name=segment.name,
        origins=[] if bare else segment.ledger.origins,
        state=segment.tracer.state,
        graph=None,
        inputs=[],
        example_inputs=[],
        outputs=0,
        constructs=[],
        effects=[],
        result=NOTHING,
        distinct=[],
        storages=None,
        mutates=False,
        acts=False,
        restores=[],
        break_reason=reason,
        **({} if bare else symbolic_part(segment)),
    )
