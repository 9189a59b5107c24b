"""Kinds of code: watched, transparent, skipped, leaves, blind; who decides and when."""

from __future__ import annotations

import builtins
import itertools
from typing import Any

import programs
from watching import Notes, fresh_code, outcome

from stator import _native as n


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
