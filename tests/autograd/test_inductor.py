"""Torch's code generator on our graphs: forward, backward, dropout, writes to buffers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import stator
from stator import events


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.wide = nn.Linear(8, 16)
        self.back = nn.Linear(16, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        y = self.norm(x)
        y = nn.functional.dropout(nn.functional.gelu(self.wide(y)), 0.3)
        y = x + self.back(y)
        return y, y.detach().argmax(-1)


@pytest.fixture
def refused() -> Any:
    seen: list[Any] = []
    end = events.subscribe(seen.append, events.NotDerived, events.InternalFailure)
    yield seen
    end()


def test_training_steps(refused: Any) -> None:
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Block()
        call = stator.compile(model, backend="inductor", options={"suppress_errors": False}) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            torch.manual_seed(step)
            optimizer.zero_grad()
            out, best = call(torch.randn(6, 8))
            assert not best.requires_grad
            out.pow(2).mean().backward()
            optimizer.step()
        ends.append(model.state_dict())
    assert refused == []
    for name, expected in ends[0].items():
        torch.testing.assert_close(ends[1][name], expected, msg=lambda m, name=name: f"{name}: {m}")


def test_torchs_own_autograd_is_not_asked(monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    from torch._functorch import aot_autograd, partitioners

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("torch's ahead-of-time autograd was called")

    for name in ("aot_module_simplified", "aot_function", "create_joint"):
        monkeypatch.setattr(aot_autograd, name, never)
    for name in ("default_partition", "min_cut_rematerialization_partition"):
        monkeypatch.setattr(partitioners, name, never)
    fn = stator.compile(lambda x: x.sin() * 2, backend="inductor", options={"suppress_errors": False})
    x = torch.randn(5, requires_grad=True)
    for _ in range(2):
        x.grad = None
        fn(x).sum().backward()
    torch.testing.assert_close(x.grad, x.cos() * 2)
    assert refused == []


def steps(x: torch.Tensor, f: float) -> torch.Tensor:
    """A float that changes as operand, factor and bound, of tensors and of one number, and computed with."""
    y = x.exp() * f + x.sin().add(x, alpha=f) - (f - x) / (f * 2)
    return y * x[0] * (f * x.shape[0]) + y * (x > f) + f


def test_floats_that_change(refused: Any) -> None:
    fn = stator.compile(steps, backend="inductor", options={"suppress_errors": False})
    for f in (0.5, 0.25, 1.75, -0.5, 0.25):
        x = torch.randn(6, requires_grad=True)
        other = x.detach().clone().requires_grad_()
        expected, found = steps(x, f), fn(other, f)
        torch.testing.assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(other.grad, x.grad)
    assert refused == [] and (fn.stator.recordings, fn.stator.hits) == (2, 3)


def test_rows_of_floats_that_change(refused: Any) -> None:
    """`foreach=True`: step counts and rates are numbers that every call has its own of."""

    def train(optimizer: torch.optim.Optimizer, step: Any, parameters: list[nn.Parameter]) -> None:
        for number in range(5):
            for p in parameters:
                p.grad = torch.full_like(p, number + 1.0).sin() * p.detach()
            optimizer.param_groups[0]["lr"] = 0.01 / (number + 1)
            step()

    torch.manual_seed(0)
    given = [torch.randn(3, 4), torch.randn(5)]
    plain, ours = ([nn.Parameter(t.clone()) for t in given] for _ in range(2))
    optimizer = torch.optim.AdamW(plain, lr=0.01, foreach=True)
    train(optimizer, optimizer.step, plain)
    optimizer = torch.optim.AdamW(ours, lr=0.01, foreach=True)
    step = stator.compile(optimizer.step, backend="inductor", options={"suppress_errors": False})
    train(optimizer, step, ours)
    for found, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(found, expected)
    assert refused == [] and step.stator.hits >= 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, f: x + torch.full((6,), f),
        lambda x, f: x.bfloat16() * f,
        lambda x, f: (x > 0).long() * f,
        lambda x, f: x**f,
        lambda x, f: x.clamp(max=f),
    ],
)
def test_floats_that_generated_code_cannot_take(fn: Any, refused: Any) -> None:
    """Then the graph runs as captured."""
    compiled = stator.compile(fn, backend="inductor", options={"suppress_errors": False})
    for f in (0.5, 0.25, 1.75):
        x = torch.randn(6)
        torch.testing.assert_close(compiled(x, f), fn(x, f), equal_nan=True)
    assert [type(event) for event in refused] == [events.NotDerived] and compiled.stator.hits == 1


def test_a_factor_that_is_too_large_raises_what_eager_raises(refused: Any) -> None:
    def fn(x: torch.Tensor, f: float) -> torch.Tensor:
        return torch.add(x, x, alpha=f) * f

    compiled = stator.compile(fn, backend="inductor", options={"suppress_errors": False})
    x = torch.ones(3)
    for f in (0.5, 0.25, 2.5, 1e300, float("inf"), 1.5):
        if f == 1e300:
            for call in (fn, compiled):
                with pytest.raises(RuntimeError, match="without overflow"):
                    call(x, f)
        else:
            torch.testing.assert_close(compiled(x, f), fn(x, f))
    assert refused == [] and compiled.stator.recordings == 2


FIRST = """
import torch, stator
from stator import events
refused = []
events.subscribe(refused.append, events.NotDerived, events.InternalFailure)
fn = stator.compile(lambda x: torch.nn.functional.max_pool2d(x, 2), backend="inductor")
for size in (8, 8, 10):
    x = torch.randn(1, 2, size, size, requires_grad=True)
    fn(x).sum().backward()
assert refused == [], refused
"""


def test_decompositions_in_a_fresh_process() -> None:
    """Torch's decomposition of pooling uses a part of inductor that must have been imported."""
    subprocess.run([sys.executable, "-c", FIRST], check=True, timeout=300)
