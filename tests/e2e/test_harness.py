"""The check itself: it must see every difference that it is there for."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import torch
from harness import PLAIN, RECORDED, CountingBackend, World, check, describe, rand

import stator


@dataclasses.dataclass
class Record:
    value: object


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def aliased():
    item = [1]
    return [item, item]


def viewed():
    base = torch.zeros(4)
    return [base, base[:]]


SAME = [
    lambda: [1, 2.5, "x", None, float("nan"), 1j, b"b", ..., torch.float32, (1, 2), {3}],
    lambda: {"a": rand(1), "b": [rand(2), Record(rand(3)), Slotted(4)]},
    aliased,
    viewed,
    lambda: torch.nn.Linear(2, 2).requires_grad_(False).register_forward_hook(print) and rand(1),
    lambda: torch.tensor([float("nan")]),
]

DIFFERENT = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    ([1, 2], (1, 2)),
    ([1, 2], [2, 1]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"a": 1}, collections.OrderedDict(a=1)),
    (collections.deque([1]), collections.deque([1], maxlen=3)),
    ({1}, frozenset({1})),
    (Record(1), Record(2)),
    (Slotted(1), Slotted(2)),
    (torch.Size([2]), (2,)),
    (aliased(), [[1], [1]]),
    (viewed(), [torch.zeros(4), torch.zeros(4)]),
    (rand(1), rand(2)),
    (torch.zeros(2), torch.zeros(2, 1)),
    (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    (torch.zeros(2), -torch.zeros(2)),
    (torch.zeros(2, 2), torch.zeros(2, 2).t().clone(memory_format=torch.contiguous_format).t()),
    (torch.zeros(2), torch.zeros(2, requires_grad=True)),
    (torch.zeros(2), torch.nn.Parameter(torch.zeros(2), requires_grad=False)),
    (torch.zeros(2, 2).t(), torch.zeros(2, 2)),
    (torch.zeros(4)[2:], torch.zeros(2)),
    (ValueError, TypeError),
]


@pytest.mark.parametrize("make", SAME)
def test_equal_things_have_equal_descriptions(make):
    assert describe(make()) == describe(make())


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_things_have_different_descriptions(one, other):
    assert describe(one) != describe(other)


def test_a_gradient_is_part_of_a_tensor():
    x, y = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    x.sum().backward()
    assert describe(x) != describe(y)


CALLS = [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)]
LOG: list[int] = []


@pytest.mark.parametrize(
    "cheat",
    [
        lambda x: x * 2.000001,
        lambda x: (x * 2).view(4, 1)[:, 0].detach().requires_grad_(),
        lambda x: x.mul_(2),
        lambda x: [x * 2],
        lambda x: torch.rand(1) * 0 + x * 2,
        lambda x: LOG.append(1) or x * 2,
        lambda x: 1 / 0,
        lambda x: x * 2,
    ],
    ids=["value", "requires grad", "aliasing", "structure", "random", "effect", "exception", "outcomes"],
)
def test_a_compiler_that_cheats_is_caught(monkeypatch, cheat):
    class Cheating:
        hits = recordings = plain = 0
        last_miss = None

    def compile_wrongly(fn, backend):
        def compiled(x):
            return cheat(x)

        compiled.stator = Cheating
        return compiled

    def world():
        LOG.clear()
        return World(fn=lambda x: x * 2)

    monkeypatch.setattr(stator, "compile", compile_wrongly)
    with pytest.raises(AssertionError):
        check(world, [keep_argument(s) for s in (1, 2, 3)], expect="miss hit hit", observe=lambda _: LOG)


def keep_argument(seed):
    def run(w):
        w.x = rand(seed)
        return w.fn(w.x)

    return run


def test_a_result_handed_out_twice_is_caught(monkeypatch):
    kept = torch.empty(4)

    class Cheating:
        hits = recordings = plain = 0
        last_miss = None

    def compile_wrongly(fn, backend):
        def compiled(x):
            return kept.copy_(x * 2)

        compiled.stator = Cheating
        return compiled

    monkeypatch.setattr(stator, "compile", compile_wrongly)
    with pytest.raises(AssertionError, match="call 2"):
        check(lambda: World(fn=lambda x: x * 2), CALLS, expect=None)


def test_the_counting_backend_counts():
    class Double(torch.nn.Module):
        def forward(self, x):
            return x * 2

    backend = CountingBackend()
    run = backend(torch.fx.symbolic_trace(Double()), [rand(1)])
    assert torch.equal(run(rand(1)), rand(1) * 2)
    assert len(backend.graphs) == 1


def makes_a_class(x):
    class Local:
        pass

    return x * len(Local.__name__)


def test_a_test_without_a_replay_says_why():
    check(lambda: World(fn=makes_a_class), CALLS, expect=None, unreplayed="build-class")
    with pytest.raises(AssertionError, match=r"no call was a replay: .*\n(.*\n)*say why .*'build-class'"):
        check(lambda: World(fn=makes_a_class), CALLS, expect=None)


@pytest.mark.parametrize("unreplayed", [PLAIN, RECORDED, "call-print", ["build-class", "call-print"]])
def test_another_reason_is_not_the_reason(unreplayed):
    with pytest.raises(AssertionError, match="no call was a replay"):
        check(lambda: World(fn=makes_a_class), CALLS, expect=None, unreplayed=unreplayed)


@pytest.mark.parametrize("unreplayed", [(), PLAIN, RECORDED, "build-class"])
def test_a_compiler_that_compiles_nothing_is_caught(monkeypatch, unreplayed):
    class Lazy:
        hits = recordings = plain = 0
        last_miss = None

    def compile_nothing(fn, backend):
        def compiled(x):
            return fn(x)

        compiled.stator = Lazy
        return compiled

    monkeypatch.setattr(stator, "compile", compile_nothing)
    with pytest.raises(AssertionError, match="no call was a replay"):
        check(lambda: World(fn=lambda x: x * 2), CALLS, expect=None, unreplayed=unreplayed)
