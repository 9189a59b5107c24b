"""Rule 5 and pitfall 14: C callables that read more than their arguments show."""

from __future__ import annotations

import bisect
import contextvars
import functools
import itertools
import operator
import threading
import types
import weakref

import pytest
from attacks import attack
from harness import World


def test_pitfall_14_a_cache_filled_behind_a_write():
    def world():
        g = types.SimpleNamespace(v=1)

        @functools.lru_cache
        def cached():
            return g.v

        def fn(x):
            g.v = g.v + 1
            return x * cached()

        return World(fn=fn, g=g, cached=cached)

    attack(world, lambda w: w.cached.cache_clear(), lambda w: w.cached.cache_clear(), lambda w: w.cached.cache_clear())


def test_pitfall_14_a_cached_function_with_effects():
    def world():
        log = []

        @functools.lru_cache
        def cached(k):
            log.append(k)
            return 2.0

        w = World(log=log, cached=cached, k=3)

        def fn(x):
            log.append("in")
            return x * cached(w.k)

        w.fn = fn
        return w

    attack(world, lambda w: w.cached.cache_clear(), lambda w: setattr(w, "k", 4), lambda w: w.cached.cache_clear())


def test_pitfall_14_a_cached_function_that_raises():
    def world():
        g = types.SimpleNamespace(bad=False, calls=0)

        @functools.lru_cache
        def cached():
            g.calls += 1
            if g.bad:
                raise ValueError("no")
            return 2.0

        return World(fn=lambda x: x * cached(), g=g, cached=cached)

    attack(world, lambda w: (setattr(w.g, "bad", True), w.cached.cache_clear()), raises=ValueError)


def test_pitfall_14_a_cache_that_keeps_nothing():
    def world():
        log = []

        @functools.lru_cache(maxsize=0)
        def cached(k):
            log.append(k)
            return len(log)

        return World(fn=lambda x: x * cached(3), log=log)

    attack(world, lambda w: w.log.clear(), replayed=False)


def test_pitfall_14_a_cache_that_forgets():
    def world():
        n = []

        @functools.lru_cache(maxsize=2)
        def cached(k):
            n.append(k)
            return k * 2.0

        w = World(n=n, cached=cached, k=1)
        w.fn = lambda x: x * cached(1) + cached(w.k) + cached(5)
        return w

    attack(world, lambda w: setattr(w, "k", 2), lambda w: setattr(w, "k", 3), lambda w: w.cached(17), replayed=False)


def test_pitfall_14_a_context_variable():
    v = contextvars.ContextVar("v", default=2.0)

    def world():
        v.set(2.0)
        return World(fn=lambda x: x * v.get())

    attack(world, lambda w: v.set(3.0))


def test_pitfall_14_a_context_variable_set_and_reset():
    v = contextvars.ContextVar("v2", default=2.0)

    def world():
        v.set(2.0)

        def fn(x):
            t = v.set(v.get() + 1)
            y = x * v.get()
            v.reset(t)
            return y

        return World(fn=fn)

    attack(world, lambda w: v.set(3.0), replayed=False)


def test_pitfall_14_thread_locals():
    def world():
        l = threading.local()
        l.v = 2.0
        return World(fn=lambda x: x * l.v, ch=lambda v: setattr(l, "v", v))

    attack(world, lambda w: w.ch(3.0), replayed=False)


def test_pitfall_14_a_weak_reference_dies():
    def world():
        class A:
            v = 2.0

        a = A()
        r = weakref.ref(a)
        w = World(a=a)
        w.fn = lambda x: x * (r().v if r() is not None else 5.0)
        return w

    attack(world, lambda w: setattr(w.a, "v", 3.0), lambda w: delattr(w, "a"))


def test_pitfall_14_a_weak_proxy():
    def world():
        class A:
            v = 2.0

        a = A()
        r = weakref.proxy(a)
        w = World(a=a)
        w.fn = lambda x: x * r.v
        return w

    attack(world, lambda w: setattr(w.a, "v", 3.0), lambda w: delattr(w, "a"), raises=ReferenceError, replayed=False)


def test_pitfall_14_weak_containers():
    def world():
        class A:
            v = 2.0

        a = A()
        b = A()
        d = weakref.WeakValueDictionary(a=a)
        k = weakref.WeakKeyDictionary({a: 2.0, b: 3.0})
        s = weakref.WeakSet([a, b])
        w = World(a=a, b=b)
        w.fn = lambda x: x * (3.0 if "a" in d else 4.0) + len(d) + len(k) + len(s) + sum(k.values())
        return w

    attack(
        world,
        lambda w: delattr(w, "b"),
        lambda w: delattr(w, "a"),
        replayed=False,
        unreplayed=["object-keys", "unknown-callable"],
    )


def test_pitfall_14_a_cached_property():
    def world():
        class A:
            k = 2.0

            @functools.cached_property
            def v(self):
                return self.k * 2

        a = A()
        return World(fn=lambda x: x * a.v, a=a, A=A)

    attack(
        world,
        lambda w: setattr(w.A, "k", 5.0),
        lambda w: delattr(w.a, "v"),
        lambda w: w.a.__dict__.update(v=9.0),
        lambda w: delattr(w.A, "v"),
    )


def test_pitfall_14_single_dispatch():
    def world():
        @functools.singledispatch
        def f(a, x):
            return x * 2

        @f.register
        def _(a: int, x):
            return x * 3

        w = World(f=0, a=1)
        w.reg = f.register
        w.fn = lambda x: f(w.a, x)
        return w

    attack(
        world,
        lambda w: setattr(w, "a", "s"),
        lambda w: w.reg(str, lambda a, x: x * 7),
        lambda w: w.reg(object, lambda a, x: x - 1),
        lambda w: setattr(w, "a", 2.0),
        replayed=False,
        unreplayed=["object-keys", "rebuild"],
    )


def test_pitfall_14_a_partial_is_changed():
    def world():
        def f(a, x, *, k):
            return x * a + k

        p = functools.partial(f, 2.0, k=1.0)
        return World(fn=lambda x: p(x), p=p, f=f)

    def st(w):
        w.p.__setstate__((w.f, (5.0,), {"k": 3.0}, {}))

    attack(world, lambda w: w.p.keywords.update(k=3.0), st)


def test_pitfall_14_attribute_getters():
    def world():
        o = types.SimpleNamespace(a=types.SimpleNamespace(b=2.0), c=3.0)
        g = operator.attrgetter("a.b")
        h = operator.attrgetter("c", "a")
        m = operator.methodcaller("get", "k", 2.0)
        d = {}
        return World(fn=lambda x: x * g(o) + h(o)[0] + m(d), o=o, d=d)

    attack(
        world,
        lambda w: setattr(w.o.a, "b", 5.0),
        lambda w: setattr(w.o, "c", 5.0),
        lambda w: w.d.update(k=8.0),
        replayed=False,
    )


def test_pitfall_14_item_getters():
    def world():
        d = {"a": 1.0, "b": 2.0}
        l = [3.0, 4.0]
        g = operator.itemgetter("a", "b")
        h = operator.itemgetter(slice(None))
        return World(fn=lambda x: x * sum(g(d)) + sum(h(l)), d=d, l=l)

    attack(world, lambda w: w.d.update(b=5.0), lambda w: w.l.append(5.0))


def test_pitfall_14_an_item_getter_of_an_object():
    def world():
        class C:
            v = 1.0

            def __getitem__(s, k):
                return s.v

        c = C()
        g = operator.itemgetter(0)
        return World(fn=lambda x: x * g(c), c=c)

    attack(world, lambda w: setattr(w.c, "v", 5.0))


def test_pitfall_14_fields_of_a_format():
    def world():
        o = types.SimpleNamespace(a=2.0, l=[1, 2])
        return World(fn=lambda x: x * float(f"{o.a}") + float(f"{o.l[1]}"), o=o)

    attack(world, lambda w: setattr(w.o, "a", 5.0), lambda w: w.o.l.__setitem__(1, 8), replayed=False)


def test_pitfall_14_a_percent_format():
    def world():
        o = {"a": 2.0}

        class Shown:
            v = 1.0

            def __str__(s):
                return str(s.v)

        q = Shown()
        return World(fn=lambda x: x * float("%(a)s" % o) + float("%s" % q), o=o, q=q)

    attack(world, lambda w: w.o.update(a=5.0), lambda w: setattr(w.q, "v", 9.0))


def test_rule_5_an_iterator_half_consumed():
    def world():
        it = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
        return World(fn=lambda x: x * next(it, 100.0), n=lambda: next(it))

    attack(world, lambda w: w.n(), lambda w: w.n(), replayed=False)


def test_rule_5_iterators_of_itertools():
    def world():
        c = itertools.count(1)
        cy = itertools.cycle([1.0, 2.0, 3.0])
        e = enumerate([5.0] * 50)
        z = zip(itertools.count(), itertools.count())
        t1, t2 = itertools.tee(itertools.count())
        ch = itertools.chain([1.0], itertools.repeat(2.0))
        return World(
            fn=lambda x: x * next(c) + next(cy) + next(e)[0] + next(z)[1] + next(t1) + next(ch),
            n=lambda: (next(c), next(t2)),
        )

    attack(world, lambda w: w.n(), lambda w: w.n(), replayed=False)


def test_rule_5_iterators_consumed_by_c_code():
    def world():
        c = iter([[1.0, 2.0]] + [[float(n)] for n in range(20)])
        g = (i for i in range(100))
        m = map(lambda v: v + 1, itertools.count())
        f = filter(None, itertools.count())

        def fn(x):
            a, *b = next(c)
            return x * a + len(b) + next(g) + next(m) + next(f) + (next(g) + 2 in g)

        return World(fn=fn)

    attack(world, lambda w: None, lambda w: None, replayed=False)


def test_rule_5_a_generator_held_by_an_object():
    def world():
        class A:
            def __init__(s):
                s.g = s.gen()
                s.k = 2.0

            def gen(s):
                while True:
                    yield s.k

        a = A()
        return World(fn=lambda x: x * next(a.g), seta=lambda v: setattr(a, "k", v))

    attack(world, lambda w: w.seta(3.0), replayed=False)


def test_rule_5_special_methods_with_a_log():
    def world():
        log = []

        class K:
            def __init__(s, v):
                s.v = v

            def __repr__(s):
                return f"K({s.v})"

            def __hash__(s):
                log.append("h")
                return hash(s.v)

            def __eq__(s, o):
                log.append("e")
                return isinstance(o, K) and s.v == o.v

            def __lt__(s, o):
                log.append("lt")
                return s.v < o.v

            def __len__(s):
                log.append("len")
                return s.v

            def __bool__(s):
                log.append("b")
                return s.v > 1

            def __index__(s):
                log.append("i")
                return s.v

        d = {K(1): 2.0, K(2): 3.0}
        l = [K(3), K(1), K(2)]
        k = K(1)

        def fn(x):
            y = x * d[K(1)] + len(k) + (k in l) + l.index(k) + l.count(k)
            y = y + min(l).v + sorted(l)[0].v + any(l) + all(l) + [5.0, 6.0][k] + len(list(filter(None, l)))
            return y

        return World(fn=fn, log=log, l=l, k=k, d=0)

    attack(
        world,
        lambda w: setattr(w.k, "v", 0),
        lambda w: w.l.reverse(),
        lambda w: setattr(w.k, "v", 1),
        replayed=False,
        raises=ValueError,
    )


GETTERS = {
    "itemgetter": operator.itemgetter,
    "attrgetter": lambda k: operator.attrgetter("abc"[k]),
    "methodcaller": lambda k: operator.methodcaller("pick", k),
    "item of several": lambda k: lambda thing, get=operator.itemgetter(0, k): get(thing)[1],
}


class Letters(list):
    a, b, c = 2.0, 3.0, 4.0

    def pick(self, k):
        return self[k]


@pytest.mark.parametrize("name", GETTERS)
def test_pitfall_14_a_getter_is_another_one(name):
    def world():
        w = World(get=GETTERS[name](0), thing=Letters([5.0, 6.0, 7.0]))
        w.fn = lambda x: x * w.get(w.thing)
        return w

    def put(k):
        return lambda w: setattr(w, "get", GETTERS[name](k))

    attack(world, put(1), put(2), put(0))


def test_pitfall_14_a_getter_that_sorts_is_another_one():
    def world():
        w = World(key=operator.itemgetter(0), rows=[(1, 5.0), (2, 3.0)])
        w.fn = lambda x: x * sorted(w.rows, key=w.key)[0][1]
        return w

    attack(world, lambda w: setattr(w, "key", operator.itemgetter(1)))


def test_pitfall_14_a_list_that_is_searched_changes():
    def world():
        w = World(items=[1, 3, 5], wanted=3, sign=types.SimpleNamespace(of=1))
        w.fn = lambda x: x * bisect.bisect(w.items, w.wanted, key=lambda item: item * w.sign.of)
        return w

    def negate(w):
        w.sign.of = -1

    attack(world, lambda w: w.items.insert(0, 0), lambda w: setattr(w, "wanted", 5), negate)
