"""Objects that C code compares by what they hold: bound methods, weak references, slices, views, aliases of types."""

from __future__ import annotations

import operator
import weakref

import pytest
from harness import World, check, rand


class Thing:
    def method(self):
        pass


A, B = Thing(), Thing()
METHODS = [A.method]
REFERENCES = {weakref.ref(A): 1, weakref.ref(B): 2}
ALIASES = {list[A]: 1}

PROGRAMS = {
    "method in an outside list": lambda o, p: o.method in METHODS,
    "method in a set": lambda o, p: p.method in {o.method},
    "method as key": lambda o, p: {o.method: 1}.get(p.method),
    "set of methods": lambda o, p: len({o.method, p.method}),
    "dict of methods": lambda o, p: len({o.method: 1, p.method: 2}),
    "keys from methods": lambda o, p: len(dict.fromkeys([o.method, p.method])),
    "method wrappers": lambda o, p: (o.__eq__ == p.__eq__, hash(o.__str__) == hash(p.__str__)),
    "weak references": lambda o, p: weakref.ref(o) == weakref.ref(p),
    "weak set": lambda o, p: o in weakref.WeakSet([p]),
    "slices": lambda o, p: (slice(o) == slice(p), operator.ne(slice(o), slice(p)), [slice(1, o)] == [slice(1, p)]),
    "views": lambda o, p: ({1: o}.items() == {1: p}.items(), {1: o}.items() <= {1: p}.items()),
    "cells": lambda o, p: (lambda: o).__closure__ == (lambda: p).__closure__,
    "tuples as keys": lambda o, p: ({(o, 1): 2}.get((p, 1)), (o, 2) == (p, 2)),
    "aliases": lambda o, p: list[o] == list[p],
    "aliases in containers": lambda o, p: (list[o] in [list[p]], len({list[o], list[p]}), (list[o], 1) == (list[p], 1)),
    "aliases as keys": lambda o, p: (ALIASES.get(list[o]), {list[o]: 1}.get(list[p])),
}


@pytest.mark.parametrize("compare", PROGRAMS.values(), ids=PROGRAMS)
def test_which_objects_they_hold_is_guarded(compare):
    def fn(x, o, p):
        found = compare(o, p)
        return (x * 2 if found else x * 3), found

    pairs = [(A, B), (A, A), (B, B), (B, A), (A, B), (A, A)]
    calls = [lambda w, seed=seed, pair=pair: w.fn(rand(seed), *pair) for seed, pair in enumerate(pairs)]
    seen = check(lambda: World(fn=fn), calls, expect=None)
    assert seen.outcomes[-1] == "hit"


def test_weak_references_as_keys_from_outside():
    def fn(x, o):
        return x + 1, REFERENCES[weakref.ref(o)]

    calls = [lambda w, seed=seed, o=o: w.fn(rand(seed), o) for seed, o in enumerate((A, B, B, A))]
    check(lambda: World(fn=fn), calls, expect=None, unreplayed="object-keys")


def test_bound_methods_of_containers():
    def fn(x, one, other):
        return x + 1, one.append == other.append, len({one.append, other.append})

    def call(w, seed, same):
        one: list = []
        return w.fn(rand(seed), one, one if same else [])

    calls = [lambda w, seed=seed, same=same: call(w, seed, same) for seed, same in enumerate((0, 1, 1, 0, 1))]
    check(lambda: World(fn=fn), calls, expect="miss miss hit hit hit")


def test_items_of_outside_dicts():
    def fn(x, one, other):
        return x + 1, one.items() == other.items()

    pairs = [({1: A}, {1: B}), ({1: A}, {1: A}), ({1: B}, {1: B}), ({1: B}, {1: A})]
    calls = [lambda w, seed=seed, pair=pair: w.fn(rand(seed), *pair) for seed, pair in enumerate(pairs)]
    check(lambda: World(fn=fn), calls, expect="miss miss hit hit")
