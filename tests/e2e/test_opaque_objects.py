"""Objects of C types whose contents only C code reads: cells, aliases of generic types, unions, wrappers."""

from __future__ import annotations

import types

import pytest
from harness import World, check, rand


def first():
    return None


def second():
    return 1


def closure_of(value):
    return (lambda: value).__closure__


class Thing:
    def get(self):
        return 1


ONE, OTHER, ITEMS = Thing(), Thing(), [1, 2]
PROPERTY, STATIC = property(first), staticmethod(first)
READS = {
    "alias, compared": (lambda v: v == list[int], lambda: list[int], lambda: list[str]),
    "alias, as text": (lambda v: str(v) == "list[int]", lambda: list[int], lambda: list[str]),
    "union, asked": (lambda v: isinstance(1, v), lambda: int | None, lambda: str | None),
    "union, compared": (lambda v: v == (int | None), lambda: int | None, lambda: str | None),
    "cell, compared": (lambda v: v == types.CellType(1), lambda: types.CellType(1), lambda: types.CellType(2)),
    "cell in a tuple": (lambda v: (v,) == (types.CellType(1),), lambda: types.CellType(1), lambda: types.CellType(2)),
    "closure": (lambda v: v == closure_of(1), lambda: closure_of(1), lambda: closure_of(2)),
    "property": (lambda v: v == PROPERTY, lambda: PROPERTY, lambda: property(second)),
    "static method": (lambda v: v == STATIC, lambda: STATIC, lambda: staticmethod(second)),
    "static method, called": (lambda v: v() is None, lambda: staticmethod(first), lambda: staticmethod(second)),
    "bound method": (lambda v: v == ONE.get, lambda: ONE.get, lambda: OTHER.get),
    "method of a list": (lambda v: v == ITEMS.count, lambda: ITEMS.count, lambda: ITEMS.index),
    "bound operator": (lambda v: v == (3).__add__, lambda: (3).__add__, lambda: (4).__add__),
}


@pytest.mark.parametrize("name", READS)
def test_another_object_is_noticed(name):
    read, before, after = READS[name]

    def world():
        state = types.SimpleNamespace(value=before())
        return World(fn=lambda x: x * 2 if read(state.value) else x * 3, state=state)

    def changed(w):
        w.state.value = after()
        return w.fn(rand(3))

    calls = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), changed, lambda w: w.fn(rand(4))]
    check(world, calls, expect=None, observe=lambda w: None)


def test_what_a_cell_holds_changes():
    def world():
        cell, other = closure_of(1)[0], closure_of(1)[0]
        return World(fn=lambda x: x * 2 if cell == other else x * 3, held=[cell.cell_contents], change=cell)

    def changed(w):
        w.change.cell_contents = 5
        return w.fn(rand(3))

    calls = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), changed, lambda w: w.fn(rand(4))]
    check(world, calls, expect=None)
