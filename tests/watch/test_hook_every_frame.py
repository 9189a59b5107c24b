"""No frame is missed, however CPython's specialised instructions get there."""

from __future__ import annotations

import gc
import itertools
from typing import Any

from watching import Notes, fresh_code

from stator import _native as n


def kinds(**by_name: tuple[int, object, bool]) -> Any:
    return lambda code: by_name.get(code.co_name)


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
