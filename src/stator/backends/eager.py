"""`backend="eager"`: the graph runs as it was captured, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from .tape import tape_of


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    return tape_of(gm.graph) or gm.forward
