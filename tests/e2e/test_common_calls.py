"""Calls that real programs make and that broke the graph: context variables read, exceptions inspected, operators that
work in place."""

from __future__ import annotations

import contextvars
import operator
import re
import traceback
import unittest
import weakref
from typing import Any

import pytest
import torch
from harness import World, check, rand

import stator

SCALE = contextvars.ContextVar("SCALE", default=2.0)
UNSET: contextvars.ContextVar[float] = contextvars.ContextVar("UNSET")
CASE = unittest.TestCase()


def test_a_context_variable_is_read():
    def fn(x):
        return x * SCALE.get() + UNSET.get(3.0)

    compiled = stator.compile(fn, backend="eager", fullgraph=True)
    for value in (2.0, 2.0, 5.0, 5.0, 6.0, 2.0):
        token = SCALE.set(value)
        assert torch.equal(compiled(rand(1)), fn(rand(1)))
        SCALE.reset(token)
    other = contextvars.copy_context()
    other.run(UNSET.set, 7.0)
    assert torch.equal(other.run(compiled, rand(2)), rand(2) * 2.0 + 7.0)
    assert torch.equal(compiled(rand(2)), rand(2) * 2.0 + 3.0)
    assert compiled.stator.recordings == 4 and compiled.stator.hits == 4


def test_a_context_variable_that_is_not_set():
    def fn(x):
        try:
            return x * UNSET.get()
        except LookupError:
            return x

    compiled = stator.compile(fn, backend="eager")
    for seed in range(4):
        assert torch.equal(compiled(rand(seed)), rand(seed))
    token = UNSET.set(4.0)
    assert torch.equal(compiled(rand(1)), rand(1) * 4.0)
    UNSET.reset(token)
    assert torch.equal(compiled(rand(1)), rand(1))


class Held:
    pass


def frames_cleared(x, n, alive):
    def inner(value):
        held = Held()
        alive.append(weakref.ref(held))
        raise ValueError(value)

    try:
        inner(n)
    except ValueError as error:
        traceback.clear_frames(error.__traceback__)
        return x + error.args[0]


def one_frame_cleared(x, n):
    try:
        raise KeyError(n)
    except KeyError as error:
        try:
            error.__traceback__.tb_frame.clear()  # the one that runs
        except RuntimeError:
            return x * error.args[0]
    return x


def asserted(x, n):
    with CASE.assertRaises(ValueError) as caught:
        if n:
            raise ValueError(f"no {n}")
        int("a")
    return x + 1, str(caught.exception)


def asserted_in_vain(x, n):
    try:
        with CASE.assertRaises(ValueError):
            pass
    except AssertionError as error:
        return x * 2, str(error)


def expected(x, n):
    with pytest.raises(ZeroDivisionError):
        x = x + 1
        1 / 0  # noqa: B018
    return x


@pytest.mark.parametrize("fn", [one_frame_cleared, asserted, asserted_in_vain, expected], ids=lambda fn: fn.__name__)
def test_exceptions_are_inspected(fn):
    calls = [lambda w, n=n, seed=seed: w.fn(rand(seed), n) for seed, n in enumerate((3, 3, 0, 0, 3, 0))]
    seen = check(lambda: World(fn=fn), calls, expect=None, breaks=[])
    assert seen.outcomes[-2:] == ["hit", "hit"] and seen.world.fn.stator.plain == 0


def test_what_cleared_frames_held_is_gone():
    alive: list[Any] = []
    compiled = stator.compile(frames_cleared, backend="eager")
    for n in (2, 3, 4, 5, 6):
        assert torch.equal(compiled(rand(n), n, alive), rand(n) + n)
    assert all(ref() is None for ref in alive)


IN_PLACE = "iadd isub imul itruediv ifloordiv imod".split()


@pytest.mark.parametrize("name", IN_PLACE)
def test_operators_in_place(name):
    operate = getattr(operator, name)

    def fn(x, n, rate):
        y = x + 3
        z = operate(y, 2)
        return z, y, operate(n, 3), operate(rate, 2.0), z is y

    calls = [lambda w, n=n: w.fn(rand(n), n, n / 8) for n in (5, 5, 7, 9, 11, 13)]
    seen = check(lambda: World(fn=fn), calls, expect=None, breaks=[])
    assert seen.outcomes[-2:] == ["hit", "hit"]


def test_operators_in_place_of_bits():
    def fn(x):
        y = x + 1
        return operator.ior(operator.ilshift(y, 2), 1), operator.iand(y, 6), operator.ixor(y, 3), operator.ipow(y, 2)

    calls = [lambda w, n=n: w.fn(torch.arange(n, n + 4)) for n in range(4)]
    check(lambda: World(fn=fn), calls, expect="miss hit hit hit", breaks=[])


def test_operators_in_place_change_what_is_outside():
    def fn(w, x):
        operator.iadd(w.items, [x.shape[0]])
        operator.iconcat(w.items, (4,))
        operator.ior(w.table, {"b": 2})
        operator.iand(w.members, {1, 2})
        numbers = operator.iadd((1, 2), (3,))
        return x * w.items[-1] + len(numbers), w.table["b"]

    def world():
        return World(fn=fn, items=[1], table={"a": 1}, members={1, 2})

    def call(seed):
        def run(w):
            del w.items[1:]
            w.table.pop("b", None)
            w.members.add(7)
            return w.fn(w, rand(seed))

        return run

    check(world, [call(seed) for seed in range(4)], expect="miss hit hit hit", breaks=[])


class Own:
    def __init__(self, n):
        self.n = n

    def __iadd__(self, other):
        self.n += other
        return self


def test_operators_in_place_of_the_program():
    def fn(w, x):
        operator.iadd(w.own, 2)
        return x * w.own.n

    calls = [lambda w, seed=seed: w.fn(w, rand(seed)) for seed in range(6)]
    seen = check(lambda: World(fn=fn, own=Own(1)), calls, expect=None, breaks=[])
    assert seen.outcomes[-3:] == ["hit"] * 3


PATTERN = re.compile(r"(?P<first>a+)(b)?")
SEARCHES = {
    "a condition": lambda w, x, text: x + 1 if PATTERN.search(text) else x,
    "groups": lambda w, x, text: x * len(re.match("(a+)b?", text).group(1)) + PATTERN.search(text).end("first"),
    "attributes": lambda w, x, text: (
        x + 1,
        (m := PATTERN.search(text)).re is PATTERN,
        m.regs,
        m.lastgroup,
        m[1],
        m.pos,
    ),
    "no match": lambda w, x, text: (x * 2, PATTERN.fullmatch(text + "c")),
    "a result": lambda w, x, text: (x + 1, PATTERN.search(text), PATTERN.match(text, 1), PATTERN.fullmatch("ab")),
    "an effect": lambda w, x, text: (w.kept.append(PATTERN.search(text)), x * 2),
    "pytest.raises": lambda w, x, text: (raise_it(text), x + 1),
}


def raise_it(text):
    with pytest.raises(ValueError, match=r"a+") as found:
        raise ValueError(text)
    return str(found.value)


def seen_in(match):
    if type(match) is not re.Match:
        return match
    return match.re, match.string, match.pos, match.endpos, match.regs, match.lastindex


@pytest.mark.parametrize("fn", SEARCHES.values(), ids=list(SEARCHES))
def test_searches(fn):
    def calling(text, seed):
        def call(w: World) -> Any:
            found = w.fn(w, rand(seed), text)
            return [*map(seen_in, found if isinstance(found, tuple) else [found]), [*map(seen_in, w.kept)]]

        return call

    def world() -> World:
        w = World(kept=[])
        w.fn = fn
        return w

    texts = ("aab", "aab", "abc", "aab", "ab", "abc")
    check(world, [calling(text, seed) for seed, text in enumerate(texts)], expect="miss hit miss hit miss hit")


def test_a_match_that_no_search_gives_again():
    """`finditer` goes on where it was."""

    def fn(x, text):
        return x + 1, [*PATTERN.finditer(text)][-1]

    compiled = stator.compile(fn, backend="eager")
    for seed in range(4):
        result, match = compiled(rand(seed), "ab aab")
        assert torch.equal(result, rand(seed) + 1) and match.span() == (3, 6)
    assert [reason.id for reason in compiled.stator.break_reasons][:1] == ["unknown-callable"]
