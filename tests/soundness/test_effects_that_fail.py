"""Effects that fail, at every position: each is made once, by the replay or by the function, in eager's order."""

from __future__ import annotations

import collections
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from harness import World, check, rand
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import BaseTorchFunctionMode

import stator
from stator import events, record
from stator.replay import cache, effects
from stator.watch.objects import attributes
from stator.watch.observe import recorder
from stator.watch.symbols import symbolic_shapes


def test_rule_6_a_class_attribute_comes_and_goes() -> None:
    def world() -> World:
        class K:
            pass

        log: list[int] = []

        def fn(x: torch.Tensor) -> torch.Tensor:
            log.append(1)
            K.tmp = 1  # type: ignore[attr-defined]
            del K.tmp  # type: ignore[attr-defined]
            return x * 2

        return World(fn=fn, log=log, K=K)

    def leave_one(w: World) -> Any:
        w.K.tmp = 5  # it was there before
        return w.fn(rand(3))

    def run(seed: int) -> Callable[[World], Any]:
        return lambda w: (w.fn(rand(seed)), vars(w.K).get("tmp"))

    check(world, [run(0), run(1), run(2), leave_one, run(4)], expect="miss hit hit hit hit", graphs=1)


def test_rule_6_a_gradient_that_does_not_fit() -> None:
    """The sizes are symbols, and that of the parameter is nobody's input."""
    log: list[int] = []
    p = torch.zeros(4, requires_grad=True)

    def fn(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        p.grad = x * 1
        log.append(2)
        return x + 1

    def call(f: Callable[[torch.Tensor], torch.Tensor], n: int) -> tuple[Any, ...]:
        log.clear()
        p.grad = None
        try:
            result: Any = f(torch.full((n,), float(n))).tolist()
        except RuntimeError as error:
            result = str(error)
        return result, list(log), None if p.grad is None else p.grad.tolist()

    fast = stator.compile(fn, backend="eager", dynamic=True)
    for n in (4, 4, 5, 4, 5, 4):
        assert call(fast, n) == call(fn, n)
    assert (fast.stator.recordings, len(fast.stator.graphs)) == (1, 1)


# ---------------------------------------------------------------- every kind of effect, failing at every position


class Box:
    __slots__ = ("__dict__", "slot")

    def __init__(self) -> None:
        self.n = 0
        self.slot = 0


class Shared:
    count = 0
    gone = 1


GLOBAL = 0


class State:
    """Outside objects, one for every kind of effect."""

    def __init__(self) -> None:
        global GLOBAL
        GLOBAL = 0
        Shared.count, Shared.gone = 0, 1
        Shared.new = 0  # type: ignore[attr-defined]
        del Shared.new  # type: ignore[attr-defined]
        self.box = Box()
        self.log: list[Any] = []
        self.items = [1, 2, 3]
        self.by_key = {"a": 1, "b": 2, "c": 3}
        self.shrinking = {"a": 1, "b": 2, "c": 3}
        self.reordered = {"a": 1, "b": 2, "c": 3}
        self.numbers = {1, 2}
        self.queue = collections.deque([1, 2], maxlen=3)
        self.ordered = collections.OrderedDict(a=1, b=2)
        self.moved = collections.OrderedDict(a=1, b=2)
        self.p = torch.zeros(3, requires_grad=True)
        self.key = Box()
        self.by_object: dict[Any, Any] = {self.key: 0}
        self.cell, self.read = self._cells()

    @staticmethod
    def _cells() -> tuple[Callable[[Any], None], Callable[[], Any]]:
        inside = 0

        def write(value: Any) -> None:
            nonlocal inside
            inside = value

        return write, lambda: inside

    def seen(self) -> list[Any]:
        grad = self.p.grad
        return [
            self.box.n, self.box.slot, vars(self.box), self.log, self.items, list(self.by_key.items()),
            list(self.shrinking.items()), list(self.reordered.items()), sorted(self.numbers), list(self.queue),
            list(self.ordered.items()),
            list(self.moved.items()), None if grad is None else grad.tolist(), list(self.by_object.values()),
            self.read(), GLOBAL, Shared.count, vars(Shared).get("new"), hasattr(Shared, "gone"),
            torch.is_grad_enabled(),
        ]  # fmt: skip


def everything(s: State, x: torch.Tensor, n: int) -> torch.Tensor:
    global GLOBAL
    s.log.append(n)
    s.box.n = n
    s.box.slot = n
    s.items[0] = n
    s.by_key["a"] = n
    del s.shrinking["b"]
    s.reordered.pop("a")
    s.reordered["a"] = n
    s.numbers.add(n)
    s.queue.append(n)
    s.ordered["c"] = n
    s.moved.move_to_end("a")
    s.p.grad = x * 1
    s.by_object[s.key] = n
    s.cell(n)
    GLOBAL = n
    Shared.count = n
    Shared.new = n  # type: ignore[attr-defined]
    if n > 90:
        del Shared.gone
    s.log.append(x)
    s.log.pop()
    return x + n


class _Fault:
    """Fails when it is called for the `at`-th time."""

    def __init__(self) -> None:
        self.count = 0
        self.at = -1
        self.error: Callable[[], BaseException] = RuntimeError

    def __call__(self) -> None:
        self.count += 1
        if self.count - 1 == self.at:
            raise self.error()


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> _Fault:
    """Comes before each line of each effect."""
    made = _Fault()
    for kind, rule in effects.RULES.items():

        def make(m: Any, t: str, e: Any, plain: Any = rule.make) -> str:
            steps = plain(m, t, e).split("; ")
            return "; ".join(f"{m.constant(made)}(); {step}" for step in steps) + f"; {m.constant(made)}()"

        monkeypatch.setitem(effects.RULES, kind, rule._replace(make=make))
    return made


def states(n: int) -> tuple[State, list[Any]]:
    """A state, and what it is after a call."""
    state = State()
    everything(state, rand(n, 3), n)
    after = state.seen()
    return State(), after


@pytest.mark.filterwarnings("ignore:stator failed")
def test_rule_6_a_fault_before_and_behind_every_effect(fault: _Fault) -> None:
    for last in (50, 99):
        fast = stator.compile(everything, backend="eager")
        fault.at, fault.count = -1, 0
        for _ in range(3):
            state, after = states(last)
            fast(state, rand(last, 3), last)
            assert state.seen() == after
        assert (fast.stator.recordings, fast.stator.hits) == (1, 2)
        entry = fast.stator.entries[0]
        put_back = {rule.back.__name__ for rule in effects.RULES.values()}
        assert all(name in entry.replay_source for name in put_back)
        positions = fault.count // 2
        assert positions > 20
        for at in range(positions):
            state, after = states(last)
            fault.at, fault.count = at, 0
            result = fast(state, rand(last, 3), last)
            assert torch.equal(result, rand(last, 3) + last)
            assert state.seen() == after, at
            assert fault.count == at + 1  # it did fail in the replay


@pytest.mark.filterwarnings("ignore:stator failed")
def test_rule_6_a_state_of_which_nothing_was_changed_is_as_it_was(fault: _Fault) -> None:
    """What a KeyboardInterrupt leaves behind is what was there before the call."""
    fast = stator.compile(everything, backend="eager")
    for _ in range(3):
        fast(State(), rand(50, 3), 50)
    positions = fault.count // 2
    fault.error = KeyboardInterrupt
    for at in range(positions):
        state = State()
        before = state.seen()
        fault.at, fault.count = at, 0
        with pytest.raises(KeyboardInterrupt):
            fast(state, rand(50, 3), 50)
        assert state.seen() == before, at


def test_pitfall_15_what_a_signal_handler_raises_reaches_the_program() -> None:
    log: list[int] = []

    class Late(Exception):
        pass

    def handler(number: int, frame: Any) -> None:
        raise Late

    def fn(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        return x * 2

    def graph(module: Any, inputs: Any) -> Any:
        def run(*values: Any) -> Any:
            if armed:
                armed.clear()
                signal.raise_signal(signal.SIGUSR1)
            return module.forward(*values)

        return run

    armed: list[int] = []
    fast = stator.compile(fn, backend=graph)
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        for turn in range(3):
            for seed in range(3):
                assert torch.equal(fast(rand(seed)), rand(seed) * 2)
            assert len(log) == 3 * (turn + 1)
            armed.append(1)
            with pytest.raises(Late):
                fast(rand(4))
            assert len(log) == 3 * (turn + 1)  # the signal came before the effect
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert fast.stator.recordings == 1


def test_pitfall_15_what_a_handler_raises_while_a_graph_is_compiled() -> None:
    log: list[int] = []

    class Late(Exception):
        pass

    def handler(number: int, frame: Any) -> None:
        raise Late

    def backend(module: Any, inputs: Any) -> Any:
        if len(log) < 2:
            signal.raise_signal(signal.SIGUSR1)
        return module.forward

    def fn(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        return x * 2

    fast = stator.compile(fn, backend=backend)
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Late):
            fast(rand(0))
        assert log == [1]
        for seed in range(3):
            assert torch.equal(fast(rand(seed)), rand(seed) * 2)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert len(log) == 4 and (fast.stator.recordings, fast.stator.hits) == (1, 2)


class Late(Exception):
    """What a signal handler raises."""


@pytest.fixture
def handled() -> Iterator[None]:
    def handler(number: int, frame: Any) -> None:
        raise Late

    former = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, former)


PLACES = [
    (recorder.Recorder, "prepare"),
    (recorder.Recorder, "finish"),
    (recorder.Recorder, "release"),
    (attributes.Attributes, "read"),
    (record, "_make_entry"),
    (cache.Cache, "add"),
    (symbolic_shapes.Shapes, "run"),
    (events, "emit"),
]


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_pitfall_15_what_a_handler_raises_in_the_midst_of_a_recording(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The program gets it, once, and no fault is told; what it did is done once."""
    plain, armed = getattr(owner, name), [1]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if armed:
            armed.clear()
            signal.raise_signal(signal.SIGUSR1)
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
    log: list[int] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        return (x * 2).relu()

    fast = stator.compile(fn, backend="eager", dynamic=True)
    with pytest.raises(Late):
        fast(rand(0))
    assert not armed and len(log) <= 1
    log.clear()
    for seed in range(4):
        assert torch.equal(fast(rand(seed, 3 + seed)), fn(rand(seed, 3 + seed)))
    assert (len(log), fast.stator.hits) == (8, 3)
    assert not [each for each in recwarn if "stator failed" in str(each.message)]


@pytest.mark.usefixtures("handled")
def test_pitfall_15_modes_that_were_on_when_a_handler_raised() -> None:
    """A handler may raise between the beginning of a mode and that of its `with` block."""

    def backend(module: Any, inputs: Any) -> Any:
        if armed:
            armed.clear()
            FakeTensorMode().__enter__()
            BaseTorchFunctionMode().__enter__()
            torch._C._dispatch_tls_set_dispatch_key_included("PythonDispatcher", True)
            signal.raise_signal(signal.SIGUSR1)
        return module.forward

    def state() -> Any:
        keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        modes = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
        return *map(str, keys), *modes, torch._C._only_lift_cpu_tensors(), torch.is_grad_enabled()

    armed, before = [1], state()
    fast = stator.compile(lambda x: x * 2, backend=backend)
    for outer in (contextlib.nullcontext(), torch.no_grad(), torch.inference_mode()):
        armed[:] = [1]
        with outer:
            inside = state()
            with pytest.raises(Late):
                fast(rand(0))
            assert state() == inside
            for seed in range(3):
                assert torch.equal(fast(rand(seed)), rand(seed) * 2)
            fast.stator.reset()
        assert state() == before


def test_rule_6_what_cannot_be_taken_back_is_not_made_again(fault: _Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows then what was made: the program is told of the exception."""

    def fail(*_: Any) -> None:
        raise ValueError("not even that")

    monkeypatch.setitem(effects.NAMES, "put_back_end", fail)
    log: list[int] = []
    box = Box()

    def fn(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        box.n = 7
        return x * 2

    fast = stator.compile(fn, backend="eager")
    for seed in range(3):
        assert torch.equal(fast(rand(seed)), rand(seed) * 2)
    assert (log, fast.stator.recordings) == ([1, 1, 1], 1)
    fault.count, fault.at = 0, 2
    with pytest.raises(RuntimeError):
        fast(rand(5))
    assert len(log) == 4
    assert torch.equal(fast(rand(6)), rand(6) * 2)
    assert len(log) == 5
