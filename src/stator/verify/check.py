"""A compiled graph beside the captured one: both run on copies, then the compiled one on the real inputs.

Enters: what a backend made of a graph. Leaves: a callable that gives the same, or raises a `VerificationError`, before
anything of the program's was touched if the copies show the difference already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import VerificationError
from ..interrupts import let_through
from ..support.guard_readers import torch_state
from .compare import After, differences
from .copies import Copies
from .reproduce import Subject, save_reproduction

CompiledGraph = Callable[..., Any]
_SEED = 20_000  # of the tangents


def reference(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph as it was captured: a backend may change the one that it is given."""
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    return fx.GraphModule(graph, copied)  # which has the leaves that the nodes name


def verifying(compiled: CompiledGraph, graph: fx.GraphModule, subject: Subject) -> CompiledGraph:
    """`compiled`, checked against `graph` in every call."""

    def run(*inputs: Any) -> Any:
        numbers = _generators()
        before = Copies(inputs)
        wanted, error = _run(graph.forward, Copies(before.values), numbers)
        if wanted is None:  # eager raises: what comes of that is seen by the program
            return compiled(*inputs)
        found, error = _run(compiled, Copies(before.values), numbers)
        lines = _failed(error) if found is None else differences(wanted, found)
        if not lines:
            result = compiled(*inputs)
            wanted.gradients = None
            lines = differences(wanted, After(result, inputs, torch_state(), _generators()))
            if not lines:
                return result
        path = save_reproduction(lines, subject, before.values, graph)
        raise VerificationError(subject.name, subject.backend[0], lines, path) from error

    return run


def check_graph(graph: fx.GraphModule, compiled: CompiledGraph, inputs: Sequence[Any]) -> list[str]:
    """How the compiled graph differs from the captured one on copies of these inputs: one line each."""
    numbers, before = _generators(), Copies(inputs)
    wanted, error = _run(graph.forward, Copies(before.values), numbers)
    if wanted is None:
        return [f"eager raises {type(error).__name__}: {error}"]
    found, error = _run(compiled, Copies(before.values), numbers)
    return _failed(error) if found is None else differences(wanted, found)


def _failed(error: Exception | None) -> list[str]:
    return [f"it raises {type(error).__name__}: {error}; eager does not"]


def _run(function: CompiledGraph, copies: Copies, numbers: list[Tensor]) -> tuple[After | None, Exception | None]:
    """Run on copies, backward included; torch's modes and random numbers are then as before."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    devices = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    try:
        outputs = function(*copies.values)
        after = After(outputs, copies.values, torch_state(), _generators())
        if not inference and isinstance(outputs, (tuple, list)):
            _differentiate(after, copies)
    except Exception as error:
        let_through(error)
        return None, error
    finally:
        _set_generators(numbers)
        torch._C._set_grad_enabled(grad)
        for device, enabled, dtype in devices:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
    return after, None


def _differentiate(after: After, copies: Copies) -> None:
    """Gradients of the inputs, for tangents that are the same in every run."""
    tensors = [value for value in (*after.outputs, *after.inputs) if isinstance(value, Tensor)]
    results = [tensor for tensor in tensors if tensor.requires_grad and not tensor.is_leaf]
    if not results or not copies.leaves:
        return
    try:
        tangents = [_tangent(result, number) for number, result in enumerate(results)]
        found = torch.autograd.grad(results, copies.leaves, tangents, allow_unused=True)
        after.gradients = list(found)
    except Exception as error:
        let_through(error)
        after.error = error


def _tangent(result: Tensor, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED + number)
    made = torch.randn(result.shape, generator=generator, dtype=torch.float64)
    return made.to(device=result.device, dtype=result.dtype)


def _generators() -> list[Tensor]:
    """The states of torch's random number generators."""
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if on_gpu else ())]


def _set_generators(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])
