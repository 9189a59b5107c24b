"""What a graph relies on about its data: asserts, each as one row.

A program asks a tensor for its truth, compares a number of one, or takes an index that must be in range. Where the
graph goes on all the same, an `Assert` says what has to come out again, and what the replay is to do if it does not.

Most are computed before the graph (`runtime_asserts.py`). Those of an optimizer are nodes of the graph itself, which
`hoist_asserts.py` puts first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import fx

from ...recording import OnFailure
from ...support.graph_numbers import COMPARISONS, expect, expect_truth, is_within


class Truth(NamedTuple):
    """The truth of a tensor."""

    def holds(self, tensor: Any) -> bool:
        return bool(tensor)

    def asked(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        """A node that says whether it holds."""
        return graph.call_function(operator.truth, (node,))


class Compared(NamedTuple):
    """A number, that of a tensor or one that a node gives, is compared with another one: `number comparison other`."""

    comparison: str
    other: Any  # a plain number; in nodes of the graph it may be a node
    swapped: bool = False  # `other comparison number`

    def holds(self, number: Any) -> bool:
        both = (self.other, number) if self.swapped else (number, self.other)
        return bool(COMPARISONS[self.comparison](*both))

    def asked(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        taken = graph.call_method("item", (node,))
        both = (self.other, taken) if self.swapped else (taken, self.other)
        return graph.call_function(operator.truth, (graph.call_function(COMPARISONS[self.comparison], both),))


class Within(NamedTuple):
    """All numbers of a tensor are at least `low`, and below `high`."""

    low: int
    high: int

    def holds(self, tensor: Any) -> bool:
        return is_within(tensor, self.low, self.high)

    def asked(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        return graph.call_function(is_within, (node, self.low, self.high))


TRUTH = Truth()


class Assert(NamedTuple):
    node: Any  # what is asked: a node, or a constant number that one is compared with
    op: Truth | Compared | Within
    expected: bool  # how it comes out
    on_failure: OnFailure


def call_in_graph(made: Assert) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """A function, and what a node of the graph calls it with: it raises if it comes out otherwise, and the program goes
    another way."""
    assert made.on_failure is OnFailure.GOES_ON
    if isinstance(made.op, Truth):
        return expect_truth, (made.node, made.expected)
    assert isinstance(made.op, Compared) and not made.op.swapped
    return expect, (made.node, made.op.comparison, made.op.other, made.expected)
