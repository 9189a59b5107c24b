"""`options.background_compile`: the backend works on a thread of its own, and the program does not notice.

Backends here stop at a gate, so that a test decides what is ready when.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from harness import rand
from torch import nn

import stator
from stator import events
from stator.errors import BackendError, GraphBreakError, RecompileError, SpecializationError
from stator.support import background

LATER = {"background_compile": True}


class Gated:
    """A backend that lets graphs pass one by one."""

    def __init__(self, inner=None):
        self.inner = inner
        self.graphs, self.threads, self.examples = [], [], []
        self.begun = threading.Semaphore(0)
        self._gate = threading.Semaphore(0)

    def __call__(self, gm, example_inputs):
        self.threads.append(threading.current_thread().name)
        self.begun.release()
        assert self._gate.acquire(timeout=30)
        self.graphs.append(gm)
        self.examples.append(example_inputs)
        return self.inner(gm, example_inputs) if self.inner else gm.forward

    def open(self, count=1):
        for _ in range(count):
            self._gate.release()


@pytest.fixture
def gated():
    backend = Gated()
    yield backend
    backend.open(100)
    assert background.wait(lambda: background._worker.current is None, 30)


def counts(compiled):
    handle = compiled.stator
    return handle.recordings, handle.hits, handle.plain, len(handle.entries)


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = []

    def forward(self, x):
        self.calls.append(1)
        return torch.tanh(self.linear(x)).sum()


def test_calls_in_between_run_plain(gated):
    torch.manual_seed(0)
    plain, model = Model(), Model()
    model.load_state_dict(plain.state_dict())
    compiled = stator.compile(model, backend=gated, options=LATER)
    for seed in range(3):
        assert torch.equal(compiled(rand(seed)), plain(rand(seed)))
    assert counts(compiled) == (1, 0, 2, 0)
    assert not compiled.stator.wait(0.01)
    gated.open()
    assert compiled.stator.wait()
    assert counts(compiled) == (1, 0, 2, 1)
    for seed in range(3, 6):
        assert torch.equal(compiled(rand(seed)), plain(rand(seed)))
    assert counts(compiled) == (1, 3, 2, 1)
    assert model.calls == plain.calls == [1] * 6
    assert gated.threads == ["stator background"]
    assert len(gated.graphs) == len(compiled.stator.graphs) == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_backends_and_gradients(backend):
    torch.manual_seed(0)
    plain, model = Model(), Model()
    model.load_state_dict(plain.state_dict())
    compiled = stator.compile(model, backend=backend, options=LATER)
    for seed in range(6):
        for each in (plain, compiled):
            each(rand(seed)).backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
        if seed == 2:
            assert compiled.stator.wait(120)
    recordings, hits, in_between, entries = counts(compiled)
    assert (recordings, entries) == (1, 1)
    assert hits >= 3 and hits + in_between == 5
    assert model.calls == plain.calls


def test_a_call_that_does_not_fit_is_recorded(gated):
    def fn(x):
        return x * 2 + x.shape[0]

    compiled = stator.compile(fn, backend=gated, options=LATER)
    for size in (3, 4, 5, 6):  # the second recording is good for all sizes
        assert torch.equal(compiled(rand(size, size)), fn(rand(size, size)))
    assert counts(compiled) == (2, 0, 2, 0)
    gated.open(2)
    assert compiled.stator.wait()
    for size in (3, 4, 5, 6, 7):
        assert torch.equal(compiled(rand(size, size)), fn(rand(size, size)))
    assert counts(compiled) == (2, 5, 2, 2)
    assert len(gated.graphs) == 2


def test_graphs_around_breaks_appear_one_by_one(gated):
    log = []

    def fn(x):
        y = torch.sin(x) + 1
        stator.graph_break()
        log.append("seen")
        y = y * 3
        stator.graph_break()
        return y - x

    compiled = stator.compile(fn, backend=gated, options=LATER)

    def call(seed):
        log.clear()
        got = compiled(rand(seed))
        assert log == ["seen"]
        assert torch.equal(got, fn(rand(seed)))

    call(0)
    call(1)
    assert counts(compiled) == (1, 0, 1, 0)
    for ready in (1, 2):
        gated.open()
        until(lambda ready=ready: len(compiled.stator.entries) == ready)
        call(ready + 1)
        assert counts(compiled) == (1, 0, 1 + ready, ready)
        assert [entry.hits for entry in compiled.stator.entries] == [ready, 1][:ready]
    gated.open()
    assert compiled.stator.wait()
    call(4)
    call(5)
    assert counts(compiled) == (1, 2, 3, 3)
    assert len(gated.graphs) == 3


def test_a_failing_backend_costs_one_warning():
    def failing(gm, example_inputs):
        raise ValueError("no such thing")

    def fn(x):
        return x + 1

    compiled = stator.compile(fn, backend=failing, options=LATER)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is told on the thread, nor before the first call is over
        assert torch.equal(compiled(rand(0)), rand(0) + 1)
        assert background.wait(lambda: not compiled.stator._program.cache.pending, 30)
    with pytest.warns(UserWarning, match="no such thing") as told:
        for seed in range(4):
            assert torch.equal(compiled(rand(seed)), rand(seed) + 1)
    assert [warning.filename for warning in told] == [__file__]
    assert counts(compiled) == (0, 0, 5, 0)


@pytest.mark.parametrize("told_by", ["the next call", "waiting"])
def test_a_failing_backend_raises_if_errors_are_not_suppressed(told_by):
    def failing(gm, example_inputs):
        raise ValueError("no such thing")

    compiled = stator.compile(lambda x: x + 1, backend=failing, options={**LATER, "suppress_errors": False})
    assert torch.equal(compiled(rand(0)), rand(0) + 1)
    assert background.wait(lambda: not compiled.stator._program.cache.pending, 30)
    with pytest.raises(BackendError, match="no such thing") as caught:
        compiled.stator.wait() if told_by == "waiting" else compiled(rand(1))
    assert isinstance(caught.value.__cause__, ValueError)
    assert compiled.stator.wait()  # told once
    assert torch.equal(compiled(rand(2)), rand(2) + 1)  # recorded again, as with a backend in the foreground
    assert compiled.stator.recordings == 1


def test_a_size_that_cannot_be_dynamic_is_told_later():
    compiled = stator.compile(lambda x: x + len(range(x.shape[0])), backend="eager", options=LATER)
    x = rand(0, 3)
    stator.mark_dynamic(x, 0)
    assert torch.equal(compiled(x), x + 3)
    with pytest.raises(SpecializationError):
        compiled.stator.wait()


def test_forgotten_work_is_dropped(gated):
    scale = [2.0]

    def fn(x):
        return x * scale[0]

    compiled = stator.compile(fn, backend=gated, options=LATER)
    compiled(rand(0))
    assert gated.begun.acquire(timeout=30)
    stator.reset()
    assert compiled.stator.wait(0)  # nothing of it is awaited
    gated.open()
    until(lambda: background._worker.current is None)
    assert compiled.stator.entries == [] == compiled.stator.graphs
    scale[0] = 3.0
    for seed in range(3):
        assert torch.equal(compiled(rand(seed)), rand(seed) * 3)
    gated.open()
    assert compiled.stator.wait()
    assert torch.equal(compiled(rand(3)), rand(3) * 3)
    assert len(gated.graphs) == 2 and len(compiled.stator.entries) == 1 == compiled.stator.hits


def test_failures_of_forgotten_work_are_not_told():
    gate = threading.Event()

    def failing(gm, example_inputs):
        gate.wait(30)
        raise ValueError("too late")

    compiled = stator.compile(lambda x: x - 1, backend=failing, options={**LATER, "suppress_errors": False})
    compiled(rand(0))
    stator.reset()
    gate.set()
    until(lambda: background._worker.current is None and not background._worker.queue)
    assert compiled.stator.wait()


def test_a_full_graph_is_refused_at_once_and_while_it_is_compiled(gated):
    def fn(x):
        y = x + 1
        stator.graph_break()
        return y * 2

    compiled = stator.compile(fn, backend=gated, fullgraph=True, options=LATER)
    for _ in range(3):
        with pytest.raises(GraphBreakError):
            compiled(rand(0))
    gated.open(2)
    assert compiled.stator.wait()
    with pytest.raises(GraphBreakError):
        compiled(rand(0))


def test_what_is_being_compiled_counts_as_recorded(gated):
    compiled = stator.compile(
        lambda x, n: x * n, backend=gated, dynamic=False, options={**LATER, "cache_size_limit": 2}
    )
    compiled(rand(0), 1)
    with stator.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(rand(1), 1), rand(1))
        with pytest.raises(RecompileError):
            compiled(rand(1), 2)
    with stator.set_stance("eager_on_recompile"):
        assert torch.equal(compiled(rand(1), 2), rand(1) * 2)
    assert compiled.stator.recordings == 1
    compiled(rand(0), 2)
    with pytest.warns(UserWarning, match="has 2 recordings"):
        assert torch.equal(compiled(rand(0), 3), rand(0) * 3)
    assert compiled.stator.recordings == 2


def test_closures_share_what_is_being_compiled(gated):
    def make(scale):
        def fn(x):
            return x * scale

        return stator.compile(fn, backend=gated, options=LATER)

    first, second = make(2.0), make(2.0)
    first(rand(0))
    assert torch.equal(second(rand(1)), rand(1) * 2)
    assert (second.stator.recordings, second.stator.plain) == (0, 1)
    assert not second.stator.wait(0.01)
    gated.open()
    assert second.stator.wait()
    assert torch.equal(second(rand(2)), rand(2) * 2)
    assert second.stator.hits == 1


# -- what the program does meanwhile


def test_the_backend_sees_the_tensors_as_they_were(gated):
    def fn(x, w):
        return (x * w).sum()

    compiled = stator.compile(fn, backend=gated, options=LATER)
    x, w = rand(0, 2, 4), rand(1, requires_grad=True)
    shared = w * 1  # not a leaf
    compiled(x, shared)
    memory = weakref.ref(shared)
    del shared
    gc.collect()
    assert memory() is None, "what is being compiled keeps nothing of the program's but memory"
    x.resize_(8).requires_grad_()
    gated.open()
    assert compiled.stator.wait()
    (seen, weight) = gated.examples[0]
    assert (tuple(seen.shape), seen.requires_grad) == ((2, 4), False)
    assert (weight.requires_grad, weight.is_leaf) == (True, False)
    for seed in range(2, 5):
        grown = rand(seed) * 1
        assert torch.equal(compiled(rand(seed, 2, 4), w * 1), fn(rand(seed, 2, 4), w * 1))
        assert torch.equal(compiled(grown.reshape(1, 4), w * 1), fn(grown.reshape(1, 4), w * 1))
    assert compiled.stator.hits == 3


def test_a_default_dtype_changed_meanwhile(gated):
    def fn(x):
        return x + torch.ones(4)

    compiled = stator.compile(fn, backend=gated, options=LATER)
    compiled(rand(0))
    assert gated.begun.acquire(timeout=30)
    torch.set_default_dtype(torch.float64)
    try:
        gated.open()
        assert compiled.stator.wait()
        assert compiled.stator.entries == []
        assert compiled(rand(0)).dtype is torch.float64
        gated.open()
        assert compiled.stator.wait()
    finally:
        torch.set_default_dtype(torch.float32)
    for seed in range(3):
        assert torch.equal(compiled(rand(seed)), fn(rand(seed)))
        assert compiled(rand(seed)).dtype is torch.float32
    assert compiled.stator.recordings == 3


@pytest.mark.parametrize("grad", [True, False])
def test_the_thread_has_the_callers_modes(grad):
    seen = []

    def looking(gm, example_inputs):
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), threading.current_thread().name))
        return gm.forward

    compiled = stator.compile(lambda x: x * 2, backend=looking, options=LATER)
    with torch.set_grad_enabled(grad):
        compiled(rand(0))
    assert compiled.stator.wait()
    with torch.inference_mode():
        compiled(rand(0))
    assert compiled.stator.wait()
    assert seen == [(grad, False, "stator background"), (False, True, "stator background")]


def test_under_autocast_it_is_compiled_at_once(gated):
    gated.open()
    compiled = stator.compile(lambda x, w: x @ w, backend=gated, options=LATER)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for seed in range(3):
            got = compiled(rand(seed, 4, 4), rand(seed + 1, 4, 4))
            assert got.dtype is torch.bfloat16
            assert torch.equal(got, rand(seed, 4, 4) @ rand(seed + 1, 4, 4))
    assert gated.threads == [threading.current_thread().name]
    assert counts(compiled) == (1, 2, 0, 1)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_random_numbers_are_the_programs(backend):
    """Deriving and generating code must not draw any, nor put the generator back."""

    salt = int.from_bytes(os.urandom(6), "little") / 2**48  # no code for this lies in a cache

    def fn(x):
        y = torch.nn.functional.dropout(x, 0.5) * salt
        with torch.no_grad():
            drawn = torch._sample_dirichlet(y.abs() + 1)
        return y + drawn

    compiled = stator.compile(fn, backend=backend, options=LATER)
    found = []
    for call in (fn, compiled):
        torch.manual_seed(0)
        numbers = []
        for round_ in range(400):
            numbers.append(call(torch.ones(4, requires_grad=True)).detach())
            numbers.append(torch.rand(2))
            if call is compiled:
                time.sleep(0.005)
                if round_ == 390:
                    assert compiled.stator.wait(120)
        found.append(torch.stack([number.sum() for number in numbers]))
    assert torch.equal(*found)
    assert compiled.stator.recordings == 1 and compiled.stator.hits >= 9


def test_recordings_are_not_disturbed():
    """The thread runs Python code and operations of torch while the program is being recorded."""
    stop = threading.Event()
    rounds = []

    def busy(gm, example_inputs):
        while not stop.is_set():
            rounds.append(sum(float(torch.ones(2).add(n).sum()) for n in range(20)))
        return gm.forward

    first = stator.compile(lambda x: x + 1, backend=busy, options=LATER)
    first(rand(0))
    until(lambda: rounds)
    seen = []

    def fn(x, n):
        for power in range(n):
            x = x + power
        seen.append(n)
        return x

    graphs = []

    def counting(gm, example_inputs):
        graphs.append([node.name for node in gm.graph.nodes])
        return gm.forward

    compiled = stator.compile(fn, backend=counting, dynamic=False)
    before = len(rounds)
    for n in (3, 30, 3, 30, 3, 30):
        assert torch.equal(compiled(rand(n), n), fn(rand(n), n))
    until(lambda: len(rounds) > before)
    stop.set()
    assert first.stator.wait(30)
    assert seen == [3, 3, 30, 30] * 3
    assert [len(names) for names in graphs] == [5, 32]
    assert counts(compiled) == (2, 4, 0, 2)


def test_events_come_from_the_thread():
    heard = []
    end = events.subscribe(
        lambda event: heard.append((type(event).__name__, threading.current_thread().name)),
        events.StageBegan,
        events.StageEnded,
        events.BackendCompiled,
        events.Recorded,
        events.RanPlain,
    )
    try:
        compiled = stator.compile(lambda x: x.sin().sum(), backend="aot_eager", options=LATER)
        compiled(rand(0, requires_grad=True))
        assert compiled.stator.wait()
    finally:
        end()
    of_thread = [kind for kind, thread in heard if thread == "stator background"]
    assert of_thread[0] == "StageBegan" and of_thread[-1] == "StageEnded"
    assert of_thread.count("StageBegan") == of_thread.count("StageEnded") == 3  # compiling, deriving, cutting
    assert of_thread.count("Recorded") == of_thread.count("BackendCompiled") == 1
    assert [kind for kind, thread in heard if thread != "stator background"] == ["StageBegan", "StageEnded"]


def test_explaining_does_not_wait():
    with stator.options.patch(background_compile=True):
        report = stator.explain(lambda x: x + 1)(rand(0))
    assert (report.graph_count, len(report.segments)) == (1, 1)


def test_a_backend_that_waits_for_itself():
    answers = []

    def impatient(gm, example_inputs):
        answers.append(compiled.stator.wait())
        return gm.forward

    compiled = stator.compile(lambda x: x * 5, backend=impatient, options=LATER)
    compiled(rand(0))
    assert compiled.stator.wait(30)
    assert torch.equal(compiled(rand(1)), rand(1) * 5)
    assert answers == [False] and compiled.stator.hits == 1


# -- processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_does_not_wait_for_its_parents_thread(gated):
    compiled = stator.compile(lambda x: x * 7, backend=gated, options=LATER)
    compiled(rand(0))
    assert gated.begun.acquire(timeout=30)
    child = os.fork()
    if child == 0:
        right = [compiled.stator.wait(), counts(compiled) == (1, 0, 0, 0)]  # what was begun is forgotten
        gated.open(3)
        right += [torch.equal(compiled(rand(seed)), rand(seed) * 7) for seed in range(2)]
        right += [compiled.stator.wait(30), torch.equal(compiled(rand(3)), rand(3) * 7)]
        right += [compiled.stator.recordings == 2, compiled.stator.hits >= 1]
        os._exit(0 if all(right) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gated.open()
    assert compiled.stator.wait()
    assert torch.equal(compiled(rand(1)), rand(1) * 7) and compiled.stator.hits == 1


ENDINGS = {
    "asleep": "time.sleep(1000)",
    "at work": "while True: sum(range(1000))",
    "waiting": "threading.Event().wait()",
}


def in_a_process(text):
    source = Path(__file__).parents[2] / "src"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("doing", ENDINGS)
def test_a_program_ends_while_something_is_compiled(doing):
    done = in_a_process(
        "import os, threading, time, torch, stator\n"
        f"def backend(gm, inputs):\n    os.write(1, b'begun\\n'); begun.set()\n    {ENDINGS[doing]}\n"
        "begun = threading.Event()\n"
        "fn = stator.compile(lambda x: x + 1, backend=backend, options={'background_compile': True})\n"
        "os.write(1, f'{fn(torch.zeros(1)).item()}\\n'.encode())\nbegun.wait()\n"
        "stator.compile(lambda x: x + 2, backend=backend, options={'background_compile': True})(torch.zeros(1))\n"
    )
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (0, ["1.0", "begun"], "")


def test_a_program_ends_while_inductor_is_at_work():
    done = in_a_process(
        "import time, torch, stator, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)  # torch's own, told in Python's development mode\n"
        "fn = stator.compile(lambda x: (x.sin() + 1).sum(), options={'background_compile': True})\n"
        "fn(torch.zeros(3, requires_grad=True)).backward()\ntime.sleep(2.5)\nprint('over')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")
