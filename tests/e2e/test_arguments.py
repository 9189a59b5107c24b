"""Arguments of every kind reach the replay, and every assumption about them is guarded."""

from __future__ import annotations

import dataclasses
import enum
from collections import namedtuple

import torch
from harness import World, check, rand

import stator

Pair = namedtuple("Pair", "left right")


class Mode(enum.Enum):
    ADD = "add"
    MUL = "mul"


@dataclasses.dataclass
class Settings:
    scale: float
    bias: torch.Tensor


def test_positional_only_arguments():
    def fn(x, y, /, z):
        return x * y + z

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), rand(2), rand(3)),
            lambda w: w.fn(rand(4), rand(5), z=rand(6)),
            lambda w: w.fn(rand(7), rand(8), rand(9)),
        ],
        expect="miss hit hit",
    )


def test_keyword_only_argument_is_guarded_by_value():
    def fn(x, *, scale):
        return x * scale

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), scale=2.0),
            lambda w: w.fn(rand(2), scale=2.0),
            lambda w: w.fn(rand(3), scale=3.0),
            lambda w: w.fn(rand(4), scale=2.0),
        ],
        expect="miss hit miss hit",
    )


def test_a_default_is_the_argument_when_none_is_passed():
    def fn(x, scale=2.0, *, shift=1):
        return x * scale + shift

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1)),
            lambda w: w.fn(rand(2), 2.0),
            lambda w: w.fn(rand(3), scale=2.0, shift=1),
            lambda w: w.fn(rand(4), 2.0, shift=5),
        ],
        expect="miss hit hit miss",
    )


def test_replaced_defaults_are_noticed():
    def world():
        def fn(x, scale=2.0, *, shift=1):
            return x * scale + shift

        return World(fn=fn, plain=fn)

    def replace(w):
        w.plain.__defaults__ = (3.0,)
        return w.fn(rand(3))

    def replace_keyword(w):
        w.plain.__kwdefaults__ = {"shift": 7}
        return w.fn(rand(4))

    check(
        world,
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), replace, replace_keyword, lambda w: w.fn(rand(5))],
        expect="miss hit miss miss hit",
    )


def test_a_tensor_as_default():
    def world():
        def fn(x, bias=rand(7)):  # noqa: B008  evaluated once, as a user's would be
            return x + bias

        return World(fn=fn, plain=fn)

    def change_default_in_place(w):
        w.plain.__defaults__[0].add_(1.0)
        return w.fn(rand(2))

    check(
        world,
        [lambda w: w.fn(rand(1)), change_default_in_place, lambda w: w.fn(rand(3))],
        expect="miss hit hit",
    )


def test_a_mutable_default_remembers():
    def world():
        def fn(x, history=[]):  # noqa: B006  the shared default is what is tested
            history.append(x.sum())
            return torch.stack(history).sum()

        return World(fn=fn, plain=fn)

    def forget_first(w):
        w.plain.__defaults__[0].clear()
        return w.fn(rand(3))

    check(
        world,
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), forget_first],
        expect="miss miss hit",
        observe=lambda w: w.plain.__defaults__,
    )


def test_star_arguments_are_guarded_by_their_number():
    def fn(*tensors):
        total = torch.zeros(4)
        for t in tensors:
            total = total + t
        return total, len(tensors)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), rand(2)),
            lambda w: w.fn(rand(3), rand(4)),
            lambda w: w.fn(rand(5), rand(6), rand(7)),
            lambda w: w.fn(*[rand(s) for s in (8, 9, 10)]),
        ],
        expect="miss hit miss hit",
    )


def test_star_arguments_may_be_empty():
    def fn(x, *rest, **options):
        return x + len(rest) + len(options), rest, options

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3), 1, two=2)],
        expect="miss hit miss",
    )


def test_keyword_arguments_are_guarded_by_their_names():
    def fn(x, **others):
        for name, t in others.items():
            x = x + t if name.startswith("add") else x * t
        return x, list(others)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), add_a=rand(2), mul_b=rand(3)),
            lambda w: w.fn(rand(4), add_a=rand(5), mul_b=rand(6)),
            lambda w: w.fn(rand(1), add_a=rand(2), mul_c=rand(3)),
            lambda w: w.fn(rand(7), add_a=rand(8)),
        ],
        expect="miss hit miss miss",
    )


def test_the_order_of_keyword_arguments_counts():
    def fn(x, **others):
        for t in others.values():
            x = x * 2 + t
        return x, list(others)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), a=rand(2), b=rand(3)),
            lambda w: w.fn(rand(1), a=rand(4), b=rand(5)),
            lambda w: w.fn(rand(1), b=rand(3), a=rand(2)),
        ],
        expect="miss hit miss",
    )


def test_every_kind_of_argument_at_once():
    def fn(a, b=2, /, c=3, *rest, d, e=5, **others):
        total = a * b + c + d * e
        for r in rest:
            total = total + r
        for name in sorted(others):
            total = total - others[name]
        return total

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), d=rand(2)),
            lambda w: w.fn(rand(3), d=rand(4)),
            lambda w: w.fn(rand(1), 2, 3, rand(5), rand(6), d=rand(2), e=5, z=rand(7), y=rand(8)),
            lambda w: w.fn(rand(2), 2, 3, rand(6), rand(7), d=rand(3), e=5, z=rand(8), y=rand(9)),
        ],
        expect="miss hit miss hit",
    )


def test_forwarding_star_arguments():
    def inner(x, y, *, scale=1.0, shift=0.0):
        return (x + y) * scale + shift

    def fn(*args, **kwargs):
        return inner(*args, **kwargs)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), rand(2), scale=2.0),
            lambda w: w.fn(rand(3), rand(4), scale=2.0),
            lambda w: w.fn(rand(5), y=rand(6), shift=1.0),
        ],
        expect="miss hit miss",
    )


def test_unpacking_outside_containers_into_a_call():
    def inner(x, y, *, scale):
        return (x - y) * scale

    def fn(pair, options):
        return inner(*pair, **options)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn((rand(1), rand(2)), {"scale": 2}),
            lambda w: w.fn((rand(3), rand(4)), {"scale": 2}),
            lambda w: w.fn((rand(5), rand(6)), {"scale": 3}),
            lambda w: w.fn([rand(5), rand(6)], {"scale": 3}),
        ],
        expect="miss hit miss miss",
    )


def test_an_optional_tensor():
    def fn(x, mask=None):
        return x.exp() if mask is None else x.exp() * mask

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1)),
            lambda w: w.fn(rand(2), rand(3)),
            lambda w: w.fn(rand(4), None),
            lambda w: w.fn(rand(5), mask=rand(6)),
        ],
        expect="miss miss hit hit",
    )


def test_nested_containers():
    def fn(batch):
        first, (second, extra) = batch["inputs"]
        return {"out": first @ second, "extra": [extra["bias"] + 1, batch["name"]]}

    def batch(seed, name="a"):
        return {"inputs": [rand(seed, 2, 3), (rand(seed + 1, 3, 2), {"bias": rand(seed + 2)})], "name": name}

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(batch(1)),
            lambda w: w.fn(batch(4)),
            lambda w: w.fn(batch(7, name="b")),
            lambda w: w.fn(batch(10)),
        ],
        expect="miss hit miss hit",
    )


def test_the_same_list_object_may_hold_other_tensors_next_time():
    def fn(tensors):
        return tensors[0] - tensors[1]

    def replace_and_call(w):
        w.tensors[1] = rand(9)
        return w.fn(w.tensors)

    check(
        lambda: World(fn=fn, tensors=[rand(1), rand(2)]),
        [lambda w: w.fn(w.tensors), lambda w: w.fn(w.tensors), replace_and_call],
        expect="miss hit hit",
    )


def test_numbers_are_guarded_by_value_and_type():
    def fn(x, n):
        return x * n, n

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), 1),
            lambda w: w.fn(rand(2), 1),
            lambda w: w.fn(rand(3), 1.0),
            lambda w: w.fn(rand(4), True),
            lambda w: w.fn(rand(5), 2),
            lambda w: w.fn(rand(6), 1 + 0j),
            lambda w: w.fn(rand(7), 1.0),
        ],
        expect="miss hit miss miss miss miss hit",
    )


def test_zeros_of_both_signs_and_nan():
    def fn(x, n):
        return torch.full_like(x, n) * x.abs(), n

    nan = float("nan")
    calls = [
        lambda w: w.fn(rand(1), 0.0),
        lambda w: w.fn(rand(2), 0.0),
        lambda w: w.fn(rand(3), -0.0),
        lambda w: w.fn(rand(4), nan),
        lambda w: w.fn(rand(5), 0.0),
    ]
    check(lambda: World(fn=fn), calls, expect="miss hit miss hit hit")  # the second recording takes any
    with stator.options.patch(dynamic_shapes=False):
        check(lambda: World(fn=fn), calls, expect="miss hit miss miss hit")


def test_strings_bytes_and_enum_members_choose_the_branch():
    def fn(x, op, tag, mode):
        x = x.relu() if op == "relu" else x.sigmoid()
        x = x + len(tag)
        return x + 1 if mode is Mode.ADD else x * 3

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), "relu", b"ab", Mode.ADD),
            lambda w: w.fn(rand(2), "re" + "lu", b"ab", Mode("add")),
            lambda w: w.fn(rand(3), "sigmoid", b"ab", Mode.ADD),
            lambda w: w.fn(rand(4), "relu", b"abc", Mode.ADD),
            lambda w: w.fn(rand(5), "relu", b"ab", Mode.MUL),
        ],
        expect="miss hit miss miss miss",
    )


def test_dtype_and_device_arguments():
    def fn(x, dtype, device):
        return x.to(dtype) + torch.ones(4, dtype=dtype, device=device)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), torch.float64, "cpu"),
            lambda w: w.fn(rand(2), torch.float64, "cpu"),
            lambda w: w.fn(rand(3), torch.float16, "cpu"),
            lambda w: w.fn(rand(4), torch.float64, torch.device("cpu")),
        ],
        expect="miss hit miss miss",
    )


def test_slices_ranges_and_sizes_as_arguments():
    def fn(x, part, steps, size):
        for step in steps:
            x = x + step
        return x[part].expand(size)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), slice(1, 3), range(2), torch.Size([3, 2])),
            lambda w: w.fn(rand(2), slice(1, 3), range(2), torch.Size([3, 2])),
            lambda w: w.fn(rand(3), slice(0, 2), range(2), torch.Size([3, 2])),
            lambda w: w.fn(rand(4), slice(0, 2), range(3), torch.Size([3, 2])),
            lambda w: w.fn(rand(5), slice(0, 2), range(3), torch.Size([4, 2])),
        ],
        expect="miss hit miss miss miss",
    )


def test_functions_as_arguments():
    def double(x):
        return x * 2

    def square(x):
        return x * x

    def fn(x, activation):
        return activation(x) + 1

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), double),
            lambda w: w.fn(rand(2), double),
            lambda w: w.fn(rand(3), square),
            lambda w: w.fn(rand(4), torch.relu),
            lambda w: w.fn(rand(5), torch.relu),
        ],
        expect="miss hit miss miss hit",
    )


def test_classes_as_arguments():
    def fn(x, kind):
        return kind([x + 1, x - 1])

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1), list), lambda w: w.fn(rand(2), list), lambda w: w.fn(rand(3), tuple)],
        expect="miss hit miss",
    )


def test_named_tuples_and_dataclasses_as_arguments():
    def fn(pair, settings):
        return (pair.left - pair.right) * settings.scale + settings.bias

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(Pair(rand(1), rand(2)), Settings(2.0, rand(3))),
            lambda w: w.fn(Pair(rand(4), rand(5)), Settings(2.0, rand(6))),
            lambda w: w.fn(Pair(rand(7), rand(8)), Settings(0.5, rand(9))),
        ],
        expect="miss hit miss",
    )


def test_modules_as_arguments():
    def world():
        torch.manual_seed(1)
        return World(fn=lambda x, m: m(x) * 2, narrow=torch.nn.Linear(4, 2), wide=torch.nn.Linear(4, 6))

    check(
        world,
        [
            lambda w: w.fn(rand(1), w.narrow),
            lambda w: w.fn(rand(2), w.narrow),
            lambda w: w.fn(rand(3), w.wide),
            lambda w: w.fn(rand(4), w.wide),
        ],
        expect="miss hit miss hit",
    )


def test_an_argument_that_is_never_used():
    def fn(x, ignored):
        return x + 1

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1), object), lambda w: w.fn(rand(2), [1]), lambda w: w.fn(rand(3), rand(4))],
        expect=None,
    )


def test_parameters_can_be_rebound_and_deleted():
    def fn(x, y, n):
        x = x + y
        del y
        n += 1
        y = x * n
        return y

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), rand(2), 3),
            lambda w: w.fn(rand(3), rand(4), 3),
            lambda w: w.fn(rand(5), rand(6), 4),
        ],
        expect="miss hit miss",
    )


def test_an_argument_of_another_kind_each_time():
    def fn(x):
        if isinstance(x, torch.Tensor):
            return x + 1
        if isinstance(x, dict):
            return {k: v * 2 for k, v in x.items()}
        return [v - 1 for v in x]

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1)),
            lambda w: w.fn({"a": rand(2)}),
            lambda w: w.fn([rand(3), rand(4)]),
            lambda w: w.fn(rand(5)),
            lambda w: w.fn({"a": rand(6)}),
            lambda w: w.fn((rand(7), rand(8))),
        ],
        expect="miss miss miss hit hit miss",
    )
