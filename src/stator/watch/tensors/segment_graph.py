"""The tensors and nodes of one segment: inputs, results, what was written, and what the graph is at its end.

Enters: outside tensors, by origin. Leaves: a `torch.fx.Graph` whose inputs they are, and which of them it writes to.
Two nets fail closed: a tensor that is neither outside nor made by a node, and global state that changed without one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad

from ... import _native
from ..._native import AliasSet, TrackedTensor
from ...recording import Fact, Origin, TensorFacts
from ...support.graph_modules import LazyGraph
from ...support.guard_readers import (
    FORWARD_LEVEL,
    MODE_COUNT,
    SIZES,
    WRITES,
    autocast_state,
    shared_storages,
    tensor_facts,
    torch_state,
)
from ...support.literals import one_line
from ..graph_break import BreakGraph
from ..objects.fingerprints import PLAIN_TENSORS, fingerprint
from ..objects.run_context import RunContext
from ..symbols.hoist_asserts import move_early
from ..symbols.runtime_asserts import Checking
from ..symbols.symbolic_numbers import Symbols
from .nodes import Nodes, is_reshaped_by

_C: Any = torch._C
# The parts of `torch_state` that can be asked for alone and answer with the same object as long as nothing changes.
STATE_READERS: tuple[Any, ...] = (
    _C.is_grad_enabled,
    _C._get_tracing_state,
    _C.is_inference_mode_enabled,
    _C.get_default_dtype,
    _C._len_torch_function_stack,
    _C._len_torch_dispatch_stack,
    _C._functorch.maybe_current_level,
    functools.partial(_C._autograd._top_saved_tensors_default_hooks, False),
    _C._is_any_autocast_enabled,
)


class SegmentGraph(_native.Tracer):
    """What C code does not do itself: inputs, outputs, torch's state, the end."""

    def __init__(
        self, context: RunContext, state: tuple[Any, ...], nodes: Nodes, symbols: Symbols | None, *, inside: bool
    ) -> None:
        """`inside`: the nodes are those of a leaf's inside, before which nothing can be checked."""
        self._nodes = nodes
        self._leaves: list[torch.nn.Module] = []
        make_graph = functools.partial(getattr, self._nodes, "graph")
        super().__init__(context.watcher, context.ledger, make_graph, self._nodes.operations, state)
        self._context = context
        self._ledger = context.ledger
        self.regions = self._nodes.regions
        self._outside_alias_sets: dict[int, AliasSet] = {}  # by identity of the base
        self.inputs: list[tuple[Origin, Any, TensorFacts]] = []
        self.outputs: list[fx.Node] = []
        self._output_index: dict[fx.Node, int] = {}
        self.state = state
        self.autocast = autocast_state()  # its settings, be it on or off
        self.in_operator = False  # a body that is not torch's is at work
        self.passed: _native.Probe | None = None  # the instruction that has run a backward pass
        self.shows_nodes = False  # was autograd's node of a result looked at?
        self._symbols = symbols
        self.kept: set[int] = set()  # origins of inputs that are written before something that may fail, or by it
        self._kept_up_to = 0  # what operations before this place write is among these
        self.checking = Checking(self._nodes, self.writers)
        self._inside = inside

    @property
    def hoists(self) -> bool:
        """Can checks with plain numbers come before the graph?"""
        return self._symbols is None and not self._inside

    @property
    def most_kept(self) -> int:
        return self._context.most_kept

    def begin(self) -> None:
        """The mode has been pushed: from here on the state changes only through nodes."""
        self.active = True
        self.expect_state()

    def node_of(self, known: TrackedTensor) -> fx.Node:
        """The node that is this tensor; items of a tuple result get theirs when first used."""
        for index in known.index:
            known.node = self._nodes.operation("call_function", operator.getitem, (known.node, index), {}, "getitem")
        known.index = ()
        node: fx.Node = known.node
        return node

    def is_scalar(self, value: Any) -> bool:
        return id(value) in self.scalars

    def scalar_output(self, value: Any) -> int | None:
        """The number of the graph output which is this number; None if it is no node of the graph."""
        found = self.scalars.get(id(value)) if self.scalars else None
        return None if found is None else self._output_number(found[1])

    # -- inputs

    def _input(self, tensor: Any) -> TrackedTensor:
        origin = self._ledger.find(tensor)
        if origin is None:
            raise BreakGraph("unknown-tensor")
        if type(tensor) not in PLAIN_TENSORS:
            raise BreakGraph("tensor-subclass", type(tensor).__name__)
        if tensor.is_nested:
            raise BreakGraph("tensor-subclass", "a nested tensor")
        if _C._functorch.is_functorch_wrapped_tensor(tensor):  # it has no memory of its own
            raise BreakGraph("functorch", "a transform of functions")
        facts = tensor_facts(tensor, _native.tensor_keys(tensor))
        node = self._nodes.input(origin)
        self._ledger.check(origin, Fact.TENSOR, self._general(facts, node, origin, tensor))
        self.inputs.append((origin, tensor, facts))
        found = fingerprint(tensor)
        written = self._ledger.fingerprints.compare(tensor, found, self._alias_sets())
        known = TrackedTensor(node, (), written or self._family_of_input(tensor, found[0]), found)
        self.known[id(tensor)] = known
        return known

    def _alias_sets(self) -> Iterator[tuple[Any, AliasSet]]:
        """The inputs so far, but for those that died, each with the tensors that it shares a version counter with."""
        for _, tensor, _ in self.inputs:
            known = self.known.get(id(tensor))
            if known is not None:
                yield tensor, known.alias_set

    def _general(self, facts: TensorFacts, node: fx.Node, origin: Origin, tensor: Any) -> TensorFacts:
        """The facts of an input, without the sizes and strides that are symbols."""
        if self._symbols is None:
            return facts
        fixed = self._symbols.enter_input(node, tensor, origin)
        return facts._replace(size=fixed[0], stride=fixed[1])

    def _family_of_input(self, tensor: Any, version: int | None) -> AliasSet:
        base = tensor._base
        key = id(tensor if base is None else base)
        alias_set = self._outside_alias_sets.get(key)
        if alias_set is None:
            alias_set = self._outside_alias_sets[key] = AliasSet(version, outside=True)
        return alias_set

    # -- state

    def _check_state(self) -> None:
        found = _native.answers(STATE_READERS)
        if found == self.answers and forward_ad._current_level == self.expected[FORWARD_LEVEL]:
            return
        if self._read_state_under_mode() != self.expected:
            raise BreakGraph("state-changed")
        self.answers = None if found[-1] else found  # autocast has settings of its own

    def _read_state_under_mode(self) -> tuple[Any, ...]:
        """Inside `__torch_function__` the mode itself is off the stack: count it in."""
        state = torch_state()
        return (*state[:MODE_COUNT], state[MODE_COUNT] + 1, *state[MODE_COUNT + 1 :])

    def expect_state(self) -> None:
        """The state is as it should be: at the beginning, or after a leaf that changed it on purpose."""
        self.expected, self.answers = torch_state(), None

    # -- the end

    def written_inputs(self) -> list[int]:
        """The origins of inputs that the graph writes to."""
        known = self.known
        return [
            o.index for o, t, _ in self.inputs if known[id(t)].alias_set.epoch or known[id(t)].alias_set.version is None
        ]

    def written_tensors(self) -> list[Any]:
        """Those inputs."""
        written = set(self.written_inputs())
        return [tensor for origin, tensor, _ in self.inputs if origin.index in written]

    @property
    def risky(self) -> bool:
        """May something fail after a write to an input?"""
        return bool(self.kept)

    def keep(self, written: Sequence[Any] = (), *, own: bool = False, most: int | None = None) -> bool:
        """What was written so far is going to be kept, and what the next operation writes to; it may fail. False: that
        would be more than `most` bytes. `own`: that operation writes."""
        kept, self.fails = self.kept, True
        if self.mutates or written:
            sets = {id(self.known[id(tensor)].alias_set) for tensor in written}
            beside = {o.index for o, t, _ in self.inputs if id(self.known[id(t)].alias_set) in sets}
            kept = kept | beside | {*self.written_inputs()}
        if most is not None and sum(t.numel() * t.element_size() for o, t, _ in self.inputs if o.index in kept) > most:
            return False
        self.kept, self._kept_up_to = kept, len(self._nodes.operations) + own
        return True

    def may_keep_all(self) -> bool:
        """Where nobody knows when a graph writes: is all that it writes to little enough?"""
        return self.fails and sum(t.numel() * t.element_size() for t in self.written_tensors()) <= self.most_kept

    def unkept_writers(self) -> list[int]:
        """The places of operations that write behind the last one that may fail."""
        begin = max(self._kept_up_to, self.mutates_from)
        return [place for place in self.writers if place >= begin] if self.mutates else []

    def counts_no_write(self, tensor: Any) -> bool:
        """Has torch counted no write to this input?"""
        return self._ledger.fingerprints.counts_no_write(tensor)

    def early_inputs(self) -> list[int]:
        """What may fail for other numbers comes first: the origins of inputs that are written before it is through."""
        symbols = self._symbols
        self._mark_writers()
        if symbols is None or not symbols.failing or not self.mutates:
            return []
        inputs = [self.known[id(tensor)].node for _, tensor, _ in self.inputs]
        groups = shared_storages(tensor for _, tensor, _ in self.inputs)
        aliases = [tuple(inputs[place] for place in group) for group in groups]
        numbers = symbols.numbers | symbols.nodes()
        differentiable = {node for (_, _, facts), node in zip(self.inputs, inputs, strict=True) if facts.requires_grad}
        early = None
        if not self.regions.any:
            early = move_early(self._nodes.operations, symbols.failing, numbers, aliases, differentiable)
        if early is None or self.kept:  # what may fail stands no more where it was recorded
            self.keep()
            self._mark_writers()
        if early is None:
            return []
        written = set(self.written_inputs())
        return [
            o.index for (o, _, _), node in zip(self.inputs, inputs, strict=True) if node in early and o.index in written
        ]

    def _mark_writers(self) -> None:
        operations = self._nodes.operations
        for place in self.writers:
            if place < len(operations):  # the last one may have ended the graph
                operations[place].meta.pop(WRITES, None)
        for place in self.unkept_writers():
            if place < len(operations):
                operations[place].meta[WRITES] = True

    def example_inputs(self) -> list[Any]:
        """The inputs as the graph got them: the real ones, unless the run changed what a backend would look at.

        (A tensor that nothing was written to is as it was: `close` has compared what can be changed without that.)
        Of a symbolic recording: tensors without data, with symbolic sizes.
        """
        if self._symbols is not None and self._symbols.matter:
            return self._symbols.examples(self._nodes.inputs)
        written = set(self.written_inputs())
        examples = [_example(t, facts) if origin.index in written else t for origin, t, facts in self.inputs]
        return examples if self._symbols is None else [*examples, *self._symbols.values()]

    def output(self, tensor: Any) -> int:
        """The number of the graph output which is this tensor."""
        with torch._C.DisableTorchFunction():
            known = self.known.get(id(tensor))
            if known is None:
                raise BreakGraph("unknown-tensor")
            self.lookup(tensor)
            node = self.node_of(known)
            if tensor.__dict__:
                raise BreakGraph("rebuild", "a tensor with attributes of its own")
        return self._output_number(node)

    def operation_nodes(self) -> list[fx.Node]:
        return self._nodes.operations

    def numbers(self) -> list[Origin]:
        """The origins of the inputs that are numbers; they come behind the tensors."""
        return [origin for origin, _ in self._symbols.inputs] if self._symbols is not None else []

    def number_output(self, node: fx.Node) -> int:
        return self._output_number(node)

    def _output_number(self, node: fx.Node) -> int:
        if node not in self._output_index:
            self._output_index[node] = len(self.outputs)
            self.outputs.append(node)
        return self._output_index[node]

    def close(self) -> None:
        """No operand may have changed behind the recorder's back, up to the end."""
        with torch._C.DisableTorchFunction():
            for _, tensor, _facts in self.inputs:
                self.lookup(tensor)
            self._ledger.fingerprints.verify(self.known, [*self._alias_sets()])

    def balance(self) -> bool | None:
        """Before a break: the graph is to leave torch's state as it found it. Gives the grad mode to be set after it.

        A backend may trace the graph, and would not see that it has changed the mode for what comes after it.
        """
        before, now = self.state[0], self.expected[0]
        if self.expected[1:MODE_COUNT] != self.state[1:MODE_COUNT] or self.expected[-1] != self.state[-1]:
            raise BreakGraph("state-changed", "a mode of torch is on")
        if now is before:
            return None
        self._nodes.operation("call_function", torch._C._set_grad_enabled, (before,), {}, "_set_grad_enabled")
        return bool(now)

    def module(self, name: str) -> fx.GraphModule | None:
        """The graph as a module; None if nothing was computed."""
        if self.operations == 0 and not self.outputs and not self._nodes.computes:
            return None
        if self._symbols is not None and self._symbols.matter:
            self._symbols.tell(self._nodes.inputs)
        self._note_sizes()
        # Lazy: the graph's Python is written when somebody runs or reads it.
        root = torch.nn.Module()
        for number, leaf in enumerate(self._leaves, 1):
            root.add_module(f"leaf_{number}", leaf)
        return LazyGraph(root, self._nodes.close(self.outputs), class_name=one_line(name))

    def _note_sizes(self) -> None:
        """The sizes that the program has asked for, in the nodes: up to the first write, or all if writes are undone.

        They follow from those of the inputs, or the model of an operation is wrong: so a replay compares them.
        """
        operations = self._nodes.operations
        end = min(self.unkept_writers(), default=len(operations))
        for node in operations[:end] if self.asked and self._symbols is None else ():
            if node in self.asked and not any(is_reshaped_by(user) for user in node.users):
                node.meta[SIZES] = tuple(self.asked[node])

    def release(self) -> None:
        """Weak references in the table know the table, and what is called by C code knows this."""
        del self.shapes
        self.known.clear()
        self.asked.clear()


def _example(tensor: Any, facts: TensorFacts) -> Any:
    if tensor_facts(tensor) == facts:
        return tensor
    example = torch.empty_strided(facts.size, facts.stride, dtype=facts.dtype, device=facts.device)
    return example.requires_grad_(facts.requires_grad)
