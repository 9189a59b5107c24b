"""Containers with many items: the time that a recording takes grows as they do, and there is an end to it."""

from __future__ import annotations

import collections
import types
import weakref

import pytest
import torch
from harness import World, check, rand

import stator
from stator.watch.finish import side_effects
from stator.watch.objects import containers


class Thing:
    pass


def _sift(heap):
    """As `heapq` does it in Python: compares and moves one item at a time."""
    for start in reversed(range(len(heap) // 2)):
        place = start
        while 2 * place + 1 < len(heap):
            child = 2 * place + 1
            if child + 1 < len(heap) and heap[child + 1] < heap[child]:
                child += 1
            if heap[place] <= heap[child]:
                break
            heap[place], heap[child] = heap[child], heap[place]
            place = child


@pytest.mark.parametrize("count", [500, 4000])
def test_changing_one_place_after_the_other_looks_at_that_place(monkeypatch, count):
    looked, moves = [], []

    def fn(x, heap):
        _sift(heap)
        return x + heap[0]

    class Counting(list):
        def __setitem__(self, place, value):
            moves.append(place)
            super().__setitem__(place, value)

    heap = [(n * 7919) % count for n in range(count)]
    _sift(wanted := Counting(heap))
    plain = containers.let_go
    monkeypatch.setattr(containers, "let_go", lambda value: looked.append(value) or plain(value))
    compiled = stator.compile(fn, backend="eager")
    for seed in range(3):
        given = heap.copy()
        assert torch.equal(compiled(rand(seed), given), rand(seed) + wanted[0]) and given == wanted
    assert compiled.stator.hits == 2
    assert 0 < len(looked) <= len(moves)


CHANGES = {
    "set": lambda items: items.__setitem__(1, 5),
    "set from the end": lambda items: items.__setitem__(-1, 5),
    "delete": lambda items: items.__delitem__(0),
    "pop": lambda items: items.pop(),
    "pop the first": lambda items: items.pop(0) if type(items) is list else items.popleft(),
    "insert": lambda items: items.insert(1, 7),
    "reverse": lambda items: items.reverse(),
    "append": lambda items: items.append(8),
    "extend": lambda items: items.extend([8, 9]),
    "out of range": lambda items: items.__setitem__(100, 5),
}


def _change(items, how):
    try:
        CHANGES[how](items)
    except IndexError as error:
        return str(error)
    return None


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("kind", [list, collections.deque, lambda items: collections.deque(items, 3)])
def test_what_a_change_lets_go_of_dies_when_it_should(kind, how):
    """Each of the three items is watched by a weak reference, and may be the one that goes."""

    def world():
        things = kind([Thing() for _ in range(3)])
        refs = [weakref.ref(thing) for thing in things]

        @stator.disable
        def alive():
            return [ref() is not None for ref in refs]

        def fn(x, items):
            told = _change(items, how)
            return told, alive(), len(items), x + 1

        def call(w):
            result = w.fn(rand(1), things)
            things.clear()
            things.extend(Thing() for _ in range(3))
            refs[:] = [weakref.ref(thing) for thing in things]
            return result

        return World(fn=fn, call=call)

    check(world, [lambda w: w.call(w)] * 4, expect=None)


@pytest.mark.parametrize("how", [sum, max, lambda items: sum(n for n in items), lambda items: items[3] + len(items)])
def test_there_is_an_end_to_what_is_guarded(how):
    many = list(range(150_000))

    def fn(x, items):
        y = x + 1
        return how(items) * y

    def world():
        return World(fn=fn, items=many.copy())

    def changed(w):
        w.items[3] = 200_000
        return w.fn(rand(3), w.items)

    calls = [lambda w: w.fn(rand(1), w.items), lambda w: w.fn(rand(2), w.items), changed, changed]
    check(world, calls, expect=None, observe=lambda w: None, unreplayed=["outside-iterator", "too-many-guards"])


def test_the_end_is_told():
    def fn(x, items):
        return x + sum(items)

    many = list(range(150_000))
    compiled = stator.compile(fn, backend="eager")
    for seed in range(3):
        many[0] = seed
        assert torch.equal(compiled(rand(seed), many), rand(seed) + sum(many))
    assert [why.id for why in compiled.stator.break_reasons] == ["too-many-guards"]
    assert "a list of 150,000 items" in str(compiled.stator.break_reasons[0])


def test_many_numbers_that_change():
    """They are constants of a recording: nobody makes a symbol of each."""

    def fn(x, items):
        return x + max(items)

    compiled = stator.compile(fn, backend="eager")
    for seed in range(5):
        items = [float(n * 31 % 5003 + seed) for n in range(5000)]
        assert torch.equal(compiled(rand(seed), items), rand(seed) + max(items))
    assert all(not entry.symbolic for entry in compiled.stator.entries)


def test_constants_of_fifty_megabytes_and_a_dict_with_a_million_keys():
    """They are compared by identity while they are the same, and looked up by their hashes; what changes is noticed."""
    state = types.SimpleNamespace(text="x" * 50_000_000, data=b"y" * 50_000_000, number=1 << 400_000_000)
    table = dict.fromkeys(range(1_000_000), 2)

    def fn(x, key):
        there = 3 if table.get(key) is None else table[key]
        return x * there + len(state.text) % 7 + state.data[-1] + state.number.bit_length() % 5

    fast = stator.compile(fn, backend="eager", dynamic=False)
    for turn in range(4):
        table[0] = turn  # other versions, same keys
        assert torch.equal(fast(rand(turn), -5), fn(rand(turn), -5))
        assert torch.equal(fast(rand(turn), 999_999), fn(rand(turn), 999_999))
    assert (fast.stator.recordings, fast.stator.hits) == (2, 6)
    table[-5] = 7
    state.text = "x" * 50_000_003
    for seed in range(3):
        assert torch.equal(fast(rand(seed), -5), fn(rand(seed), -5))
    assert (fast.stator.recordings, fast.stator.hits) == (3, 8)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.Counter])
def test_one_key_of_many_is_written(kind, monkeypatch):
    """C code alone compares the others with what they were."""
    compared = []
    is_key = side_effects._is_key
    monkeypatch.setattr(side_effects, "_is_key", lambda *keys: compared.append(1) or is_key(*keys))

    def world():
        return World(fn=lambda x, w: write(x, w), table=kind({f"k{n}": n for n in range(500)}))

    def write(x, w):
        w.table["k5"] = w.table["k7"] + 1
        w.table["new"] = 3
        return x + w.table["k5"]

    def moved(w):
        w.table["k7"] = w.table.pop("k7") + 5
        return w.fn(rand(3), w)

    def run(w):
        return w.fn(rand(1), w), list(w.table), list(w.table.values())[:9]

    check(world, [run, run, moved, run, run], expect=None)
    assert not compared
