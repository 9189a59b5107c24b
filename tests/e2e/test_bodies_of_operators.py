"""Operators with bodies in Python: what those do besides happens once in every call, also where a replay fails."""

from __future__ import annotations

import pytest
import torch
from harness import World, check

from stator.backends.registry import look_up

RAN: list[str] = []
STATE = {"scale": 2.0}


@torch.library.custom_op("stator_tests::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    RAN.append("noted")
    return x * STATE["scale"]


@noted.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("stator_tests::refusing", mutates_args=())
def refusing(x: torch.Tensor) -> torch.Tensor:
    RAN.append("refusing")
    if x.sum() > 20:
        raise ValueError("too large")
    return x * 2


@refusing.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("stator_tests::added_to", mutates_args=("x",))
def added_to(x: torch.Tensor) -> None:
    RAN.append("added_to")
    x.add_(1)


LIBRARY = torch.library.Library("stator_tests_by_hand", "DEF")
LIBRARY.define("kept(Tensor x) -> Tensor")


@torch.library.impl(LIBRARY, "kept", "CompositeExplicitAutograd")
def _(x):
    RAN.append("kept")
    return x * 3


@torch.library.register_fake("stator_tests_by_hand::kept")
def _(x):
    return torch.empty_like(x)


def then_index(x, i, log):
    return noted(x)[i] + 1


def index_first(x, i, log):
    z = x[i]
    return noted(x) + z


def then_an_embedding(x, i, log):
    return torch.nn.functional.embedding(i, noted(x)[:, None])


def then_index_where_it_is_caught(x, i, log):
    y = noted(x)
    try:
        return y[i]
    except IndexError:
        return noted(x) + 7


def raised_inside(x, i, log):
    return refusing(x * i.sum() * 2)


def raised_behind_another(x, i, log):
    return refusing(noted(x) * i.sum())


def raised_and_caught(x, i, log):
    try:
        return refusing(x * i.sum() * 2)
    except ValueError:
        return x - 1


def raised_behind_a_change(x, i, log):
    log.append(1)
    return refusing(x * i.sum() * 2)


def raised_behind_a_write(x, i, log):
    x.add_(1)
    return refusing(x * i.sum() * 2)


def written_before(x, i, log):
    x.add_(1)
    return noted(x)[i]


def written_behind(x, i, log):
    y = noted(x)
    x.add_(1)
    return y[i]


def written_by_itself(x, i, log):
    added_to(x)
    return x[i]


def by_hand(x, i, log):
    return torch.ops.stator_tests_by_hand.kept(x)[i] + 1


def divided(x, i, log):
    return noted(x) + (i // (i.sum() - 6)).sum()


def reads_what_the_program_has_changed(x, i, log):
    STATE["scale"] = float(len(log) + 3)
    log.append(1)
    return noted(x)


PROGRAMS = [
    then_index,
    index_first,
    then_an_embedding,
    then_index_where_it_is_caught,
    raised_inside,
    raised_behind_another,
    raised_and_caught,
    raised_behind_a_change,
    raised_behind_a_write,
    written_before,
    written_behind,
    written_by_itself,
    by_hand,
    divided,
    reads_what_the_program_has_changed,
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_body_runs_once(program, backend):
    if backend == "inductor" and program not in (then_index, raised_inside):
        backend = "aot_eager"  # the same graphs

    def world():
        RAN.clear()
        STATE["scale"] = 2.0
        return World(fn=program, log=[])

    def call(*index):
        def one(w):
            x = torch.ones(2)
            return w.fn(x, torch.tensor(index), w.log), x

        return one

    calls = [call(0, 1), call(1, 0), call(0, 6), call(1, 6), call(0, 1)]
    raised = (IndexError, ValueError, RuntimeError)
    how = {"raises": raised, "tracebacks": False, "backend": look_up(backend)[1]}
    done = check(world, calls, expect=None, observe=lambda w: list(RAN), **how, unreplayed="may-fail")
    assert "hit" in done.outcomes or program is reads_what_the_program_has_changed
    assert done.graphs or program in (raised_and_caught, raised_behind_a_change, reads_what_the_program_has_changed)


def test_an_operator_is_one_node_among_others():
    def call(seed):
        return lambda w: w.fn(torch.ones(2) * seed, torch.tensor([0, 1]), w.log)

    check(lambda: World(fn=then_index, log=[]), [call(1), call(2), call(3)], expect="miss hit hit", breaks=[])
