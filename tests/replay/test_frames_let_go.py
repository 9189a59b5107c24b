"""Frames of callers, and what they have, die when they end: what is ours keeps no cycle with an exception in it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import stator
from stator import _native, interrupts


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Held:
    pass


def test_a_lookup_that_misses_lets_go_of_its_callers() -> None:
    other = stator.compile(lambda x, n: x * n, backend="eager")
    for n in (0.5, 1.5, 2.5):  # the first number that changes has modules imported, one of which keeps frames
        other(torch.ones(3), n)

    @stator.compile(backend="eager")
    def fn(x: torch.Tensor, items: list[Any]) -> torch.Tensor:
        if len(items) > 1:
            return x * items[1]["n"].real
        return x * 3

    left = []

    def call(items: list[Any], seed: int) -> torch.Tensor:
        held = Held()
        left.append(weakref.ref(held))
        x = torch.full((3,), float(seed))
        assert torch.equal(fn(x, items), x * (items[1]["n"] if len(items) > 1 else 3))
        assert held is not None
        return x

    for seed, items in enumerate([[1, {"n": 2.5}], [1], [1, {"n": 2.5}], [1], [1, {"n": 3.5}], [1, {}, 2], [1]]):
        if len(items) == 3:
            with pytest.raises(KeyError):
                fn(torch.ones(3), items)
        else:
            call(items, seed)
    assert [ref() for ref in left] == [None] * 6
    assert fn.stator.recordings >= 2 and fn.stator.hits >= 2


def test_who_looks_at_a_frame_leaves_nothing_there() -> None:
    def raises(held: Any) -> None:
        try:
            raise ValueError
        except ValueError as error:
            interrupts.let_through(error)

    held = Held()
    ref = weakref.ref(held)
    raises(held)
    del held
    assert ref() is None


def test_arguments_of_a_frame() -> None:
    def look(*more: Any, **named: Any) -> list[bool]:
        frame = sys._getframe()
        return [_native.frame_takes(frame, value) for value in objects]

    def inner(first: Any, second: Any = None) -> Any:
        frame = sys._getframe()
        found = [_native.frame_takes(frame, value) for value in objects]
        return found, lambda: first  # lives in a cell

    objects = [Held(), Held(), Held()]
    assert look(objects[1], objects[2]) == [False, True, True]
    assert look(n=objects[0]) == [False, False, False]
    assert inner(objects[0])[0] == [True, False, False]
    with pytest.raises(TypeError, match="takes a frame"):
        _native.frame_takes(objects[0], objects[1])  # type: ignore[arg-type]
