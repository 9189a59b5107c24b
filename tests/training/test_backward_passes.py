"""Backward passes of all kinds inside of a compiled function, by torch's engine and ahead of time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from harness import World, check, rand
from torch import nn
from whole_steps import (
    CLIPS,
    OPTIMIZERS,
    forget,
    loss_of,
    loss_returned,
    network,
    on,
    over,
    stepping,
    target,
)

import stator
from stator import events

# -- kinds of passes


def by_hand(model, x, y):
    grads = torch.autograd.grad(loss_of(model, x, y), list(model.parameters()))
    with torch.no_grad():
        for p, grad in zip(model.parameters(), grads, strict=True):
            p.sub_(grad, alpha=0.1)
    return grads


def from_a_generator(model, x, y):
    return torch.autograd.grad(loss_of(model, x, y), model.parameters())


def from_a_dict(model, x, y):
    return torch.autograd.grad(loss_of(model, x, y), dict(model.named_parameters()))


def of_values_in_between(model, x, y):
    hidden = model[0](x)
    loss = F.cross_entropy(model[1:](hidden), y)
    return torch.autograd.grad(loss, [hidden, model[0].weight])


def unused(model, x, y):
    other = torch.zeros(3, requires_grad=True)
    return torch.autograd.grad(loss_of(model, x, y), [other, model[0].weight], allow_unused=True)


def unused_as_zeros(model, x, y):
    other = torch.zeros(3, requires_grad=True)
    return torch.autograd.grad(loss_of(model, x, y), [other, model[0].weight], materialize_grads=True)


def with_tangents(model, x, y):
    out = model(x)
    return torch.autograd.grad([out, out.sum()], [model[0].weight], [out.detach().cos(), torch.tensor(2.0)])


def the_tangent_itself(model, x, y):
    out = model(x)
    tangent = torch.ones_like(out)
    (given,) = torch.autograd.grad(out, [out], tangent)
    given.mul_(2)
    return given, tangent, given is tangent


def a_penalty(model, x, y):
    x = x.clone().requires_grad_()
    out = model(x)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (F.cross_entropy(out, y) + grad.square().sum()).backward()


def a_curvature(model, x, y):
    weights = [model[0].weight, model[2].weight]
    grads = torch.autograd.grad(loss_of(model, x, y), weights, create_graph=True)
    return torch.autograd.grad(grads, weights, [w.detach() for w in weights])


def several_losses(model, x, y):
    out = model(x)
    out.sum().backward(retain_graph=True)
    out.square().mean().backward()


def two_at_once(model, x, y):
    out = model(x)
    torch.autograd.backward([out.sum(), out], [None, out.detach().sin()])


def with_a_gradient(model, x, y):
    out = model(x)
    out.backward(gradient=out.detach().cos())


def some_leaves(model, x, y):
    loss_of(model, x, y).backward(inputs=[model[0].weight, model[2].bias])


def leaves_that_are_not_reached(model, x, y):
    model[0](x).sum().backward(inputs=[model[2].weight, model[2].bias])


def an_island(model, x, y):
    with torch.no_grad():
        scale = model(x).std()
    hidden = model[0](x).detach()
    (model[2](hidden.tanh()).sum() / scale).backward()


def a_part_in_no_grad(model, x, y):
    loss = loss_of(model, x, y)
    with torch.no_grad():
        loss.backward()
    return loss


def graph_returned(model, x, y):
    loss = loss_of(model, x, y)
    loss.backward(retain_graph=True)
    return loss


def written_in_place(model, x, y):
    hidden = model[0](x)
    hidden[:, 1:3] *= 2
    hidden[0].mul_(3)
    model[2](hidden.tanh_()).sum().backward()


def in_autocast(model, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x).float(), y)
    loss.backward()


PASSES = [
    *(by_hand, from_a_generator, from_a_dict, of_values_in_between, unused, unused_as_zeros, with_tangents),
    *(the_tangent_itself, a_penalty, a_curvature, several_losses, two_at_once, with_a_gradient, some_leaves),
    leaves_that_are_not_reached,
    *(an_island, a_part_in_no_grad, loss_returned, graph_returned, written_in_place, in_autocast),
]


@pytest.mark.parametrize("fn", PASSES, ids=lambda fn: fn.__name__)
def test_a_pass(fn):
    calls = [on(seed, forget) for seed in range(3)] + [on(seed) for seed in range(3, 7)]
    seen = check(over(fn), calls, expect=None, breaks=[])
    assert seen.outcomes[1:3] == ["hit"] * 2 and seen.outcomes[-3:] == ["hit"] * 3
    assert len(seen.graphs) == seen.outcomes.count("miss") <= 2


def test_a_graph_that_is_handed_out_can_be_differentiated():
    def call(seed: int) -> Any:
        def run(w: World) -> Any:
            loss = w.fn(rand(seed, 5, 4), target(seed))
            loss.backward()
            return loss.detach()

        return run

    check(over(graph_returned), [call(seed) for seed in range(5)], expect="miss miss hit hit hit", breaks=[])


def test_a_graph_is_kept_or_not_as_an_argument_says():
    def world() -> World:
        model = network(norm=False)
        return World(fn=lambda x, y, keep: loss_of(model, x, y).backward(retain_graph=keep), model=model)

    def call(seed: int, keep: Any) -> Any:
        return lambda w: (forget(w), w.fn(rand(seed, 5, 4), target(seed), keep))

    calls = [call(seed, keep) for seed, keep in enumerate((True, True, False, False, None, None, 1, 0))]
    seen = check(world, calls, expect=None)
    assert seen.outcomes[:6] == ["miss", "hit"] * 3


def test_a_spent_graph_raises_as_in_eager():
    def call(w: World) -> Any:
        return w.fn(rand(1, 5, 4), target(1)).backward()

    check(over(loss_returned), [call] * 4, expect=None, raises=RuntimeError, tracebacks=False)


# -- leaves


def test_tied_weights_and_gradients_that_share_memory():
    def world() -> World:
        a, b, c = (nn.Parameter(rand(seed, 4)) for seed in range(3))

        def fn(x, y):
            both = torch.cat([a, b])
            loss = (both.view(2, 4) * x[:2]).sum() + (a + c).sum() + (b + a.view(2, 2).reshape(-1)).square().sum()
            loss.backward()
            a.grad.mul_(2)
            return [p.grad.sum() for p in (a, b, c)]

        return World(fn=fn, params=[a, b, c])

    check(world, [on(1), on(2), on(3), on(4)], expect="miss miss hit hit", breaks=[])


@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (3, 2), (2, 3, 2)])
def test_strides_of_gradients(shape):
    def world() -> World:
        plain, turned = (
            nn.Parameter(rand(1, *shape)),
            nn.Parameter(rand(2, *reversed(shape)).permute(*range(len(shape))[::-1])),
        )
        gaps = nn.Parameter(rand(3, 2, *shape)[0])

        def fn(x, y):
            loss = (plain * turned).sum() + turned.t().sum() if len(shape) == 2 else (plain * turned).sum()
            (loss * x.sum() + (gaps.transpose(0, -1) * 2).sum()).backward()
            return [p.grad.stride() for p in (plain, turned, gaps)]

        return World(fn=fn, params=[plain, turned, gaps])

    def clear(w: World) -> None:
        for p in w.params:
            p.grad = None

    check(world, [on(1), on(2, clear), on(3, clear), on(4), on(5)], expect="miss hit hit miss hit", breaks=[])


def test_a_tensor_from_outside_that_is_no_parameter():
    def fn(x):
        (x.sin() * 2).sum().backward()
        return x.grad * 3

    def call(seed: int) -> Any:
        return lambda w: (x := rand(seed, 3, requires_grad=True), w.fn(x), x.grad)

    check(lambda: World(fn=fn), [call(seed) for seed in range(4)], expect="miss hit hit hit", breaks=[])


def test_a_leaf_made_inside():
    """An attack on a model: the gradient of an input."""

    def fn(model, x, y):
        x = x.clone().requires_grad_()
        loss_of(model, x, y).backward()
        first = x.grad.clone()
        loss_of(model, x * 2, y).backward()
        return x.detach() + x.grad.sign(), first, x.grad

    check(over(fn), [on(seed, forget) for seed in range(5)], expect="miss hit hit hit hit", breaks=[])


def test_a_leaf_made_inside_leaves_with_its_gradient():
    def fn(model, x, y):
        x = x.clone().requires_grad_()
        loss_of(model, x, y).backward()
        return x, x.grad, loss_of(model, x, y)

    check(over(fn), [on(seed, forget) for seed in range(5)], expect="miss hit hit hit hit", breaks=[])


# -- ahead of time


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        *(("SGD", "aot_eager"), ("SGD with momentum", "aot_eager"), ("SGD", "native"), ("SGD with momentum", "native")),
        *(("AdamW", "native"), ("AdamW, all at once", "native"), ("NAdam", "native")),
    ],
)
def test_a_step_ahead_of_time(backend, kind):
    """The pass is traced through: no engine runs, and the step is one compiled graph."""
    left: list[Any] = []
    unsubscribe = events.subscribe(left.append, events.NotDerived, events.NotGenerated)
    try:
        norm = "SGD" in kind  # the others make much of gradients that are nothing but what was rounded
        worlds = [stepping(OPTIMIZERS[kind], CLIPS["norm"], norm=norm)() for _ in range(2)]
        worlds[1].fn = stator.compile(worlds[1].fn, backend=backend)
        for seed in range(8):
            losses = [on(seed)(w) for w in worlds]
            torch.testing.assert_close(losses[1], losses[0])
            states = [[*w.model.state_dict().values(), *optimizer_tensors(w.optimizer)] for w in worlds]
            torch.testing.assert_close(states[1], states[0], rtol=2e-4, atol=1e-5)
            if backend == "aot_eager":
                assert all(map(torch.equal, *states)) and torch.equal(*losses)
    finally:
        unsubscribe()
    assert not left
    handle = worlds[1].fn.stator
    made = 1 if kind == "SGD" else 2  # the first step makes the optimizer's state
    assert (handle.recordings, handle.hits, handle.break_reasons) == (made, 8 - made, [])


def optimizer_tensors(optimizer: Any) -> list[torch.Tensor]:
    return [value for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("fn", PASSES, ids=lambda fn: fn.__name__)
def test_a_pass_ahead_of_time(fn, backend):
    """Traced through, or run as captured."""
    worlds = [over(fn)() for _ in range(2)]
    worlds[1].fn = stator.compile(worlds[1].fn, backend=backend)
    for seed in range(6):
        results = [on(seed, forget if seed < 3 else None)(w) for w in worlds]
        grads = [[p.grad for p in w.model.parameters()] for w in worlds]
        for plain, compiled in zip(flat(results[0]) + grads[0], flat(results[1]) + grads[1], strict=True):
            if not isinstance(plain, torch.Tensor):
                assert plain == compiled
                continue
            assert plain.stride() == compiled.stride() and plain.requires_grad == compiled.requires_grad
            tolerance = 0.02 if fn is in_autocast else 1e-4
            torch.testing.assert_close(compiled, plain, rtol=tolerance, atol=tolerance)
            if backend == "aot_eager":
                assert torch.equal(plain, compiled)
    assert worlds[1].fn.stator.hits >= 4 and not worlds[1].fn.stator.break_reasons


def flat(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)
