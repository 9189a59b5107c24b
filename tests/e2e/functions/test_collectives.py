"""Other processes take part in a collective: it happens once in a call, also if what follows it fails in a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import stator


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def reduced(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y


def reduced_by_operator(x: torch.Tensor) -> torch.Tensor:
    y = torch.ops._c10d_functional.all_reduce(x * 2, "sum", dist.group.WORLD.group_name)
    result: torch.Tensor = torch.ops._c10d_functional.wait_tensor(y)
    return result


@pytest.mark.parametrize("reduce", [reduced, reduced_by_operator])
def test_a_collective_happens_once_in_every_call(group: Any, reduce: Callable[[torch.Tensor], torch.Tensor]) -> None:
    log: list[str] = []

    def fn(x: torch.Tensor, d: torch.Tensor) -> Any:
        y = reduce(x + 1) + 1
        try:
            return y // d + 1
        except RuntimeError:
            log.append("divided by zero")
            return y * 3

    compiled = stator.compile(fn, backend="eager")
    for number, d in enumerate((2, 3, 0, 2, 0, 4)):
        x = torch.tensor([number, 5])
        wanted = fn(x, torch.tensor(d))
        before = group._get_sequence_number_for_group()
        assert torch.equal(compiled(x, torch.tensor(d)), wanted)
        assert group._get_sequence_number_for_group() == before + 1
    assert log == ["divided by zero"] * 4
    assert compiled.stator.graphs and compiled.stator.hits
