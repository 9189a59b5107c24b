"""A thousand random programs are the same compiled as plain. More of them: `make fuzz N=100000 SEED=1`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: workers are forked from it, and it must not have anything compiled, or threads."""
    command = [sys.executable, str(HERE / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_thousand_programs_are_the_same_compiled_as_plain() -> None:
    done = fuzz("-n", "1000", "--shrink", "0")
    assert done.returncode == 0, (
        f"{done.stdout}\n{done.stderr[-2000:]}\nmake it small: python tests/fuzz/run.py -n 1 --seed …"
    )
    assert "programs fuzzed / mismatches: 1000 / 0" in done.stdout
