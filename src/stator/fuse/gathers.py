"""Gathering first: of a few numbers of what is computed element by element, only those are computed.

Enters: a joint graph, and how an operator runs on example values. Leaves: the same graph, where a `gather` picks from
what its source was computed from, and the computation follows it. A loss that takes one class of each row has no need
of a log softmax of them all then. What holds: the numbers stay the same; so does where a check of an index fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten
RunOp = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
_FEWER = 4  # times as many elements must the source have
_MOST = 8  # operators that are computed again for what is picked


def gather_first(module: fx.GraphModule, run: RunOp) -> None:
    """In place."""
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=aten.gather.default):
        source: Any = node.args[0]
        given, picked = source.meta.get("val"), node.meta.get("val")
        if _is_known(given, picked) and given.numel() >= _FEWER * picked.numel() > 0:
            made = _Gather(module.graph, node, run).of(source)
            if made is not None and made.meta["val"].stride() == picked.stride():
                node.replace_all_uses_with(made)
                changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()


def _is_known(*values: Any) -> bool:
    return all(isinstance(v, Tensor) and all(type(n) is int for n in (*v.shape, *v.stride())) for v in values)


class _Gather:
    """A `gather`, and what it picks from."""

    def __init__(self, graph: fx.Graph, node: fx.Node, run: RunOp) -> None:
        self._graph, self._node, self._run = graph, node, run
        args: Any = node.args
        self._index: fx.Node = args[2]
        self._dim = args[1] % max(args[0].meta["val"].dim(), 1)
        self._sizes: list[int] = list(args[0].meta["val"].shape)
        self._left = _MOST
        picked = list(self._index.meta["val"].shape)
        others = [(n, m) for d, (n, m) in enumerate(zip(self._sizes, picked, strict=False)) if d != self._dim]
        self._whole = len(picked) == len(self._sizes) and all(n == m for n, m in others)

    def of(self, source: Any) -> fx.Node | None:
        """What is picked from a node of the same sizes; None: there is nothing to gain."""
        op: Any = source.target
        tags = getattr(op, "tags", ())
        if (
            not self._whole
            or source.op != "call_function"
            or torch.Tag.pointwise not in tags
            or torch.Tag.nondeterministic_seeded in tags
            or not self._left
        ):
            return None
        self._left -= 1
        operands = [node for node in source.all_input_nodes if isinstance(node.meta.get("val"), Tensor)]
        parts = {node: self._part(node) for node in operands}
        if None in parts.values() or all(parts[node] is node for node in operands):
            return None
        args, kwargs = fx.node.map_arg((source.args, source.kwargs), lambda node: parts.get(node, node))
        return self._emit(op, args, kwargs, source)

    def _part(self, node: fx.Node) -> fx.Node | None:
        value = node.meta["val"]
        if not _is_known(value):
            return None
        if list(value.shape) == self._sizes:
            return self.of(node) or self._emit(aten.gather.default, (node, self._dim, self._index), {}, self._node)
        along = self._dim - (len(self._sizes) - value.dim())  # it is the same along this dimension
        return node if along < 0 or value.shape[along] == 1 else None

    def _emit(self, op: Any, args: Any, kwargs: Any, like: fx.Node) -> fx.Node:
        with self._graph.inserting_before(self._node):
            made = self._graph.call_function(op, args, kwargs)
        given = fx.node.map_arg((args, kwargs), lambda node: node.meta["val"])
        made.meta = {**like.meta, "val": self._run(op, *given)}
        return made
