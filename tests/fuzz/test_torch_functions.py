"""Some of torch's functions in programs that use their results; `make fuzz` has them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = (
    "bincount nonzero masked_select unique repeat_interleave gather index_put floor_divide linalg.svdvals "
    "linalg.eigvalsh linalg.cond quantile multinomial dropout one_hot cross_entropy tensor_split histc "
    "interpolate_nearest pad_constant add matmul"
)


def test_programs_are_eagers():
    """In a process of its own: torch's own tests change settings of the process."""
    command = [sys.executable, str(Path(__file__).parent / "torch_functions.py"), *NAMES.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    assert ", 0 differences" in done.stdout
