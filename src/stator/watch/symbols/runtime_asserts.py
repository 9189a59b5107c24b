"""Runtime asserts: what a graph relies on about its data, computed before it runs.

Where a program raises unless a tensor is true (an `assert` on data, an `if …: raise`), the graph need not end: it goes
on as if the tensor were as true as it was, and the replay makes sure of that first. If it is not, Python runs the call,
from its start, and raises what eager raises; nothing has been written by then, and no random number drawn.

Enters: asserts (`asserts.py`). Leaves: a graph of its own that computes from the inputs whether they hold, by the
operations that they depend on and all others that write to the tensors among these. What holds: they come in the
program's order, and write to nothing but what they have made. Where that takes many, there is no check: the graph
breaks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import fx
from torch.fx.node import map_arg

from ...recording import Checks
from ...support.guard_readers import RANDOM
from ...support.symbolic_exprs import BINARY, TERMS, UNARY, Expression, terms_of
from ..tensors.nodes import Nodes
from ..tensors.operators import asks_for_sizes_alone, is_opaque
from .asserts import Assert, Within
from .symbol_table import SymbolTable

_MOST_NODES = 48  # it is all computed twice
# Operations that take long: a break is cheaper than computing them twice.
_HEAVY = frozenset(
    "linear bilinear matmul __matmul__ __rmatmul__ rmatmul mm bmm addmm baddbmm addbmm mv addmv dot einsum tensordot "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention "
    "multi_head_attention_forward lstm gru rnn_tanh rnn_relu sort argsort topk cdist".split()
)
_ENTERING = frozenset({"_enter_autocast", "_enter_inference_mode"})
_LEAVING = frozenset({"_exit_autocast", "_exit_inference_mode"})
# Operations that make the same tensor whenever they are called with the same constants.
_MAKERS = frozenset("tensor as_tensor scalar_tensor zeros ones full arange linspace eye div".split())


class _Placed(NamedTuple):
    place: int  # how many operations come before it
    made: Assert


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))


def _can_be_repeated(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return node.op == "placeholder"
    name = _name(node)
    if node.meta.get(RANDOM) or name in _HEAVY or name.startswith("linalg"):
        return False
    return not is_opaque(node.target) and _is_known(node)


def _is_known(node: fx.Node) -> bool:
    """Is the function one of torch, or of Python?"""
    module = getattr(node.target, "__module__", None)
    return node.op == "call_method" or module is None or module.split(".")[0] in ("torch", "_operator", "builtins")


class Checking:
    """The runtime asserts of one segment. `writers`: places of the operations that have written to a tensor."""

    def __init__(self, nodes: Nodes, writers: list[int]) -> None:
        self._nodes = nodes
        self._writers = writers
        self.symbols: SymbolTable | None = None  # the numbers that may be others in the next call
        self._placed: list[_Placed] = []  # in the program's order
        self._needed: set[fx.Node] = set()
        self._sizes: dict[fx.Node, Expression] = {}

    def add(self, made: Assert, settings: set[fx.Node] | None = None) -> bool:
        """The program goes by this. False: that cannot be checked before the graph runs.

        Where it would raise, nothing from outside that the node depends on has been written to so far. Where it would
        go another way, that is computed from the `settings` alone, inputs which hardly ever change."""
        if any(placed.made == made for placed in self._placed if isinstance(placed.made.op, Within)):
            return True  # it has not changed since
        if settings is None:
            needed = self._ancestry(made.node)
        else:
            needed = self._ancestry(made.node, lambda n: n.op != "placeholder" or n in settings)
        if needed is None:
            return False
        self._needed |= needed
        self._placed.append(_Placed(len(self._nodes.operations), made))
        return True

    def is_constant(self, node: fx.Node) -> bool:
        """Is this tensor the same in every call?"""
        needed = self._ancestry(node, lambda n: n.all_input_nodes or _name(n) in _MAKERS, self._fixed_size)
        return needed is not None and not any(n.op == "placeholder" or "empty" in _name(n) for n in needed)

    def _fixed_size(self, node: fx.Node) -> bool:
        """Does it depend on nothing but sizes that are the same in every call?"""
        if not asks_for_sizes_alone(node.target):
            return False
        return self.symbols is None or all(map(self.symbols.has_fixed_sizes, node.all_input_nodes))

    def _ancestry(
        self,
        node: fx.Node,
        allows: Callable[[fx.Node], Any] = lambda node: True,
        ends: Callable[[fx.Node], bool] = lambda node: False,
    ) -> set[fx.Node] | None:
        """All that the node depends on; None if that cannot be computed once more, or takes too long, or `allows` not
        all of it. Where it `ends`, what a node depends on does not count."""
        needed: set[fx.Node] = set()
        pending = [node]
        while pending:
            while pending:
                node = pending.pop()
                if node in needed:
                    continue
                needed.add(node)
                if ends(node):
                    continue
                if not _can_be_repeated(node) or not allows(node) or len(needed) > _MOST_NODES:
                    return None
                pending += self._inputs_of(node)
            pending = [writer for writer in self._writers_to(needed) if writer not in needed]
        return None if self._in_a_mode(needed) else needed

    def _inputs_of(self, node: fx.Node) -> list[fx.Node]:
        """What it is computed from. Sizes are computed from the sizes of inputs, whatever tensor they were asked of."""
        size = None if self.symbols is None or node.op == "placeholder" else self.symbols.size_of(node)
        found = self._nodes.by_origin() if size is not None else {}
        terms = terms_of(size)
        if size is None or not all(term[0] in ("size", "number") and term[1] in found for term in terms):
            return node.all_input_nodes
        self._sizes[node] = size
        return [found[term[1]] for term in terms]

    def _computed(self, graph: fx.Graph, made: dict[fx.Node, fx.Node], size: Expression) -> Any:
        """The expression as nodes."""
        if type(size) is not tuple:
            return size
        head, *rest = size
        if head in TERMS:
            given = made[self._nodes.by_origin()[rest[0]]]
            return given if head == "number" else graph.call_method("size", (given, rest[1]))
        parts = [self._computed(graph, made, part) for part in rest]
        if head in UNARY:
            return graph.call_function(UNARY[head], (parts[0],))
        return functools.reduce(lambda a, b: graph.call_function(BINARY[head], (a, b)), parts)

    def _writers_to(self, needed: set[fx.Node]) -> list[fx.Node]:
        """The operations that may have written to one of these, by way of a view, perhaps. (Not to inputs.)"""
        if not self._writers:
            return []
        places, found = set(self._writers), []
        related = {node for node in needed if node.op != "placeholder"}
        for place, node in enumerate(self._nodes.operations):
            if not related.isdisjoint(node.all_input_nodes):
                related.add(node)
                if place in places:
                    found.append(node)
        return found

    def _in_a_mode(self, needed: set[fx.Node]) -> bool:
        """Does one of these run under a mode that is entered in the graph?"""
        depth = 0
        for node in self._nodes.operations:
            depth += (_name(node) in _ENTERING) - (_name(node) in _LEAVING)
            if depth > 0 and node in needed:
                return True
        return False

    def conclude(self) -> Checks | None:
        """All of them as a graph, if there are any."""
        if not self._placed:
            return None
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        positions: list[int] = []
        for position, node in enumerate(self._nodes.inputs):
            if node in self._needed:
                positions.append(position)
                made[node] = graph.placeholder(f"input_{position}")
        truths: list[fx.Node] = []
        begin = 0
        for place, asked in self._placed:
            for node in self._nodes.operations[begin:place]:
                if node not in self._needed:
                    continue
                if node in self._sizes:
                    made[node] = self._computed(graph, made, self._sizes[node])
                else:
                    args, kwargs = map_arg((node.args, node.kwargs), made.__getitem__)
                    made[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
            begin = place
            # Where the program asked: the tensor may be written to later.
            truths.append(asked.op.asked(graph, made[asked.node]))
        graph.output(tuple(truths))
        outcomes = tuple(asked.expected for _, asked in self._placed)
        on_failure = tuple(asked.on_failure for _, asked in self._placed)
        return Checks(fx.GraphModule({}, graph, "Checks"), tuple(positions), outcomes, on_failure)
