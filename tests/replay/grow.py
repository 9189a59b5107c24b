"""Memory over many recompilations: `python tests/replay/grow.py [rounds]` prints how much it grew, in KB.

More than 5 MB is a failure.

Each round records a function and a small model, calls them again, and forgets everything.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch
from torch import nn

import stator

LIMIT = 5 * 1024


def resident() -> int:
    """KB in memory now."""
    fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0])


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    fast_model = stator.compile(model, backend="eager")
    fast = stator.compile(lambda x, n: x * n + 1, backend="eager")
    x = torch.ones(2, 4)

    def run(count: int) -> None:
        for n in range(count):
            for _ in range(6):  # recorded, armed, noted, digested, used
                fast(x, n % 7)
                fast_model(x)
            stator.reset()

    run(500)
    gc.collect()
    before = resident()
    for done in range(0, rounds, rounds // 5):
        run(rounds // 5)
        gc.collect()
        grown = resident() - before
        print(f"{done + rounds // 5} rounds: {grown:+d} KB", flush=True)
    assert grown <= LIMIT, f"more than {LIMIT} KB"
    assert fast.stator.recordings >= rounds


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
