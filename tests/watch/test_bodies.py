"""Which bodies of operators can run again without anybody's noticing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import World, check, rand

from stator.watch.tensors.operator_bodies import can_run_again

LOG: list[int] = []
COUNT = 0
SCALE = 2.0


def computes(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    result = torch.zeros(x.size(0), dtype=torch.float32)
    for place, end in enumerate(offsets.tolist()):
        if end > place:
            torch.mul(x[place:end], SCALE, out=result[place:end])
    return result


def computes_by_another(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([computes(row, torch.tensor([1])) for row in x])


def appends(x: torch.Tensor) -> torch.Tensor:
    LOG.append(1)
    return x * 2


def appends_by_another(x: torch.Tensor) -> torch.Tensor:
    return appends(x)


def counts(x: torch.Tensor) -> torch.Tensor:
    global COUNT
    COUNT += 1
    return x * 2


def prints(x: torch.Tensor) -> torch.Tensor:
    print(x)
    return x * 2


def keeps(x: torch.Tensor, kept: list[int] = LOG) -> torch.Tensor:
    kept.append(1)
    return x * 2


def saves(x: torch.Tensor) -> torch.Tensor:
    torch.save(x, "x.pt")
    return x * 2


def enclosed() -> object:
    log: list[int] = []

    def body(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        return x * 2

    return body


@pytest.mark.parametrize("body", [computes, computes_by_another])
def test_a_body_that_computes_can_run_again(body):
    assert can_run_again(body)


@pytest.mark.parametrize(
    "body", [appends, appends_by_another, counts, prints, keeps, saves, enclosed(), len, F.one_hot, print]
)
def test_a_body_that_may_do_more_cannot(body):
    assert not can_run_again(body)


@torch.library.custom_op("stator_bodies::scaled", mutates_args=())
def scaled(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.index_select(x, 0, i) * SCALE


@scaled.register_fake
def _(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x.new_empty(i.shape)


def test_such_an_operator_is_part_of_the_graph_whatever_stands_around_it():
    def world() -> World:
        log: list[str] = []

        def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            log.append("begun")
            try:
                return scaled(x, i) + 1
            except IndexError:
                return x * 3
            finally:
                log.append("done")

        return World(fn=fn, log=log)

    calls = [lambda w, i=i: w.fn(rand(i), torch.tensor([0, i])) for i in (1, 2, 9, 3, 9)]
    check(world, calls, expect="miss hit hit hit hit", graphs=1, breaks=[])
