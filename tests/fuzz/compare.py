"""One program, run plain and compiled, call by call; what differs, in words.

What must be equal after every call: the result or the exception (with its chain, and the program's own lines in its
traceback), everything that the module's names reach (values, bits of tensors, types, order, which objects are the
same), torch's state, and what was printed.
"""

from __future__ import annotations

import gc
import io
import itertools
import linecache
import math
import re
import signal
import sys
import traceback
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import Description, Raised, difference, fresh_torch_state, torch_state

import stator

FILE = "<program>"
MODULE = "fuzzed"
PLAIN_LIMIT = 5.0  # seconds for all calls
MOST_LINES = 5000  # of a description
VERSIONS = re.compile(r"\[torch\.\w+ \[[\d, ]*\]\].*?is at version \d+; expected version \d+")
FLOAT = re.compile(r"-?\d+\.?\d*e[-+]?\d+|-?\d+\.\d+")
QUIET = ("recordings and none fits", "recording was given up")  # warnings that are no complaint


@dataclass
class Finding:
    kind: str  # "difference", "traceback", "complaint", "crash", "hang"
    call: int
    text: str


@dataclass
class Outcome:
    """How one program went. `raised`, `hits` and `graphs` say whether the program was worth running."""

    finding: Finding | None
    calls: int = 0
    raised: int = 0
    hits: int = 0
    graphs: int = 0
    breaks: int = 0


@dataclass
class Seen:
    description: list[str]
    frames: list[tuple[str, int]]
    raised: bool
    tolerant: bool  # the last digits of numbers may differ


def run(text: str) -> Outcome:
    """Run a program both ways."""
    code = compile(text, FILE, "exec", dont_inherit=True)
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    collects = "weakref." in text
    try:
        with time_limit(PLAIN_LIMIT):
            plain, _, _ = calls_of(code, compiled=False, collects=collects)
    except (Exception, TooMuch):  # its state cannot be made, or grows without end: no program for this
        return Outcome(None)
    seen, complaints, main = calls_of(code, compiled=True, collects=collects)
    stats = main.stator
    outcome = Outcome(
        None, len(plain), sum(one.raised for one in plain), stats.hits, len(stats.graphs), len(stats.break_reasons)
    )
    outcome.finding = first_finding(plain, seen, complaints)
    return outcome


class TooMuch(BaseException):
    """The plain program takes too long or makes too much. No program catches it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooMuch

    former = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def first_finding(plain: list[Seen], compiled: list[Seen], complaints: list[str]) -> Finding | None:
    for number, (wanted, got) in enumerate(zip(plain, compiled, strict=True)):
        if not alike(wanted, got):
            return Finding("difference", number, difference(wanted.description, got.description))
        if wanted.frames != got.frames:
            return Finding("traceback", number, f"plain    {wanted.frames}\ncompiled {got.frames}")
    if complaints:
        return Finding("complaint", len(plain) - 1, complaints[0])
    return None


def alike(wanted: Seen, got: Seen) -> bool:
    """The same lines; where a backend may add up in another order, but for the last digits of numbers."""
    if wanted.description == got.description:
        return True
    sides = wanted.description, got.description
    return wanted.tolerant and len(sides[0]) == len(sides[1]) and all(itertools.starmap(near, zip(*sides, strict=True)))


def near(wanted: str, got: str) -> bool:
    if wanted == got:
        return True
    if FLOAT.sub("0.0", wanted) != FLOAT.sub("0.0", got):
        return False
    numbers = zip(FLOAT.findall(wanted), FLOAT.findall(got), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=2e-5) for a, b in numbers)


def calls_of(code: types.CodeType, compiled: bool, collects: bool) -> tuple[list[Seen], list[str], Any]:
    """What is seen after each call, what stator complained of, and the function that was called."""
    module = types.ModuleType(MODULE)
    names = vars(module)
    names["differentiated"] = differentiated
    sys.modules[MODULE] = module  # dataclasses look there
    seen = []
    with fresh_torch_state(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = io.StringIO()
        with redirect_stdout(output):
            exec(code, names)
        settings = names["SETTINGS"]
        if compiled:
            names["main"] = stator.compile(
                names["main"],
                backend=settings["backend"],
                dynamic=settings["dynamic"],
                options=settings["options"],
            )
        tolerant = settings["backend"] != "eager"
        results: list[Any] = []
        for call in names["CALLS"]:
            seen.append(one_call(names, call, results, output, tolerant, collects))
        description = Whole(tolerant)  # of everything that calls were given and gave back, as it is now
        description.add("", {"results": results, "arguments": names.get("KEPT")})
        seen[-1].description += description.lines
    texts = [str(w.message) for w in caught if "stator" in f"{w.category.__module__} {w.message}"]
    return seen, [text for text in texts if not any(quiet in text for quiet in QUIET)], names["main"]


def one_call(
    names: dict[str, Any], call: Any, results: list[Any], output: io.StringIO, tolerant: bool, collects: bool
) -> Seen:
    frames: list[tuple[str, int]] = []
    raised = False
    try:
        with redirect_stdout(output):
            results.append(call())
    except Exception as error:
        raised = True
        frames = program_frames(error)
        results.append(Raised(error))
    if collects:
        gc.collect()  # else it is chance whether what is dead in a cycle is still there
    state = {name: value for name, value in names.items() if name not in HIDDEN and not name.startswith("__")}
    grad_mode, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    description = Whole(tolerant)
    kept = names.get("KEPT") or [None]
    now = {"result": results[-1], "arguments": kept[-1], "output": output.getvalue(), "torch": torch_state()}
    description.add("", {**now, "state": state})
    assert (grad_mode, dtype) == (torch.is_grad_enabled(), torch.get_default_dtype())
    return Seen(description.lines, frames, raised, tolerant)


HIDDEN = frozenset({"main", "SETTINGS", "CALLS", "KEPT", "stator", "torch", "nn", "differentiated"})


def program_frames(error: BaseException) -> list[tuple[str, int]]:
    """Function and line of every frame of the program that the exception came through."""
    found = [
        (at.f_code.co_name, line)
        for at, line in traceback.walk_tb(error.__traceback__)
        if at.f_code.co_filename == FILE
    ]
    if isinstance(error, RecursionError):  # how deep it went is not the program's business
        return sorted(set(found))
    if isinstance(error, UnboundLocalError) and found:
        # Once CPython 3.11 has joined two loads into one instruction, it blames the line of the first.
        found[-1] = (found[-1][0], 0)
    return found


def differentiated(result: Any) -> Any:
    """The gradients of everything in a result that has some; they are left in the leaves."""
    total = None
    for leaf in tensors_in(result):
        if leaf.requires_grad and leaf.is_floating_point():
            total = leaf.sum() if total is None else total + leaf.sum()
    if total is not None:
        total.backward(retain_graph=True)  # what one graph gave has one backward, and part of it may be asked for again
    return result


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in tensors_in(item)] if isinstance(value, (list, tuple)) else []


class Whole(Description):
    """A description that also looks into the program's classes, its functions' cells, and iterators."""

    def __init__(self, tolerant: bool = False) -> None:
        super().__init__()
        self.tolerant = tolerant

    def say(self, path: str, what: str) -> None:
        if len(self.lines) > MOST_LINES:
            raise TooMuch
        if self.tolerant:  # a derived graph keeps other tensors for the backward, and writes to one at once
            what = VERSIONS.sub("a tensor was written to", what)
        super().say(path, what)

    def tensor(self, path: str, t: torch.Tensor) -> None:
        if self.tolerant and t.is_floating_point():
            # Another order of additions in the backward: the last digits may differ, and what is left of a zero.
            before = len(self.lines)
            super().tensor(path, t)
            line = self.lines[before]
            numbers = t.detach().reshape(-1)[:8].tolist()  # one by one, see `near`
            self.lines[before] = f"{line[: line.rindex('[')]}{numbers}"
            return
        super().tensor(path, t)

    def klass(self, path: str, cls: type) -> None:
        self.say(path, f"class {cls.__module__}.{cls.__qualname__}")
        if cls.__module__ == MODULE:
            for name, value in vars(cls).items():
                if not name.startswith("__") and name not in ("_abc_impl", "_field_defaults"):
                    self.add(f"{path}.{name}", value)

    def iterator(self, path: str, it: Any) -> None:
        self.say(path, type(it).__name__)
        if type(it) in UNREADABLE:
            return
        self.add(f"{path}.parts", it.__reduce__()[1:])

    def generator(self, path: str, it: types.GeneratorType[Any, Any, Any]) -> None:
        frame = it.gi_frame
        self.say(path, f"generator {it.__qualname__} at line {frame and frame.f_lineno}")
        if frame is not None:
            self.add(f"{path}.locals", dict(frame.f_locals))

    def unordered(self, path: str, items: Any) -> None:
        self.say(path, f"{type(items).__name__} of {len(items)}")
        for item in sorted(items, key=repr):
            self.say(path, f"{type(item).__name__} {item!r}")

    WRITERS = (
        ((set, frozenset), unordered),
        (types.GeneratorType, generator),
        (
            tuple(map(type, ([].__iter__(), ().__iter__(), reversed([]), map(abs, []), filter(None, []), zip()))),
            iterator,
        ),
        ((enumerate, itertools.chain, itertools.islice, itertools.count, type({}.values().__iter__())), iterator),
        (type, klass),
        (torch.Tensor, tensor),
        *Description.WRITERS,
    )


UNREADABLE = (type(iter({}.values())),)  # to reduce one is to use it up
