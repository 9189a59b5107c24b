"""What graph breaks cost: a function with eight of them around small operations, stator against torch.compile.

    python benchmarks/breaks.py [--quick] [--rounds 99] [--calls 40]

Both compile with their backend `eager`, which runs graphs as they are, so what is left is the way from graph to graph:
guards, the call of the compiled graph, the step of plain Python in between. Timed is the steady state, after both have
compiled all they will: each round times a short batch of calls on either side, which goes first alternates, figures are
medians over many rounds. The goal: at most 1/3 of torch.compile's time.

- asked for: `graph_break()` of either compiler, the cheapest break there is
- print:     to a stream that throws everything away
- item:      `.item()` of a small tensor, whose value goes into the next operation

A row on which stator did not give nine graphs with eight breaks fails: running plain is no replay.
"""

from __future__ import annotations

import argparse
import gc
import io
import logging
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch._dynamo

import stator

GOAL = 1 / 3
BREAKS = 8
WARM_UP = 20


class Sink(io.TextIOBase):
    """A stream that throws everything away."""

    def write(self, text: str) -> int:
        return len(text)


SINK = Sink()

# -------------------------------------------------------------------------------------------- what is measured

Body = Callable[[torch.Tensor], torch.Tensor]


def asked_for(graph_break: Callable[[], None]) -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        graph_break()
        x = x * 2
        graph_break()
        x = x - 3
        graph_break()
        x = x / 2
        graph_break()
        x = x + 1
        graph_break()
        x = x * 2
        graph_break()
        x = x - 3
        graph_break()
        x = x / 2
        graph_break()
        return x + 1

    return body


def printing(graph_break: Callable[[], None]) -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        print("one", file=SINK)
        x = x * 2
        print("two", file=SINK)
        x = x - 3
        print("three", file=SINK)
        x = x / 2
        print("four", file=SINK)
        x = x + 1
        print("five", file=SINK)
        x = x * 2
        print("six", file=SINK)
        x = x - 3
        print("seven", file=SINK)
        x = x / 2
        print("eight", file=SINK)
        return x + 1

    return body


def items(graph_break: Callable[[], None]) -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        x = x + x[0].item()
        x = x * x[1].item()
        x = x - x[2].item()
        x = x + x[3].item()
        x = x * x[0].item()
        x = x - x[1].item()
        x = x + x[2].item()
        return x * x[3].item()

    return body


ROWS: dict[str, Callable[[Callable[[], None]], Body]] = {"asked for": asked_for, "print": printing, "item": items}


class Side:
    """One compiler with one function."""

    def __init__(self, compiler: Callable[..., Any], body: Body) -> None:
        self.compiled = compiler(body, backend="eager")

    def warm_up(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(WARM_UP):
            result: torch.Tensor = self.compiled(x)
        return result

    def time(self, x: torch.Tensor, calls: int) -> float:
        """Seconds per call over a batch of calls."""
        return seconds_per_call(self.compiled, x, calls)


def seconds_per_call(function: Callable[[torch.Tensor], Any], x: torch.Tensor, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(x)
    return (time.perf_counter() - start) / calls


def measure(make: Callable[[Callable[[], None]], Body], rounds: int, calls: int) -> dict[str, float]:
    """Medians of both sides and of plain Python, interleaved; graphs and breaks that stator counts."""
    torch._dynamo.reset()
    stator.reset()
    x = torch.ones(4)
    plain = make(lambda: None)
    wanted = plain(x)
    ours = Side(stator.compile, make(stator.graph_break))
    theirs = Side(torch.compile, make(torch._dynamo.graph_break))
    torch._dynamo.utils.counters.clear()
    for side in (ours, theirs):
        if not torch.equal(side.warm_up(x), wanted):
            raise RuntimeError("a compiled function gives another result than the plain one")
    times: dict[str, list[float]] = {"stator": [], "torch": [], "eager": []}
    gc.collect()
    for number in range(rounds):
        timed = [("stator", ours.time), ("torch", theirs.time)]
        for name, run in timed if number % 2 else reversed(timed):
            times[name].append(run(x, calls))
        times["eager"].append(seconds_per_call(plain, x, calls))
    record = ours.compiled.stator
    return {
        **{name: statistics.median(spent) for name, spent in times.items()},
        "graphs": len(record.graphs),
        "torch_graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        "breaks": len(record.break_reasons),
        "replayed": record.plain == 0 and record.hits > 0,
    }


# -------------------------------------------------------------------------------------------------- the table


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as info:
            cpu = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), cpu)
    return f"{cpu}, {os.cpu_count()} cores, 1 thread, Python {platform.python_version()}, torch {torch.__version__}"


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"


def verdict(good: bool) -> str:
    return "ok" if good else "FAIL"


COLUMNS = {"breaks by": 10, "eager": 10, "graphs t/s": 14, "breaks": 11, "torch": 10, "stator": 10, "ratio (1/3)": 13}


def line(cells: Iterable[str]) -> str:
    first, *rest = (f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))
    return "  ".join([first.strip().ljust(COLUMNS["breaks by"]), *rest])


def cells(title: str, row: dict[str, float]) -> tuple[str, ...]:
    """One row of the table; item's last segment holds the last operation, so all rows have nine graphs."""
    whole = row["graphs"] == BREAKS + 1 and bool(row["replayed"])
    return (
        title,
        duration(row["eager"]),
        f"{row['torch_graphs']:.0f}/{row['graphs']:.0f} {verdict(whole)}",
        f"{row['breaks']:.0f} {verdict(row['breaks'] == BREAKS)}",
        duration(row["torch"]),
        duration(row["stator"]),
        f"1/{row['torch'] / row['stator']:.1f} {verdict(row['stator'] <= row['torch'] * GOAL)}",
    )


def compare(rounds: int, calls: int) -> bool:
    """Print the whole table, row by row; are all goals reached?"""
    print("A call with eight graph breaks, stator against torch.compile, graphs run as they are (backend 'eager')")
    print(f"Medians of {rounds} rounds of {calls} calls each; graphs t/s: of torch.compile and stator")
    print(f"{machine()}\n")
    print(line(COLUMNS))
    print(line("-" * width for width in COLUMNS.values()), flush=True)
    rows = []
    for title, make in ROWS.items():
        rows.append(line(cells(title, measure(make, rounds, calls))))
        print(rows[-1], flush=True)
    return not any("FAIL" in row for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=99, help="of either side (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=40, help="per round (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="nine rounds")
    asked = parser.parse_args()
    if min(asked.rounds, asked.calls) < 1:
        parser.error("rounds and calls must be at least 1")
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # it suggests an option that does away with the break
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    rounds, calls = (9, 40) if asked.quick else (asked.rounds, asked.calls)
    return 0 if compare(rounds, calls) else 1


if __name__ == "__main__":
    sys.exit(main())
