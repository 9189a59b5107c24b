"""Breaks inside loops and comprehensions."""

from __future__ import annotations

import time

import pytest
import torch
from harness import World, check, rand
from test_breaks_in_blocks import calls

import stator
from stator import pipeline

# ---- loops --------------------------------------------------------------------------------------


def test_a_hundred_iterations_are_not_a_hundred_graphs():
    def fn(x):
        for i in range(100):
            x = x + 1
            print(i)
        return x * 2

    seen = check(lambda: World(fn=fn), calls(3), expect=None)
    assert len(seen.graphs) <= 3
    assert seen.outcomes == ["miss", "hit", "hit"]


def test_the_loop_variable_goes_into_the_graph():
    def fn(x):
        for i in range(5):
            x = x + i
            print(i)
        return x

    check(lambda: World(fn=fn), calls(), expect=None)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7])
def test_a_loop_of_another_length_is_served_by_the_same_graphs(length):
    def fn(x, count):
        for _ in range(count):
            x = x * 2
            print("step")
        return x + 1

    lengths = [4, length, 4, length, 5]
    steps = [lambda w, n=n: w.fn(rand(n), n) for n in lengths]
    seen = check(lambda: World(fn=fn), steps, expect=None)
    assert len(seen.graphs) <= 5


ITERABLES = {
    "list": lambda: [3, 1, 2],
    "tuple": lambda: (3, 1, 2),
    "string": lambda: "abc",
    "dict": lambda: {"a": 1, "b": 2},
    "items": lambda: {"a": 1, "b": 2}.items(),
    "set": lambda: {1},
    "reversed": lambda: reversed([1, 2, 3]),
    "enumerate": lambda: enumerate(["a", "b"], 3),
    "zip": lambda: zip([1, 2], "ab", strict=True),
    "map": lambda: map(abs, [-1, -2]),
    "filter": lambda: filter(None, [0, 1, 2]),
    "range with steps": lambda: range(10, 0, -3),
}


@pytest.mark.parametrize("name", ITERABLES)
def test_an_iterator_lives_across_a_break(name):
    def fn(x):
        seen = []
        for item in ITERABLES[name]():
            x = x + 1
            print(item)
            seen.append(item)
        return x * 2, seen

    check(lambda: World(fn=fn), calls(), expect=None)


def test_a_list_that_grows_while_it_is_iterated():
    def fn(x):
        numbers = [1, 2]
        for number in numbers:
            x = x + number
            print(number)
            if len(numbers) < 5:
                numbers.append(number + 10)
        return x, numbers

    check(lambda: World(fn=fn), calls(), expect=None)


def test_nested_loops():
    def fn(x):
        rows = []
        for i in range(3):
            row = []
            for j in range(2):
                x = x + 1
                print(i, j)
                row.append(x * 2)
            rows.append(row)
            print("row", i)
        return rows, x

    check(lambda: World(fn=fn), calls(), expect=None)


def test_break_continue_and_else():
    def fn(x):
        for i in range(6):
            if i == 1:
                continue
            x = x * 2
            print(i)
            if i == 3:
                break
        else:
            x = x + 100
        for i in range(2):
            x = x - 1
            print(i)
        else:
            x = x + 1000
        return x

    check(lambda: World(fn=fn), calls(), expect=None)


def test_a_while_loop_over_a_number():
    def fn(x):
        left = 4
        while left > 0:
            x = x + left
            left -= 1
            print(left)
        else:
            x = x * 3
        return x

    check(lambda: World(fn=fn), calls(), expect=None)


def test_a_tensor_is_appended_in_every_round():
    def fn(x):
        parts = []
        for i in range(4):
            x = x * 2
            parts.append(x)
            print(i)
        return torch.stack(parts), parts

    check(lambda: World(fn=fn), calls(), expect=None)


# ---- comprehensions -----------------------------------------------------------------------------


def test_a_comprehension_calls_what_breaks():
    def fn(x):
        parts = [noisy(x + i) for i in range(3)]
        table = {i: noisy(x * i) for i in range(2)}
        return parts, table, sum(noisy(x - i) for i in range(2))

    def noisy(t):
        print("part")
        return t * 2

    check(lambda: World(fn=fn), calls(), expect=None, unreplayed="call-print")


def test_a_comprehension_that_itself_breaks():
    def fn(x):
        y = x + 1
        sizes = [print(i) for i in range(3)]
        return y * len(sizes)

    check(lambda: World(fn=fn), calls(), expect=None)


# ---- loops of breaks that compute nothing --------------------------------------------------------


@pytest.mark.parametrize("rounds", [300, 12_000])
def test_a_loop_of_breaks_with_nothing_to_compute_runs_plain(rounds, monkeypatch):
    """From some round on: the way from break to break costs more than it is worth."""
    landings = []
    land = pipeline._land
    monkeypatch.setattr(pipeline, "_land", lambda *args: landings.append(1) or land(*args))
    monkeypatch.setattr(pipeline, "_MOST_IDLE", 100)
    log = []

    def fn(x, scale):
        y = x * scale
        total = 0.0
        for n in range(rounds):
            print(end="")
            total += n % 3
        log.append(total)
        return y + total

    fast = stator.compile(fn, backend="eager")
    for seed in range(5):
        del landings[:]
        assert torch.equal(fast(rand(seed), 2.0), fn(rand(seed), 2.0)), seed
        assert len(landings) < 130
    assert len(log) == 10 and len(set(log)) == 1
    assert fast.stator._program.stats.passed.value > 0 and len(fast.stator.graphs) >= 1


def test_a_loop_of_breaks_that_computes_goes_on(monkeypatch):
    monkeypatch.setattr(pipeline, "_MOST_IDLE", 10)

    def fn(x):
        for _ in range(50):
            x = x + 1
            print(end="")
            time.perf_counter()
        return x

    fast = stator.compile(fn, backend="eager")
    for seed in range(4):
        assert torch.equal(fast(rand(seed)), fn(rand(seed)))
    assert fast.stator._program.stats.passed.value == 0 and fast.stator.hits >= 2
