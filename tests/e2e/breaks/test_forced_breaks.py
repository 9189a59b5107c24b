"""A break before every instruction: wherever a graph breaks, the program is the plain program.

Each program is run once to count its probes. Then, for every one of them, it is compiled anew and its first recording
is made to break there; later calls replay what that left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from harness import PLAIN, World, check, rand

import stator
from stator import _native
from stator.watch.graph_break import BreakGraph
from stator.watch.observe.recorder import Recorder
from stator.watch.segment import Segment


class Forcing(Recorder):
    """Breaks before the probe number `at`, counted over the whole run."""

    at = -1
    seen = 0

    def _new_watcher(self, segment: Segment) -> _native.Watcher:
        handlers = {kind: self._forced(handler) for kind, handler in self.handlers(segment).items()}
        watcher = _native.Watcher(handlers, **self.callbacks())
        watcher.unfiltered = True
        return watcher

    def _forced(self, handler: Any) -> Any:
        def handle(probe: Any, *operands: Any) -> Any:
            Forcing.seen += 1
            if Forcing.seen == Forcing.at:
                raise BreakGraph("user-graph-break", "forced")
            return handler(probe, *operands)

        return handle


@contextlib.contextmanager
def forced(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr("stator.record.Recorder", Forcing)
        Forcing.at, Forcing.seen = at, 0
        yield


# ---- the programs ----


def straight(x):
    a = x + 1
    b = [a, {"k": a * 2}]
    b[1]["j"] = (a, b[0])
    return b, a - 3


def branches(x, flag=True):
    y = x * 2 if flag else x
    if x.shape[0] > 2 and not (y.dim() == 0 or flag is None):
        y = y.relu()
    return y + (1 if len(y) == 4 else 2)


def loops(x):
    total = x.new_zeros(())
    for i, row in enumerate([x, x + 1, x * 2]):
        for k in range(2):
            total = total + row.sum() * (i + k)
        if i == 1:
            continue
    else:
        total = total - 1
    return total, [t * 2 for t in (x, total)]


def tries(x):
    log = []
    try:
        try:
            y = x + 1
            raise KeyError("k", 1)
        except KeyError as error:
            log.append(error.args)
            y = x * 2
            raise ValueError("v") from error
        finally:
            log.append("inner")
    except ValueError as error:
        log.append((type(error.__cause__).__name__, str(error)))
        y = y + 1
    else:
        y = y * 0
    return y, log


class Scope:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, *what):
        self.log.append(what[0] and what[0].__name__)
        return what[0] is LookupError


def withs(x):
    log = []
    with Scope(log) as scope, torch.no_grad():
        y = x * 2
        log.append(torch.is_grad_enabled())
    with Scope(log):
        y = y + len(scope.log)
        raise LookupError(3)
    return y, log, torch.is_grad_enabled()


def closures(x):
    count = 0

    def bump(by=1, *more, key=2, **rest):
        nonlocal count
        count = count + by + len(more) + key + sum(rest.values())
        return x * count

    first = bump()
    second = bump(2, 3, key=4, other=5)
    return first + second, count, (lambda v: v + first)(x)


class Base:
    scale = 2.0

    def __init__(self, bias):
        self.bias = bias

    def __call__(self, x):
        return x * self.scale + self.bias

    @property
    def double(self):
        return self.bias * 2

    def __add__(self, other):
        return Base(self.bias + other.bias)

    def __getitem__(self, key):
        return self.bias - key

    def __contains__(self, item):
        return item == self.bias

    def __eq__(self, other):
        return self.bias == other.bias


class Derived(Base):
    def __init__(self, bias):
        super().__init__(bias)
        self.extra = 1

    def __call__(self, x):
        return super().__call__(x) + self.extra


def objects(x):
    a, b = Base(1.0), Derived(2.0)
    c = a + b
    c.bias += 1
    return c(b(a(x))), c.double, c[1], 4.0 in c, a == b, a != c


def deep(x):
    def inner(t):
        return t.sin() + 1

    def middle(t, k):
        return inner(t * k) - k

    return middle(x, 2) + middle(inner(x), 3)


def recursion(x, n=3):
    return x if n == 0 else recursion(x + n, n - 1) * 2


def raises(x):
    y = x + 1
    raise RuntimeError(f"no {len(y)}")


def unpacking(x):
    (a, *b), c = [x, x + 1, x + 2], {"q": 1, **{"r": 2}}
    d = {*c, "s"}
    a, c = c, a
    match (a, len(b)):
        case ({"q": q}, 2) if q == 1:
            e = q
        case _:
            e = 0
    return a, b, c, sorted(d), e, f"{e:>3}{q!r}"


def effects(x, box, table):
    box.append(x * 2)
    table["n"] = table.get("n", 0) + 1
    table["last"] = box[-1] + 1
    x.add_(1)
    del box[:-2]
    return x, box, len(table)


PROGRAMS = [straight, branches, loops, tries, withs, closures, objects, deep, recursion, raises, unpacking]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def forward(self, x, scale=1.0):
        return self.layers(self.norm(x)) * scale + x


def probes_of(monkeypatch: pytest.MonkeyPatch, fn: Any, *args: Any) -> int:
    with forced(monkeypatch, -1), contextlib.suppress(RuntimeError):
        stator.compile(fn, backend="eager")(*args)
    assert Forcing.seen > 3
    return Forcing.seen


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_a_break_before_every_instruction(monkeypatch, program):
    for at in range(1, probes_of(monkeypatch, program, rand(1)) + 1):
        with forced(monkeypatch, at):
            calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in (1, 2, 3)]
            why = PLAIN if program is raises else "user-graph-break"
            check(lambda: World(fn=program), calls, expect=None, raises=RuntimeError, unreplayed=why)


def test_breaks_between_changes_of_the_outside(monkeypatch):
    def world():
        return World(fn=effects, box=[rand(7)], table={}, x=rand(8))

    fresh = world()
    for at in range(1, probes_of(monkeypatch, effects, fresh.x, fresh.box, fresh.table) + 1):
        with forced(monkeypatch, at):
            calls = [lambda w: w.fn(w.x, w.box, w.table)] * 4
            check(world, calls, expect=None)


def test_breaks_inside_a_module(monkeypatch):
    def world():
        torch.manual_seed(3)
        return World(fn=Block())

    for at in range(1, probes_of(monkeypatch, world().fn, rand(1, 3, 4)) + 1, 3):
        with forced(monkeypatch, at):
            calls = [lambda w, seed=seed: w.fn(rand(seed, 3, 4)) for seed in (1, 2, 3)]
            check(world, calls, expect=None, unreplayed="user-graph-break")
