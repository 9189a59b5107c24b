"""Iterators of classes that derive from `enumerate`, `map`, `zip` and `reversed`."""

from __future__ import annotations

import pytest
from harness import World, check, rand

FOUR = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]


class MyEnumerate(enumerate):
    pass


class MyMap(map):
    pass


class MyZip(zip):
    pass


class MyReversed(reversed):
    pass


ITERATORS = {
    "enumerate": lambda: MyEnumerate("abc"),
    "map": lambda: MyMap(str.upper, "abc"),
    "zip": lambda: MyZip("abc", "def"),
    "reversed": lambda: MyReversed("abc"),
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_an_outside_iterator_of_a_class_in_python_moves_on(kind):
    """Its class is open, and yet C code keeps its place."""

    def world():
        def fn(x, it):
            first = next(it)
            return first, x + 1

        return World(fn=fn, its=[ITERATORS[kind]() for _ in range(2)])

    calls = [lambda w, n=n: (w.fn(rand(n), w.its[n % 2]), list(w.its[n % 2]) if n > 2 else 0) for n in range(4)]
    check(world, calls, expect=None)


@pytest.mark.parametrize("kind", ITERATORS)
def test_such_an_iterator_behind_a_break(kind):
    def fn(x):
        it = ITERATORS[kind]()
        next(it)
        print("here")
        return list(it), x + 1

    check(lambda: World(fn=fn), FOUR, expect=None)
