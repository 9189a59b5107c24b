"""Odd programs, called with odd surroundings (rules 1, 3, 5, 6, 8)."""

from __future__ import annotations

import collections
import itertools
import re
import sys
import traceback
import types

import torch
from attacks import attack, hidden
from harness import World, rand

import stator


def test_rule_3_iterators_made_before_a_write():
    def world():
        s = types.SimpleNamespace(l=[1.0, 2.0], d={"a": 1.0})

        def fn(x):
            it, v, k, r, e, z = (
                iter(s.l),
                s.d.values(),
                s.d.keys(),
                reversed(s.l),
                enumerate(s.l),
                zip(s.l, s.l, strict=True),
            )
            m = map(lambda q: q * 2, s.l)
            i = s.d.items()
            s.l.append(5.0)
            s.d["b"] = 2.0
            y = x * sum(it) + sum(v) + len(k) + sum(r) + sum(a * b for a, b in e) + len(list(z)) + sum(m) + len(list(i))
            s.l.pop()
            del s.d["b"]
            return y + len(v) + next(it, 9.0)

        return World(fn=fn, s=s)

    attack(world, lambda w: w.s.l.append(3.0), lambda w: w.s.d.update(c=4.0))


def test_rule_1_a_metaclass_gets_a_lookup_of_its_own():
    def world():
        class M(type):
            pass

        class A(metaclass=M):
            k = 2.0

        return World(fn=lambda x: x * A.k, M=M, A=A)

    attack(
        world,
        lambda w: setattr(w.M, "__getattribute__", lambda c, n: 9.0 if n == "k" else type.__getattribute__(c, n)),
        lambda w: delattr(w.M, "__getattribute__"),
        lambda w: setattr(w.M, "k", property(lambda c: 11.0)),
    )


def test_rule_1_the_metaclass_is_exchanged():
    def world():
        class M(type):
            def __len__(c):
                return 2

        class N(type):
            def __len__(c):
                return 3

            def __call__(c):
                return 7.0

        class A(metaclass=M):
            pass

        return World(fn=lambda x: x * len(A) + (A() if isinstance(A(), float) else 1.0), M=M, N=N, A=A)

    attack(world, lambda w: setattr(w.A, "__class__", w.N), lambda w: setattr(w.A, "__class__", w.M))


def test_rule_1_an_object_that_lies_about_its_class():
    def world():
        s = types.SimpleNamespace(c=list)

        class P:
            __class__ = property(lambda self: s.c)

        p = P()
        return World(
            fn=lambda x: x * (1 + isinstance(p, list) + 2 * isinstance(p, dict)) + (p.__class__ is list), s=s, P=P
        )

    attack(world, lambda w: setattr(w.s, "c", dict), lambda w: setattr(w.s, "c", int))


def test_rule_1_a_slot_is_replaced():
    def world():
        class A:
            __slots__ = ("v", "w")

        a = A()
        a.v = 2.0
        return World(fn=lambda x: x * a.v, A=A, a=a)

    attack(world, lambda w: setattr(w.A, "v", property(lambda s: 5.0)), lambda w: setattr(w.A, "v", 7.0))


def test_rule_1_descriptors_of_c_are_initialised_again():
    def world():
        class A:
            v = property(lambda s: 2.0)
            st = staticmethod(lambda x: x * 2)
            cl = classmethod(lambda c, x: x * 3)

        a = A()
        return World(fn=lambda x: x * a.v + a.st(x) + A.cl(x) + A.st(x), A=A)

    attack(
        world,
        lambda w: vars(w.A)["v"].__init__(lambda s: 9.0),
        lambda w: vars(w.A)["st"].__init__(lambda x: x * 5),
        lambda w: vars(w.A)["cl"].__init__(lambda c, x: x * 7),
    )


def test_rule_5_bound_methods_called_by_c_code():
    def world():
        s = types.SimpleNamespace(d={"a": 1.0, "b": 3.0}, l=[], st=set(), log=[])

        def fn(x):
            best = max(s.d, key=s.d.get)
            list(map(s.l.append, [1.0, 2.0]))
            any(map(s.st.add, (1, 2)))
            collections.deque(map(s.log.append, s.d), maxlen=0)
            t = sum(map(s.d.__getitem__, s.d)) + len(list(filter(s.st.__contains__, [1, 5])))
            p = list(map(s.l.pop, [0]))
            return x * s.d[best] + t + p[0] + len(s.l)

        return World(fn=fn, s=s)

    attack(world, lambda w: w.s.d.update(a=9.0), lambda w: w.s.l.clear(), lambda w: w.s.st.clear(), replayed=False)


def test_rule_5_iterators_that_call_back():
    def world():
        s = types.SimpleNamespace(n=0, l=[1, 1, 2, 3, 3])

        def step():
            s.n += 1
            return s.n

        def fn(x):
            a = sum(iter(step, 4))
            s.n = 0
            g = [(k, len(list(v))) for k, v in itertools.groupby(s.l)]
            acc = list(itertools.accumulate(s.l, lambda p, q: p + q))
            st = list(itertools.starmap(pow, [(2, s.l[0])]))
            tw = list(itertools.takewhile(lambda v: v < 3, s.l))
            pr = len(list(itertools.product(s.l, repeat=2)))
            isl = list(itertools.islice(s.l, 1, None, 2))
            dd = collections.defaultdict(itertools.count(3).__next__)
            return x * a + len(g) + acc[-1] + st[0] + len(tw) + pr + sum(isl) + dd["q"] + dd["r"]

        return World(fn=fn, s=s)

    attack(world, lambda w: w.s.l.append(4), lambda w: w.s.l.insert(0, 9), replayed=False)


def test_rule_1_names_of_an_object_are_listed():
    def world():
        class A:
            k = 1.0

            def m(s):
                pass

        a = A()
        a.v = 2.0
        return World(
            fn=lambda x: (
                x * len([n for n in dir(a) if not n.startswith("_")]) + len([n for n in vars(A) if n[0] != "_"])
            ),
            a=a,
            A=A,
        )

    attack(world, lambda w: setattr(w.a, "q", 1.0), lambda w: setattr(w.A, "z", 1.0), replayed=False)


def test_rule_5_callbacks_of_regular_expressions():
    def world():
        s = types.SimpleNamespace(k="7", p=re.compile(r"\d"), m=re.match(r"(\d)(\d)", "12"))

        def fn(x):
            t = s.p.sub(lambda m: s.k, "a1b2")
            u = re.sub(r"[a-z]", lambda m: str(len(s.k)), "ab")
            return x * len(t) + int(u) + int(t[1]) + len(re.findall(s.p, s.k)) + int(s.m.group(1))

        w = World(fn=fn)
        w.set = hidden(lambda n, v: setattr(s, n, v))
        return w

    attack(
        world,
        lambda w: w.set("k", "88"),
        lambda w: w.set("p", re.compile("[0-9]b")),
        lambda w: w.set("m", re.match(r"(\d)", "5")),
        replayed=False,
    )


def test_rule_3_formats_and_translations():
    def world():
        s = types.SimpleNamespace(spec=">5", v=3.14159, table={97: "b"}, parts=["1", "2"])
        return World(
            fn=lambda x: (
                x * len(f"{s.v:{s.spec}}")
                + float("".join(s.parts))
                + len("a".translate(s.table))
                + len("%*d" % (len(s.parts), 1))
                + float("{:{w}.{p}f}".format(s.v, w=6, p=len(s.parts)))
            ),
            s=s,
        )

    attack(
        world,
        lambda w: setattr(w.s, "spec", ">9"),
        lambda w: w.s.parts.append("3"),
        lambda w: w.s.table.update({97: "bb"}),
    )


def test_pitfall_21_exceptions_are_inspected():
    def world():
        s = types.SimpleNamespace(k=1, err=None)

        def fn(x):
            try:
                try:
                    raise ValueError("a", s.k)
                except ValueError as e:
                    e.add_note(f"note {s.k}")
                    raise KeyError(s.k) from e
            except KeyError as e:
                c = e.__cause__
                t = traceback.format_exc()
                y = x * c.args[1] + len(c.__notes__) + e.args[0] + ("ValueError" in t) + (sys.exc_info()[1] is e)
            try:
                assert s.k < 3, "big"
            except AssertionError as e:
                y = y + len(str(e))
            return y

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "k", 2), lambda w: setattr(w.s, "k", 5), replayed=False, unreplayed="identity")


def test_rule_8_a_compiled_function_calls_itself():
    def world():
        w = World(log=[], depth=0)

        def fn(x):
            w.depth += 1
            try:
                if w.depth < 3:
                    x = w.fn(x * 2) + w.depth
            finally:
                w.depth -= 1
            w.log.append(w.depth)
            return x

        w.fn = fn
        return w

    attack(
        world,
        lambda w: w.log.clear(),
        lambda w: setattr(w, "depth", 1),
        lambda w: setattr(w, "depth", 0),
        replayed=False,
    )


def test_rule_8_an_operation_that_raises_is_caught():
    def world():
        s = types.SimpleNamespace(n=4, log=[])

        def fn(x):
            try:
                y = x + torch.ones(s.n)
            except RuntimeError as e:
                s.log.append(type(e).__name__)
                y = x * 2
            try:
                x.view(3)
            except RuntimeError:
                y = y + 1
            return y

        return World(fn=fn, s=s)

    attack(
        world,
        lambda w: setattr(w.s, "n", 3),
        lambda w: setattr(w.s, "n", 1),
        lambda w: setattr(w.s, "n", 4),
        replayed=False,
    )


def test_pitfall_10_unbound_locals():
    def world():
        s = types.SimpleNamespace(f=True)

        def fn(x):
            if s.f:
                y = x * 2
            try:
                return y + 1
            except UnboundLocalError:
                return x

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "f", False), lambda w: setattr(w.s, "f", []), lambda w: setattr(w.s, "f", [0]))


def test_pitfall_29_two_closures_of_one_code():
    def world():
        def mk(k, t):
            def f(x):
                return x * k + t

            return f

        a, b = mk(2.0, rand(1)), mk(3.0, rand(2))
        w = World(a=a, b=b)
        ca, cb = stator.compile(a, backend="eager"), stator.compile(b, backend="eager")
        w.fn = lambda x: ca(x) + cb(x)
        return w

    attack(
        world,
        lambda w: setattr(w.a.__closure__[0], "cell_contents", 5.0),
        lambda w: setattr(w.b.__closure__[1], "cell_contents", rand(7)),
    )


def test_rule_7_guards_run_no_code_of_the_program():
    def world():
        log = []

        class K:
            def __hash__(s):
                log.append("h")
                return 1

            def __eq__(s, o):
                log.append("e")
                return s is o

            def __getattribute__(s, n):
                log.append(n)
                return object.__getattribute__(s, n)

        k = K()
        s = types.SimpleNamespace(k=k, d={"a": 1.0}, v=2.0)

        def fn(x):
            return x * s.v if s.k is k else -x

        return World(fn=fn, log=log, set=hidden(lambda: setattr(s, "k", K())))

    attack(world, lambda w: w.set(), lambda w: w.log.clear())
