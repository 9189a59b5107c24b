"""`torch.utils.checkpoint` in a traced function: the region runs once, and its nodes are marked as to be recomputed.

Eager runs the region again in the backward. In a joint graph that is for the cut to do, which reads the marks
`recompute` and `checkpoint_region` of the nodes; so random numbers are drawn once.
While a function is traced, two names of torch's module lead here; in other threads they lead on to torch.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.checkpoint as torchs
from torch import fx
from torch._ops import OpOverload

from .traced_graph import Policy, TracedGraph

MUST_RECOMPUTE = torchs.CheckpointPolicy.MUST_RECOMPUTE
_tracing = threading.local()
_lock = threading.RLock()
_users = 0
_numbers = itertools.count(1)
_module: Any = torchs
_without_reentry: Callable[..., Iterator[None]] = _module._checkpoint_without_reentrant_generator
_Reentrant: Any = _module.CheckpointFunction


@contextlib.contextmanager
def honoured(traced: TracedGraph) -> Iterator[None]:
    """Checkpointed calls in this thread become marks on the traced graph's nodes."""
    global _users
    former = getattr(_tracing, "traced", None)
    with _lock:
        _users += 1
        _module._checkpoint_without_reentrant_generator, _module.CheckpointFunction = _generator, _Function
    _tracing.traced = traced
    try:
        yield
    finally:
        _tracing.traced = former
        with _lock:
            _users -= 1
            if not _users:
                _module._checkpoint_without_reentrant_generator = _without_reentry
                _module.CheckpointFunction = _Reentrant


@contextlib.contextmanager
def _region(traced: TracedGraph, policy: Policy) -> Iterator[None]:
    former = traced.policy, traced.region
    if traced.policy is None:  # the outermost call decides what is kept
        traced.policy, traced.region = policy, next(_numbers)
    try:
        yield
    finally:
        traced.policy, traced.region = former


def _generator(fn: Any, preserve: bool, context_fn: Any, check: str, debug: bool, early_stop: bool, *args: Any,
               **kwargs: Any) -> Iterator[None]:  # fmt: skip
    """In place of torch's generator, which checkpoint() runs around the call."""
    traced = getattr(_tracing, "traced", None)
    if traced is None:
        yield from _without_reentry(fn, preserve, context_fn, check, debug, early_stop, *args, **kwargs)
        return
    with _region(traced, _policy_of(context_fn)):
        yield


class _Function:
    """In place of torch's autograd function for reentrant checkpoints."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        traced = getattr(_tracing, "traced", None)
        if traced is None:
            return _Reentrant.apply(function, preserve, *args)
        with _region(traced, MUST_RECOMPUTE):
            return function(*args)


class PoliciesOfNodes:
    """What the nodes of a captured graph say of checkpointed calls that they were recorded in."""

    def __init__(self) -> None:
        self._by_region: dict[int, Policy] = {}

    def of(self, node: fx.Node) -> tuple[Policy, Any]:
        """Policy and region: written in the node as such, or to be had from the call's `context_fn`."""
        if "checkpoint" not in node.meta:
            return node.meta.get("recompute"), node.meta.get("checkpoint_region")
        region, context_fn = node.meta["checkpoint"]
        if region not in self._by_region:
            self._by_region[region] = _policy_of(context_fn)
        return self._by_region[region], region


def _policy_of(context_fn: Callable[[], tuple[Any, Any]]) -> Policy:
    """What a selective checkpoint wants of each operator; everything is recomputed if it is not selective."""
    if context_fn is torchs.noop_context_fn:
        return MUST_RECOMPUTE
    choose = getattr(context_fn()[0], "policy_fn", None)
    if choose is None:
        return MUST_RECOMPUTE

    def policy(op: Any, args: Any, kwargs: Any, result: Any) -> Any:
        if not isinstance(op, OpOverload) or op in torchs.SAC_IGNORED_OPS:
            return None
        context = torchs.SelectiveCheckpointContext(is_recompute=False)
        context.op_output = result  # torch 2.13 takes it as an argument, 2.11 does not know it
        return choose(context, op, *args, **kwargs)

    return policy
