"""Whose operators are these?

What torch says of the sizes of its own operators' results is held to be true. Of others the program says it
(`register_fake`): a graph that was derived from that compares the sizes that come, in each call.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

TORCHS_OWN = frozenset(("aten", "prims"))


def is_torchs_own(target: Any) -> bool:
    return not isinstance(target, torch._ops.OpOverload) or target.namespace in TORCHS_OWN


def has_promised_sizes(node: fx.Node) -> bool:
    """Does nobody but the program say what sizes the result has?"""
    made = node.args[0] if node.target is operator.getitem else node
    return isinstance(made, fx.Node) and not is_torchs_own(made.target)
