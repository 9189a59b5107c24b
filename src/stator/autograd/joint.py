"""Optimising the joint graph, before it is cut: passes over a pure graph, each named, timed and printable."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx
from torch._ops import OpOverload

from .operators import facts

aten = torch.ops.aten


@dataclass(frozen=True)
class PassRun:
    """What one pass did to one graph."""

    name: str
    seconds: float
    before: int  # nodes
    after: int

    def __str__(self) -> str:
        return f"{self.name}: {self.before} nodes to {self.after}, {self.seconds * 1e3:.1f} ms"


def optimise(module: fx.GraphModule) -> list[PassRun]:
    """Run all passes over a joint graph, in place."""
    runs = []
    for name, change in PASSES.items():
        before, start = len(module.graph.nodes), time.perf_counter()
        change(module.graph)
        runs.append(PassRun(name, time.perf_counter() - start, before, len(module.graph.nodes)))
    module.recompile()
    return runs


def _keeps_itself(node: fx.Node) -> bool:
    """Nodes that stay although nobody reads them: random ones, since later numbers depend on them."""
    if node.op in ("placeholder", "output"):
        return True
    return isinstance(node.target, OpOverload) and (facts(node.target).random or node.target in _EFFECTS)


_EFFECTS = frozenset({aten._assert_async.msg, aten._assert_async.default, aten._assert_tensor_metadata.default})


def drop_dead_code(graph: fx.Graph) -> None:
    for node in reversed(graph.nodes):
        if not node.users and not _keeps_itself(node):
            graph.erase_node(node)


PASSES: dict[str, Callable[[fx.Graph], None]] = {
    "dead code": drop_dead_code,
}
