"""The ledger's table and its shortcuts, without torch: what is noted of a read, and when they stand back."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stator import _native as n

# The package is not imported here: these run on CPythons without torch.
_CODES = importlib.util.spec_from_file_location(
    "guard_codes", Path(__file__).parents[2] / "src" / "stator" / "guard_codes.py"
)
assert _CODES is not None and _CODES.loader is not None
guard_codes = importlib.util.module_from_spec(_CODES)
_CODES.loader.exec_module(guard_codes)
Edge, Fact = guard_codes.Edge, guard_codes.Fact
ABSENT, IN_CLASS, REGISTERED = range(3)


class Check(NamedTuple):
    fact: Any
    expected: Any
    place: Any


@contextlib.contextmanager
def raises(kind: type[BaseException]) -> Iterator[None]:
    """(These tests run without pytest, too.)"""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def kind_of(value: Any) -> Any:
    """Numbers and text are constants by value, classes by identity, tuples by what is in them."""
    if isinstance(value, tuple):
        return Fact.EQUAL if all(kind_of(item) for item in value) else None
    return Fact.EQUAL if isinstance(value, (int, str)) else Fact.IS if isinstance(value, type) else None


def make(**changes: Any) -> n.Ledger:
    ignore = lambda *args: None  # noqa: E731
    watcher = n.Watcher(
        {}, enter=ignore, classify=ignore, leaf=ignore, blind=ignore, foreign=ignore, failed=None, transparent=None
    )
    given: dict[str, Any] = {
        "check": Check,
        "edges": tuple(sorted(Edge)),
        "facts": tuple(sorted(Fact)),
        "kinds": {tuple: NotImplemented},
        "ask_kind": kind_of,
        "ask_value": lambda value: (int, int(value)),
    }
    return n.Ledger(watcher, **{**given, **changes})


def facts(origin: n.Origin) -> list[tuple[str, Any]]:
    return [(check.fact.name, check.expected) for check in origin.checks]


class Thing:
    pass


class Part:
    """Has what a module has."""

    def __init__(self, **parts: Any) -> None:
        self._parameters: dict[str, Any] = {}
        self._buffers: dict[str, Any] = {}
        self._modules = parts
        self._backward_hooks: dict[str, Any] = {}
        self._backward_pre_hooks: dict[str, Any] = {}
        self._forward_hooks: dict[str, Any] = {}
        self._forward_pre_hooks: dict[str, Any] = {}


def test_objects_are_known_by_identity() -> None:
    ledger, thing = make(), Thing()
    origin = ledger.local(0, "x", thing)
    assert ledger.find(thing) is origin and ledger.find(Thing()) is None
    assert (origin.index, origin.edge, origin.parent, origin.key) == (0, Edge.LOCAL, None, (0, "x"))
    assert origin.checks == [] and ledger.alive == [thing]


def test_an_object_reached_twice_is_the_same() -> None:
    ledger, thing = make(), Thing()
    first = ledger.local(0, "x", thing)
    second = ledger.local(1, "y", thing)
    assert ledger.find(thing) is first and facts(second) == [("SAME", 0)]


def test_constants_are_checked_and_only_objects_are_known() -> None:
    ledger = make()
    assert facts(ledger.local(0, "x", 5)) == [("EQUAL", 5)]
    assert facts(ledger.local(1, "y", Thing)) == [("IS", Thing)]
    assert ledger.find(5) is None and ledger.find(Thing) is not None


def test_some_types_are_asked_about_every_time() -> None:
    ledger = make()
    assert facts(ledger.local(0, "x", (1, 2))) == [("EQUAL", (1, 2))]
    assert facts(ledger.local(1, "y", (1, Thing()))) == []
    assert facts(ledger.local(2, "z", ("a",))) == [("EQUAL", ("a",))]


def test_a_child_is_noted_once_with_the_value_it_had() -> None:
    ledger = make()
    parent = ledger.local(0, "x", {})
    child = ledger.read(parent, Edge.ITEM, "k", 1)
    assert ledger.read(parent, Edge.ITEM, "k", 2) is child and facts(child) == [("EQUAL", 1)]
    assert child.parent is parent and ledger.read(parent, Edge.ATTR, "k", 1) is not child
    assert [origin.index for origin in ledger.origins] == [0, 1, 2]


def test_a_type_is_checked_once_and_the_value_of_a_subclass_with_it() -> None:
    ledger, thing = make(), Thing()
    origin = ledger.local(0, "x", thing)
    ledger.touch(origin, thing)
    ledger.touch(origin, thing)
    assert facts(origin) == [("TYPE", Thing)]
    other = ledger.constant(True)
    ledger.touch(other, True)
    assert facts(other) == [("TYPE", bool), ("VALUE", (int, 1))]


def test_constants_are_known_from_the_first_time() -> None:
    ledger, thing = make(), Thing()
    origin = ledger.constant(thing)
    assert ledger.constant(thing) is origin is ledger.find(thing)
    assert origin.edge is Edge.CONST and origin.key is thing and origin.checks == []


def test_many_objects() -> None:
    ledger, things = make(), [Thing() for _ in range(5000)]
    origins = [ledger.local(i, "x", thing) for i, thing in enumerate(things)]
    assert all(ledger.find(thing) is origin for thing, origin in zip(things, origins, strict=True))


def test_the_place_goes_into_origins_and_checks() -> None:
    ledger = make()
    ledger.place = "here"  # type: ignore[assignment]
    origin = ledger.local(0, "x", 1)
    assert origin.place == "here" and origin.checks[0].place == "here"
    del ledger.place
    assert ledger.local(1, "y", 1).checks[0].place is None


def test_a_mistake_is_told() -> None:
    ledger = make()
    origin = ledger.local(0, "x", {})
    with raises(TypeError):
        ledger.read(origin, 3, "k", 1)  # type: ignore[arg-type]  # a number that equals an edge
    with raises(TypeError):
        ledger.read("x", Edge.ITEM, "k", 1)  # type: ignore[arg-type]
    with raises(TypeError):
        ledger.touch(origin)  # type: ignore[call-arg]
    with raises(TypeError):
        make(check=list)
    with raises(ValueError):
        make(edges=())
    with raises(TypeError):
        n.Origin()
    with raises(ZeroDivisionError):
        make(ask_kind=lambda value: 1 // 0).local(0, "x", 1)
    with raises(RuntimeError):
        n.Ledger.__new__(n.Ledger).local(0, "x", 1)


def test_a_key_that_cannot_be_hashed_is_told() -> None:
    ledger = make()
    with raises(TypeError):
        ledger.read(ledger.local(0, "x", {}), Edge.ITEM, [], 1)


def test_a_closed_ledger_holds_nothing() -> None:
    ledger, thing = make(), Thing()
    thing.__dict__["me"] = thing
    origin = ledger.local(0, "x", thing)
    ledger.plans[Thing] = {"me": ABSENT}
    assert ledger.read_attribute(thing, "me")
    alive = weakref.ref(thing)
    child = ledger.origins[-1]
    ledger.close()
    assert ledger.find(thing) is None and child.parent is not None
    with raises(RuntimeError):
        ledger.local(0, "y", 1)
    with raises(RuntimeError):
        ledger.note_change(thing)
    del thing.__dict__["me"], thing, ledger
    assert alive() is None and origin.index == 0  # without the collector


def test_it_cannot_be_closed_from_within() -> None:
    ledgers: list[n.Ledger] = []
    ledgers.append(make(ask_kind=lambda value: ledgers[0].close()))
    with raises(RuntimeError):
        ledgers[0].local(0, "x", 1)
    ledgers[0].close()


def test_the_collector_frees_a_ledger_that_was_left_open() -> None:
    ledger, thing = make(), Thing()
    ledger.local(0, "x", thing)
    alive = weakref.ref(thing)
    del ledger, thing
    gc.collect()
    assert alive() is None


def test_long_chains_of_origins_are_freed() -> None:
    ledger = make()
    origin = ledger.local(0, "x", {})
    for depth in range(100_000):
        origin = ledger.read(origin, Edge.ITEM, depth, {})
    ledger.close()
    del ledger, origin


def test_edges_and_facts_are_those_of_recordings() -> None:
    if importlib.util.find_spec("stator.recording") is None:  # the native layer alone
        return
    from stator import recording

    assert [(edge.name, edge.value) for edge in recording.Edge] == [(edge.name, edge.value) for edge in Edge]
    assert {fact.name: fact.value for fact in recording.Fact} == {fact.name: fact.value for fact in Fact}


# -- shortcuts


def test_no_plan_no_shortcut() -> None:
    ledger, thing = make(), Thing()
    ledger.local(0, "x", thing)
    assert not ledger.read_attribute(thing, "a") and not ledger.read_attribute(Thing(), "a")
    assert len(ledger.origins) == 1


def test_an_instance_attribute() -> None:
    ledger, thing = make(), Thing()
    thing.__dict__["a"] = 7
    origin = ledger.local(0, "x", thing)
    ledger.plans[Thing] = {"a": ABSENT}
    assert ledger.read_attribute(thing, "a") and ledger.read_attribute(thing, "a")
    _, space, value = ledger.origins
    assert facts(origin) == [("TYPE", Thing)] and facts(space) == [("TYPE", dict)] and facts(value) == [("EQUAL", 7)]
    assert (space.edge, space.key, value.edge, value.key) == (Edge.ATTR, "__dict__", Edge.ITEM, "a")
    assert value.parent is space and space.parent is origin


def test_an_attribute_of_the_class() -> None:
    ledger, thing = make(), Thing()
    ledger.local(0, "x", thing)
    ledger.plans[Thing] = {"a": IN_CLASS, "b": ABSENT}
    assert ledger.read_attribute(thing, "a") and facts(ledger.origins[1])[1:] == [("LACKS", "a")]
    assert not ledger.read_attribute(thing, "b")  # the handler has more to say


def test_an_object_without_a_dict() -> None:
    class Slotted:
        __slots__ = ("a",)

    ledger, thing = make(), Slotted()
    ledger.local(0, "x", thing)
    ledger.plans[Slotted] = {"a": IN_CLASS}
    assert not ledger.read_attribute(thing, "a")


def test_a_part_of_a_module() -> None:
    ledger, inner = make(), Thing()
    part = Part(inner=inner)
    ledger.local(0, "x", part)
    ledger.plans[Part] = {"inner": REGISTERED}
    assert ledger.read_attribute(part, "inner")
    by_key = {origin.key: origin for origin in ledger.origins}
    assert ("LACKS", "inner") in facts(by_key["__dict__"])
    assert facts(by_key["_parameters"])[1:] == facts(by_key["_buffers"])[1:] == [("LACKS", "inner")]
    assert by_key["inner"].parent is by_key["_modules"] and ledger.find(inner) is by_key["inner"]


def test_what_the_program_changed_is_left_to_the_handler() -> None:
    for changed in ("__dict__", "_parameters", "_buffers", "_modules"):
        ledger = make()
        part = Part(inner=Thing())
        ledger.local(0, "x", part)
        ledger.plans[Part] = {"inner": REGISTERED}
        ledger.note_change(getattr(part, changed))
        assert not ledger.read_attribute(part, "inner") and not ledger.read_registered(part, "inner")


def test_a_module_with_other_tables_is_left_to_the_handler() -> None:
    class Table(dict[str, Any]):
        pass

    ledger, part = make(), Part()
    part._modules = Table()
    ledger.local(0, "x", part)
    assert not ledger.read_registered(part, "inner")
    del part._modules
    assert not ledger.read_registered(part, "inner") and not ledger.read_registered(Part(), "inner")


def test_an_error_in_a_comparison_is_told() -> None:
    class Key(str):
        def __eq__(self, other: object) -> bool:
            raise ZeroDivisionError

        __hash__ = str.__hash__

    ledger, thing = make(), Thing()
    thing.__dict__[Key("a")] = 1
    ledger.local(0, "x", thing)
    ledger.plans[Thing] = {"a": IN_CLASS}
    with raises(ZeroDivisionError):
        ledger.read_attribute(thing, "a")


def test_references_are_balanced() -> None:
    thing, part = Thing(), Part(inner=Thing())
    thing.__dict__["a"] = part
    watched = (thing, part, part._modules, thing.__dict__, Check, None)
    for _ in range(3):  # the first round may fill caches
        before = [sys.getrefcount(value) for value in watched[:-1]]
        for _ in range(20):
            ledger = make()
            ledger.local(0, "x", thing)
            ledger.plans.update({Thing: {"a": ABSENT}, Part: {"inner": REGISTERED}})
            assert ledger.read_attribute(thing, "a") and ledger.read_attribute(part, "inner")
            ledger.close()
        del ledger
    assert [sys.getrefcount(value) for value in watched[:-1]] == before
