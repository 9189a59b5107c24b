"""Learning rates that a scheduler sets, outside of the compiled step and inside. None makes a recording per step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import RECORDED, World, check, rand
from steps import give_grads, parameters
from torch import optim
from torch.optim import lr_scheduler as lrs

import stator

STEPS = 14


def _sequence(optimizer: Any) -> Any:
    warmup, rest = lrs.LinearLR(optimizer, total_iters=3), lrs.ExponentialLR(optimizer, 0.9)
    return lrs.SequentialLR(optimizer, [warmup, rest], milestones=[3])


SCHEDULERS: dict[str, Any] = {
    "StepLR": lambda o: lrs.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lrs.MultiStepLR(o, [2, 5], 0.5),
    "ConstantLR": lambda o: lrs.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lrs.LinearLR(o, total_iters=6),
    "ExponentialLR": lambda o: lrs.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lrs.PolynomialLR(o, 9, 2.0),
    "CosineAnnealingLR": lambda o: lrs.CosineAnnealingLR(o, 9),
    "CosineAnnealingWarmRestarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lrs.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, 0.2, total_steps=STEPS + 1),
    "LambdaLR": lambda o: lrs.LambdaLR(o, lambda epoch: 0.95**epoch),
    "MultiplicativeLR": lambda o: lrs.MultiplicativeLR(o, lambda epoch: 0.95),
    "SequentialLR": _sequence,
    "ChainedScheduler": lambda o: lrs.ChainedScheduler([lrs.ConstantLR(o, 0.5, 3), lrs.ExponentialLR(o, 0.9)]),
}
OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda params: optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam": lambda params: optim.Adam(params, lr=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_outside_of_the_compiled_step(name, optimizer):
    def world() -> World:
        params = parameters()
        made = OPTIMIZERS[optimizer](params)
        scheduler = SCHEDULERS[name](made)
        rates = lambda: [g["lr"] for g in made.param_groups]  # noqa: E731
        return World(fn=made.step, params=params, rates=rates, after=scheduler.step)

    def step(seed):
        def call(w: World) -> Any:
            give_grads(w.params, seed)
            w.fn()
            w.after()
            return w.rates()

        return call

    seen = run(world, [step(seed) for seed in range(STEPS)])
    # the first step, another rate, the second step's state, momentum that changes along with the rate
    assert len(seen.graphs) <= 5, seen.outcomes
    assert seen.outcomes[-6:] == ["hit"] * 6


def run(world: Any, calls: Any) -> Any:
    """Functions that torch made for a scheduler hold on to what differs between two worlds: they are not compared."""

    def bare() -> World:
        w = world()
        hidden = {name: vars(w).pop(name) for name in ("rates", "after")}
        return _Hiding(w, hidden)

    return check(bare, calls, expect=None, unreplayed=RECORDED)


class _Hiding(World):
    """A world with parts that are no part of its description."""

    def __init__(self, world: World, hidden: dict[str, Any]) -> None:
        super().__init__(**vars(world))
        _HIDDEN[id(self)] = hidden

    def __getattr__(self, name: str) -> Any:
        return _HIDDEN[id(self)][name]


_HIDDEN: dict[int, dict[str, Any]] = {}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_inside_of_the_compiled_function(name):
    def world() -> World:
        params = parameters()
        optimizer = optim.SGD(params, lr=0.1)
        scheduler = SCHEDULERS[name](optimizer)

        def fn(x):
            for parameter in params:
                parameter.grad = parameter.detach() * x
            optimizer.step()
            scheduler.step()

        rates = lambda: [g["lr"] for g in optimizer.param_groups]  # noqa: E731
        return World(fn=fn, params=params, rates=rates, after=None)

    def step(seed):
        def call(w: World) -> Any:
            w.fn(rand(seed, 1))
            return w.rates()

        return call

    seen = run(world, [step(seed) for seed in range(STEPS)])
    assert seen.outcomes.count("miss") == 2 and seen.outcomes[-6:] == ["hit"] * 6, seen.outcomes


def step_of(make: Any, optimizer: Any) -> World:
    """A training step with its scheduler inside."""
    params = parameters()
    optimizer = optimizer(params)
    scheduler = make(optimizer)
    takes_loss = isinstance(scheduler, lrs.ReduceLROnPlateau)

    def fn(x):
        optimizer.zero_grad()
        loss = sum((parameter * x).square().sum() for parameter in params)
        loss.backward()
        optimizer.step()
        scheduler.step(*(loss.detach(),) * takes_loss)
        return loss.detach()

    return World(fn=fn, params=params, rates=lambda: [g["lr"] for g in optimizer.param_groups], after=None)


LONG = {
    **SCHEDULERS,
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, 0.2, total_steps=201),
    "CyclicMomentum": lambda o: lrs.CyclicLR(o, 0.01, 0.1, step_size_up=3, mode="triangular2"),
    "ReduceLROnPlateau": lambda o: lrs.ReduceLROnPlateau(o, factor=0.5, patience=1),
    "SWALR": lambda o: optim.swa_utils.SWALR(o, 0.05, anneal_epochs=4),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", LONG)
def test_many_steps_are_two_recordings(name, optimizer):
    """The first has no state of the optimizer to start from; in the second, rates are symbols, whether or not they have
    changed by then."""
    plain, compiled = (step_of(LONG[name], OPTIMIZERS[optimizer]) for _ in range(2))
    fast = stator.compile(compiled.fn, backend="eager")
    for seed in range(40):
        x = rand(seed, 1)
        assert torch.equal(plain.fn(x), fast(x))
        assert plain.rates() == compiled.rates()
    assert all(map(torch.equal, plain.params, compiled.params))
    assert fast.stator.recordings == 2 and fast.stator.hits == 38, fast.stator.last_miss


def test_momentum_that_changes_in_generated_code():
    """Every parameter reads `betas`, of which one changes."""
    plain, compiled = (step_of(LONG["OneCycleLR"], OPTIMIZERS["Adam"]) for _ in range(2))
    fast = stator.compile(compiled.fn, backend="native")
    for seed in range(8):
        x = rand(seed, 1)
        torch.testing.assert_close(plain.fn(x), fast(x))
        assert plain.rates() == compiled.rates()
    assert fast.stator.plain == 0 and fast.stator.recordings == 2 and fast.stator.hits == 6


def test_a_thousand_steps():
    plain, compiled = (step_of(lambda o: lrs.CosineAnnealingLR(o, 90), OPTIMIZERS["SGD"]) for _ in range(2))
    fast = stator.compile(compiled.fn, backend="eager")
    for seed in range(1_000):
        x = rand(seed, 1) / 10
        assert torch.equal(plain.fn(x), fast(x))
        assert plain.rates() == compiled.rates()
    assert all(map(torch.equal, plain.params, compiled.params))
    assert fast.stator.recordings == 2 and fast.stator.hits == 998


def test_a_whole_graph_has_the_scheduler_in_it():
    """Under `fullgraph` nothing may run between two graphs: the rate is computed from the number of the step."""

    def world() -> World:
        params = parameters()
        optimizer = optim.SGD(params, lr=0.1)
        scheduler = lrs.ExponentialLR(optimizer, 0.9)

        def fn(x):
            for parameter in params:
                parameter.grad = parameter.detach() * x
            optimizer.step()
            scheduler.step()

        return World(fn=fn, params=params, rates=lambda: [g["lr"] for g in optimizer.param_groups], after=None)

    plain, compiled = world(), world()
    fast = stator.compile(compiled.fn, backend="eager", fullgraph=True)
    for seed in range(8):
        plain.fn(rand(seed, 1))
        fast(rand(seed, 1))
        assert plain.rates() == compiled.rates()
    assert all(map(torch.equal, plain.params, compiled.params))
    assert not fast.stator.break_reasons and fast.stator.recordings == 2 and fast.stator.hits == 6


def test_a_plateau():
    def world() -> World:
        params = parameters()
        optimizer = optim.SGD(params, lr=0.1)
        scheduler = lrs.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
        rates = lambda: [g["lr"] for g in optimizer.param_groups]  # noqa: E731
        return World(fn=optimizer.step, params=params, rates=rates, after=scheduler.step)

    losses = [1.0, 0.9, 0.95, 0.96, 0.97, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.1]

    def step(seed, loss):
        def call(w: World) -> Any:
            give_grads(w.params, seed)
            w.fn()
            w.after(torch.tensor(loss))
            return w.rates()

        return call

    seen = run(world, [step(seed, loss) for seed, loss in enumerate(losses)])
    assert len(seen.graphs) == 2 and seen.outcomes.count("miss") == 2
