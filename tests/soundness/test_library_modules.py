"""Modules of torch that change themselves when they are called (rule 6)."""

from __future__ import annotations

import torch
from attacks import attack
from harness import World, rand
from torch import nn


def test_rule_6_lazy_modules_become_others():
    def world():
        torch.manual_seed(0)
        m = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
        return World(fn=lambda x: m(x.view(1, 4).repeat(2, 1) * torch.tensor([[1.0], [2.0]])), m=m)

    attack(world, lambda w: w.m.eval(), replayed=False)


def test_rule_6_norms_of_weights():
    def world():
        torch.manual_seed(0)
        m = nn.utils.spectral_norm(nn.Linear(4, 4))
        n = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        p = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        return World(fn=lambda x: m(x) + n(x) + p(x), m=m, n=n, p=p)

    attack(
        world,
        lambda w: w.m.eval(),
        lambda w: w.p.eval(),
        lambda w: nn.utils.parametrize.remove_parametrizations(w.n, "weight"),
        replayed=False,
    )


def test_rule_6_embeddings_that_renormalise():
    def world():
        torch.manual_seed(0)
        e = nn.Embedding(5, 4, max_norm=1.0)
        r = nn.GRU(4, 4)
        l = nn.LSTM(4, 4)

        def fn(x):
            y = e(torch.tensor([1, 2]))
            o, h = r(y)
            o2, (h2, _) = l(y)
            return o + o2 + x, h, h2

        return World(fn=fn, e=e, r=r, l=l)

    attack(
        world,
        lambda w: w.e.weight.data.mul_(5),
        lambda w: setattr(w.r, "weight_ih_l0", nn.Parameter(rand(3, 12, 4))),
        lambda w: w.l.weight_hh_l0.data.zero_(),
    )


def test_pitfall_7_weights_written_inside_autocast():
    def world():
        m = nn.Linear(4, 4)
        nn.init.ones_(m.weight)
        nn.init.zeros_(m.bias)

        def fn(x):
            with torch.autocast("cpu", torch.bfloat16):
                y = m(x)
                with torch.no_grad():
                    m.weight.add_(1)
                return y + m(x)

        return World(fn=fn, m=m)

    attack(world, lambda w: w.m.weight.data.zero_())
