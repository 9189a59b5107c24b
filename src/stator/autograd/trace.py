"""Tracing: a function of tensors becomes one graph of ATen operators, forward and backward together.

Enters: a function (or a torch-level `fx.GraphModule`) and example inputs. Leaves: a `Joint`: the graph, which is
pure, and a `Plan` of what the runtime must do around it. The function runs once, on stand-ins without data, under a
dispatch mode (`record.py`); then autograd runs its own formulas for the backward, under the same mode.

What holds: the graph's inputs are `primals_1…` and `tangents_1…`; its output is (forward results…, gradients of the
primals…).
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import CannotDerive
from ..interrupts import let_through
from ..support.graph_leaves import CustomFunction, OutsideRead
from ..support.graph_modules import LazyGraph
from ..support.guard_readers import SIZES, memory_of
from ..support.torch_modes import ModesKept
from . import backward_passes, custom_functions, meta_kernels
from .checkpoint import PoliciesOfNodes, honoured
from .choices import Choices, DeviceWanted
from .functional import TensorView, TracedTensor
from .kept import emptied_by, leaves_behind_spent
from .reads import storage_of, storages_kept
from .record import DispatchRecorder
from .standins import FakeStandIns, StandIns, stand_ins_for, without_cudnn
from .symbols import is_symbolic, surely_equal, symbolic_form, symbols_in
from .traced_graph import Decompositions, TracedGraph

aten = torch.ops.aten
TracedFunction = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class GraphResult:
    """An output that is a result of the graph."""

    position: int


@dataclass(frozen=True, slots=True)
class InputAsOutput:
    """An output that is one of the inputs."""

    index: int


@dataclass(frozen=True, slots=True)
class ViewOutput:
    """An output that is a view of a result or of an input, taken by eager operators, so that autograd knows of it."""

    source: GraphResult | InputAsOutput
    views: tuple[TensorView, ...]
    detached: bool


@dataclass(frozen=True, slots=True)
class ConstantOutput:
    value: Any


PlannedOutput = GraphResult | InputAsOutput | ViewOutput | ConstantOutput


@dataclass(frozen=True, slots=True)
class WriteBack:
    """An input that the function writes to."""

    index: int
    position: int  # of its new contents, among the results
    differentiable: bool
    counted: bool  # does eager's version counter show the write?


@dataclass(slots=True)
class Plan:
    """What stands between a function's inputs and outputs and those of its graph."""

    inputs: list[int] = field(default_factory=list)  # the function's inputs that are primals
    writes: list[WriteBack] = field(default_factory=list)
    in_inference_mode: bool = False  # are all results made in one that the graph enters?
    outputs: list[PlannedOutput] = field(default_factory=list)
    differentiable: list[int] = field(default_factory=list)  # positions of results that require gradients
    led: list[int] = field(default_factory=list)  # of those, the ones that the backward takes tangents of
    results: int = 0
    emptied: tuple[int, ...] = ()  # by differentiable result: which of eager's nodes its backward empties, as bits
    leads: tuple[int, ...] = ()  # by primal: which tangents its gradient is computed from, as bits
    spent: dict[int, int] = field(default_factory=dict)  # results whose graph a backward pass inside has emptied, each
    # with an input that it led to
    read_again: dict[int, tuple[int, ...]] = field(default_factory=dict)  # results that eager's backward reads, each
    # with the differentiable results whose tangents lead there
    read_inputs: dict[int, tuple[int, ...]] = field(default_factory=dict)  # primals that it reads, likewise
    overwritten: frozenset[int] = frozenset()  # inputs that are written to and that differentiable results depend on
    random: bool = False
    reads: tuple[OutsideRead, ...] | None = (
        None  # by backwards of the program's that are part of the graph; None: no such
    )

    def leading(self, bits: int) -> tuple[int, ...]:
        """The differentiable results whose tangents these are."""
        return tuple(position for count, position in enumerate(self.led) if bits >> count & 1)


@dataclass(slots=True)
class Joint:
    module: fx.GraphModule
    primals: list[Any]  # example values
    tangents: list[Any]
    plan: Plan
    stand_ins: StandIns

    @property
    def has_backward(self) -> bool:
        return bool(self.tangents)


class _NotALeaf(torch.autograd.Function):
    """Makes a stand-in that was computed from another, as far as autograd knows, without an operator."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, boxed: list[Tensor]) -> Tensor:
        return boxed[0]  # in a box: a tensor given and returned would count as a view

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


_not_a_leaf: Callable[[Tensor, list[Tensor]], Tensor] = _NotALeaf.apply


class _LineByLine(fx.Interpreter):
    """Runs a graph and tells the traced graph which line of the user's each node stands in."""

    def __init__(self, module: fx.GraphModule, traced: TracedGraph) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._traced = traced
        self._policies = PoliciesOfNodes()
        self._computed: list[torch.SymFloat] = []
        self._entered: list[tuple[Any, Any]] = []  # modes that the graph entered and has not left: how to, and what

    def run_node(self, n: fx.Node) -> Any:
        self._traced.at_line(n.meta.get("stack_trace") or "")
        self._traced.policy, self._traced.region = self._policies.of(n)
        result = super().run_node(n)
        if SIZES in n.meta and not surely_equal(result.shape, n.meta[SIZES]):
            raise CannotDerive(f"{n.name} has the sizes {n.meta[SIZES]}, and not {tuple(result.shape)} as torch says")
        leave = _LEAVE.get(n.target) if n.op == "call_function" else None
        if leave is not None:
            self._entered.append((leave, result))
        elif self._entered and n.target is self._entered[-1][0]:
            self._entered.pop()
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(target, "__name__", "") in RECURRENT and args[0].device.type != "cuda":  # there it is one operator
            raise CannotDerive("a recurrent layer, of which the library's loop over the steps is left")
        if backward_passes.is_pass(target):
            return backward_passes.trace(target, args, self._traced)
        result = super().call_function(symbolic_form(target, args), args, kwargs)
        if isinstance(result, torch.SymFloat):
            self._check_exact(target, args, result)
            self._computed.append(result)
        return result

    def _check_exact(self, target: Any, operands: tuple[Any, ...], result: torch.SymFloat) -> None:
        """Torch simplifies expressions of floats as if they were real numbers, which changes what they round to."""
        if any(operand is known for operand in operands for known in self._computed):
            raise CannotDerive("several operations on a number that changes, which torch would reorder")
        if any(type(operand) in (int, float) and _is_absorbing(operand) for operand in operands):
            raise CannotDerive("zero times a number that changes, or infinity and such a number")
        if not symbols_in(result):
            raise CannotDerive("a number minus itself, which is zero for real numbers alone")
        if target in (operator.floordiv, operator.mod):
            raise CannotDerive("a floor of a number that changes, which torch computes as an int")

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaf = self.fetch_attr(target)
        if isinstance(leaf, CustomFunction):
            return custom_functions.trace(leaf, args, kwargs, self._traced)
        return super().call_module(target, args, kwargs)

    def run_and_leave(self, *inputs: Any) -> list[Any]:
        """Run; whatever happens, torch's modes are afterwards what they were."""
        grad = torch.is_grad_enabled()
        try:
            outputs = list(self.run(*inputs))
            if torch.is_grad_enabled() is not grad:
                raise CannotDerive("the graph leaves another grad mode than it found")
            return outputs
        finally:
            for leave, entered in reversed(self._entered):
                leave(entered)
            torch._C._set_grad_enabled(grad)


def _is_absorbing(number: float) -> bool:
    return number == 0 or (type(number) is float and not math.isfinite(number))


# Without their kernels, which no backward graph can call, they are several operators for each step of the sequence.
RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))

# How graphs enter modes, and how they leave them.
_LEAVE: dict[Any, Any] = {
    torch.amp.autocast_mode._enter_autocast: torch.amp.autocast_mode._exit_autocast,
    torch.autograd.grad_mode._enter_inference_mode: torch.autograd.grad_mode._exit_inference_mode,
}


def trace(
    function: TracedFunction | fx.GraphModule,
    inputs: Sequence[Any],
    *,
    decompositions: Decompositions | None = None,
    stand_ins: StandIns | None = None,
) -> Joint:
    """The joint graph of a function that takes `inputs` and gives back a sequence."""
    meta_kernels.call_directly()
    around = without_cudnn if _may_norm(function) else contextlib.nullcontext
    # Stand-ins draw no random numbers; a function may do anything. (They are the process's: on the background thread,
    # which has graphs only, to put them back would undo what the program has drawn meanwhile.)
    numbers = None if isinstance(function, fx.GraphModule) else torch.get_rng_state()
    try:
        with around(), _no_anomalies():
            return _Trace(function, inputs, decompositions, stand_ins or stand_ins_for(inputs)).run()
    except DeviceWanted:
        with around(), _no_anomalies():
            return _Trace(function, inputs, decompositions, FakeStandIns()).run()
    finally:
        if numbers is not None:
            torch.set_rng_state(numbers)


def _may_norm(function: TracedFunction | fx.GraphModule) -> bool:
    """May there be a norm in it? A graph can be looked at: then other threads keep their cudnn."""
    if not isinstance(function, fx.GraphModule):
        return True
    return any("norm" in str(getattr(node.target, "__name__", node.target)) for node in function.graph.nodes)


class _Trace:
    def __init__(
        self,
        function: TracedFunction | fx.GraphModule,
        inputs: Sequence[Any],
        decompositions: Decompositions | None,
        stand_ins: StandIns,
    ) -> None:
        self._function = function
        self._inputs = inputs
        self._stand_ins = stand_ins
        self._recorder = DispatchRecorder(stand_ins, decompositions)
        self._traced = self._recorder.traced
        self._plan = Plan()
        self._given: list[Any] = list(inputs)  # what the function gets
        self._leaves: list[Any] = []  # what is differentiated for, per primal; numbers too
        self._placeholders: list[fx.Node] = []
        self._formers: list[Any] = []  # grad_fn of each stand-in before the function ran
        self._results: list[Tensor] = []
        self._by_tensor: dict[int, int] = {}

    def run(self) -> Joint:
        traced = self._traced
        self._make_primals()
        outputs = self._call()
        self._find_writes()
        self._plan_outputs(outputs)
        self._refuse_leaves()
        self._plan.in_inference_mode = self._is_of_inference()
        if self._plan.differentiable and traced.passes:
            self._find_spent()
        if self._plan.differentiable and not torch.is_grad_enabled():
            raise CannotDerive("gradients of a part of a graph that runs without them")
        tangents, gradients = self._differentiate()
        with torch.no_grad():
            nodes = [traced.node_of(tensor) for tensor in self._results]
            self._plan.overwritten = self._find_overwritten(nodes)
            nodes = self._apart(nodes)
            gradient_nodes = [None if g is None else traced.node_of(g) for g in gradients]
        leads = self._leads_to(traced.graph)
        self._plan.leads = tuple([leads.get(node, 0) if node is not None else 0 for node in gradient_nodes])
        traced.numbers.name_all()
        traced.graph.output((*nodes, *gradient_nodes))
        for node in traced.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = _detached(node.meta["val"])
        module = LazyGraph(traced.constants, traced.graph, "joint")
        self._plan.results = len(nodes)
        self._plan.random = traced.random
        primals = [_detached(leaf) for leaf in self._leaves]
        return Joint(module, primals, tangents, self._plan, self._stand_ins)

    def _is_of_inference(self) -> bool:
        """Are the results made in an inference mode that the graph itself enters? Then all of them have to be."""
        made = [tensor.is_inference() for tensor in self._results]
        if torch.is_inference_mode_enabled() or not any(made):
            return False
        if not all(made) or self._plan.writes:
            raise CannotDerive("a part of a graph that runs in inference mode")
        return True

    def _call(self) -> list[Any]:
        traced = self._traced
        if not isinstance(self._function, fx.GraphModule):
            with ModesKept(), self._recorder, Choices(traced, lines=True), honoured(traced):
                return list(self._function(*self._given))
        try:
            with ModesKept(), self._recorder, Choices(traced, lines=False):
                return _LineByLine(self._function, traced).run_and_leave(*self._given)
        except (CannotDerive, DeviceWanted):
            raise
        except Exception as error:  # the graph ran on real tensors; here it needs something that stand-ins do not have
            let_through(error)
            raise CannotDerive(f"{type(error).__name__} on tensors without data: {error}") from error

    # -- inputs

    def _make_primals(self) -> None:
        known: dict[int, Tensor] = {}
        for index, tensor in enumerate(self._inputs):
            if is_symbolic(tensor):
                self._add_primal(index, tensor, tensor)
            if not isinstance(tensor, Tensor):
                continue
            if id(tensor) in known:
                self._given[index] = known[id(tensor)]
                continue
            if tensor.layout is not torch.strided:
                raise CannotDerive(f"an input with layout {tensor.layout}")
            leaf = standing = self._stand_ins.of(tensor)
            if tensor.requires_grad:
                leaf.requires_grad_()
                if not tensor.is_leaf:
                    with torch.enable_grad():
                        standing = _not_a_leaf(leaf, [self._stand_ins.of(tensor)])
            node = self._add_primal(index, leaf, standing)
            node.meta["parameter"] = isinstance(tensor, torch.nn.Parameter)
            self._traced.values.new(standing, node)
            known[id(tensor)] = standing

    def _add_primal(self, index: int, leaf: Any, standing: Any) -> fx.Node:
        self._plan.inputs.append(index)
        self._leaves.append(leaf)
        self._formers.append(getattr(standing, "grad_fn", None))
        node = self._traced.placeholder(f"primals_{len(self._leaves)}", _detached(leaf))
        self._traced.numbers.learn_from(node)
        self._placeholders.append(node)
        self._given[index] = standing
        return node

    def _standing(self, primal: int) -> Any:
        return self._given[self._plan.inputs[primal]]

    # -- what came of it

    def _position(self, tensor: Tensor) -> int:
        """The place of a tensor among the graph's results."""
        position = self._by_tensor.get(id(tensor))
        if position is None:
            position = self._by_tensor[id(tensor)] = len(self._results)
            self._results.append(tensor)
        return position

    def _find_writes(self) -> None:
        values = self._traced.values
        for primal, index in enumerate(self._plan.inputs):
            standing = self._standing(primal)
            value = values.find(standing)
            if value is None or value.memory.version == 0:  # None: a number
                continue
            self._refuse_shared(index)
            self._placeholders[primal].meta["mutated"] = True
            differentiable = standing.requires_grad and standing.grad_fn is not self._formers[primal]
            written = WriteBack(index, self._position(standing), differentiable, value.memory.counted)
            self._plan.writes.append(written)

    def _refuse_leaves(self) -> None:
        """What is differentiated for are inputs: a tensor made inside that requires gradients would not get any."""
        inputs = {id(leaf) for leaf in self._leaves}
        pending: list[Any] = []
        for tensor in self._results:
            if tensor.requires_grad and tensor.grad_fn is None and id(tensor) not in inputs:
                raise CannotDerive("a tensor made inside requires gradients")
            pending.append(tensor.grad_fn)
        seen: set[Any] = {None}
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)  # of nodes that stand for a leaf
            if variable is not None and id(variable) not in inputs:
                raise CannotDerive("a tensor made inside requires gradients")
            pending += [former for former, _ in node.next_functions]

    def _refuse_shared(self, index: int) -> None:
        """A write to memory that another input shares is not seen through that other input."""
        written = memory_of(self._inputs[index])
        others = (self._inputs[other] for other in self._plan.inputs if other != index)
        if any(isinstance(other, Tensor) and memory_of(other) == written for other in others):
            raise CannotDerive("a write to an input that shares memory with another")

    def _plan_outputs(self, outputs: list[Any]) -> None:
        roots: dict[int, set[int]] = {}  # memory -> tensors of it that are outputs
        for output in outputs:
            if isinstance(output, Tensor):
                self._traced.node_of(output)
                value = self._traced.values.find(output)
                assert value is not None
                roots.setdefault(id(value.memory), set()).add(id(output))
        given = {id(self._standing(primal)): index for primal, index in enumerate(self._plan.inputs)}
        for output in outputs:
            self._plan.outputs.append(self._plan_output(output, given, roots))
        differentiable = {write.position for write in self._plan.writes if write.differentiable}
        writes = {write.position for write in self._plan.writes}
        for position, tensor in enumerate(self._results):
            if tensor.requires_grad and (position in differentiable or position not in writes):
                self._plan.differentiable.append(position)

    def _find_spent(self) -> None:
        """A backward pass inside has emptied the graph of results that are handed out."""
        plan = self._plan
        results = [self._results[position] for position in plan.differentiable]
        leaves = leaves_behind_spent(results)
        if leaves is None or any(write.position in plan.differentiable for write in plan.writes):
            raise CannotDerive("gradients of what a graph gives that has a backward pass in it")
        places = {id(leaf): index for leaf, index in zip(self._leaves, plan.inputs, strict=True)}
        plan.spent = {at: places[id(leaf)] for at, leaf in zip(plan.differentiable, leaves, strict=True)}
        plan.differentiable = []

    def _plan_output(self, output: Any, given: dict[int, int], roots: dict[int, set[int]]) -> PlannedOutput:
        if id(output) in given:
            return InputAsOutput(given[id(output)])
        if not isinstance(output, Tensor):
            return ConstantOutput(output)
        value = self._traced.values.find(output)
        assert value is not None
        root, views = _path(value)
        if id(root.tensor) in given:
            source: GraphResult | InputAsOutput = InputAsOutput(given[id(root.tensor)])
        elif len(roots[id(value.memory)]) > 1:
            source = GraphResult(self._position(root.tensor))
            if root is value:
                return source
        else:
            return GraphResult(self._position(output))
        detached = not output.requires_grad and (root.tensor.requires_grad or not views)
        return ViewOutput(source, views, detached)

    def _apart(self, nodes: list[fx.Node]) -> list[fx.Node]:
        """Results are tensors of their own: no input itself, no node twice."""
        traced, seen, apart = self._traced, set(), []
        for node in nodes:
            if node in seen or node.op in ("placeholder", "get_attr"):
                node = traced.emit(aten.clone.default, (node,), {})
            seen.add(node)
            apart.append(node)
        return apart

    # -- the backward

    def _differentiate(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """Example tangents, and the gradients of the primals."""
        plan, traced = self._plan, self._traced
        wanted = [leaf for leaf in self._leaves if _needs_gradient(leaf)]
        if not wanted or not plan.differentiable:
            plan.differentiable = []
            return [], []
        every = [self._results[position] for position in plan.differentiable]
        plan.emptied = emptied_by(every)
        losses = [tensor for tensor in every if tensor.dim() == 0] if traced.reads is not None else []
        outputs = losses or every
        plan.led = [position for position in plan.differentiable if any(self._results[position] is o for o in outputs)]
        plan.reads = None if traced.reads is None else tuple(traced.reads)
        tangents = [_tangent(output) for output in outputs]
        for count, tangent in enumerate(tangents, 1):
            node = traced.placeholder(f"tangents_{count}", tangent)
            traced.values.new(tangent, node)
        traced.line, traced.policy = "", None
        self._note_reads(storages_kept(outputs))
        try:
            with self._recorder, _no_autocast():
                found = torch.autograd.grad(outputs, wanted, tangents, allow_unused=True)
        except (RuntimeError, NotImplementedError) as error:  # so would eager, but only when its backward is called
            raise CannotDerive(f"the backward fails: {error}") from error
        gradients = iter(found)
        return tangents, [next(gradients) if _needs_gradient(leaf) else None for leaf in self._leaves]

    def _find_overwritten(self, results: list[fx.Node]) -> frozenset[int]:
        """Written inputs whose former contents would be needed to compute the differentiable results once more."""
        wanted = {results[position] for position in self._plan.differentiable}
        written = {write.index for write in self._plan.writes}
        found: set[int] = set()
        for index, node in zip(self._plan.inputs, self._placeholders, strict=True):
            pending, seen = [node] if index in written and wanted else [], set[fx.Node]()
            while pending:
                node = pending.pop()
                if node in wanted:
                    found.add(index)
                    break
                if node not in seen:
                    seen.add(node)
                    pending += node.users
        return frozenset(found)

    @staticmethod
    def _leads_to(graph: fx.Graph) -> dict[fx.Node, int]:
        """The nodes that are computed from tangents: from which, as bits."""
        tangents = [node for node in graph.find_nodes(op="placeholder") if node.name.startswith("tangents_")]
        leads = {node: 1 << count for count, node in enumerate(tangents)}
        for node in graph.nodes if tangents else ():
            bits = leads.get(node, 0)
            for given in node.all_input_nodes:
                bits |= leads.get(given, 0)
            if bits:
                leads[node] = bits
        return leads

    def _note_reads(self, kept: dict[int | None, int]) -> None:
        """Which inputs and results does autograd itself keep for its formulas?"""
        plan, values = self._plan, self._traced.values
        for position, tensor in enumerate(self._results):
            value = values.find(tensor)
            bits = kept.get(storage_of(tensor), 0)
            if bits and value is not None and (value.memory.counted or value.memory.version == 0):
                plan.read_again[position] = plan.leading(bits)
        for primal in range(len(self._placeholders)):
            value = values.find(self._standing(primal))
            bits = kept.get(storage_of(self._standing(primal)), 0) if value is not None else 0
            if bits and value is not None and not value.memory.counted:
                plan.read_inputs[primal] = plan.leading(bits)


def _path(value: TracedTensor) -> tuple[TracedTensor, tuple[TensorView, ...]]:
    """The tensor whose memory it is, and the views that lead from there."""
    views: list[TensorView] = []
    while value.parent is not None:
        if value.view is not None:
            views.append(value.view)
        value = value.parent
    return value, tuple(reversed(views))


def _needs_gradient(primal: Any) -> bool:
    return isinstance(primal, Tensor) and primal.requires_grad


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    return type(value)(map(_detached, value)) if type(value) in (list, tuple) else value


def _tangent(output: Tensor) -> Tensor:
    """Tangents are expected with the strides of their output, if these leave no gaps."""
    with torch.no_grad():
        return torch.empty_like(output, requires_grad=False)


def _no_anomalies() -> contextlib.AbstractContextManager[Any]:
    """There are no numbers yet that could be wrong; nor does a trace say where the program computes them."""
    if not torch.is_anomaly_enabled():
        return contextlib.nullcontext()
    return torch.autograd.set_detect_anomaly(False)


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield
