"""`backend="inductor"`: torch's code generator on our forward and backward graphs."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, tracing

from .. import events
from ..autograd.compile import compile_function, make_boxed
from ..errors import CannotDerive
from ..support import background
from ..support.op_namespaces import has_promised_sizes
from . import eager
from .cuda_graphs import Replayed, why_not_capturable
from .data_scalars import split
from .floats import lerp, one_by_one, take_in_tensors
from .near_graphs import compile_nearly

_LERP = torch.ops.aten.lerp.Scalar

_one_at_a_time = threading.RLock()  # the generator expects that
_SILENT = {"shape_padding": False}  # for other threads' sake: to find out what pays it would draw random numbers


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    return _compile(gm, example_inputs, {}, captures=False)


class InductorInMode:
    """This backend, with other settings of the generator."""

    def __init__(self, mode: str, settings: Mapping[str, Any]) -> None:
        from torch._inductor import list_mode_options

        self._settings: dict[str, Any] = {**list_mode_options(mode), **settings}
        # The generator's own way to use CUDA graphs gives away memory that the next call writes to.
        self._captures = bool(self._settings.pop("triton.cudagraphs", False))
        self.benchmarks = bool(self._settings.get("max_autotune"))  # with random numbers, which are the process's

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return _compile(gm, example_inputs, self._settings, captures=self._captures)


_made: dict[str, InductorInMode] = {}  # for each mode and settings: functions compiled alike share their recordings


def in_mode(mode: str, **settings: Any) -> InductorInMode:
    key = repr((mode, sorted(settings.items())))
    if key not in _made:
        _made[key] = InductorInMode(mode, settings)
    return _made[key]


def _renew_lock() -> None:
    """In the child of a fork nobody else is there to hold it."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _leave_numbers_alone() -> None:
    """The generator puts torch's random numbers back to where they were when it began. They are the process's: on the
    background thread that would undo what the program draws meanwhile."""
    former: Any = vars(sys.modules["torch._dynamo.utils"])["preserve_rng_state"]
    if getattr(former, "by_stator", False):
        return

    @functools.wraps(former)
    def preserve_rng_state() -> Any:
        return contextlib.nullcontext() if background.is_here() else former()

    preserve_rng_state.by_stator = True  # type: ignore[attr-defined]
    for name, module in list(sys.modules.items()):
        if name.startswith(("torch._inductor", "torch._dynamo")) and hasattr(module, "preserve_rng_state"):
            module.preserve_rng_state = preserve_rng_state  # type: ignore[attr-defined]


def _compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], settings: dict[str, Any], *, captures: bool
) -> Callable[..., Any]:
    # Imports that take seconds, and only this backend needs them. Some decompositions expect `lowering` to be there.
    from torch._inductor import config, lowering  # noqa: F401
    from torch._inductor.decomposition import select_decomp_table

    settings = {**settings, "fallback_random": True}  # numbers are drawn by ATen: a dropout's mask is eager's
    if background.is_here():
        _leave_numbers_alone()
        settings |= _SILENT

    def about(table: Mapping[Any, Any]) -> Any:
        return None if captures else ("inductor", config.get_hash(), frozenset(table.items()))

    def derive(module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        table = select_decomp_table()  # another one for other settings
        return compile_function(
            module,
            examples,
            fw_compiler=functools.partial(_generate, is_backward=False, captures=captures),
            bw_compiler=functools.partial(_generate, is_backward=True, captures=captures),
            decompositions={**table, _LERP: lerp(table[_LERP]), **one_by_one(table)},
            about=about(table),
        )

    try:
        with _one_at_a_time, config.patch(settings):
            parts = split(gm, example_inputs)
            if parts is not None:
                return parts.compiled(derive)
            with contextlib.suppress(CannotDerive):
                nearly = compile_nearly(gm, example_inputs, about(select_decomp_table()), derive)
                if nearly is not None:
                    return nearly
            return derive(gm, example_inputs)
    except CannotDerive as why:
        events.emit(events.NotDerived(why))
        return eager.compile_graph(gm, example_inputs)


def _say_casts(module: fx.GraphModule) -> None:
    """Casts that were added when the graph was cut, in the words of the generator."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default):
        if list(node.kwargs) == ["dtype"]:
            node.target = torch.ops.prims.convert_element_type.default
            node.args, node.kwargs = (node.args[0], node.kwargs["dtype"]), {}


def _with_tensors(generated: Callable[[list[Any]], Any], numbers: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    known: tuple[bytes, Any] = (b"", None)  # the last numbers, bit by bit, and the tensor of them: nobody writes to it

    def call(given: list[Any]) -> Any:
        nonlocal known
        values = numbers(*given)
        bits, vector = array("d", values).tobytes(), None
        former = known
        if former[0] == bits:
            vector = former[1]
        if vector is None:
            with torch.inference_mode(False):
                vector = torch.tensor(values, dtype=torch.float64)
            known = bits, vector
        given.append(vector)
        return generated(given)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _generate(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, is_backward: bool, captures: bool = False
) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.virtualized import V

    if any(not node.users and has_promised_sizes(node) for node in module.graph.nodes):
        return make_boxed(module)  # the generator would leave the node out, whose sizes are to be compared
    part = "backward" if is_backward else "forward"
    if captures and (why := why_not_capturable(module, example_inputs)) is not None:  # the generator changes the graph
        captures = False
        events.emit(events.NotCaptured(part, why))
    examples, numbers = take_in_tensors(module, example_inputs)
    _say_casts(module)
    # What the forward keeps must come with the strides that the backward was derived for, like every other output.
    output = module.graph.output_node()
    returned: Any = output.args[0]
    output.meta["user_visible_output_idxs"] = [i for i, node in enumerate(returned) if node is not None]
    mode = next((value.fake_mode for value in example_inputs if hasattr(value, "fake_mode")), None)
    # The context is where the generator finds the `ShapeEnv`, and leaves the guards of what it has in its cache.
    start = time.perf_counter()
    with (
        events.stage("generating code for the", part, lambda: len(module.graph.nodes)),
        V.set_fake_mode(mode),
        tracing(TracingContext(mode)),
    ):
        generated: Any = compile_fx_inner(module, examples, is_backward=is_backward)
    if events.listening(events.CodeGenerated):
        code = str(getattr(generated, "source_code", None) or "")
        events.emit(events.CodeGenerated("inductor", part, time.perf_counter() - start, lambda: code))
    if captures:
        return Replayed(generated, part=part)
    return generated if numbers is None else _with_tensors(generated, numbers)  # takes a list and clears it
