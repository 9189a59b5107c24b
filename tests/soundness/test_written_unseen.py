"""Rules 3, 6 and pitfall 8: writes by ways that are easily overlooked, to tensors, containers and modules."""

from __future__ import annotations

import operator
import types

import numpy as np
import torch
from attacks import attack, hidden
from harness import RECORDED, World, rand
from torch import nn

import stator


def test_pitfall_8_a_storage_is_written():
    def world():
        t = rand(3)
        z = rand(4)

        def fn(x):
            t.untyped_storage().fill_(0)
            return x * t + z

        return World(fn=fn, t=t)

    attack(world, lambda w: w.t.fill_(5.0), replayed=False)


def test_pitfall_8_writes_with_torch_functions_disabled():
    def world():
        t = rand(3)

        def fn(x):
            with torch._C.DisableTorchFunction():
                t.add_(1)
                y = x * 2
            return y + t

        return World(fn=fn, t=t)

    attack(world, lambda w: w.t.zero_(), replayed=False, unreplayed="unknown-callable")


def test_pitfall_8_writes_with_subclasses_disabled():
    def world():
        t = rand(3)

        def fn(x):
            with torch._C.DisableTorchFunctionSubclass():
                t.add_(1)
            return x + 1

        return World(fn=fn, t=t)

    attack(world, lambda w: w.t.zero_(), replayed=False)


def test_pitfall_8_memory_is_written_through_numpy():
    def world():
        a = np.ones(4, dtype=np.float32)
        t = torch.from_numpy(a)

        def fn(x):
            a[0] += 1.0
            a.fill(a[0])
            return x * t

        return World(fn=fn, t=t)

    attack(world, lambda w: w.t.zero_(), replayed=False)


def test_pitfall_8_data_is_written_past_autograd():
    def world():
        t = rand(3, requires_grad=True)

        def fn(x):
            t.data.add_(1)
            t.detach()[0] = 7.0
            with torch.no_grad():
                t.copy_(t * 2)
            return x * t

        return World(fn=fn, t=t)

    attack(world, lambda w: w.t.data.zero_(), replayed=False, unreplayed="tensor-changed")


def test_pitfall_8_tensors_are_swapped():
    def world():
        a, b = rand(3), rand(4)

        def fn(x):
            torch.utils.swap_tensors(a, b)
            return x * a

        w = World(fn=fn)
        w.get = hidden(lambda: (a, b))
        return w

    attack(world, observe=lambda w: [t.clone() for t in w.get()], replayed=False)


def test_pitfall_8_a_tensor_is_set_inside():
    def world():
        a, b = rand(3), rand(4)

        def fn(x):
            a.set_(b)
            a.add_(1)
            return x * a

        return World(fn=fn, a=a, b=b)

    attack(world, lambda w: w.b.zero_(), replayed=False)


def test_pitfall_8_a_tensor_is_resized_inside():
    def world():
        a = rand(3)

        def fn(x):
            a.resize_(2)
            a.resize_(4)
            b = a.t_() if a.dim() == 2 else a.unsqueeze_(0)
            a.squeeze_(0)
            return x * a

        return World(fn=fn, a=a)

    attack(world, lambda w: w.a.zero_(), replayed=False)


def test_rule_3_a_list_grows_while_it_is_iterated():
    def world():
        l = [1.0, 2.0, 3.0]

        def fn(x):
            for v in l:
                x = x * v
                if len(l) < 5:
                    l.append(v + 10)
            while len(l) > 3:
                l.pop()
            for k in list(l):
                l.remove(k)
                l.insert(0, k)
            return x + l[0]

        return World(fn=fn, l=l)

    attack(world, lambda w: w.l.reverse(), lambda w: w.l.clear(), raises=IndexError)


def test_rule_6_the_order_of_a_dict_changes_inside():
    def world():
        s = types.SimpleNamespace(d={"a": 1.0, "b": 2.0, "c": 3.0})

        def fn(x):
            d = s.d
            k = next(iter(d))
            v = d.pop(k)
            d[k] = v + 1
            d.setdefault("z", 0.0)
            d |= {"b": d["b"]}
            first = next(iter(d.items()))
            return x * first[1] + len(d), list(d), d.popitem()

        return World(fn=fn, s=s)

    attack(world, lambda w: w.s.d.update(q=1.0), replayed=False, unreplayed=RECORDED)


def test_rule_6_sets_are_combined_in_place():
    def world():
        s = types.SimpleNamespace(a={1, 2, 3}, b={3, 4}, f=frozenset({1, 9}))

        def fn(x):
            s.a |= s.b
            s.a -= {1}
            s.a ^= s.f
            s.a.discard(2)
            s.a.add(7)
            return x * sum(s.a) + len(s.a & s.b) + (s.f <= s.a) + (9 in s.a)

        return World(fn=fn, s=s)

    attack(
        world,
        lambda w: w.s.a.clear(),
        lambda w: w.s.b.add(100),
        lambda w: setattr(w.s, "f", frozenset()),
        replayed=False,
    )


def test_rule_6_a_heap_is_kept():
    import bisect
    import heapq

    def world():
        h = [5.0, 7.0, 9.0]

        def fn(x):
            heapq.heappush(h, 6.0)
            a = heapq.heappop(h)
            bisect.insort(h, 8.0)
            i = bisect.bisect_left(h, 8.0)
            return x * a + i + heapq.nsmallest(2, h)[1] + heapq.heapreplace(h, 1.0)

        return World(fn=fn, h=h)

    attack(world, lambda w: w.h.__setitem__(slice(None), [1.0, 2.0]), replayed=False, unreplayed="unknown-callable")


def test_rule_5_streams_move_on():
    import io
    import json
    import pickle

    def world():
        s = types.SimpleNamespace(d={"k": [1, 2.5]}, b=io.BytesIO(b"abc"), t=io.StringIO("xyz"))

        def fn(x):
            j = json.loads(json.dumps(s.d))
            p = pickle.loads(pickle.dumps(s.d))
            c = s.b.read(1)
            e = s.t.read(1)
            return x * j["k"][1] + p["k"][0] + len(c) + len(e)

        w = World(fn=fn, d=s.d)
        w.rewind = hidden(lambda: (s.b.seek(0), s.t.seek(0)))
        return w

    attack(world, lambda w: w.d.update(k=[3, 4.5]), lambda w: w.rewind(), replayed=False)


def test_rule_1_a_module_with_lookups_of_its_own():
    def world():
        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.w = nn.Parameter(torch.ones(4))
                s._k = 2.0

            @property
            def k(s):
                return s._k

            @k.setter
            def k(s, v):
                s._k = v * 2

            def __getattr__(s, n):
                if n == "dyn":
                    return s._k + 1
                return super().__getattr__(n)

            def forward(s, x):
                s.k = s.k / 2 + 0.0
                return x * s.w * s.k + s.dyn

        m = M()
        return World(fn=lambda x: m(x), m=m, M=M)

    attack(
        world,
        lambda w: setattr(w.m, "k", 3.0),
        lambda w: w.m.__dict__.update(dyn=100.0),
        lambda w: setattr(w.M, "dyn", 50.0),
        lambda w: w.m.__dict__.pop("dyn"),
        lambda w: delattr(w.m, "w"),
        raises=AttributeError,
    )


def test_rule_1_parameters_of_a_functional_call():
    def world():
        m = nn.Linear(4, 4, bias=False)
        nn.init.ones_(m.weight)
        w = World(m=m, p={"weight": rand(1, 4, 4)})
        w.fn = lambda x: torch.func.functional_call(m, w.p, (x,))
        return w

    attack(
        world,
        lambda w: w.p.update(weight=rand(2, 4, 4)),
        lambda w: w.p.clear(),
        lambda w: w.p.update(weight=rand(2, 4, 4).t()),
        replayed=False,
    )


def test_rule_6_state_of_an_optimizer():
    def world():
        p = [rand(i) for i in range(3)]
        st = {}

        def fn(x):
            for i, t in enumerate(p):
                s = st.setdefault(i, {"step": 0, "m": torch.zeros(4)})
                s["step"] += 1
                s["m"].mul_(0.9).add_(x)
                t.sub_(s["m"] / s["step"])
            return p[0] + 0

        return World(fn=fn, p=p, st=st)

    attack(
        world, lambda w: w.st.clear(), lambda w: w.p.append(rand(9)), lambda w: w.st[0].update(step=0), replayed=False
    )


def test_rule_6_writes_by_functions_of_operator():
    def world():
        s = types.SimpleNamespace(d={"a": 1.0}, l=[1.0], o=types.SimpleNamespace(v=1.0))

        def fn(x):
            operator.setitem(s.d, "b", 2.0)
            operator.iadd(s.l, [3.0])
            operator.delitem(s.d, "a")
            operator.iconcat(s.l, [4.0])
            y = x * len(s.d) + sum(s.l)
            s.d["a"] = 1.0
            del s.l[1:]
            operator.setitem(s.l, slice(0, 1), [1.0])
            operator.methodcaller("__setitem__", "q", 5.0)(s.d)
            return y + s.d["q"] + s.d.pop("q")

        return World(fn=fn, s=s)

    attack(world, lambda w: w.s.l.clear(), lambda w: w.s.d.clear(), raises=(KeyError, IndexError), replayed=False)


def test_rule_6_attributes_written_in_every_way():
    def world():
        class A:
            cls = 1.0

        class Name(str):
            pass

        o = A()
        o.v = 1.0

        def fn(x):
            o.__setattr__("a", 2.0)
            object.__setattr__(o, "b", 3.0)
            o.__dict__["c"] = 4.0
            vars(o).update(d=5.0)
            setattr(o, Name("e"), 6.0)
            o.__dict__ |= {"f": 7.0}
            o.__dict__.setdefault("g", 8.0)
            y = x * (o.a + o.b + o.c + o.d + o.e + o.f + o.g) + len(vars(o))
            del o.a
            o.__delattr__("b")
            vars(o).pop("c")
            del o.__dict__["d"]
            delattr(o, "e")
            object.__delattr__(o, "f")
            return y + hasattr(o, "a") + getattr(o, "b", 1.0) + len(o.__dict__), list(o.__dict__)

        return World(fn=fn, o=o, A=A)

    attack(
        world,
        lambda w: setattr(w.o, "z", 1.0),
        lambda w: setattr(w.A, "b", 50.0),
        lambda w: w.o.__dict__.pop("g"),
        replayed=False,
        unreplayed="unguardable",
    )


def test_rule_6_a_list_stored_before_a_break():
    def world():
        s = types.SimpleNamespace(l=None, d={})

        def fn(x):
            mine = [x, 1.0]
            s.l = mine
            s.d["k"] = mine
            stator.graph_break()
            mine.append(2.0)
            s.d["k"][1] = 7.0
            y = x * s.l[1] + len(s.l)
            stator.graph_break()
            s.l[0] = y
            return mine, s.l is mine, mine[0] is y

        return World(fn=fn, s=s)

    attack(world, lambda w: w.s.d.clear(), lambda w: setattr(w.s, "l", [1]))
