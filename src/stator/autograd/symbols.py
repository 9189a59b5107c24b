"""Numbers that are known at run time only: sizes of inputs, and what is computed from them.

Enters: torch's symbolic numbers (`SymInt` and its like), each an expression over the symbols of one `ShapeEnv`.
Leaves: the same numbers as nodes of a graph, in terms of its inputs, or as a function of the real inputs. It does not
matter who computed a number: the program, autograd's formulas in C++, or a meta kernel.

What holds: the nodes stand between a graph's inputs and its operators, so that all of it may use them. Asking whether
two sizes are equal adds no guard here; what is not known to be equal counts as different.

Sympy and torch's symbolic shapes take a quarter of a second to import: only when there are symbols.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx

from ..errors import CannotDerive

aten = torch.ops.aten
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool
AskedSize = tuple[Any, tuple[Any, ...]]  # an operator and its arguments


def is_symbolic(value: Any) -> TypeGuard[Symbolic]:
    return isinstance(value, SYMBOLIC)


def symbols_in(value: Any) -> Iterable[Any]:
    """The symbols that sizes, strides or a number are made of."""
    from torch.fx.experimental.symbolic_shapes import free_symbols

    return free_symbols(value)


def made_by_data(value: Any) -> bool:
    """Whether a size depends on what is in a tensor."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(value))


def symbol_of(value: Any) -> Any:
    """The symbol that a number is; None if it is computed from symbols, or known."""
    return value.node.expr if is_symbolic(value) and value.node.expr.is_Symbol else None


def surely_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two sizes, or strides, are equal whatever the symbols stand for."""
    if len(one) != len(other):
        return False
    return all(a == b if type(a) is type(b) is int else _surely(a == b) for a, b in zip(one, other, strict=True))


def _surely(answer: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(answer)


def symbolic_form(function: Any, args: tuple[Any, ...]) -> Any:
    """A function of numbers as one that leaves symbolic numbers symbolic."""
    form = _SYMBOLIC_FORMS.get(function) if any(map(is_symbolic, args)) else None
    return function if form is None else form


def _tensor_of(number: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """`torch.tensor` of a symbolic number. It raises where a number is too large for a type, so others are left out."""
    if dtype not in (None, torch.float32, torch.float64):
        return torch.tensor(number, dtype=dtype, device=device)
    found = torch.int64 if isinstance(number, torch.SymInt) else torch.get_default_dtype()
    return torch.full((), number, dtype=dtype or found, device=device)


_SYMBOLIC_FORMS: dict[Any, Any] = {
    torch.tensor: _tensor_of,
    torch.as_tensor: _tensor_of,
    int: torch.sym_int,
    float: torch.sym_float,
    max: torch.sym_max,
    min: torch.sym_min,
    math.sqrt: torch.sym_sqrt,
    operator.not_: torch.sym_not,
}


# -------------------------------------------------------------------------------------- numbers become nodes


class Numbers:
    """The symbolic numbers of one graph, as nodes."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._sources: dict[Any, AskedSize] = {}  # by symbol: how an input tells it
        self._nodes: dict[Any, fx.Node] = {}  # by expression
        self._last: fx.Node | None = None  # the last input, or the last number

    def stand_behind(self, placeholder: fx.Node) -> None:
        """A new input of the graph, after those there are."""
        if self._last is None or self._last.op == "placeholder":
            self._last = placeholder

    def learn_from(self, placeholder: fx.Node) -> None:
        """The symbols of an input can be had from it."""
        value = placeholder.meta["val"]
        if isinstance(value, Tensor):
            for symbol, source in _told_by(placeholder, value):
                self._sources.setdefault(symbol, source)
        elif (symbol := symbol_of(value)) is not None:
            self._nodes.setdefault(symbol, placeholder)

    def node(self, value: Symbolic) -> Any:
        """The node that has this number, or the number itself if it is known by now."""
        known = _known(value)
        if known is not None:
            return known
        expression = value.node.expr
        if expression not in self._nodes:
            with self._behind_inputs():
                self._nodes[expression] = self._write(expression)
        return self._nodes[expression]

    def in_place_of(self, arg: Any) -> Any:
        """An operator's argument, with nodes for the numbers in it."""
        if is_symbolic(arg):
            return self.node(arg)
        return [*map(self.in_place_of, arg)] if isinstance(arg, (list, tuple)) else arg

    def name_all(self) -> None:
        """A node for every symbol: whoever compiles the graph may want to know them."""
        if self._sources:
            with self._behind_inputs():
                for symbol in self._sources:
                    self._symbol(symbol)

    def _write(self, expression: Any) -> fx.Node:
        if expression.is_Symbol:
            return self._symbol(expression)
        from .expressions import write

        return write(self._graph, expression, {s: self._symbol(s) for s in sorted(expression.free_symbols, key=str)})

    def _symbol(self, symbol: Any) -> fx.Node:
        if symbol not in self._nodes:
            if symbol not in self._sources:
                raise CannotDerive(f"no input tells what the size {symbol} is")
            operator, args = self._sources[symbol]
            node = self._graph.call_function(operator, args)
            node.meta["val"] = operator(args[0].meta["val"], *args[1:])
            self._nodes[symbol] = node
        return self._nodes[symbol]

    @contextlib.contextmanager
    def _behind_inputs(self) -> Iterator[None]:
        assert self._last is not None
        behind = self._last.next
        with self._graph.inserting_before(behind):
            yield
        self._last = behind.prev


def _known(value: Symbolic) -> Any:
    node = value.node
    if isinstance(value, torch.SymBool):
        return node.maybe_as_bool()
    return node.maybe_as_int() if isinstance(value, torch.SymInt) else node.maybe_as_float()


def _told_by(node: fx.Node, tensor: Tensor) -> Iterator[tuple[Any, AskedSize]]:
    for dim in range(tensor.dim()):
        if (symbol := symbol_of(tensor.size(dim))) is not None:
            yield symbol, (aten.sym_size.int, (node, dim))
    for dim in range(tensor.dim()):
        if (symbol := symbol_of(tensor.stride(dim))) is not None:
            yield symbol, (aten.sym_stride.int, (node, dim))
    if (symbol := symbol_of(tensor.storage_offset())) is not None:
        yield symbol, (aten.sym_storage_offset.default, (node,))


# ---------------------------------------------------------------------------------- numbers around the graph


class RuntimeNumber:
    """Stands for a number that is computed when the graph is called."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Later:
    """Numbers that are wanted outside of the graph: collected first, then computed from real inputs at each call."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self._examples = examples
        self._wanted: list[Symbolic] = []

    def want(self, value: Any) -> Any:
        """The value, with places for the symbolic numbers in it."""
        if is_symbolic(value):
            self._wanted.append(value)
            return RuntimeNumber(len(self._wanted) - 1)
        if type(value) in (list, tuple, torch.Size):
            return tuple(map(self.want, value))
        return value

    def computed(self) -> Callable[..., Sequence[Any]] | None:
        """A function from the real inputs to the numbers; None if none are wanted."""
        if not self._wanted:
            return None
        graph = fx.Graph()
        numbers = Numbers(graph)
        for index, example in enumerate(self._examples):
            placeholder = graph.placeholder(f"input_{index}")
            placeholder.meta["val"] = example
            numbers.stand_behind(placeholder)
            numbers.learn_from(placeholder)
        graph.output(tuple(map(numbers.node, self._wanted)))
        run: Callable[..., Sequence[Any]] = fx.GraphModule({}, graph).forward
        return run


def filled(value: Any, numbers: Sequence[Any]) -> Any:
    """The value, with numbers in their places."""
    if type(value) is RuntimeNumber:
        return numbers[value.index]
    return tuple([filled(item, numbers) for item in value]) if type(value) is tuple else value
