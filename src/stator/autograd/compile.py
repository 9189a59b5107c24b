"""The steps in order: trace, optimise, cut, compile forward and backward, wrap.

Enters: a function (or a torch-level graph), example inputs, and the compilers. Leaves: a callable that takes and
gives what the function does. Both graphs are compiled before it is called for the first time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.graph import _BoxedCodeGen

from .. import events
from ..support.graph_modules import LazyGraph
from ..support.graph_numbers import expect_sizes
from ..support.op_namespaces import has_promised_sizes
from . import equal_graphs
from .custom_functions import with_graphs
from .describe import derived
from .joint import PassRun, optimise
from .partition import PartitionFn, min_cut_partition
from .runtime import Original, wrap
from .standins import FakeStandIns, MetaStandIns, StandIns
from .symbols import is_symbolic
from .tangents import Backwards, Boxed, OneBackward
from .trace import GraphResult, Joint, Plan, TracedFunction, ViewOutput, trace
from .traced_graph import Decompositions

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
# Takes the graph, and how an operator runs on example values.
Rewrite = Callable[[fx.GraphModule, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]], None]


@dataclass(slots=True)
class Graphs:
    """A function's graphs, not compiled yet."""

    joint: Joint
    label: str  # how reports call the function
    forward: fx.GraphModule
    backward: fx.GraphModule | None  # None: nothing to differentiate
    passes: list[PassRun]

    @property
    def saved(self) -> Sequence[Any]:
        """Example values of what the forward keeps for the backward."""
        return _returned(self.forward)[self.joint.plan.results :]


def derive(
    function: TracedFunction | fx.GraphModule,
    inputs: Sequence[Any],
    *,
    partition_fn: PartitionFn = min_cut_partition,
    decompositions: Decompositions | None = None,
    stand_ins: StandIns | None = None,
    rewrite: Rewrite | None = None,
) -> Graphs:
    """Forward and backward graphs of a function. `rewrite`: changes the graph of both, in place."""
    start = time.perf_counter()
    label = _label(function)
    with events.stage("deriving the backward of", label):
        joint = trace(function, inputs, decompositions=decompositions, stand_ins=stand_ins)
        traced = time.perf_counter()
        passes = optimise(joint.module, joint.plan.results)
        if rewrite is not None:
            rewrite(joint.module, joint.stand_ins.run)
    optimised = time.perf_counter()
    forward, backward = joint.module, None
    if joint.has_backward:
        inputs_of_joint = [*joint.primals, *joint.tangents]
        with events.stage("cutting forward from backward of", label, lambda: len(joint.module.graph.nodes)):
            forward, backward = partition_fn(joint.module, inputs_of_joint, num_fwd_outputs=joint.plan.results)
    end = time.perf_counter()
    if events.listening(events.BackwardDerived):
        steps = (
            f"trace: {(traced - start) * 1e3:.1f} ms",
            *map(str, passes),
            f"cut: {(end - optimised) * 1e3:.1f} ms",
        )
        events.emit(derived(label, joint, forward, backward, inputs, end - start, steps, function))
    return Graphs(joint, label, forward, backward, passes)


def derive_without_data(module: fx.GraphModule, inputs: Sequence[Any]) -> Graphs:
    """`derive`, for meta tensors that stand for tensors on the CPU, or for fake ones."""
    fake = any(isinstance(value, FakeTensor) or is_symbolic(value) for value in inputs)
    return derive(module, inputs, stand_ins=None if fake else MetaStandIns())


def compile_function(
    function: TracedFunction | fx.GraphModule,
    inputs: Sequence[Any],
    *,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFn = min_cut_partition,
    decompositions: Decompositions | None = None,
    with_devices: bool = True,
    by_tangents: bool = False,
    about: Hashable | None = None,
    rewrite: Rewrite | None = None,
) -> Callable[..., Sequence[Any]]:
    """The function by way of compiled graphs; it takes the inputs one by one and gives a sequence.

    `with_devices`: the compilers read example values, so give them fake tensors, which know their device.
    `by_tangents`: where tangents are missing, a backward graph without them is compiled when it is first needed.
    `about`: says all that the compilers' results depend on besides the graph; None: equal graphs are compiled anew.
    """
    inputs = _with_symbols(function, inputs)
    watched = events.wanted(events.BackwardDerived) or events.wanted(events.CodeGenerated)
    lookup = equal_graphs.Lookup(function, inputs, None if watched else about)
    made = lookup.find()
    if made is None:
        graphs = derive(function, inputs, partition_fn=partition_fn, decompositions=decompositions, rewrite=rewrite)
        made = _compile(graphs, fw_compiler, bw_compiler or fw_compiler, with_devices, by_tangents)
        lookup.keep(made)
    elif events.listening(events.EqualGraph):
        events.emit(events.EqualGraph(_label(function)))
    run = with_graphs(function) if isinstance(function, fx.GraphModule) else function
    return wrap(made, _label(function), Original(run, made.plain_backward), inputs)


def _compile(
    graphs: Graphs, fw_compiler: Compiler, bw_compiler: Compiler, with_devices: bool, by_tangents: bool
) -> equal_graphs.CompiledGraphs:
    joint, forward, backward = graphs.joint, graphs.forward, graphs.backward
    saved = graphs.saved if backward is not None else ()
    _leave_to_autograd(graphs)
    if with_devices:
        mode = joint.stand_ins.mode if isinstance(joint.stand_ins, FakeStandIns) else FakeTensorMode()
        dress([forward, backward], joint.stand_ins, mode)
    tensors = sum(isinstance(value, torch.Tensor) for value in saved)
    plain_backward = _as_copy(backward).forward if backward is not None and not tensors else None
    forward.meta["results"] = joint.plan.results  # what comes behind them is kept for the backward
    forward.meta["passing"] = _passing(joint.plan)
    if backward is None:
        forward.meta["writes"] = _writes(joint)
    compiled = boxed(fw_compiler(forward, _examples(forward)))
    backwards: Backwards | OneBackward | None = None
    if backward is not None:
        assert len(_examples(backward)) == len(saved) + len(joint.tangents)

        def compile_backward(module: fx.GraphModule) -> Boxed:
            return boxed(bw_compiler(module, _examples(module)))

        if by_tangents:
            backwards = Backwards(backward, joint.tangents, compile_backward)
        else:
            backwards = OneBackward(compile_backward(backward), len(joint.tangents))
    return equal_graphs.CompiledGraphs(joint, compiled, backwards, plain_backward, tensors)


def _leave_to_autograd(graphs: Graphs) -> None:
    """Of inputs that the graph keeps as they are autograd itself looks whether somebody has written to them."""
    forward, plan = graphs.forward.graph, graphs.joint.plan
    kept: Any = forward.output_node().args[0][plan.results :]  # type: ignore[index]
    for primal, node in enumerate(forward.find_nodes(op="placeholder")):
        if node in kept:
            plan.read_inputs.pop(primal, None)


def _passing(plan: Plan) -> set[int]:
    """Results that are written to inputs, and that nobody else gets."""
    shown = [output.source if isinstance(output, ViewOutput) else output for output in plan.outputs]
    given = {output.position for output in shown if isinstance(output, GraphResult)}
    return {write.position for write in plan.writes if not write.differentiable} - given


def _writes(joint: Joint) -> dict[int, int]:
    """By the position of a result: the input of the graph that it is written to afterwards. A compiler may write it
    there itself and return the input: what is copied onto itself stays as it is."""
    plan = joint.plan
    at = {index: number for number, index in enumerate(plan.inputs)}
    return {write.position: at[write.index] for write in plan.writes if not write.differentiable and write.index in at}


def _with_symbols(function: TracedFunction | fx.GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
    """Fake tensors in place of real ones, where a graph with symbolic sizes comes with real example inputs."""
    if not isinstance(function, fx.GraphModule) or not any(map(is_symbolic, inputs)):
        return inputs
    placeholders = function.graph.find_nodes(op="placeholder")
    return [node.meta.get("example_value", value) for node, value in zip(placeholders, inputs, strict=True)]


def dress(modules: Sequence[fx.GraphModule | None], stand_ins: StandIns, mode: FakeTensorMode) -> None:
    """Example values that know their device, in place of stand-ins that do not."""
    made: dict[int, Any] = {}

    def dressed(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(dressed, value))
        if id(value) not in made:
            made[id(value)] = stand_ins.with_device(value, mode)
        return made[id(value)]

    for module in modules:
        for node in module.graph.nodes if module is not None else ():
            if "val" in node.meta:
                node.meta["val"] = dressed(node.meta["val"])


def make_boxed(module: fx.GraphModule) -> Boxed:
    """A graph as a callable that takes a list and clears it, so that each input is freed after its last use.

    It is fx's Python for the graph, with operators as names of its own: `torch.ops.aten.add.Tensor` is four lookups.
    """
    module = as_run(module)
    former = module.graph._codegen
    module.graph.set_codegen(_BoxedCodeGen())
    written = module.graph.python_code("self")
    module.graph.set_codegen(former)
    names: dict[str, Any] = dict(written.globals)
    taken = {node.name for node in module.graph.nodes}

    def short(match: re.Match[str]) -> str:
        namespace, packet, overload = match.groups()
        name = f"{namespace}_{packet}_{overload}"
        while name in taken:  # by a variable of the graph
            name = f"_{name}"
        names[name] = getattr(getattr(getattr(torch.ops, namespace), packet), overload)._op
        return name

    source = re.sub(r"\btorch\.ops\.(\w+)\.(\w+)\.(\w+)(?=\()", short, written.src)
    exec(compile(source, "<graph>", "exec"), names)
    run: Any = names["forward"].__get__(module)
    names["forward"]._boxed_call = True
    return run  # type: ignore[no-any-return]  # made just now


def make_boxed_compiler(compiler: Compiler) -> Compiler:
    """A compiler whose callables take their arguments one by one, as one whose callables take a list."""

    def compile_boxed(module: fx.GraphModule, examples: Sequence[Any]) -> Boxed:
        return boxed(compiler(module, examples))

    return compile_boxed


def boxed(compiled: Callable[..., Any]) -> Boxed:
    """A compiled graph that takes a list and clears it. Unless it says so itself, it takes its arguments one by one."""
    if getattr(compiled, "_boxed_call", False):
        return compiled
    if isinstance(compiled, fx.GraphModule):
        return make_boxed(_as_copy(compiled))  # the caller may keep and call the graph as it is

    def run(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        return compiled(*given)

    run._boxed_call = True  # type: ignore[attr-defined]  # the mark that torch's compilers use
    return run


def _as_copy(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return LazyGraph(module, graph)


def as_run(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph, which looks at the sizes of which nobody but the program says what they are."""
    if not any(map(has_promised_sizes, module.graph.nodes)):
        return module
    module = _as_copy(module)
    for node in list(module.graph.nodes):
        value = node.meta.get("val")
        if has_promised_sizes(node) and isinstance(value, torch.Tensor) and not any(map(is_symbolic, value.shape)):
            with module.graph.inserting_after(node):
                module.graph.call_function(expect_sizes, (node, tuple(value.shape), node.name))
    return module


def _returned(module: fx.GraphModule) -> Sequence[Any]:
    returned: Any = module.graph.output_node().args[0]
    return [node.meta["val"] for node in returned]


def _examples(module: fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]


def _label(function: TracedFunction | fx.GraphModule) -> str:
    if isinstance(function, fx.GraphModule):
        return str(function.meta.get("label", "graph"))
    return str(getattr(function, "__name__", "function"))
