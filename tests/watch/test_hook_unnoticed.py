"""The frame hook: watched programs behave as they do unwatched, also to tracers, profilers and finalizers."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from typing import Any

import programs
from watching import Notes, outcome

from stator import _native as n


def test_programs_do_the_same_when_watched() -> None:
    for program in programs.PROGRAMS:
        plain = outcome(program)
        notes = Notes()
        assert outcome(notes.run, program) == plain, program.__name__
        assert not notes.failures, (program.__name__, notes.failures)
        assert notes.watcher.events > 0 and program.__name__ == notes.entered[0]


def test_programs_do_the_same_when_watched_many_times() -> None:
    """After some runs CPython would have specialised the copies' instructions."""
    for program in programs.PROGRAMS:
        if program.__name__ in ("asynchronous", "too_deep"):
            continue  # slow
        plain = outcome(program)
        for _ in range(20):
            notes = Notes(kinds="CALL")
            assert outcome(notes.run, program) == plain, program.__name__


def traced(call: Any, *args: Any) -> list[tuple[str, str, int]]:
    events: list[tuple[str, str, int]] = []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename == programs.__file__:
            events.append((frame.f_code.co_name, event, frame.f_lineno))
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call(*args)
    except Exception:
        pass
    finally:
        sys.settrace(before)
    return events


def unwatched(program: Any) -> Any:
    """Runs a program under the hook, which is off. (Any frame hook keeps 3.12 from inlining a generator, and
    then an exception that passes through one is reported twice.)"""

    def f(program: Any) -> Any:
        return n.current().paused(program)

    return Notes(kinds="").run(f, program)


def test_tracers_see_the_same_lines() -> None:
    for program in programs.PROGRAMS:
        if program.__name__ in ("too_deep", "asynchronous"):
            continue
        untraced, notes = Notes(), Notes()
        plain = traced(unwatched, program)
        gc.disable()  # a collection would run other people's callbacks in the recording
        try:
            outcome(untraced.run, program)
            assert traced(notes.run, program) == plain, program.__name__
        finally:
            gc.enable()
        assert notes.watcher.events == untraced.watcher.events, program.__name__  # the tracer is not watched


def test_profilers_do_not_see_handlers() -> None:
    seen: list[str] = []

    def profile(frame: Any, event: str, arg: Any) -> None:
        seen.append(frame.f_code.co_name)

    notes = Notes()
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        notes.watcher.run(programs.classes, ())
    finally:
        sys.setprofile(before)
    assert notes.events
    assert not {"handler", "classify", "instrument", "<lambda>"} & set(seen)
    assert "make" in seen and "name" in seen


def test_the_original_frame_lets_go_of_its_arguments() -> None:
    """What was made for the call is held by the running frame alone. (Plain arguments lie on the caller's
    stack until the call returns: CPython inlines no calls under a frame hook.)"""

    def callee(*args: Any, **kwargs: Any) -> Any:
        return sys.getrefcount(args), sys.getrefcount(kwargs)

    def caller() -> Any:
        return callee(1, k=2)

    assert Notes(kinds="ITER").run(caller) == caller()


def test_arguments_are_released_when_the_call_is_over() -> None:
    class Thing:
        pass

    def callee(thing: Any) -> Any:
        return weakref.ref(thing)

    def caller() -> Any:
        ref = callee(Thing())
        return ref()

    assert Notes(kinds="ITER").run(caller) is None


def test_a_generator_may_outlive_its_function_and_its_recording() -> None:
    def make() -> Any:
        space: dict[str, Any] = {}
        exec("def g(n):\n    for i in range(n):\n        yield len('abc') + i", space)
        return space.pop("g")(3)

    notes = Notes()
    generator = notes.run(make)
    gc.collect()
    assert next(generator) == 3
    other = Notes(kinds="CALL")
    assert other.run(lambda g: list(g), generator) == [4, 5]
    assert "g" in other.where


def test_a_copy_dies_with_its_original() -> None:
    def make() -> Any:
        space: dict[str, Any] = {}
        exec("def f(x):\n    return x.real", space)
        return space["f"]

    f = make()
    notes = Notes()
    assert notes.run(f, 3) == 3
    probe = notes.watcher.last_probe
    code = weakref.ref(f.__code__)
    assert probe is not None and probe.code is f.__code__ and probe.lineno == 2
    del f
    gc.collect()
    assert code() is None
    assert probe.code is None and probe.lineno is None


def test_super_without_a_first_argument_stays_an_error() -> None:
    class C(programs.Base):
        def m(*args: Any) -> Any:
            return super().name()

    plain = outcome(C().m)
    assert plain[1] is RuntimeError
    notes = Notes()
    assert outcome(notes.run, lambda c: c.m(), C())[:3] == plain[:3]
    assert ("m", "its super() has no first argument to take") in notes.blinds


TICK = itertools.count().__next__


def plain(a: int, b: int = 2) -> Any:
    return TICK()
