"""Generators and iterators that are alive at a break, and generator functions that break themselves."""

from __future__ import annotations

import itertools

import torch
from harness import PLAIN, World, check, rand

import stator


def equal_runs(fn, *, raises=(), unreplayed=(), call=lambda w, seed: w.fn(rand(seed)), **state):
    steps = [lambda w, seed=seed: call(w, seed) for seed in range(4)]
    world = lambda: World(fn=fn, **{n: make() for n, make in state.items()})  # noqa: E731
    return check(world, steps, expect=None, raises=raises, unreplayed=unreplayed)


def doubled(values):
    for value in values:
        yield value * 2


def noisy(values):
    for value in values:
        print("value")
        yield value * 2
    print("done")


def test_a_generator_lives_across_a_break():
    def fn(x):
        parts = doubled([x, x + 1, x + 2])
        first = next(parts)
        print("between")
        return first, list(parts)

    equal_runs(fn, unreplayed="call-print")


def test_a_loop_over_a_generator_breaks():
    def fn(x):
        total = x
        for part in doubled([x, x + 1, x + 2]):
            total = total + part
            print("part")
        return total

    equal_runs(fn, unreplayed="call-print")


def test_a_generator_function_breaks():
    def fn(x):
        return sum(noisy([x, x + 1, x + 2]), start=x)

    equal_runs(fn, unreplayed="call-print")


def test_a_loop_over_a_generator_that_breaks():
    def fn(x):
        total = x
        for part in noisy([x, x + 1]):
            total = total + part
            print("part")
        return total

    equal_runs(fn, unreplayed="call-print")


def test_send_throw_and_close():
    def accumulate(start):
        total = start
        try:
            while True:
                try:
                    received = yield total
                    print("received")
                    total = total + received
                except KeyError:
                    total = total * 0
        finally:
            print("closed")

    def fn(x):
        running = accumulate(x)
        next(running)
        a = running.send(x + 1)
        print("between")
        b = running.throw(KeyError("reset"))
        running.close()
        return a, b

    equal_runs(fn, unreplayed=["call-print", "outside-generator"])


def test_yield_from():
    def outer(values):
        result = yield from doubled(values)
        print("inner is done", result)
        yield values[0]

    def fn(x):
        return list(outer([x, x + 1]))

    equal_runs(fn, unreplayed="call-print")


def test_a_generator_expression():
    def fn(x):
        parts = (x * i for i in range(3))
        first = next(parts)
        print("between")
        return first, sum(parts)

    equal_runs(fn, unreplayed="call-print")


def test_a_generator_given_from_outside():
    def fn(x, numbers):
        y = x + 1
        number = next(numbers)
        return y * number

    def numbers():
        yield from range(1, 9)

    seen = equal_runs(fn, call=lambda w, seed: w.fn(rand(seed), w.numbers), numbers=numbers)
    assert "outside-generator" in [why.id for why in seen.world.fn.stator.break_reasons]


def test_a_generator_is_returned():
    def fn(x):
        y = x + 1
        print("between")
        return doubled([y, y * 3])

    equal_runs(fn, call=lambda w, seed: list(w.fn(rand(seed))), unreplayed=["call-print", "rebuild"])


def test_iterators_of_itertools_across_a_break():
    def fn(x):
        counter = itertools.count(3)
        pairs = itertools.zip_longest([x, x + 1], [1])
        next(counter)
        first = next(pairs)
        print("between")
        return first, list(pairs), next(counter), list(itertools.islice(counter, 2))

    equal_runs(fn, unreplayed="call-print")


def test_two_names_for_one_iterator():
    def fn(x):
        numbers = iter([1, 2, 3, 4])
        same = numbers
        a = x * next(numbers)
        print("between")
        b = x * next(same)
        return a, b, list(numbers), numbers is same

    equal_runs(fn)


def test_a_disabled_generator_function():
    @stator.disable
    def parts(x):
        yield x
        yield x * 2

    def fn(x):
        y = x + 1
        return sum(parts(y), start=torch.zeros(4)) * 3

    equal_runs(fn)


def test_a_generator_that_raises_after_a_break():
    def failing(x):
        yield x
        print("about to fail")
        raise ValueError("from the generator")

    def fn(x):
        y = x
        for part in failing(x + 1):
            y = y + part
        return y

    equal_runs(fn, raises=ValueError, unreplayed=PLAIN)
