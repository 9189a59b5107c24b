"""Convolutions in channels-last: where a library is fastest that way, and turns every image over and back otherwise.

Enters: a joint graph, and how an operator runs on example values. Leaves: the same graph, in which convolutions take
and give images whose channels are neighbours in memory, and so do the operators around them. What holds: the numbers
stay the same, and so do the strides of results and gradients. Operators that are not known to go by indices alone get
what they take as it lay before.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .gathers import RunOp

aten = torch.ops.aten
_CONVOLUTIONS: dict[Any, tuple[int, ...]] = {
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (0, 1, 2),
}  # and their images
_VIEWS = frozenset(
    getattr(getattr(aten, name), overload)
    for name, overload in (
        ("view", "default"), ("permute", "default"), ("transpose", "int"), ("t", "default"), ("slice", "Tensor"),
        ("select", "int"), ("squeeze", "dim"), ("squeeze", "dims"), ("squeeze", "default"), ("unsqueeze", "default"),
        ("expand", "default"), ("alias", "default"), ("detach", "default"),
    )
)  # fmt: skip
# What these give depends on indices and not on where things lie.
_BY_INDEX = frozenset(
    getattr(getattr(aten, name), overload)
    for name, overload in (
        ("sum", "dim_IntList"), ("sum", "default"), ("mean", "dim"), ("mean", "default"), ("amax", "default"),
        ("amin", "default"), ("var", "correction"), ("var_mean", "correction"), ("cat", "default"),
        ("constant_pad_nd", "default"), ("max_pool2d_with_indices", "default"), ("avg_pool2d", "default"),
        ("max_pool2d_with_indices_backward", "default"), ("avg_pool2d_backward", "default"),
        ("_adaptive_avg_pool2d", "default"), ("_adaptive_avg_pool2d_backward", "default"),
        ("upsample_nearest2d", "default"), ("upsample_bilinear2d", "default"), ("clone", "default"),
        ("_to_copy", "default"), ("_unsafe_view", "default"), ("slice_backward", "default"),
    )
)  # fmt: skip


def prefer_channels_last(module: fx.GraphModule, run: RunOp, *, kind: str = "cuda") -> None:
    """In place, for convolutions on this kind of device."""
    turned = {node for node in module.graph.nodes if _turns(node, kind)}
    if turned and _has_known_sizes(module.graph):
        _Layouts(module.graph, run, turned).change()
        module.graph.eliminate_dead_code()
        module.recompile()


def _turns(node: fx.Node, kind: str) -> bool:
    """Is this a convolution that is faster so?"""
    if node.target not in _CONVOLUTIONS:
        return False
    args: Any = node.args
    images = [args[at].meta["val"] for at in _CONVOLUTIONS[node.target]]
    groups = args[8 if node.target is aten.convolution.default else 9]
    exact = images[0].dtype is torch.float32 and not torch.backends.cudnn.allow_tf32
    return bool(
        groups == 1
        and not exact
        and all(v.dim() == 4 and v.device.type == kind and v.dtype is images[0].dtype for v in images)
        and images[0].dtype in (torch.float32, torch.bfloat16, torch.float16)
    )


def _has_known_sizes(graph: fx.Graph) -> bool:
    values = [value for node in graph.nodes for value in _tensors(node.meta.get("val"))]
    return all(type(number) is int for value in values for number in (*value.shape, *value.stride()))


def _tensors(value: Any) -> list[Tensor]:
    parts = value if isinstance(value, (list, tuple)) else [value]
    return [part for part in parts if isinstance(part, Tensor)]


def _lies_as(one: Any, other: Any) -> bool:
    """Do these have the same strides? Those of dimensions of one element mean nothing."""
    pairs = list(zip(_tensors(one), _tensors(other), strict=True))
    return all(
        n == 1 or s == u for a, b in pairs for n, s, u in zip(a.shape, a.stride(), b.stride(), strict=True)
    )  # fmt: skip


def _is_dense(value: Tensor) -> bool:
    reach = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return value.numel() > 0 and reach == value.numel()


class _Layouts:
    def __init__(self, graph: fx.Graph, run: RunOp, turned: Collection[fx.Node]) -> None:
        self._graph, self._run, self._turning = graph, run, turned
        self._was: dict[fx.Node, Any] = {}  # example values before, of nodes that lie otherwise now
        self._turned: dict[fx.Node, fx.Node] = {}  # nodes in channels-last
        self._restored: dict[fx.Node, fx.Node] = {}  # nodes as they lay before

    def change(self) -> None:
        for node in list(self._graph.nodes):
            if node in self._turning:
                self._turn(node)
            elif any(source in self._was for source in node.all_input_nodes) and not self._follow(node):
                restored = functools.partial(self._restore, at=node)
                node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), restored)

    def _turn(self, node: fx.Node) -> None:
        args = list(node.args)
        for at in _CONVOLUTIONS[node.target]:
            args[at] = self._in_channels_last(args[at], node)
        node.args = tuple(args)
        self._lies(node, self._values(node))

    def _in_channels_last(self, source: Any, at: fx.Node) -> fx.Node:
        value = source.meta["val"]
        if value.is_contiguous(memory_format=torch.channels_last):
            return source
        if source not in self._turned:
            with self._graph.inserting_before(at):
                self._turned[source] = self._emit(source, torch.channels_last)
        return self._turned[source]

    def _emit(self, source: fx.Node, form: torch.memory_format) -> fx.Node:
        made = self._graph.call_function(aten.clone.default, (source,), {"memory_format": form})
        made.meta = {**source.meta, "val": self._run(aten.clone.default, (source.meta["val"],), dict(made.kwargs))}
        made.meta.pop("parameter", None)
        return made

    def _values(self, node: fx.Node) -> Any:
        args: Any
        kwargs: Any
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        if node in self._turning:  # the library gives what it takes, whatever is said of tensors without data
            return fx.node.map_aggregate(node.meta["val"], self._as_channels_last)
        target: Any = node.target
        return self._run(target, args, kwargs) if target is not operator.getitem else target(*args)

    def _as_channels_last(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() != 4:
            return value
        return self._run(aten.clone.default, (value,), {"memory_format": torch.channels_last})

    def _follow(self, node: fx.Node) -> bool:
        """The operator takes things as they lie now, if it may."""
        if not _goes_by_index(node):
            return False
        try:
            found = self._values(node)
        except (RuntimeError, ValueError):  # a view that there is not of these strides
            return False
        before = node.meta["val"]
        if _lies_as(found, before):
            return True
        if node.target not in _VIEWS and not all(map(_is_dense, _tensors(before))):
            return False  # nobody could put that back
        self._lies(node, found)
        return True

    def _lies(self, node: fx.Node, found: Any) -> None:
        if not _lies_as(found, node.meta["val"]):
            self._was[node] = node.meta["val"]
            node.meta["val"] = found

    def _restore(self, source: Any, at: fx.Node) -> fx.Node:
        """As it lay before: a view is taken of what it is a view of, anything else is a copy."""
        if source not in self._was:
            return source
        if source not in self._restored:
            if source.target in _VIEWS:
                base = self._restore(source.args[0], at)
                with self._graph.inserting_before(at):
                    made = self._graph.call_function(source.target, (base, *source.args[1:]), source.kwargs)
                made.meta = {**source.meta, "val": self._was[source]}
            else:
                made = self._copied_back(source, self._was[source], at)
            self._restored[source] = made
        return self._restored[source]

    def _copied_back(self, source: fx.Node, before: Tensor, at: fx.Node) -> fx.Node:
        order = sorted(range(before.dim()), key=lambda dim: (before.stride(dim), before.shape[dim]), reverse=True)
        with self._graph.inserting_before(at):
            if order == list(range(before.dim())):
                made = self._emit(source, torch.contiguous_format)
            else:
                inside = self._view(aten.permute.default, source, order)
                copied = self._emit(inside, torch.contiguous_format)
                made = self._view(aten.permute.default, copied, [order.index(dim) for dim in range(len(order))])
        assert _lies_as(made.meta["val"], before)
        return made

    def _view(self, op: Any, source: fx.Node, dims: Sequence[int]) -> fx.Node:
        made = self._graph.call_function(op, (source, dims))
        made.meta = {**source.meta, "val": self._run(op, (source.meta["val"], dims), {})}
        return made


def _goes_by_index(node: fx.Node) -> bool:
    op: Any = node.target
    if op in _VIEWS or op in _BY_INDEX or op is operator.getitem:
        return True
    return torch.Tag.pointwise in getattr(op, "tags", ()) and torch.Tag.nondeterministic_seeded not in op.tags
