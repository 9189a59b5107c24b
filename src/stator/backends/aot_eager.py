"""`backend="aot_eager"`: forward and backward graphs, derived ahead of time, run operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from .. import events
from ..autograd.compile import compile_function, make_boxed
from ..errors import CannotDerive
from . import eager


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    try:
        return compile_function(gm, example_inputs, fw_compiler=_run_as_it_is, with_devices=False, about="aot_eager")
    except CannotDerive as why:
        events.emit(events.NotDerived(why))
        return eager.compile_graph(gm, example_inputs)


def _run_as_it_is(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    return make_boxed(module)
