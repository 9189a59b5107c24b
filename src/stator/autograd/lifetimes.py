"""How long the values live that a forward graph keeps for its backward: when each is made, when the last use is over.

Enters: both graphs. Leaves: one `events.Kept` per value. Compiled graphs may order operations otherwise; what is kept
from one graph to the other is the same.
"""

from __future__ import annotations

from torch import fx

from ..events import Kept
from .partition import explain_saved


def operations(module: fx.GraphModule) -> list[fx.Node]:
    """The nodes that compute."""
    return [node for node in module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]


def kept_values(forward: fx.GraphModule, backward: fx.GraphModule | None, *, num_fwd_outputs: int) -> tuple[Kept, ...]:
    """What lives from `forward` to `backward`."""
    if backward is None:
        return ()
    made = {node: number for number, node in enumerate(operations(forward), 1)}
    used = {node: number for number, node in enumerate(operations(backward), 1)}
    returned = forward.graph.output_node().args[0]
    assert isinstance(returned, (tuple, list))
    values = []
    # The backward takes what was kept in the forward's order, and then the gradients of the results.
    for value, node, input in zip(
        explain_saved(forward, num_fwd_outputs=num_fwd_outputs),
        returned[num_fwd_outputs:],
        backward.graph.find_nodes(op="placeholder"),
        strict=False,
    ):
        assert isinstance(node, fx.Node)
        last = max((used.get(user, len(used)) for user in input.users), default=0)
        what = "a number" if value.dtype is None else f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        values.append(Kept(value.name, what, value.bytes, value.extra, value.why, made.get(node, 0), last))
    return tuple(values)
