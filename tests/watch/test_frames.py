"""Reading a run's frames in odd places, waiting, handing over, returns, and what is refused."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import spies
from resumables import Box
from test_continuation import Breaker, finish, finish_by_step, in_thread, outcome
from watching import KINDS, Notes, calls_made, fresh_code

from stator import _native as n
from stator.watch.bytecode.break_step import step
from stator.watch.bytecode.continuation import Finish, NotResumable, Slot, raise_at, resume
from stator.watch.bytecode.flow import flow_of
from stator.watch.bytecode.suspend import suspended

# ---- inside an instruction ----


def uses(spy: Any, log: list[Any]) -> Any:
    """Each of these runs code of the spy's, unwatched, in the middle of an instruction."""
    out: list[Any] = [spy + 1, 1 + spy, -spy, spy < 2, spy == 3, spy[1], spy[1:2], 4 in spy, spy.attribute]
    spy[1] = 2
    spy[1:2] = 3
    spy.attribute = 4
    del spy[1], spy.attribute
    if spy:
        out.append("yes")
    out += [not spy, spy and 1, f"{spy}", f"{spy!r}", f"{spy:x}", spy.method(1, k=2), spy(1), spy(*(1,), **{"k": 2})]
    first, *others = spy
    out.append([first, others, *spy, sum(spy), max([1, 2], key=spy), spies.Made(spy).x, functools.reduce(spy, [1, 2])])
    for x in spy:
        out.append(x)
    with spy as entered:
        out.append((entered, {**spies.Mapping(spy)}))
    try:
        spy.fail(log)
    except ValueError as error:
        log.append(repr(error))
    spy += 1
    return out, repr(spy), len(log)


def in_the_middle(number: int, finish: Callable[..., Any]) -> Any:
    log: list[Any] = []
    results: list[Any] = []

    def called(count: int) -> None:
        watcher = n.current()
        if count != number or watcher is None:
            return
        assert n.state() == n.OFF
        try:
            frames = suspended(watcher)
        except NotResumable as error:
            results.append(str(error))
            watcher.stop()
            return
        results.append(in_thread(lambda: outcome(log, finish, frames)))
        watcher.stop()

    notes = Notes(
        kinds="CALL", classify=lambda code: (n.OURS, None, True) if code.co_filename == spies.__file__ else None
    )
    with_spy = spies.Spy(called)
    outcome(log, notes.watcher.run, fresh_code(uses), (with_spy, log))
    return results[0] if results else None


def test_inside_an_instruction() -> None:
    log: list[Any] = []
    want = outcome(log, uses, spies.Spy(lambda count: None), log)
    assert want[0][0] == "value"
    for finish_it in (finish, finish_by_step):
        number = passed = 0
        while (got := in_the_middle(number := number + 1, finish_it)) is not None:
            assert got == want, number
            passed += 1
        assert passed > 35


def test_operands_that_the_instruction_has_replaced() -> None:
    def f(spy: Any) -> Any:
        return spy(*[1, 2])

    refused: list[str] = []

    def called(count: int) -> None:
        try:
            suspended(n.current())  # type: ignore[arg-type]
        except NotResumable as error:
            refused.append(str(error))

    ours = lambda code: (n.OURS, None, True) if code.co_filename == spies.__file__ else None  # noqa: E731
    Notes(kinds="CALL", classify=ours).run(f, spies.Spy(called))
    assert refused == ["the instruction has replaced its operands"]


# ---- who stands between ----


def between(call: Callable[[Any], Any]) -> Any:
    return call(lambda: BREAK())


def BREAK() -> str:
    return "broken"


places: list[Any] = []  # where a break was refused, what was proposed instead


def broken_at_marker(func: Callable[..., Any], args: tuple[Any, ...], classify: Any = None) -> Any:
    """The outcome of a function that is broken off at the call of BREAK and finished, or why it cannot be."""
    results: list[Any] = []

    def handler(probe: n.Probe, *operands: Any) -> None:
        if operands[0] is BREAK and not results:
            try:
                frames = suspended(notes.watcher)
            except NotResumable as error:
                results.append(str(error))
                places.append((error.calls, error.place))
                return
            results.append((len(frames), in_thread(lambda: outcome([], finish, frames))))

    notes = Notes(kinds="", classify=classify)
    notes.watcher = n.Watcher(
        {n.CALL: handler},
        enter=lambda func: None,
        classify=notes.classify,
        leaf=notes.leaf,
        blind=lambda code, reason: None,
        foreign=lambda code: None,
        failed=notes.failures.append,
        transparent=lambda func, slots: True,
    )
    notes.watcher.unfiltered = True
    outcome([], notes.watcher.run, fresh_code(func), args)
    assert not notes.failures, notes.failures
    return results[0]


def pass_through(call: Callable[[], Any], *args: Any) -> Any:
    with Box([], 1):
        return [call(*args), len(args)]


def test_transparent_frames_are_continued_too() -> None:
    def f() -> Any:
        return [0, pass_through(lambda x: BREAK() * x, 2)]

    through = pass_through.__code__
    got = broken_at_marker(f, (), lambda code: (n.TRANSPARENT, None, True) if code is through else None)
    n.forget_code(through)
    assert got == (3, (("value", repr([0, ["brokenbroken", 1]])), "[]"))


def test_c_code_between_is_refused() -> None:
    for call in (
        lambda f: sorted([1, 2], key=lambda x: f()),
        lambda f: list(map(lambda x: f(), [1])),
        lambda f: max([1], key=lambda x: f()),
        lambda f: functools.reduce(lambda x, y: f(), [1, 2]),
        lambda f: functools.lru_cache(lambda: f())(),
        lambda f: type("C", (), {"__eq__": lambda self, other: f(), "__hash__": None})() in [1],
    ):
        assert "was called by C code" in broken_at_marker(between, (call,)), call
        calls, place = places[-1]
        assert calls == 2 and place[0] is call.__code__
    assert "it is a generator" in broken_at_marker(between, (lambda f: next(f() for _ in [1]),))


def test_operators_that_may_go_on_to_another_method_are_refused() -> None:
    class Declines:
        def __add__(self, other: Any) -> Any:
            BREAK()
            return NotImplemented

        def __eq__(self, other: Any) -> Any:
            BREAK()
            return super().__eq__(other)

    assert "C code" in broken_at_marker(lambda: Declines() + 1, ())
    assert "C code" in broken_at_marker(lambda: Declines() == 1, ())


# ---- exceptions around ----


def in_handler(call: Callable[..., Any], *args: Any) -> Any:
    try:
        raise LookupError("around")
    except LookupError:
        return call(*args)


def own_handlers(log: list[Any]) -> Any:
    log.append(repr(sys.exc_info()[1]))
    try:
        log.append(abs(-1))
        {}["x"]
    except KeyError as error:
        log.append((repr(error.__context__), repr(sys.exc_info()[1])))
    log.append(repr(sys.exc_info()[1]))
    raise ValueError


def test_an_exception_that_is_handled_around_everything() -> None:
    log: list[Any] = []
    want = in_handler(outcome, log, own_handlers, log)
    for finish_it in (finish, finish_by_step):
        for number in range(1, 24):
            results: list[Any] = []
            log = []

            def at(
                watcher: n.Watcher, probe: n.Probe, finish: Any = finish_it, log: Any = log, results: Any = results
            ) -> None:
                frames = suspended(watcher)
                results.append(in_thread(lambda: in_handler(outcome, log, finish, frames)))
                watcher.stop()

            breaker = Breaker(number, at)
            breaker.classify = lambda code: (n.COPY, None, False)  # type: ignore[method-assign]
            breaker.watcher = breaker.make()
            in_handler(outcome, [], breaker.watcher.run, fresh_code(own_handlers), (log,))
            got = results[0]
            if got[0][0] == "error" and got[0][1][0] is NotResumable:
                continue
            assert got == want, number


# ---- waiting ----


class Waiting:
    def __init__(self, marker: str, again: int = 0) -> None:
        self.told: list[Any] = []
        self.again = again
        self.marker = marker
        self.notes = Notes(kinds="")
        self.watcher = self.make()

    def make(self) -> n.Watcher:
        notes = self.notes
        watcher = n.Watcher(
            dict.fromkeys(KINDS, self.handler),
            enter=lambda func: self.told.append(("enter", func.__name__)),
            classify=lambda code: (n.COPY, None, False),
            leaf=notes.leaf,
            blind=lambda code, reason: None,
            foreign=lambda code: None,
            failed=notes.failures.append,
            on_resume=self.resumed,
            on_lost=lambda raised: self.told.append(("lost", raised)),
            on_return=lambda probe, value: self.told.append(("return", value)),
        )
        watcher.unfiltered = True
        return watcher

    def handler(self, probe: n.Probe, *operands: Any) -> None:
        if probe.kind == n.CALL:
            self.told.append(("call", operands[0].__name__))
            if operands[0].__name__ == self.marker:
                self.watcher.pend()

    def resumed(self, probe: n.Probe) -> Any:
        assert n.state() == n.OFF
        self.told.append(("resume", probe.lineno))
        self.again -= 1
        return self.again >= 0


def inner(x: int) -> int:
    return abs(x) + len([x])


def outer(x: int) -> Any:
    first = inner(x)
    second = inner(first)
    return first, second, min(1, 2)


def test_callees_run_unwatched_while_waiting() -> None:
    waiting = Waiting("inner", again=2)
    assert waiting.watcher.run(fresh_code(outer), (-3,)) == outer(-3)
    assert not waiting.notes.failures
    line = outer.__code__.co_firstlineno
    # three probes after the first call: LOAD_GLOBAL (twice, if it is put off), the second call, which waits again
    assert [what for what in waiting.told if what[0] != "enter"][:3] == [
        ("call", "inner"),
        ("resume", line + 2),
        ("resume", line + 2),
    ]
    assert ("call", "abs") not in waiting.told and waiting.told[-1] == ("call", "min")


def test_a_frame_that_is_left() -> None:
    def steps(x: int) -> int:
        return int("no")

    def catches(x: int) -> Any:
        try:
            return steps(x)
        except ValueError:
            return min(x, 2)

    waiting = Waiting("int")
    assert waiting.watcher.run(fresh_code(catches), (1,)) == 1
    assert waiting.told[-2:] == [("call", "int"), ("lost", True)]
    assert not waiting.notes.failures


def test_waiting_in_a_caller() -> None:
    def f(values: list[int]) -> Any:
        ordered = sorted(values, key=lambda x: abs(x))
        return ordered, min(1, 2)

    class InCaller(Waiting):
        def handler(self, probe: n.Probe, *operands: Any) -> None:
            if probe.kind == n.CALL:
                self.told.append(("call", operands[0].__name__))
                if operands[0] is abs:
                    self.watcher.pend(1)

    waiting = InCaller("")
    assert waiting.watcher.run(fresh_code(f), ([-2, 1, 3],)) == f([-2, 1, 3])
    line = f.__code__.co_firstlineno
    told = [what for what in waiting.told if what[0] != "enter"]
    assert told == [("call", "sorted"), ("call", "abs"), ("resume", line + 2), ("call", "min")]
    assert not waiting.notes.failures


def test_waiting_can_be_stopped() -> None:
    waiting = Waiting("inner")
    waiting.resumed = lambda probe: waiting.watcher.stop()  # type: ignore[method-assign]
    waiting.watcher = waiting.make()
    assert waiting.watcher.run(fresh_code(outer), (-3,)) == outer(-3)
    assert ("call", "min") not in waiting.told and n.state() == n.OFF


def test_misuse_is_told() -> None:
    plain = Notes()
    for call in (plain.watcher.pend, plain.watcher.frames, lambda: plain.watcher.hand_over(Notes().watcher)):
        try:
            call()
        except RuntimeError:
            pass
        else:
            raise AssertionError(call)


def test_returns() -> None:
    def none() -> None:
        pass

    def f(x: int) -> int:
        none()
        return x + 1

    waiting = Waiting("nothing")
    waiting.watcher.returns = True
    assert waiting.watcher.run(fresh_code(f), (1,)) == 2
    assert [what for what in waiting.told if what[0] == "return"] == [("return", None), ("return", 2)]
    waiting.told.clear()
    waiting.watcher.returns = False
    waiting.watcher.run(fresh_code(f), (1,))
    assert not [what for what in waiting.told if what[0] == "return"]


# ---- what is refused, what is cached, what it costs ----


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except NotResumable as error:
        return str(error)
    raise AssertionError("not refused")


def calls_of(code: CodeType) -> list[int]:
    flow = flow_of(code)
    rules = [(flow.offset(k), flow.rule(k)) for k in range(len(flow.ops)) if flow.heads[k] == k]
    return [offset for offset, rule in rules if rule is not None and rule.kind == n.CALL]


def test_what_has_no_continuation() -> None:
    def generator() -> Any:
        yield 1

    body = compile("x = 1", "<m>", "exec")
    assert "generator" in refusal(lambda: resume(generator.__code__, 8, (), ()))
    assert "mapping" in refusal(lambda: resume(body, 2, (), ()))
    assert "set up" in refusal(lambda: resume(outer.__code__, 0, ("x",), ()))


def test_a_wrong_layout_is_an_error() -> None:
    call = calls_of(inner.__code__)[0]
    for make in (resume, step):
        try:
            make(inner.__code__, call, ("x",), (Slot.VALUE,))
        except ValueError as error:
            assert "slots" in str(error)
        else:
            raise AssertionError(make)


def lines_of(size: int) -> FunctionType:
    source = ["def f(x, g):", "    for i in range(3):", "        try:"]
    source += [f"            x = g(x + {i}) if x else i" for i in range(size)]
    source += ["        except ValueError:", "            x = 1", "    return x"]
    space: dict[str, Any] = {}
    exec("\n".join(source), space)
    return space["f"]


def test_continuations_die_with_their_code() -> None:
    f = lines_of(3)
    offset = calls_of(f.__code__)[1]  # its handler needs the loop's iterator, no more
    made = raise_at(f.__code__, offset, ("x", "g", "i"), (Slot.VALUE,))
    assert made is raise_at(f.__code__, offset, ("g", "i", "x"), (Slot.VALUE,))
    alive = weakref.ref(f.__code__)
    del f
    gc.collect()
    assert alive() is not None  # a continuation may need it again
    del made
    gc.collect()
    assert alive() is None


def test_nothing_is_kept() -> None:
    """Neither the frames that were read nor steps and continuations hold on to what went through them."""

    class Thing:
        pass

    things: list[weakref.ref[Any]] = []

    def f(log: list[Any]) -> Any:
        thing = Thing()
        things.append(weakref.ref(thing))
        with Box(log, 1) as box:
            try:
                log.append((box, abs(-1), [thing, len("ab")]))
                raise ValueError(thing)
            except ValueError as error:
                log.append(len(error.args))
        log.clear()
        return len(log)

    for finish_it in (finish, finish_by_step):
        for number in range(1, 40):
            log: list[Any] = []

            def at(watcher: n.Watcher, probe: n.Probe, finish: Any = finish_it, log: list[Any] = log) -> None:
                frames = suspended(watcher)
                in_thread(lambda: outcome(log, finish, frames))
                watcher.stop()

            breaker = Breaker(number, at)
            breaker.classify = lambda code: (n.COPY, None, False)  # type: ignore[method-assign]
            breaker.watcher = breaker.make()
            outcome([], breaker.watcher.run, fresh_code(f), (log,))
            assert not breaker.failures
    gc.collect()
    assert len(things) > 60 and not [ref for ref in things if ref() is not None]


def test_the_work_for_a_continuation_grows_with_the_code() -> None:
    """In calls of functions: ten times the code, little more than ten times as many."""

    def work(size: int) -> float:
        f = lines_of(size)
        states: list[Any] = []

        def at(watcher: n.Watcher, probe: n.Probe) -> None:
            states.append(suspended(watcher)[-1])

        class Every(Breaker):
            def handler(self, probe: n.Probe, *operands: Any) -> None:
                if probe.kind == n.CALL:
                    self.at(self.watcher, probe)

            def classify(self, code: CodeType) -> tuple[int, object, bool]:
                return (n.COPY, None, False)

        Every(0, at).watcher.run(f, (1, lambda x: x))
        assert len(states) >= size
        first, middle = states[0], states[len(states) // 2]
        return calls_made(
            lambda: [(make(s.code, s.offset, s.bound, s.stack)) for s in (first, middle) for make in (resume, step)]
        )

    assert work(100) < 15 * work(10)


def test_a_class_call_needs_its_instance() -> None:
    """The layout of a state inside of a class call: the instance lies under the call of __init__."""

    def f(x: Any) -> Any:
        return [x, Box(x, 1)]

    call = calls_of(f.__code__)[-1]
    code = resume(f.__code__, call, (), (Slot.VALUE, Slot.VALUE), 1, Finish.DROP)
    assert code.co_varnames[: code.co_argcount] == (".s0", ".s1", ".call", ".a0")
    assert FunctionType(code, globals())(1, "instance", lambda x: None, 2) == [1, "instance"]
