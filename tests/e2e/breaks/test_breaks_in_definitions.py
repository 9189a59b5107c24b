"""Breaks while a function is being defined: its defaults, the variables it closes over."""

from __future__ import annotations

from harness import World, check, rand

import stator


def test_a_break_among_the_defaults_of_a_function():
    """What was made of them before it is outside when the function is called."""

    def world():
        w = World(tensor=rand(9))

        def broken():
            stator.graph_break()

        def fn(x, n):
            def named(a=broken(), *, b=n):  # noqa: B008
                return b, x + 1

            return named()

        def fn_of_tensors(x, n):
            def both(a=w.tensor, b=n, *, c=w.tensor, d=broken(), e=n):  # noqa: B008
                return a * 2, b, c + x, e

            return both()

        w.functions = fn, fn_of_tensors
        return w

    def of(number):
        def chosen():
            w = world()
            w.fn = w.functions[number]
            return w

        return chosen

    def call(w, n, seed):
        w.tensor = rand(seed)
        return w.fn(rand(seed), n)

    values = ("abc", "abd", "abd", 3, 4, 4, 3, "abc")
    for number in range(2):
        seen = check(of(number), [lambda w, n=n, k=k: call(w, n, k) for k, n in enumerate(values)], expect=None)
        assert seen.outcomes.count("hit") >= 3


def test_what_a_variable_of_an_outer_function_is_behind_a_break():
    def world():
        last = None

        def fn(x, text):
            nonlocal last
            stator.graph_break()
            before, last = last, text
            return x * 2, last is before

        return World(fn=fn)

    texts = ("abc", "abc", "abc", "abd", "abd", "abd", 3, 3, 3)
    check(world, [lambda w, text=text, k=k: w.fn(rand(k), text) for k, text in enumerate(texts)], expect=None)
