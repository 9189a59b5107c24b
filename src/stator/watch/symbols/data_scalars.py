"""Numbers that a graph takes from tensors: only the graph knows them.

Arithmetic with them is a node as long as it cannot fail. In `torch.optim` it is one even if it can, and comparisons are
nodes, too, which see to it that they come out as they did (`support/graph_numbers.py`): optimizers count their steps in
tensors, compute with them, and rarely change their ways. `hoist_asserts.py` puts such nodes first.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from torch import fx

from ... import _native
from ...recording import OnFailure
from ...support import graph_numbers
from ..models import optimizers
from ..objects.run_context import RunContext
from ..tensors.nodes import Nodes
from .asserts import Assert, Compared, call_in_graph
from .symbol_table import Symbol, SymbolTable, plain_number

ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "/": operator.truediv,
    "**": operator.pow,
    "neg": operator.neg,
}
DIVISIONS = frozenset({"//", "%", "/"})


class DataScalars(SymbolTable):
    """The part of a segment's symbolic numbers that is about those which the graph computes."""

    def __init__(self, context: RunContext, nodes: Nodes) -> None:
        super().__init__(context, nodes)
        self.failing: list[fx.Node] = []  # numbers that cannot be computed for all values that they depend on
        self.numbers: set[fx.Node] = set()  # of an optimizer, taken or computed from tensors: no sizes depend on them

    def computed(self, number: Any, node: fx.Node) -> Any:
        """A number that an operation takes from a tensor's contents; None if it cannot be a symbol."""
        if type(number) is float and self.in_optimizer:
            self._constant_size(node, number)
            self.numbers.add(node)
        elif self.abandoned is None:
            self.run(node, number)
            if self.abandoned is not None:
                return None
        else:
            return None
        symbol = self._enter(number, None, lambda: node)
        symbol.node, symbol.data = node, True
        self._context.own.stands_for(symbol.number, number)
        return symbol.number

    @property
    def in_optimizer(self) -> bool:
        """Is the program in code of `torch.optim`? Its numbers are floats, and no sizes."""
        return optimizers.at_work(self._context.watcher)

    def _constant_size(self, node: fx.Node, number: float) -> None:
        """A number of which no size depends."""
        if self.shapes is not None:
            self.shapes.set(node, number)

    def compute(self, name: str, operands: tuple[Any, ...], found: list[Symbol | None]) -> Any:
        """Arithmetic with numbers that only the graph knows, where it cannot fail for any of them."""
        function, plain = ARITHMETIC[name], [plain_number(operand) for operand in operands]
        if name == "**" or (name in DIVISIONS and (found[1] is not None or plain[1] == 0)):
            if not self.in_optimizer or not all(type(number) in (int, float) for number in plain):
                return self._specialise_operands(found)
            function = graph_numbers.FAILING[name]
        value = ARITHMETIC[name](*plain)
        if self.in_optimizer and type(value) is not float:
            return self._specialise_operands(found)
        return self._data(function, operands, value)

    def _data(self, function: Callable[..., Any], operands: tuple[Any, ...], value: Any) -> Any:
        """A number that only the graph knows, computed from others."""
        found = [self.find(operand) for operand in operands]
        plain = [plain_number(operand) for operand in operands]

        def make() -> fx.Node:
            args = tuple(p if s is None else self.node_of(s) for s, p in zip(found, plain, strict=True))
            return self._node("call_function", function, args)

        made = self._enter(value, None, make)
        made.data = True
        if self.in_optimizer:
            made.node = make()  # where it is computed is where it may fail
            self.numbers.add(made.node)
            self._constant_size(made.node, value)
            if function.__module__ == graph_numbers.__name__:
                self.failing.append(made.node)
        self._context.own.stands_for(made.number, value)
        return made.number

    def computes(self, function: str, numbers: tuple[Any, ...]) -> bool:
        """Can this function of numbers be a node?"""
        data = any(symbol is not None and symbol.data for symbol in map(self.find, numbers))
        real = all(type(number) in (float, _native.Float) for number in numbers)
        return data and real and self.in_optimizer and (function != "root" or numbers[0] >= 0)

    def smaller(self, *numbers: Any) -> Any:
        """`min(a, b)`."""
        return self._data(min, numbers, min(map(plain_number, numbers)))

    def larger(self, *numbers: Any) -> Any:
        """`max(a, b)`."""
        return self._data(max, numbers, max(map(plain_number, numbers)))

    def root(self, number: Any) -> Any:
        """`math.sqrt(n)`."""
        return self._data(graph_numbers.root, (number,), math.sqrt(plain_number(number)))

    def expect(self, name: str, a: Any, b: Any, outcome: bool) -> None:
        """The program goes by a number that only the graph knows: the graph sees to it that it comes out so again."""
        left, right = (
            plain_number(x) if s is None else self.node_of(s) for x, s in ((a, self.find(a)), (b, self.find(b)))
        )
        node = self._node(
            "call_function", *call_in_graph(Assert(left, Compared(name, right), outcome, OnFailure.GOES_ON))
        )
        self.numbers.add(node)
        self.failing.append(node)
