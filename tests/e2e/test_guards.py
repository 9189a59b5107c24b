"""Guards that must fail, and changes which must not make them fail.

Every test calls twice alike (miss, hit), then changes one thing (a miss, with the right result and a reason
in words), then goes back to where it began (a hit: the first recording still holds).
"""

from __future__ import annotations

import pytest
import torch
from harness import World, check, check_noticed, rand
from torch import nn


def check_argument(first, other, fn=lambda x: x * 2):
    check_noticed(lambda: World(fn=fn), lambda w: w.fn(first()), lambda w: w.fn(other()))


# ---- what a tensor is ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_changed_dtype(dtype):
    check_argument(lambda: rand(1), lambda: rand(1).to(dtype))


def test_changed_device():
    check_argument(lambda: rand(1), lambda: rand(1).to("meta"))


@pytest.mark.parametrize("shape", [(), (1, 4), (2, 2), (4, 1)])
def test_changed_rank(shape):
    check_argument(lambda: rand(1, 4), lambda: rand(1, *shape) if shape else torch.tensor(2.0))


@pytest.mark.parametrize("size", [0, 1, 3, 5, 400])
def test_changed_size(size):
    check_argument(lambda: rand(1, 4), lambda: rand(1, size), fn=lambda x: x * x.shape[0])


def test_changed_size_in_one_dimension_of_many():
    check_argument(lambda: rand(1, 2, 3, 4), lambda: rand(1, 2, 3, 5), fn=lambda x: x.reshape(6, -1) * 2)


def test_changed_stride():
    check_argument(lambda: rand(1, 3, 3), lambda: rand(1, 3, 3).t())


def test_changed_stride_behind_equal_sizes():
    check_argument(lambda: rand(1, 4), lambda: rand(1, 8)[::2], fn=lambda x: (x + 1, x.is_contiguous()))


def test_memory_format_of_an_image():
    check_argument(
        lambda: rand(1, 1, 3, 4, 4), lambda: rand(1, 1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    )


def test_changed_requires_grad():
    check_argument(lambda: rand(1), lambda: rand(1, requires_grad=True))


def test_changed_leaf_to_intermediate():
    def fn(x):
        return x * 2, x.is_leaf

    check_argument(lambda: rand(1, requires_grad=True), lambda: rand(1, requires_grad=True) * 1, fn=fn)


def test_conjugate_bit():
    def complex_vector():
        return torch.complex(rand(1), rand(2))

    check_argument(complex_vector, lambda: complex_vector().conj(), fn=lambda x: (x * 2, x.is_conj()))


def test_a_sparse_tensor():
    check_noticed(
        lambda: World(fn=lambda x: (x * 2).sum()),
        lambda w: w.fn(rand(1, 2, 2)),
        lambda w: w.fn(rand(1, 2, 2).to_sparse()).shape,
    )


def test_an_inference_tensor():
    def inference(w):
        with torch.inference_mode():
            x = rand(1)
        return w.fn(x)

    check_noticed(lambda: World(fn=lambda x: x * 2), lambda w: w.fn(rand(1)), inference)


def test_a_parameter_instead_of_a_tensor():
    def fn(x):
        return x * 2, type(x).__name__

    check_argument(lambda: rand(1, requires_grad=True), lambda: nn.Parameter(rand(1)), fn=fn)


def test_a_subclass_of_tensor():
    class Tagged(torch.Tensor):
        pass

    def fn(x):
        return x * 2 if type(x) is torch.Tensor else x * 3

    seen = check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3).as_subclass(Tagged))],
        expect=None,
    )
    assert seen.outcomes[:2] == ["miss", "hit"]
    assert seen.outcomes[2] != "hit"


# ---- plain values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1, 2),
        (0, False),
        (2, 2.0),
        (0.0, -0.0),
        (1.5, 1.5000001),
        (2**70, 2**70 + 1),
        (True, False),
        (True, 1),
        (3, None),
        (None, 0),
        (None, False),
    ],
    ids=repr,
)
def test_changed_number_flag_or_none(value, other):
    def fn(x, v):
        return x + (1 if v else 2), v

    check_noticed(lambda: World(fn=fn), lambda w: w.fn(rand(1), value), lambda w: w.fn(rand(1), other))


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ("relu", "gelu"),
        ("a", b"a"),
        ("", None),
        (torch.float32, torch.float64),
        (torch.device("cpu"), torch.device("meta")),
        (slice(1), slice(2)),
        (range(3), range(4)),
        ((1, 2), (1, 3)),
        ((1, 2), [1, 2]),
        (frozenset({1}), frozenset({2})),
        (list, tuple),
        (torch.relu, torch.sigmoid),
    ],
    ids=lambda v: getattr(v, "__name__", repr(v)),
)
def test_changed_value_of_another_kind(value, other):
    def fn(x, v):
        return x + len(repr(v)), v

    check_noticed(lambda: World(fn=fn), lambda w: w.fn(rand(1), value), lambda w: w.fn(rand(1), other))


def test_none_instead_of_a_tensor():
    def fn(x, y):
        return x * 2 if y is None else x + y

    check_noticed(lambda: World(fn=fn), lambda w: w.fn(rand(1), rand(2)), lambda w: w.fn(rand(1), None))


def test_a_number_instead_of_a_tensor():
    def fn(x, y):
        return x * y

    check_noticed(lambda: World(fn=fn), lambda w: w.fn(rand(1), torch.tensor(2.0)), lambda w: w.fn(rand(1), 2.0))


# ---- objects and containers ---------------------------------------------------------------------


class Config:
    def __init__(self, scale=2.0):
        self.scale = scale

    def apply(self, x):
        return x * self.scale


class OtherConfig(Config):
    def apply(self, x):
        return x - self.scale


def test_changed_class_of_an_argument():
    check_noticed(
        lambda: World(fn=lambda x, c: c.apply(x)),
        lambda w: w.fn(rand(1), Config()),
        lambda w: w.fn(rand(1), OtherConfig()),
    )


def test_the_class_of_an_object_is_exchanged():
    def with_class(cls):
        def run(w):
            w.config.__class__ = cls
            return w.fn(rand(1), w.config)

        return run

    check_noticed(
        lambda: World(fn=lambda x, c: c.apply(x), config=Config()),
        with_class(Config),
        with_class(OtherConfig),
    )


def test_changed_attribute_of_an_object():
    check_noticed(
        lambda: World(fn=lambda x, c: c.apply(x)),
        lambda w: w.fn(rand(1), Config(2.0)),
        lambda w: w.fn(rand(1), Config(3.0)),
    )


def test_an_attribute_of_the_object_hides_the_method_of_its_class():
    def with_method(method):
        def run(w):
            vars(w.config).pop("apply", None)
            if method is not None:
                w.config.apply = method
            return w.fn(rand(1), w.config)

        return run

    check_noticed(
        lambda: World(fn=lambda x, c: c.apply(x), config=Config()),
        with_method(None),
        with_method(lambda x: x + 9),
    )


@pytest.mark.parametrize("length", [1, 3])
def test_longer_or_shorter_list(length):
    check_noticed(
        lambda: World(fn=lambda items: sum(items) * 2),
        lambda w: w.fn([rand(1), rand(2)]),
        lambda w: w.fn([rand(seed) for seed in range(length)]),
    )


def test_changed_element_of_a_list():
    check_noticed(
        lambda: World(fn=lambda x, items: x * items[1]),
        lambda w: w.fn(rand(1), [1, 2, 3]),
        lambda w: w.fn(rand(1), [1, 5, 3]),
    )


def test_key_added_to_a_dict():
    def fn(x, table):
        for value in table.values():
            x = x + value
        return x

    check_noticed(lambda: World(fn=fn), lambda w: w.fn(rand(1), {"a": 1}), lambda w: w.fn(rand(1), {"a": 1, "b": 2}))


def test_key_added_that_was_asked_for():
    check_noticed(
        lambda: World(fn=lambda x, table: x * table.get("scale", 5)),
        lambda w: w.fn(rand(1), {}),
        lambda w: w.fn(rand(1), {"scale": 3}),
    )


def test_value_changed_in_a_dict():
    check_noticed(
        lambda: World(fn=lambda x, table: x * table["scale"]),
        lambda w: w.fn(rand(1), {"scale": 2}),
        lambda w: w.fn(rand(1), {"scale": 3}),
    )


def test_element_added_to_a_set():
    check_noticed(
        lambda: World(fn=lambda x, names: x * 2 if "b" in names else x * 3),
        lambda w: w.fn(rand(1), {"a"}),
        lambda w: w.fn(rand(1), {"a", "b"}),
    )


def test_changed_type_of_a_container():
    check_noticed(
        lambda: World(fn=lambda items: (items[0] * 2, type(items))),
        lambda w: w.fn([rand(1)]),
        lambda w: w.fn((rand(1),)),
    )


def test_two_arguments_become_one_object():
    def fn(a, b):
        a.add_(1)
        return a * b

    def same(w):
        x = rand(1)
        return w.fn(x, x)

    check_noticed(lambda: World(fn=fn), lambda w: w.fn(rand(1), rand(2)), same)


def test_one_object_becomes_two_arguments():
    def fn(a, b):
        a.add_(1)
        return a * b

    def same(w):
        x = rand(1)
        return w.fn(x, x)

    check_noticed(lambda: World(fn=fn), same, lambda w: w.fn(rand(1), rand(1)))


# ---- functions ----------------------------------------------------------------------------------


def helper(x):
    return x + 1


def other_helper(x):
    return x - 1


def test_global_function_replaced(monkeypatch):
    def with_helper(function):
        def run(w):
            monkeypatch.setitem(globals(), "helper", function)
            return w.fn(rand(1))

        return run

    check_noticed(lambda: World(fn=lambda x: helper(x) * 2), with_helper(helper), with_helper(other_helper))


def test_code_of_a_global_function_replaced(monkeypatch):
    first, second = helper.__code__, other_helper.__code__

    def with_code(code):
        def run(w):
            monkeypatch.setattr(helper, "__code__", code)
            return w.fn(rand(1))

        return run

    check_noticed(lambda: World(fn=lambda x: helper(x) * 2), with_code(first), with_code(second))


def test_attribute_of_a_module_replaced(monkeypatch):
    original = torch.nn.functional.silu

    def with_function(function):
        def run(w):
            monkeypatch.setattr(torch.nn.functional, "silu", function)
            return w.fn(rand(1))

        return run

    check_noticed(
        lambda: World(fn=lambda x: torch.nn.functional.silu(x) * 2),
        with_function(original),
        with_function(lambda x: x * 7),
    )


def test_closure_cell_changed():
    def world():
        scale = 2.0

        def fn(x):
            return x * scale

        def set_scale(value):
            nonlocal scale
            scale = value

        return World(fn=fn, set_scale=set_scale)

    def with_scale(value):
        def run(w):
            w.set_scale(value)
            return w.fn(rand(1))

        return run

    check_noticed(world, with_scale(2.0), with_scale(3.0))


def test_function_in_a_closure_cell_changed():
    def world():
        inner = helper

        def fn(x):
            return inner(x) * 2

        def set_inner(value):
            nonlocal inner
            inner = value

        return World(fn=fn, set_inner=set_inner)

    def with_inner(value):
        def run(w):
            w.set_inner(value)
            return w.fn(rand(1))

        return run

    check_noticed(world, with_inner(helper), with_inner(other_helper))
