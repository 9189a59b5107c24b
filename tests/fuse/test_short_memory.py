"""Tensors that have lost their memory, given to compiled functions: what eager gives, or an error, and no crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stator
from stator.errors import StorageError

SCRIPT = Path(__file__).with_name("short_memory.py")
# What eager computes without that memory. In all other cases eager would read or write what is not the tensor's.
AS_EAGER = {
    "two rows of a tensor, 0 bytes": "RuntimeError",
    "two rows of a tensor, 4000 bytes": "values [(2, 400)]",
    "an expanded tensor, 4000 bytes": "values [(300, 400)]",
    "indices, 4000 bytes": "values [(400, 400)]",
    "forward without linear.weight": "RuntimeError",
}
AS_EAGER |= {f"sizes alone, {size} bytes": "values [(300, 400), (300, 400), (3,)]" for size in (0, 4000)}
AS_EAGER |= {f"a view, {size} bytes": "values [(400, 300)]" for size in (0, 4000)}
AS_EAGER |= {f"the tensor itself, {size} bytes": "values [(300, 400)]" for size in (0, 4000)}
AS_EAGER |= {f"of nothing, {size} bytes": "values [(0, 400), ()]" for size in (0, 4000)}


def test_memory_that_is_gone() -> None:
    run = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, (run.stdout[-200:], run.stderr[-2000:])
    found = json.loads("{" + ",".join(run.stdout.splitlines()) + "}")
    assert len(found) > 55 and found == dict.fromkeys(found, "StorageError") | AS_EAGER


def test_nothing_is_written_or_run_again() -> None:
    ran: list[int] = []

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        y.add_(1)
        return (x * 2 + y).sum()

    compiled = stator.compile(f)
    for _ in range(3):
        x, y = torch.ones(30, 40), torch.zeros(30, 40)
        assert compiled(x, y).item() == 3 * 30 * 40
    ran.clear()
    x.untyped_storage().resize_(100)
    for count in range(3):
        with pytest.raises(StorageError, match="storage"):
            compiled(x, y)
        assert ran == [] and torch.equal(y, torch.ones(30, 40)), count
    x.untyped_storage().resize_(30 * 40 * 4)
    assert compiled(x.fill_(3), y).item() == 8 * 30 * 40 and ran == [1]
    assert compiled.stator.recordings == 1 and compiled.stator.plain == 0
