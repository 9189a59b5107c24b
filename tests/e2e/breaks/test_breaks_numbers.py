"""Numbers that live across a break: in containers, under several names, from the graph."""

from __future__ import annotations

import functools

import pytest
import torch
from harness import World, check, rand

import stator

UNSET = "not set"


NAN = float("nan")


def with_numbers(fn, numbers=(2, 3, 2, 4, 3), unreplayed=()):
    """The number behind the break changes from call to call, and comes back."""
    calls = [lambda w, n=n: w.fn(rand(1), n) for n in numbers]
    return check(lambda: World(fn=fn), calls, expect=None, unreplayed=unreplayed)


def given(*args, **kwargs):
    return args, kwargs


@pytest.mark.parametrize(
    "use",
    [
        lambda y, n: y * sum(given(n)[0]),
        lambda y, n: y * sum(given(a=n)[1].values()),
        lambda y, n: torch.full(given(n)[0], 1.0),
        lambda y, n: torch.full((2,), **given(fill_value=n)[1]),
        lambda y, n: (y, f"{given(n)}"),
        lambda y, n: y if given(n)[0] == (2,) else -y,
        lambda y, n: y if 3 in given(n)[0] else -y,
        lambda y, n: y * {(2,): 1, (3,): 5, (4,): 6}[given(n)[0]],
        lambda y, n: functools.partial(torch.mul, *given(n)[0])(y),
        lambda y, n: y * sum([*given(n)[0], 1]),
        lambda y, n: y * sum(given(n)[0] * 2),
    ],
)
def test_a_number_among_the_star_arguments_of_a_function(use):
    def fn(x, n):
        y = x + 1
        print("between")
        return use(y, n)

    with_numbers(fn)


def test_a_number_that_was_stored_in_a_dict_or_a_list():
    def fn(x, n):
        y = x + 1
        print("between")
        entries, items = {}, [0]
        view, rest = entries.values(), iter(items)
        entries["n"] = items[0] = n
        return y * sum(view), y * sum(rest)

    with_numbers(fn)


def test_a_number_in_a_tuple_that_the_function_returns_to_itself():
    def fn(x, n, again=True):
        if not again:
            return (n, 1)
        y = x + 1
        print("between")
        return y * sum(fn(y, n, False))

    with_numbers(fn)


@stator.disable
def same(a, b):
    return a is b


@pytest.mark.parametrize("is_same", [same, lambda a, b: a is b])
def test_a_text_that_stands_for_no_value(is_same):
    def fn(x, value=UNSET):
        y = x + 1
        print("between")
        return y if is_same(value, UNSET) else -y

    calls = [lambda w, a=a: w.fn(rand(1), *a) for a in ((), (), ("other",), (), (7,), ())]
    check(lambda: World(fn=fn), calls, expect=None)


def test_two_names_for_one_number():
    def fn(x, n):
        a, items = n, [n]
        y = x + 1
        print("between")
        return y if a is n and items[0] is a else -y

    with_numbers(fn, (2, 1000, 2, 1000))


def test_a_number_that_equals_nothing_is_found_by_its_identity():
    def fn(x, n, items):
        y = x + 1
        print("between")
        return y if n in items else -y

    check(lambda: World(fn=fn), [lambda w: w.fn(rand(1), NAN, [NAN])] * 3, expect=None)


def test_a_number_that_the_graph_computes_is_the_small_int_that_it_was():
    def fn(x, n):
        k = (x * 0 + n).int()[0].item()
        return x * k if k is n else -x

    with stator.options.patch(capture_scalar_outputs=True):
        with_numbers(fn)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, k: x * sum((x, k)[1:]),
        lambda x, k: (x, f"{[x, k][1:]}"),
        lambda x, k: 2 in {k: x},
        lambda x, k: (a := [1, 2, 3, 4]).insert(k, x) or a,
        lambda x, k: {2: x + 1, 3: x + 2}.get(k, x),
        lambda x, k: x * sum(given(x, k)[0][1:]),
        lambda x, k: [torch.mul(x, k), x.add(k), x + k, k - x, x < k],
    ],
)
def test_a_number_of_the_graph_next_to_a_tensor(use):
    def fn(x):
        return use(x, x.int()[0].item())

    with stator.options.patch(capture_scalar_outputs=True):
        calls = [lambda w, n=n: w.fn(torch.full((4,), float(n))) for n in (2, 3, 2, 4)]
        check(lambda: World(fn=fn), calls, expect=None)
