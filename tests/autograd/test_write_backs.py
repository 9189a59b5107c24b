"""Writes to inputs behind a graph: together, so that many short ones are one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stator
from stator.autograd import runtime


def twins() -> tuple[nn.Module, nn.Module]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4), nn.BatchNorm1d(4)))
    return made[0], made[1]


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.named_buffers()}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_together(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_MANY", 2)
    calls: list[int] = []
    inner = torch._foreach_copy_

    def counted(targets: list[Tensor], values: list[Tensor], *rest: Any) -> None:
        calls.append(len(targets))
        inner(targets, values, *rest)

    monkeypatch.setattr(torch, "_foreach_copy_", counted)
    plain, model = twins()
    compiled = stator.compile(model, backend=backend)
    for seed in range(4):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))
        versions = [[b._version for b in m.buffers()] for m in (plain, model)]
        results = [call(x) for call in (plain, compiled)]
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(state(model), state(plain))
        grown = [
            [b._version - old for b, old in zip(m.buffers(), before, strict=True)]
            for m, before in zip((plain, model), versions, strict=True)
        ]
        assert [bool(n) for n in grown[0]] == [bool(n) for n in grown[1]]
        for m, result in zip((plain, model), results, strict=True):
            m.zero_grad()
            result.square().sum().backward()
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad)
    assert (compiled.stator.recordings, compiled.stator.hits) == (1, 3)
    assert calls == [2, 4] * 3, "how often each layer was called, and its floats; the first call is eager's"


def test_what_is_only_written_passes_by() -> None:
    """What a graph computes for its inputs alone, and what of that is a result too."""
    seen: list[Any] = []

    def look(module: Any, examples: Any) -> Any:
        seen.append((module.meta["passing"], module.meta["results"]))
        return module

    def fn(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a.add_(x)
        b.mul_(x)
        return x * 2, b.view(3)

    run = stator.autograd.aot_function(fn, look)
    for seed in range(3):
        x, a, b = (torch.full((3,), float(seed + n)) for n in (1, 2, 3))
        wanted = x * 2, b * x
        torch.testing.assert_close(run(x, a, b), wanted)
        torch.testing.assert_close(a, torch.full((3,), 2.0 * seed + 3))
    assert len(seen) == 1 and len(seen[0][0]) >= 1 and seen[0][1] >= 2
