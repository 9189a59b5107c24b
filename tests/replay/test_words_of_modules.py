"""Which line of the user's a guard on an argument of a compiled module is told with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import stator
from stator.replay.guard_text import first_read_in_forward


class Repeated(nn.Module):
    def forward(self, x: Any, n: int, *, scale: float = 1.0, **more: Any) -> Any:
        for _ in range(n):
            x = x + 1
        return x * scale


def place(offset: int) -> str:
    return f"{__file__}:{Repeated.forward.__code__.co_firstlineno + offset}"


def test_arguments_by_position_and_by_name() -> None:
    module = Repeated()
    assert first_read_in_forward(module, "args[0].size") == place(2)
    assert first_read_in_forward(module, "args[1]") == place(1)
    assert first_read_in_forward(module, "kwargs['scale']") == place(3)


def test_what_is_no_argument_has_no_line() -> None:
    module = Repeated()
    assert [first_read_in_forward(module, guard) for guard in ("args[7]", "kwargs['other']", "self.training")] == [
        ""
    ] * 3
    assert first_read_in_forward(nn.Module(), "args[0]") == ""  # its forward takes anything
    assert first_read_in_forward(3, "args[0]") == ""


def test_a_miss_is_told_with_it() -> None:
    compiled = stator.compile(Repeated(), backend="eager", dynamic=False)
    for n in (2, 3, 3):
        assert torch.equal(compiled(torch.zeros(2), n), torch.full((2,), float(n)))
    miss = compiled.stator.last_miss
    assert (miss.guard, miss.expected, miss.found, miss.caller) == ("args[1]", "2", "3", place(1))
    assert str(miss).endswith(f" from {place(1)})") and compiled.stator.recordings == 2
