"""`torch.autograd.Function`: one node of the graph as it is captured. Forward and backward run as Python; what the
forward reads is guarded. (`test_compiled_functions.py` has what backends make of it.)"""

from __future__ import annotations

import collections

import pytest
import torch
from harness import World, check, rand
from torch.autograd.function import once_differentiable

import stator

SETTINGS = {"scale": 2.0}


class Scaled(torch.autograd.Function):
    """With a context, an argument that is no tensor, and a global that forward and backward read."""

    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        ctx.power = power
        return x**power * SETTINGS["scale"]

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.power * x ** (ctx.power - 1) * SETTINGS["scale"], None


class Parts(torch.autograd.Function):
    """Several results, no context in the forward."""

    @staticmethod
    def forward(x, y, names):
        return x * y, x + y, len(names) * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, names = inputs
        ctx.save_for_backward(x, y)
        ctx.count = len(names)

    @staticmethod
    @once_differentiable
    def backward(ctx, product, total, many):
        x, y = ctx.saved_tensors
        return product * y + total + many * ctx.count, product * x + total, None


class Doubling(torch.autograd.Function):
    """Writes to its argument."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Rounded(torch.autograd.Function):
    """The gradient goes straight through; only where it is wanted."""

    @staticmethod
    def forward(ctx, x, y):
        assert ctx.needs_input_grad[0]
        return x.round() + y

    @staticmethod
    def backward(ctx, grad):
        return grad if ctx.needs_input_grad[0] else None, grad if ctx.needs_input_grad[1] else None


class Printing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        print("forward", x.shape)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.fixture(autouse=True)
def settings():
    SETTINGS["scale"] = 2.0
    yield
    SETTINGS["scale"] = 2.0


def call(seed, *, scale=2.0, grad=True):
    """A call, the backward of its result, and what it left in the argument."""

    def run(w: World):
        SETTINGS["scale"] = scale
        x = rand(seed, 3, requires_grad=grad)
        result = w.fn(x)
        if grad:
            result.sum().backward()
        return result.detach(), x.grad

    return run


FOUR = [call(seed) for seed in range(4)]
ONE = "miss hit hit hit"


def of(fn):
    return lambda: World(fn=fn)


def test_in_the_middle_of_a_graph():
    check(of(lambda x: Scaled.apply(x.sin(), 3.0).exp() + 1), FOUR, expect=ONE, breaks=[])


def test_a_global_that_the_forward_reads_is_guarded():
    calls = [call(1), call(2), call(3, scale=5.0), call(4, scale=5.0), call(5)]
    check(of(lambda x: Scaled.apply(x, 2.0) + 1), calls, expect="miss hit miss hit hit", breaks=[])


def test_what_the_backward_reads_is_read_when_it_runs():
    def late(w: World):
        SETTINGS["scale"] = 2.0
        x = rand(1, 3, requires_grad=True)
        result = w.fn(x)
        SETTINGS["scale"] = 7.0
        result.sum().backward()
        return x.grad

    for backend in (None, stator.backends.look_up("aot_eager")[1]):
        check(of(lambda x: Scaled.apply(x, 2.0) + 1), [late] * 4, expect=ONE, backend=backend)


def test_a_number_among_the_arguments_is_guarded():
    def world():
        state = World(power=2.0)
        state.fn = lambda x: Scaled.apply(x, state.power)
        return state

    def powered(seed, power):
        def run(w: World):
            w.power = power
            return call(seed)(w)

        return run

    calls = [powered(1, 2.0), powered(2, 2.0), powered(3, 3.0), powered(4, 3.0), powered(5, 2.0)]
    seen = check(world, calls, expect=None, breaks=[])
    assert seen.outcomes[:4] == ["miss", "hit", "miss", "hit"]


def test_several_results_and_a_context_made_afterwards():
    def fn(x):
        product, total, many = Parts.apply(x, x.cos(), ("a", "b"))
        return product * 2 + total - many

    check(of(fn), FOUR, expect=ONE, breaks=[])


def test_a_result_that_is_dropped_and_keywords():
    check(of(lambda x: Parts.apply(x, x.cos(), ("a",))[1]), FOUR, expect=ONE, breaks=[])


def test_an_argument_that_is_written_to():
    check(of(lambda x: Doubling.apply(x.sin()) + 1), FOUR, expect=ONE, breaks=[])
    calls = [lambda w, s=s: [w.fn(x := rand(s)), x] for s in range(4)]
    check(of(lambda x: Doubling.apply(x) + 1), calls, expect=ONE, breaks=[])


def test_gradients_that_are_wanted():
    check(of(lambda x: Rounded.apply(x * 3, x.detach())), FOUR, expect=ONE, breaks=[])


def test_without_gradients():
    check(of(lambda x: Scaled.apply(x, 3.0)), [call(s, grad=False) for s in range(4)], expect=ONE, breaks=[])

    def fn(x):
        with torch.no_grad():
            return Scaled.apply(x, 3.0) + x

    check(of(fn), [lambda w, s=s: w.fn(rand(s, 3, requires_grad=True)) for s in range(4)], expect=ONE, breaks=[])


def test_twice_differentiable():
    def twice(seed):
        def run(w: World):
            x = rand(seed, 3, requires_grad=True)
            (first,) = torch.autograd.grad(w.fn(x).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            return first.detach(), second

        return run

    check(of(lambda x: Scaled.apply(x, 3.0).sin()), [twice(s) for s in range(4)], expect=ONE, breaks=[])


def test_a_tensor_that_the_forward_finds_elsewhere():
    def world():
        state = World(weight=rand(9, 3))

        class Weighted(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * state.weight

            @staticmethod
            def backward(ctx, grad):
                return grad * state.weight

        state.fn = lambda x: Weighted.apply(x.sin())
        return state

    def heavier(seed, weight):
        def run(w: World):
            w.weight = weight
            return call(seed)(w)

        return run

    calls = [call(1), call(2), heavier(3, rand(5, 3)), heavier(4, rand(6, 1)), heavier(5, rand(7, 1))]
    check(world, calls, expect="miss hit hit miss hit", breaks=[])


def test_a_forward_that_is_replaced_is_noticed():
    def world():
        class Changing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        return World(fn=lambda x: Changing.apply(x) + 1, cls=Changing)

    def other(w: World):
        w.cls.forward = staticmethod(lambda ctx, x: x * 3)
        return call(3)(w)

    check(world, [call(1), call(2), other, call(4)], expect="miss hit miss hit", breaks=[])


class Telling(torch.autograd.Function):
    """Tells what it is given by its type and its attributes, and keeps it."""

    @staticmethod
    def forward(ctx, x, other):
        ctx.other = other
        return x * (2 if type(other) in (tuple, list, dict) else 3) * getattr(x, "tag", 1)

    @staticmethod
    def backward(ctx, grad):
        return grad * len(ctx.other), None


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "given", [lambda x: Pair(1, 2), lambda x: [1, 2], lambda x: {"a": 1}, lambda x: collections.OrderedDict(a=1)]
)
def test_containers_that_a_graph_would_copy(given):
    seen = check(of(lambda x: Telling.apply(x, given(x)) + 1), FOUR, expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"autograd-function"}


def test_sizes_and_tuples_among_the_arguments():
    check(of(lambda x: Telling.apply(x, x.shape) + Telling.apply(x, (1, (2, "a")))), FOUR, expect=ONE, breaks=[])


def test_a_list_that_changes_before_the_backward_runs():
    def world():
        state = World(items=[1])
        state.fn = lambda x: Telling.apply(x, state.items) + 1
        return state

    def later(w: World):
        x = rand(1, 3, requires_grad=True)
        result = w.fn(x).sum()
        w.items.append(2)
        result.backward()
        w.items.pop()
        return x.grad

    def other(w: World):
        w.items = [1, 2, 3]
        return later(w)

    def longer(w: World):
        w.items.append(5)
        return later(w)

    check(world, [later] * 4, expect=ONE, breaks=[])
    check(world, [later, later, other, later, longer, later], expect=None, breaks=[])


class Configured(torch.autograd.Function):
    """Goes by an object that it is given."""

    @staticmethod
    def forward(ctx, x, settings, module):
        ctx.settings = settings
        return x * settings["scale"] + module.weight.sum()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.settings["scale"], None, None


def configured():
    state = World(settings={"scale": 2.0, "unused": [1]}, module=torch.nn.Linear(2, 2, bias=False))
    torch.nn.init.ones_(state.module.weight)
    state.fn = lambda x: Configured.apply(x.sin(), state.settings, state.module) + 1
    return state


def test_objects_from_outside_are_given_themselves():
    def changed(seed, scale):
        def run(w: World):
            w.settings["scale"] = scale
            return call(seed)(w)

        return run

    def heavier(seed):
        def run(w: World):
            with torch.no_grad():
                w.module.weight.add_(1)
            return call(seed)(w)

        return run

    check(configured, FOUR, expect=ONE, breaks=[])
    calls = [call(1), call(2), changed(3, 5.0), changed(4, 5.0), heavier(5), heavier(6), changed(7, 2.0), call(8)]
    check(configured, calls, expect="miss hit miss hit hit hit hit hit", breaks=[])


def test_other_objects_from_outside_are_noticed():
    def replaced(seed):
        def run(w: World):
            w.settings = {"scale": 7.0}
            return call(seed)(w)

        return run

    check(configured, [call(1), call(2), replaced(3), call(4)], expect="miss hit miss hit", breaks=[])


def test_an_object_from_outside_that_was_changed_before():
    def world():
        state = configured()

        def fn(x):
            state.settings["scale"] = state.settings["scale"] + 1.0
            return Configured.apply(x.sin(), state.settings, state.module) + 1

        state.fn = fn
        return state

    seen = check(world, [call(s) for s in range(6)], expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"autograd-function"}


def test_an_argument_with_attributes_of_its_own():
    def fn(x):
        y = x * 2
        y.tag = 5
        return Telling.apply(y, ()) + 1

    check(of(fn), FOUR, expect=None, unreplayed="autograd-function")


def test_an_object_changed_inside_breaks_the_graph():
    def world():
        state = World(count=0)

        class Counting(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                state.count += 1
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        state.fn = lambda x: Counting.apply(x.sin()).exp()
        return state

    check(world, [call(s) for s in range(6)], expect=None)


def test_a_forward_that_breaks_the_graph():
    seen = check(of(lambda x: Printing.apply(x.sin()).exp()), [call(s) for s in range(5)], expect=None)
    assert seen.outcomes[-1] == "hit"


def test_a_forward_that_raises():
    class Picky(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if x.shape[0] > 3:
                raise ValueError("too long")
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def long(w: World):
        return w.fn(rand(1, 4))

    check(of(lambda x: Picky.apply(x) + 1), [call(1), long, call(2), long, call(3)], expect=None, raises=ValueError)


def test_inside_of_a_transform():
    def fn(x):
        return torch.func.vmap(lambda row: Free.apply(row) * 2)(x)

    calls = [lambda w, s=s: w.fn(rand(s, 2, 3)) for s in range(4)]
    seen = check(of(fn), calls, expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"autograd-function"}


class Free(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


def test_sizes_that_change_are_recorded_anew():
    def sized(n):
        def run(w: World):
            x = rand(n, n, requires_grad=True)
            w.fn(x).sum().backward()
            return x.grad

        return run

    check(of(lambda x: Scaled.apply(x.sin(), 2.0) * x.shape[0]), [sized(n) for n in (2, 3, 4, 2, 3, 4)], expect=None)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_other_backends_are_given(backend):
    seen = check(
        of(lambda x: Scaled.apply(x.sin(), 3.0) + 1), FOUR, expect=ONE, backend=stator.backends.look_up(backend)[1]
    )
    assert "call_module" in {node.op for node in seen.graphs[0].graph.nodes}
