"""`options.frozen_weights`: weights stay packed from call to call, and are packed anew when an operator wrote."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stator
from stator import _native
from stator.codegen import host

ROWS = 48
FROZEN = {"frozen_weights": True}

pytestmark = pytest.mark.skipif(not host.pack_bytes(ROWS, 256, 256), reason="the BLAS cannot pack")


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many products of each host function use packed weights."""
    found: list[int] = []
    made = host.n.Host

    def counted(*tables: Any) -> Any:
        steps = tables[7]
        found.append(sum(step[0] == _native.HOST_GEMM and len(step[3]) > 5 and step[3][5] for step in steps))
        return made(*tables)

    monkeypatch.setattr(host.n, "Host", counted)
    return found


class Two(nn.Module):
    """A linear layer, and a product with a parameter that lies row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 320)
        self.second = nn.Parameter(torch.randn(320, 256) / 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x)) @ self.second + x


def rows(seed: int = 0, count: int = ROWS) -> Tensor:
    return torch.randn(count, 256, generator=torch.Generator().manual_seed(seed))


def same(compiled: Callable[..., Any], model: Callable[..., Any], x: Tensor) -> None:
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_every_write_by_an_operator_counts(packing: list[int]) -> None:
    torch.manual_seed(0)
    model = Two().eval()
    compiled = stator.compile(model, backend="native", options=FROZEN)
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: model.first.weight.mul_(2),
        lambda: model.second.copy_(torch.randn(320, 256) / 16),
        lambda: model.second[3].zero_(),
        lambda: model.load_state_dict(Two().state_dict()),
        lambda: torch._foreach_add_(list(model.parameters()), 0.1),
        lambda: nn.init.normal_(model.first.weight, std=0.05),
        lambda: setattr(model, "second", nn.Parameter(torch.randn(320, 256) / 16)),
        lambda: model.first.bias.add_(1),
    ]
    for number, change in enumerate(changes):
        change()
        for call in range(4):  # the first two see a weight, the second one packs it
            same(compiled, model, rows(10 * number + call))
    assert packing and set(packing) == {2}


@torch.no_grad()
def test_packs_are_used(packing: list[int]) -> None:
    """What the promise rules out shows that a pack is what is multiplied with; the next operator puts it right."""
    model = Two().eval()
    compiled = stator.compile(model, backend="native", options=FROZEN)
    for seed in range(3):
        same(compiled, model, rows(seed))
    before = compiled(rows())
    model.second.data.zero_()
    assert torch.equal(compiled(rows()), before)
    model.second.mul_(1)
    for seed in range(3):
        same(compiled, model, rows(seed))


def test_without_the_promise_nothing_is_packed(packing: list[int]) -> None:
    model = Two().eval()
    compiled = stator.compile(model, backend="native")
    with torch.no_grad():
        for seed in range(4):
            same(compiled, model, rows(seed))
            model.second.data.add_(0.1)
    assert packing == [0]


def test_training_packs_nothing_and_its_steps_count(packing: list[int]) -> None:
    torch.manual_seed(0)
    model = Two()
    compiled = stator.compile(model, backend="native", options=FROZEN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    update = stator.compile(optimizer.step, backend="native")
    for step in range(4):
        compiled(rows(step)).square().mean().backward()
        update()
        optimizer.zero_grad()
        with torch.no_grad():
            for call in range(3):
                same(compiled, model, rows(call))
    assert sorted(set(packing)) == [0, 2]


def test_inference_mode_and_its_tensors(packing: list[int]) -> None:
    with torch.inference_mode():
        model = Two().eval()  # its parameters have no versions
        compiled = stator.compile(model, backend="native", options=FROZEN)
        for seed in range(4):
            same(compiled, model, rows(seed))
            model.second.mul_(1.5)


@torch.no_grad()
def test_other_models_with_the_same_code(packing: list[int]) -> None:
    """A weight that takes the place of one that is gone is another one, whatever its address and version."""
    compiled = stator.compile(lambda model, x: model(x), backend="native", options=FROZEN)
    for seed in range(3):
        torch.manual_seed(seed)
        model = Two().eval()
        for call in range(3):
            torch.testing.assert_close(compiled(model, rows(call)), model(rows(call)), rtol=1e-4, atol=1e-4)
        del model
        gc.collect()


@torch.no_grad()
def test_threads_and_writes(packing: list[int]) -> None:
    model, other = Two().eval(), Two().eval()
    compiled = stator.compile(model, backend="native", options=FROZEN)
    x = rows()
    results = [model(x), other(x)]
    states = [model.state_dict(), other.state_dict()]
    states[0] = {name: value.clone() for name, value in states[0].items()}
    found: list[Tensor] = []

    @torch.no_grad()
    def call() -> None:
        found.extend(compiled(x) for _ in range(20))

    for number in range(4):
        model.load_state_dict(states[number % 2])
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 60
        for got in found:
            torch.testing.assert_close(got, results[number % 2], rtol=1e-4, atol=1e-4)
        found.clear()


@torch.no_grad()
@pytest.mark.parametrize("count", [4, 1024])
def test_few_and_many_rows_need_none(count: int, packing: list[int]) -> None:
    model = Two().eval()
    compiled = stator.compile(model, backend="native", options=FROZEN)
    for seed in range(3):
        same(compiled, model, rows(seed, count))
    assert set(packing) == {0}
