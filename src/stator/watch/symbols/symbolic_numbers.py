"""Symbolic numbers: ints and floats of a watched run which stand for other numbers, too.

Enters: what has been seen to change between calls (`Changing`), by origin. Such a number is put in its place as an
instance of a subclass of `int` or `float` (`_native/symbol.c`), which the program takes for the number that it is.
Arithmetic with it gives symbolic numbers again; a comparison leaves a relation to be guarded; whatever needs the number
itself *specialises* it: its value is guarded and it is a plain number from there on. Leaves: nodes of the graph for the
numbers that the graph needs, and the relations. When the segment ends all of them turn into plain numbers, wherever
they are.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from ... import _native
from ...recording import Edge, Origin, describe, path_of, render_place
from ...support.graph_numbers import COMPARISONS
from ...support.symbolic_exprs import MOST_BITS, Relation, terms_of
from ..graph_break import BreakGraph
from ..models.user_hints import marks_of, wishes_of
from ..objects.run_context import RunContext
from ..tensors.nodes import Nodes
from .computed_numbers import ComputedNumbers
from .data_scalars import ARITHMETIC, DIVISIONS
from .number_places import NumberPlaces
from .symbol_table import Symbol, plain_number

SizesSeen = tuple[int | None, ...]
NUMBER = None  # what of an origin's value changes: the number that it is, or
Dim = int | None  # one of its sizes; a stride by the complement
ANY_SIZE = (0, 2**62)
_MOST_NUMBERS = 1_000  # that are symbols; where more than these change, it is data, which a graph would not take anyway

_READ_TOO_LATE = ("__defaults__", "__kwdefaults__")  # a frame that starts has its arguments already
MAY_GIVE_BACK = frozenset({"contiguous", "to"})  # their operand itself, for some strides
_FACTS_OF_SIZES = frozenset(
    "shape size stride numel nelement nbytes __len__ is_contiguous is_same_size dim_order".split()
)


@dataclass(slots=True)
class Changing:
    """What changes between the calls of a program, so far as known: sizes and numbers, by the path to them."""

    seen: dict[tuple[Any, ...], set[Dim]] = field(default_factory=dict)
    every_size: bool = False  # all sizes of the arguments are symbols from the first call on
    rates: bool = False  # a scheduler sets the rates of an optimizer

    def __bool__(self) -> bool:
        return bool(self.seen) or self.every_size or self.rates


class Marked(NamedTuple):
    """A dimension that the user wants to be a symbol."""

    name: str
    term: Any
    size: Any


class Symbols(ComputedNumbers):
    """The symbolic numbers of one segment."""

    def __init__(self, context: RunContext, changing: Changing | None, nodes: Nodes) -> None:
        """`changing`: None if sizes and numbers from outside are constants, and only numbers that the graph takes from
        tensors are symbols."""
        super().__init__(context, nodes)
        self._changing = Changing() if changing is None else changing
        self._marked: list[Marked] = []
        self._stand_ins: list[Any] = []
        self._places = NumberPlaces(context)
        if changing is None:
            self.abandoned = "nothing but numbers from tensors can change"
        else:
            from .symbolic_shapes import Shapes  # torch's algebra takes seconds to import, and most programs need none

            self.shapes = Shapes(lambda: self._place)
            context.ledger.generalise = self.generalise
        context.watcher.on_symbol = self.operate

    # -- numbers that the program is given

    def slot(self, index: int, name: str, value: Any) -> Any:
        """An argument slot: a symbol if its number is known to change, else None."""
        if not _may_be_symbol(value) or NUMBER not in self._changing.seen.get(((Edge.LOCAL, index),), ()):
            return None
        origin = self._context.ledger.local(index, name, None)
        origin.checks.clear()
        return self._given(origin, value)

    def generalise(self, origin: Origin, value: Any) -> bool:
        """A number or a tuple is read from outside. True: it is a symbol now, in its place."""
        if self.abandoned is not None:  # backends get plain numbers, and would take it for the one at hand
            return False
        if origin.key in _READ_TOO_LATE or (origin.parent is not None and origin.parent.key in _READ_TOO_LATE):
            return False
        if type(value) not in (int, float):
            self._open(origin, value)
            return False
        if origin.edge is Edge.LOCAL:
            return False
        if NUMBER not in self._changing.seen.get(path_of(origin), ()) and not self._is_rate(origin, value):
            return False
        if not _may_be_symbol(value) or len(self._changing.seen) > _MOST_NUMBERS:
            return False
        return self._places.put(origin, value, lambda: self._given(origin, value))

    def _is_rate(self, origin: Origin, value: Any) -> bool:
        """Is it a number that schedulers set, which need not have done so yet?"""
        if not self._changing.rates or type(value) is not float or origin.edge is not Edge.ITEM:
            return False
        key, holder = origin.key, origin.parent
        if holder is not None and holder.key == "betas":
            key, holder = "betas", holder.parent
        if key not in ("lr", "momentum", "betas") or holder is None:
            return False
        try:
            group = self._places.value_of(holder)
        except (LookupError, AttributeError, ValueError):
            return False
        return type(group) is dict and ("params" if key == "lr" else "max_momentum") in group

    def _open(self, origin: Origin, value: tuple[Any, ...]) -> None:
        """A tuple of constants is a constant, unless one of its numbers is known to change."""
        path = path_of(origin)
        self._places.opened.append(value)
        for index, item in enumerate(value):
            step = (*path, (Edge.ITEM, index))
            known = any(seen[: len(step)] == step for seen in self._changing.seen)
            if type(item) in (int, float, tuple) and (known or (origin.key == "betas" and self._changing.rates)):
                self._context.ledger.read(origin, Edge.ITEM, index, item)
        self._places.opened.pop()

    # -- sizes of tensors

    def enter_input(self, node: fx.Node, tensor: torch.Tensor, origin: Origin) -> tuple[SizesSeen, SizesSeen]:
        """An input tensor of the graph: its sizes and strides, None where they are symbols."""
        if self.abandoned is not None:
            return tensor.shape, tensor.stride() if tensor.layout is torch.strided else ()
        self.shapes.tensor(node, tensor, origin.index, _symbolic_dims(self._changing, origin, tensor))
        fake = self.shapes.exactly(node)
        marks, _ = marks_of(tensor)
        for dim in marks:
            name = f"dimension {dim} of {describe(origin)}"
            self._marked.append(Marked(name, ("size", origin.index, dim), fake.shape[dim]))
        if tensor.layout is not torch.strided:
            return tensor.shape, ()
        return tuple(map(_fixed, fake.shape)), tuple(map(_fixed, fake.stride()))

    def run_aside(self, node: fx.Node) -> None:
        """An operation that is no part of the graph: what it did is what it does with these numbers."""
        if self.abandoned is not None:
            return
        try:
            if node.target in MAY_GIVE_BACK:
                with self.shapes.facts.noting():
                    self.shapes.run_exactly(node)
            self._pin(self.shapes.known(operand) for operand in node.all_input_nodes)
        except NotImplementedError as error:
            self.abandon(str(error))

    def _pin(self, values: Iterable[Any]) -> None:
        with self.shapes.facts.noting():
            for value in values:
                if isinstance(value, (torch.SymInt, torch.SymFloat)):
                    bool(value == value.node.hint)

    def may_fail(self, node: fx.Node) -> bool:
        """Can this operation raise for other numbers, whatever the relations? An index may be out of range; an integer
        may be too large, or a divisor of integers zero."""
        if self.shapes is None or self.abandoned is not None:
            return False
        if node.target in (operator.getitem, operator.setitem):
            index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
            return any(isinstance(part, fx.Node) and self._is_number(part) for part in index)
        kinds = [getattr(self.shapes.known(operand), "dtype", None) for operand in node.all_input_nodes]
        whole = any(kind is not None and not (kind.is_floating_point or kind.is_complex) for kind in kinds)
        return whole and any(map(self._is_number, node.all_input_nodes))

    def _is_number(self, node: fx.Node) -> bool:
        return isinstance(self.shapes.known(node), (torch.SymInt, torch.SymFloat))

    def answer(self, name: str, nodes: list[fx.Node], args: tuple[Any, ...], result: Any) -> Any:
        """What the program gets to know of a tensor's sizes: `x.shape`, `x.size(0)`. `args`: behind the tensor."""
        if self.abandoned is not None or name not in _FACTS_OF_SIZES:
            return result
        try:
            return self._answer(name, nodes, args, result)
        except NotImplementedError as error:
            self.abandon(str(error))
            return result

    def _answer(self, name: str, nodes: list[fx.Node], args: tuple[Any, ...], result: Any) -> Any:
        node, sizes = nodes[0], self.shapes.sizes(nodes[0])
        if name in ("numel", "nelement"):
            return self._wrap(math.prod(sizes), result, lambda: self._node("call_method", "numel", (node,)))
        if name == "nbytes":
            bytes_each = self.shapes.known(node).dtype.itemsize
            return self._wrap(
                math.prod(sizes) * bytes_each,
                result,
                lambda: self._node("call_function", getattr, (node, "nbytes")),
            )
        if name in ("shape", "size", "stride"):
            kind = "stride" if name == "stride" else "size"
            found = self.shapes.exactly(node).stride() if kind == "stride" else sizes
            if isinstance(result, tuple):
                items = [self._part(node, kind, dim, found[dim], value) for dim, value in enumerate(result)]
                return torch.Size(items) if isinstance(result, torch.Size) else tuple(items)
            dim = plain_number(args[0]) % len(found)
            return self._part(node, kind, dim, found[dim], result)
        self._judge(name, nodes, args)
        return result

    def _judge(self, name: str, nodes: list[fx.Node], args: tuple[Any, ...]) -> None:
        """An answer that is no symbol holds for all sizes and strides that give the same."""
        sizes = [self.shapes.sizes(node) for node in nodes]
        with self.shapes.facts.noting(), torch._C.DisableTorchFunction():
            if name == "is_contiguous":
                layout = args[0] if args else torch.contiguous_format
                bool(self.shapes.exactly(nodes[0]).is_contiguous(memory_format=layout))
                return
            if name == "is_same_size":
                if len(sizes[0]) == len(sizes[1]):
                    all(bool(a == b) for a, b in zip(*sizes, strict=True))
                return
        self._pin(sizes[0])
        if name == "dim_order":
            self._pin(self.shapes.exactly(nodes[0]).stride())

    @staticmethod
    def itself(number: Any) -> Any:
        """`int(n)`."""
        return number

    @staticmethod
    def plain_type(number: Any) -> type:
        """`type(n)`."""
        return int if type(number) is _native.Int else float

    def _part(self, node: fx.Node, kind: str, dim: int, algebra: Any, value: int) -> Any:
        return self._wrap(algebra, value, lambda: self._node("call_method", kind, (node, dim)))

    def _wrap(self, algebra: Any, value: int, make: Callable[[], fx.Node]) -> Any:
        """The number that a size is for the program: a symbol, unless nothing but this value is possible."""
        if not isinstance(algebra, torch.SymInt):
            return value
        if algebra.node.hint != value:  # torch is wrong about what its own operation gives
            self.abandon(f"a size that is {value} and not {algebra.node.hint}")
            return value
        return value if self.shapes.facts.constant(algebra) is not None else self._enter(value, algebra, make).number

    # -- what the program does with them

    def operate(self, name: str, *operands: Any) -> Any:
        """An operation on symbolic numbers is about to be made: its result, or NotImplemented if it is a plain one."""
        try:
            return self._operate(name, *operands)
        except BreakGraph as stop:
            stop.inside = True  # the instruction has begun
            raise

    def _operate(self, name: str, *operands: Any) -> Any:
        for number in self._stand_ins:
            _native.turn_plain(number)
        self._stand_ins.clear()
        found = [self.find(operand) for operand in operands]
        others = [operand for operand, symbol in zip(operands, found, strict=True) if symbol is None]
        if all(symbol is None for symbol in found) or any(issubclass(type(o), torch.Tensor) for o in others):
            return NotImplemented
        if name in ("==", "!=") and any(other is None or type(other) is str for other in others):
            return NotImplemented
        if all(type(other) in (int, float, bool) and _is_manageable(other) for other in others):
            if name in COMPARISONS:
                return self._compare(name, *operands)
            if name == "bool":
                return self._compare("!=", operands[0], 0)
            if name in ARITHMETIC:
                return self._combine(name, operands, found)
            if name == "pos":
                return operands[0]
            if name == "divmod":
                return self.operate("//", *operands), self.operate("%", *operands)
            return self.operator(name, operands)
        return self._specialise_operands(found)

    def _combine(self, name: str, operands: tuple[Any, ...], found: list[Symbol | None]) -> Any:
        function = ARITHMETIC[name]
        if any(symbol is not None and symbol.data for symbol in found):
            return self.compute(name, operands, found)
        if name in DIVISIONS and found[1] is not None:
            self._compare("!=", operands[1], 0)
        if name == "**" and found[0] is not None and type(operands[1]) is float:
            self._compare(">=", operands[0], 0)  # else the result may be complex
        plain = [plain_number(operand) for operand in operands]
        try:
            value = function(*plain)
        except (ArithmeticError, ValueError):
            value = None
        whole = type(value) is int and all(type(p) in (int, bool) for p in plain)
        if (
            type(value) not in (int, float)
            or not _is_manageable(value)
            or (name == "**" and (found[1] is not None or plain[1] < 0))
        ):
            return self.operator(name, operands)
        algebra = term = None
        if not whole:
            try:
                term = (name, *(p if s is None else self._term(s) for s, p in zip(found, plain, strict=True)))
            except NotImplementedError:
                return self._specialise_operands(found)
        else:
            parts = [int(p) if s is None else s.algebra for s, p in zip(found, plain, strict=True)]
            with self.shapes.facts.noting():
                algebra = function(*parts)
            if not isinstance(algebra, torch.SymInt) or self.shapes.facts.constant(algebra) is not None:
                return value

        def make() -> fx.Node:
            args = tuple(p if s is None else self.node_of(s) for s, p in zip(found, plain, strict=True))
            return self._node("call_function", function, args)

        made = self._enter(value, algebra, make)
        made.sources = frozenset().union(*(self._sources(s) for s in found if s is not None))
        made.term = term
        return made.number

    def _sources(self, symbol: Symbol) -> frozenset[Symbol]:
        """What has to be guarded to pin a float that was computed from this."""
        return frozenset({symbol}) if symbol.algebra is not None else symbol.sources

    def _compare(self, name: str, a: Any, b: Any) -> Any:
        compare = COMPARISONS[name]
        value = compare(plain_number(a), plain_number(b))
        first, second = self.find(a), self.find(b)
        if any(symbol is not None and symbol.data for symbol in (first, second)):
            if not self.in_optimizer or not self._context.may_expect:
                raise BreakGraph("tensor-item", "tensor.item()")
            self.expect(name, a, b, value)
            return value
        plain = [plain_number(x) for x in (a, b)]
        plain = [int(x) if type(x) is bool else x for x in plain]  # torch's algebra has no bools among numbers
        parts = [x if s is None else s.algebra for x, s in zip(plain, (first, second), strict=True)]
        if all(isinstance(part, (int, torch.SymInt)) for part in parts):
            with self.shapes.facts.noting():
                assert bool(compare(*parts)) is value
            return value
        try:
            terms = [plain_number(x) if s is None else self._term(s) for x, s in ((a, first), (b, second))]
        except NotImplementedError:
            self._specialise_operands((first, second))
            return value
        expression = (name, *terms)
        self._comparisons.append(Relation(expression if value else ("not", expression), self._place))
        if (name, value) in (("==", False), ("!=", True)):  # a container that asks would have found a NaN by identity
            self._comparisons += [Relation(("==", term, term), self._place) for term in terms if type(term) is tuple]
        return value

    def stand_in(self, number: float | bool) -> Any:
        """A plain float as one that asks its partner, for one operation; of a bool, the int."""
        self._stand_ins.append(_native.symbol(number if type(number) is float else int(number)))
        return self._stand_ins[-1]

    # -- specialising

    def specialise_in(self, value: Any) -> None:
        """C code is going to read this, all the way down."""
        for symbol in list(self.symbols_in(value)):
            self.specialise(symbol)

    def symbols_in(self, value: Any, depth: int = 20) -> Iterator[Symbol]:
        symbol = self.find(value)
        if symbol is not None:
            yield symbol
        elif depth == 0:
            yield from self._table.values()
        elif isinstance(value, (tuple, list)):
            for item in list(value):
                yield from self.symbols_in(item, depth - 1)
        elif isinstance(value, dict):
            for key, item in list(value.items()):
                yield from self.symbols_in(key, depth - 1)
                yield from self.symbols_in(item, depth - 1)
        elif isinstance(value, slice):
            for item in (value.start, value.stop, value.step):
                yield from self.symbols_in(item, depth - 1)

    def keep(self, value: Any) -> None:
        """The instruction at hand does nothing with it that we would not hear of."""
        if self.find(value) is not None:
            self._context.watcher.leave_unguarded(value)

    # -- the end

    def relations(self) -> list[Relation]:
        return [*(self.shapes.facts.relations() if self.shapes is not None else ()), *self._comparisons]

    @property
    def matter(self) -> bool:
        """Is there anything symbolic in the recording?"""
        return self.abandoned is None and self.shapes.facts.symbolic

    def examples(self, inputs: list[fx.Node]) -> list[Any]:
        """What the graph takes, as torch's backends expect it."""
        return [self.shapes.exactly(node) for node in inputs]

    def values(self) -> list[Any]:
        """The numbers among what the graph takes, as they are."""
        return [node.meta["value"] for _, node in self.inputs]

    def tell(self, nodes: list[fx.Node]) -> None:
        """Put on nodes what they give, where backends look for that."""
        for node in nodes:
            with contextlib.suppress(KeyError, NotImplementedError):  # a node that changes torch's state gives nothing
                node.meta["example_value"] = self.shapes.exactly(node)

    def names(self) -> list[Any]:
        """The numbers that are symbols, as expressions."""
        return self.shapes.facts.free_terms() if self.matter else []

    def violated(self) -> str | None:
        """A dimension that the user wants to be a symbol, and that is none any more."""
        for marked in self._marked:
            size = marked.size
            value = self.shapes.facts.constant(size) if isinstance(size, torch.SymInt) else size
            if value is None:
                continue
            due = [r for r in self.relations() if marked.term in terms_of(r.expression) and r.expression[0] == "=="]
            place = next((render_place(r.place) for r in due if r.place is not None), "")
            return f"{marked.name} can only be {value}" + (f", due to {place}" if place else "")
        return None

    def close(self) -> None:
        """The segment is over: every number that was symbolic is plain."""
        for number in (*(symbol.number for symbol in self._table.values()), *self._stand_ins):
            _native.turn_plain(number)
        self._places.restore()
        self._closed = True
        self._table.clear()
        self._by_expression.clear()


def _is_manageable(number: float) -> bool:
    """Is it short enough for CPython to write it down? Reports do that."""
    return type(number) is not int or number.bit_length() <= MOST_BITS


def _may_be_symbol(value: Any) -> bool:
    """Not a NaN, which containers find by its identity."""
    return type(value) in (int, float) and value == value and _is_manageable(value)


def _symbolic_dims(changing: Changing, origin: Origin, tensor: torch.Tensor) -> dict[int, tuple[int, int]]:
    """The dimensions of an input that are symbols, with their bounds."""
    if isinstance(tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return {}
    marks, static = marks_of(tensor)
    dims: dict[int, tuple[int, int]] = {}
    if changing.every_size:
        dims = dict.fromkeys(range(tensor.dim()), ANY_SIZE)
    seen = changing.seen.get(path_of(origin), ()) if changing.seen else ()
    dims |= {dim: ANY_SIZE for dim in seen if dim is not None and -tensor.dim() <= dim < tensor.dim()}
    dims |= dict.fromkeys(wishes_of(tensor), ANY_SIZE) | marks
    for dim in static:
        dims.pop(dim, None)
    return {dim: bounds for dim, bounds in dims.items() if dim < 0 or tensor.shape[dim] > 1}


def _fixed(size: Any) -> int | None:
    return size if type(size) is int else None
