"""The process in which stator fails: all trials of some programs, told to `inject.py` line by line."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

import inject  # noqa: E402
import sites  # noqa: E402

sites.install()  # before anything imports stator

import trial  # noqa: E402
from programs import PROGRAMS  # noqa: E402

TIME_LIMIT = 60.0  # seconds for one trial
RARELY = 0.25  # how many sites get a fault of a rarer kind
Trial = tuple[str, Any, Any, Any, int]  # (kind, program, its reference, site, passage)
TOLD = 1  # file descriptor; what the programs print is caught


def passages(count: int, wanted: int, rng: random.Random) -> list[int]:
    """The first, the last, and some between them."""
    if count <= wanted:
        return list(range(1, count + 1))
    return sorted({1, count, *rng.sample(range(2, count), max(wanted - 2, 0))}) if wanted > 1 else [1]


def every_trial(program: Any, known: Any, args: argparse.Namespace) -> Iterator[Trial]:
    """All trials of a program, the same in each process."""
    kinds = args.kinds.split(",")
    for site in sites.SITES:
        count = known.passages[site.number]
        outside = program.rooms and site.module not in program.rooms
        if not count or outside or not re.search(args.sites, str(site)):
            continue
        rng = random.Random(f"{args.seed} {program.name} {site}")
        chosen = passages(count, args.passages, rng)
        if "fault" in kinds:
            yield from (("fault", program, known, site, passage) for passage in chosen)
        for kind in inject.KINDS[1:]:
            if kind in kinds and (kinds == [kind] or rng.random() < RARELY):
                yield kind, program, known, site, rng.choice(chosen)


def quick_trials(references: list[tuple[Any, Any]], args: argparse.Namespace) -> Iterator[Trial]:
    """Each function once, at its start, in the program that passes the fewest sites."""
    by_size = sorted(references, key=lambda each: each[1].passages.total())
    rng = random.Random(args.seed)
    entries = [site for site in sites.SITES if site.entry]
    for site in entries[args.seed % args.share :: args.share]:
        if re.search(args.sites, str(site)):
            for program, known in by_size:
                if known.passages[site.number]:
                    kind = args.kinds.split(",")[0]
                    yield kind, program, known, site, rng.randint(1, known.passages[site.number])
                    break


def attempt(kind: str, program: Any, known: Any, site: Any, passage: int, once: bool) -> str:
    if kind == "unsuppressed":
        return trial.attempt_unsuppressed(program, site, passage)
    if kind == "interrupt":
        return trial.attempt_interrupt(program, known, site, passage)
    raised = MemoryError if kind == "memory" else sites.Fault
    return trial.attempt(program, known, site, passage, raised, once=once)


def tell(**message: Any) -> None:
    os.write(TOLD, (json.dumps(message) + "\n").encode())


def work(args: argparse.Namespace) -> None:
    """The trials of the named programs, from number `--skip` on; told to the parent line by line."""
    names = args.child.split(",")
    references = [(each, trial.reference(each)) for each in PROGRAMS if each.name in names]
    if args.quick:
        chosen = list(quick_trials(references, args))
    else:
        chosen = [one for program, known in references for one in every_trial(program, known, args)]
    tell(total=len(chosen))
    for number, (kind, program, known, site, passage) in enumerate(chosen):
        if number < args.skip:
            continue
        tell(start=number, what=f"{program.name}: {kind} at {site}, passage {passage}")
        faulthandler.dump_traceback_later(TIME_LIMIT, exit=True)
        try:
            tell(done=number, kind=kind, how=attempt(kind, program, known, site, passage, args.quick))
        except BaseException as error:  # what escapes from a program is a failure too
            name = "" if isinstance(error, trial.Failed) else f"{type(error).__name__} escaped: "
            tell(done=number, kind=kind, failed=f"{name}{error}")
            if not trial.cleaned_up():
                sys.exit(inject.DIRTY)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    work(inject.arguments())
