"""Grad mode and gradients across a break, where a backend derives them ahead of time."""

from __future__ import annotations

import torch
from harness import World, check, rand

from stator.backends.registry import look_up


def ahead_of_time(fn, numbers=(2, 3, 2, 3)):
    def call(w, n):
        p = rand(n, requires_grad=True)
        results = w.fn(p, n)
        sum(r.sum() for r in results if r.requires_grad).backward()
        return p.grad, results

    calls = [lambda w, n=n: call(w, n) for n in numbers]
    check(lambda: World(fn=fn), calls, expect=None, backend=look_up("aot_eager")[1])


def test_a_break_while_gradients_are_off():
    def fn(x, n):
        with torch.no_grad():
            y = x * x
            print("between")
            w = y * n
        z = x * n
        print("between")
        return z, x * y, w

    ahead_of_time(fn)


def test_a_break_between_modes_that_are_nested():
    def fn(x, n):
        with torch.no_grad():
            y = x * 2
            print("between")
            with torch.enable_grad():
                z = x * y
                print("between")
        return z, x * n, y

    ahead_of_time(fn)


def test_a_tensor_made_before_the_break_begins_to_require_gradients():
    def fn(x, n):
        p = x.detach().clone().requires_grad_()
        y = p * n
        print("between")
        y.sum().backward()
        return x * 2, p.grad

    ahead_of_time(fn)


def test_what_was_detached_is_another_tensor_behind_the_break():
    def fn(x, n):
        y = x.detach() + 1
        d = y.detach()
        print("between")
        d.add_(n)
        return x * 2, y, d

    ahead_of_time(fn)
