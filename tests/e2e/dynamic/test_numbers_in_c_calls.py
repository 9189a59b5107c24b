"""Numbers that may be others, given to C callables by C code, or by keyword: what reads them past their own methods
gets a guard on the value, or breaks the graph."""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
import operator
import types
from collections import defaultdict, deque

import pytest
from harness import World, check, rand

from stator.backends.registry import look_up

LETTERS = "abcdefgh"
PROGRAMS = {
    "map of enumerate": lambda x, n: x * next(next(map(enumerate, [LETTERS], [n])))[0],
    "map of deque": lambda x, n: x * len(next(map(deque, [LETTERS], [n]))),
    "map of add, to a float": lambda x, n: x * next(map(operator.add, [0.5], [n])),
    "map of add, to a bool": lambda x, n: x * next(map(operator.add, [True], [n])),
    "map of eq": lambda x, n: x * (1 if next(map(operator.eq, [3.0], [n])) else 2),
    "map of divmod": lambda x, n: x * next(map(divmod, [7.5], [n]))[0],
    "map of a bound method": lambda x, n: x * next(map(types.MethodType(operator.add, 0.5), [n])),
    "starmap of add": lambda x, n: x * next(itertools.starmap(operator.add, [(0.5, n)])),
    "accumulate": lambda x, n: x * list(itertools.accumulate([0.5, n], operator.add))[1],
    "reduce": lambda x, n: x * functools.reduce(operator.add, [0.5, n]),
    "a bound method": lambda x, n: x * types.MethodType(operator.add, 0.5)(n),
    "a partial": lambda x, n: x * next(functools.partial(enumerate, LETTERS)(n))[0],
    "deque by keyword": lambda x, n: x * deque(maxlen=n).maxlen,
    "deque by keyword, filled": lambda x, n: x * len(functools.partial(deque, maxlen=n)(LETTERS)),
    "enumerate by keyword": lambda x, n: x * next(enumerate(LETTERS, start=n))[0],
    "enumerate by keywords": lambda x, n: x * next(enumerate(start=n, iterable=LETTERS))[0],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_number_is_read(name):
    numbers = (2, 2, 3, 4, 5, 4, 5)
    calls = [lambda w, seed=seed, n=n: w.fn(rand(seed), n) for seed, n in enumerate(numbers)]
    breaks = ("unknown-callable", "outside-iterator")
    assert check(lambda: World(fn=PROGRAMS[name]), calls, expect=None, unreplayed=breaks).outcomes.count("miss") < 6


ONE_FOR_ALL = {
    "map of add, whole numbers": lambda x, n: x * next(map(operator.add, [n], [2])),
    "map of abs": lambda x, n: x * next(map(abs, [n])),
    "map of a function": lambda x, n: x * next(map(lambda a, b: a + b, [0.5], [n])),
    "reduce": lambda x, n: x * functools.reduce(operator.add, [1, n]),
    "deque of numbers": lambda x, n: x * deque([n])[0],
    "enumerate of numbers": lambda x, n: x * next(enumerate([n]))[1],
}


@pytest.mark.parametrize("name", ONE_FOR_ALL)
def test_the_number_is_passed_on(name):
    calls = [lambda w, n=n: w.fn(rand(n), n) for n in (2, 3, 4, 5, 6)]
    check(lambda: World(fn=ONE_FOR_ALL[name]), calls, expect="miss miss hit hit hit", breaks=[])


IDENTITIES = {
    "is_": lambda x, n: x * (2 if operator.is_(3, n) else 5),
    "is_not": lambda x, n: x * (2 if operator.is_not(n, 3) else 5),
    "of a sum": lambda x, n: x * (2 if operator.is_(4, n + 1) else 5),
    "spread out": lambda x, n: x * (2 if operator.is_(*(3, n)) else 5),
    "kept": lambda x, n: x * (2 if functools.partial(operator.is_, 3)(n) else 5),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_small_numbers_are_told_by_their_values(name):
    calls = [lambda w, n=n: w.fn(rand(n), n) for n in (2, 2, 3, 3, 4, 3, 4)]
    check(lambda: World(fn=IDENTITIES[name]), calls, expect="miss hit miss hit miss hit hit", breaks=[])


IS_3 = functools.partial(operator.is_, 3)
IDENTITIES_IN_C_CODE = {
    "map": lambda x, n: x * (2 if next(map(operator.is_, [3], [n])) else 5),
    "map of is_not": lambda x, n: x * (2 if next(map(operator.is_not, [3], [n])) else 5),
    "map of a sum": lambda x, n: x * (2 if next(map(operator.is_, [4], [n + 1])) else 5),
    "map of a key": lambda x, n: x * (2 if next(map(operator.is_, [3], {n: 1})) else 5),
    "map of a partial": lambda x, n: x * (2 if next(map(functools.partial(operator.is_, 3), [n])) else 5),
    "map of a bound method": lambda x, n: x * (2 if next(map(types.MethodType(operator.is_, 3), [n])) else 5),
    "filter": lambda x, n: x * (2 if list(filter(IS_3, [n])) else 5),
    "reduce": lambda x, n: x * (2 if functools.reduce(operator.is_, [3, n]) else 5),
    "starmap": lambda x, n: x * (2 if next(itertools.starmap(operator.is_, [(3, n)])) else 5),
    "takewhile": lambda x, n: x * (2 if list(itertools.takewhile(IS_3, [n])) else 5),
    "accumulate": lambda x, n: x * (2 if list(itertools.accumulate([3, n], operator.is_))[1] else 5),
    "groupby": lambda x, n: x * (2 if next(itertools.groupby([n], IS_3))[0] else 5),
    "reduce by call": lambda x, n: x * (2 if functools.reduce(operator.call, [IS_3, n]) else 5),
    "a key": lambda x, n: x * max([9, n], key=IS_3),
    "a key, spread out": lambda x, n: x * max(*[9, n], **{"key": IS_3}),
    "a key, kept": lambda x, n: x * functools.partial(max, key=IS_3)([9, n]),
    "a key of a search": lambda x, n: x * (bisect.bisect_left([n], True, key=IS_3) + 2),
    "a key of heapq's": lambda x, n: x * heapq.nlargest(1, [9, n], key=IS_3)[0],
    "map, spread out": lambda x, n: x * (2 if next(map(*(operator.is_, [3], [n]))) else 5),
    "map of call": lambda x, n: x * (2 if next(map(operator.call, [operator.is_], [3], [n])) else 5),
    "map of call of a partial": lambda x, n: (
        x * (2 if next(map(operator.call, [functools.partial(operator.is_, n)], [3])) else 5)
    ),
    "map of map": lambda x, n: x * (2 if next(next(map(map, [operator.is_], [[3]], [[n]]))) else 5),
    "map of a method-wrapper": lambda x, n: x * (2 if next(map(operator.is_.__call__, [3], [n])) else 5),
    "map of id": lambda x, n: x * (2 if next(map(id, [n])) == id(3) else 5),
    "map of a set": lambda x, n: x * (2 if next(map(operator.is_, [3], {n})) else 5),
    "map of repeat": lambda x, n: x * (2 if next(map(operator.is_, [3], itertools.repeat(n))) else 5),
    "map of a generator": lambda x, n: x * (2 if next(map(operator.is_, [3], (m for m in [n]))) else 5),
    "map of deque": lambda x, n: x * (2 if next(map(operator.is_, [3], deque([n]))) else 5),
    "map of a bound number": lambda x, n: x * (2 if next(map(types.MethodType(operator.is_, n), [3])) else 5),
    "methodcaller": lambda x, n: x * (2 if operator.methodcaller("is_", 3, n)(operator) else 5),
    "map of methodcaller": lambda x, n: x * (2 if next(map(operator.methodcaller("is_", 3, n), [operator])) else 5),
    "iter": lambda x, n: x * (2 if next(iter(functools.partial(operator.is_, 3, n), None)) else 5),
    "a factory": lambda x, n: x * (2 if defaultdict(functools.partial(operator.is_, 3, n))[1] else 5),
}


@pytest.mark.parametrize("name", IDENTITIES_IN_C_CODE)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_c_code_tells_small_numbers_by_their_values(name, backend):
    calls = [lambda w, n=n: w.fn(rand(n), n) for n in (2, 2, 3, 3, 4, 3, 4)]
    check(
        lambda: World(fn=IDENTITIES_IN_C_CODE[name]),
        calls,
        expect=None,
        unreplayed="unknown-callable",
        backend=look_up(backend)[1],
    )


def compared(x, n):
    length, three = len(range(n)), 3
    return x * (length + (2 if n is three else 5))


LOOKED_AT_BEFORE = {
    "is": compared,
    "is_": lambda x, n: x * (len(range(n)) + operator.is_(3, n)),
    "is_ of an item": lambda x, n: x * (len(range([n][0])) + operator.is_(3, [n][0])),
    "is_ of an item made before": lambda x, n: (made := [n], x * (len(range(n)) + operator.is_(3, made[0])))[1],
}


@pytest.mark.parametrize("name", LOOKED_AT_BEFORE)
def test_numbers_that_are_guarded_already_are_the_programs_own(name):
    calls = [lambda w, n=n: w.fn(rand(n), n) for n in (2, 2, 3, 3, 4, 3, 4)]
    check(lambda: World(fn=LOOKED_AT_BEFORE[name]), calls, expect="miss hit miss hit miss hit hit", breaks=[])


def test_what_c_code_gets_hold_of_is_not_copied():
    """Containers are the program's own before and behind such a call, with all that lies in them."""

    def fn(x, n):
        held = {"a": [n, (n, 7)], n: {n, 8}}
        inner = held["a"]
        found = max([9, n], key=functools.partial(operator.call, IS_3))
        return x * found, held["a"] is inner, held, list(held)

    calls = [lambda w, n=n: w.fn(rand(n), n) for n in (2, 2, 3, 3, 4, 3, 4)]
    check(lambda: World(fn=fn), calls, expect=None, unreplayed=("unknown-callable",))


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("name", ["is_", "add", "key"])
def test_values_behind_a_break_are_given_to_c_code_that_calls_back(name, text):
    """They are guarded once, and are the program's own from there on."""

    def fn(x, held):
        value = held.pop()
        found = {
            "is_": lambda: operator.is_(value, 3),
            "add": lambda: held.add(value),
            "key": lambda: max([value, value], key=functools.partial(operator.is_, value)),
        }[name]()
        held.add(value)
        return x * (1 if text else value), found, value is 3  # noqa: F632

    def world():
        return World(fn=fn, held={"a", "b"} if text else {3, 4})

    calls = [lambda w, seed=seed: w.fn(rand(seed), w.held) for seed in range(5)]
    check(world, calls, expect=None, unreplayed=("unguardable",))
