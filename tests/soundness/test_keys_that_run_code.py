"""Keys of class dicts whose comparison runs code, and modes that see `.grad`: the guards hold on to nothing that such
code takes away."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import stator


class Key(str):
    """Meets `name` in every dict, and acts when it is compared with it."""

    number: int
    act: Callable[[], Any]

    def __new__(cls, name: str, act: Callable[[], Any]) -> Key:
        made = super().__new__(cls, "another " + name)
        made.number, made.act = hash(name), act
        return made

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        self.act()
        return False


class Base:
    scale = 2.0

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def world() -> tuple[Any, list[torch.Tensor], Callable[[], None]]:
    """An object, a list, and what puts other tensors of the same value into the list and lets the former ones go."""

    class D(Base):
        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return super().twice(x)

    box = [torch.full((3,), 5.0) for _ in range(4)]

    def act() -> None:
        box[:] = [torch.full((3,), 5.0) for _ in box]
        gc.collect()

    return D(), box, act


def read_attribute(d: Any, box: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return (x * box[0] + box[1] - box[2] * box[3]) * d.scale


def read_missing(d: Any, box: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return (x * box[0] + box[1] - box[2] * box[3]) * getattr(d, "missing", 3.0)


def call_super(d: Any, box: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return d.twice(x * box[0] + box[1] - box[2] * box[3])


@pytest.mark.parametrize(
    ("function", "name"),
    [(read_attribute, "scale"), (read_missing, "missing"), (call_super, "twice"), (read_attribute, "__class__")],
)
def test_rule_7_bases_get_a_key_that_acts(function: Callable[..., torch.Tensor], name: str) -> None:
    d, box, act = world()
    fast = stator.compile(function, backend="eager")
    for seed in range(4):
        x = torch.full((3,), float(seed))
        assert torch.equal(fast(d, box, x), function(d, box, x))
    assert (fast.stator.recordings, fast.stator.hits) == (1, 3)
    acted = []
    bad = type("Bad", (Base,), {Key(name, lambda: (acted.append(1), act())): None})
    type(d).__bases__ = (bad,)
    for seed in range(4):
        x = torch.full((3,), float(seed))
        assert torch.equal(fast(d, box, x), function(d, box, x))
    assert acted or name == "__class__"  # which nobody asks for


def test_rule_7_a_mode_that_acts_when_grad_is_read() -> None:
    _, box, act = world()
    p = torch.ones(3, requires_grad=True)
    p.grad = torch.ones(3)

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__self__", None) is torch.Tensor.grad:
                act()
            return func(*args, **(kwargs or {}))

    def step(box: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return (x * box[0] + box[1] - box[2] * box[3]) * p.grad

    fast = stator.compile(step, backend="eager")
    for turn in range(3):
        for seed in range(3):
            x = torch.full((3,), float(seed))
            assert torch.equal(fast(box, x), step(box, x))
            with Mode():
                assert torch.equal(fast(box, x), step(box, x)), turn
    assert fast.stator.hits >= 6
