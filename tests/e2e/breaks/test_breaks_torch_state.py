"""torch's state that the step between two segments changes: the next segment notices, in every call."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from harness import rand
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import stator
from stator.support.guard_readers import torch_state

LOG: list[str] = []


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        LOG.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        LOG.append(str(func))
        return func(*args, **(kwargs or {}))


def packed(tensor):
    LOG.append("packed")
    return tensor


@contextlib.contextmanager
def double():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Strict:
    """A backend whose graphs are for one state of torch: the one in which they first run."""

    def __init__(self):
        self.wrong = []

    def __call__(self, graph, inputs):
        former = []

        def run(*args):
            now = torch_state()
            former.append(now)
            if now != former[0]:
                self.wrong.append((former[0], now))
            return graph.forward(*args)

        return run


def product(x):
    return x * x


MODES = {
    "no_grad": (torch.no_grad, product),
    "inference_mode": (torch.inference_mode, product),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), lambda x: x @ x),
    "autocast to another dtype": (lambda: torch.autocast("cpu", torch.float16), lambda x: x @ x),
    "default dtype": (double, lambda x: x + torch.ones(4, 4)),
    "function mode": (Functions, product),
    "dispatch mode": (Operators, product),
    "saved tensor hooks": (lambda: torch.autograd.graph.saved_tensors_hooks(packed, packed), product),
    "forward AD": (forward_ad.dual_level, lambda x: x * (1 if forward_ad._current_level < 0 else 2)),
    "deterministic": (deterministic, lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3)),
}


def seen(call, x, on):
    """What a call comes to, and what it did: under the mode (`on`) from the first step to the second."""
    LOG.clear()
    result = call(x, on)
    facts = (result.dtype, result.requires_grad, result.is_inference(), torch.is_grad_enabled(), tuple(LOG))
    return result.detach().clone().tolist(), facts


@pytest.mark.parametrize("name", MODES)
def test_a_step_changes_it(name):
    mode, use = MODES[name]
    stack = contextlib.ExitStack()

    @stator.disable
    def enter(on):
        if on:
            stack.enter_context(mode())

    @stator.disable
    def leave():
        stack.close()

    def fn(x, on):
        y = x + 1
        enter(on)
        z = use(y)
        leave()
        return z

    backend = Strict()
    fast = stator.compile(fn, backend=backend)
    x = rand(1, 4, 4, requires_grad=True)
    for on in (False, False, False, False, True, False, True, True, False, True, False):
        assert seen(fast, x, on) == seen(fn, x, on), on
    assert fast.stator.hits >= 6 and not backend.wrong


def test_modes_of_another_thread_do_not_count():
    """What C code knows of the state it knows of each thread."""

    @stator.disable
    def pause():
        pass

    def fn(x):
        y = x + 1
        pause()
        return y * y

    backend = Strict()
    fast = stator.compile(fn, backend=backend)
    x = rand(1, requires_grad=True)
    for _ in range(4):
        fast(x)
    found = []
    with torch.no_grad(), double():
        thread = threading.Thread(target=lambda: found.append(fast(x).requires_grad))
        thread.start()
        thread.join()
        assert not fast(x).requires_grad
    assert found == [True] and fast(x).requires_grad and not backend.wrong


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_graph_is_compiled_under_the_dtype_that_was_the_default_where_it_runs(backend):
    def fn(x):
        torch.set_default_dtype(torch.float64)
        try:
            return x + torch.ones(4), torch.zeros(2), torch.full((2,), 1.5), torch.arange(3) / 2, torch.arange(2.0)
        finally:
            torch.set_default_dtype(torch.float32)

    compiled = stator.compile(fn, backend=backend)
    for seed in range(4):
        for wanted, found in zip(fn(rand(seed)), compiled(rand(seed)), strict=True):
            assert torch.equal(wanted, found) and wanted.dtype is found.dtype
    assert torch.get_default_dtype() is torch.float32
    assert compiled.stator.hits == 3 and len(compiled.stator.break_reasons) == 2
