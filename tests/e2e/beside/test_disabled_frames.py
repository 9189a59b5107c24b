"""`disable(fn, recursive=False)`: the function itself is left to Python, what it calls is compiled."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import pytest
import torch
import torch._dynamo
from harness import World, check, rand
from torch import nn

import stator
from stator import _native

DISABLE = [stator.disable, torch.compiler.disable, torch._dynamo.disable]
CALLS = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3)), lambda w: w.fn(rand(4))]


class Counting:
    """A backend: how many graphs it was given, and how often they were called."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.calls = 0
        self.in_last_call = 0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        self.graphs.append(gm)

        def run(*args: Any) -> Any:
            self.calls += 1
            return gm.forward(*args)

        return run


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    assert not _native.hook_installed()


def calls_of(fn: Any, plain: Any, args: list[tuple[Any, ...]]) -> Counting:
    """Compiled and plain give the same, call after call."""
    backend = Counting()
    compiled = stator.compile(fn, backend=backend)
    for each in args:
        before = backend.calls
        wanted, found = plain(*each), compiled(*each)
        torch.testing.assert_close(found, wanted)
        backend.in_last_call = backend.calls - before
    assert [why.id for why in compiled.stator.break_reasons] == ["disabled-frame"]
    return backend


X4 = [(rand(seed),) for seed in range(4)]


@pytest.mark.parametrize("disable", DISABLE)
def test_what_it_calls_is_compiled(disable):
    def helper(x, k):
        return (x * k).sin() + 1

    @disable(recursive=False)
    def outer(x):
        return helper(x, 2.0) + helper(x, 3.0) - x

    def fn(x):
        return outer(x + 1) - 1

    backend = calls_of(fn, fn, X4)
    # Two of the function itself; of the helper one, and one for numbers that change.
    assert len(backend.graphs) == 4
    assert backend.in_last_call == 2 + 2
    assert not any("sub" in str(gm.graph) and "sin" in str(gm.graph) for gm in backend.graphs)


def test_the_function_itself_is_not_compiled():
    @stator.disable(recursive=False)
    def outer(x):
        return x * (100 if stator.is_compiling() else 1) + told(x)

    def told(x):
        return x * (100 if stator.is_compiling() else 1)

    compiled = stator.compile(lambda x: outer(x + 1) - 1, backend="eager")
    found = [compiled(torch.ones(2))[0].item() for _ in range(3)]
    assert found == [2 + 2 - 1, 2 + 200 - 1, 2 + 200 - 1], "nothing is recorded in the middle of a recording"


def test_nothing_is_compiled_outside_of_compiled_functions():
    def helper(x):
        return x * (100 if stator.is_compiling() else 1)

    @stator.disable(recursive=False)
    def outer(x):
        return helper(x)

    compiled = stator.compile(lambda x: outer(x + 1) - 1, backend="eager")
    for _ in range(3):
        compiled(torch.ones(2))
        assert outer(torch.ones(2))[0] == 1


def test_signatures_closures_and_state():
    def world():
        table = {"scale": 2.0}
        made = []

        def helper(x, /, k=2, *rest, flag, **more):
            def inner(y):
                return y * k + sum(rest)

            made.append(k)
            return inner(x) * table["scale"] + (1 if flag else 0) + more.get("b", 0)

        @stator.disable(recursive=False)
        def outer(x):
            return helper(x, flag=True) + helper(x, 5, 6, 7, flag=False, b=x), [helper(x, flag=None) for _ in "ab"]

        def fn(x):
            return outer(x * 2)

        def change(to):
            table["scale"] = to

        return World(fn=fn, table=table, made=made, change=change)

    def changed(w):
        w.change(4.0)
        return w.fn(rand(5))

    check(world, [*CALLS, changed, *CALLS], expect=None)


def test_exceptions_reach_the_disabled_function():
    def world():
        log = []

        def helper(x):
            log.append("in")
            y = x + 1
            if y.sum() > 0:
                raise ValueError(len(log))
            return y

        @stator.disable(recursive=False)
        def outer(x):
            try:
                return helper(x)
            except ValueError as error:
                return x * 3, str(error), sys.exc_info()[0]
            finally:
                log.append("out")

        return World(fn=lambda x: outer(x * 2), log=log)

    calls = [lambda w, s=s: w.fn(torch.full((2,), s)) for s in (1.0, -1.0, -2.0, 1.0, -1.0, 2.0)]
    check(world, calls, expect=None)


def test_modules_and_calls_from_c_code():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    class Scale(nn.Module):
        def forward(self, x):
            return x * 2 + 1

    scale = Scale()

    @stator.disable(recursive=False)
    def outer(x):
        return sum(map(lambda y: net(scale(y)), [x, x + 1]))

    backend = calls_of(lambda x: outer(x + 1) - 1, lambda x: outer(x + 1) - 1, X4 * 2)
    assert backend.in_last_call == 2 + 2, "the lambda, with all the modules, is one"


@pytest.mark.parametrize("disable", DISABLE)
def test_a_disabled_function_below(disable):
    ran = []

    def helper(x):
        return x * (100 if torch.compiler.is_compiling() else 1)

    @disable
    def plain(x):
        ran.append(1)
        return helper(x) * (100 if torch.compiler.is_compiling() else 1)

    @stator.disable(recursive=False)
    def outer(x):
        return plain(x) + 1

    backend = calls_of(lambda x: outer(x + 1) - 1, lambda x: outer(x + 1) - 1, X4)
    assert len(backend.graphs) == 2 and len(ran) == 8


def test_compiled_functions_below():
    ours = stator.compile(lambda x: x.sin() * 2, backend="eager")
    theirs = torch.compile(lambda x: x.cos() * 2, backend="eager")

    @stator.disable(recursive=False)
    def outer(x):
        return ours(x) + theirs(x)

    backend = calls_of(lambda x: outer(x + 1) - 1, lambda x: (x + 1).sin() * 2 + (x + 1).cos() * 2 - 1, X4)
    assert len(backend.graphs) == 2, "each by its own compiler"
    assert len(ours.stator.graphs) == 1 and ours.stator.hits == 2


def test_one_inside_of_another():
    def leaf(x):
        return x.sin() + 1

    @stator.disable(recursive=False)
    def inner(x):
        return leaf(x) * 2

    def middle(x):
        return inner(x + 1) - 1

    @stator.disable(recursive=False)
    def outer(x):
        return middle(x) * 3

    def fn(x):
        return outer(x * 2) / 2

    backend = calls_of(fn, fn, [(rand(seed),) for seed in range(6)])
    assert backend.in_last_call == len(backend.graphs) == 2 + 2 + 1


def test_generators_run_as_they_are():
    def helper(x):
        return x * 2

    @stator.disable(recursive=False)
    def outer(x):
        def parts():
            yield helper(x)
            yield helper(x + 1)

        return sum(parts())

    backend = calls_of(lambda x: outer(x + 1) - 1, lambda x: outer(x + 1) - 1, X4)
    assert len(backend.graphs) == 3 and backend.in_last_call == 2 + 2


def test_forgotten_with_the_rest():
    def helper(x):
        return x * 2

    @stator.disable(recursive=False)
    def outer(x):
        return helper(x) + 1

    def fn(x):
        return outer(x + 1) - 1

    backend = Counting()
    compiled = stator.compile(fn, backend=backend)
    for count in (3, 6):
        for x in X4:
            assert torch.equal(compiled(*x), fn(*x))
        assert len(backend.graphs) == count
        stator.reset()


def test_in_threads():
    def helper(x, k):
        return x * k + 1

    @stator.disable(recursive=False)
    def outer(x, k):
        return helper(x, k) - helper(x + 1, k)

    compiled = stator.compile(lambda x, k: outer(x + 1, k) - 1, backend="eager")
    wrong: list[object] = []

    def work(seed):
        for number in range(30):
            x = rand(seed * 100 + number)
            if not torch.equal(compiled(x, seed), outer(x + 1, seed) - 1):
                wrong.append((seed, number))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_signal_handler_raises(monkeypatch):
    """While stator decides what becomes of a function, too."""

    class Stop(Exception):
        pass

    def handler(number, frame):
        raise Stop

    def helper(x):
        return x * 2

    @stator.disable(recursive=False)
    def outer(x):
        return helper(x) + 1

    def fn(x):
        return outer(x + 1) - 1

    compiled = stator.compile(fn, backend="eager")
    for x in X4:
        compiled(*x)
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        chosen = stator.callees.policy.compiles_callee

        def interrupted(code):
            signal.raise_signal(signal.SIGUSR1)
            return chosen(code)

        monkeypatch.setattr(stator.callees.policy, "compiles_callee", interrupted)
        with pytest.raises(Stop):
            compiled(rand(1))
        monkeypatch.undo()
        assert torch.equal(compiled(rand(1)), fn(rand(1)))
    finally:
        signal.signal(signal.SIGUSR1, former)
