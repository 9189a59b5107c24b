"""Torch's own state: settings that a program reads, and the mode that watches it, which must not show."""

from __future__ import annotations

import contextlib

import pytest
import torch
from harness import PLAIN, World, check, rand
from torch import overrides
from torch.overrides import TorchFunctionMode

from stator.backends.registry import look_up

C = torch._C
BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


@pytest.fixture(autouse=True)
def put_back():
    yield
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_dtype("cuda", torch.float16)
    torch.set_autocast_cache_enabled(True)
    torch.use_deterministic_algorithms(False)


def settings(*changes):
    """A call after each change."""

    def after(number, change):
        def call(w):
            change()
            return w.fn(rand(number, 2, 2))

        return call

    return [after(number, change) for number, change in enumerate(changes)]


# ---- autocast


def reads_dtype(x):
    return x.to(torch.get_autocast_dtype("cpu"))


def reads_dtype_of_cpu(x):
    return x.to(torch.get_autocast_cpu_dtype())


def enters_with_the_default(x):
    with torch.autocast("cpu"):
        return x @ x


def reads_another_device_s(x):
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=False), torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ x).float(), x.to(torch.get_autocast_dtype("cuda"))


@BACKENDS
@pytest.mark.parametrize("program", [reads_dtype, reads_dtype_of_cpu, enters_with_the_default])
def test_the_dtype_of_autocast_is_read_while_it_is_off(program, backend):
    calls = settings(*[lambda d=d: torch.set_autocast_dtype("cpu", d) for d in (torch.bfloat16, torch.float16) * 2])
    check(lambda: World(fn=program), calls, expect="miss miss hit hit", backend=look_up(backend)[1])


def test_the_dtype_of_another_device_is_read_inside_of_autocast():
    calls = settings(*[lambda d=d: torch.set_autocast_dtype("cuda", d) for d in (torch.bfloat16, torch.float16) * 2])

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x).to(torch.get_autocast_dtype("cuda"))

    check(lambda: World(fn=fn), calls, expect="miss miss hit hit")


def test_the_cache_of_autocast_is_asked_for_while_it_is_off():
    calls = settings(*[lambda on=on: torch.set_autocast_cache_enabled(on) for on in (True, False) * 2])
    check(lambda: World(fn=lambda x: x + torch.is_autocast_cache_enabled()), calls, expect="miss miss hit hit")


def test_what_a_program_has_set_itself_needs_no_guard():
    def fn(x):
        with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
            inside = (
                torch.get_autocast_dtype("cpu"),
                torch.is_autocast_enabled("cpu"),
                torch.is_autocast_cache_enabled(),
            )
        return x.to(inside[0]), inside, torch.is_autocast_enabled("cpu")

    check(lambda: World(fn=fn), settings(*[lambda: None] * 3), expect="miss hit hit", breaks=[])


# ---- the mode that watches


class Sub(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Counts(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        Counts.count += 1
        return func(*args, **(kwargs or {}))


SUB = torch.zeros(2).as_subclass(Sub)

QUESTIONS = {
    "has": lambda x: overrides.has_torch_function((x,)),
    "has of a list": lambda x: overrides.has_torch_function([x]),
    "has of a subclass": lambda x: overrides.has_torch_function((SUB,)),
    "unary": overrides.has_torch_function_unary,
    "variadic": lambda x: overrides.has_torch_function_variadic(x, x),
    "asked by C code": lambda x: any(map(overrides.has_torch_function_unary, [x])),
    "mode": lambda x: C._is_torch_function_mode_enabled(),
    "disabled": lambda x: C._is_torch_function_all_disabled(),
    "enabled": lambda x: C._is_torch_function_enabled(),
    "count": lambda x: C._len_torch_function_stack(),
    "count by C code": lambda x: next(map(lambda f: f(), [C._len_torch_function_stack])),
    "stack": lambda x: len(overrides._get_current_function_mode_stack()),
    "top": lambda x: overrides._get_current_function_mode() is None,
    "at": lambda x: [type(C._get_function_stack_at(i)).__name__ for i in range(C._len_torch_function_stack())],
    "device": lambda x: str(torch.get_default_device()),
}
SURROUNDINGS = {
    "nothing": contextlib.nullcontext,
    "disabled": C.DisableTorchFunction,
    "subclasses disabled": C.DisableTorchFunctionSubclass,
    "a mode": Counts,
    "a device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("around", SURROUNDINGS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_program_asks_about_modes(question, around):
    enter, ask = SURROUNDINGS[around], QUESTIONS[question]

    def inside(x):
        y = x * 2
        with enter():
            answer = ask(x)
            z = y + 1
        return answer, ask(x), z

    def call(seed):
        def one(w):
            with enter():
                return w.fn(rand(seed))

        return one

    why = "unknown-function" if around == "a device" else "unknown-callable"
    check(lambda: World(fn=inside), settings(*[lambda: None] * 4), expect=None, unreplayed=why)
    check(
        lambda: World(fn=lambda x: (ask(x), x + 1)), [call(1), call(2), call(3), call(4)], expect=None, unreplayed=PLAIN
    )


def test_questions_about_modes_break_nothing():
    def fn(x):
        asked = [
            QUESTIONS[name](x) for name in ("has", "unary", "variadic", "mode", "enabled", "count", "stack", "top")
        ]
        return asked, x + 1

    check(lambda: World(fn=fn), settings(*[lambda: None] * 3), expect="miss hit hit", breaks=[])


DISABLING = pytest.mark.parametrize("disabled", [C.DisableTorchFunction, C.DisableTorchFunctionSubclass])


@DISABLING
@BACKENDS
def test_writes_where_modes_are_disabled(disabled, backend):
    def world():
        t, u = rand(8), rand(9)

        def fn(x):
            with disabled():
                t.add_(1)
                y = x * 2
            t.mul_(2)
            u.add_(y)
            return y + t

        return World(fn=fn, t=t, u=u)

    calls = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3)), lambda w: w.fn(rand(4))]
    check(world, calls, expect=None, backend=look_up(backend)[1], unreplayed="unknown-callable")


@DISABLING
def test_a_function_called_where_modes_are_disabled(disabled):
    def world():
        t = rand(8)

        def fn(x):
            t.add_(1)
            return x + t

        return World(fn=fn, t=t)

    def inside(w):
        with disabled():
            return w.fn(rand(2))

    outside = lambda w: w.fn(rand(1))  # noqa: E731
    check(world, [inside, outside, inside, outside, outside], expect=None)


def test_a_mode_of_the_program_sees_what_it_sees_without_us():
    """Its place on the stack is above ours, also behind a break."""

    def world():
        seen = []

        class Sees(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                seen.append(func.__name__)
                return func(*args, **(kwargs or {}))

        def fn(x):
            with Sees():
                y = x.sin()
                print("in between")
                z = y.cos()
            return z + 1

        return World(fn=fn, seen=seen)

    check(
        world,
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3))],
        expect=None,
        unreplayed="unknown-callable",
    )
    assert C._len_torch_function_stack() == 0


# ---- settings that compiled code is made for


def puts(x):
    return x.clone().put_(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_deterministic_algorithms(backend):
    changes = [lambda on=on: torch.use_deterministic_algorithms(on) for on in (False, True, False, True)]
    world = lambda: World(fn=puts)  # noqa: E731
    done = check(
        world, settings(*changes), expect=None, raises=RuntimeError, backend=look_up(backend)[1], tracebacks=False
    )
    assert done.outcomes[2] == "hit"


def test_settings_are_guarded():
    changes = [
        lambda: None,
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.use_deterministic_algorithms(False),
    ]
    done = check(lambda: World(fn=lambda x: x @ x), settings(*changes), expect="miss miss miss hit")
    assert "deterministic" in str(done.world.fn.stator.last_miss)
