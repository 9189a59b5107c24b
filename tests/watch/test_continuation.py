"""Continuations: every case is broken off at every instruction that has a probe, in every frame, and finished by
continuations; it must not be possible to tell."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import resumables
from watching import KINDS

from stator import _native as n
from stator.watch.continuation import NotResumable, original_of, raise_at, resume
from stator.watch.step import step
from stator.watch.suspend import Suspended, handled_around, made_function, rest, suspended

MOST = 2  # times that an instruction is broken off at, in a case


class Breaker:
    """Runs a function watched and calls `at` once, at the probe with a given number."""

    def __init__(self, number: int, at: Callable[[n.Watcher, n.Probe], None]) -> None:
        self.number, self.at = number, at
        self.seen = 0
        self.probes: list[tuple[CodeType, int]] = []
        self.failures: list[BaseException] = []
        self.watcher = self.make()

    def make(self, **more: Any) -> n.Watcher:
        watcher = n.Watcher(
            {kind: self.handler for kind in (*KINDS, n.RETURN)},
            enter=lambda func: None,
            classify=self.classify,
            leaf=lambda *args: None,
            blind=lambda code, reason: None,
            foreign=lambda code: None,
            failed=self.failures.append,
            **more,
        )
        watcher.unfiltered = True
        return watcher

    def classify(self, code: CodeType) -> tuple[int, object, bool]:
        ours = code.co_filename == resumables.__file__
        return (n.COPY if ours else n.BLIND, None, False)

    def handler(self, probe: n.Probe, *operands: Any) -> None:
        self.seen += 1
        self.probes.append((original_of(probe.code), probe.offset))
        if self.seen == self.number:
            self.at(self.watcher, probe)


def in_thread(call: Callable[[], Any]) -> Any:
    """Calls where no exception is being handled and nothing is watched."""
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(call()))
    thread.start()
    thread.join()
    return out[0]


def told(error: BaseException | None, seen: tuple[int, ...] = ()) -> Any:
    """All that can be seen of an exception."""
    if error is None or id(error) in seen:
        return None
    lines = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == resumables.__file__:
            lines.append((code.co_qualname, traceback.tb_lineno))
        traceback = traceback.tb_next
    seen = (*seen, id(error))
    context, cause = told(error.__context__, seen), told(error.__cause__, seen)
    return type(error), repr(error), lines, context, cause, error.__suppress_context__


def outcome(log: list[Any], call: Callable[..., Any], *args: Any) -> Any:
    try:
        result = ("value", repr(call(*args)))
    except BaseException as error:
        result = ("error", told(error))
    return result, repr(log)


def plain(case: Callable[..., Any]) -> Any:
    log: list[Any] = []
    return outcome(log, case, log)


def places(case: Any) -> list[int]:
    """The numbers of the probes to break at."""
    breaker = Breaker(0, lambda watcher, probe: None)
    outcome([], breaker.watcher.run, case, ([],))
    assert not breaker.failures, breaker.failures
    times: Counter[tuple[int, int]] = Counter()
    chosen = []
    for number, (code, offset) in enumerate(breaker.probes, 1):
        times[id(code), offset] += 1
        if times[id(code), offset] <= MOST:
            chosen.append(number)
    return chosen


def finish(frames: list[Suspended]) -> Any:
    function, args = rest(frames)
    return function(*args)


def finish_by_step(frames: list[Suspended]) -> Any:
    """One step of the innermost frame, then the continuations."""
    last = frames[-1]
    handled = handled_around(frames)
    code, exits = step(last.code, last.offset, last.bound, last.stack, handled=handled is not None)
    more = () if handled is None else (handled,)
    number, *values = made_function(code, last.function)(*last.values, *more)
    way = exits[number]
    after = last._replace(offset=way.offset, bound=way.bound, stack=way.stack, values=tuple(values))
    make = raise_at if way.raises else resume
    innermost = make(last.code, way.offset, way.bound, way.stack)
    function, args = rest([*frames[:-1], after], innermost)
    return function(*args)


def broken(case: Any, number: int, finish: Callable[[list[Suspended]], Any]) -> Any:
    """The outcome of a case that is broken off at a probe and finished by other means; None if it cannot be."""
    log: list[Any] = []
    results: list[Any] = []

    def at(watcher: n.Watcher, probe: n.Probe) -> None:
        try:
            frames = suspended(watcher)
        except NotResumable as error:
            results.append(str(error))
            return
        try:
            results.append(in_thread(lambda: outcome(log, finish, frames)))
        finally:
            watcher.stop()

    breaker = Breaker(number, at)
    outcome([], breaker.watcher.run, case, (log,))
    assert not breaker.failures, breaker.failures
    return results[0]


def check_all(finish: Callable[[list[Suspended]], Any], expected: int) -> None:
    passed, refused = 0, Counter[str]()
    for case in resumables.CASES:
        want = plain(case)
        for number in places(case):
            got = broken(case, number, finish)
            if isinstance(got, str):
                refused[got] += 1
            elif got[0][0] == "error" and got[0][1][0] is NotResumable:
                assert "nothing after a return" in got[0][1][1]
            else:
                assert got == want, (case.__name__, number)
                passed += 1
    print(passed, "passed", dict(refused))
    assert passed >= expected
    assert sum(refused.values()) < passed / 10


def test_finished_by_continuations() -> None:
    check_all(finish, 3000)


def test_finished_by_a_step_and_continuations() -> None:
    check_all(finish_by_step, 2700)


# ---- continuations of continuations ----


def finish_in_pieces(frames: list[Suspended], stride: int) -> Any:
    """Continuations that are watched, and broken off in their turn, to the end."""
    while True:
        function, args = rest(frames)
        found: list[list[Suspended]] = []

        def at(watcher: n.Watcher, probe: n.Probe, found: list[list[Suspended]] = found) -> None:
            try:
                found.append(suspended(watcher))
            except NotResumable:
                breaker.number += 1
                return
            raise_in_run(watcher)

        breaker = Breaker(stride, at)
        try:
            return breaker.watcher.run(function, args)
        except Abandon:
            assert not breaker.failures, breaker.failures
            frames = found[0]


class Abandon(BaseException):
    pass
