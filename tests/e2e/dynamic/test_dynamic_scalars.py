"""Numbers that a graph takes from tensors (`capture_scalar_outputs`): arithmetic with them stays in it."""

from __future__ import annotations

import pytest
import torch
from harness import World, check

import stator

VALUES = ([1.0, 2.0], [3.0, 4.0], [0.0, 1.0], [5.0, 1.0], [2.0, 2.0, 2.0], [1.0, 1.0, 7.0])
BOTH_SIZES = "miss hit hit hit miss hit"


@pytest.fixture(autouse=True)
def _capturing():
    with stator.options.patch(capture_scalar_outputs=True):
        yield


def run(fn, expect, breaks=None, **kwargs):
    calls = [lambda w, v=v: w.fn(torch.tensor(v)) for v in VALUES]
    return check(lambda: World(fn=fn), calls, expect=expect, breaks=breaks, **kwargs)


ONE_GRAPH = {
    "arithmetic": lambda x, n: x * (n * 2 + 1) - n / 4,
    "left": lambda x, n: x + (3 - n) * -n,
    "whole": lambda x, n: x * (x.long().sum().item() // 2 + n),
    "two of them": lambda x, n: x * (n + x.max().item()),
    "handed on": lambda x, n: torch.clamp(x, max=n - 1) + torch.full_like(x, n),
    "with a size": lambda x, n: x * (n + x.shape[0]),
    "gathered": lambda x, n: (x * n, [n, (n + 1, 2)]),
}


@pytest.mark.parametrize("use", ONE_GRAPH.values(), ids=list(ONE_GRAPH))
def test_it_stays_in_one_graph(use):
    run(lambda x: use(x, x.sum().item()), BOTH_SIZES, breaks=[])


NEEDED = {
    "compared": lambda x, n: x * n if n > 3 else x - n,
    "truth": lambda x, n: x * 2 if n else x,
    "divisor": lambda x, n: x * (1 / (n + 1)),
    "power": lambda x, n: x * n**2,
    "formatted": lambda x, n: (x * n, f"{n} {n + 1}"),
    "index": lambda x, n: x * [1, 2, 3, 4, 5, 6, 7, 8, 9, 10][int(n)],
    "size": lambda x, n: torch.zeros(int(n)) + x.sum(),
    "range": lambda x, n: [x + i for i in range(int(n))],
    "hashed": lambda x, n: x * {3.0: 2}.get(n, 5),
    "identity": lambda x, n: x * 2 if n is n else x,
    "maximum": lambda x, n: x * max(n, 4),
}


@pytest.mark.parametrize("use", NEEDED.values(), ids=list(NEEDED))
def test_what_needs_the_number_waits_for_it(use):
    with stator.options.patch(cache_size_limit=64):
        run(lambda x: use(x, x.sum().item()), None, unreplayed="tensor-item")
