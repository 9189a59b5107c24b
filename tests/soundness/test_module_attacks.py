"""Modules of torch, patched and hooked behind a recording (rule 1, pitfalls 12, 13, 19, 25, 26)."""

from __future__ import annotations

import types

import torch
from attacks import attack, hidden
from harness import World, check, rand
from torch import nn


def test_rule_1_parameters_are_replaced_in_every_way():
    def world():
        m = nn.Linear(4, 4)
        torch.manual_seed(0)
        nn.init.normal_(m.weight)
        return World(fn=lambda x: m(x), m=m)

    def tie(w):
        w.m.bias = nn.Parameter(rand(1))

    attack(
        world,
        lambda w: setattr(w.m, "weight", nn.Parameter(rand(7, 4, 4))),
        tie,
        lambda w: setattr(w.m, "bias", None),
        lambda w: w.m._parameters.update(weight=nn.Parameter(rand(8, 4, 4))),
        lambda w: w.m.__dict__.update(bias=rand(3)),
        lambda w: setattr(w.m, "forward", lambda x: x * 0),
    )


def test_rule_1_a_module_class_is_patched():
    def world():
        class M(nn.Module):
            def forward(s, x):
                return x * 2

        m = M()
        return World(fn=lambda x: m(x), m=m, M=M)

    def call(s, x):
        return x * 100

    attack(
        world,
        lambda w: setattr(w.M, "forward", lambda s, x: x * 3),
        lambda w: setattr(w.M, "_call_impl", lambda s, x: x * 4),
        lambda w: setattr(w.M, "__call__", call),
        lambda w: delattr(w.M, "__call__"),
        lambda w: setattr(w.m, "_compiled_call_impl", lambda x: x * 9),
        lambda w: setattr(w.m, "_compiled_call_impl", None),
        lambda w: setattr(w.m, "__class__", nn.Identity),
    )


def test_pitfall_12_module_call_itself_is_patched():
    def world():
        m = nn.ReLU()
        return World(fn=lambda x: m(x) + 1)

    orig = nn.Module.__call__
    oi = nn.Module._call_impl

    def p1(w):
        nn.Module.__call__ = lambda s, *a, **k: orig(s, *a, **k) * 2

    def p2(w):
        nn.Module._call_impl = lambda s, *a, **k: oi(s, *a, **k) * 3

    def un(w):
        nn.Module.__call__ = orig
        nn.Module._call_impl = oi

    try:
        attack(world, p1, un, p2, un)
    finally:
        un(None)


def test_rule_1_hooks_for_all_modules():
    def world():
        m = nn.ReLU()
        return World(fn=lambda x: m(x) + 1)

    hs = []

    def p1(w):
        hs.append(nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 2))

    def p2(w):
        hs.append(nn.modules.module.register_module_forward_pre_hook(lambda m, i: (i[0] * 3,)))

    def un(w):
        while hs:
            hs.pop().remove()

    try:
        attack(world, p1, un, p2, un)
    finally:
        un(None)


def test_pitfall_13_torch_function_with_a_log():
    def world():
        class Logged(torch.Tensor):
            log = []
            scale = 1.0

            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                cls.log.append(getattr(func, "__name__", "?"))
                out = super().__torch_function__(func, types, args, kwargs or {})
                return out

        w = World(t=rand(9).as_subclass(Logged), L=Logged)
        w.fn = lambda x: (w.t * x).sum() + w.t.relu()
        return w

    attack(world, lambda w: w.L.log.clear(), lambda w: setattr(w, "t", rand(1)), replayed=False)


def test_pitfall_13_torch_dispatch_with_a_log():
    def world():
        class Wrapped(torch.Tensor):
            log = []

            @staticmethod
            def __new__(cls, inner):
                return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

            def __init__(self, inner):
                self.inner = inner

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                cls.log.append(str(func))
                return func(*(a.inner if isinstance(a, cls) else a for a in args), **(kwargs or {}))

        w = World(t=rand(8), log=Wrapped.log, sub=hidden(lambda: Wrapped(rand(3))))
        w.fn = lambda x: w.t * x + 1
        return w

    check(
        world,
        [
            lambda w: w.fn(rand(1)),
            lambda w: w.fn(rand(2)),
            lambda w: w.fn(w.sub()),
            lambda w: w.fn(w.sub()),
            lambda w: w.fn(rand(3)),
        ],
        expect=None,
    )


def test_pitfall_19_the_fast_path_of_an_encoder_layer():
    def world():
        m = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        for i, p in enumerate(m.parameters()):
            nn.init.normal_(p.data, generator=torch.Generator().manual_seed(i))
        return World(fn=lambda x: m(x.view(1, 1, 4).repeat(1, 2, 2)), m=m)

    def ng(w):
        with torch.no_grad():
            return w.fn(rand(1))

    check(world, [ng, ng, lambda w: w.fn(rand(1)), ng, lambda w: (w.m.train(False), ng(w))[1]], expect=None)


def test_pitfall_25_operations_for_their_effect_alone():
    def world():
        b = rand(1)
        bn = nn.BatchNorm1d(4)

        def fn(x):
            b.add_(1)
            b[0] = 5.0
            x.requires_grad_(False)
            y = x.clone()
            y[1] = 7.0
            torch._foreach_add_([b], 1.0)
            bn(torch.stack([x, y]))
            x**2
            x.add(1)
            return x * 2

        return World(fn=fn, b=b, bn=bn)

    attack(world, lambda w: w.b.zero_())


def test_pitfall_26_grad_mode_after_an_exception():
    def world():
        s = types.SimpleNamespace(i=1)

        def fn(x):
            with torch.no_grad():
                y = x[s.i]
            return y * 2

        return World(fn=fn, s=s)

    attack(world, lambda w: setattr(w.s, "i", 10), lambda w: setattr(w.s, "i", 2), raises=IndexError)


def test_pitfall_26_modes_after_a_failing_replay():
    def world():
        def fn(x, i):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                return x.index_select(0, i) * 2

        return World(fn=fn)

    ok = lambda w: w.fn(rand(1), torch.tensor([1]))
    bad = lambda w: w.fn(rand(1), torch.tensor([100]))
    check(world, [ok, ok, bad, ok, bad], expect=None, raises=(IndexError, RuntimeError), tracebacks=False)
