"""Probes of calls, and what the filters hold back."""

from __future__ import annotations

import sys
from typing import Any

from test_probes import LIST, NUMBER, Thing, one, target, told
from watching import Notes

# ---- calls ----


def test_calls_of_builtins() -> None:
    append = LIST.__class__.append
    assert one(lambda x: len(x), LIST, kind="CALL") == (None, len, (LIST,), ())
    fresh = told(lambda: [].append(1), kinds="CALL")
    assert fresh == [("CALL", None, append, ([1], 1), ())]  # method form: self comes first
    bound = LIST.count
    assert one(lambda f: f(3), bound, kind="CALL") == (None, bound, (3,), ())


def test_keyword_names() -> None:
    events = told(lambda x: sorted(x, key=None, reverse=True), LIST, kinds="CALL")
    assert [e[2:] for e in events] == [(sorted, (LIST, None, True), ("key", "reverse"))]


def test_calls_of_python_functions_are_not_told() -> None:
    assert told(lambda f, x: f(x, k=x), target, NUMBER, kinds="CALL") == []
    assert told(lambda x: x.method(1), Thing(), kinds="CALL") == []


def test_intercepted_functions_are_told() -> None:
    for call in (lambda f: f(1, k=2), lambda f: f(*(1,), **{"k": 2})):
        notes = Notes(kinds="CALL CALL_EX")
        notes.watcher.intercept(target.__code__)
        notes.run(call, target)
        assert notes.events[0][2] is target and len(notes.events) == 1
    thing = Thing()
    notes = Notes(kinds="CALL")
    notes.watcher.intercept(Thing.method.__code__)
    notes.run(lambda x: x.method(1), thing)
    assert notes.events[0][3] == (thing, 1)


def test_callable_instances_are_told_once_per_type() -> None:
    def f(x: Any, y: Any) -> None:
        x(1)
        y(2)
        x(3)

    events = told(f, Thing(), Thing(), kinds="CALL")
    assert [e[3] for e in events] == [(1,)]


def test_approved_callables_are_told_with_known_arguments_only() -> None:
    def f(x: Any) -> Any:
        return len(x), len("fresh" + "er"), abs(-1)

    notes = Notes(kinds="CALL")
    notes.watcher.approve(len)
    notes.watcher.know(LIST)
    notes.run(f, LIST)
    assert [(e[2], e[3]) for e in notes.events] == [(len, (LIST,)), (abs, (-1,))]


def test_star_calls() -> None:
    args, kwargs = (NUMBER,), {"k": 1}

    def f(func: Any, a: Any, k: Any) -> Any:
        return func(*a, **k)

    def g(func: Any, a: Any) -> Any:
        return func(*a)

    # the dict that is passed is a fresh one, merged from what was given
    assert [e[2:] for e in told(f, target, args, kwargs, kinds="CALL_EX")] == [(target, args, kwargs)]
    notes = Notes(kinds="CALL_EX")
    notes.watcher.know(args)
    notes.run(g, target, args)
    assert notes.events == [("CALL_EX", None, target, args, None)]
    assert told(g, target, args, kinds="CALL_EX", know=False) == []
    assert told(g, repr, args, kinds="CALL_EX", know=False) == [("CALL_EX", None, repr, args, None)]


def test_a_call_can_be_redirected() -> None:
    def other(*args: Any, **kwargs: Any) -> Any:
        return "other", args, kwargs

    thing = Thing()
    for call, original, expected in (
        (lambda x: len(x), len, ("other", (LIST,), {})),
        (lambda x: sorted(x, reverse=True), sorted, ("other", (LIST,), {"reverse": True})),
        (lambda x: len(*(x,)), len, ("other", (LIST,), {})),
        (lambda x: sorted(*(x,), **{"reverse": 1}), sorted, ("other", (LIST,), {"reverse": 1})),
        (lambda x: x.count(3), type(LIST).count, ("other", (LIST, 3), {})),
    ):
        for _ in range(30):  # also when CPython has seen the site often
            notes = Notes(kinds="CALL CALL_EX")
            notes.replace = {original: other}
            assert notes.run(call, LIST) == expected
    notes = Notes(kinds="CALL")
    notes.watcher.intercept(Thing.method.__code__)
    notes.replace = {Thing.method: other}
    assert notes.run(lambda x: x.method(5, k=6), thing) == ("other", (thing, 5), {"k": 6})


def test_a_bound_method_in_a_variable_can_be_redirected() -> None:
    thing = Thing()
    bound = thing.method
    notes = Notes(kinds="CALL")
    notes.watcher.intercept(Thing.method.__code__)
    notes.replace = {bound: lambda *args: ("other", args)}
    assert notes.run(lambda f: f(1), bound) == ("other", (1,))


# ---- filters ----


def test_fresh_objects_of_immutable_types_are_silent() -> None:
    def f(x: Any) -> Any:
        y = [x, 2]
        y[0] = 5
        z = {"a": y}
        z["a"].extend([1])
        return [v + 1 for v in y if v > 1], f"{y[1]}", y.count, -y[0], 5 in y, y is z, len

    silent = "SUBSCR STORE_SUBSCR BINARY COMPARE CONTAINS IS UNARY TRUTH ITER NEXT FORMAT ATTR HASH EXTEND"
    assert told(f, 3, kinds=silent, know=False) == []
    # but of what may hold anything: its text may show an address
    assert told(lambda x: f"{[x]}", 3, kinds=silent, know=False) == [("FORMAT", None, [3])]


def test_of_fresh_objects_the_type_is_told_once() -> None:
    def f(x: Any, y: Any) -> None:
        x.own, y.own, x.own, x.attribute

    events = told(f, Thing(), Thing(), kinds="ATTR", know=False)
    assert [e[1] for e in events] == ["own", "attribute"]


def test_of_known_objects_each_attribute_is_told_once() -> None:
    def f(x: Any, y: Any) -> None:
        x.own, y.own, x.own, x.attribute

    a, b = Thing(), Thing()
    assert [e[1:] for e in told(f, a, b, kinds="ATTR")] == [("own", a), ("own", b), ("attribute", a)]


def test_a_changed_type_is_told_again() -> None:
    class Changing:
        pass

    def f(x: Any, change: Any) -> None:
        for _ in range(3):
            x.own
        change()
        for _ in range(3):
            x.own

    x = Changing()
    x.own = 1
    events = told(f, x, lambda: setattr(Changing, "other", 1), kinds="ATTR", know=False)
    assert [e[1] for e in events] == ["own", "own"]


def test_types_and_modules() -> None:
    def f(cls: Any, mod: Any) -> None:
        cls.attribute, mod.path, cls.attribute, mod.path, int.real

    events = told(f, Thing, sys, kinds="ATTR", know=False)
    assert [e[1:] for e in events] == [("attribute", Thing), ("path", sys)]


def test_a_class_is_told_as_owner_and_as_type() -> None:
    def f(cls: Any, instance: Any) -> None:
        cls.attribute, instance.attribute

    thing = Thing()
    events = told(f, Thing, thing, kinds="ATTR", know=False)
    assert [e[1:] for e in events] == [("attribute", Thing), ("attribute", thing)]


def test_stores() -> None:
    class Slotted:
        __slots__ = ("a",)

    def f(fresh: Any, cls: Any) -> None:
        fresh.a = 1
        fresh.a = 2
        fresh.a
        cls.b = 1
        cls.b = 2

    events = told(f, Slotted(), Thing, kinds="STORE_ATTR ATTR", know=False)
    assert [e[0] + e[1] for e in events] == ["STORE_ATTRa", "ATTRa", "STORE_ATTRb", "STORE_ATTRb"]


def test_know_and_forget() -> None:
    w = Notes().watcher
    objects = [object() for _ in range(1000)]
    for x in objects:
        w.know(x)
        w.know(x)
    for x in objects[::2]:
        w.forget(x)
        w.forget(x)
    assert [w.knows(x) for x in objects] == [False, True] * 500
    for x in objects:
        w.know(x)
    assert all(w.knows(x) for x in objects) and not w.knows(object())


def test_functions_made_in_the_recording_are_fresh() -> None:
    old = target
    answers: list[bool] = []

    def f(watcher: Any) -> None:
        def new(x: int = 3) -> int:
            return x + answers_cell

        answers_cell = 1
        answers.extend((watcher.fresh(new), watcher.fresh(lambda: 1), watcher.fresh(old)))

    notes = Notes(kinds="")
    notes.run(f, notes.watcher)
    assert answers == [True, True, False]


def test_functions_at_the_same_address_are_all_entered() -> None:
    def f() -> None:
        for i in range(5):
            (lambda: i)()

    notes = Notes(kinds="")
    notes.run(f)
    assert len(notes.entered) == 6
