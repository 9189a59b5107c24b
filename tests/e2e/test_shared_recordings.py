"""Functions of one code object share their recordings: a closure that is made again need not be recorded again."""

from __future__ import annotations

import gc

import torch
from harness import rand

import stator


def adder(amount):
    def add(x):
        return x + amount

    return add


def test_closures_made_again_are_replayed() -> None:
    first, second, third = (stator.compile(adder(amount), backend="eager") for amount in (1.0, 1.0, 2.0))
    x = rand(1)
    for compiled, amount in ((first, 1.0), (second, 1.0), (third, 2.0), (second, 1.0), (third, 2.0)):
        assert torch.equal(compiled(x), x + amount)
    assert [c.stator.recordings for c in (first, second, third)] == [1, 0, 1]
    assert [c.stator.hits for c in (first, second, third)] == [0, 2, 1]
    assert len(first.stator.entries) == 2


def test_another_backend_or_option_is_another_cache() -> None:
    seen = []

    def backend(gm, example_inputs):
        seen.append(gm)
        return gm.forward

    function = adder(3.0)
    ways = [{"backend": "eager"}, {"backend": backend}, {"backend": "eager", "options": {"cache_size_limit": 2}}]
    for way in ways:
        compiled = stator.compile(function, **way)
        for seed in range(3):
            assert torch.equal(compiled(rand(seed)), rand(seed) + 3.0)
        assert (compiled.stator.recordings, compiled.stator.hits) == (1, 2)
    assert len(seen) == 1


def test_recordings_die_with_the_last_function() -> None:
    compiled = stator.compile(adder(4.0), backend="eager")
    for seed in range(2):
        compiled(rand(seed))
    del compiled
    gc.collect()
    again = stator.compile(adder(4.0), backend="eager")
    for seed in range(3):
        assert torch.equal(again(rand(seed)), rand(seed) + 4.0)
    assert (again.stator.recordings, again.stator.hits) == (1, 2)
