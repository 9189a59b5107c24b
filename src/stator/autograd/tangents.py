"""Backward graphs for the tangents that come. Of a model's results often only the loss has one.

Enters: the backward graph of all tangents, and its compiler. Leaves: compiled graphs by which tangents there are, each
made when it is first needed. What holds: as in eager, what is computed from missing tangents alone is not computed; a
gradient that nothing contributes to is None. Where an operator takes a missing one beside others, it gets zeros.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import fx

from ..support.graph_modules import LazyGraph
from .operators import facts

Boxed = Callable[[list[Any]], Sequence[Any]]
There = tuple[bool, ...]  # by tangent: is it given?

aten = torch.ops.aten


class Backwards:
    """Compiled backward graphs, by the tangents that they take."""

    def __init__(self, module: fx.GraphModule, tangents: Sequence[Any], compile: Callable[[fx.GraphModule], Boxed]):
        self._module, self._compile = module, compile
        self._all: There = (True,) * len(tangents)
        self.found: dict[There, tuple[Boxed, There]] = {}
        self.plain = _operator_by_operator(module), self._all  # where compiling fails while a backward runs
        self.of(self._likely(tangents))

    def _likely(self, tangents: Sequence[Any]) -> There:
        """If there are numbers among the results, these are losses."""
        losses = tuple([isinstance(t, torch.Tensor) and t.dim() == 0 for t in tangents])
        return losses if any(losses) else self._all

    def of(self, there: There) -> tuple[Boxed, There]:
        """The compiled graph, and the tangents that it takes."""
        found = self.found.get(there)
        if found is None:
            module = self._module if all(there) else without_missing(self._module, there)
            found = self.of(self._all) if module is None else (self._compile(module), there)
            self.found[there] = found
        return found


class OneBackward:
    """One compiled graph that takes all tangents."""

    def __init__(self, compiled: Boxed, tangents: int) -> None:
        self.found: dict[There, tuple[Boxed, There]] = {}
        self.plain = compiled, (True,) * tangents

    def of(self, there: There) -> tuple[Boxed, There]:
        return self.plain


def _operator_by_operator(module: fx.GraphModule) -> Boxed:
    def run(args: list[Any]) -> Sequence[Any]:
        given = tuple(args)
        args.clear()
        result: Sequence[Any] = module.forward(*given)
        return result

    return run


def without_missing(module: fx.GraphModule, there: There) -> fx.GraphModule | None:
    """The backward graph that takes fewer tangents; None if that cannot be told here."""
    given = module.graph.find_nodes(op="placeholder")[-len(there) :]
    missing: set[fx.Node] = {node for node, is_there in zip(given, there, strict=True) if not is_there}
    reached = set(given)  # what depends on a tangent
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "output":
            break
        if not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
        if missing.isdisjoint(node.all_input_nodes):
            if node not in missing:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        elif _is_missing(node, missing, reached):
            missing.add(node)
        elif (other := _other_summand(node, missing)) is not None:
            copies[node] = copies[other]
        elif not _fill_in(graph, node, missing, copies):
            return None
    returned: Any = module.graph.output_node().args[0]
    graph.output(tuple([copies.get(result) if isinstance(result, fx.Node) else result for result in returned]))
    graph.eliminate_dead_code(is_impure_node=_is_impure)
    return LazyGraph(module, graph)


def _is_impure(node: fx.Node) -> bool:
    """What stays though nobody reads it."""
    if node.op in ("placeholder", "output"):
        return True
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and (target._schema.is_mutable or facts(target).random)


# Operators that make zeros of zeros: by name, the positions of the arguments that this is said of. Of two, any.
_FIRST, _ANY = (0,), (0, 1)
_LINEAR: dict[str, tuple[int, ...]] = {
    **dict.fromkeys("neg sum mean _to_copy clone cumsum flip roll tril triu repeat".split(), _FIRST),
    **dict.fromkeys("index_select gather index div cat stack".split(), _FIRST),
    **dict.fromkeys("mul mm bmm add sub".split(), _ANY),
}
_SUMS = frozenset(("add", "sub"))


def _is_missing(node: fx.Node, missing: Set[fx.Node], reached: Set[fx.Node]) -> bool:
    """Whether eager would have no value: nothing but missing values enters, and the operator is linear in them."""
    if any(read in reached and read not in missing for read in node.all_input_nodes):
        return False
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem  # a part of what is missing
    if target.namespace != "aten":
        return False
    name = target._opname
    where = tuple([at for at, arg in enumerate(node.args) if not missing.isdisjoint(_nodes([arg]))])
    if name in _SUMS:
        return where == _ANY
    if target is aten.where.self:
        return 0 not in where and all(_is_zero(arg) for at, arg in enumerate(node.args[1:], 1) if at not in where)
    if facts(target).view_of is not None or name == "_unsafe_view" or name.endswith(("_backward", "_backward_data")):
        return where == _FIRST
    return bool(where) and set(where) <= {*_LINEAR.get(name, ())} and _nodes(node.kwargs.values()).isdisjoint(missing)


def _is_zero(value: Any) -> bool:
    """Whether it is a tensor of zeros, written as such."""
    if not isinstance(value, fx.Node):
        return False
    if value.target in (aten.full.default, aten.full_like.default):
        return bool(value.args[1] == 0)
    if value.target is aten.scalar_tensor.default:
        return bool(value.args[0] == 0)
    return value.target in (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)


def _nodes(args: Any) -> set[fx.Node]:
    found: set[fx.Node] = set()
    fx.node.map_arg(tuple(args), found.add)
    return found


def _other_summand(node: fx.Node, missing: Set[fx.Node]) -> fx.Node | None:
    """Of a sum with a missing value: what is left, if that has the sum's shape and type."""
    if node.target not in (aten.add.Tensor, aten.sub.Tensor) or node.kwargs:
        return None
    one, other = node.args[:2]
    if node.target is aten.add.Tensor and one in missing:
        one, other = other, one
    if other not in missing or not isinstance(one, fx.Node) or one in missing:
        return None
    value, kept = node.meta["val"], one.meta["val"]
    same = value.dtype is kept.dtype and value.shape == kept.shape and value.stride() == kept.stride()
    return one if same else None


def _fill_in(graph: fx.Graph, node: fx.Node, missing: Set[fx.Node], copies: dict[fx.Node, fx.Node]) -> bool:
    """The node, with zeros for what is missing; False if their size is not a number."""
    for read in node.all_input_nodes:
        if read in missing and read not in copies:
            value = read.meta.get("val")
            if not isinstance(value, torch.Tensor) or not all(type(n) is int for n in (*value.shape, *value.stride())):
                return False
            device = torch.device("cpu") if value.device.type == "meta" else value.device
            options: dict[str, Any] = {"dtype": value.dtype, "device": device, "pin_memory": False}
            zeros = graph.call_function(aten.full.default, (list(value.shape), 0), options)
            zeros.meta = {**read.meta, "val": value.new_empty(value.shape)}
            copies[read] = zeros
    copies[node] = graph.node_copy(node, copies.__getitem__)
    return True
