"""How a guard on an argument of a compiled module is told: by the name in its `forward`, with a line of the user's."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

import stator
from stator.replay.guard_text import Miss, of_module

IN_TORCH = os.path.join(os.path.dirname(torch.__file__), "nn", "modules", "linear.py:1")
IN_CALL = os.path.join(os.path.dirname(torch.__file__), "nn", "modules", "module.py:1")


class Repeated(nn.Module):
    def forward(self, x: Any, n: int, *, scale: float = 1.0, **more: Any) -> Any:
        for _ in range(n):
            x = x + 1
        return x * scale


def place(offset: int) -> str:
    return f"{__file__}:{Repeated.forward.__code__.co_firstlineno + offset}"


def told(module: Any, guard: str, needed_by: str = IN_TORCH) -> tuple[str, list[str]]:
    miss = of_module(Miss(guard, "1", "2", needed_by), module)
    return miss.guard, miss.places


def test_arguments_by_position_and_by_name() -> None:
    module = Repeated()
    assert told(module, "args[0].size") == ("x.size", [place(2), IN_TORCH])
    assert told(module, "args[1]") == ("n", [place(1), IN_TORCH])
    assert told(module, "kwargs['scale']", IN_CALL) == ("scale", [place(3)])
    assert told(module, "args[0].size", place(2)) == ("x.size", [place(2)])


def test_what_is_no_argument_has_no_line() -> None:
    module = Repeated()
    for guard in ("args[7]", "self.training"):
        assert told(module, guard) == (guard, [IN_TORCH])
    assert told(module, "kwargs['other']") == ("other", [IN_TORCH])
    for other in (nn.Module(), 3):  # a forward that takes anything; none
        assert told(other, "args[0]") == ("args[0]", [IN_TORCH])


def test_a_miss_is_told_with_it() -> None:
    compiled = stator.compile(Repeated(), backend="eager", dynamic=False)
    for n in (2, 3, 3):
        assert torch.equal(compiled(torch.zeros(2), n), torch.full((2,), float(n)))
    miss = compiled.stator.last_miss
    assert (miss.guard, miss.expected, miss.found, miss.places) == ("n", "2", "3", [place(1)])
    assert str(miss).endswith(f"(needed by {place(1)})") and compiled.stator.recordings == 2
