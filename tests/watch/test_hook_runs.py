"""The watcher: how a run begins and ends, and what handlers may do in it."""

from __future__ import annotations

import sys
from typing import Any

import programs
from watching import Notes, fresh_code, outcome

from stator import _native as n


def test_run_checks_its_arguments() -> None:
    notes = Notes()
    for bad in ((len, ()), (programs.classes, {}), (programs.classes, (1,)), (programs.classes, [1])):
        assert outcome(notes.watcher.run, *bad)[1] is TypeError
    assert not n.hook_installed()


def test_run_refuses_what_it_cannot_watch() -> None:
    code = compile("x = 1", "<body>", "exec")
    body = type(programs.recursion)(code, {})
    notes = Notes()
    kind, error = outcome(notes.watcher.run, body, ())[:2]
    assert (kind, error) == ("error", n.Unwatchable)
    assert outcome(notes.watcher.run, body, ())[2] != ""  # the refusal is remembered with its reason
    assert not notes.entered


def test_all_slots_are_given() -> None:
    def f(a: Any, /, b: Any, *args: Any, c: Any, **kwargs: Any) -> Any:
        return a, b, args, c, kwargs

    assert Notes().run(f, 1, 2, 3, (4, 5), {"k": 6}) == (1, 2, (4, 5), 3, {"k": 6})


def test_runs_do_not_nest() -> None:
    errors: list[BaseException] = []
    inner = Notes()

    def again(x: int) -> None:
        for watcher in (inner.watcher, n.current()):
            assert watcher is not None
            try:
                watcher.run(programs.recursion, ())
            except RuntimeError as error:
                errors.append(error)

    outer = Notes()
    outer.run(fresh_code(again), 1)
    assert len(errors) == 2 and not inner.entered


def test_an_exception_ends_the_run() -> None:
    def f() -> None:
        raise KeyError("k")

    notes = Notes()
    assert outcome(notes.run, f)[:3] == ("error", KeyError, "'k'")
    assert notes.run(programs.recursion) == 144  # and the watcher can run again


def test_stop_inside_a_handler() -> None:
    notes = Notes(kinds="")
    states = []

    def stop(probe: Any, *operands: Any) -> None:
        notes.watcher.stop()
        states.append((n.state(), n.hook_installed()))

    watcher = n.Watcher(
        {n.BINARY: stop},
        enter=lambda f: None,
        classify=notes.classify,
        leaf=notes.leaf,
        blind=print,
        foreign=print,
        failed=None,
    )
    notes.watcher = watcher

    def inner(x: Any) -> Any:
        return x + 1

    def f(x: Any) -> Any:
        y = inner(x)
        return y * 2, n.state(), n.current() is watcher

    watcher.know(5)
    assert notes.run(f, 5) == (12, n.OFF, True)
    assert states == [(n.OFF, False)] and watcher.calls == 1


def test_stop_when_a_function_is_entered_or_classified() -> None:
    for where, stop_at in (("enter", "f"), ("enter", "inner"), ("classify", "inner")):
        notes = Notes()

        def stop(x: Any) -> Any:
            if getattr(x, "co_name", getattr(x, "__name__", "")) == stop_at:
                n.current().stop()
            return (n.COPY, None, False)

        watcher = n.Watcher(
            {},
            enter=stop if where == "enter" else lambda f: None,
            classify=stop if where == "classify" else notes.classify,
            leaf=notes.leaf,
            blind=print,
            foreign=print,
            failed=notes.failures.append,
        )
        notes.watcher = watcher

        def inner(x: int) -> int:
            return x + 1

        def f(x: int) -> Any:
            return inner(x), n.state()

        n.forget_code(inner.__code__)
        assert notes.run(fresh_code(f), 3) == (4, n.OFF)
        assert not notes.failures


class Oops(Exception):
    pass


def test_what_a_handler_raises_goes_to_failed() -> None:
    failures: list[BaseException] = []

    def bad(*args: Any) -> Any:
        raise Oops(len(args))

    watcher = n.Watcher(
        {n.CALL: bad},
        enter=bad,
        classify=bad,
        leaf=bad,
        blind=bad,
        foreign=bad,
        failed=failures.append,
    )

    def inner(x: str) -> int:
        return int(x)

    def f(x: str) -> Any:
        try:
            inner("no")
        except ValueError as error:
            return inner(x), str(error), type(error.__context__)

    assert watcher.run(fresh_code(f), ("5",))[0] == 5
    assert {type(e) for e in failures} == {Oops} and len(failures) > 3
    assert n.code_kind(inner.__code__) is None  # a failed classification is not remembered


def watching(failed: Any, raised: type[BaseException]) -> n.Watcher:
    def bad(*args: Any) -> Any:
        raise raised("told")

    watcher = n.Watcher(
        {n.CALL: bad},
        enter=lambda f: None,
        classify=lambda c: (n.COPY, None, False),
        leaf=print,
        blind=print,
        foreign=print,
        failed=failed,
    )
    watcher.unfiltered = True
    return watcher


def test_failed_may_fail() -> None:
    """The recording is over; the program goes on, and the error is kept."""
    for failed, kept in ((None, ValueError), (lambda error: 1 / 0, ZeroDivisionError)):
        watcher = watching(failed, ValueError)
        assert watcher.run(programs.recursion, ()) == 144
        assert type(watcher.error) is kept
        assert n.current() is None and not n.hook_installed()


def test_an_interrupt_in_a_handler_reaches_the_program() -> None:
    failures: list[BaseException] = []
    reached: list[str] = []

    def inner(x: str) -> int:
        return int(x)

    def f(x: str) -> Any:
        try:
            inner(x)
            return [inner(x) for _ in range(3)]
        except KeyboardInterrupt:
            reached.append("handler of the program")
            raise
        finally:
            reached.append("finally")

    watcher = watching(failures.append, KeyboardInterrupt)
    assert outcome(watcher.run, fresh_code(f), ("5",))[1] is KeyboardInterrupt
    assert reached == ["handler of the program", "finally"]
    assert failures == [] and isinstance(watcher.error, KeyboardInterrupt)
    assert n.current() is None and not n.hook_installed()


def test_the_exception_being_handled_is_untouched() -> None:
    def f(x: Any, exc_info: Any) -> Any:
        try:
            raise KeyError("mine")
        except KeyError as error:
            x.real
            return exc_info()[1] is error, error.__context__

    def handler(probe: Any, owner: Any) -> None:
        try:
            raise TypeError
        except TypeError:
            pass
        raise ValueError

    failures: list[BaseException] = []
    watcher = n.Watcher(
        {n.ATTR: handler},
        enter=lambda f: None,
        classify=lambda c: (n.COPY, None, False),
        leaf=print,
        blind=print,
        foreign=print,
        failed=failures.append,
    )
    x = 3
    watcher.know(x)
    assert watcher.run(f, (x, sys.exc_info)) == (True, None)
    assert [type(e) for e in failures] == [ValueError]


def test_a_recording_that_cannot_report_its_failure_is_over() -> None:
    """As at the limit of recursion: the program must not notice, and nobody believe what was recorded."""
    told: list[Any] = []

    def fail(*args: Any) -> None:
        raise RecursionError

    def program() -> int:
        return len([1]) + len([2])

    notes = Notes()
    watcher = n.Watcher(
        {n.CALL: fail},
        enter=lambda func: None,
        classify=notes.classify,
        leaf=notes.leaf,
        blind=lambda code, reason: None,
        foreign=lambda code: None,
        failed=fail,
    )
    watcher.unfiltered = True
    former, sys.unraisablehook = sys.unraisablehook, told.append
    try:
        assert watcher.run(program, ()) == 2
    finally:
        sys.unraisablehook = former
    assert watcher.misled and not told and not n.hook_installed()


def test_paused_and_call_leaf_set_the_state() -> None:
    notes = Notes()

    def f() -> Any:
        w = n.current()
        assert w is not None
        return n.state(), w.paused(n.state), w.call_leaf(n.state, (), None), n.state()

    assert notes.run(f) == (n.WATCHING, n.OFF, n.SENTINEL, n.WATCHING)
    assert notes.watcher.paused(sorted, [2, 1], reverse=True) == [2, 1]
    assert notes.watcher.call_leaf(sorted, ([1, 2],), {"reverse": True}) == [2, 1]
    assert outcome(notes.watcher.call_leaf, sorted)[1] is TypeError
