"""Exceptions that another thread puts into this one (`PyThreadState_SetAsyncExc`): the program gets each, once."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import os
import queue
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import rand

import stator
from stator import events, interrupts, record
from stator.replay import cache, effects
from stator.watch.objects import attributes
from stator.watch.observe import recorder, segment_ends

_PUT_IN: Any = ctypes.pythonapi.PyThreadState_SetAsyncExc
_PUT_IN.argtypes = [ctypes.c_ulong, ctypes.py_object]


class Late(Exception):
    """What a watchdog raises."""


class LateWithText(RuntimeError):
    def __init__(self, text: str = "too late") -> None:
        super().__init__(text)


def put_in(error: type[BaseException], thread: int | None = None) -> None:
    assert _PUT_IN(thread or threading.get_ident(), error) == 1


PLACES: list[tuple[Any, str]] = [
    (recorder.Recorder, "prepare"),
    (recorder.Recorder, "finish"),
    (recorder.Recorder, "release"),
    (attributes.Attributes, "read"),
    (record, "_make_entry"),
    (cache.Cache, "add"),
    (events, "emit"),
    (segment_ends, "_end_here"),
]


@pytest.mark.parametrize("error", [Late, LateWithText, TimeoutError])
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_pitfall_15_what_another_thread_puts_in_in_the_midst_of_a_recording(
    owner: Any, name: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The program gets it, once, and no fault is told; what it did is done once."""
    plain, armed = getattr(owner, name), [1]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if armed:
            armed.clear()
            put_in(error)
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
    log: list[int] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        y = x * 2
        print(end="")
        return y.relu()

    fast = stator.compile(fn, backend="eager")
    with pytest.raises(error):
        fast(rand(0))
    assert not armed and len(log) <= 1
    log.clear()
    for seed in range(4):
        assert torch.equal(fast(rand(seed)), fn(rand(seed)))
    assert len(log) == 8 and fast.stator.hits >= 3
    assert not [each for each in recwarn if "stator failed" in str(each.message)]


def test_pitfall_15_a_program_that_handles_what_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """It arrives where the program is, not at its end, and not there once more."""
    plain, armed = attributes.Attributes.read, [1]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if armed:
            armed.clear()
            put_in(Late)
        return plain(*args, **kwargs)

    monkeypatch.setattr(attributes.Attributes, "read", interrupted)

    class Box:
        number = 2.0

    box, log = Box(), list[str]()

    def fn(x: torch.Tensor) -> torch.Tensor:
        try:
            for _ in range(3):
                log.append("round")
                x = x * box.number
        except Late:
            log.append("late")
        return x + 1

    fast = stator.compile(fn, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(rand(0))
    assert log in (["round", "late"], ["late"])
    for seed in range(4):
        assert torch.equal(fast(rand(seed)), fn(rand(seed)))
    assert fast.stator.hits >= 2


def test_pitfall_15_what_is_put_in_while_effects_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken back, and it goes on; also if it comes while they are."""
    log: list[int] = []
    box = type("Box", (), {"n": 0})()

    def fn(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        box.n = 7
        box.m = x * 2
        return x * 3

    def cutting(function: Callable[..., Any]) -> Callable[..., Any]:
        def cut(*args: Any) -> Any:
            if armed:
                put_in(armed.pop())
            return function(*args)

        return cut

    armed: list[type[Exception]] = []
    for name in ("put_back_end", "put_back_item"):
        monkeypatch.setitem(effects.NAMES, name, cutting(effects.NAMES[name]))
    fast = stator.compile(fn, backend=lambda module, inputs: cutting(module.forward))
    for seed in range(3):
        assert torch.equal(fast(rand(seed)), rand(seed) * 3)
    armed[:] = [Late]
    with pytest.raises(Late):
        fast(rand(0))
    assert len(log) == 3
    for seed in range(3):
        assert torch.equal(fast(rand(seed)), rand(seed) * 3)
    assert len(log) == 6 and fast.stator.hits >= 4


def test_pitfall_15_what_comes_while_effects_are_taken_back() -> None:
    """What was to be put back is, and the newer one goes on."""
    former, made = {"a": 1}, list[int]()

    def back() -> None:
        made.append(1)
        if len(made) == 1:
            put_in(Late)
        former["a"] = 2

    with pytest.raises(Late):
        effects.put_back(ValueError("a fault"), (back,), (former.setdefault, "b", 3))
    assert made == [1, 1] and former == {"a": 2, "b": 3}


# ---- at any moment


class Box:
    count = 0


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.box = Box()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.box.count += 1
        return self.layer(x).relu() * 2 + 1


def with_breaks(box: Box, x: torch.Tensor) -> torch.Tensor:
    box.count += 1
    y = (x * 2).sum()
    if y.item() > 1e9:
        return x
    time.perf_counter()
    return x * 3 + y


def with_gradients(box: Box, x: torch.Tensor) -> torch.Tensor:
    box.count += 1
    w = torch.ones(4, requires_grad=True)
    (w * x).sum().backward()
    assert w.grad is not None
    return w.grad


@contextlib.contextmanager
def switching() -> Iterator[list[Any]]:
    """Threads take turns often; what finalizers do not let through is noted."""
    lost: list[Any] = []
    interval, hook = sys.getswitchinterval(), sys.unraisablehook
    sys.setswitchinterval(1e-6)
    sys.unraisablehook = lost.append
    try:
        yield lost
    finally:
        sys.setswitchinterval(interval)
        sys.unraisablehook = hook


_OTHERS = ("llvmlite", "tqdm")  # which have finalizers in Python
_ALONE = "STATOR_TEST_PUT_IN_ALONE"
_threads: list[threading.Thread] = []  # when one dies, Python code of `threading` runs, and may be interrupted


def throw(delay: float, begun: threading.Event, armed: list[int], put: list[int], target: int) -> None:
    begun.wait()
    end = time.perf_counter() + delay
    while time.perf_counter() < end:
        pass
    if armed:
        put.append(1)
        put_in(Late, target)


def attempt(call: Callable[[], Any], delay: float) -> tuple[int, int]:
    """How often it was put in while calls were made, and how often it came out."""
    begun, armed, put, caught = threading.Event(), [1], list[int](), 0
    thread = threading.Thread(target=throw, args=(delay, begun, armed, put, threading.get_ident()))
    _threads.append(thread)
    thread.start()
    try:
        try:
            begun.set()
            call()
            armed.clear()
            thread.join()
        except Late:
            caught += 1
        thread.join()
        for _ in range(3):
            pass
    except Late:
        caught += 1
    return len(put), caught


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_pitfall_15_what_is_put_in_at_any_moment_arrives_once(backend: str) -> None:
    """In a process of its own: what is put into `logging`, say, in the midst of taking its lock leaves that locked."""
    if _ALONE not in os.environ:
        here = f"{__file__}::test_pitfall_15_what_is_put_in_at_any_moment_arrives_once[{backend}]"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--show-capture=no", here]
        done = subprocess.run(
            command, env={**os.environ, _ALONE: "1"}, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
        return
    rng = random.Random(backend)
    arrived = 0
    with switching() as lost, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(40 if backend == "eager" else 20):
            box = Box()
            module = Layers()
            program = rng.choice((module, lambda x, b=box: with_breaks(b, x), lambda x, b=box: with_gradients(b, x)))
            fast = stator.compile(program, backend=backend, dynamic=False)
            warm = rng.choice((0, 0, 3))
            inputs = [torch.full((rng.choice((2, 3)), 4), float(n)) for n in range(6)]
            for x in inputs[:warm]:
                fast(x)
            counts = module.box if program is module else box

            def calls(fast: Any = fast, inputs: Any = inputs) -> None:
                for x in inputs:
                    fast(x)

            lost.clear()
            put, came = attempt(calls, rng.uniform(0, 0.004 if warm else 0.03))
            assert came + len(lost) == put, (number, warm, [str(each.message) for each in caught])
            assert all(getattr(each.object, "__module__", "").startswith(_OTHERS) for each in lost), lost
            arrived += came
            for x in inputs[:3]:
                before = counts.count
                assert torch.equal(fast(x), program(x)) and counts.count == before + 2
    assert arrived > 8
    assert not [str(each.message) for each in caught if "stator failed" in str(each.message)]


# ---- what is taken for it


def raised_by(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_pitfall_15_what_was_raised_is_not_put_in() -> None:
    def by_statement() -> None:
        raise Late

    def by_assertion() -> None:
        assert not by_assertion

    others: tuple[Callable[[], Any], ...] = (
        by_statement,
        by_assertion,
        lambda: next(iter(())),
        lambda: [][1],
        lambda: int("x"),
        lambda: torch.ones(2, 3) @ torch.ones(2),
    )
    assert [interrupts.is_from_outside(raised_by(function)) for function in others] == [False] * len(others)
    for error in (Late, LateWithText, TimeoutError, RuntimeError, queue.Full):
        assert interrupts.is_put_in(raised_by(lambda error=error: put_in(error)))


_BROAD = {"Exception", "BaseException"}
_ASKING = {"let_through", "interrupt", "is_from_outside", "is_put_in", "fail", "_end_by", "collapse"}
_ASKING |= {"internal_failure", "not_kept", "not_found"}  # which raise it
# Where nothing of the program's runs, or the exception is looked at behind the handler.
_EXEMPT = {
    ("async_compile.py", "_made"): "the background thread",
    ("backends/cuda_graphs.py", "__del__"): "a finalizer: it would reach nobody",
    ("backends/cuda_graphs.py", "_captured"): "another one is on its way",
    ("cli/bench.py", "run"): "a command that ends",
    ("cli/explain.py", "run_script"): "a command that ends",
    ("pipeline.py", "_replay"): "`repeat` raises it",
    ("replay/effects.py", "put_back"): "twice in a row",
}


def handlers(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) or (isinstance(node, ast.Call) and _name(node) == "suppress"):
                    yield function.name, node


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _is_broad(node: ast.AST) -> bool:
    kinds = [node.type] if isinstance(node, ast.ExceptHandler) else list(getattr(node, "args", ()))
    names = {n.id for kind in kinds if kind is not None for n in ast.walk(kind) if isinstance(n, ast.Name)}
    return bool(names & _BROAD) or kinds == [None]


def test_pitfall_15_whoever_catches_everything_lets_it_through() -> None:
    source = Path(stator.__file__).parent
    found = set()
    for path in sorted(source.rglob("*.py")):
        for function, node in handlers(ast.parse(path.read_text())):
            asks = {_name(call) for call in ast.walk(node) if isinstance(call, ast.Call)} & _ASKING
            body = getattr(node, "body", [None])
            raises = isinstance(body[-1], ast.Raise) and body[-1].exc is None
            if _is_broad(node) and not asks and not raises:
                found.add((str(path.relative_to(source)), function))
    assert found == set(_EXEMPT)
