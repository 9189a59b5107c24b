"""Running a compiled graph so that a failure inside it leaves torch's modes and random numbers as they were."""

from __future__ import annotations

import linecache
import traceback
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx import graph_module

from ..interrupts import let_through

_STATE_NODES = frozenset({"_set_grad_enabled", "_enter_inference_mode", "_enter_autocast"})


# Graphs that live; and those that are gone, noted by C code: what arrives in a callback of Python code reaches nobody.
_kept: dict[int, tuple[weakref.ref[fx.GraphModule], type]] = {}
_gone: list[weakref.ref[fx.GraphModule]] = []


def _forget_dead_sources() -> None:
    while _gone:
        _forget_source(_kept.pop(id(_gone.pop()))[1])


def _forget_source(cls: type) -> None:
    """fx keeps the text of every graph for ever, for tracebacks; this graph, whose own class it is, is gone."""
    code = getattr(vars(cls).get("forward"), "__code__", None)
    if code is not None and code.co_filename.startswith("<eval_with_key>"):
        sources: Any = getattr(getattr(graph_module, "_loader", None), "eval_cache", {})
        sources.pop(code.co_filename, None)
        linecache.cache.pop(code.co_filename, None)


class Unsettled:
    """A graph whose code is not made yet has a `forward` for the first run only; the real one is found anew."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph  # a lazy graph module

    def __call__(self, *inputs: Any) -> Any:
        return self._graph.forward(*inputs)

    def settled(self) -> Callable[..., Any]:
        """The real one, if the code can be made now."""
        try:
            self._graph.real_recompile()
            forward: Callable[..., Any] = self._graph.forward
        except Exception as error:
            let_through(error)
            return self
        return forward


def _settled(compiled: Callable[..., Any], graph: fx.GraphModule) -> Callable[..., Any]:
    if getattr(compiled, "__func__", None) is getattr(type(graph), "_lazy_forward", None) is not None:
        return Unsettled(graph)
    return compiled


def may_have_run(replay: Any, error: BaseException) -> bool:
    """Whether the graph of a replay that raised this may have begun. Of what is in C there is no trace."""
    code = getattr(replay, "__code__", None)
    if code is None:
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not any(frame.f_code is code for frame in frames):
        return False
    last = frames[-1].f_code
    if (last.co_filename, last.co_name) != (__file__, "run") or error.__context__ is not None:
        return True
    return not isinstance(frames[-1].f_locals.get("compiled"), (types.FunctionType, types.MethodType))


def _generators(inputs: tuple[Any, ...]) -> list[torch.Generator]:
    """Those that operations on these inputs draw from."""
    places = {value.device.index or 0 for value in inputs if isinstance(value, torch.Tensor) and value.is_cuda}
    return [torch.default_generator, *(torch.cuda.default_generators[place] for place in sorted(places))]


def restoring(compiled: Callable[..., Any], graph: fx.GraphModule, random: bool) -> Callable[..., Any]:
    """The compiled graph, wrapped if some of its nodes set state or draw numbers: nobody else would undo that."""
    _forget_dead_sources()
    reference = weakref.ref(graph, _gone.append)
    _kept[id(reference)] = (reference, type(graph))
    compiled = _settled(compiled, graph)
    names = {str(getattr(node.target, "__name__", node.target)) for node in graph.graph.nodes}
    if not random and not names & _STATE_NODES:
        return compiled

    generators: list[torch.Generator] = []  # found in the first run: the devices of the inputs are guarded

    def run(*inputs: Any) -> Any:
        if random and not generators:
            generators.extend(_generators(inputs))
        grad = torch.is_grad_enabled()
        devices = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
        numbers = [(generator, generator.get_state()) for generator in generators]
        try:
            return compiled(*inputs)
        except BaseException:
            for generator, state in numbers:
                generator.set_state(state)
            torch._C._set_grad_enabled(grad)
            for device, enabled, dtype in devices:
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)
            raise

    return run
