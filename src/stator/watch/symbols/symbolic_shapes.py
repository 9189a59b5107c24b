"""Sizes of tensors as expressions: every operation of a symbolic recording runs once more, on tensors without data.

Enters: nodes of the graph, inputs with the dimensions that are symbols. Leaves: the sizes of every result in terms of
the inputs' sizes; what is assumed of those on the way is `size_facts.py`'s.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode

from ...recording import Place
from ...support.guard_readers import stand_for
from ...support.symbolic_exprs import Expression
from ...support.torch_modes import ModesKept
from .size_facts import LARGEST, SMALLEST, SizeFacts
from .size_rules import Outline, Sizes, lies_in_order, told, told_recurrent

_RESHAPE_IN_PLACE = frozenset("t_ transpose_ squeeze_ unsqueeze_ swapaxes_ swapdims_ as_strided_".split())
_LOG = logging.getLogger("torch._subclasses.fake_tensor")


class Shapes:
    def __init__(self, place: Callable[[], Place | None]) -> None:
        """`place`: where the program is."""
        self.facts = SizeFacts(place)
        self.mode = FakeTensorMode(shape_env=self.facts.env)
        self._values: dict[fx.Node, Any] = {}  # outlines, numbers, tuples of tensors
        self._approximations: dict[fx.Node, Any] = {}  # tensors without data, perhaps with other strides
        self._exact: dict[fx.Node, Any] = {}  # tensors without data
        self._reshaped: set[fx.Node] = set()

    # -- inputs

    def tensor(self, node: fx.Node, tensor: torch.Tensor, origin: int, dims: dict[int, tuple[int, int]]) -> None:
        """An input of the graph. `dims`: its symbolic dimensions, with the bounds that the user gave them; a stride
        that is a symbol of its own goes by the complement of its number."""
        sizes: list[Any] = list(tensor.shape)
        for dim, (low, high) in dims.items():
            if dim >= 0 and sizes[dim] >= SMALLEST:
                sizes[dim] = self.facts.symbol(sizes[dim], ("size", origin, dim), max(low, SMALLEST), high)
        strides = self._strides(tensor, sizes, origin, dims)
        with ModesKept(), self.mode, torch._C.DisableTorchFunction():
            fake = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
            fake.requires_grad_(tensor.requires_grad)
        stand_for(fake, tensor)
        self._enter(node, fake, exact=True)

    def _strides(self, tensor: torch.Tensor, sizes: list[Any], origin: int, dims: Any) -> list[Any]:
        """Of dimensions that lie one behind the other without gaps: the product of the sizes in between."""
        found, strides = tensor.stride(), list[Any](tensor.stride())
        expected: Any = 1
        value = 1
        for dim in sorted(range(len(sizes)), key=lambda dim: (found[dim], tensor.shape[dim])):
            if ~dim in dims and found[dim] > 0:  # of an expanded dimension it is 0, and writing to it fails
                strides[dim] = self.facts.symbol(found[dim], ("stride", origin, dim), 1, LARGEST)
            elif found[dim] == value:
                strides[dim] = expected
                if isinstance(expected, torch.SymInt):
                    self.facts.bound(("==", ("stride", origin, dim), self.facts.expression(expected)))
            expected, value = strides[dim] * sizes[dim], found[dim] * tensor.shape[dim]
        return strides

    # -- operations

    def run(self, node: fx.Node, result: Any) -> None:
        """What this operation gives, without data; in this run it gave `result`."""
        args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), self._outlined)
        outline = told(node, args, kwargs, result)
        recurrent = told_recurrent(node, args, result) if outline is None else None
        if recurrent is not None:
            self._values[node] = self._exact[node] = self._make_recurrent(result, *recurrent)
        elif outline is None:
            self._enter(node, self._call(node, self._approximate))
            if node.target in _RESHAPE_IN_PLACE:
                self._reshape(node.args[0])
        else:
            self._values[node] = outline

    def _reshape(self, operand: Any) -> None:
        """Sizes of an operand were changed. What its strides depended on is not what they depend on now."""
        self._reshaped.add(operand)
        self._enter(operand, self._approximate(operand))
        self._exact.pop(operand, None)

    def gradients(self, node: fx.Node, like: list[fx.Node | None], strides: list[tuple[int, ...]] | None) -> None:
        """Results with the sizes of these tensors. `strides`: what they have, whatever the symbols stand for, unless
        their own sizes are symbols; None: that is not known."""
        outlines: list[Any] = [None if other is None else self.known(other) for other in like]
        self._values[node] = tuple([None if outline is None else self._make(outline) for outline in outlines])
        fixed = all(type(size) is int for outline in outlines if outline is not None for size in outline.sizes)
        if strides is None or not fixed:
            self._reshaped.add(node)
            return
        with ModesKept(), self.mode:
            self._exact[node] = tuple([
                torch.empty_strided(outline.sizes, stride, dtype=outline.dtype, device=outline.device)
                for outline, stride in zip(outlines, strides, strict=True)
            ])  # fmt: skip

    def _enter(self, node: fx.Node, value: Any, *, exact: bool = False) -> None:
        if isinstance(value, torch.Tensor):
            (self._exact if exact else self._approximations)[node] = value
            value = Outline(tuple(value.shape), value.dtype, value.device, exact and lies_in_order(value))
        self._values[node] = value

    def _call(self, node: fx.Node, value_of: Callable[[fx.Node], Any]) -> Any:
        """Run the operation on operands without data."""
        args, kwargs = fx.node.map_aggregate(
            (node.args, node.kwargs), lambda arg: value_of(arg) if isinstance(arg, fx.Node) else arg
        )
        if node.target in (operator.getitem, operator.setitem):
            args = (args[0], _without_data(args[1]), *args[2:])
        with ModesKept(), torch.no_grad(), self.mode, enable_python_dispatcher(), _quiet():
            if node.op == "call_method":
                value = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                value = node.target(*args, **kwargs)  # type: ignore[operator]
        self.facts.note()
        return value

    def _outlined(self, value: Any) -> Any:
        """An operand as rules about sizes take it."""
        return self.known(value) if isinstance(value, fx.Node) else value

    def _approximate(self, node: fx.Node) -> Any:
        """What a node gives, perhaps with other strides: no result's sizes depend on those."""
        found = self.known(node)
        if not isinstance(found, Outline):
            return found
        if node in self._exact:
            return self._exact[node]
        if node not in self._approximations:
            self._approximations[node] = self._make(found)
        return self._approximations[node]

    def _make(self, outline: Outline) -> torch.Tensor:
        with ModesKept(), self.mode:
            return torch.empty(outline.sizes, dtype=outline.dtype, device=outline.device)

    def _make_recurrent(self, result: Any, batch_first: bool, sizes: Sizes, last: Sizes) -> tuple[torch.Tensor, ...]:
        """Without data, with the strides that the results of a recurrent layer have."""
        output = result[0]
        places = (sizes[1], sizes[0], sizes[2]) if batch_first else sizes
        made = self._make(Outline(places, output.dtype, output.device, True))
        with ModesKept(), self.mode:
            made = made.transpose(0, 1) if batch_first else made
        return made, self._make(Outline(last, output.dtype, output.device, True))

    def known(self, node: fx.Node) -> Any:
        """The outline of a tensor; a number."""
        if node not in self._values and node.target is operator.getitem:
            self._enter(node, self._call(node, self._approximate))
        return self._values[node]

    def sizes(self, node: fx.Node) -> Sizes:
        """The sizes of a tensor."""
        found: Outline = self.known(node)
        return found.sizes

    def run_exactly(self, node: fx.Node) -> None:
        """Run an operation that is no part of the graph, for what it assumes."""
        self._call(node, self.exactly)

    def exactly(self, node: fx.Node) -> Any:
        """A tensor without data, with the strides that it has: by way of all that they depend on."""
        if node in self._reshaped:
            raise NotImplementedError(f"strides of {node.name}, whose sizes were changed in place")
        if node not in self._exact:
            found = self.known(node)
            if isinstance(found, Outline) and found.contiguous:
                self._exact[node] = self._make(found)
            else:
                is_number = not isinstance(found, (Outline, tuple, list))
                self._exact[node] = found if is_number else self._call(node, self.exactly)
        return self._exact[node]

    def set(self, node: fx.Node, value: Any) -> None:
        """A number that is a node."""
        self._values[node] = value

    def expression_at(self, node: fx.Node) -> Expression:
        """The whole number that a node gives, as an expression; None if it gives none, or none of sizes alone."""
        number = self._values.get(node)
        if not isinstance(number, torch.SymInt):
            return None
        try:
            return self.facts.expression(number)
        except (KeyError, NotImplementedError):
            return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch logs an error when it cannot tell sizes; to us that is an answer."""
    former, _LOG.disabled = _LOG.disabled, True
    try:
        yield
    finally:
        _LOG.disabled = former


def _without_data(index: Any) -> Any:
    """An index with a constant in the place of each number: which number it is makes no difference to sizes."""
    if isinstance(index, tuple):
        return tuple(map(_without_data, index))
    if isinstance(index, torch.Tensor):
        return 0 if index.dim() == 0 and index.dtype not in (torch.bool, torch.uint8) else index
    return 0 if isinstance(index, torch.SymInt) else index


def _warm_up() -> None:
    """Torch imports what it needs for the first symbol. That must not happen while a program is watched, whose guards
    may be about what an import changes."""
    node = fx.Graph().placeholder("x")
    shapes = Shapes(lambda: None)
    shapes.tensor(node, torch.empty(4, 3), 0, {0: (0, LARGEST)})
    shapes.run(node.graph.call_function(torch.cat, ([node, node],)), None)
    shapes.facts.relations()


_warm_up()
