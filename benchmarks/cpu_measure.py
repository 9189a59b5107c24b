"""One row of `benchmarks/cpu.py`, measured in this process; the last line on stdout is a JSON object.

Lines before it say what is being done.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import cpu_limit
import cpu_works
import torch
import torch._dynamo
import torch._inductor.compile_fx  # what torch.compile imports late is not counted
from cpu_works import WORKS, Work
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

import stator
from stator import events
from stator.backends import native
from stator.codegen import host

Row = dict[str, Any]
TURN = 0.01  # seconds that one turn takes at least
WARM = 5  # calls before anything is timed: optimizers have other state from their second step on


def say(text: str) -> None:
    print(text, flush=True)


COMPILERS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda fn: fn,
    "torch": functools.partial(torch.compile, dynamic=False),
    "stator": functools.partial(stator.compile, backend="native", dynamic=False),
}


def refusals() -> list[str]:
    """What stator does not compile from now on, as texts that come to this list."""
    found: list[str] = []

    def note(event: Any) -> None:
        text = f"{type(event).__name__}: {getattr(event, 'why', None) or getattr(event, 'exception', None) or event}"
        if text not in found:
            found.append(text)

    kinds = (events.NotGenerated, events.NotDerived, events.RanPlain, events.InternalFailure, events.GraphBreak)
    events.subscribe(note, *kinds)
    return found


# ------------------------------------------------------------------------------------------------ sides in turn


def differs(tolerance: float, got: Any, wanted: Any) -> str:
    """How a result differs from eager's; empty if it does not."""
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True):
        if isinstance(b, Tensor):
            scale = max(float(b.abs().max()), 1e-6)
            error = float((a.double() - b.double()).abs().max()) / scale
            if a.shape != b.shape or a.dtype is not b.dtype or not error <= tolerance:
                return f"{a.dtype} {tuple(a.shape)}, off by {error:.2g}"
    return ""


def measure(work: Work, rounds: int, threads: int) -> Row:
    if work.group != "training":
        torch.set_grad_enabled(False)
    clock = time.process_time if threads == 1 else time.perf_counter
    refused = refusals()
    say("looking for library calls")
    found = cpu_limit.find(work)
    refused.clear()
    steps, results = {}, {}
    for name, compiler in COMPILERS.items():
        say(f"compiling with {name}")
        steps[name] = work.prepare(compiler)
        results[name] = [steps[name]() for _ in range(WARM)]
    wrong = next(filter(None, map(functools.partial(differs, work.tolerance), results["stator"], results["eager"])), "")
    sides: dict[str, Callable[[], Any]] = {**steps, "library": cpu_limit.library_alone(found)}
    calls = {name: turn_length(step, clock) for name, step in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    gc.collect()
    gc.disable()
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for name in sorted(sides, reverse=number % 2 == 0):
            times[name].append(turn(sides[name], calls[name], clock))
    row: Row = {name: statistics.median(figures) for name, figures in times.items()}
    row["moved"] = cpu_limit.seconds_to_move(found.bytes, clock)
    row["limit"] = row["library"] * bool(found.calls) + row["moved"]
    about = {"title": work.title, "group": work.group, "threads": threads, "bytes": found.bytes}
    return {**row, **about, "wrong": wrong, "refused": refused}


def turn(step: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    step()  # what the other sides left in the caches is not this one's cost
    start = clock()
    for _ in range(calls):
        step()
    return (clock() - start) / calls


def turn_length(step: Callable[[], Any], clock: Callable[[], float]) -> int:
    calls = 1
    while (seconds := turn(step, calls, clock)) * calls < TURN / 4 and calls < 100_000:
        calls *= 4
    return max(1, int(TURN / seconds)) if seconds else calls


# ------------------------------------------------------------------------------------------------ other figures


def cold(side: str, work: Work) -> Row:
    """Seconds from `compile` to the first result of the first program in this process."""
    if work.group != "training":
        torch.set_grad_enabled(False)
    spent: list[float] = []

    def compiler(fn: Any) -> Any:
        start = time.perf_counter()
        compiled = COMPILERS[side](fn)
        spent.append(time.perf_counter() - start)
        return compiled

    step = work.prepare(compiler)
    say("first call")
    start = time.perf_counter()
    step()
    return {"seconds": time.perf_counter() - start + sum(spent)}


def memory(work: Work) -> Row:
    """Most bytes during a step beyond what there was before it, by torch's allocator, and the arenas beside it.

    The allocator knows the size of a block only if the profiler was on when it was given out, so one profile covers
    everything, and steps are told apart by time.
    """
    arenas: list[int] = []
    backend: Any = native
    plan = backend.plan_memory

    def planned(program: Any) -> Any:
        made = plan(program)
        arenas.append(int(made.size))
        return made

    backend.plan_memory = planned
    spans = {}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        for side in ("eager", "stator"):
            step = work.prepare(COMPILERS[side])
            for _ in range(3):
                step()
            gc.collect()
            begin = time.time_ns()
            step()
            spans[side] = begin, time.time_ns()
            del step
    raw: Any = profiled.profiler
    found = [event for event in raw.kineto_results.events() if event.name() == "[memory]"]
    blocks = sorted((event.start_ns(), event.nbytes()) for event in found)
    peaks = {side: most_at_a_time(blocks, *span) for side, span in spans.items()}
    peaks["stator"] += max(arenas, default=0)
    return {"title": "peak memory of BERT-4 training", **peaks, "arena": max(arenas, default=0)}


def most_at_a_time(blocks: list[tuple[int, int]], begin: int, end: int) -> int:
    now = most = 0
    for when, size in blocks:
        if begin <= when <= end:
            now += size
            most = max(most, now)
    return most


def growth(rounds: int) -> Row:
    """Seconds of the first call of functions of so many operations, whose tensors are small."""
    torch.set_grad_enabled(False)
    first_call(torch.cos, (torch.ones(8),))  # what is done once in a process
    row: Row = {"title": "compile time over number of operations"}
    for count in (10, 100, 1000, 10_000):
        say(f"{count} operations")
        times = [first_call(*cpu_works.operations(count)) for _ in range(3 if count < 10_000 else 1)]
        row[str(count)] = statistics.median(times)
    return row


def first_call(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> float:
    stator.reset()
    gc.collect()
    with stator.options.patch(code_cache_mib=0):
        start = time.perf_counter()
        COMPILERS["stator"](fn)(*args)
        return time.perf_counter() - start


def layers(rounds: int) -> Row:
    """Seconds spent on making kernels for one layer, and for twelve that are equal."""
    torch.set_grad_enabled(False)
    spent = [0.0]
    generator: Any = host
    make = generator.compile_kernels

    def timed(kernels: Any) -> Any:
        start = time.perf_counter()
        made = make(kernels)
        spent[0] += time.perf_counter() - start
        return made

    generator.compile_kernels = timed
    first_call(torch.cos, (torch.ones(8),))  # what is done once in a process
    row: Row = {"title": "kernels of 12 equal layers"}
    for count in (1, 12):
        times = []
        for _ in range(min(rounds, 5)):
            spent[0] = 0.0
            first_call(*cpu_works.layers(count))
            times.append(spent[0])
        row[str(count)] = statistics.median(times)
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part")
    parser.add_argument("title")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.part.startswith("cold-"):
        row = cold(asked.part.removeprefix("cold-"), WORKS[asked.title])
    elif asked.part == "memory":
        row = memory(WORKS["BERT-4 training, batch 8"])
    elif asked.part == "growth":
        row = growth(asked.rounds)
    elif asked.part == "layers":
        row = layers(asked.rounds)
    else:
        row = measure(WORKS[asked.title], asked.rounds, asked.threads)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
