"""The frame hook and the watcher: watched programs behave as they do unwatched, and no frame is missed."""

from __future__ import annotations

import builtins
import gc
import itertools
import sys
import threading
import weakref
from types import CodeType
from typing import Any

import programs
from watching import Notes, fresh_code, outcome

from stator import _native as n

# ---- the observer is not noticed ----


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


# ---- run ----


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


# ---- handlers ----


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


# ---- kinds of code ----


def kinds(**by_name: tuple[int, object, bool]) -> Any:
    return lambda code: by_name.get(code.co_name)


def test_classification_is_asked_once() -> None:
    def once() -> int:
        return 1

    def f() -> int:
        return once() + once()

    f, notes = fresh_code(f), Notes()
    assert notes.run(f) == 2
    assert notes.classified == ["once"]  # the root's copy is asked for by name
    again = Notes()
    again.run(f)
    assert again.classified == []
    assert n.code_kind(once.__code__) == n.COPY
    n.forget_code(once.__code__)
    assert n.code_kind(once.__code__) is None
    again.run(f)
    assert again.classified == ["once"]


def test_constant_code_is_not_run() -> None:
    def constant(*args: Any, k: int = 3, **kwargs: Any) -> str:
        raise AssertionError("run")

    def f(x: Any) -> Any:
        return constant(x, k=4, z=5)

    notes = Notes(classify=kinds(constant=(n.CONSTANT, "payload", True)))
    assert notes.run(f, object()) == "payload"
    assert len(notes.entered) == 2  # which function it is still matters


def test_a_transparent_frame_runs_as_it_is_and_its_callees_are_watched() -> None:
    def callee(x: Any) -> Any:
        return x + 1

    def passage(x: Any, *rest: Any) -> Any:
        return callee(x) + x

    def f(x: Any) -> Any:
        return [passage(x), passage(x, 2)]

    number = 123456
    for known in (True, False):
        for may in (True, False):
            notes = Notes(kinds="BINARY", classify=kinds(passage=(n.TRANSPARENT, None, True)))
            notes.transparent = may
            if known:
                notes.watcher.know(number)
            assert notes.run(fresh_code(f), number) == [246913, 246913]
            watched = ["callee", "callee"] if may else ["callee", "passage", "callee", "passage"]
            assert notes.where == (watched if known else [])
            # calls of one outside object are asked about once, if the answer was yes
            asked = [("passage", (number, ())), ("passage", (number, (2,)))]
            assert notes.asked == (asked[:1] if known and may else asked)
            assert len(notes.entered) == 3 and not notes.failures
            n.forget_code(passage.__code__)


def test_our_code_runs_with_state_off() -> None:
    def ours() -> Any:
        def nested() -> Any:
            return n.state()

        return n.state(), nested()

    def f() -> Any:
        return ours()

    notes = Notes(classify=kinds(ours=(n.OURS, None, True)))
    assert notes.run(f) == (n.OFF, n.OFF) and "nested" not in notes.classified


def test_skipped_code_runs_as_sentinel() -> None:
    def trusted() -> int:
        return n.state()

    def stranger() -> int:
        return n.state()

    def skipped() -> Any:
        return n.state(), trusted(), stranger(), [stranger() for _ in range(1)]

    def f() -> Any:
        return skipped()

    listcomp = {"<listcomp>": (n.COPY, None, True)}
    notes = Notes(classify=kinds(skipped=(n.SKIP, None, True), trusted=(n.COPY, None, True), **listcomp))
    assert notes.run(f) == (n.SENTINEL, n.SENTINEL, n.SENTINEL, [n.SENTINEL])
    assert notes.foreign == ["stranger", "stranger"]


def test_a_leaf_is_handed_over() -> None:
    def leaf(a: int, *args: int, k: int = 3, **kwargs: int) -> Any:
        return n.state(), a, args, k, kwargs

    def f() -> Any:
        return leaf(1, 2, z=4), n.state()

    notes = Notes(classify=kinds(leaf=(n.LEAF, "payload", True)))
    notes.leaf = lambda payload, func, slots: (payload, func.__name__, slots, n.state())
    watcher = n.Watcher(
        {},
        enter=lambda func: None,
        classify=notes.classify,
        leaf=lambda *args: notes.leaf(*args),
        blind=print,
        foreign=print,
        failed=notes.failures.append,
    )
    watcher_notes = watcher.run(fresh_code(f), ())
    assert watcher_notes == (("payload", "leaf", (1, 3, (2,), {"z": 4}), n.OFF), n.WATCHING)


def test_a_leaf_runs_as_sentinel_and_its_exception_is_the_programs() -> None:
    def leaf(a: Any) -> Any:
        helper()
        return 1 / a

    def helper() -> None:
        pass

    def f(a: Any) -> Any:
        try:
            return leaf(a)
        except ZeroDivisionError as error:
            names = []
            traceback = error.__traceback__
            while traceback is not None:
                names.append(traceback.tb_frame.f_code.co_name)
                traceback = traceback.tb_next
            return names

    notes = Notes(classify=kinds(leaf=(n.LEAF, None, True)))
    assert notes.run(f, 2) == 0.5
    assert notes.foreign == ["helper"]
    assert notes.run(f, 0) == ["f", "leaf"]
    assert not notes.failures


def test_blind_code_is_reported_and_runs_unwatched() -> None:
    def blind() -> Any:
        return n.state()

    def f() -> Any:
        return blind(), n.state()

    notes = Notes(classify=kinds(blind=(n.BLIND, "too clever", True)))
    assert notes.run(f) == (n.OFF, n.WATCHING)
    assert notes.blinds == [("blind", "too clever")]


def test_class_bodies_and_finalizers_are_blind() -> None:
    class Dying:
        def __del__(self) -> None:
            states.append(n.state())

    states: list[int] = []

    def f() -> None:
        class Body:
            states.append(n.state())

        Dying()

    notes = Notes()
    notes.run(f)
    assert states == [n.OFF, n.OFF]
    assert [name for name, _ in notes.blinds] == ["Body", "__del__"] and notes.blinds[1][1] == "finalizer"


def test_generators_begun_elsewhere_are_blind() -> None:
    generator = programs.countdown(3)
    next(generator)

    def f(g: Any) -> Any:
        return next(g), n.state()

    notes = Notes()
    assert notes.run(f, generator) == (2, n.WATCHING)
    assert notes.blinds == [("countdown", "resumed")]

    def throw(g: Any) -> Any:
        return g.throw(ValueError("x"))

    assert notes.run(throw, generator) == "closing"
    assert notes.blinds[-1] == ("countdown", "resumed")


def test_programs_generators_in_a_leaf_are_foreign() -> None:
    def own() -> Any:
        yield 1

    def leaf(g: Any) -> Any:
        return list(g)

    def f() -> Any:
        return leaf(own())

    notes = Notes(classify=kinds(leaf=(n.LEAF, None, True)))
    assert notes.run(f) == [1]
    assert set(notes.foreign) == {"own"}


def test_a_failing_instrumenter_is_blindness_for_now() -> None:
    from stator.watch.bytecode import opcodes

    def broken(x: int) -> int:
        return x + 1

    def f(x: int) -> int:
        return broken(x)

    f, notes = fresh_code(f), Notes()
    notes.run(fresh_code(lambda: None))
    rules, opcodes.RULES[:] = list(opcodes.RULES), ["nonsense"] * 256
    try:
        assert outcome(notes.watcher.run, f, (3,))[1] is n.Unwatchable
    finally:
        opcodes.RULES[:] = rules
    assert notes.failures
    notes.failures.clear()
    assert notes.run(f, 3) == 4  # not remembered
    assert not notes.failures and not notes.blinds


def test_nothing_of_ours_runs_while_builtins_are_replaced() -> None:
    """Our handlers and our instrumenter are Python code, written with these names."""
    length = builtins.len

    def inner(items: list[int]) -> int:
        return len(items) + sum(items)

    def program() -> Any:
        before = len([1])
        builtins.len = lambda items: 7
        try:
            replaced = len([1]), fresh_code(inner)([1, 2]), n.builtins_intact()
        finally:
            builtins.len = length
        return before, replaced, inner([1, 2])

    assert n.builtins_intact()
    for _ in range(2):
        notes = Notes()
        notes.watcher.unfiltered = True
        assert notes.run(fresh_code(program)) == (1, (7, 10, False), 5)
        assert notes.watcher.misled and not notes.failures and notes.of("STORE_ATTR")
        assert "inner" not in notes.entered
    notes = Notes()
    assert notes.run(inner, [1, 2]) == 5 and not notes.watcher.misled


def test_a_name_that_runs_code_when_builtins_are_searched_is_not_compared() -> None:
    """No lookup of ours happens in a dict whose keys are the program's objects."""
    searched = []

    class Name:
        def __hash__(self) -> int:
            return hash("iter")

        def __eq__(self, other: object) -> bool:
            searched.append(other)
            return other == "iter"

    def program() -> Any:
        names, former, key = vars(builtins), iter, Name()
        del names["iter"]
        names[key] = former
        try:
            return [item for item in [1, 2]], len(searched)
        finally:
            del names[key]
            names["iter"] = former

    for _ in range(3):
        notes = Notes()
        assert notes.run(fresh_code(program)) == ([1, 2], 0)
        searched.clear()
        assert notes.watcher.misled and n.builtins_intact()


def test_names_that_are_only_added_or_meant_to_be_replaced_do_not_matter() -> None:
    import_ = builtins.__import__

    def program() -> Any:
        builtins.another = 1  # type: ignore[attr-defined]
        builtins.__import__ = lambda *args, **kwargs: import_(*args, **kwargs)
        try:
            import itertools as found

            return found
        finally:
            builtins.__import__ = import_
            del builtins.another  # type: ignore[attr-defined]

    notes = Notes()
    notes.watcher.unfiltered = True
    assert notes.run(program) is itertools
    assert not notes.watcher.misled and notes.of("DELETE_ATTR")


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


# ---- no frame escapes ----

TICK = itertools.count().__next__


class Ticking:
    """Every way into Python code from an instruction; each run of such code calls TICK once."""

    def __init__(self, x: int = 0) -> None:
        TICK()

    def __getitem__(self, key: Any) -> Any:
        return TICK()

    def __setitem__(self, key: Any, value: Any) -> None:
        TICK()

    def __delitem__(self, key: Any) -> None:
        TICK()

    def __setattr__(self, name: str, value: Any) -> None:
        TICK()

    def __add__(self, other: Any) -> Any:
        return TICK()

    def __lt__(self, other: Any) -> bool:
        return TICK() >= 0

    def __contains__(self, other: Any) -> bool:
        return TICK() >= 0

    def __bool__(self) -> bool:
        return TICK() >= 0

    def __call__(self) -> Any:
        return TICK()

    def __enter__(self) -> Any:
        return TICK()

    def __exit__(self, *args: Any) -> None:
        TICK()

    def __iter__(self) -> Any:
        TICK()
        return iter(())

    def __neg__(self) -> Any:
        return TICK()

    def method(self, a: int, b: int = 2) -> Any:
        return TICK()

    @property
    def prop(self) -> Any:
        return TICK()


class Overridden:
    def __getattribute__(self, name: str) -> Any:
        return TICK()


def plain(a: int, b: int = 2) -> Any:
    return TICK()


def ticks(count: int) -> Any:
    for _ in range(count):
        yield TICK()


def delegated(count: int) -> Any:
    yield from ticks(count)


async def coroutine() -> Any:
    return TICK()


def exercise(t: Any, o: Any) -> None:
    async def waiting() -> None:
        for _ in range(5):
            await coroutine()

    for i in range(5):
        t[i]
        t[i] = i
        del t[i]
        t.x = i
        t + i
        t < i
        i in t
        not t
        t()
        -t
        with t:
            pass
        for _ in t:
            pass
        t.method(i)
        t.method(i, 3)
        t.method(i, b=3)
        t.prop
        o.anything
        plain(i)
        plain(i, 2)
        plain(i, b=2)
        plain(*(i,), **{})
        Ticking()
        Ticking(i)
        Ticking(x=i)
        for _ in ticks(2):
            pass
        for _ in delegated(2):
            pass
        sorted([1, 2], key=plain)
    try:
        waiting().send(None)
    except StopIteration:
        pass


def ticked(call: Any, *args: Any) -> int:
    before = TICK()
    call(*args)
    return TICK() - before - 1


def test_every_callee_is_watched_however_warm_the_code_is() -> None:
    t, o = Ticking(), Overridden()
    gc.collect()  # generators that other tests have left must not end in these recordings
    for _ in range(60):  # CPython specialises the originals
        expected = ticked(exercise, t, o)
    for _ in range(60):  # and would specialise the copies
        notes = Notes(kinds="CALL")
        notes.run(exercise, t, o)
        assert sum(event[2] is TICK for event in notes.events) == expected
        assert not notes.blinds


def test_every_foreign_frame_in_a_leaf_is_reported_however_warm_the_code_is() -> None:
    exercised = fresh_code(exercise)
    t, o = Ticking(), Overridden()
    for _ in range(60):
        ticked(exercised, t, o)

    def f(t: Any, o: Any) -> None:
        exercised(t, o)

    notes = Notes(kinds="", classify=kinds(exercise=(n.LEAF, None, True)))
    for _ in range(20):
        notes.foreign.clear()
        notes.run(f, t, o)
        seen = {name: notes.foreign.count(name) for name in set(notes.foreign)}
        assert seen["__init__"] == 15 and seen["__getitem__"] == 5 and seen["prop"] == 5, seen
        assert seen["plain"] == 30 and seen["method"] == 15 and seen["__getattribute__"] == 5, seen


# ---- recursion, threads, neighbours ----


def test_deep_recursion_ends_the_recording_not_the_process() -> None:
    def down(k: int) -> int:
        return 0 if k == 0 else 1 + down(k - 1)

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    try:
        notes = Notes(kinds="")
        assert notes.run(down, 50_000) == 50_000
        assert ("down", "recursion") in notes.blinds
    finally:
        sys.setrecursionlimit(before)


def test_deep_recursion_in_code_that_is_not_watched_ends_the_recording() -> None:
    def down(k: int) -> int:
        return 0 if k == 0 else 1 + down(k - 1)

    def f() -> int:
        class Blind:
            result = down(50_000)

        return Blind.result

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    try:
        notes = Notes()
        assert notes.run(f) == 50_000
    finally:
        sys.setrecursionlimit(before)
    assert notes.watcher.misled and not notes.failures


def test_the_limit_of_recursion_is_no_failure_of_the_recording() -> None:
    """Handlers run with what is left of it, and may have to give up."""

    def down(items: list[Any]) -> int:
        try:
            return len(items) + down([items])
        except RecursionError:
            return 0

    told: list[Any] = []
    former, sys.unraisablehook = sys.unraisablehook, told.append
    try:
        for _ in range(3):
            notes = Notes()
            notes.watcher.unfiltered = True
            assert notes.run(down, []) > 100
            assert all(isinstance(failure, RecursionError) for failure in notes.failures), notes.failures
    finally:
        sys.unraisablehook = former
    assert not told


def test_deep_recursion_in_a_thread_that_records_nothing() -> None:
    """Another thread's recording makes its calls take C stack."""

    def down(k: int) -> int:
        return 0 if k == 0 else 1 + down(k - 1)

    results: list[int] = []

    def f(start: Any, other: Any) -> None:
        start()
        other.join()

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    try:
        other = threading.Thread(target=lambda: results.append(down(50_000)))
        notes = Notes(kinds="")
        notes.watcher.run(f, (other.start, other))
    finally:
        sys.setrecursionlimit(before)
    assert results == [50_000]
    assert "displaced" in str(notes.failures[0])  # and this recording knows that frames ran unseen
    assert Notes().run(programs.recursion) == 144


def test_threads_record_apart() -> None:
    barrier = threading.Barrier(3)
    notes = [Notes(kinds="BINARY") for _ in range(2)]
    problems: list[Any] = []

    def work(x: int, wait: Any) -> int:
        wait()
        for _ in range(300):
            x = step(x)
        wait()
        return x

    def step(x: int) -> int:
        return x + 1

    def thread(i: int) -> None:
        if notes[i].watcher.run(work, (i, barrier.wait)) != 300 + i:
            problems.append(i)
        if n.state() != n.OFF:
            problems.append("state")

    threads = [threading.Thread(target=thread, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    barrier.wait()
    if n.state() != n.OFF or n.current() is not None:
        problems.append("main thread")
    programs.recursion()
    barrier.wait()
    for t in threads:
        t.join()
    assert not problems and not n.hook_installed()
    for i in range(2):
        assert notes[i].watcher.events >= 900 and not notes[i].failures
        assert "work" in notes[i].entered[0]


def test_nothing_leaks() -> None:
    def f(x: Any, *args: Any, **kwargs: Any) -> Any:
        def inner(y: Any) -> Any:
            return (y, x, [z for z in ticks(2)])

        try:
            raise ValueError(x)
        except ValueError as error:
            return inner(str(error)), sorted([2, 1], key=lambda v: -v), f"{x:>3}"

    def once() -> None:
        notes = Notes(kinds="CALL ATTR GLOBAL")
        notes.run(f, 3, (), {})

    for _ in range(200):
        once()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(2000):
        once()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 500


def test_one_watcher_can_run_many_times() -> None:
    notes = Notes(kinds="BINARY")

    def f(x: int) -> int:
        return plain(x) + len(str(x))

    for _ in range(100):
        notes.run(f, 3)
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(10_000):
        notes.watcher.run(f, (3,))
    assert sys.getallocatedblocks() - blocks < 100


def test_code_objects_that_come_and_go_leak_nothing() -> None:
    def make() -> Any:
        space: dict[str, Any] = {}
        exec("def f(x):\n    return [len(str(i)) for i in range(x)]", space)
        return space["f"]

    def once() -> None:
        Notes(kinds="CALL").run(make(), 2)

    for _ in range(50):
        once()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(300):
        once()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 100


def test_a_code_object_can_be_forgotten_while_it_is_judged() -> None:
    def inner() -> int:
        return 1

    def f() -> int:
        return inner()

    def classify(code: CodeType) -> Any:
        n.forget_code(code)
        return (n.CONSTANT, [1, 2], True)

    notes = Notes(classify=classify)
    for _ in range(3):
        assert notes.run(f) == [1, 2]
        n.forget_code(inner.__code__)
