"""Numbers that leave a recording are the program's own: no symbols, no addresses."""

from __future__ import annotations

import operator
import types
import warnings

from harness import World, check, rand

FOUR = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]


def test_a_number_from_id_through_a_method():
    """`id` is answered by something else inside libraries; so is a method made of it."""
    code = "def asked(method, value):\n    return {method(): 1, value: 2}\n"
    names: dict = {}
    exec(compile(code, operator.__file__, "exec"), names)  # as if the standard library had it

    def fn(x):
        box = [1]
        method = types.MethodType(id, box)
        return len(names["asked"](method, 5)), x + 1

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_numbers_that_are_too_long_for_texts():
    def fn(x, n):
        return n == 1 << 50000, x + (n > 10**6000), pow(2, 50000) // n % 1009

    calls = [lambda w, n=n: w.fn(rand(n % 7), n) for n in (3, 4, 5, 1 << 50000, 10**7000, 6, 10**7000)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(lambda: World(fn=fn), calls, expect=None)


class Kept:
    __slots__ = ("number", "other")


def test_numbers_that_were_symbols_are_the_programs_own_again():
    """Small ints are one object each, so `is` tells what stands for one from the one."""

    def world():
        kept = Kept()
        table: dict = {}
        items = [1]

        def fn(x):
            table["n"] += 1
            items[0] += 1
            kept.number += 1
            return x * table["n"] + items[0] * kept.number

        def call(w, n):
            table["n"], items[0], kept.number = n, n + 1, n + 2
            result = w.fn(rand(n))
            own = [table["n"] is n + 1, items[0] is n + 2, kept.number is n + 3]
            return result, own

        return World(fn=fn, call=call)

    check(world, [lambda w, n=n: w.call(w, n) for n in range(3, 10)], expect=None)


def test_numbers_that_are_only_read_stay_the_programs_own():
    def world():
        table: dict = {}
        kept = Kept()

        def fn(x):
            return x * table["n"] + kept.number + table["both"][1]

        def call(w, n):
            table["n"] = kept.number = n
            table["both"] = (0, n)
            return w.fn(rand(n)), table["n"] is n, kept.number is n, table["both"][1] is n

        return World(fn=fn, call=call)

    check(world, [lambda w, n=n: w.call(w, n) for n in range(3, 10)], expect=None)
