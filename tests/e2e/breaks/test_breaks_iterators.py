"""Iterators and objects with finalizers that live across a break."""

from __future__ import annotations

import torch
from harness import World, check, rand


def with_numbers(fn, numbers=(2, 3, 2, 4, 3), unreplayed=()):
    """The number behind the break changes from call to call, and comes back."""
    calls = [lambda w, n=n: w.fn(rand(1), n) for n in numbers]
    return check(lambda: World(fn=fn), calls, expect=None, unreplayed=unreplayed)


def test_iterators_of_a_dict_see_what_becomes_of_it():
    def fn(x, n):
        entries, seen = {1: 1, 2: 2, 3: 3}, []
        keys, values, items = iter(entries), iter(entries.values()), enumerate(entries.items())
        next(keys), next(values), next(items)
        print("between")
        entries[2] = n
        seen += [*keys, *values, *items]
        keys = iter(entries)
        next(keys)
        print("between")
        entries[4] = n
        try:
            next(keys)
        except RuntimeError as error:
            seen.append(str(error))
        return x + 1, seen

    with_numbers(fn)


def test_an_iterator_of_an_outside_dict_that_was_changed_before():
    def fn(x, entries):
        y = x + 1
        entries["new"] = y
        for key, value in entries.items():
            print(key)
            entries[key] = value * 2
        return y

    def world():
        return World(fn=fn, entries={"a": torch.ones(4), "b": torch.zeros(4)})

    check(world, [lambda w, n=n: w.fn(rand(n), w.entries) for n in range(4)], expect=None)


def test_an_iterator_of_a_set():
    def fn(x, n):
        y, rest = x + 1, iter({1, 2, 3})
        y = y * next(rest)
        print("between")
        return y, list(rest), list(rest)

    with_numbers(fn)


class Resource:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("closed")


def test_an_object_is_finalized_when_the_program_lets_go_of_it():
    def fn(x, n):
        log = []
        resource = Resource(log)
        y = x + 1
        print("between")
        resource = None
        print(resource, log)
        return y * len(log)

    with_numbers(fn, unreplayed="finalizer")
