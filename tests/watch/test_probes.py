"""Probes: what each kind tells, and what the filters hold back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from watching import Notes

from stator import _native as n

HAS_SLICES = sys.version_info >= (3, 12)
MODULE_VALUE = 7


class Thing:
    attribute = 1

    def __init__(self) -> None:
        self.own = 2

    def method(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    def __call__(self, *args: Any) -> Any:
        return args


class Manager:
    def __enter__(self) -> int:
        return 1

    def __exit__(self, *args: Any) -> bool:
        return True


def told(func: Callable[..., Any], *args: Any, kinds: str | None = None, know: bool = True) -> list[tuple[Any, ...]]:
    """The events of one run; all arguments are known outside objects unless said otherwise."""
    notes = Notes(kinds=kinds)
    for arg in args if know else ():
        notes.watcher.know(arg)
    notes.run(func, *args)
    assert not notes.failures, notes.failures
    return notes.events


# ---- what each kind tells ----

LIST: list[Any] = [3, 1, 2]
DICT: dict[Any, Any] = {"k": 1}
THING = Thing()
NUMBER = 1234567
OTHER = 7654321
TEXT = "some text"


def one(func: Callable[..., Any], *args: Any, kind: str) -> tuple[Any, ...]:
    """The only event of a kind, without its name."""
    events = told(func, *args, kinds=kind)
    assert len(events) == 1, events
    return events[0][1:]


def target(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def test_attributes() -> None:
    assert one(lambda x: x.own, THING, kind="ATTR") == ("own", THING)
    assert one(lambda x: x.method(), THING, kind="ATTR") == ("method", THING)

    def absent(x: Any) -> Any:
        try:
            return x.absent
        except AttributeError:
            return None

    assert one(absent, THING, kind="ATTR") == ("absent", THING)

    def store(x: Any, v: Any) -> None:
        x.stored = v

    def delete(x: Any) -> None:
        del x.stored

    assert one(store, THING, NUMBER, kind="STORE_ATTR") == ("stored", NUMBER, THING)
    assert one(delete, THING, kind="DELETE_ATTR") == ("stored", THING)


class Parent:
    def who(self) -> str:
        return "parent"


class Heir(Parent):
    def who(self) -> str:
        return super().who() + "!"


def test_super() -> None:
    heir = Heir()
    events = told(lambda x: x.who(), heir, kinds="ATTR SUPER_ATTR")
    if HAS_SLICES:
        assert ("SUPER_ATTR", "who", super, Heir, heir) in events
    else:
        assert [(e[1], type(e[2])) for e in events if type(e[2]) is super] == [("who", super)]


def test_globals() -> None:
    assert one(lambda: MODULE_VALUE, kind="GLOBAL") == ("MODULE_VALUE", globals(), __builtins__dict())
    global WRITTEN

    def write() -> None:
        global WRITTEN
        WRITTEN = 3
        del WRITTEN

    assert told(write, kinds="STORE_GLOBAL DELETE_GLOBAL") == [
        ("STORE_GLOBAL", "WRITTEN", globals(), 3),
        ("DELETE_GLOBAL", "WRITTEN", globals()),
    ]


WRITTEN = 0


def __builtins__dict() -> Any:
    import builtins

    return builtins.__dict__


def test_cells() -> None:
    value = 5

    def read() -> Any:
        return value, value

    def write() -> None:
        nonlocal value
        value = 6
        del value

    for func in (read, write):
        assert func.__closure__ is not None
        notes = Notes(kinds="DEREF STORE_DEREF DELETE_DEREF")
        cell = func.__closure__[0]
        notes.watcher.know(cell)
        notes.run(func)
        if func is read:
            assert notes.events == [("DEREF", "value", cell)]  # once
        else:
            assert notes.events == [("STORE_DEREF", "value", cell, 6), ("DELETE_DEREF", "value", cell)]
        unknown = Notes(kinds="DEREF STORE_DEREF DELETE_DEREF")
        value = 5
        unknown.run(func)
        assert unknown.events == []
    value = 5


def test_items() -> None:
    assert one(lambda x: x[0], LIST, kind="SUBSCR") == (None, LIST, 0)

    def store(x: Any, v: Any) -> None:
        x["n"] = v

    def delete(x: Any) -> None:
        del x["n"]

    assert one(store, DICT, NUMBER, kind="STORE_SUBSCR") == (None, NUMBER, DICT, "n")
    assert one(delete, DICT, kind="DELETE_SUBSCR") == (None, DICT, "n")


def test_slices() -> None:
    def get(x: Any) -> Any:
        return x[0:2]

    def put(x: Any, v: Any) -> None:
        x[0:0] = v

    if HAS_SLICES:
        assert one(get, LIST, kind="SLICE") == (None, LIST, 0, 2)
        assert one(put, LIST, (), kind="STORE_SLICE") == (None, (), LIST, 0, 0)
    else:
        assert one(get, LIST, kind="SUBSCR") == (None, LIST, slice(0, 2))
        assert one(put, LIST, (), kind="STORE_SUBSCR") == (None, (), LIST, slice(0, 0))


def test_operators() -> None:
    for symbol in ("+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^"):
        size = 3 if symbol in ("<<", "**") else NUMBER
        func = eval(f"lambda x: x {symbol} 2")
        assert one(func, size, kind="BINARY") == (symbol, size, 2)
        space: dict[str, Any] = {}
        exec(f"def inplace(x):\n    x {symbol}= 2\n    return x", space)
        assert one(space["inplace"], size, kind="BINARY") == (symbol + "=", size, 2)
    for symbol in ("<", "<=", "==", "!=", ">", ">="):
        func = eval(f"lambda x, y: x {symbol} y")
        assert one(func, NUMBER, OTHER, kind="COMPARE") == (symbol, NUMBER, OTHER)
    for symbol in ("-", "+", "~"):
        assert one(eval(f"lambda x: {symbol}x"), NUMBER, kind="UNARY") == (symbol, NUMBER)


def test_membership_and_identity() -> None:
    assert one(lambda x: 3 in x, LIST, kind="CONTAINS") == (False, 3, LIST)
    assert one(lambda x: 3 not in x, LIST, kind="CONTAINS") == (True, 3, LIST)
    assert one(lambda x, y: x is y, LIST, DICT, kind="IS") == (False, LIST, DICT)
    assert one(lambda x, y: x is not y, LIST, DICT, kind="IS") == (True, LIST, DICT)
    assert one(lambda x: 1 if x is None else 2, LIST, kind="IS")[1:] == (LIST, None)
    assert one(lambda x: 1 if x is not None else 2, LIST, kind="IS")[1:] == (LIST, None)


def test_truth() -> None:
    def loop(x: Any) -> Any:
        while x:
            break

    for func in (
        lambda x: 1 if x else 2,
        lambda x: 2 if not x else 1,
        lambda x: not x,
        lambda x: x and 1,
        lambda x: x or 1,
        loop,
    ):
        assert one(func, LIST, kind="TRUTH")[1:] == (LIST,)
    for constant in (True, False, None):
        assert told(lambda x: 1 if x else 2, constant, kinds="TRUTH") == []


class Compared:
    def __lt__(self, other: Any) -> Any:
        return LIST


def test_truth_of_a_comparison() -> None:
    """3.13 asks for it inside COMPARE_OP."""
    notes = Notes(kinds="COMPARE TRUTH")
    notes.watcher.know(LIST)
    compared = Compared()
    notes.watcher.know(compared)
    assert notes.run(lambda x: 1 if x < 3 else 2, compared) == 1
    assert notes.events == [("COMPARE", "<", compared, 3), ("TRUTH", None, LIST)]


def test_iteration() -> None:
    def loop(x: Any) -> None:
        for _ in x:
            pass

    def delegate(x: Any) -> Any:
        yield from x

    iterator = iter(LIST)
    assert one(loop, LIST, kind="ITER") == (None, LIST)
    assert len(told(loop, iterator, kinds="NEXT")) == len(LIST) + 1
    # what is extended is told as well, and has been by now
    assert one(lambda x: [*x], LIST, kind="EXTEND") == (None, LIST, LIST)
    assert one(lambda x: {*x}, LIST, kind="EXTEND") == (None, set(LIST), LIST)
    assert one(lambda x: {**x}, DICT, kind="EXTEND") == (None, DICT, DICT)
    assert one(lambda x: dict(a=1, **x), DICT, kind="EXTEND") == (None, {"a": 1, **DICT}, DICT)

    def drive(x: Any) -> Any:
        return list(delegate(x))

    events = told(drive, LIST, kinds="ITER NEXT")
    assert ("ITER", None, LIST) in events


def test_unpacking() -> None:
    def exact(x: Any) -> Any:
        a, b, c = x
        return a

    def starred(x: Any) -> Any:
        a, *b, c = x
        return b

    assert one(exact, LIST, kind="UNPACK") == (3, LIST)
    assert one(starred, LIST, kind="UNPACK") == ((1, 1), LIST)


def test_hashing() -> None:
    key = Thing()
    assert one(lambda x: {x, 1}, key, kind="HASH") == (None, key, 1)
    assert one(lambda x: {x: 1, 2: 3}, key, kind="HASH") == (None, key, 2)
    assert one(lambda x: {x for _ in (1,)}, key, kind="INSERT") == (None, {key}, key)
    assert one(lambda x: {x: 1 for _ in (1,)}, key, kind="INSERT") == (None, {key: 1}, key)
    assert not told(lambda x: [x for _ in (1,)], key, kinds="INSERT")  # into a fresh list goes anything


def test_with() -> None:
    manager = Manager()

    def enter(x: Any) -> None:
        with x:
            raise KeyError

    notes = Notes(kinds="WITH WITH_EXIT")
    notes.watcher.know(manager)
    notes.run(enter, manager)
    # the bound __exit__ is a fresh object, but what it is bound to need not be
    assert notes.events == [("WITH", None, manager), ("WITH_EXIT", None, manager.__exit__)]


def test_formatting() -> None:
    assert one(lambda x: f"{x}", NUMBER, kind="FORMAT") == (None, NUMBER)
    assert ("FORMAT", "r", NUMBER) in told(lambda x: f"{x!r}", NUMBER)
    assert ("FORMAT", None, NUMBER, ">9") in told(lambda x: f"{x:>9}", NUMBER)


def test_matching() -> None:
    def match(x: Any) -> Any:
        match x:
            case {"k": value}:
                return value
            case [a, _, c]:
                return a, c
            case Thing(own=value):
                return value

    assert [e[0] for e in told(match, DICT) if e[0].startswith("MATCH")][:1] == ["MATCH"]
    assert ("MATCH_KEYS", None, DICT, ("k",)) in told(match, DICT)
    assert told(match, LIST, kinds="MATCH") == [("MATCH", None, LIST)] * 3  # mapping, sequence, length
    assert ("MATCH_CLASS", None, THING, Thing, ("own",)) in told(match, THING)


def test_exceptions() -> None:
    error, cause = ValueError("e"), KeyError("c")

    def throw(x: Any, y: Any) -> Any:
        try:
            raise x from y
        except ValueError:
            return None

    events = told(throw, error, cause)
    assert ("RAISE", None, error, cause) in events
    assert ("EXC_MATCH", None, error, ValueError) in events


def test_imports() -> None:
    def load() -> Any:
        import os.path
        from os import sep

        return os.path, sep

    events = told(load, kinds="IMPORT_NAME IMPORT_FROM")
    import os

    assert events == [
        ("IMPORT_NAME", "os.path", globals(), 0, None),
        ("IMPORT_NAME", "os", globals(), 0, ("sep",)),
        ("IMPORT_FROM", "sep", os),
    ]


def test_class_statement() -> None:
    def make() -> Any:
        class C:
            pass

        return C

    assert one(make, kind="BUILD_CLASS") == (None, globals(), __builtins__dict())


def test_awaiting() -> None:
    class Awaitable:
        def __await__(self) -> Any:
            return iter(())

    awaitable = Awaitable()

    async def wait(x: Any) -> Any:
        return await x

    def drive(x: Any) -> None:
        try:
            wait(x).send(None)
        except StopIteration:
            pass

    assert ("AWAIT", None, awaitable) in told(drive, awaitable)


# ---- the probe ----


def test_a_probes_attributes() -> None:
    notes = Notes(kinds="BINARY CALL")

    def f(x: Any) -> Any:
        total = x + 1
        size = len(str(x))
        return total, size, x * 2

    notes.watcher.know(NUMBER)
    notes.run(f, NUMBER)
    code = f.__code__
    assert [(p.arg, p.stores, p.lineno - code.co_firstlineno, p.code is code) for p in notes.probes] == [
        ("+", "total", 1, True),
        (None, None, 2, True),
        (None, "size", 2, True),
        ("*", None, 3, True),
    ]
    import dis

    names = {i.offset: i.opname for i in dis.get_instructions(code)}
    assert [names[p.offset] for p in notes.probes] == ["BINARY_OP", "CALL", "CALL", "BINARY_OP"]
    assert notes.watcher.last_probe is not None
    assert "BINARY" in repr(notes.probes[0])
    assert notes.watcher.events >= notes.watcher.calls == 4
    for name in ("kind", "arg", "code", "stores", "home"):
        try:
            setattr(notes.probes[0], name, 1)
        except AttributeError:
            continue
        raise AssertionError(name)


def test_a_probe_checks_where_it_reads() -> None:
    code = target.__code__
    for arguments in (
        (n.BINARY, 1, 2, None, 0, code, None),  # deeper than the stack
        (-1, 2, 2, None, 0, code, None),
        (1000, 2, 2, None, 0, code, None),
        (n.CALL, 2, 2, None, 0, code, None),  # callable and arguments do not fit
        (n.CALL_EX, 5, 0, None, 0, code, None, 5),
        (n.DEREF, 0, 0, None, 0, code, None),  # no cell
        (n.HASH, 4, 3, None, 0, code, None, 4, 2),
    ):
        try:
            n.Probe(*arguments)
        except ValueError:
            continue
        raise AssertionError(arguments)


def test_a_probe_is_inert_outside_of_its_place() -> None:
    def deep(x: Any) -> Any:
        return [1, 2, 3, x + 1]

    def f(probe: Any) -> Any:
        return -probe

    notes = Notes(kinds="BINARY")
    notes.watcher.know(NUMBER)
    notes.run(deep, NUMBER)
    (probe,) = notes.probes
    assert probe.depth > 2
    assert -probe is None
    assert notes.run(f, probe) is None and notes.probes == [probe]

    def own(x: Any) -> Any:
        consts = sys._getframe().f_code.co_consts
        y = [x, x, x, x + 1]
        return [-c for c in consts if isinstance(c, n.Probe)] + [-consts[-1]] + y

    notes.run(own, NUMBER)
    additions = [
        event[1:] for event in notes.events if not isinstance(event[2], list)
    ]  # of lists: `own` adds those too
    assert additions[-1] == ("+", NUMBER, 1)


# ---- types ----


def test_type_versions() -> None:
    class T:
        pass

    first = n.type_version(T)
    assert first > 0 and n.type_version(T) == first and n.type_version(int) > 0
    T.new = 1
    assert n.type_version(T) not in (0, first)


def test_lookup_in_the_mro() -> None:
    assert n.mro_lookup(Heir, "who") is Heir.__dict__["who"]
    assert n.mro_lookup(bool, "real") is int.__dict__["real"]
    assert n.mro_lookup(int, "nothing") is n.MISSING
    assert "MISSING" in repr(n.MISSING)
