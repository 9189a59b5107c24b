"""State that a function reaches through closure cells and module globals: read, written, replaced."""

from __future__ import annotations

import copy
import sys
import types

import torch
from harness import World, check, rand

SCALE = 2.0
BIAS = torch.zeros(4)
NAMES = ["a", "b"]
TOTAL: torch.Tensor
COUNT = 0


def helper(x):
    return x + 1


THIS_MODULE = sys.modules[__name__]


def the_globals(_):
    return {name: getattr(THIS_MODULE, name, "<deleted>") for name in ("SCALE", "BIAS", "NAMES", "TOTAL", "COUNT")}


def world_of_globals(fn):
    """A world whose state is this module's globals, set back to what they were."""

    def world():
        THIS_MODULE.SCALE, THIS_MODULE.BIAS, THIS_MODULE.NAMES = 2.0, rand(100), ["a", "b"]
        THIS_MODULE.TOTAL, THIS_MODULE.COUNT, THIS_MODULE.helper = torch.zeros(4), 0, helper_as_defined
        return World(fn=fn, module=THIS_MODULE.__name__)

    return world


helper_as_defined = helper


def after(**changes):
    """A call that comes after a change of some globals."""

    def call(w):
        for name, value in changes.items():
            setattr(THIS_MODULE, name, copy.deepcopy(value))  # each world gets its own
        return w.fn(rand(50))

    return call


def plain_call(seed):
    return lambda w: w.fn(rand(seed))


def test_a_global_number_is_guarded_by_value():
    check(
        world_of_globals(lambda x: x * SCALE),
        [plain_call(1), plain_call(2), after(SCALE=3.0), plain_call(3), after(SCALE=2.0)],
        expect="miss hit miss hit hit",
        observe=the_globals,
    )


def test_a_global_tensor_is_an_input():
    check(
        world_of_globals(lambda x: x + BIAS),
        [plain_call(1), after(BIAS=rand(60)), plain_call(2), after(BIAS=rand(61, 1))],
        expect="miss hit hit miss",
        observe=the_globals,
    )


def test_a_global_function_may_be_replaced():
    check(
        world_of_globals(lambda x: helper(x) * 2),
        [plain_call(1), plain_call(2), after(helper=lambda x: x - 1), plain_call(3)],
        expect="miss hit miss hit",
    )


def test_a_global_is_written():
    def fn(x):
        global TOTAL
        TOTAL = x.sum()
        return x * 2

    check(
        world_of_globals(fn),
        [plain_call(1), plain_call(2), after(TOTAL=None), plain_call(3)],
        expect="miss hit hit hit",
        observe=the_globals,
    )


def test_a_global_tensor_accumulates():
    def fn(x):
        global TOTAL
        TOTAL = TOTAL + x
        return TOTAL * 2

    check(
        world_of_globals(fn),
        [plain_call(1), plain_call(2), after(TOTAL=torch.ones(4)), plain_call(3)],
        expect="miss hit hit hit",
        observe=the_globals,
    )


def test_a_global_counter_is_right():
    def fn(x):
        global COUNT
        COUNT += 1
        return x * COUNT

    check(
        world_of_globals(fn),
        [plain_call(1), plain_call(2), plain_call(3), after(COUNT=0), after(COUNT=1)],
        expect="miss miss hit hit hit",
        observe=the_globals,
    )


def test_a_global_is_deleted_and_made_again():
    def fn(x):
        global TOTAL
        before = TOTAL
        del TOTAL
        TOTAL = before + x
        return TOTAL

    check(
        world_of_globals(fn),
        [plain_call(1), plain_call(2), plain_call(3)],
        expect="miss hit hit",
        observe=the_globals,
    )


def test_a_global_list_is_read_and_changed():
    def fn(x):
        NAMES.append(f"n{len(NAMES)}")
        return x + len(NAMES)

    check(
        world_of_globals(fn),
        [plain_call(1), plain_call(2), after(NAMES=["c", "d"]), after(NAMES=[])],
        expect=None,
        observe=the_globals,
    )


def test_a_missing_global_is_noticed_when_it_appears():
    def fn(x):
        try:
            return x * ABSENT
        except NameError:
            return x - 1

    def appear(w):
        THIS_MODULE.ABSENT = 5.0
        try:
            return w.fn(rand(3))
        finally:
            del THIS_MODULE.ABSENT

    check(
        world_of_globals(fn),
        [plain_call(1), plain_call(2), appear, plain_call(4)],
        expect="miss hit miss hit",
    )


def test_a_global_that_hides_a_builtin():
    def fn(x):
        return x * len(x.shape)

    def hide(w):
        THIS_MODULE.len = lambda _: 7
        try:
            return w.fn(rand(3))
        finally:
            del THIS_MODULE.len

    check(world_of_globals(fn), [plain_call(1), plain_call(2), hide, plain_call(4)], expect="miss hit miss hit")


def test_an_attribute_of_an_imported_module():
    settings = types.ModuleType("settings")

    def world():
        settings.scale, settings.bias = 2, rand(100)
        return World(fn=lambda x: x * settings.scale + settings.bias)

    def rescale(w):
        settings.scale = 3
        return w.fn(rand(3))

    def new_bias(w):
        settings.bias = rand(101)
        return w.fn(rand(4))

    check(
        world,
        [plain_call(1), plain_call(2), rescale, new_bias],
        expect="miss hit miss hit",
        observe=lambda _: [settings.scale, settings.bias],
    )


def test_a_closure_over_a_number_and_a_tensor():
    def world():
        scale, bias = 2.0, rand(100)

        def fn(x):
            return x * scale + bias

        def change(new_scale=None, new_bias=None):
            nonlocal scale, bias
            scale = scale if new_scale is None else new_scale
            bias = bias if new_bias is None else new_bias

        return World(fn=fn, change=change)

    def rescale(w):
        w.change(new_scale=3.0)
        return w.fn(rand(3))

    def rebias(w):
        w.change(new_bias=rand(101))
        return w.fn(rand(4))

    check(world, [plain_call(1), plain_call(2), rescale, rebias], expect="miss hit miss hit")


def test_nonlocal_writes_the_cell_of_the_enclosing_function():
    def world():
        last, total = None, torch.zeros(4)

        def fn(x):
            nonlocal last, total
            last = x.sum()
            total = total + x
            return total * 2

        def state():
            return last, total

        return World(fn=fn, state=state)

    check(
        world,
        [plain_call(1), plain_call(2), plain_call(3)],
        expect="miss hit hit",
        observe=lambda w: w.state(),
    )


def test_nonlocal_counter():
    def world():
        calls = 0

        def fn(x):
            nonlocal calls
            calls += 1
            return x + calls

        def set_calls(n):
            nonlocal calls
            calls = n

        return World(fn=fn, set_calls=set_calls)

    def again(w):
        w.set_calls(0)
        return w.fn(rand(3))

    check(
        world,
        [plain_call(1), plain_call(2), again, plain_call(4), plain_call(5)],
        expect="miss miss hit hit hit",
        observe=lambda w: w.set_calls.__closure__[0].cell_contents,
    )


def test_two_functions_share_a_cell():
    def world():
        level = torch.zeros(4)

        def push(x):
            nonlocal level
            level = level + x
            return level

        def fn(x):
            push(x)
            before = level
            push(x * 2)
            return before, level

        return World(fn=fn, push=push)

    def push_outside_first(w):
        w.push(rand(9))
        return w.fn(rand(3))

    check(world, [plain_call(1), plain_call(2), push_outside_first], expect="miss hit hit")


def test_a_closure_over_a_container():
    def world():
        table = {"scale": 2.0, "bias": rand(100)}

        def fn(x):
            table["last"] = x * table["scale"]
            return table["last"] + table["bias"]

        return World(fn=fn, table=table)

    def without_last(seed, **changes):
        def call(w):
            w.table.pop("last", None)
            w.table.update(changes)
            return w.fn(rand(seed))

        return call

    check(
        world,
        [without_last(1), without_last(2, bias=rand(101)), without_last(3, scale=3.0), without_last(4)],
        expect="miss hit miss hit",
    )


def test_an_empty_cell_raises_as_plain():
    def world():
        def fn(x):
            return x + later  # noqa: F821  deleted below

        def define(value):
            nonlocal later
            later = value

        later = None
        del later
        return World(fn=fn, define=define)

    def define_first(w):
        w.define(1.0)
        return w.fn(rand(3))

    check(world, [plain_call(1), plain_call(2), define_first, plain_call(4)], expect=None, raises=NameError)


def test_functions_made_by_a_factory_keep_their_own_cells():
    def make(scale, inner):
        return lambda x: inner(x) * scale

    def world():
        chain = make(2.0, make(3.0, lambda x: x + 1))
        return World(fn=lambda x: chain(x) - make(0.5, chain)(x))

    check(world, [plain_call(1), plain_call(2), plain_call(3)], expect="miss hit hit")
