"""stator in two minutes: compile a small transformer, explain it, check it against eager, time it.

    python examples/demo.py            (or: make demo, which sets everything up first)

Prints what it does while it does it. The times of eager, torch.compile and stator come from one process and
interleaved rounds, so that whatever else the machine is doing meets all three alike.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache

import stator

# -------------------------------------------------------------------------------------------------- the model


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        merged: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return merged


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.before_attention(x), mask)
        x = x + self.mlp(self.before_mlp(x))
        return x


class Encoder(nn.Module):
    """A transformer encoder with a classifier on top, as one writes it: nothing is done for a compiler."""

    def __init__(self, words: int, length: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.classes = nn.Linear(width, classes)

    def forward(self, tokens: Tensor, pad: int | None = None) -> dict[str, Tensor]:
        mask = None
        if pad is not None:
            mask = (tokens != pad)[:, None, None, :]
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        return {"hidden": x, "logits": self.classes(x.mean(dim=1))}


WORDS, LENGTH, BATCH = 1000, 64, 4


def make_model() -> Encoder:
    torch.manual_seed(0)
    return Encoder(WORDS, LENGTH, width=128, heads=4, layers=4, classes=10).eval()


def make_input(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)


# ------------------------------------------------------------------------------------------------ the showing


class Progress:
    """Numbered headings with the time since the start."""

    def __init__(self) -> None:
        self.start, self.number = time.perf_counter(), 0

    def __call__(self, text: str) -> None:
        self.number += 1
        print(f"\n[{time.perf_counter() - self.start:5.1f} s] {self.number}. {text}", flush=True)


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def pretty(duration: float | None) -> str:
    if duration is None:
        return "-"
    return f"{duration:.2f} s" if duration >= 1 else f"{duration * 1e3:.2f} ms"


def shortened(text: str, most: int = 24, width: int = 110) -> str:
    lines = [line if len(line) <= width else line[: width - 3] + "..." for line in text.splitlines()]
    if len(lines) <= most:
        return "\n".join(lines)
    return "\n".join([*lines[:most], f"  ... and {len(lines) - most} lines more (print(stator.explain(...)))"])


def rival_backend(backend: str) -> str:
    """What torch.compile is asked for beside it: for `native`, `inductor` if it can build a kernel on this machine."""
    if backend not in ("native", "inductor"):
        return backend
    try:
        with fresh_cache():
            torch.compile(lambda x: x.sin() + 1, backend="inductor")(torch.ones(8))
    except Exception as error:
        print(f"    inductor does not work here ({type(error).__name__}); torch.compile gets backend 'eager'")
        return "eager"
    return "inductor"


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def check(model: Encoder, backend: str, tolerance: float) -> bool:
    """Compile, compare three different inputs with eager, and say so."""
    stator.reset()
    compiled = stator.compile(model, backend=backend)
    worst = max(largest_difference(model(make_input(seed)), compiled(make_input(seed))) for seed in (1, 2, 3))
    good = worst <= tolerance
    print(f"    calls: {compiled.stator.recordings} recorded, {compiled.stator.hits} replayed")
    wanted = "bit-equal" if tolerance == 0 else f"at most {tolerance:g}"
    verdict = "ok" if good else "WRONG"
    print(f"    largest difference from eager over three inputs: {worst:g} ({wanted}: {verdict})")
    return good


@dataclass
class Side:
    """One way to run the model, and what was measured of it."""

    name: str
    call: Callable[[Tensor], object]
    capture: float | None = None  # first call with a backend which runs the graph as it is
    first: float | None = None  # first call with the backend that is shown
    steady: float = 0.0  # median of later calls


COMPILERS: dict[str, tuple[Callable[..., Callable[[Tensor], object]], Callable[[], None]]] = {
    "torch.compile": (torch.compile, torch.compiler.reset),
    "stator": (stator.compile, stator.reset),
}


def first_calls(name: str, model: Encoder, backend: str, x: Tensor) -> Side:
    """Compile with one of the compilers; time its capture and its first call, with nothing cached."""
    compiler, reset = COMPILERS[name]
    captures = []
    for _ in range(4):  # the first one does what is done once per process: imports, instrumentation
        reset()
        captured = compiler(model, backend="eager")
        captures.append(seconds(lambda: captured(x)))  # noqa: B023  called at once
    capture = min(captures[1:])  # whatever else the machine does only adds to it
    reset()
    call = compiler(model, backend=backend)
    with fresh_cache(), stator.options.patch(code_cache_mib=0):
        first = seconds(lambda: call(x))
    print(f"    {name}: captured in {pretty(capture)}, first call took {pretty(first)}", flush=True)
    return Side(name, call, capture, first)


def measure(model: Encoder, backends: dict[str, str], rounds: int) -> list[Side]:
    """Eager, torch.compile and stator: first calls, then the median of interleaved rounds."""
    x = make_input(0)
    sides = [Side("eager", model), *(first_calls(name, model, backends[name], x) for name in COMPILERS)]
    times: list[list[float]] = [[] for _ in sides]
    for number in range(3 + rounds):
        for side, spent in zip(sides, times, strict=True):
            start = time.perf_counter()
            side.call(x)
            if number >= 3:  # the first rounds warm up
                spent.append(time.perf_counter() - start)
    for side, spent in zip(sides, times, strict=True):
        side.steady = statistics.median(spent)
    return sides


def table(sides: list[Side]) -> str:
    eager = sides[0].steady
    rows = [("", "capture", "first call", "later calls", "against eager")]
    rows += [
        (
            side.name,
            pretty(side.capture),
            pretty(side.first),
            pretty(side.steady),
            f"{eager / side.steady:.2f} x",
        )
        for side in sides
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "    "
        + row[0].ljust(widths[0])
        + "".join(cell.rjust(w + 3) for cell, w in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    return "\n".join([lines[0], "    " + "-" * (len(lines[0]) - 4), *lines[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", default="native", help="backend to show (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of timing (default: 100)")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    torch.set_grad_enabled(False)
    progress = Progress()

    print(
        f"stator demo: Python {platform.python_version()}, torch {torch.__version__}, "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    )
    progress("Looking at the backends")
    backend = chosen.backend
    backends = {"stator": backend, "torch.compile": rival_backend(backend)}
    print(f"    stator: {backend}, torch.compile: {backends['torch.compile']}")

    progress("Explaining one call of the model (4 layers, 128 wide, batch 4 x 64)")
    model = make_model()
    explanation = stator.explain(model)(make_input(0))
    print(shortened(str(explanation)))
    good = explanation.graph_count == 1 and explanation.graph_break_count == 0

    progress("Compiling with backend 'eager': the graph as captured, run by torch's own kernels")
    good &= check(model, "eager", 0.0)

    if backend != "eager":
        progress(f"Compiling with backend {backend!r}: fused kernels")
        good &= check(model, backend, 1e-4)

    progress("Measuring eager, torch.compile and stator side by side")
    stator.reset()
    sides = measure(model, backends, chosen.rounds)
    print(f"\n{table(sides)}")
    print("\n    capture: first call, backend 'eager', best of 3; first call: backends as above, nothing cached")
    print(f"    later calls: median of {chosen.rounds} interleaved rounds\n")
    print("One graph, and all results agree with eager." if good else "Not as it should be: see above.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
