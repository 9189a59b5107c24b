"""What is told of a derived backward: the graphs as text, what is kept between them, files that run each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from .. import events
from ..support.python_source import backward_script, graph_script, typed_graph_code
from .lifetimes import kept_values, operations
from .partition import explain_saved
from .trace import Joint


def derived(
    label: str,
    joint: Joint,
    forward: fx.GraphModule,
    backward: fx.GraphModule | None,
    inputs: Sequence[Any],
    seconds: float,
    steps: tuple[str, ...],
    source: Any,
) -> events.BackwardDerived:
    """`inputs`: what the function was traced for; real tensors, if there are. `source`: that function."""
    plan = joint.plan
    primals = [inputs[index] for index in plan.inputs]

    def saved() -> str:
        return "" if backward is None else _kept(forward, plan.results)

    scripts = [
        lambda: graph_script(
            f"{label}: the joint graph, forward and backward in one.",
            joint.module,
            [*primals, *joint.tangents],
            grad=False,
        ),
        lambda: graph_script(f"{label}: the forward graph.", forward, primals, grad=False),
    ]
    if backward is not None:
        title = f"{label}: the backward graph, after the forward graph that it needs."
        scripts.append(lambda: backward_script(title, forward, backward, primals, joint.tangents, plan.results))
    return events.BackwardDerived(
        seconds=seconds,
        joint=lambda: typed_graph_code(joint.module),
        forward=lambda: typed_graph_code(forward),
        backward=lambda: typed_graph_code(backward),
        steps=steps,
        label=label,
        saved=saved,
        scripts=tuple(scripts),
        kept=lambda: kept_values(forward, backward, num_fwd_outputs=plan.results),
        operations=(len(operations(forward)), len(operations(backward)) if backward is not None else 0),
        source=source,
    )


def _kept(forward: fx.GraphModule, results: int) -> str:
    values = explain_saved(forward, num_fwd_outputs=results)
    total = sum(value.bytes for value in values if value.extra)
    return "\n".join([f"# {len(values)} values, {total:,} bytes that nobody else keeps", *map(str, values)])
