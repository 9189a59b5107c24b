"""Pitfalls 8, 9, 22 to 24, 27: what operations read, set and hand out; and modules of torch that change."""

from __future__ import annotations

import copy
import operator
import types

import numpy as np
import torch
from attacks import attack
from harness import World, check, rand
from torch import nn


def test_pitfall_9_numbers_read_out_of_tensors():
    def world():
        t = torch.tensor([1.0, 2.0, 3.0, 4.0])

        def fn(x):
            a = t[0].item() + float(t[1]) + int(t[2]) + len(t.tolist())
            b = [5.0, 6.0, 7.0][torch.tensor(1)] if bool(t[3] > 3.5) else 0.0
            return x * a + b + (x[0].item() > 0)

        return World(fn=fn, t=t)

    attack(world, lambda w: w.t.mul_(2), lambda w: w.t.sub_(9), replayed=False)


def test_pitfall_9_memory_handed_out():
    def world():
        t = rand(3)

        def fn(x):
            y = x * t
            alias = torch.from_dlpack(y)
            y.add_(1)
            other = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(y))
            st = y.untyped_storage()
            return alias, other, y.data_ptr() == alias.data_ptr(), st.nbytes(), float(np.asarray(y).sum())

        return World(fn=fn, t=t)

    attack(world, lambda w: w.t.zero_(), replayed=False)


def test_pitfall_9_nodes_of_autograd():
    def world():
        p = rand(3, requires_grad=True)

        def fn(x):
            y = x * p
            return y, type(y.grad_fn).__name__, y.grad_fn.next_functions[0][0] is None

        return World(fn=fn, p=p)

    attack(world, replayed=False)


def test_pitfall_9_deep_copies():
    def world():
        o = types.SimpleNamespace(l=[1.0], t=rand(3))
        o.me = o

        def fn(x):
            c = copy.deepcopy(o)
            d = copy.copy(o)
            c.l.append(2.0)
            d.l.append(3.0)
            return x * c.t + len(c.l) + len(o.l), c.me is c, d.l is o.l

        return World(fn=fn, o=o)

    attack(
        world,
        lambda w: w.o.l.clear(),
        lambda w: w.o.t.zero_(),
        lambda w: setattr(w.o, "extra", 1),
        replayed=False,
        unreplayed="unknown-callable",
    )


def test_pitfall_22_properties_of_tensors_are_read():
    def world():
        t = rand(3, 2, 3)

        def fn(x):
            c = torch.complex(t, t)
            g = t.clone().requires_grad_()
            g.grad = t * 2
            y = c.real + c.imag + c.H.mT.real + t.T.mT + g.grad + g.data
            return y, c, x**2, 2**x, x.shape, t.ndim, t.is_leaf, x.dtype

        return World(fn=fn, t=t)

    attack(world, lambda w: w.t.mul_(2))


def test_pitfall_22_properties_of_tensors_are_set():
    def world():
        t = rand(3, 2, 3)

        def fn(x):
            c = torch.complex(t, t)
            g = t.clone().requires_grad_()
            g.grad = t * 2
            c.real = t * 5
            del g.grad
            z = t.detach()
            z.data = t * 3
            return c, z, g.grad, x**2

        return World(fn=fn, t=t)

    attack(world, lambda w: w.t.mul_(2), replayed=False)


def test_pitfall_8_parts_and_classes_of_tensors_are_assigned():
    class Sub(torch.Tensor):
        pass

    def world():
        c = torch.complex(rand(1), rand(2))
        t = rand(5)

        def fn(x):
            c.real = x * 5
            setattr(c, "imag", x)
            t.__class__ = Sub if type(t) is torch.Tensor else torch.Tensor
            x.__dict__ = {"tag": 1}
            return x + 1, type(t).__name__, c.real * 2

        return World(fn=fn, c=c, t=t)

    attack(world, lambda w: w.c.zero_(), replayed=False)


def test_pitfall_8_the_real_part_of_an_argument_is_assigned():
    def world():
        def fn(c, x):
            c.real = x * 5
            return x + c.imag

        return World(fn=fn)

    def call(seed):
        def c(w):
            z = torch.complex(rand(seed), rand(seed + 1))
            return w.fn(z, rand(seed + 2)), z

        return c

    check(world, [call(1), call(2), call(3), call(4)], expect=None)


def test_pitfall_24_numpy_values_as_arguments():
    def world():
        w = World(i=np.int64(1), f=np.float32(2.0), a=np.array([1.0, 2.0, 3.0, 4.0]))
        w.fn = lambda x: x * w.f + x[w.i] + torch.add(x, float(w.f)) + torch.full((4,), w.f) + torch.as_tensor(w.a)
        return w

    def other(w):
        w.i, w.f = np.int64(2), np.float32(3.0)

    def plain(w):
        w.i, w.f = 2, 3.0

    attack(world, other, plain, lambda w: w.a.fill(7.0), replayed=False)


def test_pitfall_24_functions_as_arguments():
    def world():
        s = types.SimpleNamespace(k=2.0)
        t = rand(3)
        return World(
            fn=lambda x: x.clone().apply_(lambda v: v * s.k) + t.map_(x, lambda a, b: a + b) + x.sum(dim=[0]), s=s, t=t
        )

    attack(world, lambda w: setattr(w.s, "k", 3.0), replayed=False)


def test_pitfall_27_tensors_that_come_and_go():
    def world():
        def fn(x):
            total = 0.0
            for i in range(50):
                t = x * i
                total = total + t.sum()
                del t
                o = [i]
                total = total + len(o)
                del o
            return x + total

        return World(fn=fn)

    attack(world, replayed=False)


def test_rule_6_buffers_written_in_forward():
    def world():
        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.register_buffer("b", torch.zeros(4))
                s.n = 0

            def forward(s, x):
                s.b = s.b + x
                s.n += 1
                if s.n == 3:
                    s.register_buffer("c", x.clone())
                if hasattr(s, "c"):
                    x = x + s.c
                return x * s.b

        m = M()
        return World(fn=lambda x: m(x), m=m)

    attack(
        world, lambda w: w.m._buffers.pop("c", None), lambda w: delattr(w.m, "b"), raises=AttributeError, replayed=False
    )


def test_rule_1_parts_of_a_sequence_of_modules():
    def world():
        m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
        for p in m.parameters():
            nn.init.ones_(p.data)
        return World(fn=lambda x: m(x.view(1, 4).repeat(3, 1)), m=m)

    attack(
        world,
        lambda w: w.m.eval(),
        lambda w: w.m[1].train(),
        lambda w: setattr(w.m[1], "p", 0.1),
        lambda w: w.m.append(nn.ReLU()),
        lambda w: w.m.pop(0),
    )


def test_pitfall_13_a_custom_operator_reads_state():
    lib = torch.library.Library("soundness_attack", "DEF")
    lib.define("scale(Tensor x) -> Tensor")
    box = {"k": 2.0}
    lib.impl("scale", lambda x: x * box["k"], "CPU")

    def world():
        box["k"] = 2.0
        return World(fn=lambda x: torch.ops.soundness_attack.scale(x) + 1)

    attack(world, lambda w: box.update(k=3.0), lambda w: box.update(k=5.0), replayed=False)


def test_pitfall_13_a_backward_of_the_program():
    def world():
        s = types.SimpleNamespace(k=2.0)

        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                s.k += 1
                return g * s.k

        def fn(x):
            p = x.clone().requires_grad_()
            F.apply(p).sum().backward()
            return p.grad * 1

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "k", 0.0), replayed=False)


def test_pitfall_23_powers_of_every_kind():
    def world():
        w = World(n=2, t=rand(3).abs())

        def fn(x):
            y = x.abs() + 1
            y **= w.n
            return y**w.t + w.n**x + pow(y, w.n) + operator.pow(x, 2) + torch.pow(2, x) + x.pow(w.n) + y.__rpow__(w.n)

        w.fn = fn
        return w

    attack(world, lambda w: setattr(w, "n", 3), lambda w: setattr(w, "n", 0.5), lambda w: w.t.zero_())
