"""Running many programs, each where it can do no harm: in processes that may crash or hang.

What enters: numbers of programs, or texts. What leaves: for each an `Outcome`; a crash and a hang are findings like
any other.

A worker is forked from this process, which has everything loaded and has run nothing but a warm-up. It writes a line
after each program, so that it is known which program it died of; another worker goes on behind that one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from compare import Finding, Outcome, run

LIMIT = 120.0  # seconds for one program, on a machine that may be busy
BATCH = 250  # programs of one worker: what it has loaded and cached is given back now and then


@dataclass
class Worker:
    """A running process, the texts it is to run, and what it has said so far."""

    pid: int
    pipe: int
    jobs: list[int]
    buffer: bytes = b""
    since: float = field(default_factory=time.monotonic)


def outcomes(numbers: list[int], text_of: Callable[[int], str], processes: int = 1) -> Iterator[tuple[int, Outcome]]:
    """Every number with the outcome of its program, in the order in which they end."""
    waiting = [numbers[start : start + BATCH] for start in range(0, len(numbers), BATCH)][::-1]
    workers: list[Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < processes:
                workers.append(start_worker(waiting.pop(), text_of))
            for worker in ready(workers):
                yield from hear(worker)
                if worker.pipe >= 0:
                    continue
                workers.remove(worker)
                if worker.jobs:
                    died_of = worker.jobs.pop(0)
                    yield died_of, Outcome(buried(worker))
                    waiting += [worker.jobs] * bool(worker.jobs)
                else:
                    os.waitpid(worker.pid, 0)
    finally:
        for worker in workers:
            end(worker)


def outcome_of(text: str) -> Outcome:
    """The outcome of one program, in a process of its own."""
    return next(outcomes([0], lambda _: text))[1]


def in_a_child(function: Callable[[], str]) -> str:
    """What a function gives, run in a process of its own; nothing if that dies."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        try:
            with os.fdopen(writing, "w") as pipe:
                pipe.write(function())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        got = pipe.read()
    os.waitpid(pid, 0)
    return got


# ---------------------------------------------------------------------------------------------- in the parent


def start_worker(jobs: list[int], text_of: Callable[[int], str]) -> Worker:
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Worker(pid, reading, list(jobs))
    os.close(reading)
    gc.freeze()  # what is loaded is not to be looked through after every call
    try:
        work(jobs, text_of, writing)
    finally:
        os._exit(0)


def ready(workers: list[Worker]) -> list[Worker]:
    """Workers that have said something, or have been silent for too long."""
    now = time.monotonic()
    rest = min(worker.since + LIMIT - now for worker in workers)
    heard, _, _ = select.select([worker.pipe for worker in workers], [], [], max(rest, 0))
    late = [worker for worker in workers if time.monotonic() - worker.since > LIMIT]
    return [worker for worker in workers if worker.pipe in heard or worker in late]


def hear(worker: Worker) -> Iterator[tuple[int, Outcome]]:
    """The outcomes that have come in. A worker that has ended, or is to end, has no pipe any more."""
    if not select.select([worker.pipe], [], [], 0)[0]:
        os.kill(worker.pid, signal.SIGKILL)
        os.close(worker.pipe)
        worker.pipe = -1
        return
    got = os.read(worker.pipe, 1 << 16)
    if not got:
        os.close(worker.pipe)
        worker.pipe = -1
        return
    worker.since = time.monotonic()
    *lines, worker.buffer = (worker.buffer + got).split(b"\n")
    for line in lines:
        yield worker.jobs.pop(0), from_json(line)


def buried(worker: Worker) -> Finding:
    """What a worker died of."""
    _, status = os.waitpid(worker.pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and time.monotonic() - worker.since > LIMIT:
        return Finding("hang", 0, f"did not end within {LIMIT:.0f} s")
    how = f"signal {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else "exit"
    return Finding("crash", 0, how)


def end(worker: Worker) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker.pid, signal.SIGKILL)
    os.waitpid(worker.pid, 0)
    if worker.pipe >= 0:
        os.close(worker.pipe)


# ---------------------------------------------------------------------------------------------- in the worker


def work(jobs: list[int], text_of: Callable[[int], str], pipe: int) -> None:
    for number in jobs:
        try:
            outcome = run(text_of(number))
        except BaseException:
            outcome = Outcome(Finding("crash", 0, traceback.format_exc()))
        os.write(pipe, json.dumps(dataclasses.asdict(outcome)).encode() + b"\n")


def from_json(line: bytes) -> Outcome:
    fields: dict[str, Any] = json.loads(line)
    found = fields.pop("finding")
    return Outcome(Finding(**found) if found else None, **fields)
