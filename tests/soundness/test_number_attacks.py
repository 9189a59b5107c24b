"""Rule 2: numbers that change from call to call, wherever they come from and whatever becomes of them."""

from __future__ import annotations

import collections
import functools
import types

import pytest
import torch
from attacks import hidden, module
from harness import RECORDED, World, check, rand

from stator.backends.registry import look_up


def drive(world, values, **kw):
    def c(v, seed):
        def call(w):
            w.n = v
            return w.fn(rand(seed))

        return call

    return check(world, [c(v, i) for i, v in enumerate(values)], expect=None, **kw)


@pytest.mark.parametrize(
    "values", [(2, 3, 4, 5, 0, -1, 7), (2.0, 3.0, 4.5, -0.0, float("inf"), 1e300, 2.0), (1, True, 2, 3, 1.0, 4, 5)]
)
def test_rule_2_numbers_passed_on_in_every_way(values):
    def world():
        w = World(n=0)

        def helper(x, k=1, *, m=2):
            return x * k + m

        class Adder:
            def __init__(s, v):
                s.v = v

            def __call__(s, x):
                return x + s.v

        part = functools.partial(helper, m=3)

        def fn(x):
            n = w.n
            d = {"a": n, n: "k"}
            l = [n, n + 1]
            y = helper(x, n) + helper(x, m=n) + part(x, k=n) + Adder(n)(x)
            y = y + d["a"] + l[1] + max(n, 3) + abs(n) + (n if n else 7) + (1 if n > 2 else 0)
            s = f"{n}"
            t = str(n + 1)
            return (
                y,
                n,
                n + 1,
                d,
                l,
                s,
                t,
                (n, [n * 2]),
                isinstance(n, int),
                type(n),
                -n,
                n == 3,
                n is None,
                hash(n),
                repr(n),
                bool(n),
            )

        w.fn = fn
        return w

    drive(world, values, unreplayed=RECORDED)


def test_rule_6_numbers_that_change_are_stored():
    def world():
        w = World(n=1, s=types.SimpleNamespace(v=0, l=[], d={}))

        def fn(x):
            w.s.v += w.n
            w.s.l.append(w.n * 2)
            w.s.d[w.n] = w.n
            w.s.l.sort()
            w.s.l.sort(key=lambda v: -v)
            return x * w.s.v + len(w.s.l) + sum(w.s.l)

        w.fn = fn
        return w

    drive(world, (1, 2, 3, 4, 2, 9), unreplayed=RECORDED)


def test_rule_2_numbers_in_defaults_and_closures():
    def world():
        w = World(n=1)
        k = 5

        def g(x, a=2, *, b=3):
            return x * a + b + k

        def setk(v):
            nonlocal k
            k = v

        def fn(x):
            return g(x) + g(x, w.n) + g(x, b=w.n)

        w.fn = fn
        w.g = g
        w.setk = hidden(setk)
        return w

    def c(a, b, k, n):
        def call(w):
            w.g.__defaults__ = (a,)
            w.g.__kwdefaults__ = {"b": b}
            w.setk(k)
            w.n = n
            return w.fn(rand(1))

        return call

    check(
        world,
        [c(2, 3, 5, 1), c(3, 3, 5, 1), c(4, 3, 5, 1), c(4, 4, 5, 1), c(4, 5, 6, 2), c(5, 6, 7, 3), c(6, 7, 8, 4)],
        expect=None,
        unreplayed=RECORDED,
    )


def test_rule_2_numbers_among_other_defaults():
    def world():
        w = World()

        def g(x, a=2, l=[1], t=(1, 2)):
            return x * a + l[0] + t[1]

        w.fn = lambda x: g(x)
        w.g = g
        return w

    def c(a, l, t):
        def call(w):
            w.g.__defaults__ = (a, [l], (1, t))
            return w.fn(rand(1))

        return call

    check(
        world,
        [c(2, 1, 2), c(3, 1, 2), c(4, 2, 2), c(5, 3, 3), c(6, 4, 4), c(7, 5, 5)],
        expect=None,
        unreplayed=RECORDED,
    )


def test_rule_2_numbers_in_slots_tuples_and_queues():
    class S:
        __slots__ = ("n",)

    N = collections.namedtuple("N", "n m")

    def world():
        s = S()
        w = World(s=s, t=N(1, 2), q=collections.deque([1, 2]), a=[[1]], r=range(3))
        w.fn = lambda x: x * s.n + w.t.n + w.t[1] + w.q[0] + w.a[0][0] + len(w.r) + sum(w.r)
        return w

    def c(n):
        def call(w):
            w.s.n = n
            w.t = N(n, n + 1)
            w.q[0] = n
            w.a[0][0] = n
            w.r = range(n)
            return w.fn(rand(1))

        return call

    check(world, [c(n) for n in (1, 2, 3, 4, 5, 2)], expect=None)


def test_rule_2_numbers_in_a_partial():
    def world():
        def g(x, *, k):
            return x * k

        p = functools.partial(g, k=1)
        q = functools.partial(p)
        w = World(p=p)
        w.fn = lambda x: p(x) + q(x)
        return w

    def c(n):
        def call(w):
            w.p.keywords["k"] = n
            return w.fn(rand(1))

        return call

    check(world, [c(n) for n in (1, 2, 3, 4, 5.0, 6)], expect=None)


def test_rule_2_numbers_in_classes_and_modules():
    def world():
        m = module("b6n", "N = 1\ndef f(x): return x * N\n")

        class A:
            n = 1

            @property
            def p(self):
                return self.n * 2

            @classmethod
            def c(cls, x):
                return x * cls.n

        a = A()
        w = World(A=A)
        w.fn = lambda x: m.f(x) + a.p + A.c(x) + vars(A)["n"]
        w.set = hidden(lambda v: setattr(m, "N", v))
        return w

    def c(n):
        def call(w):
            w.A.n = n
            w.set(n)
            return w.fn(rand(1))

        return call

    check(world, [c(n) for n in (1, 2, 3, 4, 2)], expect=None)


def test_rule_7_sizes_that_change():
    def world():
        w = World(log=[], d={})

        def fn(x):
            n = x.shape[0]
            w.log.append(n)
            w.d[n] = w.d.get(n, 0) + 1
            y = x.view(n // 2, 2) if n % 2 == 0 else x.view(1, n)
            z = torch.arange(n, dtype=x.dtype)
            return y.sum() + z * n, n, x.shape, tuple(x.shape), len(x), [i for i in range(n)], f"{n}", y.shape

        w.fn = fn
        return w

    check(world, [lambda w, k=k: w.fn(rand(k, k)) for k in (4, 6, 5, 8, 7, 1, 0, 2)], expect=None, unreplayed=RECORDED)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_rule_2_a_number_read_behind_what_torch_cannot_size(backend):
    """From there on all numbers are those at hand: the backend gets no symbol for a number that is read later."""

    def world():
        state = {"n": 3, "x": 1.5}

        def fn(x):
            with torch.inference_mode():
                x * 2
            x += x  # torch's stand-in was made in inference mode, and must not be written to here
            state["n"] += 1
            state["x"] = state["x"] * 2
            return x + 1

        return World(fn=fn, state=state)

    def call(seed):
        return lambda w: w.fn(rand(seed))

    def again(w):
        w.state.update(n=3, x=1.5)
        return w.fn(rand(9))

    check(world, [*map(call, range(4)), again, again, again], expect=None, backend=look_up(backend)[1])


@pytest.mark.parametrize("kind", ["expand", "layer_norm", "batch_norm", "group_norm", "view", "clamp", "attention"])
def test_rule_7_sizes_for_which_an_operation_fails_behind_a_write(kind):
    """A replay is not to begin there: what the program has written before the operation stays written."""
    functional = torch.nn.functional
    operations = {
        "expand": lambda x: x.expand(2, 4),
        "layer_norm": lambda x: functional.layer_norm(x.T, (2,)),
        "batch_norm": lambda x: functional.batch_norm(x.T, torch.zeros(2), torch.ones(2)),
        "group_norm": lambda x: functional.group_norm(x.T.unsqueeze(2), 2),
        "view": lambda x: x.view(2, 4),
        "clamp": lambda x: x.clamp(torch.zeros(2, 4)),
        "attention": lambda x: functional.scaled_dot_product_attention(x.T, torch.ones(3, 2), torch.ones(3, 2)),
    }
    operation = operations[kind]

    def world():
        w = World(kept={})

        def fn(x):
            w.kept["x"] = x
            x += x
            operation(x)
            return x + 1

        w.fn = fn
        return w

    calls = [lambda w, k=k: w.fn(rand(k, k, 4)) for k in (2, 3, 5, 2, 2, 3, 2)]
    check(world, calls, expect=None, raises=RuntimeError if kind != "batch_norm" else (RuntimeError, ValueError))
