"""Whatever runs while stator holds a lock of its own may call stator: finalizers, callbacks of the collector."""

from __future__ import annotations

import ast
import gc
import itertools
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import stator
from stator import lookup

SRC = Path(__file__).parents[2] / "src" / "stator"
HEAD = """
import faulthandler, gc, sys
import torch
import stator
faulthandler.dump_traceback_later(120, exit=True)
log = []

class Backend:
    def __init__(self):
        self.calls = 0
    def __call__(self, module, inputs):
        graph = Graph(module)
        return graph

class Graph:
    def __init__(self, module):
        self.module = module
    def __call__(self, *values):
        log.append("ran")
        return self.module.forward(*values)
    def __del__(self):
        log.append("died")
        stator.reset()

def fn(x):
    return x * 2 + 1

def check(fast, n):
    for seed in range(n):
        x = torch.full((3,), float(seed))
        assert torch.equal(fast(x), fn(x))
"""
RESET = """
fast = stator.compile(fn, backend=Backend())
for turn in range(3):
    check(fast, 3)
    stator.reset()
    gc.collect()
    assert log == ["ran", "ran", "died"], log  # the first call is watched
    log.clear()
check(fast, 3)
fast.stator.reset()
gc.collect()
assert log.count("died") == 1
"""
COLLECTOR = """
def callback(phase, info):
    if phase == "stop" and not busy:
        busy.append(1)
        stator.reset()
        busy.clear()
busy = []
with stator.options.patch(background_compile=BACKGROUND):
    fast = stator.compile(fn, backend="eager")
    gc.callbacks.append(callback)
    gc.set_threshold(1, 1, 1)
    check(fast, 20)
    for n in range(4):
        stator.reset()
        fast.stator.wait()
        check(fast, 3)
gc.callbacks.remove(callback)
gc.set_threshold(700, 10, 10)
stator.reset()
check(fast, 2)
fast.stator.wait()
before = fast.stator.hits
check(fast, 3)
assert fast.stator.hits == before + 3
"""


def run(text: str) -> None:
    ran = subprocess.run([sys.executable, "-c", HEAD + text], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]


def test_a_backend_object_resets_when_it_dies() -> None:
    run(RESET)


@pytest.mark.parametrize("background", [False, True])
def test_the_collector_resets_whenever_it_has_run(background: bool) -> None:
    run(COLLECTOR.replace("BACKGROUND", str(background)))


def test_others_record_and_forget_whenever_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a callback of the collector may, of which each look causes one."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    shapes, busy, plain = itertools.count(4), [1], lookup.stance
    fast, other = (stator.compile(fn, backend="eager", dynamic=False) for _ in range(2))

    def acting() -> str:
        if not busy:
            busy.append(1)
            other.stator.reset()
            other(torch.ones(next(shapes)))
            busy.clear()
        return plain()

    monkeypatch.setattr(lookup, "stance", acting)
    for seed in range(3):
        busy.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(fast(torch.full((3,), float(seed))), torch.full((3,), 2.0 * seed + 1))
    assert 3 < next(shapes) < 100
    busy.append(1)
    for _ in range(3):
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 3.0))
    assert fast.stator.hits >= 2


def test_no_lock_of_ours_waits_for_itself() -> None:
    """A lock that its own thread cannot take twice is taken without waiting, or not held while Python code runs."""
    found = []
    for path in SRC.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Assign) and ast.unparse(node.value) == "threading.Lock()":
                name = ast.unparse(node.targets[0]).rpartition(".")[2]
                waits = f"with {ast.unparse(node.targets[0])}" in text or f".{name}.acquire()" in text
                found.append((path.name, name, waits))
    assert sorted(found) == [
        ("cache.py", "recording", False),
        ("cuda_graphs.py", "_lock", False),
    ]
    assert gc.isenabled()
