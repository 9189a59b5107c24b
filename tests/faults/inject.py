"""Makes stator fail at every call site in turn: `python tests/faults/inject.py`, or `make faults`.

For each program (`programs.py`) and each site of stator's own source that it passes (`sites.py`), the chosen passages
raise an exception, one in each trial (`trial.py`): results, effects, output and exceptions must be eager's, with one
warning at most, and nothing may be left behind. For some of them the error is raised with its cause (`suppress_errors`
off), or is a MemoryError, or a KeyboardInterrupt, which must reach the user.

Each program has a process of its own: a crash is a fault that was not survived, and the rest goes on after it.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
DIRTY = 77  # status of a process that is left with something it cannot undo
SLOW = ("generated_code",)  # not in the quick run
KINDS = ("fault", "memory", "unsuppressed", "interrupt")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="each function once, in the program that calls least")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="with --quick: every N-th function (1)")
    parser.add_argument("--passages", type=int, default=3, metavar="N", help="of each site: first, last, others (3)")
    parser.add_argument("--programs", default="", metavar="REGEX", help="only programs with such names")
    parser.add_argument("--sites", default="", metavar="REGEX", help="only sites whose description has this in it")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="A,B", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seed", type=int, default=0, help="chooses the passages, and where the rarer kinds go")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="programs at a time (1)")
    parser.add_argument("--verbose", action="store_true", help="name every trial")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args(given)


class Stats:
    """What has become of all faults so far."""

    def __init__(self, verbose: bool) -> None:
        self.survived: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.done = self.total = 0
        self._verbose = verbose
        self._lock = threading.Lock()
        self._start = time.monotonic()

    def expect(self, count: int) -> None:
        with self._lock:
            self.total += count

    def note(self, what: str, kind: str, how: str, failure: str | None) -> None:
        with self._lock:
            self.done += 1
            if failure is not None:
                self.failures.append(what)
                print(f"\nNOT SURVIVED  {what}\n    {failure}".replace("\n", "\n    "), flush=True)
            else:
                self.survived[f"{kind}, {how}"] += 1
                if self._verbose:
                    print(f"{what}: {how}", flush=True)
            if self.done % 50 == 0 or self.done == self.total:
                seconds = time.monotonic() - self._start
                line = f"{self.done} of {self.total} faults, {len(self.failures)} not survived, {seconds:.0f} s"
                print(line, end="\r" if sys.stdout.isatty() else "\n", flush=True)

    def summary(self) -> str:
        injected = sum(self.survived.values()) + len(self.failures)
        missed = sum(count for how, count in self.survived.items() if how.endswith("not reached"))
        lines = [f"  {count:6}  {how}" for how, count in sorted(self.survived.items())]
        numbers = f"faults injected / survived: {injected - missed} / {injected - missed - len(self.failures)}"
        return "\n".join([*lines, numbers])


def oversee(names: str, given: list[str], stats: Stats) -> None:
    """Run the trials of some programs in a process; after a crash go on behind it, in another one."""
    skip = 0
    while True:
        command = [sys.executable, str(HERE / "worker.py"), *given, "--child", names, "--skip", str(skip)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stderr is not None
        complaints: list[str] = []
        drain = threading.Thread(target=lambda pipe, out: out.append(pipe.read()), args=(process.stderr, complaints))
        drain.start()
        what, running = f"{names}: before the first fault", -1
        for line in process.stdout:
            message = json.loads(line)
            if "total" in message and skip == 0:
                stats.expect(message["total"])
            elif "start" in message:
                what, running = message["what"], message["start"]
            elif "done" in message:
                stats.note(what, message["kind"], message.get("how", ""), message.get("failed"))
        status = process.wait()
        drain.join()
        if status == 0:
            return
        if status != DIRTY:
            stats.note(what, "crash", "", f"the process ended with status {status}\n{complaints[0][-3000:]}")
        if running < skip:
            return
        skip = running + 1


def program_names() -> list[str]:
    return re.findall(r"^def (\w+)\(\) -> World:", (HERE / "programs.py").read_text(), re.MULTILINE)


def main(given: list[str]) -> int:
    args = arguments(given)
    names = [name for name in program_names() if re.search(args.programs, name)]
    names = [name for name in names if not (args.quick and name in SLOW)]
    stats = Stats(args.verbose)
    groups = [",".join(names)] if args.quick else names
    with ThreadPoolExecutor(args.jobs) as pool:
        for done in [pool.submit(oversee, group, given, stats) for group in groups]:
            done.result()
    print(stats.summary())
    return 1 if stats.failures or not stats.done else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
