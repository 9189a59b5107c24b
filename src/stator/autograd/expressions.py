"""Expressions over symbols, written as nodes of a graph."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx
from torch.fx.node import map_arg
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis


def _call(function: Callable[..., Any]) -> Any:
    """A step of an expression that Python has no operator for."""
    return staticmethod(lambda x, *_: x.tracer.create_proxy("call_function", function, (x,), {}))


class _Steps(PythonReferenceAnalysis):
    """How expressions are computed: torch's reference, and what it does not do on proxies."""

    floor_to_int = _call(math.floor)
    ceil_to_int = _call(math.ceil)
    trunc_to_int = _call(math.trunc)
    round_to_int = _call(round)
    int_truediv = staticmethod(operator.truediv)


class _Writer(fx.proxy.GraphAppendingTracer):
    """Appends nodes with their example values."""

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        target: Any = node.target
        given, named = map_arg((node.args, node.kwargs), lambda read: read.meta["val"])
        node.meta["val"] = target(*given, **named)
        return node


def write(graph: fx.Graph, expression: Any, symbols: Mapping[Any, fx.Node]) -> fx.Node:
    """Append the steps that compute an expression which is neither a symbol nor a known number."""
    tracer = _Writer(graph)
    written: fx.Proxy = sympy_interp(_Steps, {s: fx.Proxy(node, tracer) for s, node in symbols.items()}, expression)
    return written.node
