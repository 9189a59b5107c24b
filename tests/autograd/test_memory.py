"""Memory of a training step, as the allocator tells it: compiled, it never takes more than eager, and keeps less."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("step_memory.py")


@pytest.mark.parametrize("model", ["BERT-4", "BERT-4 with dropout", "MLP"])
def test_a_training_step(model: str) -> None:
    told = subprocess.run([sys.executable, SCRIPT, model], check=True, capture_output=True, text=True, timeout=300)
    found = json.loads(told.stdout.splitlines()[-1])
    eager, compiled = found["eager"], found["compiled"]
    assert eager["kept"] <= eager["peak"]
    assert compiled["peak"] <= eager["peak"]
    assert compiled["kept"] <= 0.7 * eager["kept"]
