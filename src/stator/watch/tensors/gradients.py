"""The backward pass inside of a recording: `torch.autograd.grad` and `backward` as nodes.

Their Python code is watched like any other, up to the call of torch's engine, which is a leaf. Enters: the engine's
arguments. In the watched run it runs for real; a node calls it in a replay (`support/graph_gradients.py`).

What holds: all that the engine runs was made by nodes of this recording and is C++, so a replay's graph of autograd is
this one. What it is going to read of leaves from outside is guarded: whether they require a gradient (with the tensors'
facts), what `grad` they have, that no hook is called. What it writes is known: a `grad` that is there is an operand
that the node writes to; a new one is a result of the node, and an effect if the leaf is from outside. All else breaks
the graph before the call.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from ..._native import AliasSet, TrackedTensor
from ...recording import Edge, Origin, describe
from ...support.gradient_hooks import HOOKS, has_gradient_hooks
from ...support.graph_gradients import accumulate, gradients
from ...support.guard_readers import torch_state
from ..graph_break import BreakGraph
from ..models import backward_nodes
from ..models.rules import read_again
from ..objects.containers import expose
from ..objects.fingerprints import PLAIN_TENSORS, fingerprint, is_tensor
from ..segment import Segment
from . import failing_ops
from .tensor_mode import TensorTracer

_C: Any = torch._C
_ARGUMENTS = ("outputs", "tangents", "retain", "create", "inputs", "unused", "accumulate_grad")
_ACCUMULATES: Any = _C._functions.AccumulateGrad
_STRIDED = torch.strided


class _Pass(NamedTuple):
    """A backward pass, found out about and not yet run."""

    arguments: dict[str, Any]
    leaves: list[Any]  # whose `grad` it is going to set, or to add to; none if it only gives gradients
    grads: list[Any]  # what they have
    operands: list[tuple[Any, TrackedTensor]]  # tensors of the graph that it is given
    written: list[tuple[Any, TrackedTensor]]  # those of the `grads` that are there
    may_fail: bool  # for other data


class Gradients:
    def __init__(self, s: Segment) -> None:
        self._segment = s

    def call(self, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
        """Torch calls its engine."""
        s = self._segment
        outputs, rest, named = slots
        tracer = s.tracer
        ready = None
        if tracer.active:
            try:
                with _C.DisableTorchFunction():
                    ready = self._take(tracer, function, _arguments(outputs, rest, named))
            except Exception as error:
                s.fail(error)
        try:
            with _C.DisableTorchFunction():
                result = s.watcher.call_leaf(function, (outputs, *rest), named)
        except Exception as error:
            if ready is not None and tracer.active:
                tracer.last_effect, tracer.passed = s.watcher.events, s.watcher.last_probe
                s.fail(BreakGraph("operation-raised", f"backward: {type(error).__name__}"))
            raise
        if ready is not None and tracer.active:
            try:
                with _C.DisableTorchFunction():
                    self._record(tracer, ready, result)
            except Exception as error:
                s.fail(error)
        return result

    # -- before

    def _take(self, tracer: TensorTracer, function: types.FunctionType, given: dict[str, Any]) -> _Pass:
        s = self._segment
        s.enter(function)
        if type(tracer) is not TensorTracer:
            raise BreakGraph("backward", "inside of a function transform")
        if torch.is_anomaly_enabled():
            raise BreakGraph("backward", "in anomaly mode")
        read_again(s, torch.is_anomaly_enabled, (), ())
        if _C._len_torch_dispatch_stack() or torch.is_inference_mode_enabled():
            raise BreakGraph("backward", "under a mode of torch")
        outputs, inputs = given["outputs"], given["inputs"]
        for container in (outputs, given["tangents"], inputs):
            origin = s.ledger.find(container)
            if origin is not None:  # behind a break in torch's code that is to call the engine
                expose(s.ledger, origin, container)
        if not all(is_tensor(value) for value in (*outputs, *inputs)):
            raise BreakGraph("backward", "from or to an edge of the graph of autograd")
        if tracer.regions.any:  # in one graph with its backward, nothing would be kept less or computed again
            raise BreakGraph("backward", "behind a checkpointed region")
        if torch_state() != tracer.expected:
            raise BreakGraph("state-changed")
        operands: list[tuple[Any, TrackedTensor]] = []
        for tensor in (*outputs, *given["tangents"], *inputs):
            if tensor is not None:
                operands.append((tensor, tracer.lookup(tensor)))
        entered = self.entered()
        if entered is not None:
            raise entered
        leaves, may_fail = self._leaves(outputs, inputs)
        for leaf in leaves:
            self._refuse_hooks(leaf)
        if not given["accumulate_grad"]:
            leaves = []
        elif inputs:  # without a name all leaves are meant: of those named none may be left out
            leaves = [*{id(tensor): tensor for tensor in inputs}.values()]
        if given["accumulate_grad"] and not all(tensor.is_leaf for tensor in inputs):
            raise BreakGraph("backward", "to a tensor that is no leaf")
        grads = [self._grad_of(tracer, leaf) for leaf in leaves]
        written = [(grad, tracer.lookup(grad)) for grad in grads if grad is not None]
        for leaf in leaves:
            operands.append((leaf, tracer.lookup(leaf)))
        if may_fail:
            failing_ops.prepare_late(tracer, "backward", written, bool(written))
        return _Pass(given, leaves, grads, operands, written, may_fail)

    def entered(self) -> BreakGraph | None:
        """A graph of autograd that was there before may be another one in the next call: why there can be no pass."""
        for origin, _, facts in self._segment.graph.inputs:
            if facts.requires_grad and not facts.is_leaf:
                return BreakGraph("backward", f"{describe(origin)} was computed outside")
        return None

    def _leaves(self, outputs: Iterable[Any], inputs: Iterable[Any]) -> tuple[list[Any], bool]:
        """The leaves that the pass reaches, of those named if there are such, in the order in which they are found; and
        may it fail for other data?"""
        named = {id(tensor) for tensor in inputs}
        found: dict[int, Any] = {}
        seen: set[Any] = set()
        kinds: set[str] = set()
        pending: list[Any] = []
        for output in outputs:
            if output.grad_fn is not None:
                pending.append(output.grad_fn)
            elif output.requires_grad:
                found[id(output)] = output
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if isinstance(node, _ACCUMULATES):
                found.setdefault(id(node.variable), node.variable)
                continue
            if isinstance(node, _C._FunctionBase):
                raise BreakGraph("autograd-function", f"{type(node).__name__}, in a backward pass")
            if getattr(node, "_saved_sparse", False) is True:
                raise BreakGraph("backward", "sparse gradients")
            kinds.add(type(node).__name__)
            pending += [edge for edge, _ in reversed(node.next_functions) if edge is not None]
        leaves = [leaf for key, leaf in found.items() if not named or key in named]
        return leaves, any(map(backward_nodes.may_fail, kinds))

    def _refuse_hooks(self, leaf: Any) -> None:
        ledger = self._segment.ledger
        origin = ledger.find(leaf)
        if has_gradient_hooks(leaf):
            raise BreakGraph("backward-hooks", "of a leaf" if origin is None else f"of {describe(origin)}")
        if origin is not None:
            ledger.read(origin, Edge.SLOT, HOOKS, False)

    def _grad_of(self, tracer: TensorTracer, leaf: Any) -> Any:
        """The `grad` of a leaf as the pass is going to find it; guarded, if the leaf is from outside."""
        ledger = self._segment.ledger
        origin: Origin | None = ledger.find(leaf)
        grad = leaf.grad
        if origin is not None and ledger.changed(leaf) is None:
            ledger.read(origin, Edge.ATTR, "grad", grad)
        if origin is None and grad is not None and id(grad) not in tracer.known:
            raise BreakGraph("unknown-tensor")
        if grad is not None and (type(grad) not in PLAIN_TENSORS or grad.layout is not _STRIDED or grad.requires_grad):
            raise BreakGraph("backward", "to a gradient that is sparse, or requires a gradient itself")
        return grad

    # -- after

    def _record(self, tracer: TensorTracer, step: _Pass, result: Any) -> None:
        s, given = self._segment, step.arguments
        tracer.last_effect = s.watcher.events
        tracer.passed = s.watcher.last_probe
        tracer.operations += 1
        tracer.refresh(step.written, False)
        if step.may_fail and tracer.mutates:
            tracer.keep(own=True)
        nodes = [self._nodes(tracer, given[name]) for name in ("outputs", "tangents")]
        flags = bool(given["retain"]), bool(given["create"])
        if not given["accumulate_grad"]:
            inputs = self._nodes(tracer, given["inputs"])
            arguments = (*nodes, inputs, *flags, bool(given["unused"]))
            node = tracer.node("call_function", gradients, arguments, {}, "grad")
            self._register(tracer, node, list(result), inputs, step.operands)
            return
        grads = [leaf.grad for leaf in step.leaves]
        made = [place for place, grad in enumerate(grads) if grad is not step.grads[place]]
        leaves = self._nodes(tracer, step.leaves)
        origins = [s.ledger.find(leaf) for leaf in step.leaves]
        own = [place for place, origin in enumerate(origins) if origin is None]
        former = self._nodes(tracer, step.grads)
        arguments = (*nodes, leaves, former, made, own, *flags, bool(given["inputs"]))
        node = tracer.node("call_function", accumulate, arguments, {}, "backward")
        for place in made:
            origin = origins[place]
            if origin is not None:
                s.ledger.change("grad", origin, step.leaves[place])
        new = [grads[place] for place in made]
        self._register(tracer, node, new, [leaves[place] for place in made], [*step.operands, *step.written])

    @staticmethod
    def _nodes(tracer: TensorTracer, tensors: Iterable[Any]) -> list[Any]:
        return [None if tensor is None else tracer.node_of(tracer.lookup(tensor)) for tensor in tensors]

    def _register(
        self,
        tracer: TensorTracer,
        node: Any,
        results: list[Any],
        like: list[Any],
        operands: list[tuple[Any, TrackedTensor]],
    ) -> None:
        """The gradients become known. `like`: the nodes whose sizes they have."""
        symbols = self._segment.symbols
        if symbols is not None:
            given = zip(results, like, strict=True)
            # Those that leaves get have strides by a rule of torch's.
            strides = [grad.stride() for grad in results] if node.target is accumulate else None
            symbols.run_gradients(node, [None if grad is None else other for grad, other in given], strides)
        known = list(operands)
        for place, grad in enumerate(results):
            if grad is None:
                continue
            if id(grad) not in tracer.known:
                if type(grad) not in PLAIN_TENSORS or grad.layout is not _STRIDED:
                    raise BreakGraph("backward", "sparse gradients")
                tracer.enter(grad, node, (place,), known)
                self._join(tracer, grad, known)
            known.append((grad, tracer.known[id(grad)]))

    @staticmethod
    def _join(tracer: TensorTracer, grad: Any, others: list[tuple[Any, TrackedTensor]]) -> None:
        """Gradients may be parts of one piece of memory, and then share a version counter."""
        entry = tracer.known[id(grad)]
        storage = grad.untyped_storage()._cdata
        alias_set: AliasSet = entry.alias_set
        for other, known in others:
            if other.layout is _STRIDED and other.untyped_storage()._cdata == storage:
                same = known.alias_set.version == entry.print[0]
                alias_set = known.alias_set if same else AliasSet(entry.print[0], outside=known.alias_set.outside)
                break
        if alias_set is not entry.alias_set:
            joined = TrackedTensor(entry.node, entry.index, alias_set, fingerprint(grad))
            joined.reference = entry.reference
            tracer.known[id(grad)] = joined


def _arguments(outputs: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    given = {**dict(zip(_ARGUMENTS, (outputs, *rest), strict=False)), **named}
    given.setdefault("unused", given.pop("allow_unreachable", False))
    flags = [given.get(name) for name in ("retain", "create", "unused", "accumulate_grad")]
    if given.keys() != set(_ARGUMENTS) or not all(type(flag) is bool for flag in flags):
        raise BreakGraph("backward", "another call of torch's engine")
    return given
