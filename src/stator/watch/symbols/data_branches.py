"""Truths and numbers that a program takes from tensors and goes by: which of them do not end the graph.

Some are the same for all data (`value_ranges.py`), or computed from constants. On others a program insists: it raises
unless they come out as they do. Those, and what modules keep in buffers of one number, are checked before the graph
runs (`runtime_asserts.py`). Everything else depends on data, and the graph breaks.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from ... import _native
from ...recording import OnFailure, Origin
from ..models.unread_messages import leaves_message_unread
from ..objects.run_context import RunContext
from ..tensors.nodes import Nodes
from ..tensors.segment_graph import SegmentGraph
from .asserts import TRUTH, Assert, Compared, Truth
from .raising_branches import comparison_behind, operand, raises_behind, raises_unless, taker_of_text
from .symbol_table import SymbolTable
from .value_ranges import certain_truth

_INSISTS = frozenset({torch._check_tensor_all_with.__code__})  # raise unless the number that they take is true
_NUMBERS = (int, float)


class Truths:
    """One question of a program, at the instruction at work. `inside`: the nodes are those of a leaf's inside, before
    which nothing can be checked."""

    def __init__(
        self, context: RunContext, tracer: SegmentGraph, nodes: Nodes, symbols: SymbolTable | None, *, inside: bool
    ) -> None:
        self._context = context
        self._tracer = tracer
        self._nodes = nodes
        self._inside = inside
        self._checking = tracer.checking
        self._checking.symbols = symbols

    # -- the same for all data

    def is_certain(self, tensor: Any) -> bool:
        """Is `bool(tensor)` the same in every call?"""
        known = self._tracer.known.get(id(tensor))
        if known is None or known.index:
            return False
        return certain_truth(known.node, self._nodes.operations) is not None or self._checking.is_constant(known.node)

    def is_constant(self, tensor: Any) -> bool:
        known = self._tracer.known.get(id(tensor))
        return known is not None and not known.index and self._checking.is_constant(known.node)

    def without_constants(self, value: Any) -> Any:
        """An argument with numbers in place of tensors that hold the same number in every call."""
        if isinstance(value, torch.Tensor):
            whole = value.dim() == 0 and not value.dtype.is_floating_point and value.dtype is not torch.bool
            return value.item() if whole and (self.is_constant(value) or self.expects_number(value)) else value
        if type(value) in (tuple, list):
            return type(value)(map(self.without_constants, value))
        if type(value) is slice:
            return slice(*map(self.without_constants, (value.start, value.stop, value.step)))
        return value

    # -- expected

    def expects_truth(self, tensor: Any) -> bool:
        """The truth of a tensor that is computed from settings of modules. Is it now a check?"""
        settings = self._settings(tensor)
        return bool(settings) and self._check(tensor, bool(tensor), TRUTH, settings)

    def expects_number(self, tensor: Any) -> bool:
        """The same of the number in it."""
        settings = self._settings(tensor)
        number: Any = tensor.item() if settings else None
        if type(number) not in _NUMBERS or number != number:
            return False
        return self._check(tensor, True, Compared("==", number, False), settings)

    def _settings(self, tensor: Any) -> set[Any]:
        """The inputs so far that are buffers of one number, of modules: what a module was made with, as a rule."""
        if not self._may_check(tensor) or not self._context.may_expect:
            return set()
        known = self._tracer.known.get(id(tensor))
        origin = self._context.ledger.find(tensor) if known is None else None
        if known is None and (origin is None or not _is_buffer(origin)):
            return set()
        self._tracer.lookup(tensor)
        nodes = self._nodes.by_origin()
        return {
            nodes[origin.index]
            for origin, value, _ in self._tracer.inputs
            if _is_buffer(origin) and value.numel() == 1 and not value.requires_grad
        }

    # -- insisted on

    def insists_on_truth(self, tensor: Any) -> bool:
        """An instruction asks for the truth of a tensor. Is it now a check?"""
        watcher = self._context.watcher
        probe = watcher.last_probe
        if probe is None or probe.kind != _native.TRUTH or not self._may_check(tensor):
            return False
        if watcher.stack(0, probe.depth)[-1] is not tensor:  # C code asks
            return False
        outcome = bool(tensor)
        return raises_unless(probe, outcome) and self._check(tensor, outcome, TRUTH)

    def insists_on_number(self, tensor: Any) -> bool:
        """`tensor.item()`: the number is going to be compared, or asked for its truth. Is that now a check?"""
        probe = self._context.watcher.last_probe
        if probe is None or not self._may_check(tensor) or not self._calls_item(probe, tensor):
            return False
        number = tensor.item()
        if probe.code in _INSISTS:
            return bool(number) and self._check(tensor, True, TRUTH)
        if raises_behind(probe, None, bool(number)):
            return self._check(tensor, bool(number), TRUTH)
        compared = self._comparison(probe)
        if compared is None or type(number) not in (*_NUMBERS, bool):
            return False
        outcome = compared.holds(number)
        return raises_behind(probe, compared.swapped, outcome) and self._check(tensor, outcome, compared)

    def is_ignored(self, tensor: Any) -> bool:
        """The text of this tensor becomes part of an f-string. Does nobody look at that?"""
        watcher = self._context.watcher
        probe = watcher.last_probe
        if probe is None or probe.kind != _native.FORMAT or self._inside:
            return False
        stack = watcher.stack(0, probe.depth)
        return any(value is tensor for value in stack[-2:]) and any(
            map(leaves_message_unread, taker_of_text(probe, stack))
        )

    def _may_check(self, tensor: Any) -> bool:
        """Nothing from outside may have been written to: the checks come before all that."""
        return not self._inside and not self._tracer.mutates and type(tensor) is torch.Tensor and tensor.numel() == 1

    def _calls_item(self, probe: Any, tensor: Any) -> bool:
        """Is it this very instruction that calls the method?"""
        if probe.kind != _native.CALL:
            return False
        operands = self._context.watcher.stack(0, probe.depth)[probe.depth - probe.span :]
        called, *given = [value for value in operands if value is not _native.MISSING]
        if called is torch.Tensor.item:
            return len(given) == 1 and given[0] is tensor
        bound = type(called) is types.BuiltinMethodType and called.__name__ == "item"
        return bound and not given and called.__self__ is tensor

    def _comparison(self, probe: Any) -> Compared | None:
        """What the number is going to be compared with: a plain number that is guarded, or a constant."""
        place = comparison_behind(probe)
        if place is None:
            return None
        watcher = self._context.watcher
        other = operand(place, probe, watcher.frames()[0][-1][5], watcher.stack(0, probe.depth))
        unguarded = self._context.ledger.find_unguarded(other) is not None or self._tracer.is_scalar(other)
        return None if type(other) not in _NUMBERS or unguarded else Compared(place.comparison, other, place.swapped)

    def _check(self, tensor: Any, outcome: bool, op: Truth | Compared, settings: set[Any] | None = None) -> bool:
        node = self._tracer.node_of(self._tracer.lookup(tensor))
        on_failure = OnFailure.RAISES if settings is None else OnFailure.GOES_ON
        if not self._checking.add(Assert(node, op, outcome, on_failure), settings):
            return False
        self._tracer.operations += 1  # a check belongs to a graph
        return True


def _is_buffer(origin: Origin) -> bool:
    return origin.parent is not None and origin.parent.key == "_buffers"
