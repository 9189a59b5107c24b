"""`backend="inductor"`: torch's code generator on our graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    # An import that takes seconds, and only this backend needs it.
    from torch._inductor.compile_fx import compile_fx

    # The one place where torch's ahead-of-time autograd is still used: `compile_fx` derives the backward graph with it.
    compiled: Any = compile_fx(gm, list(example_inputs))
    return compiled  # type: ignore[no-any-return]  # typed loosely there; called with the graph's inputs
