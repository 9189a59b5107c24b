"""Control flow that Python decides: the path taken is recorded, what decided it is guarded."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from harness import World, check, check_stateless, rand


@dataclasses.dataclass
class Circle:
    radius: float


@dataclasses.dataclass
class Box:
    sides: tuple


def test_if_on_a_flag():
    def fn(x, training):
        return x * 2 if training else x.detach()

    check(
        lambda: World(fn=fn),
        [lambda w, s=s, f=f: w.fn(rand(s), f) for s, f in ((1, True), (2, False), (3, True))],
        expect="miss miss hit",
    )


def test_if_on_a_shape():
    def fn(x):
        if x.shape[0] > 4:
            return x[:4]
        elif x.dim() == 2 and x.size(-1) == 3:
            return x.t()
        return x + 1

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1, 6)),
            lambda w: w.fn(rand(2, 2, 3)),
            lambda w: w.fn(rand(3, 4)),
            lambda w: w.fn(rand(4, 6)),
            lambda w: w.fn(rand(5, 2, 3)),
        ],
        expect="miss miss miss hit hit",
    )


def test_if_on_a_dtype_and_device():
    def fn(x):
        if x.dtype == torch.float64:
            x = x.float()
        if x.dtype.is_floating_point and x.device.type == "cpu" and not x.is_cuda:
            return x / 2
        return x // 2

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1)),
            lambda w: w.fn(rand(2, dtype=torch.float64)),
            lambda w: w.fn(torch.arange(4)),
            lambda w: w.fn(rand(4)),
            lambda w: w.fn(torch.arange(4) * 7),
        ],
        expect="miss miss miss hit hit",
    )


def test_if_on_none_and_truth():
    def fn(x, y, names):
        if y is not None:
            x = x + y
        if names and not names[0].startswith("_"):
            x = x * len(names)
        return x.relu()

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), None, []),
            lambda w: w.fn(rand(2), rand(3), ["a"]),
            lambda w: w.fn(rand(4), rand(5), ["a"]),
            lambda w: w.fn(rand(6), None, ["_a"]),
        ],
        expect="miss miss hit miss",
    )


def test_if_on_requires_grad():
    def fn(x):
        return x * 2 if x.requires_grad else x * 3

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1)),
            lambda w: w.fn(rand(2, requires_grad=True)),
            lambda w: w.fn(rand(3)),
            lambda w: w.fn(rand(4, requires_grad=True)),
        ],
        expect="miss miss hit hit",
    )


def test_loops_with_a_fixed_count():
    def fn(x, steps):
        for i in range(steps):
            x = x * i + 1
        n = 0
        while n < x.shape[0]:
            x = x + n
            n += 1
        for _ in range(0):
            raise AssertionError
        return x

    check(
        lambda: World(fn=fn),
        [lambda w, s=s, n=n: w.fn(rand(s), n) for s, n in ((1, 3), (2, 3), (3, 4), (4, 3))],
        expect="miss hit miss hit",
    )


def test_break_continue_and_else():
    def fn(x, stop):
        for i in range(6):
            if i % 2:
                continue
            if i == stop:
                x = x * 10
                break
            x = x + i
        else:
            x = x - 100
        return x

    check(
        lambda: World(fn=fn),
        [lambda w, s=s, n=n: w.fn(rand(s), n) for s, n in ((1, 2), (2, 2), (3, 3), (4, 3))],
        expect="miss hit miss hit",
    )


def test_walrus():
    def fn(x):
        if (n := x.shape[0]) > 2 and (y := x * n) is not x:
            return y, [z := y + 1, z * 2], n
        return x

    check_stateless(fn)


def test_unpacking_with_star():
    def fn(items):
        first, *rest = items
        *init, last = rest
        (a, *_), [b, (c, *d)] = init
        return first + last, a * b, c, d

    def items(seed):
        return [
            rand(seed),
            (rand(seed + 1), 2, 3),
            [rand(seed + 2), (rand(seed + 3), "x", "y")],
            rand(seed + 4),
        ]

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(items(1)), lambda w: w.fn(items(6)), lambda w: w.fn(items(11))],
        expect="miss hit hit",
    )


def test_chained_comparison_and_boolean_operators():
    def fn(x, low, high):
        if low < x.shape[0] <= high != 7:
            x = x + 1
        scale = low or (high and 3)
        return x * scale, low == 0 or high, not low

    check(
        lambda: World(fn=fn),
        [lambda w, a=a, b=b: w.fn(rand(1), a, b) for a, b in ((0, 4), (0, 4), (5, 9), (0, 7))],
        expect="miss hit miss miss",
    )


def test_match_on_values_and_types():
    def fn(x, command):
        match command:
            case "double":
                return x * 2
            case ["scale", float() | int() as by]:
                return x * by
            case {"op": "shift", "by": by, **rest}:
                return x + by, rest
            case Circle(radius=r) if r > 1:
                return x * r
            case Box((first, *_)):
                return x - first
            case None:
                return x.neg()
            case _:
                return x + 100

    commands = [
        lambda: "double",
        lambda: ["scale", 3],
        lambda: {"op": "shift", "by": 2, "more": 1},
        lambda: Circle(2.0),
        lambda: Box((7, 8)),
        lambda: None,
        lambda: Circle(0.5),
    ]
    check(
        lambda: World(fn=fn),
        [lambda w, c=c, s=s: w.fn(rand(s), c()) for s in (1, 2) for c in commands],
        expect=" ".join(["miss"] * 7 + ["hit"] * 7),
    )


def test_match_on_a_tensor_shape():
    def fn(x):
        match x.shape:
            case (n,):
                return x * n
            case (n, m) if n == m:
                return x @ x
            case (n, *rest):
                return x.reshape(n, -1) + len(rest)

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(1, *s)) for s in ((4,), (3, 3), (2, 3), (2, 1, 2), (3, 3))],
        expect="miss miss miss miss hit",
    )


def test_augmented_assignment_on_everything():
    class Holder:
        def __init__(self, v):
            self.v = v

    def fn(x):
        n = 3
        n += 1
        n **= 2
        n //= 3
        n <<= 1
        n |= 1
        holder, items, table = Holder(x), [x, 1], {"k": x}
        holder.v += 1
        items[0] *= n
        items[1] -= 5
        table["k"] /= 2
        return n, holder.v, items, table

    check_stateless(fn)


def test_conditional_expressions_and_short_circuits_on_outside_values():
    def fn(x, config):
        scale = config.get("scale") or 1.0
        bias = config.get("bias")
        return x * scale + (bias if "bias" in config else 0)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), {"scale": 2.0}),
            lambda w: w.fn(rand(2), {"scale": 2.0}),
            lambda w: w.fn(rand(3), {"scale": 0.0}),
            lambda w: w.fn(rand(4), {"bias": rand(5)}),
            lambda w: w.fn(rand(6), {"bias": rand(7)}),
        ],
        expect="miss hit miss miss hit",
    )


def test_a_path_that_depends_on_values_is_right_even_if_it_stays_plain():
    def fn(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(torch.ones(4)), lambda w: w.fn(-torch.ones(4)), lambda w: w.fn(torch.ones(4) * 2)],
        expect=None,
    )


def test_numbers_read_out_of_tensors_are_right_even_if_the_function_stays_plain():
    def fn(x):
        n = int(x.abs().sum().item()) % 3
        return x * n, n, x.tolist(), float(x[0])

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)


def test_printing_happens_every_time(capsys):
    def fn(x):
        y = x * 2
        print("shape", tuple(y.shape))
        return y + 1

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)
    assert capsys.readouterr().out == "shape (4,)\n" * 6


@pytest.mark.parametrize("wrong", [None, 3, (1, 2), ("scale", 3)], ids=str)
def test_match_arguments_that_are_no_names(wrong):
    class Point:
        __match_args__ = ("scale", "offset")
        scale, offset = 2.0, 1.0

    def world():
        point = Point()

        def fn(x):
            try:
                match point:
                    case Point(scale, offset):
                        return x * scale + offset
            except TypeError as error:
                return x, str(error)

        return World(fn=fn, set=lambda value: setattr(Point, "__match_args__", value))

    def wrongly(w):
        w.set(wrong)
        try:
            return w.fn(rand(3))
        finally:
            w.set(("scale", "offset"))

    plainly = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2))]
    check(world, [wrongly, *plainly, wrongly, wrongly, *plainly], expect=None)
