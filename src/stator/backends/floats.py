"""Floats that change, for a code generator that does not know them: it gets all of them in one tensor.

Enters: a forward or backward graph with its example inputs. Leaves: the same graph, with one more input: a vector of
the floats that operators take; and a function that computes these floats from the graph's inputs, in Python, as eager
does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import CannotDerive
from ..fuse.decompose import RULES

aten = torch.ops.aten
_EXACT = (torch.float32, torch.float64)  # operands that eager computes with in their own type
_LARGEST = torch.finfo(torch.float32).max

# Operators on a tensor and a number, and the same on two tensors. With others (`pow`, `clamp`) it makes a difference.
_OF_TENSORS: dict[Any, Any] = {
    **{getattr(aten, name).Tensor: getattr(aten, name).Tensor for name in ("add", "sub", "mul", "div")},
    **{getattr(aten, name).Scalar: getattr(aten, name).Tensor for name in ("add", "sub", "mul", "div", "rsub")},
    **{getattr(aten, name).Scalar: getattr(aten, name).Tensor for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}


# `x + value * y / z`, in the order in which eager computes it.
_WITH_A_VALUE: dict[Any, Any] = {aten.addcdiv.default: aten.div.Tensor, aten.addcmul.default: aten.mul.Tensor}


def lerp(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition of `aten.lerp.Scalar`; with weights that do not change, by `otherwise`. There are two formulas;
    which one holds for a weight that changes is told where it is known: in the graph."""

    def decompose(start: Tensor, end: Tensor, weight: Any) -> Any:
        if not isinstance(weight, torch.SymFloat):
            return otherwise(start, end, weight)
        factor: Tensor = torch.zeros((), dtype=start.dtype, device=start.device) + weight  # type: ignore[operator]
        apart = end - start
        return torch.where(factor.abs() < 0.5, start + factor * apart, end - apart * (1 - factor))

    return decompose


def one_by_one(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Decompositions of `_foreach_…` with numbers that change, which are operators on a tensor and a number each."""
    rules = {op: rule for op, rule in RULES.items() if op._schema.name.startswith("aten::_foreach_")}
    return {op: _where_floats_change(rule, table.get(op)) for op, rule in rules.items()}


def _where_floats_change(rule: Callable[..., Any], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def decompose(*args: Any, **kwargs: Any) -> Any:
        given = [
            part for arg in (*args, *kwargs.values()) for part in (arg if isinstance(arg, (list, tuple)) else [arg])
        ]
        if any(isinstance(part, torch.SymFloat) for part in given):
            return rule(*args, **kwargs)
        return NotImplemented if otherwise is None else otherwise(*args, **kwargs)

    return decompose


def take_in_tensors(module: fx.GraphModule, examples: Sequence[Any]) -> tuple[list[Any], Callable[..., Any] | None]:
    """Rewrite the graph; its example inputs from now on, and what computes those that are new, if there are any."""
    graph = module.graph
    taken = [node for node in graph.nodes if _is_float(node) and any(map(_is_operator, node.users))]
    if not taken:
        return list(examples), None
    numbers = _computed(graph, taken)
    mode = next((value.fake_mode for value in examples if hasattr(value, "fake_mode")), None)
    if mode is None:
        raise CannotDerive("a float that changes, and no tensor")
    rewriter = _Rewriter(graph, mode, taken)
    for node in [node for node in graph.nodes if _is_operator(node) and any(map(_is_float, node.all_input_nodes))]:
        rewriter.rewrite(node)
    module.recompile()
    factors = [index for index, node in enumerate(taken) if node in rewriter.factors]
    return [*examples, rewriter.example], (lambda *inputs: _checked(numbers(*inputs), factors))


def _checked(numbers: Sequence[float], factors: Sequence[int]) -> Sequence[float]:
    """`alpha=` must be a number of the tensors' type. If it is none the graph fails, and eager says what is wrong."""
    if any(_LARGEST < abs(numbers[index]) < math.inf for index in factors):
        raise RuntimeError("a factor is too large for the type of the tensors")
    return numbers


def _is_float(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymFloat)


def _is_operator(node: fx.Node) -> bool:
    return node.op == "call_function" and not isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat)


def _computed(graph: fx.Graph, wanted: Sequence[fx.Node]) -> Callable[..., Any]:
    """The part of a graph that computes these numbers, as a function of the graph's inputs."""
    given = graph.find_nodes(op="placeholder")
    if all(node.op == "placeholder" for node in wanted):
        places = [given.index(node) for node in wanted]
        return lambda *inputs: [inputs[place] for place in places]
    needed: set[fx.Node] = set()

    def need(node: fx.Node) -> None:
        if node not in needed:
            needed.add(node)
            for read in node.all_input_nodes:
                need(read)

    for node in wanted:
        need(node)
    part = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in wanted))
    return fx.GraphModule(torch.nn.Module(), part).forward


class _Rewriter:
    def __init__(self, graph: fx.Graph, mode: Any, floats: Sequence[fx.Node]) -> None:
        self._graph, self._mode = graph, mode
        self.floats: dict[fx.Node, fx.Node] = {}  # and what has them in tensors
        self.factors: set[Any] = set()  # those that are given as `alpha`, to float32
        *_, last = graph.find_nodes(op="placeholder")
        with mode:
            self.example = torch.empty(len(floats), dtype=torch.float64)
        with graph.inserting_after(last):
            vector = graph.placeholder("floats_in_a_tensor")
        vector.meta["val"] = self.example
        with graph.inserting_before(vector.next):
            for index, node in enumerate(floats):
                self.floats[node] = self._call(aten.select.int, vector, 0, index)

    def rewrite(self, node: fx.Node) -> None:
        """An operator that takes floats takes tensors."""
        kinds = {val.dtype for val in self._tensors(node)}
        if len(kinds) != 1 or not kinds <= {*_EXACT}:
            raise CannotDerive(f"{node.target} on a float that changes and {', '.join(map(str, kinds)) or 'no tensor'}")
        (kind,) = kinds
        with self._graph.inserting_before(node):
            value = self._in_tensor(node.kwargs.get("value"), kind)
            if value is not None and node.target in _WITH_A_VALUE:
                x, y, z = node.args
                term = self._call(_WITH_A_VALUE[node.target], self._call(aten.mul.Tensor, y, value), z)
                node.target, node.args, node.kwargs = aten.add.Tensor, (x, term), {}
                return
            alpha = self._in_tensor(node.kwargs.get("alpha"), kind)
            if alpha is not None:
                x, y = node.args
                if not isinstance(y, fx.Node):
                    raise CannotDerive(f"{node.target} of numbers that change")
                if kind is torch.float32:
                    self.factors.add(node.kwargs["alpha"])
                node.args, node.kwargs = (x, self._call(aten.mul.Tensor, y, alpha)), {}
            args = tuple(self._in_tensor(arg, kind) or arg for arg in node.args)
            if args == node.args and alpha is not None:
                return
        if (
            node.target not in _OF_TENSORS
            or len(args) != 2
            or any(value in self.floats for value in node.kwargs.values())
        ):
            raise CannotDerive(f"{node.target} takes a float that changes")
        node.target, node.args = _OF_TENSORS[node.target], args

    def _tensors(self, node: fx.Node) -> Iterator[Tensor]:
        return (val for read in node.all_input_nodes if isinstance(val := read.meta.get("val"), Tensor))

    def _in_tensor(self, value: Any, kind: torch.dtype) -> fx.Node | None:
        given = self.floats.get(value) if isinstance(value, fx.Node) else None
        if given is None or kind is torch.float64:
            return given
        return self._call(torch.ops.prims.convert_element_type.default, given, kind)

    def _call(self, operator: Any, *args: Any) -> fx.Node:
        node = self._graph.call_function(operator, args)
        with self._mode:
            node.meta["val"] = operator(*(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args))
        return node
