"""Differential fuzzing: `python tests/fuzz/run.py --help`, or `make fuzz N=1000 SEED=0`.

Random programs run plain and compiled; whatever differs is printed with its seed, made small and written to a file that
shows the difference when it is run.
"""

from __future__ import annotations

import argparse
import ast
import collections
import functools
import os
import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from compare import Finding, Outcome, run
from programs import program
from shrink import shrunk
from workers import in_a_child, outcome_of, outcomes

FIRST = """
import torch
SETTINGS = {}
def main(x, n):
    return x * n
CALLS = [lambda: main(torch.ones(2, 3), 4)] * 4
"""
FOOTER = """
if __name__ == "__main__":  # PYTHONPATH=src python {path}
    import subprocess

    sys.exit(subprocess.call([sys.executable, {runner!r}, "--program", __file__]))
"""


def main() -> int:
    options = arguments()
    torch.set_num_threads(1)
    warm_up()
    if options.program:
        return one(Path(options.program).read_text(), options, options.program)
    if options.show:
        print(program(options.seed, options.backend))
        return 0
    if options.n == 1:
        return one(program(options.seed, options.backend), options, f"seed {options.seed}")
    return many(options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Random programs, run plain and compiled, and compared after every call."
    )
    parser.add_argument("-n", type=int, default=1000, help="number of programs (1000)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first program (0); the same gives the same")
    parser.add_argument("--program", help="run this file instead of random programs")
    parser.add_argument("--show", action="store_true", help="print the program with this seed, do not run it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="workers (one per core)")
    parser.add_argument("--shrink", type=float, default=60, metavar="S", help="seconds to make a finding small; 0: not")
    parser.add_argument("--backend", help="for all programs; otherwise they choose it themselves")
    parser.add_argument("--folder", default="fuzz-findings", help="where findings are written (fuzz-findings)")
    parser.add_argument("--seconds", type=float, help="end after so many seconds, however many programs that are")
    return parser.parse_args()


def warm_up() -> None:
    """Load in this process what every worker would load for itself."""
    for dynamic in (None, True):
        settings = {"backend": "native", "dynamic": dynamic, "options": {}, "gradients": False}
        assert run(FIRST.format(settings)).finding is None


def one(text: str, options: argparse.Namespace, name: str) -> int:
    outcome = outcome_of(text)
    print(f"{name}: {in_words(outcome)}")
    if outcome.finding is None:
        return 0
    print(outcome.finding.text)
    if options.shrink and not options.program:
        print(written(text, outcome.finding, options.folder, options.seed, options.shrink))
    return 1


def many(options: argparse.Namespace) -> int:
    numbers = list(range(options.seed, options.seed + options.n))
    stats: collections.Counter[str] = collections.Counter()
    found: list[tuple[int, Finding]] = []
    start = time.monotonic()
    for number, outcome in outcomes(numbers, functools.partial(program, backend=options.backend), options.processes):
        count(stats, outcome)
        if outcome.finding is not None:
            found.append((number, outcome.finding))
            say(f"seed {number}: {outcome.finding.kind} in call {outcome.finding.call}\n{outcome.finding.text}\n")
        if stats["programs"] % 10 == 0 or stats["programs"] == options.n:
            progress(stats, len(found), options.n, time.monotonic() - start)
        if options.seconds and time.monotonic() - start > options.seconds:
            break
    print()
    for number, finding in found if options.shrink else []:
        print(written(program(number, options.backend), finding, options.folder, number, options.shrink))
    print(summary(stats, found))
    return 1 if found else 0


def count(stats: collections.Counter[str], outcome: Outcome) -> None:
    stats["programs"] += 1
    for name in ("calls", "raised", "hits", "graphs", "breaks"):
        stats[name] += getattr(outcome, name)


def progress(stats: collections.Counter[str], found: int, wanted: int, seconds: float) -> None:
    rate = stats["programs"] / max(seconds, 0.01)
    line = f"{stats['programs']}/{wanted} programs, {found} mismatches, {rate:.1f} a second"
    if sys.stderr.isatty():
        print(f"\r{line}", end="", flush=True, file=sys.stderr)
    elif stats["programs"] % 1000 == 0:
        print(line, flush=True, file=sys.stderr)


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


def summary(stats: collections.Counter[str], found: list[tuple[int, Finding]]) -> str:
    rest = ", ".join(f"{name} {stats[name]}" for name in ("calls", "hits", "graphs", "breaks", "raised"))
    seeds = f"seeds: {' '.join(str(number) for number, _ in found)}\n" if found else ""
    return f"{rest}\n{seeds}programs fuzzed / mismatches: {stats['programs']} / {len(found)}"


def in_words(outcome: Outcome) -> str:
    how = outcome.finding.kind if outcome.finding else "the same"
    return f"{how} ({outcome.calls} calls, {outcome.hits} hits, {outcome.graphs} graphs, {outcome.raised} raised)"


def written(text: str, finding: Finding, folder: str, number: int, seconds: float) -> str:
    """The finding, made small, in a file of its own."""
    deadly = finding.kind in ("crash", "hang")
    raised = outcome_of(text).raised

    def fails(smaller: str) -> bool:
        try:
            other = outcome_of(smaller) if deadly else run(smaller)
        except Exception:  # of the text: it makes no program any more
            return False
        return other.finding is not None and other.finding.kind == finding.kind and other.raised <= raised

    warnings.simplefilter("ignore", SyntaxWarning)  # what is cut out of a program may look odd
    whole = ast.unparse(ast.parse(text))
    if outcome_of(whole).finding is None:
        small, note = (
            whole,
            Finding(finding.kind, finding.call, f"not alone: after the programs before it\n{finding.text}"),
        )
    else:
        # All in one process where that does not kill it: to fork one for each attempt takes longer than the attempt.
        shrink = functools.partial(shrunk, whole, fails, seconds, say=lambda line: None)
        small = shrink() if deadly else in_a_child(shrink) or whole
        note = outcome_of(small).finding
    path = Path(folder) / f"seed_{number}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    why = "".join(f"# {line}\n" for line in (note or finding).text.splitlines())
    path.write_text(f"# {finding.kind}, seed {number}\n{why}{small}\n" + footer(path))
    return f"{path}: {len(small.splitlines())} lines"


def footer(path: Path) -> str:
    return FOOTER.format(path=path, runner=str(Path(__file__).resolve())).replace("sys.", "__import__('sys').")


if __name__ == "__main__":
    sys.exit(main())
