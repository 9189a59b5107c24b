"""Pitfalls 5, 12, 16 to 18, rule 8: code that is not watched, other threads, other compilers, tracers, failures."""

from __future__ import annotations

import math
import sys
import threading
import types

import numpy as np
import torch
from attacks import attack, hidden
from harness import World, check, rand


def test_pitfall_5_with_statements_in_each_other():
    def world():
        s = types.SimpleNamespace(k=2.0, log=[])

        class M:
            def __enter__(self):
                s.log.append("in")
                return s.k

            def __exit__(self, *a):
                s.log.append(a[0])
                return True

        m = M()

        def fn(x):
            with m as a, m as b:
                x = x * a
                with m:
                    x = x + b
                    if s.k > 2.5:
                        raise ValueError
                for i in range(2):
                    with m:
                        if i:
                            break
                        continue
                return x
            return x - 1

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "k", 3.0), lambda w: w.s.log.clear(), replayed=False)


def test_pitfall_12_code_of_no_file():
    # code that cannot be instrumented, or has no source
    def world():
        s = {"k": 2.0}
        f = eval("lambda x, s=s: x * s['k']", {"s": s})
        g = types.FunctionType(f.__code__.replace(co_filename="/nowhere/lib.py"), {"s": s}, "g", (s,))
        return World(fn=lambda x: g(x) + f(x), s=s)

    attack(world, lambda w: w.s.update(k=3.0))


def test_pitfall_12_code_called_back_by_numpy():
    def world():
        s = types.SimpleNamespace(k=2.0)

        class Array:
            def __array__(self, dtype=None, copy=None):
                return np.full(4, s.k, dtype=np.float32)

            def __float__(self):
                return s.k

        o = Array()
        return World(fn=lambda x: x * torch.as_tensor(np.asarray(o)) + float(o) + math.floor(s.k), s=s)

    attack(world, lambda w: setattr(w.s, "k", 3.0), replayed=False)


def test_pitfall_16_four_threads_at_once():
    def world():
        s = types.SimpleNamespace(k=2.0)
        return World(fn=lambda x: x * s.k, s=s)

    def both(k):
        def call(w):
            w.s.k = k
            out = [None] * 4
            gate = threading.Barrier(4)

            def run(i):
                gate.wait()
                out[i] = [w.fn(rand(i + n)) for n in range(5)]

            ts = [threading.Thread(target=run, args=(i,)) for i in range(4)]
            [t.start() for t in ts]
            [t.join() for t in ts]
            return out

        return call

    check(world, [both(2.0), both(3.0), both(3.0), both(4.0)], expect=None)


def test_pitfall_17_a_callee_of_torch_compile():
    def world():
        s = types.SimpleNamespace(k=2.0)
        inner = torch.compile(lambda x: x * s.k, backend="eager")
        return World(fn=lambda x: inner(x) + 1, set=hidden(lambda v: setattr(s, "k", v)))

    attack(world, lambda w: w.set(3.0), replayed=False)


def test_pitfall_18_a_tracer_comes_and_goes():
    def world():
        s = types.SimpleNamespace(k=2.0)

        def helper(x):
            return x * s.k

        return World(fn=lambda x: helper(x) + 1, s=s)

    seen = []

    def traced(w):
        def tracer(frame, event, arg):
            if event == "line" and frame.f_code.co_name == "helper":
                seen.append(1)
            return tracer

        old = sys.gettrace()
        sys.settrace(tracer)
        try:
            return w.fn(rand(1))
        finally:
            sys.settrace(old)

    check(
        world,
        [
            lambda w: w.fn(rand(1)),
            lambda w: w.fn(rand(2)),
            traced,
            lambda w: (setattr(w.s, "k", 3.0), w.fn(rand(3)))[1],
            traced,
            traced,
        ],
        expect=None,
    )
    assert len(seen) >= 3


def test_rule_8_a_kernel_that_fails():
    def world():
        s = types.SimpleNamespace(k=2.0, log=[])

        def fn(x):
            s.log.append(s.k)
            return x * s.k

        return World(fn=fn, s=s)

    def bad(gm, inputs):
        def run(*a):
            if a[0].sum() > 1e9:
                raise RuntimeError("kernel")
            return gm.forward(*a)

        return run

    check(
        world,
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(2) + 1e10), lambda w: w.fn(rand(2))],
        expect=None,
        backend=bad,
        tracebacks=False,
    )
