"""Breaks, loops around them, exceptions in the middle: Python finds plain numbers wherever the program has put them."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch
from harness import PLAIN, World, check, rand

import stator
from stator import graph_break

NUMBERS = (5, 7, 9, 5, 12, 7)
SYMBOLIC = "miss miss hit hit hit hit"


class Box:
    def __init__(self):
        self.n, self.log, self.d = 0, [], {"k": 0.0}


def kinds(value):
    """The types of everything in it."""
    if isinstance(value, (list, tuple)):
        return [type(value), *map(kinds, value)]
    if isinstance(value, dict):
        return [type(value), *(kinds(part) for pair in value.items() for part in pair)]
    return type(value)


@stator.disable
def see(*values):
    return [kinds(value) for value in values]


def check_breaks(fn, expect, numbers=NUMBERS, **options):
    def call(n):
        def run(w):
            try:
                return w.fn(rand(n), n, w.box)
            finally:
                text = str(kinds([w.box.n, w.box.log, w.box.d]))
                assert "_native" not in text, text

        return run

    return check(lambda: World(fn=fn, box=Box()), [call(n) for n in numbers], expect=expect, **options)


def test_numbers_seen_by_python():
    def fn(x, n, box):
        y = x * n
        seen = see(n, [n + 1], {"k": n * 2}, x.shape, n / 2)
        return y + n, seen

    check_breaks(fn, SYMBOLIC, graphs=4)


def test_state_seen_by_python():
    def fn(x, n, box):
        box.n = n + 1
        box.log[:] = [n, (n * 2,)]
        box.d["k"] = n * 0.5
        return x * box.n + n, see(box.n, box.log, box.d, vars(box))

    check_breaks(fn, "miss miss miss hit hit hit")  # the first call finds another length of the list


def test_types_asked_for_behind_a_break():
    def fn(x, n, box):
        box.n = n + 1
        y = x * n
        graph_break()
        return y + box.n, type(box.n) is int, type(n) is int

    check_breaks(fn, None)


def test_loops_of_breaks():
    def fn(x, n, box):
        for i in range(3):
            x = x * n + i
            graph_break()
            n = n + 1
            box.n += n
        return x, n

    seen = check_breaks(fn, None)
    assert seen.world.fn.stator.recordings <= 3


def test_sizes_in_loops_of_breaks():
    def fn(x, n, box):
        y = torch.ones(n, 2)
        sizes = []
        for _ in range(2):
            y = torch.cat([y, y[:1]])
            print(y.shape)
            sizes.append(y.shape[0])
        return y * 2, sizes

    seen = check_breaks(fn, None)
    assert seen.world.fn.stator.recordings <= 3


def test_sizes_behind_a_break():
    def fn(x, n, box):
        y = x.new_zeros(n)
        graph_break()
        return y + y.shape[0], len(y), y.shape

    check_breaks(fn, SYMBOLIC, graphs=4)


def test_a_break_in_a_callee():
    def fn(x, n, box):
        a = n + 1

        def inner(k):
            graph_break()
            return x * k + a

        return inner(n * 2), a, type(a)

    seen = check_breaks(fn, None)
    assert seen.world.fn.stator.recordings <= 3


def test_a_break_in_a_block():
    def fn(x, n, box):
        with torch.no_grad():
            y = x * n
            graph_break()
            z = y + n
        return z

    check_breaks(fn, SYMBOLIC, graphs=4)


def test_writes_around_a_break():
    def fn(x, n, box):
        x.add_(n)
        box.n += n
        graph_break()
        x.mul_(box.n)
        return x

    seen = check_breaks(fn, None)
    assert seen.world.fn.stator.recordings <= 3


def test_branches_by_data():
    def fn(x, n, box):
        if x.sum() > 0:
            n = n * 2
        return x * n

    seen = check_breaks(fn, None)
    assert seen.world.fn.stator.recordings <= 4


def test_objects_that_are_pickled():
    def fn(x, n, box):
        box.n = n + 1
        pickled = pickle.dumps(box)
        return x * n, pickle.loads(pickled).n, copy.deepcopy(vars(box)), json.dumps(box.n)

    check_breaks(fn, None)


def test_an_exception_in_the_middle():
    def fn(x, n, box):
        box.n = n * 2
        box.log.append((n + 1, [n]))
        x.add_(n)
        raise ValueError("no", n, box.n)

    check_breaks(fn, " ".join(["plain"] * 6), graphs=0, raises=ValueError, unreplayed=PLAIN)


def test_an_exception_behind_a_break():
    def fn(x, n, box):
        box.n = n * 2
        graph_break()
        box.d[box.n] = n
        raise KeyError(box.n)

    check_breaks(fn, None, raises=KeyError, unreplayed=PLAIN)


def test_an_exception_that_the_program_catches():
    def fn(x, n, box):
        box.n = n * 2
        try:
            y = x * n
            [1, 2, 3][n]
        except IndexError as error:
            return y + 1, str(error), box.n
        return x

    check_breaks(fn, "miss miss miss hit miss hit")


def test_an_exception_only_for_some_numbers():
    def fn(x, n, box):
        box.log.append(n)
        assert n > 3, f"n is {n}"
        return x * n

    check_breaks(fn, "miss miss hit plain plain hit", (5, 7, 9, 2, 3, 4), raises=AssertionError)


def test_tracebacks_hold_plain_numbers():
    def fn(x, n):
        m = n * 2
        y = x * m
        raise ValueError(y)

    compiled = stator.compile(fn, backend="eager")
    for n in (5, 7, 9):
        with pytest.raises(ValueError, match="tensor") as caught:
            compiled(rand(1), n)
        frame = caught.tb
        while frame.tb_next is not None:
            frame = frame.tb_next
        found = frame.tb_frame.f_locals
        assert type(found["m"]) is int and type(found["n"]) is int and found["m"] == 2 * n


def test_numbers_of_tensors_together_with_symbols():
    def fn(x, n):
        s = x.sum().item()
        return x * n + s, n + 1, s, x[: n - 4].shape

    with stator.options.patch(capture_scalar_outputs=True):
        check(
            lambda: World(fn=fn),
            [lambda w, n=n: w.fn(rand(n, n), n) for n in NUMBERS],
            expect=SYMBOLIC,
        )


def test_numbers_of_tensors_as_operands():
    def fn(x, n):
        k = x.argmax().item()
        return x[k] * n, torch.full((n,), x.max().item())

    with stator.options.patch(capture_scalar_outputs=True):
        seen = check(lambda: World(fn=fn), [lambda w, n=n: w.fn(rand(n, n), n) for n in NUMBERS], expect=None)
    assert seen.world.fn.stator.recordings <= 3


def test_printing_later():
    def fn(x, n):
        print("n is", n, "and", x.shape[0])
        return x * n

    with stator.options.patch(reorder_print=True):
        check(lambda: World(fn=fn), [lambda w, n=n: w.fn(rand(n, n), n) for n in NUMBERS], expect=None)


def test_generators_that_are_given_back():
    def fn(x, n, box):
        return x * n, iter([n, n + 1]), (x * n for _ in range(2))

    def call(n):
        def run(w):
            y, numbers, tensors = w.fn(rand(n), n, w.box)
            return y, [(v, type(v)) for v in numbers], list(tensors)

        return run

    check(lambda: World(fn=fn, box=Box()), [call(n) for n in NUMBERS], expect=None, unreplayed="rebuild")
