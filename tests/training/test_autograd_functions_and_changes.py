"""`torch.autograd.Function` behind changes: what its forward reads was written to before, in the same segment."""

from __future__ import annotations

import pytest
import torch
from harness import World, check
from test_autograd_functions import SETTINGS, call


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


def changing(make):
    """A world whose function, `make(state)`, changes objects that the autograd function in it may look at."""

    def world():
        state = World(count=1.0, items=[1.0], table={"scale": 1.0}, module=torch.nn.Linear(3, 3, bias=False))
        torch.nn.init.ones_(state.module.weight)
        state.module.scale = 1.0
        state.fn = make(state)
        return state

    return world


def looking(look):
    """An autograd function whose forward multiplies by what `look()` gives."""

    class Looking(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * look()

        @staticmethod
        def backward(ctx, grad):
            return grad * look()

    return Looking


def test_changes_before_that_the_forward_does_not_look_at():
    def make(state):
        first, other = looking(lambda: SETTINGS["scale"]), looking(lambda: 3.0)

        def fn(x):
            state.items.append(x.detach())
            state.table["scale"] = state.table["scale"]
            state.module.scale = x.shape[0]
            y = first.apply(x.sin())
            state.latest = y.detach()
            return other.apply(y) + state.module.scale

        return fn

    calls = [call(1), call(2), call(3), call(4, scale=5.0), call(5, scale=5.0), call(6)]
    check(changing(make), calls, expect="miss hit hit miss hit hit", breaks=[])


def write_count(state, x):
    state.count = state.count + 1.0


def write_item(state, x):
    state.table["scale"] = state.table["scale"] + 1.0


def write_list(state, x):
    state.items.append(1.0)


def write_attribute(state, x):
    state.module.scale = state.module.scale + 1.0


def write_grad(state, x):
    state.module.weight.grad = (x * 2).detach().expand(3, 3).clone()


LOOKED_AT = {
    "an attribute": (write_count, lambda state: state.count),
    "an item": (write_item, lambda state: state.table["scale"]),
    "a length": (write_list, lambda state: len(state.items)),
    "an iteration": (write_list, lambda state: sum([item for item in state.items])),
    "an attribute of a module": (write_attribute, lambda state: state.module.scale),
    "another attribute of it": (write_attribute, lambda state: state.module.weight.shape[0]),
    "a gradient": (write_grad, lambda state: state.module.weight.grad.sum()),
}


@pytest.mark.parametrize("what", LOOKED_AT)
def test_changes_before_that_the_forward_looks_at_break_the_graph(what):
    """What was read before the change, by the very same instructions of the program, is noticed as well."""
    write, look = LOOKED_AT[what]

    def make(state):
        state.grad = None

        def peek():
            return look(state)

        function = looking(peek)

        def fn(x):
            before = peek() if what != "a gradient" else 1.0
            write(state, x)
            return function.apply(x) + before

        return fn

    seen = check(changing(make), [call(s) for s in range(6)], expect=None, unreplayed="autograd-function")
    reasons = seen.world.fn.stator.break_reasons
    assert any("looks at objects that were changed before" in why.reason for why in reasons), reasons


def test_a_variable_changed_before_that_the_forward_reads():
    def world():
        scale = 1.0

        def peek():
            return scale

        function = looking(peek)

        def fn(x):
            nonlocal scale
            before = peek()
            scale = scale + 1.0
            return function.apply(x) + before

        return World(fn=fn)

    check(world, [call(s) for s in range(6)], expect=None)


def test_an_object_changed_before_and_inside():
    def make(state):
        def peek():
            state.count = state.count * 2.0
            return 3.0

        function = looking(peek)

        def fn(x):
            state.count = state.count + 1.0
            return function.apply(x)

        return fn

    check(changing(make), [call(s) for s in range(6)], expect=None)


def test_a_class_changed_before():
    class Settings:
        scale = 1.0

    function = looking(lambda: Settings.scale)

    def fn(x):
        before = Settings.scale
        Settings.scale = before + 1.0
        return function.apply(x) + before

    def fresh():
        Settings.scale = 1.0
        return World(fn=fn)

    check(
        fresh,
        [call(s) for s in range(6)],
        expect=None,
        observe=lambda w: Settings.scale,
        unreplayed="autograd-function",
    )
