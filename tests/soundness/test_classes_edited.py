"""Rules 1 to 3: classes, decorators and late globals, edited between calls."""

from __future__ import annotations

import builtins
import functools
import types

from attacks import attack, hidden, module
from harness import World


def test_pitfall_14_methods_that_dispatch():
    def world():
        class A:
            k = 2.0

            @functools.singledispatchmethod
            def f(self, a, x):
                return x * self.k

            @f.register
            def _(self, a: int, x):
                return x * 10

            def g(self, n, x):
                return x * n

            twice = functools.partialmethod(g, 2.0)

        a = A()
        w = World(a=a, A=A, arg="s")
        w.fn = lambda x: a.f(w.arg, x) + a.twice(x)
        return w

    attack(
        world,
        lambda w: setattr(w, "arg", 1),
        lambda w: setattr(w.A, "k", 7.0),
        lambda w: setattr(w.A, "twice", functools.partialmethod(w.A.g, 5.0)),
        lambda w: setattr(w.A, "g", lambda s, n, x: x),
        lambda w: setattr(w, "arg", 2.5),
        replayed=False,
        unreplayed=["object-keys", "rebuild"],
    )


def test_rule_1_decorated_functions():
    def world():
        s = types.SimpleNamespace(calls=0, on=True)

        def deco(f):
            @functools.wraps(f)
            def inner(*a, **k):
                s.calls += 1
                return f(*a, **k) * (2 if s.on else 1)

            return inner

        @deco
        def g(x):
            return x + 1

        return World(fn=lambda x: g(x) + g.__wrapped__(x), s=s, g=g)

    attack(world, lambda w: setattr(w.s, "on", False), lambda w: setattr(w.g, "__wrapped__", lambda x: x * 5))


def test_rule_1_a_hierarchy_is_edited():
    def world():
        class A:
            def f(s, x):
                return x * 2

        class B(A):
            pass

        class C(B):
            pass

        c = C()
        return World(fn=lambda x: c.f(x) + (1.0 if hasattr(c, "g") else 0.0), A=A, B=B, C=C, c=c)

    attack(
        world,
        lambda w: setattr(w.B, "f", lambda s, x: x * 3),
        lambda w: delattr(w.B, "f"),
        lambda w: setattr(w.A, "g", 1),
        lambda w: setattr(w.C, "__getattr__", lambda s, n: 1),
        lambda w: delattr(w.A, "f"),
        lambda w: setattr(w.c, "f", lambda x: x),
        raises=TypeError,
    )


def test_rule_1_constructors_are_replaced():
    def world():
        class A:
            def __init__(s, v):
                s.v = v

            def f(s, x):
                return x * s.v

        class Other:
            def f(s, x):
                return -x

        return World(fn=lambda x: A(2.0).f(x), A=A, Other=Other)

    def new(w):
        w.A.__new__ = staticmethod(lambda cls, *a: object.__new__(w.Other))

    attack(
        world,
        lambda w: setattr(w.A, "__init__", lambda s, v: setattr(s, "v", v * 5)),
        new,
        lambda w: setattr(w.A, "__init__", lambda s, v: None),
    )


LATE = """
def fn(x):
    try:
        return x * late
    except NameError:
        return helper(x)

def helper(x):
    return x + len(items)

items = [1]
"""


def test_pitfall_10_globals_that_come_late():

    def world():
        m = module("b8late", LATE)
        w = World(fn=m.fn)
        w.set = hidden(lambda n, v: setattr(m, n, v))
        w.rm = hidden(lambda n: delattr(m, n))
        return w

    try:
        attack(
            world,
            lambda w: w.set("late", 3.0),
            lambda w: w.rm("late"),
            lambda w: setattr(builtins, "late", 7.0),
            lambda w: delattr(builtins, "late"),
            lambda w: w.set("helper", lambda x: -x),
        )
    finally:
        vars(builtins).pop("late", None)


def test_rule_3_one_of_many_items_changes():
    def world():
        s = types.SimpleNamespace(l=list(range(200)), d={f"k{i}": float(i) for i in range(200)})
        return World(fn=lambda x: x * sum(s.l) + sum(s.d.values()) + s.d["k7"], s=s)

    attack(
        world,
        lambda w: w.s.l.__setitem__(150, 0),
        lambda w: w.s.d.update(k199=0.0),
        lambda w: w.s.d.update(k7=True),
        lambda w: w.s.l.__setitem__(0, False),
    )


def test_rule_1_the_end_of_a_long_chain_changes():
    def world():
        root = types.SimpleNamespace()
        o = root
        for i in range(30):
            o.next = types.SimpleNamespace(v=float(i))
            o = o.next

        def fn(x):
            o, t = root, 0.0
            while hasattr(o, "next"):
                o = o.next
                t += o.v
            return x * t

        return World(fn=fn, root=root, last=o)

    attack(
        world,
        lambda w: setattr(w.last, "v", 100.0),
        lambda w: setattr(w.last, "next", types.SimpleNamespace(v=1.0)),
        lambda w: setattr(w.root.next.next, "next", w.last),
    )
