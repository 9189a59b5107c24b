"""Calls with breaks in their steady state: C code goes from segment to segment, and hands over where it cannot."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from harness import rand

import stator
from stator import events


@pytest.fixture(autouse=True)
def c_code_may_call():
    """Tests of C code alone leave it switched off."""
    stator.stance.let_c_code_call()


def compiled(fn, **options):
    return stator.compile(fn, backend="eager", **options)


def warm(fast, *args, calls=4):
    """Recorded, hit from Python and armed, and hit from C."""
    for _ in range(calls):
        result = fast(*args)
    return result


@stator.disable
def pause():
    pass


def three_segments(x):
    y = x + 1
    pause()
    z = y * 2
    pause()
    return z - y


def test_counts():
    fast = compiled(three_segments)
    for seed in range(6):
        assert torch.equal(fast(rand(seed)), three_segments(rand(seed)))
    record = fast.stator
    assert (record.hits, record.recordings, record.plain) == (5, 1, 0)
    assert [(entry.hits, entry.published) for entry in record.entries] == [(5, True)] * 3


def test_python_code_is_not_asked(monkeypatch):
    fast = compiled(three_segments)
    warm(fast, rand(1))
    monkeypatch.setattr(stator.pipeline, "_call", None)
    monkeypatch.setattr(stator.pipeline, "_follow", None)
    with stator.options.patch(check_guards=False):  # comparing them is Python's business
        assert torch.equal(fast(rand(2)), three_segments(rand(2)))


def test_a_closure():
    def make(scale):
        def fn(x):
            y = x * scale
            pause()
            z = y + scale
            pause()
            return z - scale

        return fn

    fasts = [(compiled(make(scale)), make(scale)) for scale in (2, 3)]
    for _ in range(4):
        for fast, plain in fasts:
            assert torch.equal(fast(rand(1)), plain(rand(1)))


def test_closures_die_with_their_functions():
    class Scale:
        value = 2.0

    def make(scale):
        def fn(x):
            y = x * scale.value
            pause()
            return y + scale.value

        return fn

    scale = Scale()
    ref = weakref.ref(scale)
    fast = compiled(make(scale))
    warm(fast, rand(1))
    del fast, scale
    gc.collect()
    assert ref() is None


def test_a_miss_in_the_middle():
    shape = [4]

    @stator.disable
    def other(y):
        return torch.ones(shape[0])

    def fn(x):
        y = x + 1
        z = other(y) * 2
        pause()
        return z + 1

    fast = compiled(fn)
    warm(fast, rand(1))
    before = (fast.stator.hits, fast.stator.recordings)
    shape[0] = 5
    assert torch.equal(fast(rand(1)), torch.full((5,), 3.0))
    assert (fast.stator.hits, fast.stator.recordings) == (before[0], before[1] + 1)
    for size in (5, 4, 5, 4):
        shape[0] = size
        assert torch.equal(fast(rand(1)), torch.full((size,), 3.0))
    assert (fast.stator.hits, fast.stator.recordings) == (before[0] + 4, before[1] + 1)


def test_an_exception_in_the_middle():
    wrong = []

    @stator.disable
    def check():
        if wrong:
            raise ValueError(wrong[0])

    def fn(x, log):
        log.append("before")
        y = x + 1
        pause()
        try:
            check()
        except KeyError:
            log.append("key")
        pause()
        return y * 2

    fast = compiled(fn)
    warm(fast, rand(1), [])
    wrong.append("no")
    for call in (fn, fast):
        log = []
        with pytest.raises(ValueError, match="no") as caught:
            call(rand(1), log)
        assert log == ["before"] and caught.traceback[-1].name == "check"
    wrong.clear()
    hits = fast.stator.hits
    assert torch.equal(fast(rand(2), []), (rand(2) + 1) * 2) and fast.stator.hits == hits + 1


def test_a_graph_that_fails_in_the_middle():
    """The rest of the function runs by itself, from that segment on, and raises what it raises."""
    failing = []

    def backend(graph, inputs):
        def run(*args):
            if failing:
                raise RuntimeError("the graph")
            return graph.forward(*args)

        return run

    seen = []

    @stator.disable
    def note():
        seen.append(1)
        failing[:] = [1] if len(seen) == 5 else []

    def fn(x):
        y = x + 1
        note()
        return y * 2

    fast = stator.compile(fn, backend=backend)
    for seed in range(6):
        assert torch.equal(fast(rand(seed)), (rand(seed) + 1) * 2)
        failing.clear()
    assert len(seen) == 6


def test_recursion():
    depth = [0]

    @stator.disable
    def again(x):
        depth[0] += 1
        return functions[0](x) if depth[0] % 3 else x

    def fn(x):
        y = x + 1
        z = again(y)
        return y * z

    fast, results = compiled(fn), {}
    for seed in range(5):
        for function in (fn, fast):
            functions, depth[0] = [function], 0
            results[function] = function(rand(seed))
        assert torch.equal(results[fn], results[fast])
    assert fast.stator.hits >= 3 * 3


def test_reset_in_the_middle():
    reset = []

    @stator.disable
    def maybe():
        if reset:
            fast.stator.reset()

    def fn(x):
        y = x + 1
        maybe()
        z = y * 2
        maybe()
        return z - 3

    fast = compiled(fn)
    warm(fast, rand(1))
    reset.append(1)
    assert torch.equal(fast(rand(2)), (rand(2) + 1) * 2 - 3)
    reset.clear()
    for seed in range(4):
        assert torch.equal(fast(rand(seed)), (rand(seed) + 1) * 2 - 3)
    assert all(entry.published for entry in fast.stator.entries)


def test_a_listener_and_a_stance_that_come_in_the_middle():
    heard, todo = [], []

    @stator.disable
    def do():
        for action in todo:
            action()

    def fn(x):
        y = x + 1
        do()
        z = y * 2
        pause()
        return z - 3

    fast = compiled(fn)
    warm(fast, rand(1))
    todo.append(lambda: heard.append(events.subscribe(heard.append, events.CacheHit)))
    assert torch.equal(fast(rand(2)), (rand(2) + 1) * 2 - 3)
    heard.pop(0)()
    assert len(heard) == 2  # both segments behind the one that subscribed
    plain = fast.stator.plain
    former = []
    todo[:] = [lambda: former.append(stator.stance.set_stance("force_eager"))]
    try:
        assert torch.equal(fast(rand(2)), (rand(2) + 1) * 2 - 3)
    finally:
        stator.stance.set_stance(former[0])
    assert fast.stator.plain == plain + 1


def test_state_of_torch_that_a_step_changes():
    mode = []

    @stator.disable
    def switch():
        torch.set_grad_enabled(not mode)

    def fn(x):
        y = x * 2
        switch()
        return y * x

    fast = compiled(fn)
    try:
        for _ in range(3):
            for modes in ([], [1]):
                mode[:] = modes
                torch.set_grad_enabled(True)
                x = rand(1).requires_grad_()
                assert fast(x).requires_grad == (not modes)
    finally:
        torch.set_grad_enabled(True)


def test_threads():
    fast = compiled(three_segments)
    warm(fast, rand(1))
    wrong = []

    def work(number):
        for k in range(200):
            x = rand(number)
            if not torch.equal(fast(x), three_segments(x)):
                wrong.append(number)
            if number == 0 and k == 100:
                fast.stator.reset()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_several_callables_share_their_recordings():
    def outer(x, scale):
        def inner(y):
            z = y * scale
            pause()
            return z + scale

        return compiled(inner)(x)

    for _ in range(5):
        assert torch.equal(outer(rand(1), 2), rand(1) * 2 + 2)
