"""Numbers that change and of which texts are made, or loops: once two recordings were not enough, Python makes the step
between two graphs, and one recording does for all values."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from harness import World, check, rand

import stator

LOG = logging.getLogger("stator_tests.texts")
LOG.setLevel(logging.INFO)


def message(x, n):
    text = f"step {n} of {n * 2:04d}"
    return x * n, text


def two_messages(x, n):
    first = f"{n}"
    y = x + n
    return y, first, f"{first} and {n:>3}"


def of_attributes(x, n):
    state = {"rate": n / 7}
    return x * state["rate"], f"n {n} rate {state['rate']:.3f} {x.dim()}"


def others(x, n):
    return x + n, str(n), repr(n * 2), "{} {}".format(n, n + 1), "%d %s" % (n, n), format(n, "x")  # noqa: UP031, UP032


def logged(x, n):
    LOG.debug("step %d", n)
    LOG.debug(f"step {n}")
    return x * n


def as_a_key(x, n):
    return x * n, {f"step{n}": n}


def compared(x, n):
    text = f"{n}"
    return (x * 2 if len(text) > 1 else x * 3), text


def one_loop(x, n):
    for i in range(n):
        x = x * 1.5 + i
    return x


def from_to_by(x, n):
    for i in range(1, n + 2, 2):
        x = x * 0.5 + i
    return x, n


def left_early(x, n):
    for i in range(n):
        if i == 6:
            break
        x = x + i
    else:
        x = x * 2
    return x


def returned_from(x, n):
    for i in range(n):
        x = x + i
        if i > 7:
            return x, i
    return x, None


def in_a_loop(x, n):
    for i in range(n):
        for j in range(2):
            x = x * 0.5 + i * j
    return x


def with_gradients(x, n):
    start = x.clone().requires_grad_(True)
    y = start
    for i in range(n):
        y = torch.tanh(y * 1.1) + i
    y.sum().backward()
    return start.grad


def that_raises(x, n):
    total = x.sum()
    for i in range(n):
        try:
            if i % 3 == 1:
                raise KeyError(i)
        except KeyError as error:
            total = total + error.args[0]
    return total


TEXTS = [message, two_messages, of_attributes, others, logged, as_a_key, compared]
LOOPS = [one_loop, from_to_by, left_early, returned_from, in_a_loop, with_gradients]
NUMBERS = (2, 3, 4, 11, 5, 4, 12, 1, 10, 9, 14, 8, 13)


@pytest.mark.parametrize("fn", [*TEXTS, *LOOPS], ids=lambda fn: fn.__name__)
def test_one_recording_for_all_numbers(fn):
    calls = [lambda w, n=n: w.fn(rand(n, 3), n) for n in NUMBERS]
    seen = check(lambda: World(fn=fn), calls, expect=None, unreplayed="backward")
    assert seen.outcomes[-5:] == ["hit"] * 5, seen.outcomes
    assert seen.outcomes.count("miss") <= 6 and seen.world.fn.stator.plain == 0


def test_exceptions_in_a_loop():
    calls = [lambda w, n=n: w.fn(rand(n, 3), n) for n in NUMBERS]
    seen = check(lambda: World(fn=that_raises), calls, expect=None)
    assert seen.outcomes.count("hit") >= 6 and seen.world.fn.stator.plain == 0


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step, self.said, self.last = 0, [], ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        text = f"step {self.step}: {self.step / 4:.1f}"
        self.last = text
        self.said.append(text)
        return x * self.step


def test_texts_that_are_kept():
    plain, module = Counting(), Counting()
    compiled = stator.compile(module, backend="eager")
    for seed in range(30):
        assert torch.equal(compiled(rand(seed, 2)), plain(rand(seed, 2)))
        assert (module.step, module.last, module.said) == (plain.step, plain.last, plain.said)
    assert compiled.stator.plain == 0 and compiled.stator.hits >= 25


def test_a_number_is_formatted_by_the_program_itself():
    """`__format__` of an object runs in the step, as often as it does in eager."""
    asked: list[Any] = []

    class Shown:
        def __format__(self, spec: str) -> str:
            asked.append(spec)
            return f"<{len(asked)}>"

    shown = Shown()

    def fn(x, n):
        return x * n, f"{n} {shown:abc}"

    compiled = stator.compile(fn, backend="eager")
    for n in range(2, 14):
        value, text = compiled(rand(n, 2), n)
        assert torch.equal(value, rand(n, 2) * n)
        assert text == f"{n} <{n - 1}>" and len(asked) == n - 1


def test_one_graph_has_its_numbers_as_constants():
    """Under `fullgraph` there is no Python between two graphs."""
    compiled = stator.compile(one_loop, backend="eager", fullgraph=True)
    for n in (2, 3, 4, 5, 4, 3):
        assert torch.equal(compiled(rand(n, 3), n), one_loop(rand(n, 3), n))
    assert compiled.stator.recordings == 4 and compiled.stator.hits == 2
    assert all(entry.graph is not None for entry in compiled.stator.entries)
