"""Results that are hard to make again: partials, exceptions, frozen sets, deep nests, functions."""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass

import pytest
import torch
from changing_worlds import check_calls
from harness import World, check, rand

import stator


def test_a_partial_with_names_that_are_no_identifiers():
    """Keywords may be any text."""

    def fn(x):
        return functools.partial(dict, x, **{"a b": 1, "class": x})

    check(lambda: World(fn=fn), [lambda w: w.fn(rand(1)).keywords] * 3, expect=None)


def test_a_partial_with_attributes():
    """It has a dict."""

    def fn(x):
        call = functools.partial(max, x)
        call.note = 3
        return call

    check(lambda: World(fn=fn), [lambda w: vars(w.fn(rand(1)))] * 3, expect=None, unreplayed="rebuild")


def test_an_exception_with_a_note():
    """Notes and attributes of an exception are parts of it."""

    def fn(x):
        error = ValueError("no", x)
        error.add_note("a note")
        return error

    def call(w):
        error = w.fn(rand(1))
        return vars(error), error.args

    check(lambda: World(fn=fn), [call] * 3, expect=None)


def test_what_an_exception_keeps_in_c():
    """`__init__` sets the value of a StopIteration, and the code of a SystemExit."""

    def fn(x):
        return StopIteration(x), SystemExit(3), AttributeError("no", name="a", obj=x)

    def call(w):
        stop, leaving, missing = w.fn(rand(1))
        return stop.value, leaving.code, missing.name, missing.obj

    check(lambda: World(fn=fn), [call] * 3, expect=None, unreplayed="rebuild")


def test_an_exception_with_a_constructor_of_its_own():
    """`OSError(2, …)` is made once per call, as are the random numbers beside it."""

    def fn(x):
        return OSError(2, "gone"), x + torch.rand(4)

    def call(w):
        error, y = w.fn(rand(1))
        return type(error), error.errno, error.strerror, y

    check(lambda: World(fn=fn), [call] * 3, expect=None, unreplayed="rebuild")


def test_a_frozen_set_of_objects_with_a_hash_of_their_own():
    """Their hash needs their fields; the random numbers are drawn once."""

    @dataclass(frozen=True)
    class Point:
        x: int

    def fn(x):
        return frozenset({Point(1)}), x + torch.rand(4)

    def call(w):
        points, y = w.fn(rand(1))
        return [point.x for point in points], y

    check(lambda: World(fn=fn), [call] * 3, expect=None, unreplayed="rebuild")


def test_a_frozen_set_of_objects_after_a_write():
    """And nothing is raised."""

    @dataclass(frozen=True)
    class Point:
        x: int

    def fn(x):
        x.add_(1)
        return frozenset({Point(1)}), x

    def call(w):
        points, y = w.fn(rand(1))
        return [point.x for point in points], y

    check(lambda: World(fn=fn), [call] * 3, expect=None, unreplayed="rebuild")


def test_a_number_with_many_digits():
    """Too long to be written in decimal."""

    def fn(x):
        return x + 1, 1 << 20000

    check(lambda: World(fn=fn), [lambda w: w.fn(rand(1))[1] >> 19990] * 3, expect=None)


def test_a_deeply_nested_result():
    """Deeper than Python recurses."""

    def fn(x):
        chain = None
        for _ in range(3000):
            chain = [chain]
        return x + 1, chain

    check(lambda: World(fn=fn), [lambda w: w.fn(rand(1))[0]] * 3, expect=None, unreplayed="rebuild")


def test_a_function_made_inside_sees_the_globals_of_its_module():
    """Not a copy of them."""

    def world():
        names = {"SCALE": 2, "__builtins__": {}}
        exec("def fn(x):\n    y = x * 2\n    return lambda: y * SCALE\n", names)
        return World(fn=names["fn"], names=names)

    def call(seed):
        def run(w):
            made = w.fn(rand(seed))
            w.names["SCALE"] = seed + 2
            return made()

        return run

    check(world, [call(1), call(2), call(3)], expect=None)


def test_the_identity_of_an_object_is_an_int():
    """As a result of the watched call too."""

    def fn(x):
        return x + 1, id(x)

    check(lambda: World(fn=fn), [lambda w: type(w.fn(rand(1))[1])] * 3, expect=None)


def test_the_sign_of_a_zero():
    """NumPy's zeros have one too."""
    import math

    import numpy as np

    def fn(x, number):
        return x * math.copysign(1.0, number)

    plus, minus = np.float64(0.0), np.float64(-0.0)
    check_calls(fn, (plus,), (plus,), (minus,), (plus,))


def test_an_object_made_inside_with_a_lookup_of_its_own():
    """Nobody asks it but the program."""

    def world():
        log = []

        class Logged:
            def __getattribute__(self, name):
                log.append(name)
                return object.__getattribute__(self, name)

        def fn(x):
            box = Logged()
            box.scale = x * 2
            return box

        return World(fn=fn, log=log)

    def run(w):
        w.fn(rand(1))
        return list(w.log)

    check(world, [run, run, run], expect=None)


def test_aliases_of_types_are_made_of_the_objects_of_the_call():
    class Thing:
        pass

    def fn(x, thing):
        kept = tuple[thing, int]
        stator.graph_break()
        parts = (list[thing], 1), slice(list[thing], None), types.GenericAlias(thing, (int,))
        return x + 1, list[thing], kept, dict[str, list[thing]], list[int], parts

    def run(w):
        thing = Thing()
        _, one, two, nested, plain, (inside, bounds, generic) = w.fn(rand(1), thing)
        assert plain == list[int] and plain.__origin__ is list
        aliases = one, two, nested.__args__[1], inside[0], bounds.start
        return [alias.__args__[0] is thing for alias in aliases], generic.__origin__ is thing

    seen = check(lambda: World(fn=fn), [run] * 4, expect=None, unreplayed="user-graph-break")
    assert seen.world.fn.stator.plain == 0


def test_an_alias_from_outside_stays_the_same_object():
    def world():
        w = World(alias=list[object()])
        w.fn = lambda x: (x + 1, w.alias)
        return w

    def run(w):
        return w.fn(rand(1))[1] is w.alias

    def other(w):
        w.alias = list[object()]
        return run(w)

    check(world, [run, run, other, run], expect="miss hit miss hit")


def test_an_iterator_over_a_text_of_any_letters():
    def world():
        w = World(text="a€bc")

        def fn(x):
            letters = iter(w.text)
            return x * 2, next(letters), letters

        w.fn = lambda x: fn(x)
        return w

    def call(text, seed):
        def change(w):
            w.text = text
            doubled, first, rest = w.fn(rand(seed))
            return doubled, first, type(rest), list(rest)

        return change

    calls = [call(*pair) for pair in (("a€bc", 1), ("a€bc", 2), ("x€", 3), ("abc", 4), ("a€bc", 5))]
    check(world, calls, expect="miss hit miss miss hit", graphs=3)


ITERATORS = {
    "list": lambda: iter([1, 2]),
    "reversed list": lambda: reversed([1, 2]),
    "tuple": lambda: iter((1, 2)),
    "text": lambda: iter("ab"),
    "text of other letters": lambda: iter("a€"),
    "bytes": lambda: iter(b"ab"),
    "range": lambda: iter(range(2)),
    "dict": lambda: iter({1: 2}),
    "values": lambda: iter({1: 2}.values()),
    "items": lambda: iter({1: 2}.items()),
    "reversed dict": lambda: reversed({1: 2}),
    "set": lambda: iter({1, 2}),
    "frozenset": lambda: iter(frozenset({1, 2})),
    "calls": lambda: iter([0, 1, 2].pop, 0),
    "enumerate": lambda: enumerate([1]),
    "zip": lambda: zip([1], [2], strict=False),
    "map": lambda: map(abs, [1]),
    "filter": lambda: filter(None, [1]),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_an_iterator_at_its_end(name):
    """It has let go of what it went over; its type tells what that was."""
    make = ITERATORS[name]

    def fn(x):
        iterator = make()
        passed = [*iterator]
        return x * 2, iterator, len(passed)

    def call(seed):
        def look(w):
            doubled, iterator, count = w.fn(rand(seed))
            return doubled, type(iterator), repr(_as_made(iterator)), count, [*iterator]

        return look

    check(lambda: World(fn=fn), [call(1), call(2), call(3)], expect="miss hit hit", graphs=1)


def _as_made(value):
    """What tells how to make it again, all the way down."""
    if hasattr(value, "__next__") and not isinstance(value, type):
        return type(value), _as_made(value.__reduce__())
    return tuple(map(_as_made, value)) if isinstance(value, tuple) else value
