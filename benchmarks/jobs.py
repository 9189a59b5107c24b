"""Whole jobs, from the first call to the last: stator against eager and torch.compile, side by side in one process.

    python benchmarks/jobs.py [--quick] [--backend native] [--only NAME ...] [--alone] [--memory]

Each job is made once per side, with the same seed, and its rounds are run in turn: one of eager, one of torch.compile,
one of stator. What is said of a job: the time of its steady steps (the median of the second half of the rounds) and the
time of all rounds, compilation included, both as ratios of eager's; all recordings; and whether both sides came to
eager's results. Times are processor time of the whole process (the threads of a job, and those that compile, included),
one thread for operators.

| goal | of |
| --- | --- |
| 1.03 times eager, and 1.5 µs | a steady step |
| 1.05 times torch.compile's total | a job, with `--backend inductor` |

`--memory` runs 5,000 steps of the first job and says how much the process has grown.
"""

from __future__ import annotations

import argparse
import copy
import gc
import io
import itertools
import logging
import math
import os
import resource
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
import transformers
from torch import nn
from torch.nn import functional as F

import stator

Wrap = Callable[[Any], Any]  # compiles a function or a module, or leaves it alone
Round = Callable[[int], Any]  # one round of a job: what it came to


# ------------------------------------------------------------------------------------------------------- models


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        result: torch.Tensor = x + self.mlp(self.second(x))
        return result


class Gpt(nn.Module):
    def __init__(self, words: int = 128, width: int = 64, layers: int = 3, length: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(self.norm(x))
        return result


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32)
        self.parts = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
                for a, b in itertools.pairwise(widths)
            ]
        )
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.parts(x).mean((2, 3)))
        return result


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it


def tokens_for(number: int, batch: int = 8, length: int = 32) -> torch.Tensor:
    return torch.randint(128, (batch, length), generator=torch.Generator().manual_seed(number))


def images_for(number: int, batch: int = 8) -> torch.Tensor:
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(number))


# ------------------------------------------------------------------------------------------------------- the jobs


def train_gpt(wrap: Wrap) -> Round:
    """Scheduler, clipping, accumulation; every tenth round an evaluation, every fifteenth a checkpoint."""
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    fast = wrap(model)

    def one(number: int) -> Any:
        model.train()
        batch = 8 if number % 12 else 5  # the last one of an epoch is a part
        for part in range(2):
            tokens = tokens_for(2 * number + part, batch)
            loss = F.cross_entropy(fast(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            backward(loss / 2)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if number % 10 == 9:
            model.eval()
            with torch.no_grad():
                return fast(tokens_for(number)).mean()
        if number % 15 == 14:
            _resume(model, optimizer, scheduler)
        return loss.detach()

    return one


def _resume(*parts: Any) -> None:
    """Everything is saved, and loaded again."""
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    for part, state in zip(parts, torch.load(file), strict=True):
        part.load_state_dict(state)
    copy.deepcopy(parts[0])


def train_whole_step(wrap: Wrap) -> Round:
    """The step is compiled as a whole: backward, optimizer and scheduler in it."""
    model = Gpt(layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=10_000)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss.detach()

    fast = wrap(step)
    return lambda number: fast(tokens_for(number))


def train_convnet(wrap: Wrap) -> Round:
    model = Convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
    fast = wrap(model)

    def one(number: int) -> Any:
        model.train()
        images = images_for(number, 8 if number % 12 else 3)
        loss = F.cross_entropy(fast(images), torch.arange(len(images)) % 10)
        backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if number % 10 == 9:
            model.eval()
            with torch.no_grad():
                return fast(images_for(number)).mean()
        if number % 15 == 14:
            _resume(model, optimizer, scheduler)
        return loss.detach()

    return one


def train_bf16(wrap: Wrap) -> Round:
    model = Gpt(layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fast = wrap(model)

    def one(number: int) -> Any:
        tokens = tokens_for(number)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(fast(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return one


def sweep(wrap: Wrap) -> Round:
    """Twenty models that differ in a number; a round trains one of them for three steps."""
    models: list[Any] = []

    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale
            self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.last(torch.tanh(self.first(x) * self.scale))
            return result

    def one(number: int) -> Any:
        if len(models) < 20:
            model = Scaled(0.5 + len(models) / 10)
            models.append((wrap(model), torch.optim.SGD(model.parameters(), lr=0.01)))
        fast, optimizer = models[number % len(models)]
        loss = torch.zeros(())
        for seed in range(3):
            loss = fast(torch.randn(16, 32, generator=torch.Generator().manual_seed(seed))).square().mean()
            backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return one


def _language_model() -> Any:
    kinds: Any = transformers
    config = kinds.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=128, pad_token_id=0, eos_token_id=None, bos_token_id=1,
    )  # fmt: skip
    return kinds.LlamaForCausalLM(config).eval()


def _generation(**how: Any) -> Callable[[Wrap], Round]:
    def make(wrap: Wrap) -> Round:
        model = _language_model()
        model.forward = wrap(model.forward)

        def one(number: int) -> Any:
            torch.manual_seed(number)
            with torch.no_grad():
                return model.generate(tokens_for(number, 2, 6 + number % 3), max_new_tokens=8, **how)

        return one

    return make


def server(wrap: Wrap) -> Round:
    """Eight threads with inputs of mixed lengths."""
    model = Gpt(layers=1).eval()
    fast = wrap(model)

    def one(number: int) -> Any:
        results: list[Any] = [None] * 8

        def answer(thread: int) -> None:
            with torch.no_grad():
                for call in range(2):
                    length = 8 + (7 * number + 3 * thread + call) % 40
                    results[thread] = fast(tokens_for(thread, 1 + thread % 3, length)).mean()

        threads = [threading.Thread(target=answer, args=(thread,)) for thread in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return torch.stack(results)

    return one


def optimizer_alone(wrap: Wrap) -> Round:
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gradients = [torch.randn_like(p) for p in model.parameters()]
    fast = wrap(optimizer.step)

    def one(number: int) -> Any:
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 + math.cos(number / 50))
        fast()
        return model.head.weight.detach().mean()

    return one


def printing(wrap: Wrap) -> Round:
    """A line every step, and a number of steps that the step itself counts."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = {"step": 0}

    def step(x: torch.Tensor) -> torch.Tensor:
        state["step"] += 1
        loss: torch.Tensor = model(x).square().mean()
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {state['step']}: loss {loss.item():.4f}")
        return loss.detach()

    fast = wrap(step)

    def one(number: int) -> Any:
        with redirect_stdout(io.StringIO()) as said:
            loss = fast(torch.randn(16, 32, generator=torch.Generator().manual_seed(number)))
        assert said.getvalue().startswith(f"step {number + 1}: loss")
        return loss

    return one


@dataclass(frozen=True)
class Job:
    name: str
    make: Callable[[Wrap], Round]
    rounds: int
    tolerance: float = 1e-3


JOBS = [
    Job("GPT training", train_gpt, 120, 1e-2),
    Job("GPT, whole step", train_whole_step, 120, 1e-2),
    Job("convnet training", train_convnet, 120, 1e-2),
    Job("bf16 training", train_bf16, 80, 5e-2),
    Job("sweep of 20 models", sweep, 180),
    Job("generate, greedy", _generation(do_sample=False), 30),
    Job("generate, sampled", _generation(do_sample=True), 24),
    Job("generate, 3 beams", _generation(do_sample=False, num_beams=3), 24),
    Job("generate, static cache", _generation(do_sample=False, cache_implementation="static"), 24),
    Job("server, 8 threads", server, 40),
    Job("optimizer alone", optimizer_alone, 120),
    Job("print every step", printing, 150),
]


# ------------------------------------------------------------------------------------------------------- measuring


@dataclass
class Side:
    """One of the three that run a job."""

    compiled: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # of each round, in seconds
    results: list[Any] = field(default_factory=list)
    round: Round | None = None
    failed: str = ""

    @property
    def steady(self) -> float:
        return statistics.median(self.times[len(self.times) // 2 :]) if self.times else math.nan

    @property
    def total(self) -> float:
        return sum(self.times) if self.times else math.nan


def _wrap(name: str, side: Side, backend: str) -> Wrap:
    def wrap(what: Any) -> Any:
        if name == "eager":
            return what
        if name == "torch":
            return torch.compile(what, backend="inductor" if backend == "native" else backend)
        side.compiled.append(stator.compile(what, backend=backend))
        return side.compiled[-1]

    return wrap


def measure(job: Job, rounds: int, backend: str, alone: bool) -> dict[str, Side]:
    sides = {name: Side() for name in ("eager", "torch", "stator")}
    if alone:
        sides["torch"].failed = "not asked for"
    for name, side in sides.items():
        torch.manual_seed(0)
        side.round = None if side.failed else job.make(_wrap(name, side, backend))
    for number in range(rounds):
        for side in sides.values():
            if side.failed or side.round is None:
                continue
            torch.manual_seed(number)
            start = time.process_time()
            try:
                side.results.append(side.round(number))
            except Exception as error:
                side.failed = f"{type(error).__name__}: {error}".splitlines()[0][:80]
            side.times.append(time.process_time() - start)
    return sides


def _differs(side: Side, eager: Side, tolerance: float) -> bool:
    """Has it come to other results? Numbers that training has blown up by rounding are not compared to the end."""
    early = len(eager.results) if tolerance < 5e-3 else max(len(eager.results) // 4, 1)
    pairs = list(zip(side.results, eager.results, strict=False))[:early]
    return any(a.shape != b.shape or not torch.allclose(a, b, tolerance, tolerance) for a, b in pairs)


def report(job: Job, sides: dict[str, Side], backend: str) -> bool:
    eager, other, ours = sides["eager"], sides["torch"], sides["stator"]
    recordings = sum(compiled.stator.recordings for compiled in ours.compiled)
    plain = sum(compiled.stator.plain for compiled in ours.compiled)
    steady_ok = ours.steady <= 1.03 * eager.steady + 1.5e-6
    total_ok = backend != "inductor" or bool(other.failed) or ours.total <= 1.05 * other.total
    notes = [word for word, bad in (("steady", not steady_ok), ("total", not total_ok)) if bad]
    notes += [f"{name}: {side.failed}" for name, side in sides.items() if side.failed]
    notes += [f"{name} differs" for name in ("torch", "stator") if _differs(sides[name], eager, job.tolerance)]
    print(
        f"{job.name:24}{eager.steady * 1e3:9.2f}{other.steady / eager.steady:8.2f}{ours.steady / eager.steady:8.2f}"
        f"{eager.total:9.2f}{other.total / eager.total:8.2f}{ours.total / eager.total:8.2f}"
        f"{recordings:6}{plain:6}  {'; '.join(notes)}",
        flush=True,
    )
    return steady_ok and total_ok and not ours.failed


def memory(backend: str) -> bool:
    """Resident memory over 5,000 steps: what it grows by once everything is compiled."""
    side = Side()
    one = train_convnet(_wrap("stator", side, backend))
    seen = []
    for number in range(5_000):
        one(number)
        if number % 1_000 == 999:
            gc.collect()
            with open(f"/proc/{os.getpid()}/statm") as file:
                seen.append(int(file.read().split()[1]) * resource.getpagesize() / 2**20)
            print(f"{number + 1:6} steps: {seen[-1]:8.1f} MiB", flush=True)
    return seen[-1] <= seen[0] * 1.02


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a third of the rounds")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--only", nargs="*", help="jobs whose names have one of these in them")
    parser.add_argument("--alone", action="store_true", help="without torch.compile, which takes most of the time")
    parser.add_argument("--memory", action="store_true", help="5,000 steps: does the process grow?")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if given.memory:
        return 0 if memory(given.backend) else 1
    print(f"{'':24}{'ms a step':>9}{'ratios':>16}{'s in all':>9}{'ratios':>16}")
    print(
        f"{given.backend:24}{'eager':>9}{'torch':>8}{'stator':>8}{'eager':>9}{'torch':>8}{'stator':>8}{'rec':>6}{'plain':>6}"
    )
    missed = 0
    for job in JOBS:
        if given.only and not any(word in job.name for word in given.only):
            continue
        torch._dynamo.reset()
        stator.reset()
        rounds = job.rounds // (3 if given.quick else 1)
        missed += not report(job, measure(job, rounds, given.backend, given.alone), given.backend)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
