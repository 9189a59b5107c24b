"""Whole training steps: the backward pass is a node of the graph, `.grad` an effect, the optimizer behind it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from harness import PLAIN, World, check, rand
from torch import nn, optim
from torch.autograd.graph import get_gradient_edge
from whole_steps import (
    CLIPS,
    ONE,
    OPTIMIZERS,
    SIX,
    forget,
    loss_of,
    loss_returned,
    network,
    on,
    over,
    stepping,
    target,
    whole,
)

# -- the step as people write it


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step(name):
    seen = whole(stepping(OPTIMIZERS[name], dropout=0.3), expect=None)
    assert seen.outcomes[-4:] == ["hit"] * 4 and seen.outcomes.count("miss") <= 2


@pytest.mark.parametrize("name", CLIPS)
def test_gradients_are_clipped(name):
    whole(stepping(optim.AdamW, CLIPS[name]))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_are_zeroed(first, to_none):
    def world() -> World:
        model = network()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x, y):
            if first:
                optimizer.zero_grad(set_to_none=to_none)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if not first:
                optimizer.zero_grad(set_to_none=to_none)
            return loss

        return World(fn=step, model=model, optimizer=optimizer, state=lambda: optimizer.state_dict())

    whole(world)


def test_gradients_are_accumulated_over_calls():
    def world() -> World:
        model = network(norm=False)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        w = World(count=0, model=model, optimizer=optimizer, state=lambda: optimizer.state_dict())

        def step(x, y):
            (F.cross_entropy(model(x), y) / 2).backward()
            w.count = w.count + 1
            if w.count % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

        w.fn = step
        return w

    seen = whole(world, [on(seed) for seed in range(12)], expect=None)
    assert seen.outcomes[-6:] == ["hit"] * 6


def test_gradients_are_accumulated_inside_one_call():
    def world() -> World:
        model = network()
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            for part, wanted in zip(x.split(2), y.split(2), strict=True):
                F.cross_entropy(model(part), wanted, reduction="sum").backward()
            optimizer.step()
            optimizer.zero_grad()

        return World(fn=step, model=model, state=lambda: optimizer.state_dict())

    whole(world, [on(seed, rows=6) for seed in range(6)], expect=ONE)


def test_schedulers_cause_one_recompilation():
    def world() -> World:
        w = stepping(optim.AdamW)()
        w.scheduler = optim.lr_scheduler.CosineAnnealingLR(w.optimizer, 20)
        return w

    def call(seed: int) -> Any:
        return on(seed, lambda w: w.scheduler.step() if seed else None)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the order of steps
        seen = whole(world, [call(seed) for seed in range(8)], expect=None)
    assert seen.outcomes[-5:] == ["hit"] * 5


def test_the_batch_grows_and_shrinks():
    seen = whole(
        stepping(optim.SGD), [on(seed, rows=rows) for seed, rows in enumerate((5, 6, 7, 9, 5, 12))], expect=None
    )
    assert seen.outcomes == ["miss", "miss", "hit", "hit", "hit", "hit"]


def test_strides_are_asked_for_while_the_batch_changes():
    def fn(model, x, y):
        grads = torch.autograd.grad(loss_of(model, x, y), list(model.parameters()))
        loss_of(model, x, y).backward()
        asked = [[g.stride(), g.is_contiguous()] for g in grads]
        return asked, [p.grad.stride() for p in model.parameters()], grads[0].contiguous()

    calls = [on(seed, forget, rows=rows) for seed, rows in enumerate((5, 6, 7, 7, 7, 9))]
    check(over(fn), calls, expect=None, breaks=[])


def test_an_index_is_checked_before_the_numbers_of_an_optimizer():
    """Both come before the graph: the one is looked at behind a write, the others move to the front."""

    def world() -> World:
        model = network()
        optimizer = optim.AdamW(model.parameters(), lr=0.1)

        def step(x, y):
            picked = model(x)[torch.tensor([0, 2, 2, 1])]
            F.cross_entropy(picked, y[:4]).backward()
            optimizer.step()
            optimizer.zero_grad()

        return World(fn=step, model=model, state=lambda: optimizer.state_dict())

    whole(world)


def test_a_layer_is_frozen_and_the_model_evaluated_in_between():
    def freeze(w: World) -> None:
        w.model[0].requires_grad_(False)

    def thaw(w: World) -> None:
        w.model[0].requires_grad_(True)

    calls = [on(1), on(2), on(3, freeze), on(4), on(5, thaw), on(6, lambda w: w.model.eval()), on(7), on(8)]
    whole(stepping(optim.SGD), calls, expect="miss hit miss hit hit miss hit hit")


def test_state_is_saved_and_loaded_in_between():
    def save(w: World) -> None:
        w.saved = {name: value.clone() for name, value in w.model.state_dict().items()}

    def load(w: World) -> None:
        w.model.load_state_dict(w.saved)

    whole(stepping(optim.SGD), [on(1, save), on(2), on(3, load), on(4), on(5)], expect="miss hit hit hit hit")


# -- `.grad` between calls


def in_other_memory(w: World) -> None:
    for p in w.model.parameters():
        if p.dim() == 2:
            p.grad = torch.ones(p.shape[1], p.shape[0]).t()


def keep(w: World) -> None:
    w.kept = [p.grad for p in w.model.parameters()]


@pytest.mark.parametrize("change", [forget, in_other_memory, keep])
def test_gradients_are_changed_between_calls(change):
    def world() -> World:
        model = network(norm=False)

        def fn(x, y):
            F.cross_entropy(model(x), y).backward()

        return World(fn=fn, model=model)

    calls = [on(1), on(2), on(3), on(4, change), on(5), on(6, forget), on(7), on(8, change)]
    check(world, calls, expect=None, breaks=[])


def test_who_has_kept_a_gradient_sees_it_grow():
    def world() -> World:
        model = network(norm=False)

        def fn(x, y):
            F.cross_entropy(model(x), y).backward()
            grads = [p.grad for p in model.parameters()]
            F.cross_entropy(model(x * 2), y).backward()
            return grads

        return World(fn=fn, model=model)

    check(world, [on(1), on(2, forget), on(3, forget), on(4), on(5)], expect="miss hit hit miss hit", breaks=[])


# -- what breaks the graph, there and nowhere else


def breaks_with(world: Callable[[], World], ids: set[str], calls: Any = SIX, **options: Any) -> None:
    seen = check(world, calls, expect=None, unreplayed=sorted(ids), **options)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == ids


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


def test_functions_of_the_program():
    breaks_with(over(lambda model, x, y: Doubling.apply(model(x)).sum().backward()), {"autograd-function"})


def test_a_graph_that_was_entered():
    def world() -> World:
        model = network(norm=False)
        return World(fn=lambda out: out.sum().backward(), model=model)

    def call(w: World) -> Any:
        return w.fn(w.model(rand(1, 5, 4)))

    breaks_with(world, {"backward"}, [call] * 4)


def test_hooks_that_are_set_inside():
    def fn(model, x, y):
        out = model(x)
        out.register_hook(lambda grad: grad * 2)
        out.sum().backward()

    breaks_with(over(fn), {"backward-hooks", "backward"})


def test_sparse_gradients():
    def world() -> World:
        table = nn.Embedding(5, 2, sparse=True)
        nn.init.ones_(table.weight)
        return World(fn=lambda x, y: table(y).sum().backward(), table=table)

    def dense(w: World) -> Any:
        grad = w.table.weight.grad
        return grad if grad is None else grad.to_dense()

    def call(seed: int) -> Any:
        def run(w: World) -> Any:
            w.fn(None, target(seed))
            found = dense(w)
            w.table.weight.grad = None
            return found

        return run

    breaks_with(world, {"backward"}, [call(seed) for seed in range(4)])


_held: dict[int, list[Any]] = {}  # by world: handles of hooks, which differ in their numbers, and nodes


def hold(w: World, *values: Any) -> None:
    _held[id(w)] = [*values]


def on_the_tensor(w: World) -> None:
    hold(w, w.model[0].weight.register_hook(lambda grad: grad * 2))


def when_accumulated(w: World) -> None:
    hold(w, w.model[0].weight.register_post_accumulate_grad_hook(lambda p: w.log.append(p.grad.sum().item())))


def behind_the_node(w: World) -> None:
    node = get_gradient_edge(w.model[0].weight).node
    hold(w, node.register_hook(lambda given, grads: w.log.append(grads[0].sum().item())), node)


def before_the_node(w: World) -> None:
    node = get_gradient_edge(w.model[0].weight).node
    hold(w, node.register_prehook(lambda grads: (grads[0] * 2,)), node)


@pytest.mark.parametrize("set_hook", [on_the_tensor, when_accumulated, behind_the_node, before_the_node])
@pytest.mark.parametrize("early", [True, False])
def test_hooks_on_leaves(set_hook, early):
    """They are set before the first call, or when there is a recording without them; then they are removed."""

    def world() -> World:
        w = over(loss_returned)()
        w.log = []
        return w

    def remove(w: World) -> None:
        _held.pop(id(w))[0].remove()
        forget(w)

    setting = 1 if early else 4
    calls = [on(seed, set_hook if seed == setting else forget) for seed in range(1, 8)]
    seen = check(world, [*calls, on(8, remove), on(9, forget)], expect=None, unreplayed="backward-hooks")
    assert "backward-hooks" in {why.id for why in seen.world.fn.stator.break_reasons}
    assert seen.outcomes[-1] == "hit"


def test_hooks_for_saved_tensors():
    def world() -> World:
        w = over(loss_returned)()
        w.log = []
        return w

    def call(seed: int, hooked: bool) -> Any:
        def run(w: World) -> Any:
            forget(w)
            if not hooked:
                return w.fn(rand(seed, 5, 4), target(seed))
            with torch.autograd.graph.saved_tensors_hooks(
                lambda t: (w.log.append(1), t * 2 if t.is_floating_point() else t)[1], lambda t: t
            ):
                return w.fn(rand(seed, 5, 4), target(seed))

        return run

    def observe(w: World) -> Any:
        return len(w.log)

    calls = [call(seed, seed in (3, 4)) for seed in range(7)]
    check(world, calls, expect=None, observe=observe)


def test_anomaly_mode():
    """What comes to be no number raises, in a call that could be a replay."""

    def world() -> World:
        p = nn.Parameter(torch.zeros(2))
        return World(fn=lambda x, y: ((p * x[0, :2]).sqrt() * 0).sum().backward(), p=p)

    def call(anomalous: bool) -> Any:
        def run(w: World) -> Any:
            w.p.grad = None
            with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(anomalous):
                warnings.simplefilter("ignore")
                return w.fn(rand(1, 5, 4), None)

        return run

    check(world, [call(each) for each in (False, False, True, False, True)], expect=None, raises=RuntimeError)


def test_a_break_between_forward_and_backward():
    def fn(model, x, y):
        loss = loss_of(model, x, y)
        print("loss")
        loss.backward()
        return loss.detach()

    seen = check(over(fn), SIX, expect=None)
    assert [why.id for why in seen.world.fn.stator.break_reasons].count("backward") <= 2


def test_a_break_behind_the_backward():
    def fn(model, x, y):
        loss_of(model, x, y).backward()
        print("done")
        return [p.grad.sum() for p in model.parameters()]

    seen = check(over(fn), [on(seed, forget) for seed in range(5)], expect="miss hit hit hit hit", graphs=2)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"call-print"}


def test_what_stands_behind_a_pass_is_no_graph():
    """The program asks for a norm behind the pass, with a generator at hand: the forward is a graph all the same."""

    def fn(model, x, y):
        loss_of(model, x, y).backward()
        return nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)

    seen = check(over(fn), [on(seed, forget) for seed in range(5)], expect=None, unreplayed=["tensor-bool", "backward"])
    assert len(seen.graphs) == 1 and seen.world.fn.stator.recordings == 1


def test_a_checkpointed_region():
    def fn(model, x, y):
        out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        F.cross_entropy(out, y).backward()

    seen = check(over(fn), [on(seed, forget) for seed in range(5)], expect="miss hit hit hit hit", graphs=1)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"backward"}


def test_what_the_engine_raises():
    def twice(model, x, y):
        loss = loss_of(model, x, y)
        loss.backward()
        try:
            loss.backward()
        except RuntimeError:
            return "spent"

    def no_scalar(model, x, y):
        model(x).backward()

    breaks_with(over(twice), {"operation-raised", "backward"})
    check(over(no_scalar), SIX[:4], expect=None, raises=RuntimeError, unreplayed=PLAIN)
