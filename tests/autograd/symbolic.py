"""Graphs with symbolic sizes, made by hand: as the capture side hands them to a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext


@dataclass(eq=False)
class Captured:
    """What a backend gets, and the `ShapeEnv` whose guards it may add to."""

    graph: fx.GraphModule
    examples: list[Any]
    shapes: ShapeEnv
    inputs: Sequence[Any]

    @property
    def guards(self) -> list[str]:
        return [str(guard.expr) for guard in self.shapes.guards]


def captured(fn: Callable[..., Any], *inputs: Any, equal_is_same: bool = True) -> Captured:
    """The graph of a function. Sizes of tensors, and numbers, are symbols; sizes of parameters are not.

    `equal_is_same`: sizes that are equal are one symbol.
    """
    shapes = ShapeEnv(duck_shape=equal_is_same)
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=False)
    graph = fx.symbolic_trace(fn)
    placeholders = graph.graph.find_nodes(op="placeholder")
    examples = [_example(value, node.name, mode) for value, node in zip(inputs, placeholders, strict=True)]
    for node, example in zip(placeholders, examples, strict=True):
        node.meta["example_value"] = example
    output = graph.graph.output_node()
    if isinstance(output.args[0], fx.Node):
        output.args = ((output.args[0],),)
        graph.recompile()
    return Captured(graph, examples, shapes, inputs)


def _example(value: Any, name: str, mode: FakeTensorMode) -> Any:
    source = ConstantSource(name)
    shapes = mode.shape_env
    assert shapes is not None
    if isinstance(value, Tensor):
        kind = DimDynamic.STATIC if isinstance(value, nn.Parameter) else DimDynamic.DUCK
        context = StatelessSymbolicContext(dynamic_sizes=[kind] * value.dim())
        return mode.from_tensor(value, source=source, symbolic_context=context)
    symbol = shapes.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
    if isinstance(value, float):
        return shapes.create_symfloatnode(symbol, hint=value, source=source)
    return shapes.create_symintnode(symbol, hint=value, source=source)
