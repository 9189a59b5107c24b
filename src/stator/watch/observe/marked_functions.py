"""Functions that the program has marked: they are not looked into.

`allow_in_graph`: one node of the graph, which calls the function. `assume_constant_result`: its result is a constant.
The marks of torch's own compiler count as ours. Enters: the first frame of such a function in a recording. Leaves: its
result, known to the recording. Nothing that the function reads is guarded: that is what the program has promised.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from ..._native import TrackedTensor
from ...support.by_identity import Alive
from ..graph_break import BreakGraph
from ..models.reads import consult_deep
from ..objects.constants import is_constant
from ..objects.fingerprints import is_tensor
from ..segment import Segment

_allowed: Alive[types.FunctionType] = Alive()
_CONSTANT = "_dynamo_marked_constant"  # torch's name for it


def _check(fn: Any, name: str) -> None:
    if not isinstance(fn, types.FunctionType):
        raise TypeError(f"stator.{name} takes a Python function, not {fn!r}")


def allow_in_graph(fn: Any) -> Any:
    """Calls of this function are single nodes of a graph: it is not looked into. It must compute with the tensors that
    it is given and with nothing that changes."""
    _check(fn, "allow_in_graph")
    _allowed.add(fn)
    return fn


def assume_constant_result(fn: Any) -> Any:
    """This function always gives the same result: it is called when a recording is made, and not in replays."""
    _check(fn, "assume_constant_result")
    setattr(fn, _CONSTANT, True)
    return fn


def is_marked(function: types.FunctionType) -> bool:
    return _is_constant(function) or _is_allowed(function)


def _is_constant(function: types.FunctionType) -> bool:
    return getattr(function, _CONSTANT, False) is True


def _is_allowed(function: types.FunctionType) -> bool:
    if function in _allowed:
        return True
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and id(function) in rules._allowed_callable_ids


def call(s: Segment, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
    """Run a marked function, unwatched, and note what it gives."""
    tracer = s.tracer
    args, kwargs = _arguments(function.__code__, slots)
    ready = None
    if tracer.active:
        try:
            with torch._C.DisableTorchFunction():
                ready = _Node(s, function, args, kwargs) if _is_allowed(function) else None
        except Exception as error:
            s.fail(error)
    was, tracer.active, tracer.in_operator = tracer.active, False, True
    try:
        result = s.watcher.call_leaf(function, args, kwargs)
    finally:
        tracer.in_operator = False
        if was and s.tracer is tracer:
            tracer.active = True
    if was and tracer.active:
        try:
            with torch._C.DisableTorchFunction():
                if ready is None:
                    _note_constant(s, result)
                else:
                    ready.note(result)
        except Exception as error:
            s.fail(error)
    return result


def _arguments(code: types.CodeType, slots: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    count, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    kwargs = dict(zip(code.co_varnames[count:named], slots[count:named], strict=True))
    rest = list(slots[named:])
    more = rest.pop(0) if code.co_flags & 0x04 else ()
    return (*slots[:count], *more), {**kwargs, **(rest[0] if code.co_flags & 0x08 else {})}


def _note_constant(s: Segment, result: Any) -> None:
    if not is_constant(result) and s.ledger.find(result) is None:
        s.ledger.constant(result)


class _Node:
    """A call that becomes a node: what it is given, and what it gives."""

    def __init__(self, s: Segment, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tracer = s.tracer
        self._function = function
        s.fix_sizes("a function that is allowed in the graph")
        for value in (*args, *kwargs.values()):
            consult_deep(s, value)
        self._operands: list[tuple[Any, TrackedTensor]] = []
        argument = self._tracer.argument
        self._args = tuple([argument(value, self._operands) for value in args])
        self._kwargs = {name: argument(value, self._operands) for name, value in kwargs.items()}
        self._watcher = s.watcher

    def note(self, result: Any) -> None:
        tracer = self._tracer
        for part in result if type(result) in (tuple, list) else (result,):
            if not is_tensor(part) and not is_constant(part):
                raise BreakGraph(
                    "unsupported-argument", f"{self._function.__name__}, which gives a {type(part).__qualname__}"
                )
        tracer.refresh(self._operands, False)
        if tracer.mutates:
            tracer.keep(own=True)
        tracer.operations += 1
        tracer.last_effect = self._watcher.events
        node = tracer.node("call_function", self._function, self._args, self._kwargs, self._function.__name__)
        tracer._register(result, node, self._operands)
