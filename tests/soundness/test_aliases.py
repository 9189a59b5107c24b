"""Rule 4, pitfalls 27 and 28: one object under two names, two objects under one, results that are what was passed."""

from __future__ import annotations

import types

import pytest
import torch
from attacks import attack
from harness import RECORDED, World, check, rand
from torch import nn

from stator.backends.registry import look_up

AOT_EAGER = look_up("aot_eager")[1]


@pytest.mark.parametrize("backend", [None, AOT_EAGER], ids=["eager", "aot_eager"])
def test_rule_4_tensors_that_share_memory(backend):
    def world():
        def fn(x, y):
            x.add_(1)
            return x * y, x is y

        return World(fn=fn)

    def same(w):
        t = rand(1)
        return w.fn(t, t), t

    def diff(w):
        a, b = rand(1), rand(2)
        return w.fn(a, b), a, b

    def over(w):
        a = rand(1, 8)
        return w.fn(a[:4], a[2:6]), a

    def over2(w):
        a = rand(1, 8)
        return w.fn(a[4:], a[:4]), a

    def view(w):
        a = rand(1)
        return w.fn(a, a.view(4)), a

    check(world, [diff, diff, same, same, over, over, over2, view, diff, same], expect=None, backend=backend)


def test_rule_4_one_list_or_two():
    def world():
        def fn(x, a, b):
            a.append(1.0)
            return x * len(b) + sum(b), a

        return World(fn=fn)

    def same(w):
        l = [2.0]
        return w.fn(rand(1), l, l)

    def diff(w):
        return w.fn(rand(1), [2.0], [2.0])

    check(world, [diff, diff, same, same, diff, same], expect=None)


def test_rule_4_one_object_or_two_or_one_dict():
    def world():
        def fn(x, a, b):
            a.v = 5.0
            return x * b.v

        return World(fn=fn)

    N = types.SimpleNamespace

    def same(w):
        l = N(v=2.0)
        return w.fn(rand(1), l, l)

    def diff(w):
        return w.fn(rand(1), N(v=2.0), N(v=2.0))

    def samedict(w):
        class A:
            pass

        a, b = A(), A()
        a.v = 2.0
        b.__dict__ = a.__dict__
        return w.fn(rand(1), a, b)

    def diffdict(w):
        class A:
            pass

        a, b = A(), A()
        a.v = 2.0
        b.v = 2.0
        return w.fn(rand(1), a, b)

    check(
        world,
        [
            diff,
            diff,
            same,
            same,
            diff,
            same,
        ],
        expect=None,
    )
    check(world, [diffdict, diffdict, samedict, diffdict], expect=None, unreplayed=RECORDED)


def test_rule_4_two_objects_with_one_dict():
    class A:
        pass

    def world():
        a, b = A(), A()
        a.v = 2.0
        b.v = 2.0

        def fn(x):
            a.v = a.v + 1
            return x * b.v

        w = World(fn=fn, a=a, b=b)
        return w

    def share(w):
        w.b.__dict__ = w.a.__dict__

    def unshare(w):
        w.b.__dict__ = {"v": 2.0}

    def reset(w):
        w.a.v = 2.0
        w.b.v = 2.0

    attack(world, reset, share, reset, unshare, reset)


def test_rule_4_a_parameter_passed_as_an_argument():
    def world():
        m = nn.Linear(4, 4, bias=False)
        nn.init.ones_(m.weight)

        def fn(x):
            with torch.no_grad():
                m.weight.add_(1)
            return x @ m.weight

        return World(fn=fn, m=m)

    def c(f):
        def g(w):
            return w.fn(f(w))

        return g

    check(
        world,
        [
            c(lambda w: rand(1, 4, 4)),
            c(lambda w: rand(2, 4, 4)),
            c(lambda w: w.m.weight),
            c(lambda w: w.m.weight.detach()),
            c(lambda w: rand(1, 4, 4)),
        ],
        expect=None,
    )


def test_rule_4_arguments_behind_stars():
    def world():
        def fn(x, *args, **kw):
            kw["n"] = len(args)
            args[0].append(kw["n"])
            return x * sum(args[-1]), kw, list(kw), args[0] is args[-1]

        return World(fn=fn)

    def a(w):
        l = [1.0]
        return w.fn(rand(1), l, l, k=1, j=2), l

    def b(w):
        l = [1.0]
        return w.fn(rand(1), l, [1.0], k=1, j=2), l

    def c(w):
        l = [1.0]
        return w.fn(rand(1), l, [1.0], j=2, k=1), l

    def d(w):
        kw = {"k": 1}
        l = [1.0]
        return w.fn(rand(1), *[l, l], **kw), kw

    check(world, [a, a, b, b, c, c, d, d, a], expect=None)


def test_pitfall_28_results_that_are_their_inputs():
    def world():
        cache = {}

        def fn(x):
            y = x.contiguous()
            z = x.to(torch.float32)
            v = x.view(4)
            d = x.detach()
            cache["last"] = x
            return y, z, v, d, x, torch.nn.functional.dropout(x, training=False), [x, y], y is x

        return World(fn=fn, cache=cache)

    attack(world, lambda w: w.cache.clear())
    check(
        world,
        [
            lambda w: w.fn(rand(1)),
            lambda w: w.fn(rand(2)),
            lambda w: w.fn(rand(3, 4).double()),
            lambda w: w.fn(rand(3, 2, 2).t().reshape(4)),
            lambda w: w.fn(rand(4, 8)[::2]),
            lambda w: w.fn(rand(5)),
        ],
        expect=None,
        raises=RuntimeError,
    )


def test_pitfall_27_temporaries_at_one_address():
    def world():
        def fn(x):
            s = 0
            seen = []
            for i in range(300):
                l = [i]
                d = {"a": l}
                s += l[0]
                t = x + i
                seen.append(len(d))
            return x * s + t

        return World(fn=fn)

    attack(world)


@pytest.mark.parametrize("kind", ["itself", "a tuple of it", "a list", "each other"])
def test_rule_6_a_new_instance_dict_that_leads_back_to_its_object(kind):
    """The dict is met before its object, which is found among the dict's own contents."""

    def world():
        class Thing:
            pass

        class Items(list):
            pass

        def itself(x):
            thing = Thing()
            thing.me, thing.x = thing, x * 2
            return vars(thing)

        def in_a_tuple(x):
            thing = Thing()
            thing.space, thing.x = (vars(thing),), x * 2
            return vars(thing)

        def in_a_list(x):
            items = Items()
            items.append((vars(items),))
            items.x = x * 2
            return vars(items), items

        def each_other(x):
            one, two = Thing(), Thing()
            one.other, two.other, two.x = two, one, x * 2
            return vars(one), vars(two)

        fns = {"itself": itself, "a tuple of it": in_a_tuple, "a list": in_a_list, "each other": each_other}
        return World(fn=fns[kind])

    def call(seed):
        return lambda w: w.fn(rand(seed))

    check(world, [call(1), call(2), call(3), call(4)], expect="miss hit hit hit")
