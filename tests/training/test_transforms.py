"""`torch.func`: a transform is one node with a graph of its own, and what the transformed function reads is guarded."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from harness import World, check, rand
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

import stator

SETTINGS = {"scale": 2.0}
ONE = "miss hit hit hit"
FOUR = [lambda w, s=s: w.fn(rand(s, 3, 4)) for s in range(4)]


@pytest.fixture(autouse=True)
def settings():
    SETTINGS["scale"] = 2.0
    yield
    SETTINGS["scale"] = 2.0


def of(fn):
    return lambda: World(fn=fn)


def loss(x):
    return (x.sin() * SETTINGS["scale"]).sum()


def scaled(scale, seed):
    def run(w: World):
        SETTINGS["scale"] = scale
        return w.fn(rand(seed, 3, 4))

    return run


PROGRAMS = {
    "vmap": lambda x: vmap(lambda row: row.cos() * row.sum())(x) + 1,
    "vmap of a torch function": lambda x: vmap(torch.dot)(x, x),
    "vmap with dimensions": lambda x: vmap(lambda a, b: a * b.sum(), in_dims=(1, None), out_dims=1)(x, x[0]),
    "vmap in vmap": lambda x: vmap(vmap(lambda a, b: a * b, in_dims=(0, None)), in_dims=(None, 0))(x[0], x),
    "vmap of several results": lambda x: vmap(lambda row: (row.sum(), {"max": row.max()}))(x),
    "vmap with keywords": lambda x: vmap(lambda a, *, b: a * b)(x, b=x),
    "grad": lambda x: grad(loss)(x) * 2,
    "grad of a lambda": lambda x: grad(lambda a: (a**3).sum())(x),
    "grad of arguments": lambda x: grad(lambda a, b: (a * b.exp()).sum(), argnums=(0, 1))(x, x.cos()),
    "grad with more": lambda x: grad(lambda a: (a.sin().sum(), (a.cos(), [a])), has_aux=True)(x),
    "grad and value": lambda x: grad_and_value(loss)(x),
    "grad of grad": lambda x: grad(lambda a: grad(loss)(a).sum())(x),
    "vmap of grad": lambda x: vmap(grad(loss))(x),
    "grad of vmap": lambda x: grad(lambda a: vmap(lambda row: row.sum() ** 2)(a).sum())(x),
    "jvp": lambda x: jvp(torch.sin, (x,), (x.cos(),)),
    "jacrev": lambda x: jacrev(lambda a: a.sin() * a.sum())(x[0]),
    "jacfwd": lambda x: jacfwd(lambda a: a.sin() * a.sum())(x[0]),
    "hessian": lambda x: hessian(lambda a: (a.sin() * a.sum()).sum())(x[0]),
    "partial": lambda x: vmap(functools.partial(torch.add, alpha=3))(x, x),
    "without gradients": lambda x: grad(lambda a: (a * _without_gradients(a)).sum())(x),
}


def _without_gradients(a):
    with torch.no_grad():
        return a.exp()


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_one_graph(name):
    check(of(PROGRAMS[name]), FOUR, expect=ONE, graphs=1, breaks=[])


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_its_result(name):
    def call(seed):
        def run(w: World):
            x = rand(seed, 3, 4, requires_grad=True)
            results = [leaf for leaf in torch.utils._pytree.tree_leaves(w.fn(x)) if isinstance(leaf, torch.Tensor)]
            wanted = [leaf.sum() for leaf in results if leaf.requires_grad]
            if wanted:
                sum(wanted).backward()
            return [leaf.detach() for leaf in results], x.grad

        return run

    check(of(PROGRAMS[name]), [call(seed) for seed in range(4)], expect=ONE, graphs=1, breaks=[])


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_forward_and_backward_derived_ahead_of_time(name):
    """Close to eager; the graph of the backward is another one than eager's."""
    compiled = stator.compile(PROGRAMS[name], backend="aot_eager")
    for seed in range(4):
        found, wanted = compiled(rand(seed, 3, 4)), PROGRAMS[name](rand(seed, 3, 4))
        torch.testing.assert_close(found, wanted)
    assert compiled.stator.hits == 3


def test_a_global_that_the_function_reads_is_guarded():
    calls = [scaled(2.0, 1), scaled(2.0, 2), scaled(5.0, 3), scaled(5.0, 4), scaled(2.0, 5)]
    check(of(lambda x: vmap(grad(loss))(x)), calls, expect="miss hit miss hit hit", breaks=[])


def test_tensors_and_numbers_of_the_closure():
    def world():
        state = World(weight=rand(9, 4), factor=2)

        def fn(x):
            y = x * 2
            return vmap(lambda row: row * state.weight * y[0] * state.factor)(x)

        state.fn = fn
        return state

    def changed(seed, **settings):
        def run(w: World):
            vars(w).update(settings)
            return w.fn(rand(seed, 3, 4))

        return run

    calls = [changed(1), changed(2), changed(3, weight=rand(8, 4)), changed(4, factor=3), changed(5), changed(6)]
    seen = check(world, calls, expect=None, breaks=[])
    assert seen.outcomes == ["miss", "hit", "hit", "miss", "hit", "hit"]


def test_a_gradient_reaches_the_closure():
    def world():
        weight = rand(9, 4, requires_grad=True)
        return World(fn=lambda x: vmap(lambda row: (row * weight).sum())(x).sum(), weight=weight)

    def call(seed):
        def run(w: World):
            w.weight.grad = None
            w.fn(rand(seed, 3, 4)).backward()
            return w.weight.grad.clone()

        return run

    check(world, [call(seed) for seed in range(4)], expect=ONE, breaks=[])


def test_a_transformed_function_made_outside():
    def world():
        state = World(derivative=jacrev(loss), other=grad(loss))
        state.fn = lambda x: state.derivative(x[0]) + vmap(state.other)(x).sum(0)
        return state

    calls = [scaled(2.0, 1), scaled(2.0, 2), scaled(3.0, 3), scaled(3.0, 4)]
    check(world, calls, expect="miss hit miss hit", breaks=[])


def test_per_sample_gradients():
    def world():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        params = {name: value.detach() for name, value in module.named_parameters()}

        def sample_loss(params, row):
            return functional_call(module, params, (row,)).square().sum()

        return World(fn=lambda x: vmap(grad(sample_loss), in_dims=(None, 0))(params, x), module=module, params=params)

    check(world, FOUR, expect=ONE, graphs=1, breaks=[])


def test_an_ensemble_of_stacked_modules():
    def world():
        torch.manual_seed(0)
        models = [nn.Linear(4, 2) for _ in range(3)]
        params, buffers = stack_module_state(models)
        base = copy.deepcopy(models[0]).to("meta")

        def one(params, buffers, x):
            return functional_call(base, (params, buffers), (x,))

        return World(fn=lambda x: vmap(one, in_dims=(0, 0, None))(params, buffers, x), params=params)

    check(world, FOUR, expect=ONE, graphs=1, breaks=[])


def test_functional_call():
    def world():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        others = {name: value.detach() * 2 for name, value in module.named_parameters()}

        def fn(x):
            made = {name: value * 0.5 for name, value in others.items()}
            return functional_call(module, others, (x,)) + functional_call(module, made, (x,))

        return World(fn=fn, module=module, others=others)

    check(world, FOUR, expect=ONE, graphs=1, breaks=[])


def test_random_numbers_inside_are_eagers():
    def fn(x):
        return vmap(lambda row: row * torch.rand_like(row), randomness="different")(x) + torch.rand(4)

    check(of(fn), FOUR, expect=ONE, graphs=1, breaks=[])


def test_a_tensor_written_to_through_vmap():
    calls = [lambda w, s=s: [w.fn(x := rand(s, 3, 4)), x] for s in range(4)]
    check(of(lambda x: vmap(lambda row: row.mul_(2).sum())(x)), calls, expect=None)


def test_an_effect_of_the_function():
    def world():
        seen = []

        def inside(row):
            seen.append(tuple(row.shape))
            return row * 2

        return World(fn=lambda x: vmap(inside)(x), seen=seen)

    check(world, FOUR, expect=ONE, breaks=[])


def test_a_function_that_breaks_the_graph():
    def inside(row):
        print(row.shape)
        return row * 2

    calls = [lambda w, s=s: w.fn(rand(s, 3, 4)) for s in range(6)]
    seen = check(of(lambda x: vmap(inside)(x.sin()).exp()), calls, expect=None)
    assert seen.outcomes[-1] == "hit"


def test_a_function_that_raises():
    def inside(row):
        if row.shape[0] > 4:
            raise ValueError("too long")
        return row * 2

    calls = [*FOUR[:2], lambda w: w.fn(rand(1, 3, 5)), FOUR[2], lambda w: w.fn(rand(1, 3, 5)), FOUR[3]]
    check(of(lambda x: vmap(inside)(x)), calls, expect=None, raises=ValueError)


def test_chunks_break_the_graph():
    calls = [lambda w, s=s: w.fn(rand(s, 4, 4)) for s in range(5)]
    seen = check(of(lambda x: vmap(lambda row: row.sin(), chunk_size=2)(x) + 1), calls, expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"functorch"}


def test_transforms_that_give_functions_break_the_graph():
    calls = [lambda w, s=s: w.fn(rand(s, 3, 4)) for s in range(5)]
    seen = check(of(lambda x: vjp(torch.sin, x)[1](x * 2)[0] + 1), calls, expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"functorch"}
    assert seen.outcomes[-1] == "hit"
    seen = check(
        of(lambda x: linearize(torch.sin, x)[1](x)),
        calls,
        expect=None,
        unreplayed=["dynamic-shape-op", "functorch", "unknown-callable"],
    )
    assert seen.world.fn.stator.break_reasons[0].id == "functorch"


def test_sizes_that_change_are_recorded_anew():
    calls = [lambda w, n=n: w.fn(rand(n, n, 4)) for n in (2, 3, 4, 2, 3, 4)]
    check(of(lambda x: vmap(lambda row: row * row.shape[0])(x) * x.shape[0]), calls, expect=None)


def test_gradients_with_autograd():
    def fn(x):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad((x.sin() ** 2).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return first.detach() + second

    check(of(fn), [lambda w, s=s: w.fn(rand(s, 3, 4)) for s in range(5)], expect="miss hit hit hit hit", breaks=[])
