"""The cheapest set of values to keep between forward and backward: a minimum cut.

What enters: a joint graph taken apart, and what may not be recomputed or kept (`remat`).
What leaves: the values to keep.
What holds in between: each value that may be kept is an edge whose capacity is its bytes. A cut takes an edge
where the value is made in the forward and used in the backward; everything on the sink's side is computed again.
Edges that no cut may take are wider than a cut that is known to be possible.

The network, for a value v that is computed from u and may be kept and recomputed::

    out(u) ──∞──▶ in(v) ──bytes──▶ out(v) ──∞──▶ sink      the last edge if the backward reads v

A value that may not be recomputed begins at the source; one that may not be kept is a single point.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy
from scipy.sparse import csr_array  # type: ignore[import-untyped] # scipy ships no types
from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # type: ignore[import-untyped]
from torch import fx

from stator.autograd.remat import Bans, Sides, ancestors, bytes_of, is_mask, is_symbol

SOURCE, SINK = 0, 1
_WIDEST = 2**30  # scipy's flow is counted in 32 bits


@dataclass
class _Network:
    capacities: dict[tuple[int, int], int] = field(default_factory=dict)  # by the two ends of an edge
    points: int = 2

    def point(self) -> int:
        self.points += 1
        return self.points - 1

    def sink_side(self) -> numpy.ndarray:  # a mask over the points
        """The minimum cut whose sink side is smallest: of equal cuts, the one that recomputes least."""
        ends = numpy.array(list(self.capacities), dtype=numpy.int32).reshape(-1, 2).T
        capacities = numpy.array(list(self.capacities.values()), dtype=numpy.int32)
        capacity = csr_array((capacities, (ends[0], ends[1])), shape=(self.points, self.points))
        flow = maximum_flow(capacity, SOURCE, SINK, method="dinic").flow
        left = (capacity - flow).tocsr()
        left.data = (left.data > 0).astype(numpy.int8)
        left.eliminate_zeros()
        side = numpy.zeros(self.points, dtype=bool)
        side[breadth_first_order(left.T.tocsr(), SINK, return_predecessors=False)] = True
        return side


def cost(sides: Sides, node: fx.Node) -> int:
    """Bytes that live on until the backward because this value is kept."""
    if node in sides.alive or is_symbol(node):
        return 0
    return bytes_of(node.meta["val"]) // (node.meta["val"].dtype.itemsize if is_mask(node) else 1)


def read_directly(sides: Sides, bans: Bans) -> set[fx.Node]:
    """What is kept if nothing is recomputed that need not be: the values which the backward reads."""
    unkept = bans.unsavable - bans.reason.keys()
    kept: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    left = list(sides.wanted)
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        made_for_this = node not in sides.forward and node.op != "placeholder" and not is_symbol(node)
        if node in unkept or made_for_this:
            left.extend(node.all_input_nodes)
        else:
            kept.add(node)
    return kept


def cheapest(sides: Sides, bans: Bans) -> set[fx.Node]:
    """What is kept at least cost, if everything that is not banned may be recomputed."""
    reachable = ancestors(sides.wanted, stop=bans.reason.keys())
    nodes = sorted(reachable, key=sides.position.__getitem__)
    possible = sum(cost(sides, node) for node in read_directly(sides, bans))
    scale = min(2 * len(nodes) + 1, _WIDEST / max(1, possible))  # so that bytes count first and ranks second
    unlimited = int(possible * scale) + 2 * len(nodes) + 1

    network = _Network()
    begin: dict[fx.Node, int] = {}
    end: dict[fx.Node, int] = {}
    for node in nodes:
        begin[node] = SOURCE if node in bans.reason else network.point()
        end[node] = begin[node] if node in bans.unsavable else network.point()
        if begin[node] != end[node]:
            bytes_first = int(cost(sides, node) * scale) + _rank(sides, node)
            network.capacities[begin[node], end[node]] = min(unlimited, bytes_first)
        if node not in bans.reason:
            for read in node.all_input_nodes:
                network.capacities[end[read], begin[node]] = unlimited
    for node in sides.wanted:
        network.capacities[end[node], SINK] = unlimited

    side = network.sink_side()
    return {node for node in nodes if not side[begin[node]] and side[end[node]]}


def _rank(sides: Sides, node: fx.Node) -> int:
    """Which of two values of the same size to keep: an input, which may be alive anyway, before a value that the
    forward has, before one that it would have to make for this."""
    if node.op == "placeholder" or is_symbol(node):
        return 0
    return 1 if node in sides.forward else 2
