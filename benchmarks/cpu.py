"""The native backend on CPU: stator against eager and torch.compile, side by side.

    python benchmarks/cpu.py [--rounds 15] [--quick] [--only PATTERN] [--threads 1,2] [--keep FILE] [--fresh]

| work | goal |
| --- | --- |
| cold first call: MLP, BERT-4, GPT2-4, Llama-4 inference; BERT-4 training | at most 1/10 of torch.compile's |
| kernels of 1e4, 1e6 and 1e7 elements | mean 1.3 x torch.compile's speed, none below 0.95 x |
| six models, inference, batch 1 and 8 | mean 1.15 x torch.compile and 1.15 x eager, none below 0.97 x eager |
| the same, training step with AdamW | mean 1.15 x torch.compile; 1.3 x eager with pointwise work |
| peak memory of a training step of BERT-4 | at most 0.7 x eager's |
| linear, gelu, linear, residual, layer norm at 256, batch 1 | at most 1/4 of eager's time |
| compile time of 10, 100, 1,000, 10,000 operations | ten times the operations in at most 13 times the time |
| kernels of 12 equal layers | at most 1.5 x those of one |

Every row runs in a process of its own with empty caches, and checks that the results are eager's and that all graphs
became machine code. All sides take turns; figures are medians over the rounds: of processor time with one thread, so
that other processes count little, of time on the wall with two.

Each row prints its limit: the time of its library calls alone, and of moving inputs, outputs and the library calls'
operands once (`cpu_limit.py`). A row is met by its ratio, or by being within 1.1 x of its limit; means (geometric) are
over the others. Pointwise work has what spends less than 1/1.3 of eager's time in library calls.

Each row is kept on disk as soon as it is measured, in `build/cpu-rows.json`: a run that was interrupted goes on where
it was. Rows that were measured with other sources or in fewer rounds are measured again; with `--fresh`, all are.

`--quick` is made to take about 25 minutes on a machine that does nothing else: one thread, three rounds, one process
per cold row, kernels of 1e6 elements, models at batch 1. A row: `--only "training: ViT training, batch 1"`.

Cold: imports are done, caches are empty, the clock runs from `compile` to the first result; three processes per side.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import cpu_chart
import cpu_works
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEASURE = ROOT / "benchmarks" / "cpu_measure.py"
CHART = ROOT / "docs" / "img" / "cpu.svg"
KEPT = ROOT / "build" / "cpu-rows.json"
NEAR = 1.1  # of the limit
COLD_GOAL, BLOCK_GOAL, MEMORY_GOAL, GROWTH_GOAL, LAYERS_GOAL = 1 / 10, 1 / 4, 0.7, 13.0, 1.5
COUNTS = (10, 100, 1000, 10_000)
NOT_QUICK = re.compile(r"(kernels: .* (1e4|1e7)|batch 8)$")  # what --quick leaves out
# By group of works: the mean's goal against torch.compile, against eager, and the lowest for a single row of each.
MEANS = {"kernels": (1.3, None), "inference": (1.15, 1.15), "training": (1.15, 1.3)}
LEAST = {"kernels": ("torch", 0.95), "inference": ("eager", 0.97)}

Row = dict[str, Any]


# ---------------------------------------------------------------------------------------------- asking for a row


class Progress:
    """One line on a terminal that says what is being measured."""

    def __init__(self, rows: int) -> None:
        self._rows, self._done, self._shown = rows, 0, sys.stderr.isatty()
        self._start = time.perf_counter()

    def next(self) -> None:
        self._done += 1

    def say(self, text: str) -> None:
        if self._shown:
            passed = time.perf_counter() - self._start
            print(f"\r\x1b[K[{self._done}/{self._rows}, {passed:.0f} s] {text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def empty_caches(threads: int) -> Iterator[dict[str, str]]:
    """The environment of a process that finds nothing compiled."""
    with tempfile.TemporaryDirectory() as folder:
        yield {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
            "STATOR_CACHE_DIR": f"{folder}/stator",
            "OMP_NUM_THREADS": str(threads),
        }


def in_a_process(asked: list[str], threads: int, progress: Progress, title: str) -> Row:
    """One measurement; RuntimeError with the end of what it wrote if it failed."""
    command = [sys.executable, str(MEASURE), *asked]
    with empty_caches(threads) as environment, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as child:
            assert child.stdout is not None
            last = ""
            for line in child.stdout:
                last = line.strip()
                if not last.startswith("{"):
                    progress.say(f"{title}: {last}")
        progress.clear()
        if child.returncode:
            errors.seek(0)
            raise RuntimeError("\n".join(errors.read().strip().splitlines()[-6:]) or f"exit code {child.returncode}")
    row: Row = json.loads(last)
    return row


# ----------------------------------------------------------------------------------------------------- judging it


def verdict(good: bool) -> str:
    return "PASS" if good else "FAIL"


def duration(seconds: float) -> str:
    for unit, factor in (("s ", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def at_limit(row: Row) -> bool:
    return bool(row["stator"] <= NEAR * row["limit"])


def is_met(row: Row) -> bool:
    """The goal of a single row; what counts beside it is the mean of its group."""
    if row["wrong"] or row["refused"]:
        return False
    if at_limit(row):
        return True
    if row["group"] == "block":
        return bool(row["stator"] <= BLOCK_GOAL * row["eager"])
    side, least = LEAST.get(row["group"], ("torch", 0.0))
    return bool(row[side] / row["stator"] >= least)


def mean(numbers: list[float]) -> float:
    return statistics.geometric_mean(numbers)


def has_pointwise_work(row: Row) -> bool:
    return bool(1.3 * row["library"] <= row["eager"])


HEAD = f"{'':38}{'eager':>9}{'torch.compile':>15}{'stator':>10}{'limit':>10}{'x eager':>9}{'x torch':>9}{'x limit':>9}"


def line(row: Row) -> str:
    times = f"{duration(row['eager']):>9}{duration(row['torch']):>15}{duration(row['stator']):>10}"
    beside = "".join(f"{row[side] / row['stator']:9.2f}" for side in ("eager", "torch"))
    over = f"{row['stator'] / row['limit']:9.2f}" if row["limit"] else f"{'':9}"
    notes = "  at the limit" * at_limit(row) + f"  WRONG: {row['wrong']}" * bool(row["wrong"])
    notes += "".join(f"\n    not compiled: {why}" for why in row["refused"])
    return f"{row['title']:38}{times}{duration(row['limit']):>10}{beside}{over}  {verdict(is_met(row))}{notes}"


def judge_means(group: str, rows: list[Row]) -> bool:
    """Print the means of a group of rows with the same number of threads; are they as high as they should be?"""
    others = [row for row in rows if not at_limit(row)]
    met = all(is_met(row) for row in rows)
    for side, goal in zip(("torch", "eager"), MEANS.get(group, (None, None)), strict=True):
        counted = [row for row in others if group != "training" or side == "torch" or has_pointwise_work(row)]
        if goal is None or not counted:
            continue
        found = mean([row[side] / row["stator"] for row in counted])
        met &= found >= goal
        against = {"torch": "torch.compile", "eager": "eager"}[side]
        print(f"  mean of {len(counted)}: {found:.2f} x {against} (goal {goal:g}) {verdict(found >= goal)}", flush=True)
    return met


# ----------------------------------------------------------------------------------------------- parts of the table


def sources() -> str:
    """What all measurements depend on, as a hash."""
    found = hashlib.sha256()
    folders = ((ROOT / "src" / "stator", "**/*.[pch]*"), (ROOT / "benchmarks", "cpu*.py"))
    for path in sorted(path for folder, names in folders for path in folder.glob(names)):
        if path.suffix in (".py", ".c", ".h"):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


class Kept:
    """Rows on disk."""

    def __init__(self, file: pathlib.Path, rounds: int, fresh: bool) -> None:
        self._file, self._about = file, {"sources": sources(), "rounds": rounds}
        self._rows: dict[str, Row] = json.loads(file.read_text()) if file.exists() and not fresh else {}

    def find(self, key: str) -> Row | None:
        row = self._rows.get(key)
        good = row is not None and row["sources"] == self._about["sources"] and row["rounds"] >= self._about["rounds"]
        return row if good else None

    def add(self, key: str, row: Row) -> None:
        self._rows[key] = {**row, **self._about}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        half = self._file.with_suffix(".half")  # an interrupted write loses nothing
        half.write_text(json.dumps(self._rows, indent=1))
        half.replace(self._file)


class Table:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.only = re.compile(asked.only or "")
        self.quick: bool = asked.quick
        self.rounds = 3 if asked.quick else asked.rounds
        self.cold_rounds = 1 if asked.quick else asked.cold_rounds
        threads = asked.threads or ("1" if asked.quick else "1,2")
        self.threads: list[int] = [int(number) for number in threads.split(",")]
        self.kept = Kept(pathlib.Path(asked.keep), self.rounds, asked.fresh)
        self.rows: dict[str, Row] = {}
        self.failed: list[str] = []
        self.progress = Progress(sum(1 for _ in self.titles()))

    def titles(self) -> Iterator[tuple[str, str, int]]:
        """(part of the table, title, threads) of every row that was asked for."""
        parts: dict[str, tuple[str, ...]] = {}
        for work in cpu_works.WORKS.values():
            parts[work.group] = (*parts.get(work.group, ()), work.title)
        for title in cpu_works.COLD:
            yield from self._matching("cold", title, [self.threads[-1]])
        for group in ("kernels", "block", "inference", "training"):
            for threads in self.threads:
                for title in parts[group]:
                    yield from self._matching(group, title, [threads])
        yield from self._matching("memory", "peak memory of BERT-4 training", [1])
        yield from self._matching("growth", "compile time over number of operations", [1])
        yield from self._matching("layers", "kernels of 12 equal layers", [1])

    def _matching(self, part: str, title: str, threads: list[int]) -> Iterator[tuple[str, str, int]]:
        if self.quick and NOT_QUICK.search(f"{part}: {title}"):
            return
        for number in threads:
            if self.only.search(f"{part}: {title}, {number} thread{'s' * (number > 1)}"):
                yield part, title, number

    def measure(self, part: str, title: str, threads: int) -> Row | None:
        """A row, measured or kept; None if that failed."""
        key = f"{part}: {title}, {threads}"
        self.progress.next()
        row = self.kept.find(key)
        if row is None:
            try:
                row = self._measured(part, title, threads)
            except RuntimeError as error:
                self.progress.clear()
                print(f"{title:38}FAIL\n{error}", flush=True)
                self.failed.append(key)
                return None
            self.kept.add(key, row)
        self.rows[key] = row
        return row

    def _measured(self, part: str, title: str, threads: int) -> Row:
        if part != "cold":
            given = [part, title, "--rounds", str(self.rounds), "--threads", str(threads)]
            return in_a_process(given, threads, self.progress, f"{title}, {threads} thread{'s' * (threads > 1)}")
        found: dict[str, list[float]] = {"torch": [], "stator": []}
        for number in range(self.cold_rounds):
            for side in sorted(found, reverse=number % 2 == 0):
                given = [f"cold-{side}", title, "--threads", str(threads)]
                found[side].append(in_a_process(given, threads, self.progress, f"{title}, cold, {side}")["seconds"])
        return {"title": title, "group": "cold", **{side: statistics.median(times) for side, times in found.items()}}

    def run(self) -> bool:
        met, pending = True, list(self.titles())
        for part, threads in dict.fromkeys((part, threads) for part, _, threads in pending):
            titles = [title for p, title, number in pending if (p, number) == (part, threads)]
            print(f"\n{part}, {threads} thread{'s' * (threads > 1)}", flush=True)
            if part in ("kernels", "block", "inference", "training"):
                print(HEAD, flush=True)
            rows = []
            for title in titles:
                row = self.measure(part, title, threads)
                if row is not None:
                    rows.append(row)
                    print(OTHER_LINES.get(part, line)(row), flush=True)
            judge = OTHER_GOALS.get(part)
            met &= all(map(judge, rows)) if judge else judge_means(part, rows)
        return met and not self.failed


def cold_line(row: Row) -> str:
    ratio = row["torch"] / row["stator"]
    both = f"torch.compile {duration(row['torch']):>8}   stator {duration(row['stator']):>8}"
    return f"{row['title']:38}{both}   1/{ratio:.1f} (goal 1/{1 / COLD_GOAL:.0f}) {verdict(cold_met(row))}"


def cold_met(row: Row) -> bool:
    return bool(row["stator"] <= COLD_GOAL * row["torch"])


def memory_line(row: Row) -> str:
    sides = f"eager {row['eager'] / 2**20:.1f} MiB, stator {row['stator'] / 2**20:.1f} MiB (arena included)"
    ratio = f"{row['stator'] / row['eager']:.2f} x (goal {MEMORY_GOAL})"
    return f"{row['title']:38}{sides}: {ratio} {verdict(memory_met(row))}"


def memory_met(row: Row) -> bool:
    return bool(row["stator"] <= MEMORY_GOAL * row["eager"])


def growth_line(row: Row) -> str:
    times = "   ".join(f"{count}: {duration(row[str(count)])}" for count in COUNTS)
    return f"{row['title']}\n  {times}   most {steepest(row):.1f} x (goal {GROWTH_GOAL:.0f}) {verdict(growth_met(row))}"


def steepest(row: Row) -> float:
    times = [row[str(count)] for count in COUNTS]
    return max(float(after / before) for before, after in itertools.pairwise(times))


def growth_met(row: Row) -> bool:
    return steepest(row) <= GROWTH_GOAL


def layers_line(row: Row) -> str:
    ratio = row["12"] / row["1"]
    both = f"1: {duration(row['1'])}   12: {duration(row['12'])}"
    return f"{row['title']:38}{both}   {ratio:.2f} x (goal {LAYERS_GOAL}) {verdict(layers_met(row))}"


def layers_met(row: Row) -> bool:
    return bool(row["12"] <= LAYERS_GOAL * row["1"])


OTHER_LINES: dict[str, Callable[[Row], str]] = {
    "cold": cold_line, "memory": memory_line, "growth": growth_line, "layers": layers_line,
}  # fmt: skip
OTHER_GOALS: dict[str, Callable[[Row], bool]] = {
    "cold": cold_met, "memory": memory_met, "growth": growth_met, "layers": layers_met,
}  # fmt: skip


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as info:
            cpu = next((text.split(":", 1)[1].strip() for text in info if text.startswith("model name")), cpu)
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="turns of every side (default: %(default)s)")
    parser.add_argument("--cold-rounds", type=int, default=3, help="processes per cold row (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="the most telling rows, in about 25 minutes")
    parser.add_argument("--only", help="a regular expression for `part: title, 1 thread`, such as `kernels: softmax`")
    parser.add_argument("--threads", help="comma-separated (default: 1,2; with --quick: 1)")
    parser.add_argument("--keep", default=str(KEPT), help="the file that rows are kept in (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="measure rows again that are kept")
    parser.add_argument("--list", action="store_true", help="print the rows, measure nothing")
    asked = parser.parse_args()
    if min(asked.rounds, asked.cold_rounds) < 1:
        parser.error("rounds must be at least 1")
    table = Table(asked)
    if asked.list:
        for part, title, threads in table.titles():
            print(f"{part}: {title}, {threads} thread{'s' * (threads > 1)}")
        return 0
    print("The native backend on CPU, against eager and torch.compile; ratios are speeds, above 1: stator is faster")
    print(f"Medians of {table.rounds} rounds. {machine()}", flush=True)
    met = table.run()
    if not asked.only:
        CHART.parent.mkdir(exist_ok=True)
        CHART.write_text(cpu_chart.draw(list(table.rows.values()), machine()))
        print(f"\n{CHART.relative_to(ROOT)} written")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
