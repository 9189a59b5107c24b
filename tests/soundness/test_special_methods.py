"""Rules 1, 3, 5: special methods, hashes and registers that change or keep a log."""

from __future__ import annotations

import types
import typing

from attacks import attack, hidden
from harness import World


def test_rule_1_a_property_that_begins_to_raise():
    def world():
        s = types.SimpleNamespace(bad=False)

        class A:
            @property
            def v(self):
                if s.bad:
                    raise AttributeError("inner")
                return 2.0

            def __getattr__(self, n):
                return 7.0

        a = A()
        return World(fn=lambda x: x * a.v + a.other + getattr(a, "zz", 0) + hasattr(a, "q"), s=s, A=A)

    attack(world, lambda w: setattr(w.s, "bad", True), lambda w: delattr(w.A, "__getattr__"), raises=AttributeError)


def test_rule_1_a_register_of_subclasses():
    def world():
        class Base:
            registry = {}

            def __init_subclass__(cls, **kw):
                Base.registry[cls.__name__] = cls

        class A(Base):
            k = 2.0

        w = World(B=Base, make=hidden(lambda n, k: type(n, (Base,), {"k": k})))
        w.fn = lambda x: x * sum(c.k for c in Base.registry.values()) + len(Base.__subclasses__())
        w.hold = []
        return w

    attack(world, lambda w: w.hold.append(w.make("C", 3.0)), lambda w: w.B.registry.pop("A"), replayed=False)


def test_rule_1_abstract_classes_and_protocols():
    def world():
        import collections.abc as cabc

        class A:
            pass

        a = A()

        def fn(x):
            return x * (
                1
                + isinstance(a, cabc.Sized)
                + 2 * isinstance(a, cabc.Sequence)
                + 4 * isinstance(a, typing.SupportsFloat)
                + 8 * callable(a)
            )

        return World(fn=fn, A=A, reg=hidden(lambda: cabc.Sequence.register(A)))

    attack(
        world,
        lambda w: setattr(w.A, "__len__", lambda s: 1),
        lambda w: w.reg(),
        lambda w: setattr(w.A, "__call__", lambda s: 1),
        replayed=False,
    )


def test_rule_5_operators_with_a_log():
    def world():
        class Acc:
            def __init__(s):
                s.v = 1.0
                s.log = []

            def __iadd__(s, o):
                s.v += o
                s.log.append("iadd")
                return s

            def __matmul__(s, o):
                s.log.append("mm")
                return s.v

            def __rsub__(s, o):
                return o - s.v

            def __contains__(s, o):
                s.log.append("in")
                return o == s.v

            def __setitem__(s, k, v):
                s.log.append(k)

            def __delitem__(s, k):
                s.log.append(k)

            def __call__(s, *a, **k):
                return len(a) + len(k)

            def __format__(s, spec):
                s.log.append(spec)
                return "3"

            def __index__(s):
                return 1

            def __round__(s, n=0):
                return 2

        a = Acc()

        def fn(x):
            nonlocal a
            a += 1.0
            a["k"] = 1
            del a["j"]
            y = x * (a @ 2) + (3 - a) + (2.0 in a) + a(1, z=2) + float(f"{a:>3}") + [1.0, 2.0][a] + round(a)
            return y

        return World(fn=fn, a=a, A=Acc)

    attack(
        world, lambda w: setattr(w.a, "v", 1.0), lambda w: delattr(w.A, "__iadd__"), raises=TypeError, replayed=False
    )


def test_rule_3_a_key_whose_hash_changes():
    def world():
        class K:
            def __init__(s, h):
                s.h = h

            def __hash__(s):
                return s.h

            def __eq__(s, o):
                return s.h == o.h

        k = K(1)
        d = {k: 2.0}
        return World(fn=lambda x: x * d.get(k, 9.0) + (k in d), k=k, d=0)

    attack(world, lambda w: setattr(w.k, "h", 2), lambda w: setattr(w.k, "h", 1), replayed=False)


def test_rule_3_texts_with_an_equality_of_their_own():
    def world():
        class S(str):
            def __eq__(s, o):
                return True

            def __hash__(s):
                return str.__hash__(s)

        w = World(key="a", d={"a": 1.0, "b": 2.0})
        w.S = 0
        w.mk = hidden(lambda v: S(v))
        w.fn = lambda x: x * w.d[w.key]
        return w

    attack(
        world,
        lambda w: setattr(w, "key", "b"),
        lambda w: setattr(w, "key", w.mk("a")),
        lambda w: w.d.update(a=5.0),
        replayed=False,
    )


def test_rule_6_two_closures_share_a_cell():
    def world():
        def mk():
            n = 0

            def inc():
                nonlocal n
                n += 1
                return n

            def get():
                return n

            return inc, get

        inc, get = mk()

        def fn(x):
            a = get()
            inc()
            inc()
            return x * a + get()

        return World(fn=fn, inc=inc, get=get)

    attack(world, lambda w: w.inc(), lambda w: setattr(w.inc.__closure__[0], "cell_contents", 0))
