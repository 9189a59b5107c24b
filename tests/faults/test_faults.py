"""A part of `make faults`: in a process of its own, because stator is imported there with ticks in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

INJECT = Path(__file__).with_name("inject.py")


def test_functions_that_fail_are_not_noticed() -> None:
    """Every fifth function, at its start, in the smallest program that calls it."""
    done = subprocess.run(
        [sys.executable, INJECT, "--quick", "--share", "5"], capture_output=True, text=True, check=False
    )
    numbers = re.search(r"faults injected / survived: (\d+) / (\d+)", done.stdout)
    assert done.returncode == 0 and numbers is not None, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(numbers[1]) == int(numbers[2]) > 100


def test_the_rest_of_the_process_disturbs_nothing() -> None:
    """Collections at every allocation are left to `make conformance`: finalizers that write to tensors while a graph is
    compiled still disturb that."""
    kinds = ["change_list", "change_dict", "change_tensor", "signals", "fork", "subinterpreter"]
    command = [sys.executable, INJECT.with_name("disturbances.py"), "--together", "--seconds", "0.3"]
    command += [word for kind in kinds for word in ("--only", kind)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and len(re.findall(r": [1-9]\d* calls", done.stdout)) == len(kinds), said
    assert "processes disturbed / failed: 1 / 0" in done.stdout


def test_allocations_that_fail_in_the_c_core_crash_nothing() -> None:
    folder = INJECT.parents[1] / "watch"
    paths = os.pathsep.join([str(INJECT.parents[2] / "src"), str(folder)])
    command = [sys.executable, folder / "short_of_memory.py", "53"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "all survived" in done.stdout, done.stdout + done.stderr[-3000:]
