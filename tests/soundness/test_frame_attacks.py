"""Rule 8, pitfalls 1 to 5, 15 to 18, 20, 21: odd control flow, and others who run in between."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
import threading
import types
import weakref

import pytest
from attacks import attack, function_in, hidden
from harness import World, check, rand


def test_pitfall_1_nested_finally_that_raises():
    def world():
        s = types.SimpleNamespace(k=1, log=[])

        def fn(x):
            for i in range(3):
                try:
                    try:
                        try:
                            s.log.append(i)
                            if i == s.k:
                                raise ValueError(i)
                            continue
                        finally:
                            s.log.append("a")
                            if i == 2:
                                raise KeyError(i)
                    finally:
                        s.log.append("b")
                except (ValueError, KeyError) as e:
                    x = x * (e.args[0] + 1)
                    try:
                        raise RuntimeError from e
                    except RuntimeError as r:
                        s.log.append(type(r.__cause__).__name__)
            return x

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "k", 0), lambda w: setattr(w.s, "k", 9), replayed=False)


def test_pitfall_3_a_class_statement_inside():
    def world():
        s = types.SimpleNamespace(k=2.0, made=[])

        def fn(x):
            class L:
                k = s.k

                def f(self, x):
                    return x * self.k

                def __init_subclass__(cls):
                    s.made.append(cls.__name__)

            class M(L):
                pass

            return M().f(x)

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "k", 3.0), replayed=False, unreplayed="build-class")


def test_pitfall_3_exec_eval_and_locals():
    def world():
        s = types.SimpleNamespace(k=2.0)

        def fn(x):
            ns = {"x": x, "s": s}
            exec("y = x * s.k", ns)
            z = eval("s.k + 1")
            q = locals()["z"]
            return ns["y"] + q

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "k", 3.0), replayed=False)


def test_pitfall_4_recursion_by_outside_depth():
    def world():
        s = types.SimpleNamespace(depth=3, log=[])

        def rec(x, n):
            s.log.append(n)
            return x if n == 0 else rec(x * 2, n - 1) + n

        return World(fn=lambda x: rec(x, s.depth), s=s)

    attack(world, lambda w: setattr(w.s, "depth", 5), lambda w: setattr(w.s, "depth", 0))


def test_pitfall_4_deep_recursion():
    def world():
        def rec(n):
            return 0 if n == 0 else 1 + rec(n - 1)

        return World(fn=lambda x: x * rec(400))

    attack(world)


def test_pitfall_2_coroutines_driven_by_hand():
    def world():
        s = types.SimpleNamespace(k=2.0)

        async def sub(x):
            return x * s.k

        async def co(x):
            y = await sub(x)
            s.k += 1
            return y + await sub(x)

        def fn(x):
            c = co(x)
            try:
                c.send(None)
            except StopIteration as e:
                return e.value

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "k", 2.0), replayed=False, unreplayed="unknown-callable")


def test_pitfall_2_an_event_loop_inside():
    def world():
        s = types.SimpleNamespace(k=2.0)

        async def co(x):
            await asyncio.sleep(0)
            return x * s.k

        return World(fn=lambda x: asyncio.run(co(x)), s=s)

    attack(world, lambda w: setattr(w.s, "k", 3.0), replayed=False, unreplayed="unknown-callable")


def test_pitfall_15_garbage_of_the_program_itself():
    def world():
        log = []

        class A:
            def __init__(s):
                s.me = s

            def __del__(s):
                log.append("gone")

        def fn(x):
            A()
            gc.collect()
            return x * (len(log) + 1)

        return World(fn=fn, log=log)

    attack(world, lambda w: w.log.clear(), replayed=False, unreplayed="finalizer")


def test_pitfall_15_a_signal_handler_writes():
    def world():
        s = types.SimpleNamespace(k=2.0)

        def handler(*a):
            s.k += 1

        signal.signal(signal.SIGUSR1, handler)

        def fn(x):
            y = x * s.k
            os.kill(os.getpid(), signal.SIGUSR1)
            return y + s.k

        return World(fn=fn, s=s)

    old = signal.getsignal(signal.SIGUSR1)
    try:
        attack(world, lambda w: setattr(w.s, "k", 2.0), replayed=False)
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_pitfall_16_a_thread_writes():
    def world():
        s = types.SimpleNamespace(k=2.0)

        def fn(x):
            t = threading.Thread(target=lambda: setattr(s, "k", s.k + 1))
            t.start()
            t.join()
            return x * s.k

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "k", 2.0), replayed=False)


def test_pitfall_18_a_profiler_comes_and_goes():
    def world():
        s = types.SimpleNamespace(k=2.0, n=0)

        def fn(x):
            return x * s.k

        return World(fn=fn, s=s)

    def traced(w):
        seen = []
        old = sys.getprofile()
        sys.setprofile(lambda f, e, a: seen.append(f.f_code.co_name) if e == "call" else None)
        try:
            return w.fn(rand(1))
        finally:
            sys.setprofile(old)

    check(
        world,
        [
            lambda w: w.fn(rand(1)),
            lambda w: w.fn(rand(2)),
            traced,
            lambda w: (setattr(w.s, "k", 3.0), w.fn(rand(3)))[1],
            traced,
        ],
        expect=None,
    )


def test_pitfall_21_frames_are_inspected():
    def world():
        k = 2.0

        def helper():
            return sys._getframe(1).f_locals["k2"], inspect.currentframe().f_back.f_code.co_name

        w = World(k=2.0)

        def fn(x):
            k2 = w.k
            v, name = helper()
            return x * v + len(name)

        w.fn = fn
        return w

    attack(world, lambda w: setattr(w, "k", 3.0), replayed=False, unreplayed="frames")


def test_pitfall_21_signatures_are_inspected():
    def world():
        def g(a, b=2):
            pass

        return World(fn=lambda x: x * len(inspect.signature(g).parameters), g=g)

    attack(
        world,
        lambda w: setattr(w.g, "__signature__", inspect.Signature()),
        lambda w: delattr(w.g, "__signature__"),
        replayed=False,
    )


def test_pitfall_20_a_weak_reference_dies_inside():
    def world():
        class A:
            pass

        a = A()
        w = World(a=a)
        r = weakref.ref(a)
        del a

        def fn(x):
            w.a = None
            return x * (2.0 if r() is None else 3.0)

        w.fn = fn
        return w

    attack(world, replayed=False)


def test_pitfall_20_a_finalizer_runs_when_it_should():
    def world():
        log = []

        class A:
            def __del__(s):
                log.append("del")

        w = World(log=log, a=A())

        def fn(x):
            w.a = None
            log.append("after")
            return x * len(log)

        w.fn = fn
        return w

    attack(world, lambda w: setattr(w, "a", None), replayed=False, unreplayed="let-go")


@pytest.mark.parametrize("where", "attr delattr item ext pop clear slot cell glob gen".split())
def test_pitfall_20_what_the_program_lets_go_of_dies_at_once(where):
    def world():
        log, l, d, ns, refs = [], [], {}, {}, []

        class A:
            def __del__(s):
                log.append("del")

        class S:
            __slots__ = ("v",)

        s, c = S(), None

        def gen():
            try:
                yield 1
            finally:
                log.append("closed")

        w = World(log=log)
        setg = function_in(ns, "def setg():\n    global G\n    G = None\n", "setg")

        def renew():
            nonlocal c
            w.a, s.v, c, ns["G"], w.g, d["a"], l[:] = A(), A(), A(), A(), gen(), A(), [A(), 2.0]
            next(w.g)
            log.clear()
            refs[:] = [weakref.ref(o, lambda r: log.append("ref")) for o in (w.a, l[0], d["a"], s.v, c, ns["G"])]

        def fn(x):
            nonlocal c
            if where == "attr":
                w.a = 1
            elif where == "delattr":
                del w.a
            elif where == "item":
                l[0] = 1
            elif where == "ext":
                l[:] = []
            elif where == "pop":
                d.pop("a")
            elif where == "clear":
                d.clear()
            elif where == "slot":
                s.v = 1
            elif where == "cell":
                c = 1
            elif where == "glob":
                setg()
            elif where == "gen":
                w.g = None
            log.append("then")
            return x * sum(r() is None for r in refs) + len(log)

        w.fn, w.renew = fn, hidden(renew)
        return w

    def call(w):
        w.renew()
        return w.fn(rand(1))

    check(world, [call] * 4, expect=None)


def test_pitfall_20_finalizers_of_objects_made_inside():
    def world():
        log = []

        class T:
            pass

        def fn(x):
            o = T()
            weakref.finalize(o, log.append, 1)
            del o
            y = x * len(log)
            p = T()
            r = weakref.ref(p, lambda r: log.append(2))
            p = None
            return y + len(log) + (r() is None)

        return World(fn=fn, log=log)

    attack(world, lambda w: w.log.clear(), replayed=False, unreplayed="outside-iterator")


def test_pitfall_15_a_cycle_made_inside_dies_later():
    def world():
        log, keep = [], []

        class T:
            pass

        def fn(x):
            o = T()
            o.me = o
            keep.append(weakref.ref(o, lambda r: log.append(1)))
            return x + len(log)

        return World(fn=fn, log=log, collect=hidden(lambda: gc.collect()))

    attack(world, lambda w: w.collect(), lambda w: w.log.clear(), replayed=False, unreplayed="rebuild")


def test_pitfall_20_an_object_with_a_finalizer_is_kept_outside():
    def world():
        log = []

        class T:
            def __init__(s, v):
                s.v = v

            def __del__(s):
                log.append(s.v)

        w = World(log=log)

        def fn(x):
            a = T(1)
            b = T(2)
            w.kept = b
            return x * a.v

        w.fn = fn
        return w

    attack(world, lambda w: w.log.clear(), lambda w: setattr(w, "kept", None), replayed=False, unreplayed="finalizer")


def test_pitfall_20_a_variable_dies_with_its_frame():
    def world():
        log = []

        class T:
            def __init__(s):
                log.append("new")

            def __del__(s):
                log.append("del")

        def helper(x):
            t = T()
            log.append("in")
            return x * 2

        def fn(x):
            y = helper(x)
            log.append("out")
            return y * len(log)

        return World(fn=fn, log=log)

    attack(world, lambda w: w.log.clear(), replayed=False, unreplayed="finalizer")


def test_pitfall_20_a_weak_set_of_objects_made_inside():
    def world():
        live = weakref.WeakSet()

        class T:
            pass

        def fn(x):
            t = T()
            live.add(t)
            y = x * len(live)
            del t
            return y + len(live)

        return World(fn=fn)

    attack(world, replayed=False)
