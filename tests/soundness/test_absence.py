"""Pitfalls 10 and 11: what is not there, what raises, and instructions that are easily forgotten."""

from __future__ import annotations

import sys
import types

from attacks import attack, hidden, module
from harness import World


def test_pitfall_10_a_call_that_lacks_an_argument_until_it_has_a_default():
    def world():
        def g(x, k):
            return x * k

        def fn(x):
            try:
                return g(x)
            except TypeError:
                return -x

        return World(fn=fn, g=g)

    attack(world, lambda w: setattr(w.g, "__defaults__", (3.0,)), lambda w: setattr(w.g, "__defaults__", None))


def test_pitfall_10_a_call_with_too_many_arguments_until_the_code_takes_them():
    def world():
        def g(x, k):
            return x * k

        def h(x):
            return x * 7

        w = World(g=g)

        def fn(x):
            try:
                return w.g(x)
            except TypeError:
                return -x

        w.fn = fn
        w.code = lambda: setattr(g, "__code__", h.__code__)
        return w

    attack(world, lambda w: w.code())


def test_pitfall_10_a_constructor_that_lacks_an_argument():
    def world():
        class A:
            def __init__(s, k):
                s.k = k

        def fn(x):
            try:
                return x * A().k
            except TypeError:
                return -x

        return World(fn=fn, A=A)

    attack(world, lambda w: setattr(w.A.__init__, "__defaults__", (3.0,)))


def test_pitfall_10_arguments_that_do_not_fit_in_every_way():
    def world():
        def g(x, a, /, b, *, c):
            return x * a + b + c

        def h(x):
            return x

        class M:
            def m(s, x):
                return x * 2

        m = M()
        w = World(kw={"b": 1.0, "c": 2.0}, args=(3.0,))

        def fn(x):
            n = 0
            for call in (
                lambda: g(x, 1.0, b=2.0, c=3.0),
                lambda: g(x, 1.0, 2.0),
                lambda: g(x, 1.0, 2.0, z=4),
                lambda: g(x, a=1.0, b=1.0, c=1.0),
                lambda: h(x, x),
                lambda: h(),
                lambda: g(x, *w.args, **w.kw),
                lambda: m.m(),
                lambda: m.m(x, x),
                lambda: m.m(x),
                lambda: g(*w.args),
                lambda: h(**w.kw),
            ):
                try:
                    x = x + call()
                except TypeError:
                    n += 1
            return x * n

        w.fn = fn
        w.g = g
        w.h = h
        w.M = M
        return w

    attack(
        world,
        lambda w: setattr(w.g, "__kwdefaults__", {"c": 5.0}),
        lambda w: setattr(w.h, "__defaults__", (2.0,)),
        lambda w: setattr(w.M.m, "__defaults__", (2.0,)),
        lambda w: w.kw.pop("c"),
        lambda w: setattr(w, "args", (3.0, 4.0)),
        lambda w: setattr(w.h, "__code__", (lambda *x, **k: x[0] if x else 5.0).__code__),
    )


def test_pitfall_10_an_object_that_cannot_be_called():
    def world():
        class A:
            pass

        a = A()

        def fn(x):
            try:
                return a(x)
            except TypeError:
                return -x

        return World(fn=fn, A=A)

    attack(world, lambda w: setattr(w.A, "__call__", lambda s, x: x * 5))


def test_pitfall_10_operations_that_an_object_lacks():
    def world():
        class A:
            pass

        a = A()

        def fn(x):
            out = 0
            for op in (
                lambda: list(a),
                lambda: len(a),
                lambda: a[0],
                lambda: a + 1,
                lambda: -a,
                lambda: a < 1,
                lambda: 1 in a,
                lambda: int(a),
                lambda: next(a),
                lambda: abs(a),
            ):
                try:
                    op()
                except TypeError:
                    out += 1
            return x * out

        return World(fn=fn, A=A)

    attack(
        world,
        lambda w: setattr(w.A, "__len__", lambda s: 0),
        lambda w: setattr(w.A, "__getitem__", lambda s, i: [][0]),
        lambda w: setattr(w.A, "__add__", lambda s, o: 1),
        lambda w: setattr(w.A, "__int__", lambda s: 1),
        lambda w: setattr(w.A, "__next__", lambda s: 1),
        raises=IndexError,
    )


def test_pitfall_10_reflected_operators():
    def world():
        class A:
            pass

        class B:
            def __radd__(s, o):
                return 5.0

            def __eq__(s, o):
                return True

            __hash__ = None

        a, b = A(), B()
        return World(fn=lambda x: x * (a + b) + (a == b), A=A, B=B)

    attack(
        world,
        lambda w: setattr(w.A, "__add__", lambda s, o: 7.0),
        lambda w: setattr(w.A, "__eq__", lambda s, o: False),
        lambda w: setattr(w.B, "__radd__", lambda s, o: 9.0),
    )


def test_pitfall_11_with_statements():
    def world():
        class M:
            def __enter__(s):
                return 2.0

            def __exit__(s, *a):
                return False

        m = M()

        def fn(x):
            with m as v:
                x = x * v
            try:
                with m:
                    raise ValueError
            except ValueError:
                x = x + 1
            return x

        return World(fn=fn, M=M)

    attack(
        world,
        lambda w: setattr(w.M, "__exit__", lambda s, *a: True),
        lambda w: setattr(w.M, "__enter__", lambda s: 5.0),
    )


def test_pitfall_11_unpacking_matching_merging_and_deleting():
    def world():
        s = types.SimpleNamespace(l=[1.0, 2.0, 3.0], d={"a": 1.0, "b": 2.0}, t=(1, 2), m={"kind": "p", "v": [1, 2]})

        def fn(x):
            _a, *b = s.l
            first, (c, d) = s.l[0], s.t
            match s.m:
                case {"kind": "p", "v": [u, *v], **rest}:
                    x = x * u + len(v) + len(rest)
                case {"kind": "q"}:
                    x = x - 1
                case _:
                    x = x + 100
            match s.t:
                case (1, y):
                    x = x + y
                case [_, _, *_]:
                    x = x - 5
            n = {**s.d, "c": 3.0}
            l = [*s.l, *b]
            q = {*s.t}
            x = x * sum(n.values()) + sum(l) + len(q) + (not s.l) + (-s.t[0]) + (~s.t[1])
            del n["a"]
            s.l[1:2] = [5.0]
            x += s.l[-1]
            return x, n

        return World(fn=fn, s=s)

    attack(
        world,
        lambda w: w.s.l.append(4.0),
        lambda w: w.s.m.update(kind="q"),
        lambda w: setattr(w.s, "t", (3, 4)),
        lambda w: w.s.m.pop("kind"),
        lambda w: setattr(w.s, "t", (1, 2, 3)),
        raises=ValueError,
        replayed=False,
    )


DELETES_A_GLOBAL = """
g = 1.0
def fn(x):
    global g, h
    try:
        y = x * g
        del g
    except NameError:
        g = 5.0
        y = x
    h = y
    return y
"""


def test_pitfall_11_a_global_is_deleted_inside():
    def world():
        m = module("b4g", DELETES_A_GLOBAL)
        w = World(fn=m.fn)
        return w

    attack(
        world,
        lambda w: setattr(sys.modules["b4g"], "g", 3.0),
        lambda w: sys.modules["b4g"].__dict__.pop("g", None),
        observe=lambda w: getattr(sys.modules["b4g"], "g", "none"),
        replayed=False,
    )


def test_pitfall_11_generators_of_every_kind():
    def world():
        s = types.SimpleNamespace(k=2, log=[])

        def g(n):
            try:
                for i in range(n):
                    got = yield i * s.k
                    if got:
                        s.log.append(got)
            finally:
                s.log.append("end")
            return n

        def outer(n):
            r = yield from g(n)
            yield r * 100

        def fn(x):
            it = outer(3)
            t = next(it)
            t += it.send("hi")
            t += sum(it)
            h = g(5)
            next(h)
            h.close()
            try:
                h2 = g(2)
                next(h2)
                h2.throw(ValueError("z"))
            except ValueError:
                s.log.append("z")
            return x * t

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "k", 3), lambda w: w.s.log.clear(), replayed=False)


def test_rule_6_globals_of_two_modules():
    def world():
        a = module("b4a", "K = 2.0\ndef f(x):\n    global K\n    K = K + 1\n    import b4b\n    return b4b.g(x) * K\n")
        b = module("b4b", "import b4a\nJ = 3.0\ndef g(x):\n    b4a.K = b4a.K * 2\n    return x * J + b4a.K\n")
        return World(fn=a.f, setk=hidden(lambda v: setattr(a, "K", v)), setj=hidden(lambda v: setattr(b, "J", v)))

    attack(world, lambda w: w.setk(1.0), lambda w: w.setj(1.0), observe=lambda w: sys.modules["b4a"].K)


def test_rule_6_state_changed_before_an_exception():
    def world():
        s = types.SimpleNamespace(n=0, d={}, l=[])

        def fn(x):
            try:
                s.n += 1
                s.l.append(s.n)
                s.d["k"] = x
                if s.n % 2:
                    raise KeyError(s.n)
                x = x * 2
            except KeyError as e:
                s.l.append(e.args[0])
                x = x + 1
            finally:
                s.l.append("f")
            return x

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "n", 0), lambda w: w.s.l.clear(), replayed=False)
