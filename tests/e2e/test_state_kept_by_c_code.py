"""State that no attribute shows: of threads, behind weak proxies, in caches, in finalizers."""

from __future__ import annotations

import functools
import threading
import weakref

import torch
from harness import World, check, rand


def check_calls(world, *arguments, expect=None, unreplayed=()):
    """Call `w.fn(x, *more)` with these further arguments, one tuple per call."""
    calls = [lambda w, seed=seed, more=more: w.fn(rand(seed), *more) for seed, more in enumerate(arguments)]
    return check(world, calls, expect=expect, unreplayed=unreplayed)


class Box:
    def __init__(self, n):
        self.n = n


class Noisy:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("gone")


def test_no_object_with_a_finalizer_is_made_to_find_out_whether_it_can_be():
    def world():
        log, held = [], [None]

        def fn(x):
            held[0] = Noisy(log)
            return x + 1

        return World(fn=fn, log=log, held=held)

    check_calls(world, (), (), (), (), unreplayed="finalizer")


def test_attributes_that_c_code_keeps_elsewhere():
    """A thread's own attributes, and those behind a weak proxy."""

    class Own(threading.local):
        n = 1

    def world(make):
        target, seen = make()

        def fn(x):
            target.n = 5
            return x + 1

        return World(fn=fn, target=seen)

    def own():
        target = Own()
        return target, [target]

    def proxy():
        box = Box(1)
        return weakref.proxy(box), [box]

    def call(w):
        w.target[0].n = 0
        w.fn(rand(1))
        return w.target[0].n

    for make in (own, proxy):
        check(lambda make=make: world(make), [call] * 4, expect=None)


def test_a_counter_of_the_thread():
    def world():
        own = threading.local()

        def fn(x):
            own.n = getattr(own, "n", 0) + 1
            return x * own.n

        return World(fn=fn)

    check_calls(world, (), (), (), ())


def test_a_cached_function_makes_a_tensor_once():
    """The first call fills the cache while it is recorded; what fills it is no part of the graph."""

    def world():
        @functools.lru_cache
        def table(n):
            return torch.ones(4) * n

        def fn(x, n):
            kept = table(n)
            kept.add_(1)
            return x * kept

        return World(fn=fn, table=table)

    check_calls(world, (1,), (1,), (1,), (2,), (2,), (1,))
