"""Numbers that Python computes from symbolic ones by what the graph's algebra has no word for: `math.cos(n)`.

Enters: a function of numbers, or an operator, and its operands. Leaves: a number that is symbolic in its turn, with an
origin: an expression over other origins. A replay computes it while it checks the guards, before the graph runs. Where
that raises, or gives a number of another type, the recording does not fit the call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from ... import _native
from ...interrupts import let_through
from ...recording import Edge, Fact, Origin
from ...support import number_functions
from ...support.number_functions import FUNCTIONS, gives_truth
from ...support.symbolic_exprs import Expression, Relation, render, terms_of
from ..objects.run_context import RunContext
from ..tensors.nodes import Nodes
from .data_scalars import DataScalars
from .symbol_table import Symbol, plain_number

_MOST_BITS = 62  # of whole numbers that a graph is given
_OPERATORS = {"**": "power", "<<": "shift_left", ">>": ">>", "&": "&", "|": "|", "^": "^", "~": "~", "abs": "abs"}
_CHOOSING = frozenset({"min", "max"})
_PLACES = frozenset({"size", "stride"})


@dataclass(eq=False)
class Computed:
    """The key of an origin: how its value is computed from those of earlier ones."""

    expression: Expression
    text: str
    sources: tuple[int, ...] = ()  # the origins that it speaks of
    _function: Any = field(default=None, repr=False)

    def __call__(self, values: Any) -> Any:
        if self._function is None:
            self._function = number_functions.compiled(self.expression, "computed_number")
        return self._function(values)

    @property
    def __name__(self) -> str:
        return str(self.expression[0]).rpartition(".")[2]


class _Arithmetic:
    """The root of what is computed from several origins."""


class ComputedNumbers(DataScalars):
    """The part of a segment's symbolic numbers that is about functions of them."""

    def __init__(self, context: RunContext, nodes: Nodes) -> None:
        super().__init__(context, nodes)
        self.inputs: list[tuple[Origin, fx.Node]] = []  # numbers that are inputs of the graph
        self.chosen: set[int] = set()  # numbers that `min` and `max` gave: one of their operands, by identity
        self._comparisons: list[Relation] = []

    def _given(self, origin: Origin, value: Any) -> Any:
        """A number of this origin is a symbol: an input of the graph, if that needs it."""
        self._context.ledger.check(origin, Fact.TYPE, type(value))
        term = ("number" if type(value) is int else "real", origin.index)
        algebra = self.shapes.facts.number(value, term)

        def make() -> fx.Node:
            node = self._nodes.number(origin, type(algebra))
            node.meta["value"] = value
            self.inputs.append((origin, node))
            self.shapes.set(node, algebra)
            return node

        symbol = self._enter(value, algebra if type(value) is int else None, make)
        symbol.origin, symbol.sources, symbol.term = origin, frozenset({symbol}), term
        return symbol.number

    def is_computable(self, name: str, args: tuple[Any, ...]) -> bool:
        """May a call of this function be one of `function`?"""
        found = [self.find(arg) for arg in args]
        known = [symbol for symbol in found if symbol is not None]
        if not known or any(symbol.data for symbol in known) or self.abandoned is not None:
            return False
        if not all(s is not None or type(arg) in (int, float, bool) for s, arg in zip(found, args, strict=True)):
            return False
        if name in ("int", "float") and len(args) != 1:
            return False
        if name in _CHOOSING and not any(type(arg) in (float, _native.Float) for arg in args) and self._of_sizes(known):
            return False  # torch's algebra knows what that is
        try:
            value = FUNCTIONS[name](*map(plain_number, args))
            return type(value) is bool if gives_truth(name) else _fits(value)
        except Exception as error:
            let_through(error)
            return False  # the program is to find that out by itself

    def _of_sizes(self, symbols: list[Symbol]) -> bool:
        try:
            return any(term[0] in _PLACES for symbol in symbols for term in terms_of(self._term(symbol)))
        except (NotImplementedError, KeyError):
            return True

    def function(self, name: str, *args: Any) -> Any:
        """What a function of numbers gives."""
        found = [self.find(arg) for arg in args]
        plain = [plain_number(arg) for arg in args]
        value = FUNCTIONS[name](*plain)
        try:
            parts = [p if s is None else self._term(s) for s, p in zip(found, plain, strict=True)]
        except (NotImplementedError, KeyError):
            self._specialise_operands(found)
            return value
        expression = (name, *parts)
        if gives_truth(name):
            self._comparisons.append(Relation(expression if value else ("not", expression), self._place))
            return value
        number = self._given(self._origin_of(expression), value)
        if name in _CHOOSING:
            winner = next(arg for arg, number in zip(args, plain, strict=True) if number is value)
            self._context.own.originals[id(number)] = (number, self._context.own.original(winner))
            self.chosen.add(id(number))
        return number

    def _origin_of(self, expression: Expression) -> Origin:
        ledger = self._context.ledger
        sources = tuple(sorted({term[1] for term in terms_of(expression)}))
        key = Computed(expression, render(expression, ledger.origins), sources)
        origin: Origin = ledger.read(ledger.constant(_Arithmetic), Edge.COMPUTED, key, None)
        origin.checks.clear()
        return origin

    def operator(self, name: str, operands: tuple[Any, ...]) -> Any:
        """What an operator gives for which neither the algebra nor the graph has a word."""
        function = _OPERATORS.get(name)
        if function is None or not self.is_computable(function, operands):
            return self._specialise_operands(map(self.find, operands))
        return self.function(function, *operands)


def _fits(value: Any) -> bool:
    if type(value) is int:
        return value.bit_length() <= _MOST_BITS
    return type(value) is float and math.isfinite(value)
