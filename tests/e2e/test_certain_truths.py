"""Truths of tensors that are the same for all data: a layer that is dropped with probability 0 never is."""

from __future__ import annotations

import pytest
import torch
from harness import World, check, rand

DROP = {"rate": 0.0}
CALLS = [lambda w, s=s: w.fn(rand(s)) for s in range(4)]
ONE = "miss hit hit hit"


def of(fn):
    return lambda: World(fn=fn)


def layers(x):
    for _ in range(3):
        number = torch.rand([])
        if number < DROP["rate"]:
            continue
        x = torch.nn.functional.dropout(x.sin() + 1, 0.5)
    return x


def kept(x):
    skip = DROP["rate"] >= 0 and torch.rand([]) < DROP["rate"]
    if not skip:
        x = x * torch.rand(4)
    return x - 1 if skip else x + 1


ALWAYS_THE_SAME = {
    "layers": layers,
    "asked twice": kept,
    "at least 0": lambda x: x + 1 if torch.rand(()) >= 0 else x,
    "above a negative": lambda x: x + 1 if torch.rand(()) > -0.5 else x,
    "at most a negative": lambda x: x + 1 if torch.rand(()) <= -0.5 else x,
    "of one element": lambda x: x + 1 if torch.rand(1, 1, dtype=torch.float64) < 0 else x,
    "from the right": lambda x: x + 1 if DROP["rate"] > torch.rand(()) else x,
    "by name": lambda x: x + 1 if torch.rand(()).lt(0.0).is_nonzero() else x,
    "not": lambda x: x + 1 if not torch.rand(()) < 0.0 else x,
}


@pytest.mark.parametrize("name", ALWAYS_THE_SAME)
def test_the_graph_is_whole(name):
    check(of(ALWAYS_THE_SAME[name]), CALLS, expect=ONE, breaks=[])


def with_rate(seed, rate):
    def run(w: World):
        DROP["rate"] = rate
        try:
            return w.fn(rand(seed))
        finally:
            DROP["rate"] = 0.0

    return run


@pytest.mark.parametrize("fn", [layers, kept])
def test_another_rate_is_noticed(fn):
    calls = [with_rate(1, 0.0), with_rate(2, 0.0), *(with_rate(s, 0.5) for s in range(3, 13)), with_rate(13, 0.0)]
    seen = check(of(fn), calls, expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"tensor-bool"}


def lowered(x):
    number = torch.rand([])
    number -= x[0].abs()
    return x + 1 if number < 0 else x


def lowered_by_a_view(x):
    number = torch.rand([])
    number.view(1)[0] = x[0]
    return x + 1 if number < 0 else x


def turned(x):
    small = torch.rand([]) < 0
    small |= x[0] > 0
    return x + 1 if small else x


def compared_into(x):
    number = torch.rand([])
    torch.lt(x[0], x[1], out=number)
    small = torch.rand([]) < 0
    torch.gt(x[1], x[2], out=small)
    return x + 1 if number < 0 or small else x


@torch.library.custom_op("certain_truths::lt", mutates_args=())
def own_comparison(number: torch.Tensor, bound: float) -> torch.Tensor:
    return number > 0.5


@own_comparison.register_fake
def _(number, bound):
    return torch.empty_like(number, dtype=torch.bool)


DEPENDS_ON_DATA = {
    "a comparison of another library": lambda x: x + 1 if torch.ops.certain_truths.lt(torch.rand([]), 0.0) else x,
    "an outside tensor": lambda x: x + 1 if x[0] < 0 else x,
    "a rate above 0": lambda x: x + 1 if torch.rand([]) < 0.5 else x,
    "at most 0": lambda x: x + 1 if torch.rand([]) <= 0 else x,
    "normal numbers": lambda x: x + 1 if torch.randn([]) < 0 else x,
    "a rate from a tensor": lambda x: x + 1 if torch.rand([]) < x[0] else x,
    "a difference": lambda x: x + 1 if torch.rand([]) - 0.5 < 0 else x,
    "a number that was lowered": lowered,
    "a number that was lowered by a view": lowered_by_a_view,
    "an outcome that was turned": turned,
    "an outcome that was overwritten": compared_into,
}


@pytest.mark.parametrize("name", DEPENDS_ON_DATA)
def test_the_graph_breaks(name):
    seen = check(of(DEPENDS_ON_DATA[name]), [lambda w, s=s: w.fn(rand(s)) for s in range(8)], expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"tensor-bool"}
