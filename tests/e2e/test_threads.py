"""Several threads call and record at the same time; each gets its own results and none disturbs another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from harness import rand
from torch import fx, nn

import stator
from stator import lookup, record
from stator.watch.tensors import nodes

ROUNDS = 20


def in_threads(*jobs):
    """Run the jobs side by side, started together; their results, or the first exception."""
    barrier = threading.Barrier(len(jobs))

    def run(job):
        barrier.wait(timeout=30)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(run, job) for job in jobs]
        return [future.result(timeout=60) for future in futures]


def equal(got, wanted):
    return all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def polynomial(x, n):
    total = torch.zeros_like(x)
    for power in range(n):
        total = total + x**power
    return total


def test_two_threads_call_a_recorded_function():
    compiled = stator.compile(polynomial, backend="eager")
    compiled(rand(0), 4)

    def job(first):
        return lambda: [compiled(rand(seed), 4) for seed in range(first, first + ROUNDS)]

    left, right = in_threads(job(1), job(100))
    assert equal(left, [polynomial(rand(seed), 4) for seed in range(1, 1 + ROUNDS)])
    assert equal(right, [polynomial(rand(seed), 4) for seed in range(100, 100 + ROUNDS)])
    assert compiled.stator.recordings == 1
    assert compiled.stator.hits == 2 * ROUNDS


def test_two_threads_record_the_same_function():
    compiled = stator.compile(polynomial, backend="eager")

    def job(first):
        return lambda: [compiled(rand(seed), 3 + seed % 2) for seed in range(first, first + ROUNDS)]

    left, right = in_threads(job(1), job(100))
    assert equal(left, [polynomial(rand(seed), 3 + seed % 2) for seed in range(1, 1 + ROUNDS)])
    assert equal(right, [polynomial(rand(seed), 3 + seed % 2) for seed in range(100, 100 + ROUNDS)])
    record = compiled.stator
    assert len(record.entries) <= 4
    assert record.hits + record.recordings + record.plain == 2 * ROUNDS


def test_what_another_thread_has_recorded_meanwhile_is_used(monkeypatch):
    """Between the look of one thread and its recording, another one records the same."""
    compiled = stator.compile(polynomial, backend="eager")
    compiled(rand(1), 2)
    others, asked = [3], []

    def stance():
        if threading.current_thread() is threading.main_thread():
            asked.append(1)  # first whether the call is compiled at all, then behind the look
        if others and len(asked) == 2:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(compiled, rand(2), others.pop()).result(timeout=60)
        return "default"

    monkeypatch.setattr(lookup, "stance", stance)
    for seed in range(3):
        assert torch.equal(compiled(rand(seed), 3), polynomial(rand(seed), 3))
    stats = compiled.stator
    assert not others and (stats.recordings, stats.hits, stats.plain) == (2, 3, 0)


def test_a_replay_counts_while_another_thread_records():
    """Between the two segments of one call, another thread records the same function with another size."""
    others = []

    @stator.disable
    def meanwhile():
        if others and threading.current_thread() is threading.main_thread():
            with ThreadPoolExecutor(1) as pool:
                pool.submit(compiled, torch.ones(others.pop())).result(timeout=60)

    def fn(x):
        y = x + 1
        meanwhile()
        return y * 2

    compiled = stator.compile(fn, backend="eager", dynamic=False)
    for seed in range(3):
        assert torch.equal(compiled(rand(seed)), fn(rand(seed)))
    others.append(7)
    with stator.options.patch(verbose=True):  # hits are told of: Python goes from segment to segment, not C
        assert torch.equal(compiled(rand(3)), fn(rand(3))) and not others
    stats = compiled.stator
    assert (stats.recordings, stats.hits, stats.plain) == (2, 3, 0)


def test_two_threads_record_different_functions():
    def slow(x):
        for n in range(60):
            x = x + n
        return x

    def other(x):
        return [x * n for n in range(60)]

    for _ in range(3):
        stator.reset()  # functions of one code object share their recordings
        fast_slow, fast_other = stator.compile(slow, backend="eager"), stator.compile(other, backend="eager")
        left, right = in_threads(
            lambda f=fast_slow: [f(rand(seed)) for seed in range(4)],
            lambda f=fast_other: [f(rand(seed)) for seed in range(4)],
        )
        assert equal(left, [slow(rand(seed)) for seed in range(4)])
        assert all(equal(got, other(rand(seed))) for seed, got in enumerate(right))
        assert (fast_slow.stator.recordings, fast_slow.stator.hits) == (1, 3)
        assert (fast_other.stator.recordings, fast_other.stator.hits) == (1, 3)


def test_what_another_thread_does_is_not_recorded():
    go, done = threading.Event(), threading.Event()
    noise = []

    def worker():
        while not go.wait(0.001):
            pass
        while not done.is_set():
            noise.append(rand(len(noise) % 5).sum())

    seen = []

    def counting(gm, example_inputs):
        seen.append(sum(n.op == "call_function" or n.op == "call_method" for n in gm.graph.nodes))
        return gm.forward

    def fn(x):
        for n in range(40):
            x = x + n
        return x

    compiled = stator.compile(fn, backend=counting)
    thread = threading.Thread(target=worker)
    thread.start()
    try:
        go.set()
        results = [compiled(rand(seed)) for seed in (1, 2, 3)]
    finally:
        done.set()
        thread.join(timeout=30)
    assert equal(results, [fn(rand(seed)) for seed in (1, 2, 3)])
    assert seen == [40]


def test_grad_mode_belongs_to_the_thread():
    compiled = stator.compile(lambda x: x * 2, backend="eager")

    def with_grad():
        return [compiled(rand(seed, requires_grad=True)).requires_grad for seed in range(ROUNDS)]

    def without_grad():
        with torch.no_grad():
            return [compiled(rand(seed, requires_grad=True)).requires_grad for seed in range(ROUNDS)]

    left, right = in_threads(with_grad, without_grad)
    assert left == [True] * ROUNDS
    assert right == [False] * ROUNDS


def test_two_threads_run_one_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    compiled = stator.compile(model, backend="eager")

    def job(first):
        return lambda: [compiled(rand(seed, 2, 4)) for seed in range(first, first + ROUNDS)]

    left, right = in_threads(job(1), job(50))
    assert equal(left, [model(rand(seed, 2, 4)) for seed in range(1, 1 + ROUNDS)])
    assert equal(right, [model(rand(seed, 2, 4)) for seed in range(50, 50 + ROUNDS)])


def test_an_exception_in_one_thread_leaves_the_other_alone():
    def fn(x, limit):
        y = x * 2
        if x.shape[0] > limit:
            raise ValueError("too long")
        return y

    compiled = stator.compile(fn, backend="eager")

    def failing():
        for seed in range(ROUNDS):
            with pytest.raises(ValueError, match="too long"):
                compiled(rand(seed), 2)

    def working():
        return [compiled(rand(seed), 9) for seed in range(ROUNDS)]

    _, results = in_threads(failing, working)
    assert equal(results, [rand(seed) * 2 for seed in range(ROUNDS)])


def test_a_function_that_starts_a_thread():
    def fn(x):
        made = []
        thread = threading.Thread(target=lambda: made.append(rand(5) * 2))
        thread.start()
        thread.join()
        return x + made[0]

    compiled = stator.compile(fn, backend="eager")
    for seed in (1, 2, 3):
        assert torch.equal(compiled(rand(seed)), rand(seed) + rand(5) * 2)


def test_reset_while_another_thread_calls():
    compiled = stator.compile(polynomial, backend="eager")

    def resetting():
        for _ in range(ROUNDS):
            compiled.stator.reset()

    _, results = in_threads(resetting, lambda: [compiled(rand(seed), 3) for seed in range(ROUNDS)])
    assert equal(results, [polynomial(rand(seed), 3) for seed in range(ROUNDS)])


class Flagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.flag = True

    def forward(self, x, n):
        y = self.linear(x) if self.flag else x - 1
        return y * n + x.shape[0]


def test_eight_threads_with_changing_shapes_and_flags():
    """Results stay right while others call, record, reset, and change what the model reads."""
    model = Flagged().eval()
    compiled = stator.compile(model, backend="eager")
    calls = 10_000

    def job(number):
        def run():
            wrong = 0
            for k in range(calls):
                x, n = torch.full((1 + (k + number) % 3, 4), float(k % 5)), (k // 100 + number) % 2
                got = compiled(x, n)
                either = (model.linear(x) * n + x.shape[0], (x - 1) * n + x.shape[0])  # the flag may be either
                wrong += not any(torch.equal(got, wanted) for wanted in either)
                if number == 0 and k % 2500 == 1000:
                    compiled.stator.reset()
                if number == 1 and k % 50 == 0:
                    model.flag = not model.flag
            return wrong

        return run

    barrier = threading.Barrier(8)

    def start(run):
        with torch.no_grad():  # which belongs to the thread
            barrier.wait(timeout=30)
            return run()

    with stator.options.patch(cache_size_limit=64), ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(start, job(number)) for number in range(8)]
        assert [future.result(timeout=400) for future in futures] == [0] * 8
    handle = compiled.stator
    assert handle.hits > 0.9 * 8 * calls, handle  # it was compiled code that gave them
    for flag in (True, False, True):
        model.flag = flag
        with torch.no_grad():
            assert torch.equal(compiled(rand(1, 2, 4), 1), model(rand(1, 2, 4), 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_calls_and_records():
    compiled = stator.compile(polynomial, backend="eager")
    for seed in (1, 2, 3):
        compiled(rand(seed), 3)
    child = os.fork()
    if child == 0:
        right = all(torch.equal(compiled(rand(seed), n), polynomial(rand(seed), n)) for seed in (1, 2) for n in (3, 4))
        os._exit(0 if right and compiled.stator.recordings == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(compiled(rand(5), 3), polynomial(rand(5), 3))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_forked_while_another_thread_records(monkeypatch):
    """What that thread has locked is not free in the child."""
    begun, go_on = threading.Event(), threading.Event()

    def make_slowly(*args, **kwargs):
        if threading.current_thread() is recording:
            begun.set()
            go_on.wait(60)
        return fx.Graph(*args, **kwargs)

    monkeypatch.setattr(nodes, "fx", types.SimpleNamespace(**vars(fx) | {"Graph": make_slowly}))
    slow = stator.compile(lambda x: x * 2 + 1, backend="eager")
    recording = threading.Thread(target=slow, args=(rand(0),))
    recording.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        fast = stator.compile(lambda x: x * 3, backend="eager")
        right = all(torch.equal(fast(rand(seed)), rand(seed) * 3) for seed in range(3))
        os._exit(0 if right and fast.stator.hits == 2 else 1)
    go_on.set()
    recording.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(slow(rand(1)), rand(1) * 2 + 1) and slow.stator.hits == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_processes_of_a_forkserver():
    """The server has recorded; its children call with those recordings, change what they read, and record anew."""
    here = Path(__file__).parent
    folders = [str(here.parents[1] / "src"), str(here), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(folders))
    done = subprocess.run(
        [sys.executable, here / "in_children.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[-4000:]


def test_a_recording_goes_by_what_was_known_to_change_when_it_began():
    """What other threads find out meanwhile is added to the same tables."""

    def fn(x, pair):
        return x * pair[0] + pair[1]

    fast = stator.compile(fn, backend="eager")
    for n in range(3):
        assert torch.equal(fast(rand(n), (1, n + 2)), fn(rand(n), (1, n + 2)))
    program = fast.stator._program
    history = record._history(program, False)
    assert history.symbols is not None and history.symbols.seen == program.cache.symbols != {}
    path, places = next(iter(history.symbols.seen.items()))
    before = {*places}
    program.cache.symbols[path].add(17)
    program.cache.symbols[(*path, "more")] = {1}
    assert history.symbols.seen[path] == before and (*path, "more") not in history.symbols.seen
    assert fast.stator.hits >= 1
