"""Rule 6: what a program changes, it changes on every call, and reads back what it has written."""

from __future__ import annotations

import sys
import types

import pytest
from attacks import attack, module
from harness import GENERATED, RECORDED, World


def test_rule_6_a_class_written_and_read_through_a_subclass():
    def world():
        class A:
            n = 1.0

        class B(A):
            pass

        a, b = A(), B()

        def fn(x):
            y = x * b.n
            A.n = A.n + 1
            y = y + b.n + a.n
            type.__setattr__(A, "m", y)
            return y * A.__dict__["n"]

        return World(fn=fn, A=A, B=B)

    attack(
        world,
        lambda w: setattr(w.B, "n", 10.0),
        lambda w: delattr(w.B, "n"),
        replayed=False,
        unreplayed=["unguardable", "unknown-callable"],
    )


def set_n(value):
    return lambda w: setattr(w.B, "n", value)


def without_n(w):
    del w.B.n


def written(x, A, b):
    A.n = 7.0
    return x * b.n


def counted(x, A, b):
    A.n = A.n + 1
    return x * b.n


def read_and_written(x, A, b):
    y = x * b.n
    A.n = 3.0
    return y + b.n


def read_of_the_class(x, A, b):
    A.n = 3.0
    return x * type(b).n


def deleted(x, A, b):
    y = x * b.n
    del A.n
    y = y + getattr(b, "n", 5.0)
    A.n = 2.0
    return y


def behind_it(x, A, b):
    A.n = 3.0
    return x * b.above()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("step", [written, counted, read_and_written, read_of_the_class, deleted, behind_it])
def test_rule_6_an_entry_of_a_class_is_written_and_read_through_another(step, own):
    """Which class a lookup ends in decides whether it finds what was written."""

    def world():
        class A:
            n = 2.0

        class B(A):
            def above(self):
                return super().n

        b = B()
        if own:
            B.n = 2.0
        return World(fn=lambda x: step(x, A, b), A=A, B=B)

    changes = [set_n(10.0), set_n(3.0), without_n, set_n(2.0), set_n(7.0), without_n]
    seldom = step in (counted, read_and_written, behind_it)
    attack(world, *changes, replayed=not seldom, unreplayed=GENERATED)


def test_rule_1_an_entry_of_a_class_is_deleted_and_what_lies_behind_it_changes():
    def world():
        class A:
            n = 5.0

        class B(A):
            n = 2.0

        b = B()

        def fn(x):
            y = x * b.n
            del B.n
            y = y + b.n
            B.n = 2.0
            return y

        return World(fn=fn, A=A, B=B)

    attack(world, lambda w: setattr(w.A, "n", 7.0), lambda w: setattr(w.B, "n", 4.0), set_n(2.0))


def test_rule_6_an_attribute_and_its_dict():
    def world():
        o = types.SimpleNamespace(v=1.0)
        d = o.__dict__

        def fn(x):
            o.v = o.v + 1
            y = x * d["v"]
            d["v"] = d["v"] * 2
            return y + o.v + vars(o)["v"] + getattr(o, "v")

        return World(fn=fn, o=o, d=d)

    attack(
        world,
        lambda w: setattr(w.o, "v", 1.0),
        lambda w: w.d.update(v=2.0),
        lambda w: w.d.pop("v"),
        raises=AttributeError,
    )


def test_rule_6_a_global_by_four_names():
    src = """
def fn(x):
    global g
    g = g + 1
    y = x * globals()["g"]
    globals()["g"] = g * 2
    return y + g + me.g + vars(me)["g"]
"""

    def world():
        m = module("b2mod", "g = 1.0\nimport sys\nme = sys.modules['b2mod']\n" + src)
        return World(fn=m.fn, ns=m.__dict__ if 0 else None, set=lambda v: setattr(m, "g", v), get=0)

    attack(world, lambda w: w.set(1.0), lambda w: w.set(5.0), observe=lambda w: sys.modules["b2mod"].g)


def test_rule_6_a_cell_by_two_ways():
    def world():
        c = 1.0

        def get():
            return c

        def fn(x):
            nonlocal c
            c = c + 1
            y = x * fn.__closure__[0].cell_contents if False else x * get()
            get.__closure__[0].cell_contents = c * 2
            return y + c

        return World(fn=fn, get=get, cell=get.__closure__[0])

    def set_(v):
        return lambda w: setattr(w.cell, "cell_contents", v)

    def world2():
        w = world()
        cell = w.cell
        del w.cell
        w.set = lambda v: setattr(cell, "cell_contents", v)
        return w

    attack(world2, lambda w: w.set(1.0), lambda w: w.set(7.0))


def test_rule_6_attributes_are_swapped():
    def world():
        a, b = types.SimpleNamespace(v=[1.0]), types.SimpleNamespace(v=[2.0])

        def fn(x):
            a.v, b.v = b.v, a.v
            a.v.append(a.v[0] + 1)
            return x * a.v[-1] + b.v[0]

        return World(fn=fn, a=a, b=b)

    attack(
        world,
        lambda w: setattr(w.a, "v", w.b.v),
        lambda w: setattr(w.a, "v", [5.0]),
        replayed=False,
        unreplayed=RECORDED,
    )


def test_rule_6_the_class_of_an_object_is_assigned():
    def world():
        class A:
            def f(s, x):
                return x * 2

        class B:
            def f(s, x):
                return x * 3

        o = A()

        def fn(x):
            y = o.f(x)
            o.__class__ = B if type(o) is A else A
            return y + o.f(x)

        return World(fn=fn, o=o)

    attack(world, lambda w: None, replayed=False)


def test_rule_6_the_dict_of_an_object_is_assigned():
    def world():
        class A:
            pass

        o = A()
        o.v = 1.0

        def fn(x):
            o.__dict__ = {"v": o.v + 1}
            return x * o.v

        return World(fn=fn, o=o)

    attack(world, lambda w: setattr(w.o, "v", 1.0), replayed=False)


def test_rule_6_code_is_exchanged():
    def world():
        def g(x):
            return x * 2

        def h(x):
            return x * 3

        def fn(x):
            y = g(x)
            g.__code__, h.__code__ = h.__code__, g.__code__
            return y + g(x)

        return World(fn=fn, g=g, h=h)

    attack(world, lambda w: None, replayed=False)


def test_rule_6_defaults_are_assigned():
    def world():
        def g(x, a=1.0, *, k=2.0):
            return x * a + k

        def fn(x):
            y = g(x)
            g.__defaults__ = (g.__defaults__[0] + 1,)
            g.__kwdefaults__["k"] += 1
            return y + g(x)

        return World(fn=fn, g=g)

    attack(
        world,
        lambda w: setattr(w.g, "__defaults__", (1.0,)),
        lambda w: w.g.__kwdefaults__.update(k=1.0),
        replayed=False,
        unreplayed="unguardable",
    )


def test_rule_6_attributes_of_a_function():
    def world():
        def g(x):
            g.n = getattr(g, "n", 0) + 1
            return x * g.n

        return World(fn=lambda x: g(x), g=g)

    attack(
        world,
        lambda w: delattr(w.g, "n"),
        lambda w: w.g.__dict__.clear(),
        lambda w: setattr(w.g, "__dict__", {"n": 50}),
        replayed=False,
    )


def test_rule_6_slots_and_dict_of_one_object():
    def world():
        class A:
            __slots__ = ("__dict__", "v")

        a = A()
        a.v = 2.0
        a.q = 1.0

        def fn(x):
            a.v += 1
            a.q += a.v
            y = x * A.v.__get__(a) + a.q
            A.v.__set__(a, 5.0)
            return y + a.v

        return World(fn=fn, a=a, A=A)

    attack(
        world,
        lambda w: w.A.__dict__["v"].__set__(w.a, 8.0),
        lambda w: delattr(w.a, "v"),
        raises=AttributeError,
        replayed=False,
    )


def test_rule_6_defaults_that_remember():
    def world():
        def fn(x, acc=[], *, d={}):
            acc.append(len(acc))
            d[len(d)] = x
            return x * sum(acc) + len(d)

        return World(fn=fn, g=fn)

    attack(
        world,
        lambda w: w.g.__defaults__[0].clear(),
        lambda w: w.g.__kwdefaults__["d"].clear(),
        replayed=False,
        unreplayed=RECORDED,
    )


def test_rule_6_finalizers_write():
    def world():
        log = []

        class A:
            def __init__(s, n):
                s.n = n

            def __del__(s):
                log.append(s.n)

        w = World(log=log, a=A(1))

        def fn(x):
            t = A(2)
            del t
            log.append("mid")
            w.a = A(len(log))
            return x * len(log)

        w.fn = fn
        return w

    attack(world, lambda w: w.log.clear(), replayed=False, unreplayed="finalizer")
