"""A joint graph becomes a forward and a backward graph.

What enters: ``joint_gm``, ``(primals…, tangents…) → (forward outputs…, a gradient or None per primal…)``, on ATen
operators, with ``meta["val"]`` on every node; its inputs, which tell parameters from other inputs.
What leaves: ``fw_gm``, ``(primals…) → (forward outputs…, saved values…)`` and ``bw_gm``, ``(saved values…, tangents…) →
(gradients…)``. Of the saved values, tensors come first, then numbers.
What holds in between: the two run one after the other give what the joint graph gives, bit for bit. Random
numbers are drawn in the forward, in the joint graph's order; those of checkpointed regions once more in the backward,
from the state of the generator that the forward keeps.

Read from the nodes' ``meta``, all optional: ``recompute`` and ``checkpoint_region`` (see `remat`), and on placeholders
``parameter`` (alive anyway, so free to keep) and ``mutated`` (written over before the backward, so kept as a copy).
Written: ``saved_because``, on the saved values of the forward graph; ``parameter`` on those that are alive anyway.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.fx.node import map_arg

from stator.autograd.cut import cheapest, cost, read_directly
from stator.autograd.remat import (
    Bans,
    Kind,
    Sides,
    ancestors,
    bytes_of,
    find_bans,
    is_mask,
    is_symbol,
    kind_at,
    state_bytes,
    take_apart,
)
from stator.autograd.symbols import symbol_of, symbols_in
from stator.support.graph_modules import LazyGraph

PartitionFn = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


def default_partition(
    joint_gm: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Keep what the backward reads, as eager does. Only views and checkpointed regions are computed again."""
    sides = take_apart(joint_gm.graph, joint_inputs, num_fwd_outputs)
    bans = find_bans(sides)
    return _assemble(joint_gm, sides, bans, read_directly(sides, bans))


def min_cut_partition(
    joint_gm: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, memory_budget: float = 1.0
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Keep the fewest bytes from which the backward can be computed with cheap operations.

    `memory_budget` 1 recomputes what is free or fuses into the backward; 0 recomputes everything that may be. In
    between, it is the part of the difference in kept bytes that may be used.
    """
    if not 0 <= memory_budget <= 1:
        raise ValueError(f"memory_budget must be between 0 and 1, not {memory_budget!r}")
    sides = take_apart(joint_gm.graph, joint_inputs, num_fwd_outputs)
    bans = find_bans(sides)
    return _assemble(joint_gm, sides, bans, _within_budget(sides, bans, memory_budget))


def _within_budget(sides: Sides, bans: Bans, budget: float) -> set[fx.Node]:
    def total(kept: set[fx.Node]) -> int:
        return sum(cost(sides, node) for node in kept)

    most = min(cheapest(sides, bans), read_directly(sides, bans), key=total)
    if budget == 1 or not bans.price:
        return most
    few, many = 0, len(bans.price)  # bans lifted: too few for the budget, and enough
    least = cheapest(sides, bans.lifted(many))
    allowed = total(least) + budget * (total(most) - total(least))
    while many - few > 1:
        middle = (few + many) // 2
        kept = cheapest(sides, bans.lifted(middle))
        if total(kept) <= allowed:
            many, least = middle, kept
        else:
            few = middle
    return min(least, most, key=total)


# -------------------------------------------------------------------------------------------- the two graphs


def _assemble(
    joint_gm: fx.GraphModule, sides: Sides, bans: Bans, kept: Set[fx.Node]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    assert kept.isdisjoint(bans.unsavable)
    needed = ancestors(sides.backward_ends, stop=kept)
    drawn_again = {node for node in needed & sides.forward if node not in kept and kind_at(node) is Kind.RANDOM}
    saved = kept & needed | drawn_again | _symbols_of(sides, needed)
    in_order = sorted(saved, key=lambda node: (is_symbol(node), sides.position[node]))
    backward, readers = _backward_graph(sides, in_order, needed, drawn_again)
    why = {node: f"{_reason(sides, bans, node)}; {readers.get(node, 'a size')} needs it" for node in in_order}
    why |= dict.fromkeys(drawn_again, "its random numbers are drawn again from this state")
    forward = _forward_graph(sides, in_order, why, drawn_again)
    # Lazy: their Python is written when somebody calls or prints them, which most compilers never do.
    return LazyGraph(joint_gm, forward), LazyGraph(joint_gm, backward)


def _symbols_of(sides: Sides, needed: Set[fx.Node]) -> set[fx.Node]:
    """The symbols that sizes in the backward are made of: who compiles it can have them all as inputs."""
    told = {symbol_of(node.meta.get("val")): node for node in sides.position if node not in sides.backward}
    told.pop(None, None)
    if not told:
        return set()
    values = [node.meta.get("val") for node in (*needed, *sides.tangents)]
    return {told[symbol] for value in values for symbol in symbols_in(value) if symbol in told}


def _forward_graph(
    sides: Sides, saved: Sequence[fx.Node], why: Mapping[fx.Node, str], drawn_again: Set[fx.Node]
) -> fx.Graph:
    """Everything that the outputs and the saved values are computed from, in the joint graph's order."""
    graph = fx.Graph()
    copies = {primal: graph.node_copy(primal) for primal in sides.primals}
    needed = ancestors([*sides.forward_ends, *saved])
    body = [node for node in sides.position if node in needed and node not in copies]
    returned = {}
    for node in (*sides.primals, *body):
        if node in drawn_again:
            copies[node], value = _draw(graph, node, copies)
        else:
            if node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)
            value = _as_kept(graph, node, copies[node]) if node in why else copies[node]
        if node in why:
            returned[node] = value
            value.meta["saved_because"] = why[node]
            value.meta["parameter"] = node in sides.alive
    graph.output((*map_arg(tuple(sides.outputs), copies.__getitem__), *(returned[node] for node in saved)))
    return graph


def _draw(graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> tuple[fx.Node, fx.Node]:
    """A node that draws random numbers, and the state of the generator before it."""
    args, kwargs = map_arg((node.args, node.kwargs), copies.__getitem__)
    target: Any = node.target
    both = graph.call_function(run_and_save_rng_state, (target, *args), kwargs)
    state, made = (graph.call_function(operator.getitem, (both, index)) for index in (0, 1))
    made.meta = dict(node.meta)
    state.meta = {"val": _state(node)}
    both.meta = {**node.meta, "val": (state.meta["val"], node.meta["val"])}
    return made, state


def _state(node: fx.Node) -> torch.Tensor:
    """An example of a generator's state."""
    made = node.meta["val"]
    first: torch.Tensor = made if isinstance(made, torch.Tensor) else made[0]
    device = first.device if first.device.type == "meta" else torch.device("cpu")
    return first.new_empty((state_bytes(first.device),), dtype=torch.uint8, device=device)


def _as_kept(graph: fx.Graph, node: fx.Node, copy: fx.Node) -> fx.Node:
    """What the forward returns for a value of the joint graph that it keeps."""
    if node.meta.get("mutated", False):  # the old value is meant; this stands before all that could write
        kept = graph.call_function(torch.ops.aten.clone.default, (copy,))
        kept.meta = dict(node.meta)
    elif is_mask(node):
        kept = graph.call_function(torch.ops.aten._to_copy.default, (copy,), {"dtype": torch.bool})
        kept.meta = {**node.meta, "val": node.meta["val"].to(torch.bool)}
    else:
        kept = copy
    return kept


def _backward_graph(
    sides: Sides, saved: Sequence[fx.Node], needed: Set[fx.Node], drawn_again: Set[fx.Node]
) -> tuple[fx.Graph, dict[fx.Node, str]]:
    """Everything that the gradients are computed from, and the first reader of each saved value."""
    graph = fx.Graph()
    given: dict[fx.Node, fx.Node] = {}
    for node in (*saved, *sides.tangents):
        given[node] = graph.create_node("placeholder", node.name, name=node.name)
        given[node].meta = {**node.meta, "parameter": node in sides.alive}
    masks = set(filter(is_mask, saved)) - drawn_again
    copies = {node: value for node, value in given.items() if node not in masks and node not in drawn_again}
    body = needed - copies.keys()
    lost = [node.name for node in body if node.op == "placeholder"]
    assert not lost, f"the backward graph needs {lost}, which nobody saved"
    for node in _late(sides, body):
        if node in masks:
            given[node].meta["val"] = node.meta["val"].to(torch.bool)
            number = {"dtype": node.meta["val"].dtype}
            copies[node] = graph.call_function(torch.ops.aten._to_copy.default, (given[node],), number)
            copies[node].meta = dict(node.meta)
        elif node in drawn_again:
            given[node].meta["val"] = _state(node)
            args, kwargs = map_arg((node.args, node.kwargs), copies.__getitem__)
            target: Any = node.target
            copies[node] = graph.call_function(run_with_rng_state, (given[node], target, *args), kwargs)
            copies[node].meta = dict(node.meta)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(map_arg(tuple(sides.gradients), copies.__getitem__))
    return graph, {node: _reader(copies[node]) for node in saved if copies[node].users}


def _reader(node: fx.Node) -> str:
    """The first operation that works with a value, views passed over."""
    reader = next(iter(node.users))
    while reader.op != "output" and kind_at(reader) is Kind.FREE and reader.users:
        reader = next(iter(reader.users))
    return reader.name


def _late(sides: Sides, body: Set[fx.Node]) -> list[fx.Node]:
    """The nodes of the backward: those that need tangents in their order, each other one just before its first use.

    So a recomputed value lives no longer than it must.
    """
    first_use: dict[fx.Node, int] = {}
    for node in sorted(body, key=sides.position.__getitem__, reverse=True):
        if node in sides.backward:
            first_use[node] = sides.position[node]
        else:
            users = (user for user in node.users if user in first_use or user.op == "output")
            first_use[node] = min(first_use.get(user, sides.position[user]) for user in users)
    return sorted(body, key=lambda node: (first_use[node], sides.position[node]))


# ----------------------------------------------------------------------------------------------- explanations


@dataclass(frozen=True)
class SavedValue:
    """One value that lives from the forward to the backward."""

    name: str
    shape: tuple[int | torch.SymInt, ...]
    dtype: torch.dtype | None  # None: a number
    bytes: int
    extra: bool  # False: it is alive anyway (a parameter), keeping it costs nothing
    why: str

    def __str__(self) -> str:
        held = "" if self.extra else ", alive anyway"
        what = "a number" if self.dtype is None else f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"
        return f"{self.name}: {what}, {self.bytes:,} bytes{held}: {self.why}"


def explain_saved(fw_gm: fx.GraphModule, *, num_fwd_outputs: int) -> list[SavedValue]:
    """What a forward graph keeps for its backward, and why; of any partition function's."""
    returned = fw_gm.graph.output_node().args[0]
    assert isinstance(returned, (tuple, list))
    values = []
    for node in returned[num_fwd_outputs:]:
        assert isinstance(node, fx.Node)
        value = node.meta["val"]
        tensor = isinstance(value, torch.Tensor)
        values.append(
            SavedValue(
                name=node.name,
                shape=tuple(value.shape) if tensor else (),
                dtype=value.dtype if tensor else None,
                bytes=bytes_of(value),
                extra=not node.meta.get("parameter", False),
                why=node.meta.get("saved_because", "its partition function keeps it"),
            )
        )
    return values


def _reason(sides: Sides, bans: Bans, node: fx.Node) -> str:
    if node in bans.reason:
        return bans.reason[node]
    source = node.args[0] if node.target is operator.getitem else None
    if isinstance(source, fx.Node) and source in bans.reason:
        return bans.reason[source]
    if node in sides.forward:
        return "fewer bytes than what it is computed from"
    return "made in the forward, with fewer bytes than what it is computed from"
