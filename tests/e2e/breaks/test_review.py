"""Faults that a review of graph breaks found, by cause."""

from __future__ import annotations

import functools

import pytest
import torch
from harness import World, check, rand

import stator
from stator.backends.registry import look_up

UNSET = "not set"
NAN = float("nan")


def with_numbers(fn, numbers=(2, 3, 2, 4, 3)):
    """The number behind the break changes from call to call, and comes back."""
    calls = [lambda w, n=n: w.fn(rand(1), n) for n in numbers]
    return check(lambda: World(fn=fn), calls, expect=None)


# ---- a loose number in a container, where only C code looks at it -------------------------------------------


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


# ---- numbers and texts are the objects that they were -----------------------------------------------------


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


# ---- what lives across a break --------------------------------------------------------------------------------


def test_iterators_of_a_dict_see_what_becomes_of_it():
    def fn(x, n):
        entries, seen = {1: 1, 2: 2, 3: 3}, []
        keys, values, items = iter(entries), iter(entries.values()), enumerate(entries.items())
        next(keys), next(values), next(items)
        print("between")
        entries[2] = n
        seen += [*keys, *values, *items]
        keys = iter(entries)
        next(keys)
        print("between")
        entries[4] = n
        try:
            next(keys)
        except RuntimeError as error:
            seen.append(str(error))
        return x + 1, seen

    with_numbers(fn)


def test_an_iterator_of_an_outside_dict_that_was_changed_before():
    def fn(x, entries):
        y = x + 1
        entries["new"] = y
        for key, value in entries.items():
            print(key)
            entries[key] = value * 2
        return y

    def world():
        return World(fn=fn, entries={"a": torch.ones(4), "b": torch.zeros(4)})

    check(world, [lambda w, n=n: w.fn(rand(n), w.entries) for n in range(4)], expect=None)


def test_an_iterator_of_a_set():
    def fn(x, n):
        y, rest = x + 1, iter({1, 2, 3})
        y = y * next(rest)
        print("between")
        return y, list(rest), list(rest)

    with_numbers(fn)


class Resource:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("closed")


def test_an_object_is_finalized_when_the_program_lets_go_of_it():
    def fn(x, n):
        log = []
        resource = Resource(log)
        y = x + 1
        print("between")
        resource = None
        print(resource, log)
        return y * len(log)

    with_numbers(fn)


def test_a_number_that_the_graph_computes_is_the_small_int_that_it_was():
    def fn(x, n):
        k = (x * 0 + n).int()[0].item()
        return x * k if k is n else -x

    with stator.options.patch(capture_scalar_outputs=True):
        with_numbers(fn)


# ---- grad mode and gradients, where a backend derives them ahead of time ------------------------------------


def ahead_of_time(fn, numbers=(2, 3, 2, 3)):
    def call(w, n):
        p = rand(n, requires_grad=True)
        results = w.fn(p, n)
        sum(r.sum() for r in results if r.requires_grad).backward()
        return p.grad, results

    calls = [lambda w, n=n: call(w, n) for n in numbers]
    check(lambda: World(fn=fn), calls, expect=None, backend=look_up("aot_eager")[1])


def test_a_break_while_gradients_are_off():
    def fn(x, n):
        with torch.no_grad():
            y = x * x
            print("between")
            w = y * n
        z = x * n
        print("between")
        return z, x * y, w

    ahead_of_time(fn)


def test_a_break_between_modes_that_are_nested():
    def fn(x, n):
        with torch.no_grad():
            y = x * 2
            print("between")
            with torch.enable_grad():
                z = x * y
                print("between")
        return z, x * n, y

    ahead_of_time(fn)


def test_a_tensor_made_before_the_break_begins_to_require_gradients():
    def fn(x, n):
        p = x.detach().clone().requires_grad_()
        y = p * n
        print("between")
        y.sum().backward()
        return x * 2, p.grad

    ahead_of_time(fn)


def test_what_was_detached_is_another_tensor_behind_the_break():
    def fn(x, n):
        y = x.detach() + 1
        d = y.detach()
        print("between")
        d.add_(n)
        return x * 2, y, d

    ahead_of_time(fn)


# ---- a number that the graph computes stays in it only where a tensor operation takes it ---------------------


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
