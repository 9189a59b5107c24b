"""Exceptions as objects: changed, raised again, let go of."""

from __future__ import annotations

import contextlib
import gc

import torch
from harness import PLAIN, World, check, rand


def check_calls(world, *arguments, expect=None, unreplayed=()):
    """Call `w.fn(x, *more)` with these further arguments, one tuple per call."""
    calls = [lambda w, seed=seed, more=more: w.fn(rand(seed), *more) for seed, more in enumerate(arguments)]
    return check(world, calls, expect=expect, unreplayed=unreplayed)


def test_a_note_is_added_to_an_outside_exception():
    def world():
        error = ValueError("x")

        def fn(x):
            error.add_note("here")
            return x + len(error.__notes__)

        return World(fn=fn, error=error)

    check_calls(world, (), (), (), (), unreplayed="unguardable")


def test_an_outside_exception_is_initialised_anew():
    def world():
        error = ValueError("x")

        def fn(x, n):
            error.__init__(n)
            return x * n

        return World(fn=fn, error=[error, lambda: error.args])

    def observed(w):
        return w.error[0].args

    calls = [lambda w, n=n: w.fn(rand(n), n) for n in (1, 2, 1, 2)]
    check(world, calls, expect=None, observe=observed)


def test_an_exception_is_not_kept_by_the_recording():
    """With its frames, and all that they hold."""

    def world():
        w = World(log=[], talk=None)

        def talk():
            try:
                while True:
                    yield 1
            finally:
                w.log.append("closed")

        def fn(x):
            w.talk = talk()
            return x + w.missing

        w.fn = fn
        return w

    def call(w):
        held = w.talk  # until this frame is gone
        with contextlib.suppress(AttributeError):
            w.fn(rand(1))
        return next(w.talk), held is None

    collects = gc.isenabled()
    gc.disable()
    try:
        check(world, [call] * 5, expect=None, observe=lambda w: [*w.log], unreplayed=PLAIN)
    finally:
        if collects:
            gc.enable()


def test_an_operation_raises_while_another_exception_is_handled():
    """It is not among those that were handled before it."""

    def world():
        tensor, numbers = torch.arange(1), iter([1, 2])

        def fn(x):
            try:
                {}[1]
            except KeyError:
                try:
                    tensor.view(3)
                except RuntimeError:
                    return next(numbers), x + 1

        return World(fn=fn)

    def chain(error):
        return [] if error is None else [type(error), *chain(error.__context__)]

    def call(w):
        try:
            return w.fn(rand(1))
        except StopIteration as error:
            return chain(error)

    check(world, [call] * 6, expect=None)
