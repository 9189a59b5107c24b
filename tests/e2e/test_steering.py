"""Functions with which a program steers its own compilation."""

from __future__ import annotations

import pytest
import torch
from harness import World, check, rand

import stator


def with_break(x):
    y = x + 1
    stator.graph_break()
    return y * 2


@stator.disable
def tripled(x):
    return x * 3


def test_a_graph_break_is_asked_for() -> None:
    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    seen = check(lambda: World(fn=with_break), calls, expect="miss hit hit", graphs=2)
    (reason,) = seen.world.fn.stator.break_reasons
    assert (reason.id, reason.line) == ("user-graph-break", "stator.graph_break()")


def test_a_graph_break_under_fullgraph_names_the_line() -> None:
    compiled = stator.compile(with_break, backend="eager", fullgraph=True)
    for seed in range(3):
        with pytest.raises(stator.errors.GraphBreakError, match=r"stator\.graph_break\(\)"):
            compiled(rand(seed))


def test_a_disabled_function_breaks_the_graph() -> None:
    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    seen = check(lambda: World(fn=lambda x: tripled(x) + 1), calls, expect="miss hit hit", graphs=1)
    assert [reason.id for reason in seen.world.fn.stator.break_reasons] == ["disabled-function"]


def test_a_program_can_ask_whether_it_is_compiled() -> None:
    def asks(x):
        return x + 1 if stator.is_compiling() and torch.compiler.is_compiling() else x - 1

    compiled = stator.compile(asks, backend="eager")
    for seed in range(3):
        assert torch.equal(compiled(rand(seed)), rand(seed) + 1)
        assert torch.equal(asks(rand(seed)), rand(seed) - 1)
    assert (compiled.stator.recordings, compiled.stator.hits) == (1, 2)


def test_explain_is_not_misled_by_recordings_that_are_there() -> None:
    compiled = stator.compile(with_break, backend="eager")
    for seed in range(3):
        compiled(rand(seed))
    for explanation in (stator.explain(with_break)(rand(1)), stator.explain(with_break, rand(2))):
        assert [reason.id for reason in explanation.break_reasons] == ["user-graph-break"]

    def plain(x):
        return x * 2 + 1

    other = stator.compile(plain, backend="eager")
    for seed in range(3):
        other(rand(seed))
        explanation = stator.explain(plain)(rand(seed))
        assert (explanation.graph_count, explanation.graph_break_count, explanation.op_count) == (1, 0, 2)
