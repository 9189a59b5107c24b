"""Everything that is compared with plain Python at scale: `python tests/conformance`, or `make conformance`.

    cpython   CPython's own test suite, watched and compiled, on every CPython that is found
    fuzz      random programs
    graphs    random ATen graphs: machine code and its reference evaluator against ATen
    operators torch's own samples of all operators, through the native backend
    models    the zoo of models
    faults    failures put in at every call site of stator's own
    disturb   other threads, signals, collections, forks and interpreters amid recordings and replays
    page      a report in a browser, which must be there

Each part is a script that prints as it goes and ends with its numbers; those of all parts end the output. The exit
status is 0 if nothing is different, wrong or not survived. All of it takes hours; `--quick` runs a sample of each
part, in some minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
QUICK_MODULES = "test_scope test_generator_stop test_unpack_ex test_with test_augassign test_keywordonlyarg".split()


class Part(NamedTuple):
    script: str
    words: Callable[[argparse.Namespace], list[str]]  # its arguments
    numbers: str  # the line that ends its output; what follows the colon is given by the script


def cpython(asked: argparse.Namespace) -> list[str]:
    return ["--jobs", str(asked.jobs), *(["--modules", *QUICK_MODULES] if asked.quick else [])]


def fuzz(asked: argparse.Namespace) -> list[str]:
    count = min(asked.programs, 200) if asked.quick else asked.programs
    return ["-n", str(count), "--seed", str(asked.seed), "--processes", str(asked.jobs)]


def graphs(asked: argparse.Namespace) -> list[str]:
    return [str(asked.seed), "50" if asked.quick else "5000"]


def operators(asked: argparse.Namespace) -> list[str]:
    return ["--ops", "^a", "--samples", "2"] if asked.quick else []


def models(asked: argparse.Namespace) -> list[str]:
    return ["--models", "BERT,GPT-2,ResNet"] if asked.quick else []


def faults(asked: argparse.Namespace) -> list[str]:
    return ["--jobs", str(asked.jobs), *(["--quick", "--share", "10"] if asked.quick else [])]


def disturb(asked: argparse.Namespace) -> list[str]:
    return ["--seed", str(asked.seed), "--seconds", "2" if asked.quick else "60"]


def page(asked: argparse.Namespace) -> list[str]:
    return ["-q", *(["-k", "hostile"] if asked.quick else [])]


PARTS = {
    "cpython": Part("conformance/cpython.py", cpython, "tests identical / different"),
    "fuzz": Part("fuzz/run.py", fuzz, "programs fuzzed / mismatches"),
    "graphs": Part("fuse/random_graphs.py", graphs, "graphs compared / wrong"),
    "operators": Part("fuse/opinfo.py", operators, "operators / samples / wrong"),
    "models": Part("models/table.py", models, "models right / wrong / in one graph"),
    "faults": Part("faults/inject.py", faults, "faults injected / survived"),
    "disturb": Part("faults/disturbances.py", disturb, "processes disturbed / failed"),
    "page": Part("report/in_browser.py", page, "tests in a browser passed / failed"),
}


def run(name: str, asked: argparse.Namespace) -> tuple[str, bool]:
    """The numbers of a part, and whether all is well with them."""
    part = PARTS[name]
    command = [sys.executable, str(TESTS / part.script), *part.words(asked)]
    start = time.monotonic()
    print(f"==== {name}: {' '.join(command[1:])}", flush=True)
    found = None
    path = os.pathsep.join([str(TESTS.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace", env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            found = re.fullmatch(re.escape(part.numbers) + r": [\d /]+", line.strip()) or found
    print(f"==== {name}: {time.monotonic() - start:.0f} s, exit status {process.returncode}", flush=True)
    numbers = found.group() if found else f"{part.numbers}: the script gave none"
    good = process.returncode == 0 and found is not None
    return numbers if good else f"{numbers}   <-- look at {name}", good


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--programs", type=int, default=2000, metavar="N", help="random programs (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first of them (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a sample of each part")
    asked = parser.parse_args(words)
    unknown = [name for name in asked.parts if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return asked


def main(words: list[str] | None = None) -> int:
    asked = arguments(words)
    results = [run(name, asked) for name in asked.parts or PARTS]
    print()
    for numbers, _ in results:
        print(numbers)
    return 0 if all(good for _, good in results) else 1


if __name__ == "__main__":
    sys.exit(main())
