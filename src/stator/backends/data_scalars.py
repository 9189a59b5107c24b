"""Graphs that take numbers from tensors (`step.item()`, in optimizers), for backends that compile tensors alone.

Enters: a torch-level graph. Leaves: two. The first one runs as it was captured: everything up to the last number that
is taken from a tensor, and all arithmetic with such numbers. The second one is the rest, with these numbers as inputs,
symbolic for whoever compiles it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._guards import Source
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ..errors import CannotDerive
from ..support import graph_numbers
from . import eager

_MODES = torch._C._set_grad_enabled


@dataclass(frozen=True)
class Split:
    first: fx.GraphModule
    rest: fx.GraphModule
    examples: list[Any]  # inputs of the rest, without data
    inputs: int  # of the whole; the rest takes them all, then the numbers
    outputs: list[tuple[bool, int]]  # by result of the whole: is it one of the rest's, and which

    def compiled(
        self, compile_rest: Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
    ) -> Callable[..., Any]:
        """Both parts as one."""
        compiled = compile_rest(self.rest, self.examples)
        self._refuse_decisions()
        return self._join(compiled)

    def _refuse_decisions(self) -> None:
        """The values of the numbers are made up: what was decided by them may be otherwise in a call."""
        numbers = [number.node for number in self.examples[self.inputs :]]
        symbols = {symbol for number in numbers for symbol in number.expr.free_symbols}
        for env in {number.shape_env for number in numbers}:
            decided = [guard for guard in env.guards if not symbols.isdisjoint(guard.expr.free_symbols)]
            if decided:
                env.guards[:] = [guard for guard in env.guards if guard not in decided]
                raise CannotDerive(f"a decision by a number that the graph computes: {decided[0].expr}")

    def _join(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        count = len(self.examples) - self.inputs
        first = eager.compile_graph(self.first, ())

        def run(*inputs: Any) -> Any:
            made = first(*inputs)
            rest = compiled(*inputs, *made[:count])
            return tuple([rest[at] if later else made[count + at] for later, at in self.outputs])

        return run


def split(gm: fx.GraphModule, inputs: Sequence[Any]) -> Split | None:
    """The two parts; None if no number is taken, or the parts would share more than inputs and floats."""
    nodes = list(gm.graph.nodes)
    last = max((i for i, n in enumerate(nodes) if n.op == "call_method" and n.target == "item"), default=None)
    if last is None or not all(isinstance(value, (torch.Tensor, torch.SymFloat)) for value in inputs):
        return None
    first = {node for node in nodes[: last + 1] if node.op != "placeholder"}
    given = list(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True))
    numbers: set[fx.Node] = {node for node, value in given if isinstance(value, torch.SymFloat)}
    floats = set(numbers)  # those that surely are floats
    for node in nodes:
        if node.op == "call_method" and node.target == "item":
            numbers.add(node)
        elif _is_arithmetic(node) and node.all_input_nodes and numbers.issuperset(node.all_input_nodes):
            numbers.add(node)
            if _gives_float(node) or not floats.isdisjoint(node.all_input_nodes):
                floats.add(node)
    first |= {node for node in numbers if node.op != "placeholder"}
    modes = [node for node in nodes if node.target is _MODES]
    differentiable = {node for node, value in given if isinstance(value, torch.Tensor) and value.requires_grad}
    if not _can_be_split(nodes, first, floats, modes, differentiable):
        return None
    made = [node for node in nodes if node in floats and node in first]  # both parts are given the others
    return _parts(gm, inputs, nodes, first, made, modes)


def _is_arithmetic(node: fx.Node) -> bool:
    known = (operator.__name__, "_operator", graph_numbers.__name__)
    return node.op == "call_function" and getattr(node.target, "__module__", None) in known and not node.kwargs


def _gives_float(node: fx.Node) -> bool:
    return getattr(node.target, "__module__", None) == graph_numbers.__name__ and node.target in _FLOATS


_FLOATS = frozenset((graph_numbers.divide, graph_numbers.power, graph_numbers.root))


def _can_be_split(
    nodes: list[fx.Node], first: set[fx.Node], floats: set[fx.Node], modes: list[fx.Node], differentiable: set[fx.Node]
) -> bool:
    """What crosses are inputs and floats, and nobody differentiates through it: either all of it runs without
    gradients, or what comes first sets no mode and is computed from nothing that requires them."""
    if first.isdisjoint(modes):
        if any(not differentiable.isdisjoint(node.all_input_nodes) for node in first):
            return False
    else:
        if modes[0].args != (False,) or modes[-1] in first:
            return False
        if nodes.index(modes[0]) != sum(node.op == "placeholder" for node in nodes):
            return False
    for node in nodes:
        if node.op not in ("placeholder", "call_function", "call_method", "output"):
            return False
        crossing = [n for n in node.all_input_nodes if n in first] if node not in first else []
        if node.op != "output" and not floats.issuperset(crossing):
            return False
    return True


def _parts(
    gm: fx.GraphModule, inputs: Sequence[Any], nodes: list[fx.Node], first: set[fx.Node], floats: list[fx.Node],
    modes: list[fx.Node],
) -> Split:  # fmt: skip
    wanted: Any = gm.graph.output_node().args[0]
    crossing = [n for n in floats if any(user not in first and user.op != "output" for user in n.users)]
    graphs = fx.Graph(), fx.Graph()
    copies: tuple[dict[fx.Node, fx.Node], dict[fx.Node, fx.Node]] = ({}, {})
    placeholders = [node for node in nodes if node.op == "placeholder"]
    for graph, copy in zip(graphs, copies, strict=True):
        for node in placeholders:
            copy[node] = graph.node_copy(node)
    for node in crossing:
        copies[1][node] = graphs[1].placeholder(node.name)
    left = [m for m in modes if m in first]
    if left:
        graphs[1].call_function(_MODES, left[-1].args)
    for node in nodes:
        if node.op in ("call_function", "call_method"):
            part = 0 if node in first else 1
            copies[part][node] = graphs[part].node_copy(node, copies[part].__getitem__)
    if left:
        graphs[0].call_function(_MODES, modes[-1].args)
    results: tuple[list[Any], list[Any]] = ([], [])
    outputs = []
    for value in wanted:
        part = 0 if isinstance(value, fx.Node) and value in first else 1
        outputs.append((part == 1, len(results[part])))
        results[part].append(copies[part][value] if isinstance(value, fx.Node) else value)
    graphs[0].output((*[copies[0][n] for n in crossing], *results[0]))
    graphs[1].output(tuple(results[1]))
    made = [fx.GraphModule(gm, graph) for graph in graphs]
    made[1].meta.update(gm.meta)
    made_up = [0.5 + i / (len(crossing) + 1) for i in range(len(crossing))]
    return Split(made[0], made[1], as_symbols(made[1], inputs, made_up), len(inputs), outputs)


def _without_data(value: Any, mode: FakeTensorMode) -> Any:
    plain = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return mode.from_tensor(value, static_shapes=True) if plain else value


class _Named(Source):
    """Where a number comes from, as far as torch asks."""

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "_text", f"taken_{number}")

    @property
    def _name_template(self) -> str:
        return self._text  # type: ignore[attr-defined, no-any-return]


def as_symbols(gm: fx.GraphModule, inputs: Sequence[Any], numbers: Sequence[float]) -> list[Any]:
    """Inputs for a graph that takes numbers behind these: tensors without data, numbers that may be others."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv  # a quarter of a second, for few graphs

    known = next((value.fake_mode for value in inputs if isinstance(value, FakeTensor)), None)
    mode = known or FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    env: Any = mode.shape_env
    examples: list[Any] = [_without_data(value, mode) for value in inputs]
    for i, hint in enumerate(numbers):
        source = _Named(i)
        symbol = env.create_unspecified_symbol(hint, source, DimDynamic.DYNAMIC)
        examples.append(env.create_symfloatnode(symbol, hint=hint, source=source))
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), examples, strict=True):
        node.meta["example_value"] = value
    return examples
