"""Functions, cells and frames that a program looks at: parts, callers, profilers, the depth of the stack."""

from __future__ import annotations

import collections
import operator
import sys
import types
import typing
import warnings

import torch
from harness import World, check, rand

import stator

FOUR = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]


def test_a_part_of_a_function_that_cannot_be_set():
    def function():
        return 1

    def fn(x):
        told = []
        for name in ("__closure__", "__globals__", "__builtins__"):
            try:
                setattr(function, name, 2)
            except AttributeError as error:
                told.append(str(error))
        return told, x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(lambda: World(fn=fn), FOUR, expect=None)


def test_an_empty_cell_is_read():
    def world():
        cells = [types.CellType(), types.CellType(), types.CellType(5)]

        def fn(x, cell):
            try:
                return x + cell.cell_contents
            except ValueError:
                return x - 1

        return World(fn=fn, cells=cells)

    calls = [lambda w, n=n: w.fn(rand(n), w.cells[n]) for n in (0, 1, 2, 0, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(world, calls, expect="miss hit miss hit hit")


def test_the_program_uses_up_the_stack():
    """Nothing of ours can run there; that is nobody's fault."""
    a = collections.UserList()
    b = collections.UserList([a])
    a.append(b)

    def down(depth):
        return down(depth - 1) if depth else operator.eq(a, b)

    def fn(x, depth):
        try:
            down(depth)
        except RecursionError:
            return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for depth in range(12):  # in one of them the stack ends in our code
            compiled = stator.compile(fn, backend="eager")
            for seed in range(3):
                assert torch.equal(compiled(rand(seed), depth), rand(seed) + 1)
            stator.reset()


def test_a_profiler_sees_the_frames_of_the_program_alone():
    def leaf():
        return 1

    def world():
        def fn(x):
            y = x + 1
            seen = []
            sys.setprofile(lambda frame, event, arg: seen.append((event, frame.f_code.co_name)))
            leaf()
            sys.setprofile(None)
            return seen, y * 2

        return World(fn=fn)

    check(world, FOUR, expect=None, unreplayed="call-debugger")


def test_the_module_of_a_caller():
    """From 3.12 on `sys` tells the name of a caller's module, and named tuples ask for it."""

    def fn(x):
        made = typing.NamedTuple("Made", [("a", int)])  # noqa: UP014  # this is what asks
        return x + 1, made.__module__, getattr(sys, "_getframemodulename", lambda depth: __name__)(0)

    check(lambda: World(fn=fn), FOUR, expect=None, unreplayed="frames")
