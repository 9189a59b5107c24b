"""Schedulers of `torch.optim`: their steps run as plain Python, between two segments.

A step of a scheduler computes a few numbers, by another way through its code every now and then, and each way would be
a recording of everything around it. In plain Python it costs what it costs without a compiler, whatever way it takes;
the rates that it sets are inputs of the graphs behind it. Where a single graph is wanted it is watched like any other
function.
"""

from __future__ import annotations

import types
from typing import Any

from torch.optim import lr_scheduler

from ..graph_break import BreakGraph
from ..segment import Segment


def _steps() -> list[types.FunctionType]:
    """The methods `step` of torch's schedulers; those that inherit one have no other."""
    classes = [cls for cls in vars(lr_scheduler).values() if isinstance(cls, type)]
    schedulers = [cls for cls in classes if issubclass(cls, lr_scheduler.LRScheduler)]
    found = {cls.__dict__["step"] for cls in schedulers if isinstance(cls.__dict__.get("step"), types.FunctionType)}
    return list(found)


STEPS = _steps()


def step(s: Segment, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> None:
    """`scheduler.step()`."""
    if not s.must_not_break:
        raise BreakGraph("scheduler-step", f"{type(args[0]).__name__}.step" if args else "step")
