"""Guards and dispatch in C, by hand: no torch, no pytest, so that every CPython and every sanitizer can run it."""

from __future__ import annotations

import gc
import sys
import threading
import types
import weakref
from collections import OrderedDict
from typing import Any

from stator import _native as n

STATE = (1, True, 0, int, 0, 0, None, True, 0, -1, None)
NAMESPACE = {"level": -1}
NAN = float("nan")


def learn_state() -> None:
    one, zero = (lambda: 1), (lambda: 0)
    readers = (
        (one, None, n.STATE_NUMBER),
        (lambda: None, None, n.STATE_IS_NONE),
        (zero, None, n.STATE_NUMBER),
        (lambda: int, None, n.STATE_OBJECT),
        (zero, None, n.STATE_NUMBER),
        (zero, None, n.STATE_NUMBER),
        (lambda: None, None, n.STATE_NUMBER_OR_NONE),
        (lambda flag: None, False, n.STATE_IS_NONE),
        (zero, None, n.STATE_NUMBER),
        (None, None, n.STATE_NUMBER),
    )
    n.state_learn(readers, NAMESPACE, "level", lambda: False, lambda: ())


if "stator.replay.state" not in sys.modules:
    learn_state()  # guards cannot be made before


class Without:
    """Nothing of torch is asked in here; what was learned from it before is put back."""

    def __enter__(self) -> None:
        learn_state()

    def __exit__(self, *exception: object) -> None:
        if "stator.replay.state" in sys.modules:
            sys.modules["stator.replay.state"].setup()


def node(edge, parent, key=None, number=0, checks=(), version=n.VERSION_NONE, past=None, index=0):
    """One row; `past` counts the fixed children that follow."""
    rows = [(fact, lasting, 0, place, expected) for place, (fact, lasting, expected) in enumerate(checks)]
    return (edge, parent, key, number, version, index + 1 + (past or 0), index, rows)


def make(*rows, wanted=(0,), relations=(), groups=(), asked=(), always=-1, ask=None):
    nodes = [node(**row, index=index) for index, row in enumerate(rows)]
    return n.Guards(STATE, nodes, list(relations), list(groups), tuple(wanted), tuple(asked), always, ask)


def root(**more: Any) -> dict[str, Any]:
    return {"edge": n.FETCH_LOCAL, "parent": -1, **more}


def test_keys_of_every_kind_are_found_by_their_hash() -> None:
    """In tables of all sizes, behind entries that are gone, among keys of the same place and of the same hash."""

    class Plain:
        pass

    class Acting:
        """A key that only its own code can compare."""

        def __hash__(self) -> int:
            return hash(3)

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

    looked_for = [*range(-3, 70, 5), 1 << 61, (1 << 61) - 1, 1 << 70, "a", "b", "c", "71"]
    for size in (0, 1, 3, 8, 90, 200, 40_000, 70_000):
        made: dict[Any, Any] = {Plain(): -1, None: -2}
        made.update(
            (key, str(key)) for key in (*range(size), *map(str, range(0, size, 7)), (1, 2), b"a", 2.0, -3.0, "b")
        )
        for key in range(0, size, 3):
            del made[key]
        made.update({True: "one", (1 << 61) - 1: "minus", 1 << 70: "long"})
        for key in looked_for:
            found = make(root(), {"edge": n.FETCH_KEY, "parent": 0, "key": key}, wanted=(1,)).check((made,))
            assert found == ((made[key],) if key in made else None), (size, key)
            for fact, holds in ((n.CHECK_HAS, key in made), (n.CHECK_LACKS, key not in made)):
                assert (make(root(checks=[(fact, n.LIVE, key)])).check((made,)) is not None) == holds, (size, key)
        made.pop(3, None)
        made[Acting()] = 0
        for key in looked_for:
            lacks = make(root(checks=[(n.CHECK_LACKS, n.LIVE, key)])).check((made,))
            assert (lacks is not None) == (key not in made)
        assert make(root(checks=[(n.CHECK_LACKS, n.LIVE, 3)])).check((made,)) is NotImplemented


def test_every_edge() -> None:
    class Slots:
        __slots__ = ("a",)

    slots = Slots()
    slots.a = 5
    thing = types.SimpleNamespace(x=1)

    def function(a, b=7):
        return thing

    cases = [
        (n.FETCH_NAMESPACE, thing, None, 0, vars(thing)),
        (n.FETCH_KEY, {"k": 3}, "k", 0, 3),
        (n.FETCH_KEY, {1: 3, "k": 4, (1, 2): 5}, "k", 0, 4),
        (n.FETCH_KEY, {"a": 1, 2: 3}, 2, 0, 3),
        (n.FETCH_KEY, OrderedDict(a=2), "a", 0, 2),
        (n.FETCH_INDEX, [1, 2], None, 1, 2),
        (n.FETCH_INDEX, (1, 2), None, 0, 1),
        (n.FETCH_MEMBER, slots, Slots.a, 0, 5),
        (n.FETCH_FUNCTION, function, None, n.PART_DEFAULTS, (7,)),
        (n.FETCH_FUNCTION, function, None, n.PART_CODE, function.__code__),
        (n.FETCH_FUNCTION, function, None, n.PART_KWDEFAULTS, None),
        (n.FETCH_CELL, function.__closure__[0], None, 0, thing),
        (n.FETCH_SELF, [].append, None, 0, []),
        (n.FETCH_MRO, bool, "bit_length", 0, int.__dict__["bit_length"]),
        (n.FETCH_SUPER, bool, (bool, "__and__"), 0, int.__dict__["__and__"]),
        (n.FETCH_CALL, sys.getrecursionlimit, None, 0, sys.getrecursionlimit()),
    ]
    for edge, owner, key, number, expected in cases:
        guards = make(root(), {"edge": edge, "parent": 0, "key": key, "number": number}, wanted=(1,))
        for _ in range(3):
            assert guards.check((owner,)) == (expected,), (edge, owner)
        if edge != n.FETCH_CALL:
            assert guards.check((3.5,)) is None, (edge, "of something else")
            assert guards.failed == (1, -1)


def test_every_fact() -> None:
    def function():
        pass

    cell, empty = types.CellType(1), types.CellType()

    class Slots:
        __slots__ = ("a",)

    full = Slots()
    full.a = 1
    code = (function.__code__, function.__globals__)
    cases = [
        (n.CHECK_TYPE, int, [1, 2], [True, 1.0, None]),
        (n.CHECK_IS, function, [function], [test_every_edge]),
        (n.CHECK_EQUAL, 1, [1], [True, 1.0, 2]),
        (n.CHECK_EQUAL, 10**30, [10**30], [10**30 + 1]),
        (n.CHECK_EQUAL, 0.0, [0.0], [-0.0, 0, 1e-300]),
        (n.CHECK_EQUAL, NAN, [NAN], [float("nan"), -NAN, 1.0]),
        (n.CHECK_EQUAL, "abc", ["".join("abc")], ["abd", "ab", b"abc"]),
        (n.CHECK_EQUAL, b"abc", [b"abc"], [b"abd", "abc"]),
        (n.CHECK_EQUAL, None, [None], [0, False]),
        (n.CHECK_EQUAL, True, [True], [1, False]),
        (n.CHECK_EQUAL, 1j, [1j], [1 + 1j, -1j]),
        (n.CHECK_EQUAL, (1, ("a", 2.0)), [(1, ("a", 2.0))], [(1, ("a", 2)), (1,), [1]]),
        (n.CHECK_LEN, 2, [[1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}], [[1], ()]),
        (n.CHECK_KEYS, ("a", 1), [{"a": 0, 1: 0}], [{1: 0, "a": 0}, {"a": 0}, {"a": 0, True: 0}]),
        (n.CHECK_HAS, "a", [{"a": 1}, {"a": 1, 2: 3}], [{}, {"b": 1}, {1: 2}]),
        (n.CHECK_LACKS, "a", [{}, {"b": 1}, {1: 2}], [{"a": 1}]),
        (n.CHECK_CODE, code, [function], [test_every_edge]),
        (n.CHECK_NO_ENTRY, "nothing", [int], [type("T", (), {"nothing": 1})]),
        (n.CHECK_UNSET, None, [empty], [cell]),
        (n.CHECK_NO_SLOT, Slots.a, [Slots()], [full]),
    ]
    for fact, expected, good, bad in cases:
        guards = make(root(checks=[(fact, n.LIVE, expected)]))
        for value in good:
            assert guards.check((value,)) == (value,), (fact, value)
        for value in bad:
            assert guards.check((value,)) is None, (fact, value)
            assert guards.failed == (0, 0)


class Odd:
    """Equal to every string, and says so in Python."""

    def __hash__(self) -> int:
        return hash("k")

    def __eq__(self, other: object) -> bool:
        return True


def test_code_of_keys_is_never_run() -> None:
    guards = make(root(), {"edge": n.FETCH_KEY, "parent": 0, "key": "k"}, wanted=(1,))
    assert guards.check(({Odd(): 1},)) is NotImplemented
    assert guards.check(({int: 1, "k": 2},)) == (2,)
    assert guards.check(({1.0: 1, b"k": 3, "k": 4},)) == (4,)
    guards = make(root(), {"edge": n.FETCH_KEY, "parent": 0, "key": 1}, wanted=(1,))
    assert guards.check(({1.0: 5},)) == (5,)
    assert guards.check(({True: 5},)) == (5,)
    assert guards.check(({"x": 5},)) is None


class Thing:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def tree():
    """Guards on `thing.table["a"]` (a constant) and `thing.table["b"]` (a list whose length matters)."""
    return make(
        root(checks=[(n.CHECK_TYPE, n.LIVE, Thing)]),
        {"edge": n.FETCH_NAMESPACE, "parent": 0, "version": n.VERSION_DICT},
        {"edge": n.FETCH_KEY, "parent": 1, "key": "table", "version": n.VERSION_DICT, "past": 1},
        {"edge": n.FETCH_KEY, "parent": 2, "key": "a", "checks": [(n.CHECK_EQUAL, n.FIXED, 1)]},
        {"edge": n.FETCH_KEY, "parent": 2, "key": "b", "checks": [(n.CHECK_LEN, n.LIVE, 1)]},
        wanted=(3, 4),
    )


def test_versions() -> None:
    guards = tree()
    thing = Thing(table={"a": 1, "b": [0]}, other=0)
    for _ in range(3):
        assert guards.check((thing,)) == (1, [0])
    thing.other = 2  # moves the version of the namespace
    thing.table["c"] = 3
    for _ in range(3):
        assert guards.check((thing,)) == (1, [0])
    thing.table["b"].append(1)  # moves no version
    assert guards.check((thing,)) is None
    thing.table["b"].pop()
    assert guards.check((thing,)) == (1, [0])
    thing.table["a"] = 2
    for _ in range(2):
        assert guards.check((thing,)) is None
    thing.table["a"] = 1
    assert guards.check((thing,)) == (1, [0])
    thing.table = {"a": 1, "b": ["other"]}
    assert guards.check((thing,)) == (1, ["other"])
    thing.__dict__ = {"table": {"a": 5, "b": [1]}}
    assert guards.check((thing,)) is None
    other = Thing(table={"a": 1, "b": ["second"]})
    assert guards.check((other,)) == (1, ["second"])


def test_a_failed_walk_notes_nothing() -> None:
    guards = tree()
    thing = Thing(table={"a": 2, "b": [0]})
    for _ in range(3):
        assert guards.check((thing,)) is None  # `a` is wrong every time, though no version moves
    wrong_late = Thing(table={"a": 1, "b": [0, 1]})
    for _ in range(3):
        assert guards.check((wrong_late,)) is None
    wrong_late.table["b"].pop()
    assert guards.check((wrong_late,)) == (1, [0])


def test_nothing_dangles() -> None:
    guards = tree()
    for round in range(200):
        thing = Thing(table={"a": 1 if round % 2 else 2, "b": [round]})
        assert guards.check((thing,)) == ((1, [round]) if round % 2 else None)
        dead = weakref.ref(thing)
        del thing
        assert dead() is None


def test_classes_have_versions() -> None:
    cls = type("C", (), {"x": 1})
    guards = make(
        {"edge": n.FETCH_CONST, "parent": -1, "key": cls, "version": n.VERSION_TYPE, "past": 1},
        {"edge": n.FETCH_MRO, "parent": 0, "key": "x", "checks": [(n.CHECK_EQUAL, n.FIXED, 1)]},
        wanted=(1,),
    )
    for _ in range(3):
        assert guards.check(()) == (1,)
    cls.x = 2
    assert guards.check(()) is None
    cls.x = 1
    cls.y = 1
    for _ in range(3):
        assert guards.check(()) == (1,)


def test_relations_and_groups() -> None:
    rows = [root(number=index) for index in range(3)]
    same = make(*rows, wanted=(), relations=[(0, 1, True, 1, 0), (0, 2, False, 2, 0)])
    a, b = [], []
    for _ in range(3):
        assert same.check((a, a, b)) == ()
        assert same.check((a, b, b)) is None and same.failed == (1, 0)
        assert same.check((a, a, a)) is None and same.failed == (2, 0)
    apart = make(*rows, wanted=(), groups=[(0, 1, 2)])
    c = []
    for _ in range(3):
        assert apart.check((a, b, c)) == ()
        assert apart.check((c, b, a)) == ()
        assert apart.check((c, b, c)) is None


def test_python_is_asked() -> None:
    asked: list[Any] = []

    def ask(values: tuple[Any, ...], in_doubt: bool) -> Any:
        asked.append((values, in_doubt))
        return (values[0] + 1,) if values[0] < 10 else 3 << 16 | 2

    guards = make(root(), wanted=(0, -1), asked=(0,), always=1, ask=ask)
    assert guards.check((4,)) == (4, 5)
    assert asked == [((4,), False)]
    assert guards.check((40,)) is None and guards.failed == (3, 2)
    doubt = make(root(checks=[(n.CHECK_EQUAL, n.LIVE, range(3))]), asked=(0,), ask=lambda values, in_doubt: ())
    assert doubt.check((range(3),)) == (range(3),)
    raising = make(root(), wanted=(-1,), asked=(0,), always=1, ask=lambda values, in_doubt: 1 / 0)
    assert raising.check((4,)) is NotImplemented


def test_versions_wait_for_the_answer() -> None:
    """What was noted before Python code ran counts only if nobody walked meanwhile."""
    table = {"a": 1}
    inside = {"a": 1, "b": 2}
    answers: list[Any] = [(), ()]

    def ask(values: tuple[Any, ...], in_doubt: bool) -> Any:
        if answers:
            answers.pop()
            guards.check((inside,))
        return ()

    guards = make(
        root(version=n.VERSION_DICT, past=1),
        {"edge": n.FETCH_KEY, "parent": 0, "key": "a", "checks": [(n.CHECK_EQUAL, n.FIXED, 1)]},
        wanted=(1,),
        asked=(0,),
        always=1,
        ask=ask,
    )
    assert guards.check((table,)) == (1,)
    inside["a"] = 5
    answers[:] = [()]
    assert guards.check((table,)) == (1,)
    assert guards.check((inside,)) is None
    assert guards.check((table,)) == (1,)


def test_bad_data_is_refused() -> None:
    good = node(n.FETCH_LOCAL, -1)
    bad_rows = [
        node(99, -1),
        node(n.FETCH_LOCAL, 0),
        node(n.FETCH_KEY, -1, "k"),
        node(n.FETCH_LOCAL, -1, past=7),
        node(n.FETCH_LOCAL, -1, number=-1),
        node(n.FETCH_LOCAL, -1, checks=[(99, n.LIVE, None)]),
        node(n.FETCH_LOCAL, -1, checks=[(n.CHECK_TYPE, n.LIVE, 3)]),
        node(n.FETCH_LOCAL, -1, checks=[(n.CHECK_TENSOR, n.LIVE, (1, 2))]),
        node(n.FETCH_LOCAL, -1, checks=[(n.CHECK_IS, n.FIXED, 1), (n.CHECK_IS, n.LIVE, 1)]),
        (1, 2),
        None,
    ]
    tries = [(STATE, [row], [], [], (), (), -1, None) for row in bad_rows]
    tries += [
        (STATE, [good, node(n.FETCH_KEY, 0, 1.5, index=1)], [], [], (), (), -1, None),
        (STATE, [good, node(n.FETCH_MEMBER, 0, int.real, index=1)], [], [], (), (), -1, None),
        (STATE, [good], [(0, 1, True, 0, 0)], [], (), (), -1, None),
        (STATE, [good], [], [(0, 5)], (), (), -1, None),
        (STATE, [good], [], [], (3,), (), -1, None),
        (STATE, [good], [], [], (), (-1,), -1, None),
        (STATE, [good], [], [], (), (0,), 2, None),
        (STATE[:3], [good], [], [], (), (), -1, None),
    ]
    for arguments in tries:
        try:
            n.Guards(*arguments)
        except (ValueError, TypeError):
            continue
        raise AssertionError(arguments)


# -- dispatch


def quick(function, guards, replay, **more):
    """A compiled callable with one armed recording; its fallback and the others note that they were called."""
    table, hits, entry, calls = n.EntryTable(), n.Count(), object(), []
    table.add(entry)
    if guards is not None:
        table.publish(entry, guards, replay, None, n.Count())

    def fallback(*args, **kwargs):
        calls.append("fallback")
        return function(*args, **kwargs)

    def resume(entry, values, slots):
        calls.append("resume")
        return values

    def failed(entry, error, function, slots):
        calls.append(type(error).__name__)
        return slots

    compiled = n.Compiled(fallback, function, table, hits, resume, failed, None)
    return compiled, calls, hits, table


def test_a_call() -> None:
    with Without():
        n.set_quick(True, {}, object)

        def function(a, b=2, *rest, c=3, **more):
            return "plain"

        guards = make(*[root(number=index) for index in range(6)], wanted=range(6))
        compiled, calls, hits, _ = quick(function, guards, lambda values: values)
        assert compiled(1) == (1, 2, 3, (), {}, function)
        assert compiled(1, 5, 6, 7, c=8, d=9) == (1, 5, 8, (6, 7), {"d": 9}, function)
        assert compiled(b=1, a=0) == (0, 1, 3, (), {}, function)
        assert hits.value == 3 and calls == []
        try:
            compiled()
        except TypeError:
            assert calls.pop() == "fallback"
        function.__kwdefaults__ = {"c": 30}
        assert compiled(1)[2] == 30
        function.__code__ = (lambda a, b=2, *rest, c=3, **more: "other").__code__
        assert compiled(1) == "other" and calls.pop() == "fallback"
        n.set_quick(False, {}, object)


def test_what_is_not_simple() -> None:
    with Without():
        n.set_quick(True, {}, object)
        guards = make(root(checks=[(n.CHECK_EQUAL, n.LIVE, 1)]))
        compiled, calls, _, table = quick(lambda a: "plain", guards, None)
        assert compiled(1) == (1,) and calls.pop() == "resume"
        assert compiled(2) == "plain" and calls.pop() == "fallback"
        NAMESPACE["level"] = 0
        assert compiled(1) == "plain" and calls.pop() == "fallback"
        NAMESPACE["level"] = -1
        table.clear()
        assert compiled(1) == "plain" and calls.pop() == "fallback"
        raising, calls, _, _ = quick(lambda a: "plain", guards, lambda values: 1 / 0)
        assert raising(1) == (1,) and calls == ["ZeroDivisionError"]
        heard = {"hits": ()}
        n.set_quick(True, heard, "hits")
        assert raising(1) == "plain"
        heard.clear()
        assert raising(1) == (1,)
        n.set_quick(False, {}, object)


def test_the_shelf_keeps_order() -> None:
    with Without():
        n.set_quick(True, {}, object)
        table, hits = n.EntryTable(), n.Count()
        for value in (1, 2, 3):
            table.add(value)
            table.publish(
                value, make(root(checks=[(n.CHECK_EQUAL, n.LIVE, value)])), lambda values: values, None, n.Count()
            )
        compiled = n.Compiled(lambda a: None, lambda a: None, table, hits, None, None, None)
        assert table.entries == (3, 2, 1)
        for value, order in ((1, (1, 3, 2)), (1, (1, 3, 2)), (2, (2, 1, 3))):
            assert compiled(value) == (value,)
            assert table.entries == order
        n.set_quick(False, {}, object)


def test_it_is_an_object() -> None:
    def function(self, a):
        return a

    compiled, _, _, _ = quick(function, None, None)
    compiled.__qualname__ = "name"
    compiled.extra = 1
    assert vars(compiled) == {"__qualname__": "name", "extra": 1}
    assert compiled.__reduce__() == "name" and "name" in repr(compiled)
    cls = type("C", (), {"m": compiled})
    assert cls.m is compiled and cls().m(3) == 3
    assert compiled.__get__(4).__self__ == 4
    owner = cls()
    compiled.stand_in(owner, "original")
    dead = weakref.ref(compiled)
    compiled.loop = compiled
    del compiled, cls, owner
    gc.collect()
    assert dead() is None


def test_threads() -> None:
    with Without():
        n.set_quick(True, {}, object)
        guards = tree()
        compiled, _, hits, table = quick(lambda a: "plain", guards, lambda values: values)
        entry = table.entries[0]
        wrong: list[Any] = []

        def work(number: int) -> None:
            thing = Thing(table={"a": 1, "b": [number]})
            for k in range(2000):
                if compiled(thing) not in ((1, [number]), "plain"):
                    wrong.append(number)
                if number == 0 and k % 50 == 0:
                    table.clear()
                    table.add(entry)
                    table.publish(entry, guards, lambda values: values, None, n.Count())

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong and hits.value > 0
        n.set_quick(False, {}, object)
