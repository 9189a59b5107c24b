"""Rules 1 and 6, pitfalls 6 and 16: others change the world at a break, in a hook or in another thread."""

from __future__ import annotations

import contextvars
import threading
import types

import torch
from attacks import attack, hidden
from harness import World, check, rand
from torch import nn

import stator


def test_rule_6_a_generator_with_a_break_in_it():
    def world():
        s = types.SimpleNamespace(k=2.0, log=[])

        def gen(x):
            for i in range(3):
                s.log.append(i)
                yield x * s.k + i
                stator.graph_break()
                s.k += 1

        def fn(x):
            t = 0
            for y in gen(x):
                t = t + y
            return t

        return World(fn=fn, s=s)

    attack(
        world,
        lambda w: setattr(w.s, "k", 2.0),
        lambda w: w.s.log.clear(),
        replayed=False,
        unreplayed="user-graph-break",
    )


def test_rule_6_state_around_a_break_in_a_callee():
    def world():
        s = types.SimpleNamespace(k=2.0, l=[])

        def inner(x):
            y = x * s.k
            print("inner", s.k)
            s.l.append(s.k)
            return y + s.k

        def fn(x):
            a = s.k
            y = inner(x)
            s.k = a + 1
            return y * a + len(s.l)

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "k", 9.0), lambda w: w.s.l.clear(), replayed=False, unreplayed="call-print")


def test_rule_1_an_object_is_exchanged_at_a_break():
    def world():
        s = types.SimpleNamespace(o=types.SimpleNamespace(v=[1.0]))

        def other():
            s.o = types.SimpleNamespace(v=[5.0, 6.0])

        def fn(x):
            o, v = s.o, s.o.v
            y = x * v[0]
            stator.disable(other)()
            v.append(2.0)
            return y + len(o.v) + len(s.o.v) + (o is s.o)

        return World(fn=fn, s=s)

    attack(world, lambda w: w.s.o.v.append(3.0), replayed=False, unreplayed="disabled-function")


def test_rule_1_a_disabled_function_writes():
    def world():
        s = types.SimpleNamespace(k=1.0, t=rand(1), d={"a": 1})

        @stator.disable
        def mutate():
            s.k += 1
            s.t.add_(1)
            s.d["b"] = s.k
            s.d.pop("a", None)

        def fn(x):
            a, t = s.k, s.t
            y = x * t + len(s.d)
            mutate()
            return y + s.k * 100 + a + t + len(s.d) + ("a" in s.d)

        return World(fn=fn, s=s)

    attack(world, lambda w: w.s.d.update(a=1), lambda w: setattr(w.s, "k", 0.0), replayed=False)


def test_rule_6_hooks_that_write():
    def world():
        s = types.SimpleNamespace(n=0, outs=[])
        m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        for p in m.parameters():
            nn.init.ones_(p.data)
        m[0].register_forward_hook(lambda mod, i, o: (s.outs.append(o), setattr(s, "n", s.n + 1))[0])
        m[1].register_forward_pre_hook(lambda mod, i: (i[0] * (s.n + 1),))
        w = World(m=m, s=s, h=[])
        w.fn = lambda x: m(x)
        return w

    attack(
        world,
        lambda w: w.s.outs.clear(),
        lambda w: setattr(w.s, "n", 0),
        lambda w: w.m[0]._forward_hooks.clear(),
        replayed=False,
    )


def test_pitfall_6_backward_hooks_come_and_go():
    def world():
        p = nn.Parameter(rand(3))
        m = nn.Linear(4, 4)
        nn.init.ones_(m.weight)
        nn.init.zeros_(m.bias)
        w = World(p=p, m=m, log=[])
        w.fn = lambda x: m(x * p).sum()
        return w

    def call(change):
        def c(w):
            change(w)
            w.p.grad = None
            y = w.fn(rand(1))
            y.backward()
            return y.detach(), w.p.grad.clone()

        return c

    n = lambda w: None
    check(
        world,
        [
            call(n),
            call(n),
            call(lambda w: w.m.register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,)) and None),
            call(n),
            call(lambda w: w.m._backward_hooks.clear()),
            call(lambda w: w.p.register_hook(lambda g: g * 5) and None),
            call(n),
        ],
        expect=None,
    )


def test_pitfall_14_contexts_of_their_own():
    v = contextvars.ContextVar("v8", default=1.0)

    def world():
        w = World()
        w.fn = lambda x: x * v.get()
        return w

    def in_ctx(val):
        def call(w):
            ctx = contextvars.copy_context()

            def go():
                v.set(val)
                return w.fn(rand(1))

            return ctx.run(go)

        return call

    plain = lambda w: w.fn(rand(2))
    check(world, [plain, plain, in_ctx(3.0), plain, in_ctx(4.0), in_ctx(3.0)], expect=None)


def test_pitfall_16_values_of_a_thread():
    def world():
        l = threading.local()
        v = contextvars.ContextVar("v9", default=1.0)
        w = World()
        w.fn = lambda x: x * getattr(l, "k", 2.0) * v.get()

        def here(k, c):
            l.k = k
            v.set(c)
            return w.fn(rand(1))

        w.here = hidden(here)
        return w

    def in_thread(k, c):
        def call(w):
            out = []
            t = threading.Thread(target=lambda: out.append(w.here(k, c)))
            t.start()
            t.join()
            return out

        return call

    plain = lambda w: w.fn(rand(1))
    check(world, [plain, plain, in_thread(3.0, 2.0), plain, in_thread(4.0, 5.0), plain], expect=None)


def test_rule_4_equal_objects_in_their_place():
    def world():
        s = types.SimpleNamespace(l=[1.0, [2.0]], d={"a": {"b": 1.0}}, t=(1.0, [2.0]), o=types.SimpleNamespace(v=1.0))

        def fn(x):
            s.l[1].append(3.0)
            s.d["a"]["c"] = 2.0
            s.t[1].append(1.0)
            s.o.v += 1
            y = x * len(s.l[1]) + len(s.d["a"]) + len(s.t[1]) + s.o.v
            s.l[1].pop()
            del s.d["a"]["c"]
            s.t[1].pop()
            s.o.v -= 1
            return y, s.l[1], s.d["a"], s.t, s.o

        return World(fn=fn, s=s)

    def renew(w):
        w.s.l, w.s.d, w.s.t, w.s.o = [1.0, [2.0]], {"a": {"b": 1.0}}, (1.0, [2.0]), types.SimpleNamespace(v=1.0)

    def alias(w):
        w.s.l[1] = w.s.t[1]

    attack(world, renew, alias, renew)


def test_rule_4_lists_that_are_one_in_turn():
    def world():
        s = types.SimpleNamespace(a=[1.0], b=[1.0], c={"k": [1.0]})

        def fn(x):
            s.a.append(2.0)
            y = x * len(s.b) + len(s.c["k"])
            s.c["k"].append(3.0)
            y = y + len(s.a) + len(s.b)
            s.b.clear()
            s.b.append(1.0)
            return y + len(s.a) + len(s.c["k"])

        return World(fn=fn, s=s)

    def reset(w):
        w.s.a, w.s.b, w.s.c = [1.0], [1.0], {"k": [1.0]}

    def ab(w):
        w.s.a = w.s.b = [1.0]
        w.s.c = {"k": [1.0]}

    def bc(w):
        w.s.b = [1.0]
        w.s.c = {"k": w.s.b}
        w.s.a = [1.0]

    def abc(w):
        w.s.a = w.s.b = [1.0]
        w.s.c = {"k": w.s.a}

    check(
        world,
        [lambda w, f=f: (f(w), w.fn(rand(1)))[1] for f in (reset, reset, ab, reset, bc, abc, ab, bc, reset)],
        expect=None,
    )


def test_rule_4_tensors_that_are_one_in_turn():
    def world():
        s = types.SimpleNamespace(a=rand(1), b=rand(2), l=[rand(3)])

        def fn(x):
            s.a.add_(1)
            y = x * s.b
            s.l[0].mul_(2)
            s.a, s.b = s.b, s.a
            return y + s.a + s.l[0], s.a is s.b

        return World(fn=fn, s=s)

    def ab(w):
        w.s.a = w.s.b = rand(4)

    def al(w):
        w.s.a = rand(5)
        w.s.l[0] = w.s.a

    def views(w):
        base = rand(6, 8)
        w.s.a, w.s.b, w.s.l[0] = base[:4], base[2:6], base[4:]

    def three(w):
        w.s.a, w.s.b, w.s.l[0] = rand(7), rand(8), rand(9)

    attack(world, ab, three, al, three, views, three)


def test_rule_4_weights_tied_and_untied():
    def world():
        a, b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        nn.init.ones_(a.weight)
        nn.init.ones_(b.weight)

        def fn(x):
            with torch.no_grad():
                a.weight.add_(0.5)
            return b(a(x))

        return World(fn=fn, a=a, b=b)

    def tie(w):
        w.b.weight = w.a.weight

    def untie(w):
        w.b.weight = nn.Parameter(w.a.weight.detach().clone())

    def view(w):
        w.b.weight = nn.Parameter(w.a.weight.data)

    attack(world, tie, untie, view, untie)
