"""What the tests of training share: parameters, gradients, and calls of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from harness import Call, World, rand
from torch import nn

SHAPES = ((3, 4), (4,), (2, 2))


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(rand(place, *shape).to(dtype)) for place, shape in enumerate(SHAPES)]


def give_grads(params: Sequence[nn.Parameter], seed: int, *, without: Sequence[int] = ()) -> None:
    """Gradients that depend on the seed; none for some of the parameters."""
    for place, parameter in enumerate(params):
        grad = rand(100 * seed + place, *parameter.shape).to(parameter.dtype)
        parameter.grad = None if place in without else grad


def stepping(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], dtype: torch.dtype = torch.float32
) -> Callable[[], World]:
    """A world whose function is the step of an optimizer."""

    def world() -> World:
        params = parameters(dtype)
        optimizer = make(params)
        return World(fn=optimizer.step, optimizer=optimizer, params=params)

    return world


def step(seed: int, before: Callable[[World], Any] = lambda w: None, **kwargs: Any) -> Call:
    """One step with gradients of its own."""

    def call(w: World) -> Any:
        give_grads(w.params, seed, **kwargs)
        before(w)
        return w.fn()

    return call
