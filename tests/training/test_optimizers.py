"""`stator.compile(optimizer.step)`: a graph for the first step, which makes the state, and one for all others."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from harness import RECORDED, World, check, rand
from steps import give_grads, parameters, step, stepping
from torch import nn, optim
from torch.utils.hooks import RemovableHandle

import stator
from stator import events, pipeline
from stator.backends.data_scalars import split
from stator.errors import CannotDerive, StorageError
from stator.replay import saving
from stator.support import graph_numbers

FIRST_AND_REST = "miss miss hit hit hit hit"
ONE = "miss hit hit hit hit hit"
SIX = [step(seed) for seed in range(6)]

# Optimizer, settings, outcomes. Where one has no state, or makes it when it is made, there is one recording.
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "SGD": (optim.SGD, {"lr": 0.1}, ONE),
    "SGD with momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9}, FIRST_AND_REST),
    "SGD, Nesterov": (
        optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        FIRST_AND_REST,
    ),
    "SGD, damped": (
        optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "maximize": True},
        FIRST_AND_REST,
    ),
    "Adam": (optim.Adam, {}, FIRST_AND_REST),
    "Adam, decaying": (optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.9)}, FIRST_AND_REST),
    "Adam, amsgrad": (optim.Adam, {"amsgrad": True, "maximize": True}, FIRST_AND_REST),
    "AdamW": (optim.AdamW, {"weight_decay": 0.1}, FIRST_AND_REST),
    "RMSprop": (optim.RMSprop, {}, FIRST_AND_REST),
    "RMSprop, centered": (
        optim.RMSprop,
        {"momentum": 0.9, "centered": True, "weight_decay": 0.1},
        FIRST_AND_REST,
    ),
    "Adagrad": (optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}, ONE),
    "Adadelta": (optim.Adadelta, {"weight_decay": 0.1}, FIRST_AND_REST),
    "Adamax": (optim.Adamax, {"weight_decay": 0.1}, FIRST_AND_REST),
    "NAdam": (optim.NAdam, {"weight_decay": 0.1}, FIRST_AND_REST),
    "NAdam, decoupled": (optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}, FIRST_AND_REST),
    "Rprop": (optim.Rprop, {}, FIRST_AND_REST),
    "ASGD": (optim.ASGD, {"weight_decay": 0.1}, FIRST_AND_REST),
    "Adafactor": (optim.Adafactor, {}, FIRST_AND_REST),
}
FOREACH: dict[str, Any] = {"as torch likes": None, "in a loop": False, "all at once": True}


@pytest.mark.parametrize("foreach", FOREACH)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step_is_eagers(name, foreach):
    kind, settings, expect = OPTIMIZERS[name]
    world = stepping(lambda params: kind(params, foreach=FOREACH[foreach], **settings))
    check(world, SIX, expect=expect, breaks=[])


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad])
def test_fused(kind):
    check(stepping(lambda params: kind(params, lr=0.1, fused=True)), SIX, expect=FIRST_AND_REST, breaks=[])


@pytest.mark.parametrize("foreach", FOREACH)
def test_a_branch_on_the_number_of_steps_is_recorded_when_it_is_taken(foreach):
    """RAdam takes another way from its sixth step on."""
    world = stepping(lambda params: optim.RAdam(params, lr=0.1, weight_decay=0.1, foreach=FOREACH[foreach]))
    calls = [step(seed) for seed in range(12)]
    seen = check(world, calls, expect=None, breaks=[])
    assert len(seen.graphs) == 3
    assert seen.outcomes[:2] == ["miss", "miss"] and set(seen.outcomes[2:]) == {"hit"}


def test_a_step_counted_back_takes_the_other_branch():
    def back(w: World) -> None:
        for state in w.optimizer.state.values():
            state["step"].fill_(1.0)

    calls = [*(step(seed) for seed in range(8)), step(8, back), *(step(seed) for seed in range(9, 16))]
    seen = check(stepping(lambda params: optim.RAdam(params, lr=0.1)), calls, expect=None, breaks=[])
    assert len(seen.graphs) == 5


def test_branches_that_change_all_the_time_break_the_graph_in_the_end():
    def turn(number: float) -> Any:
        def set_step(w: World) -> None:
            for state in w.optimizer.state.values():
                state["step"].fill_(number)

        return set_step

    calls = [step(seed, turn(1.0 if seed % 2 else 9.0)) for seed in range(16)]
    seen = check(stepping(lambda params: optim.RAdam(params, lr=0.1)), calls, expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"tensor-item"}


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.RMSprop, optim.Adagrad])
def test_double_precision_and_a_tensor_that_is_not_contiguous(kind):
    def world() -> World:
        params = [nn.Parameter(rand(1, 3, 4).double().t()), nn.Parameter(rand(2, 5).double())]
        optimizer = kind(params, lr=0.1)
        return World(fn=optimizer.step, optimizer=optimizer, params=params)

    check(world, SIX, expect=None, breaks=[])


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "RMSprop", "NAdam"])
def test_parameter_groups(name):
    kind, settings, _ = OPTIMIZERS[name]

    def make(params):
        groups = [{"params": params[:1]}, {"params": params[1:], "lr": 0.5, "weight_decay": 0.1}]
        return kind(groups, **settings)

    check(stepping(make), SIX, expect=FIRST_AND_REST, breaks=[])


def test_settings_of_a_group_are_guarded():
    world = stepping(lambda params: optim.SGD([{"params": params[:1]}, {"params": params[1:]}], lr=0.1))
    calls = [
        step(1),
        step(2),
        step(3, lambda w: w.optimizer.param_groups[1].update(maximize=True)),
        step(4),
        step(5, lambda w: w.optimizer.param_groups[1].update(maximize=False)),
    ]
    check(world, calls, expect="miss hit miss hit hit", breaks=[])


def test_a_learning_rate_that_changes_is_recorded_once_more_and_never_again():
    def decay(w: World) -> None:
        for group in w.optimizer.param_groups:
            group["lr"] *= 0.9

    for kind in (optim.SGD, optim.Adam, optim.RMSprop, optim.Adagrad, optim.NAdam):
        world = stepping(lambda params, kind=kind: kind(params, lr=0.1))
        seen = check(world, [step(seed, decay) for seed in range(10)], expect=None, breaks=[])
        assert seen.outcomes[3:] == ["hit"] * 7, kind
        assert len(seen.graphs) <= 3


def test_a_parameter_group_that_is_added_is_noticed():
    def add(w: World) -> None:
        extra = nn.Parameter(rand(9, 3))
        extra.grad = rand(10, 3)
        w.params.append(extra)
        w.optimizer.add_param_group({"params": [extra]})

    world = stepping(lambda params: optim.SGD(params, lr=0.1))
    check(world, [step(1), step(2), step(3, add), step(4), step(5)], expect="miss hit miss hit hit", breaks=[])


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "Adagrad"])
def test_parameters_without_gradients_in_some_steps(name):
    kind, settings, _ = OPTIMIZERS[name]
    without = [(), (1,), (1,), (), (0, 1, 2), (), (1,), (0, 1, 2)]
    calls = [step(seed, without=places) for seed, places in enumerate(without)]
    seen = check(stepping(lambda params: kind(params, **settings)), calls, expect=None, breaks=[])
    assert seen.outcomes[5:] == ["hit", "hit", "hit"]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_before_the_step(set_to_none):
    def world() -> World:
        params = parameters()
        optimizer = optim.Adam(params)

        def fn(scale):
            for place, parameter in enumerate(params):
                if parameter.grad is None:
                    parameter.grad = rand(place, *parameter.shape) * scale
                else:
                    parameter.grad.add_(scale)
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)

        return World(fn=fn, optimizer=optimizer, params=params)

    check(world, [lambda w, s=s: w.fn(torch.tensor(s)) for s in (1.0, 2.0, 3.0, 4.0, 5.0)], expect=None)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_compiled(set_to_none):
    def world() -> World:
        params = parameters()
        optimizer = optim.SGD(params, lr=0.1)
        return World(fn=optimizer.zero_grad, optimizer=optimizer, params=params)

    def call(seed):
        def run(w: World) -> Any:
            give_grads(w.params, seed, without=(1,) if seed == 3 else ())
            return w.fn(set_to_none=set_to_none)

        return run

    check(world, [call(seed) for seed in range(5)], expect=None)


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "RMSprop", "Adagrad", "ASGD"])
def test_state_is_saved_and_loaded_between_steps(name):
    kind, settings, _ = OPTIMIZERS[name]

    def save(w: World) -> None:
        w.saved = w.optimizer.state_dict()

    def reload(w: World) -> None:
        w.optimizer.load_state_dict(w.saved)

    calls = [step(0), step(1), step(2, save), step(3), step(4, reload), step(5), step(6, reload), step(7)]
    seen = check(stepping(lambda params: kind(params, **settings)), calls, expect=None, breaks=[])
    assert seen.outcomes[-1] == "hit" and seen.outcomes.count("miss") <= 3


def test_state_of_a_parameter_that_is_taken_away_is_made_again():
    def forget(w: World) -> None:
        del w.optimizer.state[w.params[1]]

    calls = [step(0), step(1), step(2), step(3, forget), step(4), step(5)]
    check(stepping(lambda params: optim.Adam(params)), calls, expect="miss miss hit miss hit hit", breaks=[])


def test_hooks_before_and_after_the_step():
    def world() -> World:
        params, seen = parameters(), []
        optimizer = optim.Adam(params)
        RemovableHandle.next_id = 0  # a counter of the process
        optimizer.register_step_pre_hook(lambda opt, args, kwargs: seen.append(len(seen)))
        optimizer.register_step_post_hook(lambda opt, args, kwargs: seen.append("after"))
        return World(fn=optimizer.step, optimizer=optimizer, params=params, seen=seen)

    check(world, SIX, expect=None, unreplayed=RECORDED)


def test_a_hook_that_changes_gradients():
    def world() -> World:
        params = parameters()
        optimizer = optim.SGD(params, lr=0.1)
        RemovableHandle.next_id = 0

        def halve(opt, args, kwargs):
            for group in opt.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(0.5)

        optimizer.register_step_pre_hook(halve)
        return World(fn=optimizer.step, optimizer=optimizer, params=params)

    check(world, SIX, expect=ONE, breaks=[])


def test_a_hook_registered_between_steps_is_noticed():
    def register(w: World) -> None:
        def double(opt, args, kwargs):
            for parameter in opt.param_groups[0]["params"]:
                parameter.grad.mul_(2)

        RemovableHandle.next_id = 0
        w.handle = w.optimizer.register_step_pre_hook(double)

    def remove(w: World) -> None:
        w.handle.remove()
        del w.handle

    world = stepping(lambda params: optim.SGD(params, lr=0.1))
    calls = [step(1), step(2), step(3, register), step(4, remove), step(5)]
    seen = check(world, calls, expect=None, breaks=[])
    assert seen.outcomes == ["miss", "hit", "miss", "hit", "hit"]


def test_a_closure():
    def world() -> World:
        params = parameters()
        optimizer = optim.SGD(params, lr=0.1, momentum=0.5)
        return World(fn=optimizer.step, optimizer=optimizer, params=params)

    def call(scale):
        def run(w: World) -> Any:
            def closure():
                w.optimizer.zero_grad()
                loss = sum((parameter * scale).square().sum() for parameter in w.params)
                loss.backward()
                return loss.detach()

            return w.fn(closure)

        return run

    check(world, [call(scale) for scale in (1.0, 0.5, 0.25, 2.0, 1.0)], expect=None)


def test_lbfgs():
    def world() -> World:
        params = parameters()
        optimizer = optim.LBFGS(params, lr=0.5, max_iter=4)

        def closure():
            optimizer.zero_grad()
            loss = sum((parameter.square() - 1).square().sum() for parameter in params)
            loss.backward()
            return loss

        return World(fn=optimizer.step, optimizer=optimizer, params=params, closure=closure)

    check(world, [lambda w: float(w.fn(w.closure))] * 4, expect=None, breaks=["line-search"])


def test_two_optimizers_of_one_kind_share_their_recordings():
    first, second = parameters(), parameters()
    optimizers = [optim.Adam(first), optim.Adam(second)]
    steps = [stator.compile(optimizer.step, backend="eager") for optimizer in optimizers]
    for seed in range(4):
        for params, compiled in zip((first, second), steps, strict=True):
            give_grads(params, seed)
            compiled()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert sum(compiled.stator.recordings for compiled in steps) == 2


def test_a_divisor_that_is_zero_raises_what_eager_raises():
    """Numbers in the graph fail before anything is written that is not put back; then the function itself raises."""

    def unstep(w: World) -> None:
        for state in w.optimizer.state.values():
            state["step"].fill_(-1.0)

    calls = [step(0), step(1), step(2), step(3, unstep), step(4)]
    for foreach in (False, True):
        world = stepping(lambda params, foreach=foreach: optim.Adam(params, foreach=foreach))
        check(world, calls, expect="miss miss hit hit hit", raises=ZeroDivisionError, tracebacks=False)


def test_c_code_replays_what_puts_back_what_it_has_written(monkeypatch):
    """Numbers of steps are written before others that may fail: C code calls the replay all the same."""
    plain, ours = parameters(), parameters()
    optimizers = [optim.AdamW(params, lr=0.1) for params in (plain, ours)]
    fast = stator.compile(optimizers[1].step, backend="eager")

    def both(seed):
        for params, run in ((plain, optimizers[0].step), (ours, fast)):
            give_grads(params, seed)
            run()

    for seed in range(3):
        both(seed)
    in_python = []
    replay = pipeline._replay
    monkeypatch.setattr(pipeline, "_replay", lambda *given: (in_python.append(1), replay(*given))[1])
    for seed in range(3, 6):
        both(seed)
    assert not in_python and fast.stator.recordings == 2 and fast.stator.hits == 4
    for optimizer in optimizers:
        for state in optimizer.state.values():
            state["step"].fill_(-1.0)
    for params, run in ((plain, optimizers[0].step), (ours, fast)):
        give_grads(params, 6)
        with pytest.raises(ZeroDivisionError):
            run()
    states = [[optimizer.state[p] for p in params] for optimizer, params in zip(optimizers, (plain, ours), strict=True)]
    assert [state["step"].item() for state in states[1]] == [0.0, *[-1.0] * (len(ours) - 1)]
    for theirs, mine in zip(*states, strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
        theirs["step"].fill_(6.0), mine["step"].fill_(6.0)
    both(7)
    assert not in_python and fast.stator.recordings == 2 and fast.stator.hits == 6
    assert all(map(torch.equal, ours, plain))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(2.5),
        torch.tensor(-0.0, dtype=torch.float64),
        torch.tensor(2**60 + 1),
        torch.tensor(True),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.arange(4.0)[2],
        torch.arange(6.0).view(2, 3).t(),
        nn.Parameter(torch.tensor(3.0)),
        torch.zeros(0),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_what_is_kept_is_put_back(tensor):
    before = tensor.detach().clone()
    kept = saving.keep(tensor)
    with torch.no_grad():
        tensor.copy_(torch.ones_like(tensor))
    saving.put_back(tensor, kept)
    assert torch.equal(tensor, before) and torch.equal(tensor.signbit(), before.signbit())
    tensor.detach().untyped_storage().resize_(0)
    if before.numel():
        with pytest.raises(StorageError):
            saving.keep(tensor)


def test_the_learning_rate_as_a_tensor():
    def decay(w: World) -> None:
        w.optimizer.param_groups[0]["lr"].mul_(0.9)

    world = stepping(lambda params: optim.SGD(params, lr=torch.tensor(0.1), foreach=False))
    check(world, [step(seed, decay) for seed in range(5)], expect=None)


def test_with_the_profiler_on():
    def world() -> World:
        params = parameters()
        optimizer = optim.Adam(params)
        return World(fn=optimizer.step, optimizer=optimizer, params=params)

    def profiled(seed):
        def run(w: World) -> Any:
            give_grads(w.params, seed)
            with torch.autograd.profiler.profile() as found:
                w.fn()
            return any("Optimizer.step" in event.key for event in found.key_averages())

        return run

    check(world, [step(0), step(1), profiled(2), profiled(3), step(4)], expect=None)


@pytest.mark.parametrize("rate", ["fixed", "changing", "betas"])
@pytest.mark.parametrize(
    ("kind", "backend"), [(optim.AdamW, "native"), (optim.NAdam, "native"), (optim.AdamW, "inductor")]
)
def test_compiled_whole(kind, backend, rate):
    """The rate, and what the numbers of the steps come to, are inputs of one graph; no operator runs by itself. (By
    `1 - beta` Adam averages: eager has one formula for less than a half, and one for more.)"""
    plain, compiled = parameters(torch.float64), parameters(torch.float64)
    optimizers = [kind(params, lr=0.1, weight_decay=0.01) for params in (plain, compiled)]
    fast = stator.compile(optimizers[1].step, backend=backend)
    left: list[Any] = []
    unsubscribe = events.subscribe(left.append, events.NotDerived, events.NotGenerated)
    for seed in range(6):
        for params, optimizer in zip((plain, compiled), optimizers, strict=True):
            give_grads(params, seed)
            if rate == "changing":
                optimizer.param_groups[0]["lr"] = 0.1 * 0.9**seed
            elif rate == "betas":
                optimizer.param_groups[0]["betas"] = (0.3 + 0.1 * seed, 0.999)
        optimizers[0].step()
        fast()
        for mine, others in zip(plain, compiled, strict=True):
            torch.testing.assert_close(mine, others, rtol=1e-12, atol=1e-12)
            state = [optimizer.state[p] for optimizer, p in zip(optimizers, (mine, others), strict=True)]
            assert state[0]["step"] == state[1]["step"] == seed + 1
            torch.testing.assert_close(state[0]["exp_avg_sq"], state[1]["exp_avg_sq"], rtol=1e-12, atol=1e-12)
    unsubscribe()
    assert not left
    assert fast.stator.recordings == 2 and fast.stator.hits == 4


def test_a_rate_that_changes_keeps_nothing_but_the_steps():
    """A replay that fails puts back what it has written: numbers of steps, which are all that comes before them."""
    params = parameters()
    optimizer = optim.Adam(params, lr=0.1, weight_decay=0.01)
    fast = stator.compile(optimizer.step, backend="eager")
    for seed in range(5):
        give_grads(params, seed)
        optimizer.param_groups[0]["lr"] = 0.1 * 0.9**seed
        fast()
    assert [len(entry.early) for entry in fast.stator.entries] == [len(params), 0]
    assert fast.stator.recordings == 2 and fast.stator.hits == 3


def test_nothing_is_decided_by_a_number_that_is_made_up():
    """Who compiles what follows `step.item()` gets a number with any value. Where that decides something, the graph
    is not compiled; in a call the number is another one."""

    graph = torch.fx.Graph()
    x, number = graph.placeholder("x"), graph.placeholder("step")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    half = graph.call_function(graph_numbers.divide, (graph.call_method("item", (number,)), 2))
    product = graph.call_function(operator.mul, (x, half))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((product,))
    inputs = [torch.ones(3), torch.tensor(4.0)]
    parts = split(torch.fx.GraphModule({}, graph), inputs)
    assert parts is not None
    compiled = parts.compiled(lambda rest, examples: rest.forward)
    assert compiled(*inputs)[0].tolist() == [2.0] * 3

    def decide(rest, examples):
        assert 0 < examples[-1] < 2
        return rest.forward

    with pytest.raises(CannotDerive, match="a decision by a number"):
        parts.compiled(decide)
