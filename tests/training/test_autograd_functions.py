"""`torch.autograd.Function`: one node of the graph. Forward and backward run as Python; what the forward reads is
guarded."""

from __future__ import annotations

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


def test_an_object_changed_before_breaks_the_graph():
    """The forward is run by the graph, and effects are applied after it: it would not see them."""

    def world():
        state = World(count=0.0)

        class Counting(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * state.count

            @staticmethod
            def backward(ctx, grad):
                return grad

        def fn(x):
            state.count = state.count + 1.0
            return Counting.apply(x)

        state.fn = fn
        return state

    seen = check(world, [call(s) for s in range(6)], expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"autograd-function"}


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
def test_other_backends_run_it_as_it_was_captured(backend):
    seen = check(
        of(lambda x: Scaled.apply(x.sin(), 3.0) + 1), FOUR, expect=ONE, backend=stator.backends.look_up(backend)[1]
    )
    assert "call_module" in {node.op for node in seen.graphs[0].graph.nodes}
