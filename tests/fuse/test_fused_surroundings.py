"""The native backend and what is around it: threads, reentry, denormals, memory, a machine without a C++ compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stator
from stator import events

MEMORY = Path(__file__).parents[1] / "autograd" / "step_memory.py"


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def everything_is_compiled() -> Iterator[None]:
    refused: list[Any] = []
    unsubscribe = events.subscribe(refused.append, events.NotGenerated, events.NotDerived, events.InternalFailure)
    yield
    unsubscribe()
    assert not refused


def rand(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def block(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    hidden = F.gelu(x @ w)
    return F.layer_norm(torch.softmax(x, -1) + hidden @ v, (x.shape[-1],))


# -------------------------------------------------------------------------------------------------------- threads

LARGE: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "pointwise": (lambda x: (x * 2 + 1).tanh() * x.sigmoid(), (700, 1001)),
    "rows": (lambda x: torch.softmax(x, -1), (700, 1001)),
    "short rows": (lambda x: torch.softmax(x, -1), (70_003, 7)),
    "norm": (lambda x: F.layer_norm(x, (1001,)), (700, 1001)),
    "columns": (lambda x: (x.exp().sum(0), x.amax(0), x.var(0)), (700, 1001)),
    "one sum": (lambda x: (x * x).sum(), (700, 1001)),
    "few long rows": (lambda x: (x.sum(-1), x.std(-1), x.argmax(-1)), (3, 400_003)),
    "a scan": (lambda x: x.cumsum(-1), (700, 1001)),
    "transposed": (lambda x: x.t().contiguous() + 1, (700, 1001)),
    "product": (lambda x: F.gelu(x @ x.t()), (300, 257)),
}


@pytest.mark.parametrize("name", LARGE)
def test_bits_do_not_depend_on_the_number_of_threads(name: str) -> None:
    fn, shape = LARGE[name]
    compiled = stator.compile(fn, backend="native")
    x = rand(0, *shape)
    found = []
    compiled(x)  # the first call runs as it is
    for count in (1, 2, 3, 1):
        with threads(count):
            assert torch.get_num_threads() == count
            found.append(torch.utils._pytree.tree_leaves(compiled(x)))
            wanted = torch.utils._pytree.tree_leaves(fn(x))
    for results in found[1:]:
        assert all(map(torch.equal, results, found[0]))
    for got, right in zip(found[0], wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-3)
    assert compiled.stator.recordings == 1 and compiled.stator.plain == 0


def test_the_number_of_threads_is_honoured() -> None:
    """By processor time: what other threads of the process take, beside this one."""
    compiled = stator.compile(lambda x: (x.sin() * x.cos()).exp().tanh(), backend="native")
    x = rand(0, 2000, 2000)
    compiled(x)
    shares = {}
    for count in (1, 2):
        with threads(count):
            compiled(x)
            whole, own = time.process_time(), time.thread_time()
            for _ in range(5):
                compiled(x)
            whole, own = time.process_time() - whole, time.thread_time() - own
            shares[count] = (whole - own) / whole
    assert shares[1] < 0.1 and shares[2] > 0.2, shares


@pytest.mark.parametrize("grad", [False, True])
def test_threads_call_one_graph_at_once(grad: bool) -> None:
    compiled = stator.compile(block, backend="native")
    w, v = rand(1, 64, 96).requires_grad_(grad), rand(2, 96, 64).requires_grad_(grad)

    def run(seed: int) -> list[Tensor]:
        x = rand(seed, 40, 64).requires_grad_(grad)
        result = compiled(x, w, v)
        return [result.detach(), *torch.autograd.grad(result.square().sum(), (x, w, v))] if grad else [result]

    run(0)  # the first call runs as it is
    with threads(1):
        wanted = [run(seed) for seed in range(8)]
    torch.testing.assert_close(wanted[0][0], block(rand(0, 40, 64), w, v).detach(), rtol=1e-4, atol=1e-5)
    wrong: list[Any] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        try:
            torch.set_num_threads(1)  # each thread has a number of its own
            start.wait()
            for turn in range(40):
                seed = (number + turn) % 8
                if not all(map(torch.equal, run(seed), wanted[seed])):
                    wrong.append((number, turn))
        except BaseException as error:
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong, wrong[:3]
    assert compiled.stator.recordings == 1 and compiled.stator.plain == 0


def test_flushing_of_denormals_holds_in_all_threads() -> None:
    compiled = stator.compile(lambda x: x * 0.5 + x * 0.25, backend="native")
    x = torch.full((4000, 500), 1e-39)
    assert bool((x * 0.5 != 0).all())
    compiled(x)
    with threads(2):
        for flush in (False, True, False):
            assert torch.set_flush_denormal(flush)
            try:
                got = compiled(x)
            finally:
                torch.set_flush_denormal(False)
            assert bool((got == 0).all() if flush else (got != 0).all())


# -------------------------------------------------------------------------------------------------------- reentry

# How torch dispatches where no operator runs: inside of one there are no gradients.
OUTSIDE = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
CALLS: list[Callable[[Tensor], Tensor]] = []


@torch.library.custom_op("stator_test::reenter", mutates_args=())
def reenter(x: Tensor) -> Tensor:
    """An operator in the middle of a graph that calls what it is given."""
    return CALLS[-1](x).clone()


@reenter.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def around(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """What is computed before the operator is wanted behind it."""
    before = torch.softmax(x @ w, -1)
    inside = torch.ops.stator_test.reenter(x)
    return F.layer_norm(before @ v + inside, (x.shape[-1],)) + before.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", ["another graph", "the same graph", "a backward"])
def test_a_graph_that_is_entered_again(kind: str) -> None:
    w, v = rand(1, 32, 48), rand(2, 48, 32)
    outer, other = stator.compile(around, backend="native"), stator.compile(block, backend="native")

    def leaf(x: Tensor) -> Tensor:
        return x * 2

    def nested(x: Tensor, call: Callable[..., Tensor]) -> Tensor:
        CALLS.append(leaf)
        try:
            return call(x + 1, w, v)
        finally:
            CALLS.pop()

    def gradient(x: Tensor, call: Callable[..., Tensor]) -> Tensor:
        with torch._C._ForceDispatchKeyGuard(*OUTSIDE), torch.enable_grad():
            own = x.detach().requires_grad_()
            return torch.autograd.grad(call(own, w, v).square().sum(), own)[0]

    inside: dict[str, Callable[[Tensor, bool], Tensor]] = {
        "another graph": lambda x, fast: (other if fast else block)(x, w, v),
        "the same graph": lambda x, fast: nested(x, outer if fast else around),
        "a backward": lambda x, fast: gradient(x, other if fast else block),
    }
    CALLS.append(leaf)
    outer(rand(0, 24, 32), w, v)  # compiled before it is entered twice
    CALLS.pop()
    for seed in range(4):
        x, found = rand(seed, 24, 32), []
        for fast in (False, True):
            CALLS.append(lambda x, fast=fast: inside[kind](x, fast))
            found.append((outer if fast else around)(x, w, v))
            CALLS.pop()
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert outer.stator.plain == 0 and outer.stator.hits >= 4


# ----------------------------------------------------------------------------------------------- the process around

ALONE = """
import sys

def forbid(event, args):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty"):
        raise RuntimeError(f"{event} {args}")

import torch, stator
from stator import events
refused = []
events.subscribe(refused.append, events.NotGenerated, events.NotDerived, events.InternalFailure)
sys.addaudithook(forbid)

def fn(x, w):
    return torch.softmax(torch.nn.functional.gelu(x @ w), -1).sum(0)

fast = stator.compile(fn)
for seed in range(3):
    torch.manual_seed(seed)
    x, w = torch.randn(9, 16), torch.randn(16, 8, requires_grad=True)
    one, other = fn(x, w), fast(x, w)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(*(torch.autograd.grad(r.square().sum(), w)[0] for r in (one, other)))
assert not refused and (fast.stator.recordings, fast.stator.hits, fast.stator.plain) == (1, 2, 0), refused
print("inductor loaded:", "torch._inductor.compile_fx" in sys.modules)
"""


def test_no_compiler_and_no_other_process_is_needed(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "STATOR_CACHE_DIR": str(tmp_path / "cache")}
    for name in ("CC", "CXX", "STATOR_LOGS"):
        environment.pop(name, None)
    ran = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, env=environment, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "inductor loaded: False\n"


@pytest.mark.parametrize("model", ["BERT-4", "BERT-4 with dropout", "MLP"])
def test_memory_of_a_training_step(model: str) -> None:
    command = [sys.executable, str(MEMORY), model, "native"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    found = json.loads(told.stdout.splitlines()[-1])
    assert found["arena"] > 0
    assert found["compiled"]["peak"] <= 1.02 * found["eager"]["peak"] + 2**20
    assert found["compiled"]["kept"] <= 0.7 * found["eager"]["kept"]
