"""Functions with a backward of the program's (`torch.autograd.Function`) in a trace.

Enters: the leaf of a graph, with the graph of its forward and what its backward reads (`support/graph_leaves.py`).
Leaves: the results of its forward on stand-ins, and a node of autograd that runs the program's backward on stand-ins,
too. So both become nodes of the joint graph. What the backward has read is compared whenever the graph's backward is to
run; if it would read something else, or is given other gradients than here, the program's own backward runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from ..errors import CannotDerive
from ..interrupts import let_through
from ..support.graph_leaves import TENSOR, CustomFunction, Inside, OutsideRead, still_hold
from ..support.graph_modules import LazyGraph
from .choices import Choices, DeviceWanted
from .traced_graph import TracedGraph


def trace(leaf: CustomFunction, args: tuple[Any, ...], kwargs: dict[str, Any], traced: TracedGraph) -> Any:
    """Call it on stand-ins."""
    inside = leaf.inside
    if inside is None or kwargs:
        raise CannotDerive("an autograd function, whose backward is Python")
    traced.reads = [*(traced.reads or ()), *inside.reads]
    if inside.context is None:
        return inside.apply(leaf.arguments(args))
    return inside.apply(leaf.arguments(args), _Backward(inside, traced))


class _Backward:
    """The program's backward, on stand-ins."""

    def __init__(self, inside: Inside, traced: TracedGraph) -> None:
        self._inside, self._traced = inside, traced

    def __call__(self, ctx: Any, *gradients: Any) -> Any:
        inside, traced = self._inside, self._traced
        assert inside.context is not None
        if inside.context.materializes is None and any(
            gradient is None and leaf is TENSOR for gradient, leaf in zip(gradients, inside.result.leaves, strict=True)
        ):
            raise CannotDerive("an autograd function that may look which gradients there are")
        given = [*gradients, *ctx.saved_tensors, *vars(ctx).values()]
        values = [traced.values.find(value) for value in given if isinstance(value, Tensor)]
        memories = [value.memory for value in values if value is not None]
        versions = [memory.version for memory in memories]
        try:
            with Choices(traced, lines=True), _Allowed(inside.allows):
                result = inside.cls.backward(ctx, *gradients)
        except (CannotDerive, DeviceWanted):
            raise
        except Exception as error:
            let_through(error)
            raise CannotDerive(f"{type(error).__name__} in the backward of an autograd function: {error}") from error
        if [memory.version for memory in memories] != versions:
            raise CannotDerive("the backward of an autograd function writes to what it is given")
        return result


class _Allowed(TorchFunctionMode):
    """A backward may call what becomes nodes of the graph."""

    def __init__(self, allows: Callable[[Any], bool]) -> None:
        super().__init__()
        self._allows = allows

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._allows(func):
            raise CannotDerive(f"{getattr(func, '__name__', func)} in the backward of an autograd function")
        return func(*args, **(kwargs or {}))


class Watched:
    """What must be as it was where backwards of the program's are part of a compiled backward."""

    def __init__(self, reads: tuple[OutsideRead, ...]) -> None:
        self._reads = reads
        self._dtype = torch.get_default_dtype()

    def holds(self, gradients: Sequence[Any], led: Sequence[int]) -> bool:
        """Is the compiled backward what would run? `led`: those of which gradients it takes."""
        return (
            sum(gradient is not None for gradient in gradients) == len(led)
            and not torch._C._len_torch_function_stack()
            and not torch._C._is_any_autocast_enabled()
            and torch.get_default_dtype() is self._dtype
            and still_hold(self._reads)
        )


def with_graphs(module: fx.GraphModule) -> Callable[..., Any]:
    """The captured graph as a function that calls autograd functions by the graphs of their forwards: what these have
    read is as it was when they were recorded."""
    parts = {name: part for name, part in module.named_children() if isinstance(part, CustomFunction) and part.inside}
    if not parts:
        return module.forward
    root = torch.nn.Module()
    for name, child in module.named_children():
        root.add_module(name, _ByGraph(parts[name]) if name in parts else child)
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.find_nodes(op="get_attr"):
        setattr(root, str(node.target), getattr(module, str(node.target)))
    return LazyGraph(root, graph).forward


class _ByGraph(torch.nn.Module):
    def __init__(self, leaf: CustomFunction) -> None:
        super().__init__()
        self._leaf = [leaf]

    def forward(self, *args: Any) -> Any:
        (leaf,) = self._leaf
        assert leaf.inside is not None
        return leaf.inside.apply(leaf.arguments(args))
