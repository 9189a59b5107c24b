"""Steps of `torch.optim`, compiled by the native backend: one kernel per parameter, no calls, and eager's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from native_check import Seen
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

import stator
from stator.backends import native
from stator.fuse.loops import LoopProgram

SHAPES = ((7, 5), (5,), (3, 4, 2), (1,))
CASES: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "SGD": (SGD, {"lr": 0.1}),
    "SGD with momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "Adam": (Adam, {"lr": 0.01}),
    "Adam with decay": (Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    "AdamW": (AdamW, {"lr": 0.01}),
    "AdamW, maximize": (AdamW, {"lr": 0.01, "maximize": True, "betas": (0.8, 0.99)}),
}


def run(kind: type[Optimizer], how: dict[str, Any], *, compiled: bool) -> tuple[list[Tensor], Optimizer]:
    """Five steps on gradients that change."""
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]
    optimizer = kind(parameters, **how)
    step = stator.compile(optimizer.step, backend="native") if compiled else optimizer.step
    for _ in range(5):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        step()
    return parameters, optimizer


def watched(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen, inner = Seen(), native._program

    def noting(module: Any) -> LoopProgram:
        program = inner(module)
        seen.programs.append(program)
        return program

    monkeypatch.setattr(native, "_program", noting)
    return seen


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
@pytest.mark.parametrize("name", CASES)
def test_steps_are_eagers(name: str, foreach: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, how = CASES[name]
    want, eager = run(kind, {**how, "foreach": foreach}, compiled=False)
    seen = watched(monkeypatch)
    with stator.options.patch(suppress_errors=False):
        got, optimizer = run(kind, {**how, "foreach": foreach}, compiled=True)
    for mine, theirs in zip(got, want, strict=True):
        close(mine, theirs)
        states = optimizer.state[mine], eager.state[theirs]
        assert states[0].keys() == states[1].keys()
        for key, value in states[1].items():
            if isinstance(value, Tensor):
                close(states[0][key], value)
    last = seen.programs[-1]  # of the steps from the second on
    assert sum(hasattr(step, "kernel") for step in last.steps) <= len(SHAPES)
    assert not seen.calls
    assert len(seen.programs) <= 2  # the first step makes the state


def test_a_step_that_cannot_be_taken_apart_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that a later operator wants and that may be an int."""
    seen = watched(monkeypatch)

    def f(x: Tensor, n: Tensor) -> Tensor:
        with torch.no_grad():
            return x * n.item()

    compiled = stator.compile(f, backend="native")
    for k in range(3):
        x, n = torch.randn(4), torch.tensor(float(k))
        assert torch.equal(compiled(x, n), f(x, n))
    assert not seen.calls
