"""Functions that have as many recordings as they may have: calls that none fits run plain, mostly without a look."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from harness import rand

import stator
from stator import lookup, pipeline
from stator.replay.backoff import Backoff

COSINES = [math.cos(step) for step in range(300)]  # which of them it is, is a constant of a recording


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.step, self.log = 0, []

    def forward(self, x: torch.Tensor, *, shift: float = 1.0) -> torch.Tensor:
        self.log.append(self.step)
        return self.linear(x) * COSINES[self.step] + shift


@pytest.fixture
def looks(monkeypatch) -> list[Any]:
    """The calls for which a recording is looked for, by Python code."""
    seen: list[Any] = []
    look = pipeline.look
    monkeypatch.setattr(pipeline, "look", lambda program, inputs: (seen.append(program.name), look(program, inputs))[1])
    return seen


def test_calls_go_by_without_a_look(looks):
    module, plain = Scaled(), Scaled()
    plain.load_state_dict(module.state_dict())
    compiled = stator.compile(module, backend="eager")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(300):
            module.step = plain.step = step
            x = rand(step, 2, 3)
            assert torch.equal(compiled(x, shift=2.0), plain(x, shift=2.0))
    assert module.log == plain.log == [*range(300)]
    assert len(told) == 1 and "has 8 recordings" in str(told[0].message)
    assert (compiled.stator.recordings, compiled.stator.hits, compiled.stator.plain) == (8, 0, 292)
    assert len(looks) == 8 + 4 + 4  # recorded, patience, and behind 16, 32, 64 and 128 calls


def test_a_recording_that_fits_again_is_used_again():
    module = Scaled()
    compiled = stator.compile(module, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(30):
            module.step = step
            compiled(rand(step, 2, 3))
    assert compiled.stator.hits == 0
    for step in range(60):
        module.step = 3
        assert torch.equal(compiled(rand(step, 2, 3)), module.linear(rand(step, 2, 3)) * math.cos(3) + 1.0)
    assert compiled.stator.recordings == 8 and 20 <= compiled.stator.hits < 60
    compiled.stator.reset()
    compiled(rand(1, 2, 3))
    assert compiled.stator.recordings == 9


def test_recordings_in_turn_are_not_given_up():
    """Most calls fit: those that do not make nobody wait."""
    module = Scaled()
    compiled = stator.compile(module, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(90):
            module.step = step % 9
            compiled(rand(step, 2, 3))
    assert (compiled.stator.recordings, compiled.stator.plain, compiled.stator.hits) == (8, 10, 72)


def test_recordings_of_which_some_fit_are_looked_for_by_c_code(looks):
    """A third of the calls fits: for the others nobody looks for reasons each time."""
    module, plain = Scaled(), Scaled()
    plain.load_state_dict(module.state_dict())
    compiled = stator.compile(module, backend="eager")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(900):
            module.step = plain.step = step % 24
            x = rand(step, 2, 3)
            assert torch.equal(compiled(x), plain(x))
    assert module.log == plain.log and len(told) == 1
    stats = compiled.stator
    assert stats.recordings == 8 and stats.hits + stats.plain == 892 and stats.hits > 200
    assert len(looks) < 60
    stats.reset()
    assert torch.equal(compiled(x), plain(x)) and compiled.stator.recordings == 9


def test_recordings_behind_a_break_of_which_some_fit(monkeypatch):
    told: list[int] = []
    limit_reached, state = lookup._limit_reached, {"name": ""}

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        stator.graph_break()
        return y + len(state["name"])

    compiled = stator.compile(fn, backend="eager")
    monkeypatch.setattr(lookup, "_limit_reached", lambda *given: (told.append(1), limit_reached(*given))[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(400):
            state["name"] = "n" * (step % 24)
            assert torch.equal(compiled(rand(step)), fn(rand(step)))
    assert len(compiled.stator.entries) == 1 + 8 and compiled.stator.hits > 80
    assert len(told) < 40


def test_the_limit_is_each_functions_own():
    """Twenty closures of one code, each with a function of its own."""

    def make(function, depth):
        def fn(x):
            for _ in range(depth):
                x = function(x)
            return x + 1

        return fn

    functions = [
        torch.sin,
        torch.cos,
        torch.tanh,
        torch.exp,
        torch.sigmoid,
        torch.relu,
        torch.abs,
        torch.neg,
        torch.erf,
    ]
    plain = [make(function, depth) for depth in (1, 2) for function in functions]
    compiled = [stator.compile(fn, backend="eager") for fn in plain]
    for seed in range(3):
        for each, fn in zip(compiled, plain, strict=True):
            assert torch.equal(each(rand(seed)), fn(rand(seed)))
    assert [c.stator.recordings for c in compiled] == [1] * 18
    assert [c.stator.hits for c in compiled] == [2] * 18


def test_functions_that_are_gone_make_room():
    """A code has sixteen times as many recordings, at most."""

    def make(name):
        def fn(x):
            return x * len(name) + (1 if name.startswith("a") else 2)

        return fn

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = []
        for number in range(20):
            fn = make(f"a{number}")
            compiled = stator.compile(fn, backend="eager", options={"cache_size_limit": 1})
            kept = kept or [compiled]
            for seed in range(3):
                assert torch.equal(compiled(rand(seed)), fn(rand(seed)))
            assert (compiled.stator.recordings, compiled.stator.hits) == (1, 2)
    assert len(kept[0].stator.entries) <= 16


def test_behind_a_break():
    state = {"step": 0}

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        stator.graph_break()
        return y * COSINES[state["step"]] + 1

    compiled = stator.compile(fn, backend="eager")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(200):
            state["step"] = step
            assert torch.equal(compiled(rand(step)), fn(rand(step)))
    assert len(told) == 1 and len(compiled.stator.entries) == 1 + 8
    assert compiled.stator.plain == 200 - 8


def test_the_length_of_a_pause_grows_and_ends():
    backoff = Backoff()
    lengths = []
    for _ in range(16):
        backoff.missed(5)
        lengths.append(backoff.left.value)
        while backoff.lets_pass():
            pass
    assert lengths[:6] == [0, 0, 0, 16, 32, 64]
    assert lengths[-1] == 1 << 14
    backoff.missed(6)
    assert backoff.left.value == 0 and backoff.spared.value == 32
    backoff.missed(7)
    assert backoff.left.value == 0 and backoff.spared.value == 64
    backoff.reset()
    assert not backoff.spares()
