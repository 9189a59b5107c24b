"""What dynamic shapes cost: stator against torch.compile, side by side in one process.

    python benchmarks/dynamic.py [--quick]

Three questions, on a BERT of four layers (and, for the second, on `x + 1`), one thread:

- recording: the first call with all sizes symbolic (`dynamic=True`, a backend that runs graphs as they are), of a new
  model each time; both sides have compiled another model of that kind before. Goal: at most 1/5 of torch.compile's.
- per call: guards and dispatch of a recording with symbolic sizes over those of a static one, both stator's, with a
  backend that does nothing. Goal: at most 1.5.
- recompilations: how often each side's backend is called on a walk over batches and lengths, with `dynamic=None`.
  Goal: not more than torch.compile's.

Sides take turns; times of recording are medians, times per call the lowest of many turns.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import transformers

import stator

RECORDING_GOAL, CALL_GOAL = 1 / 5, 1.5
VOCABULARY = 128


def bert() -> torch.nn.Module:
    config = transformers.BertConfig(
        num_hidden_layers=4, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=VOCABULARY
    )
    model: Any = transformers.BertModel
    return model(config).eval()  # type: ignore[no-any-return]


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------------------------------- recording


def first_call(compile_model: Callable[[Any], Any]) -> float:
    torch._dynamo.reset()
    model = compile_model(bert())
    ids = tokens(6, 20)
    start = time.perf_counter()
    model(ids)
    return time.perf_counter() - start


def stator_side(model: Any) -> Any:
    return stator.compile(model, backend="eager", dynamic=True)


def torch_side(model: Any) -> Any:
    return torch.compile(model, backend="eager", dynamic=True)


def recording(rounds: int) -> tuple[float, float]:
    sides = [stator_side, torch_side]
    for side in sides:
        first_call(side)
    times: dict[Any, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        progress(f"recording, round {number + 1} of {rounds}")
        for side in sides if number % 2 else reversed(sides):
            times[side].append(first_call(side))
    ours, theirs = (statistics.median(times[side]) for side in sides)
    return ours, theirs


# ------------------------------------------------------------------------------------------------------ per call


def nothing_but(result: Any) -> Callable[..., Any]:
    """A backend whose graphs give back what is given here."""

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        count = len(next(node for node in gm.graph.nodes if node.op == "output").args[0])
        return lambda *inputs: (result,) * count

    return backend


def lowest(calls: list[Callable[[], Any]], turns: int, repeat: int) -> list[float]:
    best = [float("inf")] * len(calls)
    for _ in range(turns):
        for number, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            best[number] = min(best[number], (time.perf_counter() - start) / repeat)
    return best


def per_call(fn: Any, argument: torch.Tensor, turns: int, repeat: int) -> tuple[float, float]:
    result = torch.zeros(2)
    calls: list[Callable[[], Any]] = []
    for dynamic in (True, False):
        compiled = stator.compile(fn, backend=nothing_but(result), dynamic=dynamic)
        for _ in range(50):
            compiled(argument)
        assert compiled.stator.recordings == 1 and compiled.stator.plain == 0
        calls.append(functools.partial(compiled, argument))
    symbolic, static = lowest(calls, turns, repeat)
    return symbolic, static


# ------------------------------------------------------------------------------------------------ recompilations


class Counting:
    """A backend that counts the graphs it is given."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return gm.forward


def walk(steps: int) -> tuple[int, int]:
    torch._dynamo.reset()
    random.seed(0)
    ours, theirs = Counting(), Counting()
    model = bert()
    sides = [stator.compile(model, backend=ours), torch.compile(model, backend=theirs)]
    for number in range(steps):
        progress(f"walk, step {number + 1} of {steps}")
        ids = tokens(random.randint(2, 64), random.randint(5, 512 if number % 10 == 9 else 64))
        results = [side(ids).last_hidden_state for side in sides]
        torch.testing.assert_close(*results)
    return ours.graphs, theirs.graphs


# --------------------------------------------------------------------------------------------------------- main


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    good = True
    with torch.no_grad():
        ours, theirs = recording(3 if quick else 7)
        good &= ours <= theirs * RECORDING_GOAL
        progress("")
        print(f"recording BERT-4   stator {ours * 1e3:8.1f} ms   torch.compile {theirs * 1e3:8.1f} ms   ", end="")
        print(f"1/{theirs / ours:.1f}   goal 1/{1 / RECORDING_GOAL:.0f}")
        for title, fn, argument in (("BERT-4", bert(), tokens(6, 20)), ("x + 1", lambda x: x + 1, torch.ones(4, 5))):
            repeat = 200 if title == "BERT-4" else 5000
            symbolic, static = per_call(fn, argument, 10 if quick else 40, repeat)
            good &= symbolic <= static * CALL_GOAL
            print(f"a call of {title:<7}  symbolic {symbolic * 1e6:6.2f} µs   static {static * 1e6:6.2f} µs   ", end="")
            print(f"{symbolic / static:.2f}   goal {CALL_GOAL}")
        ours_count, theirs_count = walk(10 if quick else 40)
        good &= ours_count <= theirs_count
        progress("")
        print(f"graphs on a walk   stator {ours_count}   torch.compile {theirs_count}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
