"""Is a graph on a GPU worth a CUDA graph? Estimated, before it runs for the first time.

Enters: a graph, the loop program made of it, and the memory that is free. Leaves: None, or why it is not worth it. What
is estimated: how long the host launches, how long the device computes, and the memory that a capture holds for good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from ..fuse.loops import Launch, LoopProgram
from ..interrupts import let_through

_LAUNCH, _CALL = 3e-6, 9e-6  # seconds of the host for a kernel of ours, and for an operator through the dispatcher
_BYTES = 3e12  # that a device moves in a second,
_OPERATIONS = 5e13  # and float32 operations of libraries; eight times as many of narrow floats
_NARROW = 8
_SHARE = 0.1  # of the device's time: what launching must cost for a graph without a backward
_SHARE_WITH_BACKWARD = 1.0  # then the capture also holds what is kept for the backward
_MOST_MEMORY = 1 / 16  # of what is free


def why_not_worth(module: fx.GraphModule, program: LoopProgram, free: int, *, for_good: bool) -> str | None:
    """`for_good`: no backward belongs to it, so that it holds its results alone."""
    try:
        launching, computing = _launching(program), _computing(module, program)
    except Exception as error:  # torch's formulas do not know all forms of their operators
        let_through(error)
        return f"what it costs is not known: {type(error).__name__}: {error}"
    if launching < computing * (_SHARE if for_good else _SHARE_WITH_BACKWARD):
        return f"launching takes about {launching * 1e3:.2g} ms, computing {computing * 1e3:.2g} ms"
    results: Any = module.graph.output_node().args[0]
    held = sum(_size(node.meta.get("val")) for node in results if isinstance(node, fx.Node))
    if held > free * _MOST_MEMORY:
        return f"its results take {held >> 20} MiB, of {free >> 20} that are free"
    return None


def _launching(program: LoopProgram) -> float:
    return sum(_LAUNCH if isinstance(step, Launch) else _CALL for step in program.steps)


def _computing(module: fx.GraphModule, program: LoopProgram) -> float:
    moved = sum(
        math.prod(place.sizes) * place.dtype.itemsize
        for step in program.steps
        if isinstance(step, Launch)
        for name in step.buffers
        if (place := program.places.get(name)) is not None
    )
    return float(moved / _BYTES + sum(_library_seconds(module.graph)))


def _library_seconds(graph: fx.Graph) -> Iterator[float]:
    from torch.utils.flop_counter import flop_registry

    for node in graph.nodes:
        count = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if count is None:
            continue
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        value = node.meta.get("val")
        first = value if isinstance(value, Tensor) else value[0]
        narrow = first is not None and first.dtype in (torch.bfloat16, torch.float16)
        yield count(*args, **kwargs, out_val=value) / (_OPERATIONS * (_NARROW if narrow else 1))


def _size(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0
