"""DistributedDataParallel and `fully_shard` with real processes: compiled modules inside, and the whole compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import loops

PROGRAM = Path(loops.__file__)


def run_group(store: Path, size: int = 2) -> list[tuple[int, str]]:
    """By process: its exit code, and what it wrote."""
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, store],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        return [(process.wait(), text) for process in processes for text in [process.communicate()[0]]]
    finally:
        for process in processes:
            process.kill()


def test_training_loops_of_two_processes(tmp_path):
    ended = run_group(tmp_path / "store")
    assert [code for code, _ in ended] == [0, 0], "\n\n".join([text[-4000:] for _, text in ended])
    for _, text in ended:
        assert text.splitlines()[-1] == f"{len(loops.LOOPS)} loops as eager's"
