"""Forward and backward graphs, derived before the first result is there.

    python examples/aot_01_graphs.py

`aot_function` takes compilers of your own: functions (graph, example inputs) -> callable. These two only print.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

import stator


def simple(x: Tensor) -> Tensor:
    y = x * 2
    z = torch.sin(y)
    return z.sum()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.weight).relu().sum()


def printing(title: str) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    def compiler(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        shapes = [tuple(value.shape) for value in example_inputs if isinstance(value, Tensor)]
        print(f"\n{title}: {len(graph.graph.nodes)} nodes, inputs of shapes {shapes}")
        text = graph.print_readable(print_output=False)
        print(re.sub(r";  .*|\n *# No stacktrace.*", "", text).rstrip())  # without what only frees memory
        return graph

    return compiler


def main() -> None:
    print("A function, by aot_function")
    x = torch.linspace(0, 1, 4, requires_grad=True)
    aot = stator.autograd.aot_function(simple, printing("Forward graph"), printing("Backward graph"))
    output = aot(x)
    print(f"\nthe first result is here, both graphs were made before it: {output.item():.6f}")
    output.backward()
    expected = torch.autograd.grad(simple(x), x)[0]
    print(f"gradient equals eager's: {torch.equal(expected, x.grad)}")  # type: ignore[arg-type]  # it has one

    print("\n\nA module, by aot_module_simplified")
    model = Model()
    run = stator.autograd.aot_module_simplified(
        model, fw_compiler=printing("Forward graph"), bw_compiler=printing("Backward graph")
    )
    run(torch.ones(2, 3)).backward()
    print(f"\ngradient of the weight: {model.weight.grad.tolist()}")  # type: ignore[union-attr]  # it has one


if __name__ == "__main__":
    main()
