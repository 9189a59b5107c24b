"""What the tests of whole training steps share: models, steps, calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from harness import World, check, rand
from torch import nn, optim

ONE = "miss hit hit hit hit hit"
TWO = "miss miss hit hit hit hit"  # the first step makes the optimizer's state


def network(*, norm: bool = True, dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    parts = [nn.Linear(4, 8), *([nn.BatchNorm1d(8)] * norm), nn.Tanh(), *([nn.Dropout(dropout)] * bool(dropout))]
    return nn.Sequential(*parts, nn.Linear(8, 3))


def target(seed: int, rows: int = 5) -> torch.Tensor:
    return torch.randint(3, (rows,), generator=torch.Generator().manual_seed(seed))


def on(seed: int, before: Callable[[World], Any] | None = None, rows: int = 5) -> Any:
    def call(w: World) -> Any:
        if before is not None:
            before(w)
        return w.fn(rand(seed, rows, 4), target(seed, rows))

    return call


SIX = [on(seed) for seed in range(6)]


def stepping(kind: Any = optim.SGD, body: Callable[..., Any] | None = None, **network_is: Any) -> Callable[[], World]:
    """A world whose function is a whole step; `body` runs between `backward` and the optimizer."""

    def world() -> World:
        model = network(**network_is)
        optimizer = kind(model.parameters(), lr=0.1)

        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if body is not None:
                body(model)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return World(fn=step, model=model, optimizer=optimizer, state=lambda: optimizer.state_dict())

    return world


def state(w: World) -> Any:
    return w.state()


def whole(world: Callable[[], World], calls: Any = SIX, expect: str | None = TWO, **options: Any) -> Any:
    """One graph for each recording, no break, and everything as in eager."""
    options.setdefault("breaks", [])
    options.setdefault("observe", state)
    return check(world, calls, expect=expect, **options)


OPTIMIZERS: dict[str, Any] = {
    "SGD": optim.SGD,
    "SGD with momentum": lambda p, lr: optim.SGD(p, lr=lr, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": optim.Adam,
    "AdamW": optim.AdamW,
    "AdamW, all at once": lambda p, lr: optim.AdamW(p, lr=lr, foreach=True),
    "AdamW, fused": lambda p, lr: optim.AdamW(p, lr=lr, fused=True),
    "AMSGrad": lambda p, lr: optim.Adam(p, lr=lr, amsgrad=True),
    "NAdam": optim.NAdam,
    "RMSprop": optim.RMSprop,
    "Adagrad": optim.Adagrad,
    "Adamax": optim.Adamax,
    "Rprop": optim.Rprop,
}


CLIPS: dict[str, Any] = {
    "norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "norm, one by one": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False),
    "value": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.01),
    "by hand": lambda model: [p.grad.mul_(0.5) for p in model.parameters()],
    "replaced": lambda model: [setattr(p, "grad", p.grad * 2) for p in model.parameters()],
}


def forget(w: World) -> None:
    w.model.zero_grad()


def over(fn: Callable[..., Any], **network_is: Any) -> Callable[[], World]:
    """A world whose function takes a model, inputs and targets."""

    def world() -> World:
        model = network(norm=False, **network_is)
        return World(fn=lambda x, y: fn(model, x, y), model=model)

    return world


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(model(x), y)


def loss_returned(model, x, y):
    loss = loss_of(model, x, y)
    loss.backward()
    return loss
