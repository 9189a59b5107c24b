"""Optimising the joint graph before it is cut: passes over a pure graph, each named, timed and printable.

Enters: a joint graph. Leaves: the same graph, with fewer nodes. What holds: forward results keep their memory to
themselves. A node that is a forward result, or that one is a view of, is never replaced by another (`Pass.fixed`);
its arguments may be.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import getitem as _getitem
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._prims_common import is_contiguous_or_false

from ..support.op_namespaces import has_promised_sizes
from .operators import EFFECTS, facts
from .symbols import is_symbolic, surely_equal, symbol_of

aten = torch.ops.aten


@dataclass(frozen=True)
class PassRun:
    """What one pass did to one graph."""

    name: str
    seconds: float
    before: int  # nodes
    after: int
    text: str = ""  # the graph after it, as runnable Python, if that was asked for

    def __str__(self) -> str:
        return f"{self.name}: {self.before} nodes to {self.after}, {self.seconds * 1e3:.1f} ms"


def optimise(module: fx.GraphModule, results: int, *, texts: bool = False) -> list[PassRun]:
    """Run all passes over a joint graph, in place. Its first `results` outputs are the forward's."""
    runs = []
    fixed = _fixed(module.graph, results)
    for name, change in PASSES.items():
        before, start = len(module.graph.nodes), time.perf_counter()
        change(module.graph, fixed)
        seconds = time.perf_counter() - start
        module.recompile()
        text = module.print_readable(print_output=False) if texts else ""
        runs.append(PassRun(name, seconds, before, len(module.graph.nodes), text))
    return runs


def _fixed(graph: fx.Graph, results: int) -> set[fx.Node]:
    """Forward results, and what they are views of."""
    returned: Any = graph.output_node().args[0]
    fixed: set[fx.Node] = set()
    for node in returned[:results]:
        while isinstance(node, fx.Node) and node not in fixed:
            fixed.add(node)
            node = _seen(node)
    return fixed


def _seen(node: fx.Node) -> fx.Node | None:
    """The node that this one is a view of."""
    op: Any = node.target
    if op is _getitem or op is aten._unsafe_view.default:
        position: int | None = 0
    else:
        position = facts(op).view_of if isinstance(op, OpOverload) else None
    seen = None if position is None else node.args[position]
    return seen if isinstance(seen, fx.Node) else None


def _replace(graph: fx.Graph, node: fx.Node, by: fx.Node) -> None:
    node.replace_all_uses_with(by)
    graph.erase_node(node)


# --------------------------------------------------------------------------------------------------- dead code


def _stays(node: fx.Node) -> bool:
    """Nodes that stay although nobody reads them: random ones, since later numbers depend on them, sizes that others
    are computed from, since whoever compiles the graph may want them, and what the program itself says the sizes of:
    these are compared with what comes."""
    if node.op in ("placeholder", "output") or symbol_of(node.meta.get("val")) is not None:
        return True
    if has_promised_sizes(node):
        return True
    return isinstance(node.target, OpOverload) and (facts(node.target).random or node.target in EFFECTS)


def drop_dead_code(graph: fx.Graph, fixed: set[fx.Node]) -> None:
    for node in reversed(graph.nodes):
        if not node.users and not _stays(node):
            graph.erase_node(node)


# ------------------------------------------------------------------------------------------------------- views


def merge_views(graph: fx.Graph, fixed: set[fx.Node]) -> None:
    """A view of a view is a view of the first; a view that changes nothing is what it looks at."""
    for node in graph.nodes:
        merge = _MERGE.get(node.target) if node.op == "call_function" else None
        if merge is None:
            continue
        merge(node)
        seen = _seen(node)
        if seen is not None and node not in fixed and _looks_same(node, seen) and _SHAPE_TELLS_ALL.get(node.target):
            _replace(graph, node, seen)


def _looks_same(one: fx.Node, other: fx.Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    if not isinstance(b, torch.Tensor):  # a number
        return False
    return a.dtype == b.dtype and surely_equal(a.shape, b.shape) and surely_equal(a.stride(), b.stride())


def _source(node: fx.Node, *ops: Any) -> fx.Node | None:
    """What the node's first argument was computed from, if that was by one of these operators."""
    inner = node.args[0]
    if isinstance(inner, fx.Node) and inner.target in ops and isinstance(inner.args[0], fx.Node):
        return inner
    return None


def _merge_reshape(node: fx.Node) -> None:
    inner = _source(node, aten.view.default, aten._unsafe_view.default)
    if inner is not None:
        _look_through(node, inner)


def _look_through(node: fx.Node, inner: fx.Node) -> None:
    first: Any = inner.args[0]
    if node.target not in (aten.view.default, aten._unsafe_view.default) or _allows(first.meta["val"], node.args[1]):
        node.update_arg(0, first)


def _allows(value: torch.Tensor, size: Any) -> bool:
    """Whether a tensor's strides allow a view of this size. Of symbolic sizes it is not asked, which may add guards."""
    if any(isinstance(number, fx.Node) for number in size) or is_symbolic(value.numel()):
        return is_contiguous_or_false(value)
    try:
        value.view(size)
    except RuntimeError:
        return False
    return True


def _merge_swap(node: fx.Node) -> None:
    """`t` of `t`, or `transpose` of the same `transpose`: becomes a view that changes nothing."""
    inner = _source(node, node.target)
    if inner is not None and inner.args[1:] == node.args[1:]:
        first: Any = inner.args[0]
        node.target = aten.permute.default
        node.args = (first, list(range(first.meta["val"].dim())))


def _merge_permute(node: fx.Node) -> None:
    inner = _source(node, aten.permute.default)
    if inner is not None:
        outer_dims: Any = node.args[1]
        inner_dims: Any = inner.args[1]
        node.args = (inner.args[0], [inner_dims[d] for d in outer_dims])


def _leave(node: fx.Node) -> None:
    """Nothing to merge with; it may still change nothing."""


_MERGE: dict[Any, Callable[[fx.Node], None]] = {
    aten.view.default: _merge_reshape,
    aten._unsafe_view.default: _merge_reshape,
    aten.t.default: _merge_swap,
    aten.transpose.int: _merge_swap,
    aten.permute.default: _merge_permute,
    aten.expand.default: _leave,
    aten.slice.Tensor: _leave,
}
# Views which, if size and strides come out the same, look at the same elements.
_SHAPE_TELLS_ALL = dict.fromkeys(_MERGE, True)


# ------------------------------------------------------------------------------------------------------- casts


def cancel_casts(graph: fx.Graph, fixed: set[fx.Node]) -> None:
    """To a type that holds all values of the first, and back: nothing was done."""
    for node in graph.find_nodes(op="call_function", target=aten._to_copy.default):
        inner = _source(node, aten._to_copy.default)
        if inner is None or node in fixed:
            continue
        first: Any = inner.args[0]
        value = first.meta["val"]
        holds = torch.promote_types(value.dtype, inner.meta["val"].dtype) is inner.meta["val"].dtype
        floats = value.dtype.is_floating_point and inner.meta["val"].dtype.is_floating_point
        if holds and floats and _looks_same(node, first) and value.device == node.meta["val"].device:
            _replace(graph, node, first)


# --------------------------------------------------------------------------------------------------- constants


def fold_constants(graph: fx.Graph, fixed: set[fx.Node]) -> None:
    """Tensors that hold one number everywhere become `full`; numbers that change nothing go."""
    known: dict[fx.Node, Any] = {}  # node -> the number it holds everywhere
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        fill = _FILL.get(node.target)
        if fill is not None:
            number = fill(node)
            if number is not None:
                known[node] = number
            continue
        same = _neutral(node, known)
        if same is not None and node not in fixed and _looks_same(node, same):
            _replace(graph, node, same)
        elif node.target in _OF_NUMBERS:
            number = _compute(node, known)
            if number is not None:
                known[node] = number
                _write_full(graph, node, number)


def _neutral(node: fx.Node, known: dict[fx.Node, Any]) -> fx.Node | None:
    """The operand that comes out unchanged, because the other is 1 or 0."""
    rule = _NEUTRAL.get(node.target)
    if rule is None or len(node.args) != 2 or node.kwargs:
        return None
    number, either = rule
    for position in (0, 1) if either else (0,):
        kept, other = node.args[position], node.args[1 - position]
        value = known.get(other) if isinstance(other, fx.Node) else other
        if isinstance(kept, fx.Node) and isinstance(value, (int, float)) and value == number:
            return kept
    return None


def _compute(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """The number that comes of numbers, computed by the operator itself."""
    numbers: list[Any] = []
    for arg in node.args:
        if isinstance(arg, fx.Node):
            if arg not in known:
                return None
            value = arg.meta["val"]
            numbers.append(torch.full((1,) * min(value.dim(), 1), known[arg], dtype=value.dtype))
        else:
            numbers.append(arg)
    if node.kwargs or not any(isinstance(arg, fx.Node) for arg in node.args):
        return None
    target: Any = node.target
    if target in _SAME_NUMBER:
        return known[node.all_input_nodes[0]]
    return target(*numbers).flatten()[0].item()


def _write_full(graph: fx.Graph, node: fx.Node, number: Any) -> None:
    value = node.meta["val"]
    if not all(type(size) is int for size in value.shape) or not value.is_contiguous():
        return
    node.target = aten.full.default
    node.args = (list(value.shape), number)
    device = torch.device("cpu") if value.device.type == "meta" else value.device
    node.kwargs = {"dtype": value.dtype, "device": device, "pin_memory": False}


def _second(node: fx.Node) -> Any:
    return _number(node.args[1])


def _number(arg: Any) -> Any:
    return arg if isinstance(arg, (int, float)) else None


_FILL: dict[Any, Callable[[fx.Node], Any]] = {
    aten.full.default: _second,
    aten.full_like.default: _second,
    aten.fill.Scalar: _second,
    aten.scalar_tensor.default: lambda node: _number(node.args[0]),
    aten.ones.default: lambda node: 1,
    aten.ones_like.default: lambda node: 1,
    aten.zeros.default: lambda node: 0,
    aten.zeros_like.default: lambda node: 0,
    aten.new_zeros.default: lambda node: 0,
    aten.new_ones.default: lambda node: 1,
    aten.zero.default: lambda node: 0,
}
_NEUTRAL: dict[Any, tuple[int, bool]] = {  # operator -> (number, may it stand on either side?)
    aten.mul.Tensor: (1, True),
    aten.mul.Scalar: (1, False),
    aten.div.Tensor: (1, False),
    aten.div.Scalar: (1, False),
    aten.add.Tensor: (0, True),
    aten.add.Scalar: (0, False),
    aten.sub.Tensor: (0, False),
    aten.sub.Scalar: (0, False),
    aten.pow.Tensor_Scalar: (1, False),
}
_SAME_NUMBER = frozenset({aten.expand.default, aten.view.default, aten.t.default, aten.clone.default})
_OF_NUMBERS = _SAME_NUMBER | {op for op in _NEUTRAL if op is not aten.pow.Tensor_Scalar} | {aten.neg.default}


# -------------------------------------------------------------------------------------- common subexpressions


def share_common(graph: fx.Graph, fixed: set[fx.Node]) -> None:
    """The same operator on the same arguments is computed once."""
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or (isinstance(node.target, OpOverload) and facts(node.target).random):
            continue
        try:
            key = (node.target, _key(node.args), _key(node.kwargs), node.meta.get("checkpoint_region"))
            former = first.setdefault(key, node)
        except TypeError:  # an argument that cannot be a key
            continue
        if former is not node and node not in fixed:
            _replace(graph, node, former)


def _key(arg: Any) -> Any:
    if isinstance(arg, (list, tuple)):
        return tuple([_key(item) for item in arg])
    if isinstance(arg, dict):
        return tuple([(name, _key(item)) for name, item in arg.items()])
    return (type(arg), arg) if isinstance(arg, (int, float)) else arg


PASSES: dict[str, Callable[[fx.Graph, set[fx.Node]], None]] = {
    "dead code": drop_dead_code,
    "views": merge_views,
    "casts": cancel_casts,
    "constants": fold_constants,
    "common subexpressions": share_common,
    "what that left dead": drop_dead_code,
}
