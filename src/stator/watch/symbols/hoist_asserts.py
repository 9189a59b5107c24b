"""Numbers of a graph that may fail come before everything that need not precede them.

Enters: the operations of a recording in the order of the program, and those among them that may fail. What they depend
on (tensors of which numbers are taken, and whatever else is done with these) moves to the front, in its order; the rest
follows, in its order. Both have no tensor in common, so nobody can tell. Leaves: the inputs that are written before the
last one that may fail. They are few and small (the steps of an optimizer), and can be put back.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from ...support.guard_readers import RANDOM

_GRAD_MODE = "_set_grad_enabled"
_STATE_SETTERS = frozenset({_GRAD_MODE, "_enter_inference_mode", "_enter_autocast"})
_LEAVING_STATE = frozenset({"_exit_inference_mode", "_exit_autocast"})


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))


def _makes_leaf(node: fx.Node) -> bool:
    return _name(node) == "requires_grad_" or "requires_grad" in node.kwargs


def move_early(
    operations: list[fx.Node],
    failing: list[fx.Node],
    numbers: set[fx.Node],
    aliases: list[tuple[fx.Node, ...]],
    differentiable: set[fx.Node],
) -> set[fx.Node] | None:
    """Move what `failing` depends on to the front. Gives the inputs that belong to it; None: they cannot be parted.

    `numbers`: nodes that give numbers. `aliases`: groups of inputs that lie in one storage. `differentiable`: inputs
    that require gradients; where none of them belongs to it, it does the same in either grad mode.
    """
    places = {node: place for place, node in enumerate(operations)}
    end = max(places[node] for node in failing) + 1
    early = _closure(operations[:end], failing, numbers, aliases)
    anywhere = differentiable.isdisjoint(early) and not any(map(_makes_leaf, early))
    begin = next((place for place, node in enumerate(operations) if _name(node) not in _STATE_SETTERS), 0)
    for place, node in enumerate(operations[:end]):
        name = _name(node)
        if name == _GRAD_MODE and anywhere and node not in early:
            continue
        if name in _LEAVING_STATE or (name in _STATE_SETTERS and (place >= begin or node in early)):
            return None
        if node in early and node.meta.get(RANDOM):
            return None
    first = [node for node in operations[begin:end] if node in early]
    rest = [node for node in operations[begin:end] if node not in early]
    operations[begin:end] = [*first, *rest]
    return {node for node in early if node.op == "placeholder"}


def _closure(
    operations: list[fx.Node], failing: list[fx.Node], numbers: set[fx.Node], aliases: list[tuple[fx.Node, ...]]
) -> set[fx.Node]:
    """All that `failing` depends on, and all else that touches a tensor among that."""
    early: set[fx.Node] = set()
    pending: list[Any] = list(failing)
    while pending:
        while pending:
            node = pending.pop()
            if node not in early:
                early.add(node)
                pending += node.all_input_nodes
        tensors = {node for node in early if node not in numbers}
        pending += [node for group in aliases if not tensors.isdisjoint(group) for node in group if node not in early]
        pending += [node for node in operations if node not in early and not tensors.isdisjoint(node.all_input_nodes)]
    return early
