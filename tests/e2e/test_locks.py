"""`with lock:` in a compiled function: the replay holds the lock, and does nothing that the program would not do
under it."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from harness import RECORDED, World, check, rand

import stator

CALLS = [lambda w, s=s: w.fn(rand(s)) for s in range(5)]


def once():
    """Something that is done once, by whoever comes first."""
    state = World(lock=threading.Lock(), ready=False, done=[])

    def prepare(x):
        if state.ready:
            return
        with state.lock:
            if state.ready:
                return
            state.done.append(x.shape)
            state.ready = True

    def fn(x):
        prepare(x)
        return x * 2 + len(state.done)

    state.fn = fn
    return state


def again(seed):
    def run(w: World):
        w.ready = False
        return w.fn(rand(seed))

    return run


def test_what_is_done_once():
    calls = [*CALLS[:3], again(3), *CALLS[:2], again(4), CALLS[1]]
    seen = check(once, calls, expect=None, breaks=[])
    assert not seen.world.lock.locked() and len(seen.world.done) == 3


def test_every_call_takes_the_lock():
    def world():
        state = World(lock=threading.Lock(), seen=[], total=torch.zeros(4))

        def fn(x):
            y = x.sin()
            with state.lock:
                state.seen.append(x.shape)
                state.total.add_(y)
            return y + state.total

        state.fn = fn
        return state

    seen = check(world, CALLS, expect="miss hit hit hit hit", breaks=[])
    assert not seen.world.lock.locked()


def test_an_exception_under_the_lock():
    def world():
        state = World(lock=threading.Lock(), seen=[])

        def fn(x, fail):
            try:
                with state.lock:
                    state.seen.append(x.shape)
                    if fail:
                        raise ValueError("as asked")
            except ValueError:
                return x - 1
            return x + 1

        state.fn = fn
        return state

    calls = [lambda w, s=s: w.fn(rand(s), s % 2 == 1) for s in range(6)]
    seen = check(world, calls, expect="miss miss hit hit hit hit", breaks=[])
    assert not seen.world.lock.locked()


def test_what_raises_under_the_lock():
    def world():
        state = World(lock=threading.Lock(), seen=[])

        def fn(x):
            with state.lock:
                state.seen.append(x.shape)
                if x.sum() < 0:
                    raise ValueError("negative")
                return x.index_select(0, x.abs().long())

        state.fn = fn
        return state

    calls = [lambda w, v=v: w.fn(torch.full((3,), v)) for v in (0.5, 1.0, -1.0, 2.0, 7.0, 1.5)]
    seen = check(world, calls, expect=None, breaks=[], raises=(ValueError, IndexError, RuntimeError))
    assert not seen.world.lock.locked()


def two_after_another(a, b, x):
    with a:
        y = x * 2
    with b:
        return y + 1


def two_at_once(a, b, x):
    with a, b:
        return x * 2


@pytest.mark.parametrize("take", [two_after_another, two_at_once])
def test_two_locks_are_not_held_together(take):
    def world():
        state = World(locks=(threading.Lock(), threading.Lock()))
        state.fn = lambda x: take(*state.locks, x)
        return state

    seen = check(world, CALLS, expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"threads"}
    assert not any(lock.locked() for lock in seen.world.locks)


def test_a_break_under_the_lock():
    def world():
        state = World(lock=threading.Lock(), seen=[])

        def fn(x):
            y = x + 1
            with state.lock:
                state.seen.append(state.lock.locked())
                y = y * 2
                print("under the lock")
                state.seen.append(state.lock.locked())
                y = y * 3
            return y - 1, state.lock.locked()

        state.fn = fn
        return state

    seen = check(world, CALLS, expect=None)
    assert seen.outcomes == ["miss", "hit", "hit", "hit", "hit"]
    assert not seen.world.lock.locked() and all(seen.world.seen)


def test_another_lock_is_found_where_the_first_one_was():
    def other(seed):
        def run(w: World):
            w.lock = threading.Lock()
            return again(seed)(w)

        return run

    seen = check(
        once, [*CALLS[:2], other(2), again(3), other(4), CALLS[0]], expect=None, breaks=[], unreplayed=RECORDED
    )
    assert not seen.world.lock.locked()


@pytest.mark.parametrize("recorded", [False, True])
def test_another_thread_was_faster(recorded):
    """While the call waits for the lock, who holds it does what the call was about to do."""
    w = once()
    w.fn = stator.compile(w.fn, backend="eager")
    if recorded:
        for seed in range(3):
            again(seed)(w)
    before = len(w.done)
    w.ready = False
    results = []
    with w.lock:
        thread = threading.Thread(target=lambda: results.append(w.fn(torch.ones(2))))
        thread.start()
        time.sleep(0.3)
        assert thread.is_alive() and len(w.done) == before
        w.done.append("by another")
        w.ready = True
    thread.join(10)
    assert not thread.is_alive() and not w.lock.locked()
    assert w.done[before:] == ["by another"]
    assert torch.equal(results[0], torch.ones(2) * 2 + before + 1)


def test_many_threads():
    w = once()
    w.fn = stator.compile(w.fn, backend="eager")
    for seed in range(3):
        again(seed)(w)
    w.done.clear()
    w.ready = False
    barrier = threading.Barrier(8)

    def run():
        barrier.wait()
        for _ in range(20):
            assert torch.equal(w.fn(torch.ones(2)), torch.ones(2) * 3)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(w.done) == 1 and not w.lock.locked()
