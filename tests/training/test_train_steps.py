"""Steps of training: backward outside or inside, clipping, accumulation, averages, mixed precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import World, check, rand
from steps import give_grads
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

import stator


def network(*, norm: bool = False, dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    parts = [nn.Linear(4, 8), *([nn.BatchNorm1d(8)] * norm), nn.Tanh(), *([nn.Dropout(dropout)] * bool(dropout))]
    return nn.Sequential(*parts, nn.Linear(8, 2))


def on(seed: int, before: Any = None) -> Any:
    def call(w: World) -> Any:
        if before is not None:
            before(w)
        return w.fn(rand(seed, 5, 4))

    return call


SIX = [on(seed) for seed in range(6)]
ONE = "miss hit hit hit hit hit"


# -- without a backward inside


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop])
def test_forward_and_loss_compiled_and_the_step_too(kind):
    """The backward is called between them. Running statistics, dropout and the optimizer's state are eager's."""

    def world() -> World:
        model = network(norm=True, dropout=0.3)
        optimizer = kind(model.parameters(), lr=0.1)
        return World(fn=lambda x: model(x).square().mean(), model=model, optimizer=optimizer)

    def train(seed):
        def call(w: World) -> Any:
            if "step" not in vars(w):
                w.step = []
                compiled = isinstance(w.fn, stator._native.Compiled)
                w.step.append(stator.compile(w.optimizer.step, backend="eager") if compiled else w.optimizer.step)
            w.optimizer.zero_grad()
            loss = w.fn(rand(seed, 5, 4))
            loss.backward()
            w.step[0]()
            return loss.detach()

        return call

    def observe(w: World) -> Any:
        return {"state": w.optimizer.state_dict(), "model": w.model.state_dict()}

    def world_without_steps() -> World:
        return world()

    plain, compiled = [], []
    for found, compiles in ((plain, False), (compiled, True)):
        torch.manual_seed(1)
        w = world_without_steps()
        if compiles:
            w.fn = stator.compile(w.fn, backend="eager")
        torch.manual_seed(2)
        for seed in range(6):
            found.append(train(seed)(w))
            found.append([value.clone() for value in w.model.state_dict().values()])
            found.append([p.grad.clone() for p in w.model.parameters()])
        found.append([value for state in observe(w)["state"]["state"].values() for value in state.values()])
        if compiles:
            assert (w.fn.stator.recordings, w.fn.stator.hits, len(w.fn.stator.break_reasons)) == (1, 5, 0)
            assert w.step[0].stator.recordings <= 2 and w.step[0].stator.break_reasons == []
    for a, b in zip(torch.utils._pytree.tree_leaves(plain), torch.utils._pytree.tree_leaves(compiled), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_clipping_stepping_and_evaluating_in_one_graph():
    def world() -> World:
        model = network()
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        give_grads(list(model.parameters()), 1)

        def fn(x):
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            with torch.no_grad():
                return norm, model(x).square().mean()

        return World(fn=fn, model=model, optimizer=optimizer)

    calls = [on(seed, lambda w, s=seed: give_grads(list(w.model.parameters()), s)) for seed in range(6)]
    check(world, calls, expect="miss miss hit hit hit hit", breaks=[])


# -- clipping


def clipping(clip: Any) -> Any:
    def world() -> World:
        model = network()
        give_grads(list(model.parameters()), 1)
        return World(fn=lambda x: clip(list(model.parameters()), x), model=model)

    return world


CLIPS = {
    "norm": lambda params, x: nn.utils.clip_grad_norm_(params, 1.0),
    "norm, one by one": lambda params, x: nn.utils.clip_grad_norm_(params, 1.0, foreach=False),
    "largest": lambda params, x: nn.utils.clip_grad_norm_(params, 1.0, norm_type=float("inf")),
    "value": lambda params, x: nn.utils.clip_grad_value_(params, 0.1),
    "value, one by one": lambda params, x: nn.utils.clip_grad_value_(params, 0.1, foreach=False),
    "total norm": lambda params, x: nn.utils.get_total_norm([p.grad for p in params]),
}


@pytest.mark.parametrize("name", CLIPS)
def test_gradients_are_clipped(name):
    calls = [on(seed, lambda w, s=seed: give_grads(list(w.model.parameters()), s)) for seed in range(6)]
    check(clipping(CLIPS[name]), calls, expect=ONE, breaks=[])


def test_a_gradient_that_is_missing_is_noticed():
    def without(w: World) -> None:
        next(w.model.parameters()).grad = None

    calls = [on(1), on(2), on(3, without), on(4), on(5, lambda w: give_grads(list(w.model.parameters()), 5))]
    check(clipping(CLIPS["norm"]), calls, expect="miss hit miss hit hit", breaks=[])


def test_an_infinite_norm_raises_if_asked_to():
    def world() -> World:
        model = network()
        give_grads(list(model.parameters()), 1)
        params = list(model.parameters())
        return World(fn=lambda x: nn.utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True), model=model)

    def infinite(w: World) -> None:
        next(w.model.parameters()).grad.fill_(float("inf"))

    def finite(w: World) -> None:
        give_grads(list(w.model.parameters()), 7)

    check(world, [on(1), on(2), on(3, infinite), on(4, finite), on(5)], expect=None, raises=RuntimeError)


# -- gradients set inside


def test_gradients_set_and_read_inside():
    def world() -> World:
        model = network()

        def fn(x):
            for parameter in model.parameters():
                if parameter.grad is None:
                    parameter.grad = parameter.detach() * x.sum()
                else:
                    parameter.grad += x.sum()
            return sum(parameter.grad.sum() for parameter in model.parameters())

        return World(fn=fn, model=model)

    def forget(w: World) -> None:
        w.model.zero_grad()

    check(world, [on(1), on(2), on(3), on(4, forget), on(5)], expect="miss miss hit hit hit", breaks=[])


def test_a_gradient_of_a_tensor_made_inside_breaks_the_graph():
    def fn(x):
        y = x.detach().clone().requires_grad_()
        y.grad = x.cos()
        return y * 2

    seen = check(lambda: World(fn=fn), SIX, expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"attribute-set-on-tensor"}


# -- with a backward inside


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_whole_step(set_to_none):
    def world() -> World:
        model = network(norm=True, dropout=0.3)
        optimizer = optim.Adam(model.parameters(), lr=0.1)

        def fn(x):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        return World(fn=fn, model=model, optimizer=optimizer)

    check(world, SIX, expect="miss miss hit hit hit hit", breaks=[])


def test_gradients_are_accumulated():
    def world() -> World:
        model = network()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        state = World(count=0, model=model, optimizer=optimizer)

        def fn(x):
            (model(x).square().mean() / 2).backward()
            state.count += 1
            if state.count % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

        state.fn = fn
        return state

    seen = check(world, [on(seed) for seed in range(12)], expect=None, breaks=[])
    assert seen.outcomes[-6:] == ["hit"] * 6


def test_gradients_asked_for_and_applied_by_hand():
    def world() -> World:
        model = network()

        def fn(x):
            loss = model(x).square().mean()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, grad in zip(model.parameters(), grads, strict=True):
                    parameter.sub_(grad, alpha=0.1)
            return loss.detach()

        return World(fn=fn, model=model)

    check(world, SIX, expect=ONE, graphs=1, breaks=[])


def test_functional_gradients_need_no_break():
    def world() -> World:
        model = network()
        params = {name: value.detach() for name, value in model.named_parameters()}

        def fn(x):
            def loss_of(params):
                return torch.func.functional_call(model, params, (x,)).square().mean()

            grads, loss = torch.func.grad_and_value(loss_of)(params)
            for name, value in params.items():
                value.sub_(grads[name], alpha=0.1)
            return loss

        return World(fn=fn, model=model, params=params)

    check(world, SIX, expect=ONE, graphs=1, breaks=[])


# -- averages of weights


def test_an_average_by_hand():
    def world() -> World:
        model, average = network(norm=True), network(norm=True, seed=1)

        def fn(x):
            with torch.no_grad():
                model(x)
                for mine, other in zip(average.parameters(), model.parameters(), strict=True):
                    mine.mul_(0.9).add_(other, alpha=0.1)
                for mine, other in zip(average.buffers(), model.buffers(), strict=True):
                    mine.copy_(other)

        return World(fn=fn, model=model, average=average)

    check(world, SIX, expect=ONE, breaks=[])


AVERAGES: dict[str, Any] = {
    "equal": lambda model: AveragedModel(model),
    "equal, at once": lambda model: AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn()),
    "exponential": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True),
    "of its own": lambda model: AveragedModel(model, avg_fn=lambda mine, other, count: (mine + other) / 2),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_an_averaged_model(name):
    """Whether it is the first update is asked of a tensor: the graph sees to it that the answer is the same."""

    def world() -> World:
        model = network(norm=True)
        average = AVERAGES[name](model)

        def fn(x):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(x.mean())
            average.update_parameters(model)
            return average(x).detach()

        return World(fn=fn, model=model, average=average)

    def again(w: World) -> None:
        w.average.n_averaged.zero_()

    seen = check(world, [*SIX, on(7, again), on(8), on(9)], expect=None)
    assert seen.outcomes[1:] == ["hit"] * 8


# -- mixed precision


def test_autocast():
    def world() -> World:
        model = network()

        def fn(x):
            with torch.amp.autocast("cpu", dtype=torch.bfloat16):
                hidden = model(x)
            return hidden.float().square().mean()

        return World(fn=fn, model=model)

    def train(seed):
        def call(w: World) -> Any:
            w.model.zero_grad()
            loss = w.fn(rand(seed, 5, 4))
            loss.backward()
            return loss.detach()

        return call

    check(world, [train(seed) for seed in range(6)], expect=ONE, breaks=[])


def test_a_scaler_of_gradients():
    def world() -> World:
        model = network()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

        def fn(x):
            optimizer.zero_grad()
            with torch.amp.autocast("cpu", dtype=torch.bfloat16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return World(fn=fn, model=model, optimizer=optimizer, scale=scaler.get_scale)

    def observe(w: World) -> Any:
        return w.scale()

    check(world, SIX, expect=None, observe=observe, unreplayed=["object-keys", "tensor-item", "unguardable"])


def test_the_same_random_numbers_as_eager():
    def world() -> World:
        model = network(dropout=0.5)
        return World(fn=lambda x: (model(x) + torch.randn(2)).sum(), model=model)

    check(world, SIX, expect=ONE, breaks=[])


def test_training_and_evaluation_take_turns():
    def world() -> World:
        model = network(norm=True, dropout=0.5)
        return World(fn=lambda x: model(x).sum(), model=model)

    calls = [on(1), on(2), on(3, lambda w: w.model.eval()), on(4), on(5, lambda w: w.model.train()), on(6)]
    check(world, calls, expect="miss hit miss hit hit hit", breaks=[])
