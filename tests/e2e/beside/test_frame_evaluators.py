"""Both compilers replace frames: in whatever order functions compiled by them call each other, in whatever thread."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

import stator
from stator import _native

eval_frame = torch._C._dynamo.eval_frame


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        # a fallback of ours, or TorchDynamo looking at our code, is told by a warning
        warnings.filterwarnings("error", message="(?s).*(stator|does not know how to trace).*")
        yield
    assert eval_frame.get_eval_frame_callback() is None
    torch._dynamo.reset()


def stator_eager(fn):
    return stator.compile(fn, backend="eager")


def dynamo_eager(fn):
    return torch.compile(fn, backend="eager")


def tower(decorators):
    """A function that calls another one, and so on; each compiled by the decorator of its floor."""

    def fn(x):
        return x * 2 + 1

    for decorator in decorators:

        def fn(x, below=fn):
            return below(x).sin() + 1

        fn = decorator(fn)
    return fn


def plain(fn):
    return fn


@pytest.mark.parametrize("order", [*itertools.product("sd", repeat=2), *itertools.product("sd", repeat=3)], ids="".join)
def test_compiled_functions_call_each_other(order):
    by_name = {"s": stator_eager, "d": dynamo_eager}
    built = [by_name[name] for name in order]
    fn, expected = tower(built), tower([plain] * len(built))
    for size in (3, 4, 3, 5, 4):
        x = torch.randn(size)
        assert torch.equal(fn(x), expected(x))
    assert not _native.hook_installed()


def test_a_whole_graph_of_the_other_compiler_inside_of_ours():
    counter = CompileCounter()
    inner = torch.compile(lambda x: x.sin() * 2, backend=counter, fullgraph=True)

    def fn(x):
        return inner(x + 1) - 1

    compiled = stator_eager(fn)
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(compiled(x), (x + 1).sin() * 2 - 1)
    assert [why.id for why in compiled.stator.break_reasons] == ["other-compiler"]
    assert len(compiled.stator.graphs) == 2 and compiled.stator.hits == 3
    assert counter.frame_count == 1


def test_whole_graphs_on_both_sides_are_refused():
    script = Path(__file__).with_name("refused.py")
    done = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x).relu()


def test_the_other_compiler_breaks_at_a_compiled_function():
    inner = stator_eager(lambda x: x.sin() * 2)
    counter = CompileCounter()
    compiled = torch.compile(lambda x: inner(x + 1) - 1, backend=counter)
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(compiled(x), (x + 1).sin() * 2 - 1)
    assert counter.frame_count == 2, "before and behind the call, and nothing of ours"
    assert len(inner.stator.graphs) == 1 and inner.stator.hits == 3


def test_the_other_compiler_breaks_at_a_compiled_module():
    net = Net()
    inner = stator.compile(net, backend="eager")
    counter = CompileCounter()
    compiled = torch.compile(lambda x: inner(x + 1) - 1, backend=counter)
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(compiled(x), net(x + 1) - 1)
    assert counter.frame_count == 2
    assert len(inner.stator.graphs) == 1 and inner.stator.hits == 3


@pytest.mark.parametrize("in_place", [False, True])
def test_the_other_compiler_is_given_a_compiled_module(in_place):
    net = Net()
    inner = stator.compile_(net, backend="eager") if in_place else stator.compile(net, backend="eager")
    handle = net._compiled_call_impl.stator if in_place else inner.stator
    counter = CompileCounter()
    compiled = torch.compile(inner, backend=counter)
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(compiled(x), net.forward(x))
    assert len(handle.graphs) == 1 and handle.hits == 3
    assert counter.frame_count == 0


def test_a_module_compiled_in_place_is_a_part_of_another():
    outer = torch.nn.Sequential(Net(), torch.nn.Tanh())
    stator.compile_(outer[0], backend="eager")
    compiled = stator.compile(outer, backend="eager")
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(compiled(x), outer[0].forward(x).tanh())
    assert len(compiled.stator.graphs) == 1 and compiled.stator.hits == 3
    assert not compiled.stator.break_reasons


def test_the_other_compiler_is_switched_on_while_we_record():
    def helper(x):
        return x.cos() * 2

    def fn(x):
        with torch._dynamo.optimize("eager"):
            y = helper(x) + helper(x + 1)
        return y - 1

    with torch._dynamo.config.patch(raise_on_ctx_manager_usage=False):
        compiled = stator_eager(fn)
        for _ in range(4):
            x = torch.randn(3)
            torch.testing.assert_close(compiled(x), x.cos() * 2 + (x + 1).cos() * 2 - 1)
            assert eval_frame.get_eval_frame_callback() is None


def test_recordings_in_a_thread_while_another_enters_and_leaves():
    """The other compiler puts back the evaluator that it once found, whoever has come in between."""
    other = torch.compile(lambda x: x.sin() + 1, backend="eager")
    other(torch.ones(2))
    over = threading.Event()
    wrong: list[object] = []

    def enter_and_leave():
        x = torch.ones(2)
        while not over.is_set():
            if not torch.equal(other(x), x.sin() + 1):
                wrong.append(x)

    def record(seed):
        def helper(x, k):
            return [x * i + k for i in range(10)]

        for number in range(30):

            def fn(x, number=number):
                return sum(map(torch.sum, helper(x, number))) + sum(helper(x, seed))

            compiled = stator_eager(fn)
            for _ in range(4):
                x = torch.randn(2)
                if not torch.equal(compiled(x), fn(x)):
                    wrong.append((seed, number))

    neighbours = [threading.Thread(target=enter_and_leave) for _ in range(2)]
    recording = [threading.Thread(target=record, args=(seed,)) for seed in range(2)]
    for thread in (*neighbours, *recording):
        thread.start()
    for thread in recording:
        thread.join()
    over.set()
    for thread in neighbours:
        thread.join()
    assert not wrong

    def after(x):
        return x + 1

    compiled = stator_eager(after)
    for _ in range(3):
        compiled(torch.ones(2))
    assert compiled.stator.hits == 2 and not _native.hook_installed()
