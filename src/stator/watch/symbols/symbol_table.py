"""The symbols of a segment: by identity, as expressions, as nodes; and what makes plain numbers of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import fx

from ... import _native
from ...interrupts import let_through
from ...recording import Fact, Origin, Place, Specialised
from ..graph_break import BreakGraph
from ..objects.run_context import RunContext
from ..tensors.nodes import Nodes

_TYPES = (_native.Int, _native.Float)


def plain_number(number: Any) -> Any:
    if type(number) is _native.Int:
        return int(number)
    return float(number) if type(number) is _native.Float else number


@dataclass(eq=False, slots=True)
class Symbol:
    """One symbolic number of a recording."""

    number: Any  # the instance of a subclass that the program has
    algebra: Any  # a torch.SymInt; None of a float
    make: Callable[[], fx.Node]  # its node, made when the graph needs it
    sources: frozenset[Symbol]  # numbers that the program was given, from which a float was computed
    term: Any = None  # of a float: what it is computed from, as an expression
    origin: Origin | None = None  # it is a number that the program was given
    node: fx.Node | None = None
    data: bool = False  # it depends on the contents of a tensor: only the graph knows it


class SymbolTable:
    """What every part of `Symbols` is about."""

    shapes: Any  # torch's algebra; None where no size or number from outside is a symbol

    def __init__(self, context: RunContext, nodes: Nodes) -> None:
        self._context = context
        self._nodes = nodes
        self._table: dict[int, Symbol] = {}
        self._by_expression: dict[Any, Symbol] = {}
        self.specialised: list[Specialised] = []
        self._closed = False
        self.abandoned: str | None = None  # why all numbers are plain again
        self.shapes = None

    @property
    def _place(self) -> Place | None:
        return None if self._closed else self._context.watcher.here

    def find(self, value: Any) -> Symbol | None:
        return self._table.get(id(value)) if self._table and type(value) in _TYPES else None

    def was_symbol(self, value: Any) -> bool:
        return id(value) in self._table

    # -- entering

    def _enter(self, value: Any, algebra: Any, make: Callable[[], fx.Node]) -> Symbol:
        """A number of its own, as the program's would be: `is` tells. Equal expressions share the first one's node."""
        first = self._by_expression.get(algebra.node.expr) if algebra is not None else None
        number = _native.symbol(value)
        symbol = Symbol(number, algebra, make if first is None else lambda: self.node_of(first), frozenset())
        self._table[id(number)] = symbol
        self._context.own.stands_for(number, value)
        if algebra is not None:
            self._by_expression.setdefault(algebra.node.expr, symbol)
        self._context.watcher.leave_unguarded(number)
        return symbol

    def node_of(self, symbol: Symbol) -> fx.Node:
        if symbol.node is None:
            symbol.node = symbol.make()
            if symbol.algebra is not None:
                self.shapes.set(symbol.node, symbol.algebra)
            elif symbol.data:
                self.run(symbol.node, symbol.number)
            elif symbol.origin is None:
                self.shapes.set(symbol.node, self.shapes.facts.number(plain_number(symbol.number), symbol.term))
        return symbol.node

    def nodes(self) -> set[fx.Node]:
        """The nodes that give symbolic numbers."""
        return {symbol.node for symbol in self._table.values() if symbol.node is not None}

    def size_of(self, node: fx.Node) -> Any:
        """The number that a node gives as an expression of the inputs' sizes; None if it is none."""
        return None if self.abandoned is not None or self.shapes is None else self.shapes.expression_at(node)

    def has_fixed_sizes(self, node: fx.Node) -> bool:
        """Is this tensor of the same size in every call?"""
        if self.abandoned is not None or self.shapes is None:
            return True
        sizes = getattr(self.shapes.known(node), "sizes", (None,))
        return all(type(size) is int for size in sizes)

    def _node(self, kind: str, target: Any, args: tuple[Any, ...]) -> fx.Node:
        name = target if isinstance(target, str) else target.__name__
        return self._nodes.operation(kind, target, args, {}, name)

    def run(self, node: fx.Node, result: Any) -> None:
        """An operation of the graph: what sizes its result has. Where torch cannot tell, all numbers are plain."""
        if self.abandoned is None:
            try:
                self.shapes.run(node, result)
            except Exception as error:
                let_through(error)
                self.abandon(f"{node.name}: {type(error).__name__}: {error}")

    def run_gradients(self, node: fx.Node, like: list[fx.Node | None], strides: list[tuple[int, ...]] | None) -> None:
        """A backward pass gives gradients of these tensors (None: none), which have their sizes."""
        if self.abandoned is None:
            self.shapes.gradients(node, like, strides)

    # -- specialising

    def specialise(self, symbol: Symbol) -> None:
        """The number itself is needed: it is guarded, and plain from here on."""
        number = symbol.number
        if type(number) not in _TYPES:
            return
        if symbol.data:
            raise BreakGraph("tensor-item", "tensor.item()")
        value = plain_number(number)
        if symbol.algebra is not None:
            with self.shapes.facts.noting():
                bool(symbol.algebra == value)
        elif symbol.origin is not None:
            self._context.ledger.check(symbol.origin, Fact.EQUAL, value)
        else:
            for source in symbol.sources:
                self.specialise(source)
        self.specialised.append(Specialised(self._words(symbol), value, self._place))
        self._turn_plain(number)

    def _turn_plain(self, number: Any) -> None:
        """Where it is used next, the program's own number takes its place."""
        _native.turn_plain(number)
        self._context.watcher.leave_unguarded(number)

    def _words(self, symbol: Symbol) -> Any:
        """What was specialised, to be put into words later."""
        try:
            return self._term(symbol)
        except NotImplementedError:
            return ()

    def _specialise_operands(self, found: Iterable[Symbol | None]) -> Any:
        for symbol in found:
            if symbol is not None:
                self.specialise(symbol)
        return NotImplemented

    def _term(self, symbol: Symbol) -> Any:
        """A number as an expression."""
        return self.shapes.facts.expression(symbol.algebra) if symbol.algebra is not None else symbol.term

    def abandon(self, why: str) -> None:
        """From here on nothing but the numbers at hand is possible."""
        if self.abandoned is not None:
            return
        if any(symbol.data for symbol in self._table.values()):
            raise BreakGraph("tensor-item", "tensor.item()")
        self.abandoned = why
        for symbol in list(self._table.values()):
            self._turn_plain(symbol.number)
        self.shapes.facts.pin()
        self.specialised.append(Specialised((), why, self._place))
