"""A backend of your own: a function that gets a graph and example inputs and gives back something to call.

    python examples/custom_backend.py

Backends are written as for torch.compile: (gm: torch.fx.GraphModule, example_inputs) -> callable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

import stator


def counting(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Says what is in the graph and runs it as it is."""
    ops = Counter(str(getattr(n.target, "__name__", n.target)) for n in gm.graph.nodes if n.op.startswith("call"))
    print(f"  counting got a graph: {dict(ops)}, {len(example_inputs)} inputs")
    return gm.forward


@stator.register_backend
def cosine_for_sine(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Rewrites the graph: sin(x) becomes cos(x - pi/2). Registered: it can be asked for by name."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.sin):
        with gm.graph.inserting_before(node):
            shifted = gm.graph.call_function(torch.sub, (node.args[0], torch.pi / 2))
            node.replace_all_uses_with(gm.graph.call_function(torch.cos, (shifted,)))
        gm.graph.erase_node(node)
    gm.recompile()
    print(f"  cosine_for_sine wrote: {[n.name for n in gm.graph.nodes if n.op == 'call_function']}")
    return gm.forward


def f(x: Tensor) -> Tensor:
    return torch.sin(x) * 2 + x


def main() -> None:
    x = torch.linspace(0, 3, 5)
    print("A callable as backend:")
    fast = stator.compile(f, backend=counting)
    results = [fast(x + shift) for shift in range(3)]
    print(f"  equal to eager: {all(torch.equal(r, f(x + shift)) for shift, r in enumerate(results))}; "
          f"compiled {fast.stator.recordings} graph, replayed {fast.stator.hits} times")  # fmt: skip

    print(f"\nBackends by name: {', '.join(stator.list_backends())}")
    named = stator.compile(f, backend="cosine_for_sine")
    print(f"  close to eager: {all(torch.allclose(named(x + s), f(x + s), atol=1e-5) for s in range(3))}")

    print("\nA name that does not exist:")
    try:
        stator.compile(f, backend="cosine_for_sin")
    except stator.errors.UnknownBackend as error:
        print(f"  UnknownBackend: {error}")


if __name__ == "__main__":
    main()
