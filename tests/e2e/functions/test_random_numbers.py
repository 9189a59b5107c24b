"""Random numbers: a runtime check looks at those that the result is made of, and a failed replay draws none twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import World, check, rand
from torch import nn


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.dropout(x, 0.5, True)


def attention(x: torch.Tensor) -> torch.Tensor:
    x = x.reshape(2, 1, 4)
    weights, bias = torch.ones(12, 4), torch.zeros(12)
    y, _ = F.multi_head_attention_forward(
        x, x, x, 4, 2, weights, bias, None, None, False, 0.5, torch.eye(4), None, training=True
    )
    return y.reshape(8)


RANDOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, dim=0),
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout1d": lambda x: F.dropout1d(x.reshape(4, 2), 0.5).reshape(8),
    "dropout2d": lambda x: F.dropout2d(x.reshape(4, 1, 2), 0.5).reshape(8),
    "dropout3d": lambda x: F.dropout3d(x.reshape(4, 1, 1, 2), 0.5).reshape(8),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x.reshape(4, 2), 0.5, training=True).reshape(8),
    "rrelu": lambda x: F.rrelu(-x.abs(), training=True),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x.repeat(8, 1)[None], 2, 4).reshape(-1)[:8] * x,
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)) * x,
    "rand_like": lambda x: torch.rand_like(x),
    "randperm": lambda x: torch.randperm(8) * 1.0,
    "normal_": lambda x: torch.empty(8).normal_(),
    "nn.init": lambda x: nn.init.xavier_uniform_(torch.empty(2, 4)).reshape(8),
    "attention": attention,
    "scaled_dot_product_attention": lambda x: (
        F.scaled_dot_product_attention(x.reshape(1, 2, 4), x.reshape(1, 2, 4), x.reshape(1, 2, 4), dropout_p=0.5)
    ).reshape(8),
    "scripted": scripted,
    "vmap": lambda x: torch.vmap(lambda row: row + torch.rand(2), randomness="different")(x.reshape(4, 2)).reshape(8),
}


def insisting(draw: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def fn(x: torch.Tensor, bound: torch.Tensor) -> Any:
        y = draw(x)
        if (y.max() > bound).item():
            raise ValueError("too large")
        return y * 2, torch.rand(2)

    return fn


def failing(draw: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def fn(x: torch.Tensor, i: torch.Tensor) -> Any:
        y = draw(x)
        try:
            return y[i] * 2
        except IndexError:
            return y * 3

    return fn


@pytest.mark.parametrize("name", RANDOM)
def test_a_check_sees_the_numbers_of_the_result(name):
    calls = [lambda w, s=s, b=b: w.fn(rand(s, 8), torch.tensor(b)) for s, b in ((1, 9e9), (2, 9e9), (3, 0.3), (4, 0.7))]
    calls += [lambda w, s=s: w.fn(rand(s, 8), torch.tensor(0.5)) for s in range(9)]
    done = check(lambda: World(fn=insisting(RANDOM[name])), calls, expect=None, raises=ValueError, tracebacks=False)
    assert done.graphs and "hit" in done.outcomes


@pytest.mark.parametrize("name", RANDOM)
def test_a_failed_replay_draws_no_number_twice(name):
    calls = [lambda w, s=s, i=i: w.fn(rand(s, 8), torch.tensor([i])) for s, i in enumerate((1, 2, 99, 3, 99, 4))]
    done = check(lambda: World(fn=failing(RANDOM[name])), calls, expect=None)
    assert done.graphs and "hit" in done.outcomes
