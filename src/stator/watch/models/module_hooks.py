"""Full backward hooks of modules: torch sets them in each call, on nodes of autograd.

It gives the tensors to an identity function, looks for the node of that by name, and registers a hook there. That is
one step of plain Python between two segments, whatever it does inside. Without gradients it does nothing, and is
watched like any other function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from ..graph_break import BreakGraph
from ..objects.fingerprints import is_tensor
from ..segment import Segment
from .call_model import Args

SET: Any = BackwardHook._apply_on_tensors


def set_on_tensors(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`backward_hook._apply_on_tensors(fn, args)`."""
    given = args[2] if len(args) == 3 else ()
    if torch.is_grad_enabled() and any(is_tensor(value) and value.requires_grad for value in given):
        raise BreakGraph("module-hooks", type(getattr(args[0], "module", None)).__qualname__)
