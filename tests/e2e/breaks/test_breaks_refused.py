"""`fullgraph=True`: a break raises, before the function has had effects where that can be known; else it says so."""

from __future__ import annotations

import pytest
import torch
from harness import rand

import stator
from stator.errors import GraphBreakError


def tried(compiled, *args):
    with pytest.raises(GraphBreakError) as raised:
        compiled(*args)
    return raised.value.has_run, str(raised.value).splitlines()[0].partition(" (")[2]


RAN = (True, "the call has run; its effects stand):")
NOT_RUN = (False, "nothing of the call has run):")


def test_the_second_call_has_no_effects(capsys):
    log = []

    def fn(x, n):
        log.append(n)
        y = x + n
        print("told")
        return y * 2

    compiled = stator.compile(fn, backend="eager", fullgraph=True)
    assert tried(compiled, rand(1), 1) == RAN
    for seed in (2, 3):
        assert tried(compiled, rand(seed), 1) == NOT_RUN
    assert (log, capsys.readouterr().out) == ([1], "told\n")
    assert tried(compiled, rand(4), 2) == RAN  # another number may lead past the break: nobody knows before
    assert tried(compiled, rand(5), 2) == NOT_RUN
    assert log == [1, 2]


def test_a_break_below_c_code():
    log = []

    def key(value):
        print(value)
        return value

    def fn(x):
        log.append(1)
        return x * sorted([3, 1, 2], key=key)[0]

    compiled = stator.compile(fn, backend="eager", fullgraph=True)
    assert tried(compiled, rand(1)) == RAN
    for seed in (2, 3):
        assert tried(compiled, rand(seed)) == NOT_RUN
    assert log == [1]


def test_another_way_through_the_function_is_no_break():
    log = []

    def fn(x, loud):
        log.append(loud)
        if loud:
            print("loud")
        return x + 1

    compiled = stator.compile(fn, backend="eager", fullgraph=True)
    assert tried(compiled, rand(1), True) == RAN
    for seed in range(3):
        assert torch.equal(compiled(rand(seed), False), rand(seed) + 1)
    assert tried(compiled, rand(1), True) == NOT_RUN
    assert log == [True, False, False, False]
    assert (compiled.stator.recordings, compiled.stator.hits) == (2, 2)


def test_functions_that_are_suspended():
    started = []

    def numbers(x):
        started.append(1)
        yield x + 1

    async def later(x):
        started.append(1)
        return x

    for fn, kind in ((numbers, "generator"), (later, "coroutine")):
        compiled = stator.compile(fn, backend="eager", fullgraph=True)
        for seed in range(3):
            with pytest.raises(GraphBreakError, match=f"is a {kind} function"):
                compiled(rand(seed))
        with stator.set_stance("force_eager"):
            compiled(rand(0)).close()
        stator.compile(fn, backend="eager")(rand(0)).close()
    assert started == []
    assert torch.equal(next(stator.compile(numbers, backend="eager")(rand(1))), rand(1) + 1)
