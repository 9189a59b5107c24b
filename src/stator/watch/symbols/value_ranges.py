"""Truths that follow from what an operation can give, whatever the data.

Enters: the node that a tensor is, and the operations so far. Leaves: True or False if `bool(tensor)` is the same in
every call. `torch.rand` gives numbers from 0 up to 1: a layer that is dropped with probability 0 never is, and a
program that asks so is not cut there. (The number is drawn all the same.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

# Of a number >= 0 compared with a constant: the outcome, and for which constants it is certain.
_Rule = tuple[bool, Callable[[float], bool]]


def _at_most_zero(number: float) -> bool:
    return number <= 0


def _below_zero(number: float) -> bool:
    return number < 0


_RULES: dict[Any, _Rule] = {
    name: rule
    for names, rule in (
        (("lt", operator.lt, torch.lt), (False, _at_most_zero)),
        (("ge", operator.ge, torch.ge), (True, _at_most_zero)),
        (("le", operator.le, torch.le), (False, _below_zero)),
        (("gt", operator.gt, torch.gt), (True, _below_zero)),
    )
    for name in names
}


def certain_truth(node: fx.Node, operations: list[fx.Node]) -> bool | None:
    """What `bool` of the tensor that this node gives is in every call; None: that depends on data."""
    rule = _RULES.get(node.target)
    if rule is None or len(node.args) != 2 or node.kwargs:
        return None
    drawn, bound = node.args
    if not isinstance(drawn, fx.Node) or drawn.target is not torch.rand or "out" in drawn.kwargs:
        return None
    outcome, holds = rule
    if not isinstance(bound, (int, float)) or not holds(bound):
        return None
    return outcome if _untouched(drawn, node, operations) else None


def _untouched(drawn: fx.Node, compared: fx.Node, operations: list[fx.Node]) -> bool:
    """Has nobody taken the drawn number, or the outcome, who could have written to it?"""
    for node in reversed(operations):
        if node is drawn:
            return True
        only_compares = node is compared or (node.target in _RULES and not node.kwargs)
        if not only_compares and not {drawn, compared}.isdisjoint(node.all_input_nodes):
            return False
    return False
