"""Floats that change: learning rates, scales, probabilities; and the numbers among them that compare oddly."""

from __future__ import annotations

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from harness import World, check, rand

import stator

NAN, INF = float("nan"), float("inf")
NUMBERS = (1.5, 2.5, 3.5, 1.5, -2.5, 0.5)
SYMBOLIC = "miss miss hit hit hit hit"
SPECIAL = "miss miss miss hit miss miss"


def check_floats(fn, expect, numbers=NUMBERS, **options):
    calls = [lambda w, f=f, seed=seed: w.fn(rand(seed), f) for seed, f in enumerate(numbers)]
    return check(lambda: World(fn=fn), calls, expect=expect, **options)


STAYS_SYMBOLIC = {
    "math": lambda x, f: x * math.sin(f) + math.fsum([f, 1.0]),
    "rounding": lambda x, f: x * round(f, 1) * int(f) + math.floor(f) + f.is_integer(),
    "tensors of it": lambda x, f: (torch.tensor(f), torch.tensor([f, 1.0])),
    "scale": lambda x, f: x * f,
    "arithmetic": lambda x, f: x * (f + 1) / (f * 2) - f**2 + (3 - f) + -f,
    "with ints": lambda x, f: (x * 2, 3 * f, 3 - f, 7 % f, 7 // f, f % 3, True + f),
    "bounds": lambda x, f: x.clamp(-abs(2.0), f + 10),
    "keywords": lambda x, f: torch.addcmul(x, x, x, value=f) + torch.add(x, x, alpha=f),
    "lerp": lambda x, f: torch.lerp(x, x * 2, f),
    "in place": lambda x, f: x.clone().fill_(f).add_(x, alpha=f),
    "where": lambda x, f: torch.where(x > 0, f, x),
    "full": lambda x, f: (torch.full((2,), f), torch.full_like(x, f), x.new_full((2,), f)),
    "containers": lambda x, f: (x * 2, [f, (f + 1, {"a": f * 2})], {"k": f}),
    "large constants": lambda x, f: x * 2 if f < 10**400 and f < 2**53 + 1 else x * 3,
    "min and max": lambda x, f: x * min(f, 20.0) + max(f, -3),
    "its type": lambda x, f: x * f if type(f) is float and isinstance(f, float) else x,
    "linspace": lambda x, f: torch.linspace(0, f, 3).sum() * x,
    "float of it": lambda x, f: x * float(f),
}


@pytest.mark.parametrize("fn", STAYS_SYMBOLIC.values(), ids=list(STAYS_SYMBOLIC))
def test_it_stays_symbolic(fn):
    check_floats(fn, SYMBOLIC)


NEEDS_THE_NUMBER = {
    "hashing": lambda x, f: (x * 2, {f: 1}),
    "complex numbers": lambda x, f: (x * (f * 1j)).abs(),
    "identity": lambda x, f: (x * 2, f is f),
    "norms": lambda x, f: x.norm(p=f),
}


@pytest.mark.parametrize("fn", NEEDS_THE_NUMBER.values(), ids=list(NEEDS_THE_NUMBER))
def test_it_needs_the_number(fn):
    check_floats(fn, SPECIAL)


def test_comparisons_are_relations():
    check_floats(lambda x, f: x * 2 if f > 2 else x * 3, "miss miss hit hit miss hit")
    check_floats(lambda x, f: x * 2 if f * 2 > f + 1.7 else x * 3, "miss miss hit hit miss hit")
    check_floats(lambda x, f: x * 2 if 2 < f <= 3 else x * 3, "miss miss miss hit miss hit")


def test_a_sum_of_floats_rounds_as_python_does():
    """From 3.12 on `sum` compares the floats that it adds, so it needs them."""
    expect = SPECIAL if sys.version_info >= (3, 12) else SYMBOLIC
    check_floats(lambda x, f: (x * 2, sum([0.1, f, 1e16, 0.7, -1e16])), expect)
    check_floats(lambda x, f: (x * 2, sum(f * k for k in (1, 1e16, 0.3, -1e16))), expect)
    check_floats(lambda x, f: x * sum([3, f, 2]), SYMBOLIC)


def test_what_compares_oddly():
    odd = (1.0, 2.0, NAN, INF, -INF, -0.0, 0.0)
    check_floats(lambda x, f: (x * f, f), "miss miss hit hit hit hit hit", odd)
    check_floats(lambda x, f: (x * f, f), "miss miss hit hit hit", (NAN, 2.0, NAN, INF, -0.0))
    check_floats(lambda x, f: (x * f, f), "miss miss miss hit hit", (2.0, NAN, INF, -0.0, 3.0))  # a NaN is no symbol
    check_floats(lambda x, f: (x * f, f), "miss miss hit hit hit", (2.0, INF, NAN, -0.0, 3.0))


def test_comparisons_with_what_compares_oddly():
    numbers = (2.0, 3.0, -0.0, NAN, -1.0, INF)
    check_floats(lambda x, f: x * 2 if f >= 0 else x * 3, "miss miss hit miss miss hit", numbers)
    check_floats(lambda x, f: x * 2 if not f < 0 else x * 3, "miss miss hit hit miss hit", numbers)
    check_floats(lambda x, f: x * 2 if f == f else x * 3, "miss miss hit miss hit hit", numbers)
    check_floats(lambda x, f: x * 2 if f else x * 3, "miss miss miss miss hit hit", (2.0, 3.0, 0.0, NAN, -0.0, INF))


def test_the_sign_of_zero_is_a_value():
    check_floats(lambda x, f: (x * 2, math.copysign(1, f)), "miss miss hit hit hit", (2.0, 0.0, -0.0, 0.0, -0.0))


def test_division_by_zero():
    numbers = (2.0, 3.0, 0.0, NAN, -0.0, 1.0)
    check_floats(lambda x, f: x * (1 / f), "miss miss plain miss plain hit", numbers, raises=ZeroDivisionError)
    check_floats(lambda x, f: x * (7 % f), "miss miss plain miss plain hit", numbers, raises=ZeroDivisionError)


@pytest.mark.parametrize("numbers", [(4.0, 9.0, -4.0, 16.0, -1.0), (4, 9, -4, 16, -1)])
def test_roots_of_negative_numbers_are_complex(numbers):
    def fn(x, f):
        root = f**0.5
        return (x * 2 if isinstance(root, float) else x * 3), root

    check_floats(fn, "miss miss miss hit miss", numbers)


def test_what_overflows_raises():
    check_floats(lambda x, f: (x * 2, f**1000.0), "miss miss hit hit", (1.5, 1.25, 1e10, 1.0), raises=OverflowError)


@pytest.mark.parametrize("fn", [lambda x, f: torch.maximum(x, f), lambda x, f: x * 2 + len(f), lambda x, f: f + "1"])
def test_an_error_speaks_of_a_float(fn):
    compiled = stator.compile(lambda x, f: fn(x, f) if f > 1 else x * f, backend="eager", dynamic=True)
    assert torch.equal(compiled(rand(1), 0.5), rand(1) * 0.5)
    for f in (0.25, 1.5, 2.5, 3.5):
        if f < 1:
            assert torch.equal(compiled(rand(1), f), rand(1) * f)
            continue
        with pytest.raises(TypeError) as expected:
            fn(rand(1), f)
        with pytest.raises(TypeError) as found:
            compiled(rand(1), f)
        assert str(found.value) == str(expected.value)


def test_dropout_draws_the_same_random_numbers():
    def fn(x, p):
        return F.dropout(x, p)

    seen = check_floats(fn, None, (0.5, 0.25, 0.75, 0.0, 1.0, 0.5, 0.75))
    assert seen.outcomes[-2:] == ["hit", "hit"]


def test_dropout_with_no_probability_raises():
    def fn(x, p):
        return F.dropout(x, p)

    check_floats(fn, "miss miss plain plain hit", (0.5, 0.25, 1.5, -0.1, 0.5), raises=ValueError)


def test_an_operation_that_may_give_back_its_argument():
    def fn(x, p):
        y = F.dropout(x, p)
        return y is x, y + 1

    check_floats(fn, None, (0.5, 0.0, 1.0, 0.0, 0.25))


def test_ints_and_floats_are_told_apart():
    numbers = (2, 3, 2.5, 3.5, 4, True, 4.5, False)
    check_floats(lambda x, f: (x * f, f), "miss miss miss hit hit miss hit miss", numbers)


def test_sizes_from_floats():
    def fn(x, f):
        y = torch.arange(0, f, 0.5)
        return x * y.sum(), y.shape, len(y) * 2, y.shape[0] / 2, y.shape[0] > 3.5

    seen = check_floats(fn, None, (2.5, 3.5, 4.5, 2.5, 3.5))
    assert seen.outcomes[-2:] == ["hit", "hit"]


def test_schedules():
    class Schedule:
        def __init__(self):
            self.rate, self.steps = 0.5, 0

        def step(self):
            self.steps += 1
            self.rate = self.rate * 0.9
            return self.rate

    def fn(x, schedule):
        return x * schedule.step()

    def call(w):
        result = w.fn(rand(1), w.schedule)
        assert type(w.schedule.rate) is float and type(w.schedule.steps) is int
        return result

    check(lambda: World(fn=fn, schedule=Schedule()), [call] * 6, expect="miss miss hit hit hit hit")
