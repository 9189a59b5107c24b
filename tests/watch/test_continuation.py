"""Continuations: every case is broken off at every instruction that has a probe, in every frame, and finished by
continuations; it must not be possible to tell."""

from __future__ import annotations

import contextlib
import dis
import threading
from collections import Counter
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import resumables
from test_instrument import all_code, sources
from watching import KINDS

from stator import _native as n
from stator.watch.bytecode import opcodes
from stator.watch.bytecode.break_step import StepEnd, step
from stator.watch.bytecode.continuation import Layout, NotResumable, Slot, original_of, raise_at, resume
from stator.watch.bytecode.flow import EXC, LASTI, Flow, flow_of
from stator.watch.bytecode.instrument import instrument
from stator.watch.bytecode.suspend import Suspended, handled_around, made_function, rest, suspended

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
        ours = code.co_filename in resumables.FILES
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
        if code.co_filename in resumables.FILES:
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
    return chosen[:: 10 if case.__name__ == "many_variables" else 1]  # most of its instructions are alike


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
    point = exits[number]
    after = last._replace(offset=point.offset, bound=point.bound, stack=point.stack, values=tuple(values))
    make = raise_at if point.raises else resume
    innermost = make(last.code, point.offset, point.bound, point.stack)
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
    check_all(finish, 2400)


def test_finished_by_a_step_and_continuations() -> None:
    check_all(finish_by_step, 2150)


# ---- continuations of continuations ----


STRIDE = 11


def in_pieces(log: list[Any], function: FunctionType, args: tuple[Any, ...], stride: int) -> Any:
    """The outcome of a call that is broken off again and again, each continuation being watched in its turn."""
    results: list[Any] = []

    def at(watcher: n.Watcher, probe: n.Probe) -> None:
        try:
            frames = suspended(watcher)
        except NotResumable:
            breaker.number += 1  # a little later, then
            return
        assert all(original_of(frame.code) is frame.code for frame in frames)
        results.append(in_thread(lambda: in_pieces(log, *rest(frames), STRIDE)))
        watcher.stop()

    breaker = Breaker(stride, at)
    got = outcome(log, breaker.watcher.run, function, args)
    assert not breaker.failures, breaker.failures
    return results[0] if results else got


def test_continuations_of_continuations() -> None:
    for case in resumables.CASES:
        want = plain(case)
        for first in (1, 4, 7):
            log: list[Any] = []
            assert in_pieces(log, case, (log,), first) == want, (case.__name__, first)


def test_two_ways_to_a_place_give_the_same_code() -> None:
    def f(a: int, b: int) -> Any:
        c = abs(a)
        d = abs(b)
        return [c, d, abs(c - d)]

    flow = flow_of(f.__code__)
    second, third = [flow.offset(k) for k, op in enumerate(flow.ops) if op in opcodes.CALLS][1:]
    stack = (Slot.NULL, Slot.VALUE) if not opcodes.NULL_ABOVE else (Slot.VALUE, Slot.NULL)
    later = (Slot.VALUE, Slot.VALUE, *stack, Slot.VALUE)
    once = resume(f.__code__, second, ("a", "c"), (*stack, Slot.VALUE))
    assert once is resume(f.__code__, second, ["c", "a"], (*stack, Slot.VALUE))
    assert once.co_varnames[: once.co_argcount] == (
        "a",  # it is not read any more, and is held
        "c",
        *(f".s{i}" for i, s in enumerate((*stack, Slot.VALUE)) if s is Slot.VALUE),
    )
    direct = resume(f.__code__, third, ("c", "d"), later)
    within = [i.offset for i in dis.get_instructions(once) if i.opname == "CALL"][-1]
    assert resume(once, within, ("c", "d"), later) is direct
    assert (once.co_name, once.co_qualname, once.co_filename) == ("f", f.__qualname__, __file__)
    assert FunctionType(once, globals())("held", 1, abs, -7) == [1, 7, 6]


# ---- much code ----


def assumed(flow: Flow, k: int) -> Layout:
    kinds = [flow.stack(k)[i : i + 1] for i in range(len(flow.stack(k)))]
    return tuple(Slot.EXC if x == EXC else flow.offset(flow.entry) if x == LASTI else Slot.VALUE for x in kinds)


def check_statically(code: CodeType, k: int) -> int:
    """Continuations and steps are well-formed: the instrumenter computes their stack depths, where all ways agree. What
    a step says of its exits is what continuations take."""
    flow = flow_of(code)
    bound, stack = flow.names[: flow.free], assumed(flow, k)
    instrument(raise_at(code, flow.offset(k), bound, stack))
    instrument(resume(code, flow.offset(k), bound, stack))
    if flow.ops[k] in opcodes.RETURNS:
        return 0
    made, exits = step(code, flow.offset(k), bound, stack)
    instrument(made)
    for point in exits:
        (raise_at if point.raises else resume)(code, point.offset, point.bound, point.stack)
    return len(exits)


def test_much_code() -> None:
    exits = 0
    for path in sources()[::6]:
        for code in all_code(compile(path.read_bytes(), str(path), "exec", dont_inherit=True)):
            flow = flow_of(code)
            if flow.refusal is not None:
                continue
            heads = [k for k in range(flow.entry, len(flow.ops)) if flow.heads[k] == k and flow.stacks[k] is not None]
            for k in [k for k in heads if flow.rule(k) is not None][3::17]:
                exits += check_statically(code, k)
    assert exits > 500


# ---- waiting in the run ----


class Pending(Breaker):
    """Breaks off at a probe and goes on at the next one of the same frame, with another watcher."""

    def __init__(self, number: int) -> None:
        self.count = Counter[str]()
        super().__init__(number, self.pend)

    def make(self, **more: Any) -> n.Watcher:
        return super().make(on_resume=self.resumed, on_lost=self.lost)

    def pend(self, watcher: n.Watcher, probe: n.Probe) -> None:
        self.exits: list[StepEnd] | None = None
        try:
            last = suspended(watcher)[-1]
            self.exits = step(last.code, last.offset, last.bound, last.stack)[1]
        except NotResumable:
            pass
        watcher.pend()

    def resumed(self, probe: n.Probe) -> bool:
        if probe.kind == n.NEXT:
            return True
        self.count["resumed"] += 1
        if self.exits is not None:
            state = suspended(self.watcher)[-1]
            here = [point for point in self.exits if point[:1] + point[2:] == (state.offset, state.stack, False)]
            if not any({*state.bound} <= {*point.bound} for point in here):
                assert any(point.raises for point in self.exits)  # and the frame has handled it
                self.count["handled"] += 1
        successor = self.make()
        self.watcher.hand_over(successor)
        self.watcher = successor
        return False

    def lost(self, raised: bool) -> None:
        self.count["raised" if raised else "left"] += 1
        assert not raised or self.exits is None or any(point.raises for point in self.exits)
        with contextlib.suppress(RuntimeError):  # it was the root
            self.exits = None
            self.watcher.pend()


def test_waiting_for_the_next_probe() -> None:
    count = Counter[str]()
    for case in resumables.CASES:
        want = plain(case)
        for number in places(case):
            log: list[Any] = []
            pending = Pending(number)
            assert outcome(log, pending.watcher.run, case, (log,)) == want, (case.__name__, number)
            assert not pending.failures, (case.__name__, number, pending.failures)
            assert n.state() == n.OFF and n.current() is None and not n.hook_installed()
            count += pending.count
    print(count)
    assert count["handled"] < 100 and count["resumed"] > 2400 and count["raised"] > 20 and count["left"] > 100
