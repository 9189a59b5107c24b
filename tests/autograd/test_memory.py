"""Memory of a training step, as the allocator tells it: compiled, it never takes more than eager, and keeps less."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = pathlib.Path(__file__).with_name("step_memory.py")


def measured(*asked: str) -> Any:
    """`model [backend [inference]]`: bytes of eager and of the compiled model, arenas included."""
    told = subprocess.run([sys.executable, SCRIPT, *asked], check=True, capture_output=True, text=True, timeout=300)
    return json.loads(told.stdout.splitlines()[-1])


@pytest.mark.parametrize("model", ["BERT-4", "BERT-4 with dropout", "MLP"])
def test_a_training_step(model: str) -> None:
    found = measured(model)
    eager, compiled = found["eager"], found["compiled"]
    assert eager["kept"] <= eager["peak"]
    assert compiled["peak"] <= eager["peak"]
    assert compiled["kept"] <= 0.7 * eager["kept"]


GENERATOR_STATE = 5056  # kept once for the graph: its backward may be differentiated, by running the function again


@pytest.mark.parametrize("model", ["checkpointed", "checkpointed selectively"])
def test_a_checkpointed_model_keeps_what_eager_keeps(model: str) -> None:
    """Dropout too: its mask is drawn again in the backward."""
    found = measured(model)
    assert found["compiled"]["kept"] <= found["eager"]["kept"] + GENERATOR_STATE


MARGIN = 1 << 20


@pytest.mark.parametrize(("model", "most"), [("BERT-4", 0.72), ("BERT-4 with dropout", 0.62), ("MLP", 0.7)])
def test_a_training_step_of_the_native_backend(model: str, most: float) -> None:
    found = measured(model, "native")
    assert found["compiled"]["peak"] <= most * found["eager"]["peak"]


@pytest.mark.parametrize("model", ["BERT-4", "MLP", "convolutions"])
def test_inference_of_the_native_backend(model: str) -> None:
    found = measured(model, "native", "inference")
    assert found["compiled"]["peak"] <= 1.02 * found["eager"]["peak"] + MARGIN
