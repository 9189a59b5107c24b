"""Machine code of compiled functions: how long it lives, in a child, and where the system allows none."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stator
from stator.codegen import cache, kernels


def alive() -> int:
    gc.collect()
    return len(cache._alive) + len(kernels._compiled)


def compiled_anew(number: int) -> tuple[Callable[[Tensor], Tensor], Any]:
    factor = 1 + number / 1000

    def function(x: Tensor) -> Tensor:
        return torch.softmax(x * factor + number, -1).tanh()

    return function, stator.compile(function, backend="native")


@pytest.mark.parametrize("grad", [False, True])
def test_recompilations_leave_no_code_behind(grad: bool) -> None:
    before = alive()
    for number in range(12):
        plain, fast = compiled_anew(number)
        for seed in range(3):
            x = torch.randn(6, 20, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)
            result = fast(x)
            torch.testing.assert_close(result, plain(x))
            if grad:
                result.sum().backward()
        assert alive() > before and fast.stator.plain == 0
        del fast, result
        stator.reset()
    assert alive() == before


def test_code_lives_as_long_as_a_backward_that_needs_it() -> None:
    before = alive()
    plain, fast = compiled_anew(7)
    waiting = []
    for seed in range(3):
        x = torch.randn(6, 20, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        waiting.append((x, fast(x)))
    assert fast.stator.hits == 2
    del fast
    stator.reset()
    assert alive() > before
    for x, result in waiting:
        (wanted,) = torch.autograd.grad(plain(x).square().sum(), x)
        (found,) = torch.autograd.grad(result.square().sum(), x)
        torch.testing.assert_close(found, wanted)
    del waiting, result
    assert alive() == before


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch's own threads do not outlive a fork: where they were used, eager hangs in a child, too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_child_runs_what_its_parent_compiled_and_compiles(one_thread: None) -> None:
    plain, fast = compiled_anew(11)
    x = torch.randn(6, 20)
    for _ in range(3):
        fast(x)
    child = os.fork()
    if child == 0:
        try:
            torch.testing.assert_close(fast(x), plain(x))
            own, other = compiled_anew(12)
            for _ in range(3):
                torch.testing.assert_close(other(x), own(x))
            os._exit(0 if (fast.stator.hits, other.stator.hits, other.stator.plain) == (3, 2, 0) else 1)
        except BaseException:
            os._exit(2)
    for _ in range(1500):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.02)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert status == 0


REFUSED = """
import ctypes, torch, stator
from stator import events
from stator.codegen import jit

if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0:  # PR_SET_MDWE; an older kernel: as if
    jit.executable_memory_refused = lambda: "this system refuses executable memory: Permission denied"
told = []
events.subscribe(told.append, events.NotGenerated, events.InternalFailure)

def fn(x, w):
    return torch.softmax(x @ w, -1).tanh().sum(0)

fast = stator.compile(fn)
for seed in range(3):
    torch.manual_seed(seed)
    x, w = torch.randn(9, 16), torch.randn(16, 8, requires_grad=True)
    one, other = fn(x, w), fast(x, w)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(*(torch.autograd.grad(r.square().sum(), w)[0] for r in (one, other)))
assert (fast.stator.recordings, fast.stator.hits, fast.stator.plain) == (1, 2, 0)
print(*[f"{t.part}: {t.why}" for t in told], sep="\\n")
"""


def test_a_system_that_refuses_executable_memory_runs_operator_by_operator(tmp_path: Path) -> None:
    environment = {**os.environ, "STATOR_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, env=environment, timeout=300)
    assert ran.returncode == 0, ran.stderr
    why = "this system refuses executable memory: Permission denied"
    assert ran.stdout.splitlines() == [f"forward: {why}"]
    assert len([line for line in ran.stderr.splitlines() if why in line]) == 1
