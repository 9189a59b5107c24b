"""Graphs that differ from one another in a number: models of a sweep, each with a rate or a scale of its own.

Enters: a graph and its example inputs. Leaves: if one has been compiled that differs in floats alone, the same graph
with these floats as inputs, which equal graphs share (`autograd/equal_graphs.py`), and the floats to call it with.
It is for code generators that take long. What is assumed of the floats while it is compiled is true of those at hand.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import fx

from ..autograd.equal_graphs import content_of
from ..support.guard_readers import shared_storages
from .data_scalars import as_symbols

_NAMES = ("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_")
_FUNCTIONS = frozenset(
    (operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div)
)
_MOST = 4096
_floats_of: dict[int, list[tuple[float, ...]]] = {}  # by what is left of a graph: those it was compiled with
Derive = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def compile_nearly(
    gm: fx.GraphModule, inputs: Sequence[Any], about: Hashable, derive: Derive
) -> Callable[..., Any] | None:
    """The graph, compiled for any floats; None if no other one is near, or it is to be compiled as it is."""
    places = [node for node in gm.graph.nodes if _takes_float(node)]
    if not places or not all(isinstance(value, torch.Tensor) for value in inputs):
        return None
    floats = tuple([node.args[1] for node in places])
    content = content_of(gm, inputs, about, without=places)
    if content is None or shared_storages(inputs):
        return None
    known = _known(hash(content))
    if not known or floats in known:
        known.append(floats)
        return None
    varying = [i for i, value in enumerate(floats) if any(value != other[i] for other in known)]
    lifted = _lift(gm, [places[i] for i in varying])
    values = [floats[i] for i in varying]
    compiled = derive(lifted, as_symbols(lifted, inputs, values))

    def run(*given: Any) -> Any:
        return compiled(*given, *values)

    run.writes_last = getattr(compiled, "writes_last", False)  # type: ignore[attr-defined]
    return run


def _known(key: int) -> list[tuple[float, ...]]:
    if len(_floats_of) >= _MOST:
        _floats_of.clear()
    return _floats_of.setdefault(key, [])


def _takes_float(node: fx.Node) -> bool:
    """Is it arithmetic of a tensor and a number, which may be any? (Algebra has but one zero, and no infinity.)"""
    if node.op == "call_method":
        known = node.target in _NAMES
    else:
        known = node.op == "call_function" and node.target in _FUNCTIONS
    if not known or len(node.args) != 2 or node.kwargs:
        return False
    number = node.args[1]
    return isinstance(node.args[0], fx.Node) and type(number) is float and number != 0 and math.isfinite(number)


def _lift(gm: fx.GraphModule, places: Sequence[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    numbers: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op != "placeholder" and not numbers:
            numbers = {place: graph.placeholder(f"number_{i}") for i, place in enumerate(places)}
        copies[node] = copy = graph.node_copy(node, copies.__getitem__)
        if node in numbers:
            copy.args = (copy.args[0], numbers[node])
    lifted = fx.GraphModule(gm, graph)
    lifted.meta.update(gm.meta)
    return lifted
