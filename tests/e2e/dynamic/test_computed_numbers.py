"""Numbers that Python computes from numbers that change: one recording for all of them."""

from __future__ import annotations

import collections
import math
from typing import Any

import pytest
import torch
from harness import World, check, rand

import stator

OF_FLOATS: dict[str, Any] = {
    name: getattr(math, name)
    for name in (
        "asinh atan ceil cos cosh degrees erf erfc exp expm1 fabs floor gamma lgamma log log10 log1p log2 "
        "radians sin sinh sqrt tan tanh trunc ulp"
    ).split()
}
OF_FLOATS |= {
    "pow": lambda f: math.pow(f, 1.5) + math.pow(2, f),
    "log to a base": lambda f: math.log(f, 10),
    "two operands": lambda f: math.hypot(f, 3) + math.atan2(f, 2) + math.fmod(f, 0.3) + math.copysign(2, f),
    "round": lambda f: round(f) + round(f, 1),
    "int and float": lambda f: int(f * 10) + float(int(f)),
    "abs": lambda f: abs(-f),
    "min and max": lambda f: min(f, 1.0) + max(f, 0.9, 0.8) + min(2.0, f),
    "nested": lambda f: 0.5 * (1 + math.cos(math.pi * min(f, 3.0) / 4)) * math.exp(-f),
    "truth": lambda f: 2 * bool(f) + bool(f - 9) + (1 if bool(f > 100) else 5),
    "floor division": lambda f: f // 0.3 + f % 0.3 + divmod(f, 0.7)[0],
}
OF_INTS: dict[str, Any] = {
    "a cosine": lambda n: math.cos(math.pi * n / 20),
    "a root": lambda n: n**-0.5 + math.sqrt(n) + math.isqrt(n),
    "a power of it": lambda n: 0.9**n + 2**n,
    "bits": lambda n: ((n << 1) ^ (n >> 1)) | (n & 3),
    "divisors": lambda n: math.gcd(n, 12) + math.lcm(n, 4),
    "warm-up": lambda n: min(1.0, (n + 1) / 6) * max(n, 8) ** -0.5,
    "whole already": lambda n: math.floor(n) + math.ceil(n) + round(n) + int(n),
    "float": lambda n: float(n) * 2,
    "abs": lambda n: abs(7 - n),
    "truth": lambda n: 2 * bool(n) + bool(n - 100),
}


def calls_of(numbers: Any) -> list[Any]:
    return [lambda w, seed=seed, number=number: w.fn(rand(seed), number) for seed, number in enumerate(numbers)]


@pytest.mark.parametrize("function", OF_FLOATS.values(), ids=list(OF_FLOATS))
def test_functions_of_floats(function):
    def fn(x, f):
        number = function(f)
        return x * number, number

    check(lambda: World(fn=fn), calls_of([0.7, 1.1, 2.6, 0.2, 1.9]), expect="miss miss hit hit hit")


@pytest.mark.parametrize("function", OF_INTS.values(), ids=list(OF_INTS))
def test_functions_of_ints(function):
    def fn(x, n):
        number = function(n)
        return x * number, number

    check(lambda: World(fn=fn), calls_of([5, 6, 9, 3, 14]), expect="miss miss hit hit hit")


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_generated_code_takes_the_numbers(backend):
    def fn(x, n, f):
        y = x * math.cos(n) + round(f) - min(f, 0.5)
        return y.relu() * math.floor(f * n)

    compiled = stator.compile(fn, backend=backend)
    for n, f in ((3, 0.7), (5, 1.3), (8, 2.8), (11, -4.6)):
        x = rand(n, requires_grad=True)
        y = rand(n, requires_grad=True)
        result, wanted = compiled(x, n, f), fn(y, n, f)
        torch.testing.assert_close(result, wanted)
        result.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert compiled.stator.recordings == 2 and compiled.stator.hits == 2


def test_what_raises_is_left_to_the_program():
    def fn(x, f):
        return x * math.log(f), math.sqrt(f)

    numbers = (2.0, 3.0, 4.0, -1.0, 0.0, 5.0)
    seen = check(lambda: World(fn=fn), calls_of(numbers), expect=None, raises=ValueError)
    assert seen.outcomes == ["miss", "miss", "hit", "plain", "plain", "hit"]

    def overflowing(x, f):
        return x * math.exp(f) * 2 ** int(f)

    numbers = (2.0, 3.0, 4.0, 1e4, 5.0)
    seen = check(lambda: World(fn=overflowing), calls_of(numbers), expect=None, raises=OverflowError)
    assert seen.outcomes == ["miss", "miss", "hit", "plain", "hit"]


def test_nothing_uses_the_number_but_it_may_raise():
    def fn(x, f):
        math.sqrt(f)
        return x + 1

    seen = check(lambda: World(fn=fn), calls_of([2.0, 3.0, 4.0, -1.0, 5.0]), expect=None, raises=ValueError)
    assert seen.outcomes == ["miss", "miss", "hit", "plain", "hit"]


def test_another_type_is_another_recording():
    def fn(x, f):
        chosen = max(f, 2)
        return x * chosen, chosen

    check(lambda: World(fn=fn), calls_of([2.5, 3.5, 4.5, 0.5, 5.5, 1.5]), expect="miss miss hit miss hit hit")


def test_a_program_goes_by_the_number():
    def fn(x, n):
        angle = math.cos(n)
        if math.isfinite(angle) and math.floor(angle * 10) > 0:
            return x * angle, angle
        return x - angle

    # cos: 2 < 0, 3 < 0, 4 < 0, 5 > 0, 6 > 0, 7 > 0, 8 < 0
    numbers = (2, 3, 4, 5, 6, 7, 8)
    check(lambda: World(fn=fn), calls_of(numbers), expect="miss miss hit miss hit hit hit")


def test_numbers_that_are_infinite():
    def fn(x, f):
        return x * 2 if math.isinf(f) else x * math.atan(f)

    numbers = (2.0, 3.0, math.inf, -math.inf, 4.0, math.nan)
    check(lambda: World(fn=fn), calls_of(numbers), expect="miss miss miss hit hit hit")


def test_sizes():
    def fn(x):
        return x * (1 / math.sqrt(x.shape[-1])) + round(x.shape[0] / 2) + x.sum(math.floor(x.dim() / 2) - 1)

    sizes = ((3, 4), (5, 7), (6, 9), (8, 2))
    calls = [lambda w, size=size: w.fn(rand(sum(size), *size)) for size in sizes]
    check(lambda: World(fn=fn), calls, expect="miss miss hit hit")


def test_a_computed_number_is_a_size():
    def fn(x, n):
        keep = int(n * 0.75)
        return x[:keep] * 2, torch.zeros(math.ceil(n / 2) + 1)

    calls = [lambda w, n=n: w.fn(rand(n, 40), n) for n in (8, 12, 17, 30)]
    check(lambda: World(fn=fn), calls, expect="miss miss hit hit")


def test_what_it_is_computed_from_lies_outside():
    def world() -> World:
        state = {"step": 0, "rates": []}

        def fn(x):
            state["step"] += 1
            rate = 0.1 * 0.5 * (1 + math.cos(math.pi * min(state["step"], 50) / 50))
            state["rates"].append(rate)
            return x * rate

        return World(fn=fn, state=state)

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(6)]
    check(world, calls, expect="miss miss hit hit hit hit")


def test_a_number_that_was_chosen_is_one_of_those_given():
    def fn(x, a, b):
        x.mul_(min(a, b))
        return min(a, b)

    compiled = stator.compile(fn, backend="eager")
    for a, b in ((1.5, 2.5), (3.5, 2.25), (4.5, 6.5), (9.5, 8.5)):
        x = rand(1)
        assert compiled(x, a, b) is min(a, b) and torch.equal(x, rand(1) * min(a, b))
    assert compiled.stator.recordings == 2 and compiled.stator.hits == 2

    def compared(x, a, b):
        return x * min(a, b), min(a, b) is a

    numbers = ((1.5, 2.5), (3.5, 2.25), (4.5, 6.5), (9.5, 8.5))
    compiled = stator.compile(compared, backend="eager")
    for a, b in numbers:
        assert compiled(rand(1), a, b)[1] is compared(rand(1), a, b)[1]


def test_guards_in_words():
    def fn(x, n):
        return x + 1 if math.cos(n) > 0 else x - 1

    compiled = stator.compile(fn, backend="eager")
    for n in (5, 6, 7):
        compiled(rand(1), n)
    assert any("cos(n)" in guard for entry in compiled.stator.entries for guard in entry.guards.lines())


def test_items_of_deques():
    def world() -> World:
        recent = collections.deque([0.5, 1.5], maxlen=3)

        def fn(x):
            return x * recent[0] + math.exp(recent[-1]) * recent[1]

        return World(fn=fn, recent=recent)

    def call(seed):
        def run(w: World) -> Any:
            w.recent.append(0.25 * seed)
            return w.fn(rand(seed))

        return run

    check(world, [call(seed) for seed in range(1, 7)], expect="miss miss hit hit hit hit")


@pytest.mark.parametrize("way", ["class", "instance", "subclass"])
def test_attributes_of_classes(way):
    def world() -> World:
        class Settings:
            scale = 1.0
            steps = 3

        class Narrow(Settings):
            pass

        settings = {"class": Settings, "instance": Settings(), "subclass": Narrow}[way]

        def fn(x):
            return x * settings.scale + math.sqrt(settings.steps), settings.scale

        return World(fn=fn, cls=Settings, settings=settings)

    def call(seed):
        def run(w: World) -> Any:
            w.cls.scale, w.cls.steps = 0.5 * seed, seed
            return w.fn(rand(seed))

        return run

    seen = check(world, [call(seed) for seed in range(3, 8)], expect="miss miss hit hit hit")
    assert type(seen.world.cls.__dict__["steps"]) is int


def test_attributes_of_classes_that_the_program_sets():
    def world() -> World:
        class Counter:
            count = 3

        def fn(x):
            Counter.count += 2
            y = x * math.sqrt(Counter.count)
            Counter.count = Counter.count + 1
            return y, Counter.count

        return World(fn=fn, cls=Counter)

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(5)]
    seen = check(world, calls, expect="miss miss hit hit hit")
    assert seen.world.cls.count == 18


def test_keys_that_a_number_is_none_of():
    def world() -> World:
        marks, seen = collections.Counter([4, 9]), {7}

        def fn(x, n):
            if n in marks:
                return x * marks[n]
            return x - n if n not in seen and n + 1 not in frozenset({100}) else x + n

        return World(fn=fn, marks=marks, seen=seen)

    calls = [lambda w, n=n: w.fn(rand(n), n) for n in (2, 3, 5, 4, 7, 6, 8, 9)]
    seen = check(world, calls, expect=None)
    assert seen.outcomes == ["miss", "miss", "hit", "miss", "miss", "hit", "hit", "miss"]

    def later(w: World) -> Any:
        w.marks[6] += 1
        return w.fn(rand(6), 6)

    seen = check(world, [*calls[:3], calls[5], later, later], expect=None)
    assert seen.outcomes[:5] == ["miss", "miss", "hit", "hit", "miss"]


@pytest.mark.parametrize("choose", [max, min, lambda f, n: f + round(n * 1.5)])
def test_the_recording_ends_at_the_very_call(choose: Any) -> None:
    """A number behind a break is looked at once the call was to be another one."""

    def world() -> World:
        w = World(scale=1.0)

        def fn(x: torch.Tensor) -> Any:
            return choose(w.scale, x[0].item()), x * 2

        w.fn = fn
        return w

    def call(scale: float, first: int) -> Any:
        def run(w: World) -> Any:
            w.scale = scale
            return w.fn(torch.tensor([first, 2]))

        return run

    calls = [call(*given) for given in ((2.0, 0), (0.0, 0), (3.0, 1), (4.0, 5), (5.0, 9), (6.0, 2))]
    check(world, calls, expect=None, unreplayed="tensor-item")


TENSORS: dict[str, Any] = {
    "a number": lambda x, n: torch.tensor(n) * x,
    "what it comes to": lambda x, n: torch.tensor(n * 0.5) + x,
    "as a tensor": lambda x, n: torch.as_tensor(n) - x,
    "of a type": lambda x, n: torch.tensor(n, dtype=torch.float64) + x,
    "in lists": lambda x, n: (torch.tensor([n, 1.5, 2 * n]).sum() * x, torch.tensor([[n, 1], [2, n]])),
}


@pytest.mark.parametrize("numbers", [(3, 5, 4, 7, 9), (1.5, 1e300, math.inf, -0.0, 2.5)], ids=["ints", "floats"])
@pytest.mark.parametrize("fn", TENSORS.values(), ids=list(TENSORS))
def test_tensors_made_of_them(fn, numbers):
    check(lambda: World(fn=fn), calls_of(numbers), expect="miss miss hit hit hit")


def test_a_number_that_does_not_fit_a_tensor():
    def fn(x, n):
        return torch.tensor(n, dtype=torch.int16) + x

    calls = calls_of([3, 5, 4, 70_000, 9, 2**64, 7])
    seen = check(lambda: World(fn=fn), calls, expect=None, raises=(RuntimeError, ValueError), tracebacks=False)
    assert seen.outcomes.count("miss") <= 3 and seen.outcomes[-1] == "hit", seen.outcomes


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", ["a number", "what it comes to", "as a tensor", "of a type"])
def test_tensors_made_of_them_ahead_of_time(name, backend):
    fn = TENSORS[name]
    for numbers in ((3, 5, 4, 7, 2**62), (1.5, 1e300, math.inf, -0.0, 2.5)):
        compiled = stator.compile(fn, backend=backend)
        compiled.stator.reset()
        for number in numbers:
            torch.testing.assert_close(compiled(rand(1), number), fn(rand(1), number), rtol=0, atol=0)
        assert (compiled.stator.recordings, compiled.stator.hits, compiled.stator.plain) == (2, 3, 0)


OF_MANY: dict[str, Any] = {
    "fsum": lambda n, f: math.fsum([n, f, 0.1]) + math.fsum((f, n)),
    "comb and perm": lambda n, f: math.comb(n, 2) + math.perm(n, 2) * f,
    "max of a list": lambda n, f: max([n, 4, f]) + min([f, n]) + max((n, 2)),
    "max of a deque": lambda n, f: max(collections.deque([n, 2, 1])) + min(collections.deque([f, 9.5])),
}


@pytest.mark.parametrize("backend", [None, "native"])
@pytest.mark.parametrize("function", OF_MANY.values(), ids=list(OF_MANY))
def test_functions_of_rows_of_numbers(function, backend):
    def fn(x, n, f):
        number = function(n, f)
        return x * number, number

    pairs = [(5, 1.5), (6, 1.75), (9, 2.25), (7, 0.125), (11, 3.5)]
    if backend is None:
        calls = [lambda w, s=s, n=n, f=f: w.fn(rand(s), n, f) for s, (n, f) in enumerate(pairs)]
        check(lambda: World(fn=fn), calls, expect="miss miss hit hit hit")
        return
    compiled = stator.compile(fn, backend=backend)
    for n, f in pairs:
        x = rand(n)
        torch.testing.assert_close(compiled(x, n, f), fn(x, n, f))
    assert compiled.stator.recordings == 2


def test_a_default_that_is_kept():
    """The function outlives the call that made it, with the number that it was made with."""

    def fn(x, n):
        def inner(y, k=n):
            return y * k

        return inner(x), inner

    compiled = stator.compile(fn, backend="eager")
    kept = []
    for n in (3, 4, 7, 9):
        result, inner = compiled(rand(n), n)
        assert torch.equal(result, rand(n) * n)
        kept.append((n, inner))
    for n, inner in kept:
        assert inner.__defaults__ == (n,)
        assert type(inner.__defaults__[0]) is int
        assert inner(2) == 2 * n
    assert compiled.stator.recordings == 4  # each value is a constant there


def test_whether_a_number_is_whole():
    def fn(x, f):
        is_whole = f.is_integer
        if (f / 2).is_integer():
            return x * 2
        return x * f if is_whole() else x

    def outside(x, numbers):
        return x * max(numbers) + math.fsum(numbers)

    calls = calls_of([4.0, 6.0, 5.0, 4.5, 8.0, 7.0, 12.0])
    compiled = stator.compile(fn, backend="eager")
    for f in (4.0, 6.0, 5.0, 4.5, 8.0, 12.0, 16.0):
        x = rand(int(f))
        assert torch.equal(compiled(x, f), fn(x, f))
    assert compiled.stator.hits >= 2
    check(
        lambda: World(fn=lambda x, n: x * 2 if (n / 2).is_integer() else x),
        calls,
        expect="miss miss miss hit hit hit hit",
        graphs=2,
    )
    compiled = stator.compile(outside, backend="eager")
    for numbers in ([1, 2.5], [1, 3.5], [4, 3.5], [4, 9.5], [4, 0.5], [4, 9.5, 3]):
        x = rand(3)
        assert torch.equal(compiled(x, numbers), outside(x, numbers))


@pytest.mark.parametrize("backend", ["eager", "native", "aot_eager"])
def test_nested_lists_of_numbers_become_tensors(backend):
    def fn(x, n, f):
        return x + torch.tensor([[n, 1], [2, n + 1]]).sum() + torch.tensor([[f], [n]]).sum() + torch.tensor(((1, n),))

    compiled = stator.compile(fn, backend=backend)
    for n, f in ((3, 0.5), (4, 1.5), (6, 2.5), (9, -1.0)):
        x = rand(n, 1, 2)
        result = compiled(x, n, f)
        assert result.dtype is fn(x, n, f).dtype
        torch.testing.assert_close(result, fn(x, n, f))
    assert compiled.stator.recordings == 2
