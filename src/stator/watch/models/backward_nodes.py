"""Nodes of autograd: may their formulas fail for other data than those that the forward has run on?

Enters: the class of a node, which torch names after the operator that it differentiates. What holds: it may, unless
that operator cannot fail itself, or fails for nothing but indices that the formula takes over from it.
"""

from __future__ import annotations

import functools
import re

import torch

from . import aten

_BY_INDICES = frozenset(
    "embedding nll_loss_forward nll_loss nll_loss2d nll_loss2d_forward index gather index_select index_add index_copy "
    "index_fill scatter scatter_add index_put".split()
)
_FORMULA = re.compile(r"Backward\d+$")


@functools.cache
def _operators() -> dict[str, list[str]]:
    """The names of operators, by what is left of them in the name of a node."""
    found: dict[str, list[str]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        namespace, name = full.split(".")[0].split("::")
        if namespace == "aten":
            found.setdefault(_key(name), []).append(name)
    return {key: sorted({*names}) for key, names in found.items()}


def _key(name: str) -> str:
    return name.replace("_", "").lower()


@functools.cache
def may_fail(node: str) -> bool:
    """`node`: the name of its class."""
    if not _FORMULA.search(node):
        return node != "AccumulateGrad"
    names = _operators().get(_key(_FORMULA.sub("", node)), [])
    return not names or any(name not in _BY_INDICES and not _is_total(name) for name in names)


def _is_total(name: str) -> bool:
    overloads = [o for o in aten.overloads_of(name) if not any(argument.is_out for argument in o._schema.arguments)]
    return bool(overloads) and all(aten.facts_of(overload).total for overload in overloads)
