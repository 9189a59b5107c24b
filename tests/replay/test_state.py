"""Torch's state as C code asks for it directly: as torch's own functions say, in every mode and every thread."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
import threading

import pytest
import torch

from stator import _native
from stator.replay import state
from stator.support import gradient_hooks
from stator.support.guard_readers import torch_state


@pytest.fixture(autouse=True)
def put_back():
    yield
    state.setup()


def test_it_is_asked_directly_here():
    assert state.is_direct()


def test_a_library_that_is_not_there():
    assert not _native.state_direct("/nowhere/libtorch_cpu.so", "/nowhere/libc10.so", 0)
    assert _native.state_is(torch_state())


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(torch, "__version__", "2.99.0"), (platform, "machine", lambda: "sparc"), (sys, "platform", "darwin")],
)
def test_an_interface_that_nobody_has_read_up_is_not_used(owner, name, value, monkeypatch):
    leaf = torch.ones(2, requires_grad=True)
    assert not gradient_hooks.has_gradient_hooks(leaf)
    gradient_hooks._places.cache_clear()
    monkeypatch.setattr(owner, name, value)
    assert not state.is_direct()
    assert _native.state_is(torch_state())
    assert gradient_hooks.has_gradient_hooks(leaf), "no memory of a node is read"
    monkeypatch.undo()
    gradient_hooks._places.cache_clear()
    assert state.is_direct() and not gradient_hooks.has_gradient_hooks(leaf)


def test_a_function_that_answers_otherwise_is_not_used(monkeypatch):
    former = torch_state()
    monkeypatch.setattr(state, "torch_state", lambda: (*former[:4], former[4] + 1, *former[5:]))
    assert not state.is_direct()
    assert _native.state_is(former)


MODES = [
    *state._PROBES,
    lambda: torch.autocast("cpu", torch.bfloat16),
    torch.autograd.forward_ad.dual_level,
]


def differs(mode, found):
    former = torch_state()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mode())
        now = torch_state()
        found.append(_native.state_is(now) and _native.state_is(former) == (now == former))
    found.append(_native.state_is(former))


@pytest.mark.parametrize("mode", MODES)
def test_modes_in_every_thread(mode):
    found: list[bool] = []
    threads = [threading.Thread(target=differs, args=(mode, found)) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    differs(mode, found)
    assert found == [True] * 6


def test_a_mode_of_one_thread_is_not_another_one_s():
    former, found = torch_state(), []
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        thread = threading.Thread(target=lambda: found.append(_native.state_is((former[0], *torch_state()[1:]))))
        thread.start()
        thread.join()
        assert not _native.state_is(former)
    assert found == [True] and _native.state_is(former)


def test_tracing():
    former, found = torch_state(), []

    def traced(x):
        found.append((_native.state_is(former), _native.state_is(torch_state())))
        return x + 1

    torch.jit.trace(traced, torch.ones(2), check_trace=False)
    assert found == [(False, True)] and _native.state_is(former)


PRECISIONS = """
import torch
from stator import _native
from stator.support.guard_readers import PRECISION_ROWS, torch_state
former = torch_state()
rows = [(row, p) for row in PRECISION_ROWS for p in ("ieee", "bf16" if row[0] == "mkldnn" else "tf32", "none")]
for row, precision in rows:
    torch._C._set_fp32_precision_setter(*row, precision)
    now = torch_state()
    assert _native.state_is(now) and _native.state_is(former) == (now == former), (row, precision)
torch.set_float32_matmul_precision("medium")
assert _native.state_is(torch_state()) and not _native.state_is(former)
print("done")
"""


def test_precisions():
    """In a process of its own: a precision cannot be put back to what it is by default."""
    done = subprocess.run([sys.executable, "-c", PRECISIONS], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr
