"""Equal graphs are derived and compiled once, whatever functions they are of; what is not surely equal is not."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import stator
from stator import events
from stator.autograd import compile as compiling
from stator.autograd import equal_graphs

BACKENDS = ("aot_eager", "native")


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were derived, and so compiled."""
    found: list[Any] = []
    derive = compiling.derive

    def counting(function: Any, *args: Any, **named: Any) -> Any:
        found.append(function)
        return derive(function, *args, **named)

    monkeypatch.setattr(compiling, "derive", counting)
    return found


class Net(nn.Module):
    def __init__(self, seed: int, scale: float = 2.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.norm = nn.BatchNorm1d(8)
        self.scale = scale
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        result: torch.Tensor = self.last(torch.tanh(self.norm(self.first(x)) * self.scale))
        return result


class Calls(nn.Module):
    """A function as a module: each instance is recorded by itself, where closures of one code share recordings."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def apart(function: Any, backend: str) -> Any:
    return stator.compile(Calls(function), backend=backend)


def train(model: Any, net: nn.Module, seed: int) -> list[torch.Tensor]:
    """Three steps: losses, gradients and what is in the model at the end."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for step in range(3):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * seed + step))
        loss = model(x).square().mean()
        loss.backward()
        found += [loss.detach(), *[p.grad.clone() for p in net.parameters() if p.grad is not None]]
        optimizer.step()
        optimizer.zero_grad()
    return [*found, *[t.clone() for t in net.state_dict().values()]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sweep_over_instances_compiles_once(backend: str, derived: list[Any]) -> None:
    nets = [Net(seed) for seed in range(12)]
    plain = [copy.deepcopy(net) for net in nets]
    compiled = [stator.compile(net, backend=backend) for net in nets]
    for seed, (fast, net, other) in enumerate(zip(compiled, nets, plain, strict=True)):
        for ours, eagers in zip(train(fast, net, seed), train(other, other, seed), strict=True):
            torch.testing.assert_close(ours, eagers)
        assert net.calls == other.calls == 3
        assert fast.stator.hits == 1
    assert len(derived) == 2  # the counter becomes a number that changes
    x = torch.randn(6, 4)
    results = [fast(x) for fast in compiled]  # each still has weights of its own
    for result, other in zip(results, plain, strict=True):
        torch.testing.assert_close(result, other(x))
    assert len(derived) == 2
    for rows in (5, 4, 3):
        results = [fast(x[:rows]) for fast in compiled]
        for result, other in zip(results, plain, strict=True):
            torch.testing.assert_close(result, other(x[:rows]))
    assert len(derived) == 3


def test_with_inductor_code_is_generated_once(derived: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch._inductor.compile_fx")
    nets = [Net(seed) for seed in range(3)]
    plain = [copy.deepcopy(net) for net in nets]
    compiled = [stator.compile(net, backend="inductor") for net in nets]
    for seed, (fast, net, other) in enumerate(zip(compiled, nets, plain, strict=True)):
        for ours, eagers in zip(train(fast, net, seed), train(other, other, seed), strict=True):
            torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-5)
    assert len(derived) == 2


def test_a_backend_of_the_users_is_called_for_each_graph() -> None:
    seen: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    compiled = [stator.compile(nn.Linear(4, 2), backend=backend) for seed in range(4)]
    for fast in compiled:
        for _ in range(3):
            fast(torch.randn(6, 4))
    assert len(seen) == 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_differs_is_compiled_by_itself(backend: str, derived: list[Any]) -> None:
    """A constant, a size, a stride, a dtype, a mode, who requires gradients, which inputs are one, an offset."""

    def scaled(by: Any) -> Any:
        return apart(lambda x, y: (x * by + y).sum(), backend)

    x, y = torch.randn(4, 6), torch.randn(4, 6)
    wide = torch.randn(4, 12)
    given = [
        (2.0, x, y), (3.0, x, y), (2, x, y), (-0.0, x, y), (0.0, x, y), (True, x, y), (2.0, x[:2], y[:2]),
        (2.0, x.double(), y.double()), (2.0, torch.randn(6, 4).t(), y), (2.0, x.clone().requires_grad_(), y),
        (2.0, x, nn.Parameter(y.clone())), (2.0, x, x), (2.0, wide[:, :6], y), (2.0, wide[:, 6:], y),
        (2.0, x, y[0]), (2.0, x.clone().requires_grad_() * 1, y),
    ]  # fmt: skip
    held = []
    for by, a, b in given:
        fast = scaled(by)
        held.append(fast)
        for _ in range(3):
            torch.testing.assert_close(fast(a, b), (a * by + b).sum())
    with torch.inference_mode():
        held.append(scaled(2.0))
        for _ in range(3):
            torch.testing.assert_close(held[-1](x, y), (x * 2.0 + y).sum())
    assert len(derived) == len(given) + 1
    again = scaled(2.0)
    for _ in range(3):
        torch.testing.assert_close(again(y, x), (y * 2.0 + x).sum())
    assert len(derived) == len(given) + 1  # equal to the first


@pytest.mark.parametrize("backend", BACKENDS)
def test_settings_of_torch_are_part_of_it(backend: str, derived: list[Any]) -> None:
    held = []
    for setting in (None, torch.bfloat16, None):
        fast = apart(lambda x, y: x @ y, backend)
        held.append(fast)
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        for _ in range(3):
            with torch.autocast("cpu", setting, enabled=setting is not None):
                result = fast(x, y)
                assert result.dtype is (setting or torch.float32)
                torch.testing.assert_close(result, x @ y)
    assert len(derived) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_and_functions_that_a_graph_holds_are_not_shared(backend: str, derived: list[Any]) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * 2

    held = []
    for _ in range(2):
        fast = apart(lambda x: Twice.apply(x).sin(), backend)
        held.append(fast)
        for _ in range(3):
            x = torch.randn(4, requires_grad=True)
            torch.testing.assert_close(fast(x), (x * 2).sin())
    assert len(derived) >= 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_and_writes(backend: str, derived: list[Any]) -> None:
    def make() -> Any:
        def step(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
            total.add_(x)
            return torch.dropout(x, 0.5, True) * total

        return step

    compiled = [apart(make(), backend) for _ in range(3)]
    for fast in compiled:
        ours, eagers = torch.zeros(8), torch.zeros(8)
        for seed in range(3):
            x = torch.randn(8)
            torch.manual_seed(seed)
            result = fast(x, ours)
            torch.manual_seed(seed)
            torch.testing.assert_close(result, make()(x, eagers))
            torch.testing.assert_close(ours, eagers)
    assert len(derived) == 1


def test_second_derivatives_are_of_the_function_at_hand() -> None:
    compiled = [apart(lambda x: (x**3).sum(), "aot_eager") for _ in range(2)]
    for fast in compiled:
        for _ in range(3):
            x = torch.randn(4, requires_grad=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it runs in eager mode
                (first,) = torch.autograd.grad(fast(x), x, create_graph=True)
                (second,) = torch.autograd.grad(first.sum(), x)
            torch.testing.assert_close(second, 6 * x.detach())
    assert all(fast.stator.hits == 2 for fast in compiled)


def test_what_was_compiled_goes_with_its_last_user() -> None:
    gc.collect()
    before = len(equal_graphs._alive)

    def use() -> list[weakref.ref[Any]]:
        nets = [nn.Sequential(nn.Linear(4, 2), nn.Tanh()) for _ in range(2)]
        compiled = [stator.compile(net, backend="aot_eager") for net in nets]
        for _ in range(3):
            for fast in compiled:
                fast(torch.randn(6, 4)).sum().backward()
        assert len(equal_graphs._alive) == before + 1
        first = weakref.ref(nets[0][0].weight)
        compiled[0].stator.reset()
        del fast, compiled[0], nets[0]
        gc.collect()
        assert first() is None  # what is shared holds nothing of its first user's
        assert len(equal_graphs._alive) == before + 1
        compiled[0](torch.randn(6, 4)).sum().backward()
        return [weakref.ref(nets[0][0].weight)]

    kept = use()
    gc.collect()
    assert kept[0]() is None
    assert len(equal_graphs._alive) == before


def test_who_looks_at_compilations_sees_each(derived: list[Any]) -> None:
    told: list[Any] = []
    end = events.subscribe(told.append, events.EqualGraph)
    try:
        held = [apart(lambda x: x.cos() + 1, "aot_eager") for _ in range(3)]
        for fast in held[:2]:
            for _ in range(3):
                fast(torch.randn(3))
        assert len(derived) == 1
        assert [type(event) for event in told] == [events.EqualGraph]
        seen: list[Any] = []
        other = events.subscribe(seen.append, events.BackwardDerived)
        try:
            for _ in range(3):
                held[2](torch.randn(3))
        finally:
            other()
        assert len(seen) == 1
        assert len(derived) == 2
    finally:
        end()


def test_models_that_differ_in_a_number_share_generated_code(derived: list[Any]) -> None:
    """The second one is compiled for any number; what algebra takes for another number is not."""
    pytest.importorskip("torch._inductor.compile_fx")
    scales = (0.5, 0.7, 1.5, -2.25, 1e-3, 0.5, 0.1, 0.0, -0.0, float("inf"))
    nets = [nn.Sequential(nn.Linear(4, 3), Scaled(scale)) for scale in scales]
    compiled = [stator.compile(net, backend="inductor") for net in nets]
    counts = []
    for fast, net in zip(compiled, nets, strict=True):
        for _ in range(3):
            x = torch.randn(5, 4, requires_grad=True)
            found = fast(x)
            (ours,) = torch.autograd.grad(found.sum(), x)
            expected = net(x)
            (eagers,) = torch.autograd.grad(expected.sum(), x)
            torch.testing.assert_close(found, expected, equal_nan=True)
            torch.testing.assert_close(ours, eagers, equal_nan=True)
        assert fast.stator.hits == 2
        counts.append(len(derived))
    assert counts == [1, 2, 2, 2, 2, 2, 2, 3, 4, 5]


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).tanh() * self.scale


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_norm_over_batches_that_change_is_derived(
    backend: str, derived: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Its running variance takes `n / (n - 1)`, a quotient of numbers that are known in each call."""
    refused: list[Any] = []
    end = events.subscribe(refused.append, events.NotDerived)
    try:
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        plain = copy.deepcopy(net)
        fast = stator.compile(net, backend=backend)
        for batch in (6, 7, 9, 5, 3):
            x = torch.randn(batch, 4)
            ours, eagers = fast(x), plain(x)
            torch.testing.assert_close(ours, eagers)
            ours.square().sum().backward()
            eagers.square().sum().backward()
        for one, other in zip([*net.buffers()], [*plain.buffers()], strict=True):
            torch.testing.assert_close(one, other)
        for p, q in zip(net.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
        assert fast.stator.recordings == 2 and fast.stator.hits == 3
        assert len(derived) == 2
        assert refused == []
        assert "failed" not in capfd.readouterr().err
    finally:
        end()
