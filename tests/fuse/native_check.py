"""The check behind tests of the native backend: three calls, values and gradients as eager's, and real machine code.

`compare` compiles a function with `backend="native"`, calls it on three sets of inputs, and compares results, their
strides and the gradients with eager's. The error against eager in float64 may be no worse than a small multiple of
eager's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import stator
from stator import events
from stator.backends import native
from stator.fuse import evaluate, memory
from stator.fuse.loops import Call, Gemm, Launch, LoopProgram, in_order


@dataclass
class Seen:
    """What the backend made of the graphs."""

    programs: list[LoopProgram] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def kernels(self) -> int:
        return sum(isinstance(step, Launch) for program in self.programs for step in in_order(program.steps))

    @property
    def gemms(self) -> int:
        return sum(isinstance(step, Gemm) for program in self.programs for step in in_order(program.steps))

    @property
    def calls(self) -> list[str]:
        return [step.label for program in self.programs for step in in_order(program.steps) if isinstance(step, Call)]


def compare(
    fn: Callable[..., Any],
    make: Callable[[int], Sequence[Any]],
    *,
    grads: bool = True,
    dynamic: bool | None = None,
    backend: Any = "native",
) -> Seen:
    """`make(seed)`: the arguments of one call."""
    seen = Seen()
    inner = native._program

    def noting(module: Any) -> LoopProgram:
        program = inner(module)
        memory.plan_memory(program)
        seen.programs.append(program)
        return program

    def refused(event: Any) -> None:
        seen.refused.append(event.why)

    native._program = noting
    unsubscribe = events.subscribe(refused, events.NotGenerated)
    try:
        with stator.options.patch(suppress_errors=False):
            compiled = stator.compile(fn, backend=backend, dynamic=dynamic)
            for seed in range(3):
                _compare_call(fn, compiled, make, seed, grads)
    finally:
        unsubscribe()
        native._program = inner
    assert seen.programs, "nothing was compiled"
    assert not seen.refused, seen.refused
    return seen


def _compare_call(fn: Any, compiled: Any, make: Any, seed: int, grads: bool) -> None:
    want = _run(fn, make(seed), grads)
    got = _run(compiled, make(seed), grads)
    exact = _run(fn, pytree.tree_map(_wide, make(seed)), grads)
    for (g, _), (w, is_result), (e, _) in zip(got, want, exact, strict=True):
        close(g, w, e, strides=is_result)


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def _run(fn: Any, args: Sequence[Any], grads: bool) -> list[tuple[Tensor, bool]]:
    """Tensors, and whether they are results of the function; the others are gradients."""
    results = [r for r in pytree.tree_leaves(fn(*args)) if isinstance(r, Tensor)]
    wanted = [a for a in pytree.tree_leaves(list(args)) if isinstance(a, Tensor) and a.requires_grad]
    if not (grads and wanted):
        return [(r.detach(), True) for r in results]
    loss = sum(
        (r * torch.linspace(-1, 1, r.numel(), device=r.device).sin().view_as(r).to(r.dtype)).sum()
        for r in results
        if r.requires_grad
    )
    gradients = torch.autograd.grad(loss, wanted)
    return [*[(r.detach(), True) for r in results], *[(g, False) for g in gradients]]


def close(got: Tensor, want: Tensor, exact: Tensor, *, strides: bool = True) -> None:
    """As near to the exact result as eager, give or take a few units in the last place of the largest number."""
    assert got.dtype is want.dtype and got.shape == want.shape
    if strides and want.numel():
        assert got.stride() == want.stride()
    if not want.is_floating_point():
        assert torch.equal(got, want)
        return
    assert torch.equal(got.isnan(), want.isnan())
    g, w, e = (t.double().nan_to_num(0, 1e30, -1e30) for t in (got, want, exact))
    if g.numel():
        scale = max(float(e.abs().max()), 1e-30)
        mine, eager = float((g - e).abs().max()), float((w - e).abs().max())
        assert mine <= 3 * eager + 8 * torch.finfo(got.dtype).eps * scale, (mine, eager, scale)


def by_evaluator(program: LoopProgram, inputs: Sequence[Any], constants: dict[str, Tensor] | None = None) -> list[Any]:
    """The program's results, by the reference evaluator."""
    return evaluate.run_program(program, inputs, constants or {}, {})
