"""How long capture takes: stator against torch.compile, side by side, on eight models of transformers.

    python benchmarks/capture.py [--quick] [--models bert,llama] [--rounds 3]

Both compile with a backend that runs the graph as it is, so the first call is capture and one run. The models
have their real default depths; width and vocabulary are small, so that the run itself is quick.

- cold: the first model of its kind in a process. stator has to instrument the model's code, TorchDynamo has
  nothing left to import (both compiled a trivial function before).
- again: another instance of the same architecture; stator has its code instrumented, torch._dynamo is reset.
- BERT 768: the first call of a full-width BERT over an eager call of it, once its code is instrumented.

A row whose model stator did not capture as one graph fails: running plain is no capture.

Every row of every round runs in a process of its own; which side goes first alternates. Figures are medians.
The eight models run on one thread: they are small, and on a busy machine threads waiting for each other would
drown what is measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
import transformers

import stator

COLD_GOAL, AGAIN_GOAL, FIRST_CALL_GOAL = 1 / 10, 1 / 40, 2.0
VOCABULARY = 256

# ------------------------------------------------------------------------------------------------ the models


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(0))


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Case:
    """One architecture: its classes in transformers, what differs from the default config, and an input."""

    title: str
    model: str
    config: str
    changes: dict[str, Any]
    inputs: dict[str, torch.Tensor]

    def make(self) -> Any:
        """A new instance with random weights, ready to run."""
        return getattr(transformers, self.model)(getattr(transformers, self.config)(**self.changes)).eval()


TEXT = {"vocab_size": VOCABULARY}
NARROW = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}

CASES: dict[str, Case] = {
    "bert": Case("BERT", "BertModel", "BertConfig", TEXT | NARROW, {"input_ids": tokens(2, 16)}),
    "gpt2": Case(
        "GPT-2",
        "GPT2LMHeadModel",
        "GPT2Config",
        TEXT | {"n_embd": 64, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0},
        {"input_ids": tokens(2, 16)},
    ),
    "llama": Case(
        "Llama",
        "LlamaForCausalLM",
        "LlamaConfig",
        TEXT | NARROW | {"num_key_value_heads": 2},
        {"input_ids": tokens(2, 16)},
    ),
    "t5": Case(
        "T5",
        "T5ForConditionalGeneration",
        "T5Config",
        TEXT | {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "decoder_start_token_id": 0},
        {"input_ids": tokens(2, 16), "labels": tokens(2, 8)},
    ),
    "vit": Case(
        "ViT",
        "ViTModel",
        "ViTConfig",
        NARROW | {"image_size": 32, "patch_size": 8},
        {"pixel_values": noise(2, 3, 32, 32)},
    ),
    "resnet": Case(
        "ResNet-50",
        "ResNetModel",
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": [32, 64, 64, 128]},
        {"pixel_values": noise(2, 3, 32, 32)},
    ),
    "distilbert": Case(
        "DistilBERT",
        "DistilBertModel",
        "DistilBertConfig",
        TEXT | {"dim": 64, "hidden_dim": 128, "n_heads": 4},
        {"input_ids": tokens(2, 16)},
    ),
    "whisper": Case(
        "Whisper",
        "WhisperModel",
        "WhisperConfig",
        TEXT
        | {"d_model": 64, "max_source_positions": 50}
        | {"encoder_attention_heads": 4, "encoder_ffn_dim": 128}
        | {"decoder_attention_heads": 4, "decoder_ffn_dim": 128}
        | {"decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        {"input_features": noise(1, 80, 100), "decoder_input_ids": tokens(1, 8)},
    ),
}
FULL = Case("BERT, 12 layers, 768 wide", "BertModel", "BertConfig", TEXT, {"input_ids": tokens(1, 128)})

# ------------------------------------------------------------------------------------ in the measured process


class Side:
    """One compiler: how to compile, how to forget, and how many graphs its last model gave."""

    def __init__(self, compiler: Callable[..., Any], reset: Callable[[], None]) -> None:
        self.compiler, self.reset = compiler, reset
        self.graphs = 0

    def backend(self, graph: Any, example_inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward  # type: ignore[no-any-return]

    def first_call(self, model: Any, inputs: dict[str, torch.Tensor]) -> float:
        """Seconds of the first call of a model that this side has not seen."""
        self.reset()
        self.graphs = 0
        compiled = self.compiler(model, backend=self.backend)
        gc.collect()  # what the last model left behind is not this one's cost
        start = time.perf_counter()
        compiled(**inputs)
        return time.perf_counter() - start


def sides() -> dict[str, Side]:
    """Both compilers, each past what it does once per process."""
    both = {"torch": Side(torch.compile, torch._dynamo.reset), "stator": Side(stator.compile, stator.reset)}
    for side in both.values():
        side.first_call(lambda x: x.sin() + 1, {"x": torch.ones(3)})
    return both


def eager_call(model: Any, inputs: dict[str, torch.Tensor], calls: int = 7) -> float:
    """Median seconds of an eager call."""
    model(**inputs)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        model(**inputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(case: Case, repeats: int, torch_first: bool) -> dict[str, float]:
    """Cold and repeated capture of one architecture by both compilers, in this process."""
    torch.set_num_threads(1)
    result = {"eager": eager_call(case.make(), case.inputs)}
    both = sides()
    for name in sorted(both, reverse=torch_first):
        side = both[name]
        result[f"{name}_cold"] = side.first_call(case.make(), case.inputs)
        result[f"{name}_again"] = statistics.median(side.first_call(case.make(), case.inputs) for _ in range(repeats))
        result[f"{name}_graphs"] = side.graphs
    return result


def measure_full(case: Case, repeats: int) -> dict[str, float]:
    """First call over eager call of instances of an architecture whose code is instrumented."""
    side = sides()["stator"]
    side.first_call(case.make(), case.inputs)
    pairs = []
    for _ in range(repeats):
        model = case.make()
        eager = eager_call(model, case.inputs)
        pairs.append((side.first_call(model, case.inputs), eager))
    return {
        "first": statistics.median(first for first, _ in pairs),
        "eager": statistics.median(eager for _, eager in pairs),
        "ratio": statistics.median(first / eager for first, eager in pairs),
        "graphs": side.graphs,
    }


# -------------------------------------------------------------------------------------- in the asking process


def in_new_process(what: str, repeats: int, torch_first: bool = False) -> dict[str, float]:
    """One measurement; RuntimeError with the end of what it wrote if it failed."""
    command = [sys.executable, __file__, "--measure", what, "--repeats", str(repeats)]
    ran = subprocess.run(command + ["--torch-first"] * torch_first, capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError("\n".join(ran.stderr.strip().splitlines()[-8:]))
    result: dict[str, float] = json.loads(ran.stdout.strip().splitlines()[-1])
    return result


def medians(what: str, rounds: int, repeats: int) -> dict[str, float]:
    """The median of every figure over processes of their own."""
    rows = [in_new_process(what, repeats, torch_first=number % 2 == 0) for number in range(rounds)]
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as info:
            cpu = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), cpu)
    return (
        f"{cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    )


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def verdict(good: bool) -> str:
    return "ok" if good else "FAIL"


def ratio(part: float, whole: float, goal: float) -> str:
    """`1/23.0 ok` or `1/8.1 FAIL`: against a goal such as 1/10."""
    return f"1/{whole / part:.1f} {verdict(part <= whole * goal)}"


COLUMNS = {
    "model": 11, "eager": 9, "graphs t/s": 10,
    "torch cold": 10, "stator cold": 11, "ratio (1/10)": 12,
    "torch again": 11, "stator again": 12, "ratio (1/40)": 12,
}  # fmt: skip


def line(cells: Iterable[str]) -> str:
    first, *rest = (f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))
    return "  ".join([first.strip().ljust(COLUMNS["model"]), *rest])


def cells(title: str, row: dict[str, float]) -> tuple[str, ...]:
    """One model's row of the table."""
    ours, theirs = int(row["stator_graphs"]), int(row["torch_graphs"])
    return (
        title,
        duration(row["eager"]),
        f"{theirs}/{ours}" if ours == 1 else f"{theirs}/{ours} FAIL",
        duration(row["torch_cold"]),
        duration(row["stator_cold"]),
        ratio(row["stator_cold"], row["torch_cold"], COLD_GOAL),
        duration(row["torch_again"]),
        duration(row["stator_again"]),
        ratio(row["stator_again"], row["torch_again"], AGAIN_GOAL),
    )


def row_of(name: str, rounds: int, repeats: int) -> str:
    try:
        return line(cells(CASES[name].title, medians(name, rounds, repeats)))
    except RuntimeError as error:
        return f"{CASES[name].title}: FAIL\n{error}"


def row_of_full(rounds: int, repeats: int) -> str:
    try:
        row = medians("full", rounds, max(repeats, 3))
    except RuntimeError as error:
        return f"{FULL.title}: FAIL\n{error}"
    good = row["ratio"] <= FIRST_CALL_GOAL and row["graphs"] == 1
    return (
        f"{FULL.title}, instrumented: first call {duration(row['first'])}, eager {duration(row['eager'])}: "
        f"{row['ratio']:.2f} x (goal: at most {FIRST_CALL_GOAL:g} x) {verdict(good)}"
    )


def compare(names: list[str], rounds: int, repeats: int) -> bool:
    """Print the whole table, row by row; are all goals reached?"""
    print("Capture, stator against torch.compile, graphs run as they are (backend 'eager')")
    print(f"Medians of {rounds} process{'es' * (rounds > 1)} per model; graphs t/s: of torch.compile and stator")
    print(f"{machine()}\n")
    print(line(COLUMNS))
    print(line("-" * width for width in COLUMNS.values()), flush=True)
    rows = []
    for name in names:
        rows.append(row_of(name, rounds, repeats))
        print(rows[-1], flush=True)
    rows.append(row_of_full(rounds, repeats))
    print(f"\n{rows[-1]}")
    return not any("FAIL" in row for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES), help="comma-separated (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="processes per model (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="of `again` per process (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one process per model, one repeat")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the measured process
    parser.add_argument("--torch-first", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        torch.manual_seed(0)
        torch.set_grad_enabled(False)
        full = asked.measure == "full"
        figures = (
            measure_full(FULL, asked.repeats)
            if full
            else measure(CASES[asked.measure], asked.repeats, asked.torch_first)
        )
        print(json.dumps(figures))
        return 0
    names = [name.strip() for name in asked.models.split(",")]
    if not set(names) <= set(CASES):
        parser.error(f"unknown models: {', '.join(sorted(set(names) - set(CASES)))} (known: {', '.join(CASES)})")
    if min(asked.rounds, asked.repeats) < 1:
        parser.error("rounds and repeats must be at least 1")
    rounds, repeats = (1, 1) if asked.quick else (asked.rounds, asked.repeats)
    return 0 if compare(names, rounds, repeats) else 1


if __name__ == "__main__":
    sys.exit(main())
