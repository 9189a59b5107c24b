"""Gathering first: what is picked is computed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native_check import compare
from test_native import rand
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import stator
from stator.fuse.decompose import decompositions
from stator.fuse.gathers import gather_first

aten = torch.ops.aten


def classes(seed: int, rows: int, count: int) -> Tensor:
    return torch.randint(0, count, (rows,), generator=torch.Generator().manual_seed(seed))


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target)


def ignoring(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, torch.where(target == 2, -100, target), reduction="sum")


def picked(x: Tensor, target: Tensor) -> Tensor:
    rows = x.log_softmax(-1) * 2 + x[0] - x[:, :1]
    return rows.gather(1, target[:, None]).exp()


@pytest.mark.parametrize("fn", [cross_entropy, ignoring, picked])
@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_programs(fn: Callable[..., Any], grads: bool, dynamic: bool) -> None:
    def make(seed: int) -> list[Tensor]:
        rows = 5 + seed if dynamic else 5
        return [rand(seed, rows, 33, grad=grads), classes(seed, rows, 33)]

    assert compare(fn, make, grads=grads, dynamic=dynamic).kernels > 0


def graph_of(fn: Callable[..., Any], *inputs: Any) -> torch.fx.GraphModule:
    module = make_fx(fn, decomposition_table=decompositions(), tracing_mode="fake")(*inputs)
    gather_first(module, lambda op, args, kwargs: op(*args, **kwargs))
    return module


def gathered(module: torch.fx.GraphModule) -> list[Any]:
    return [node.args[0].target for node in module.graph.find_nodes(op="call_function", target=aten.gather.default)]


def test_the_log_softmax_of_all_classes_is_not_computed() -> None:
    x, target = rand(0, 6, 40, grad=False), classes(0, 6, 40)
    module = graph_of(cross_entropy, x, target)
    assert gathered(module) == ["x_1"]
    torch.testing.assert_close(module(x, target), cross_entropy(x, target))
    x, target = rand(1, 6, 40, grad=False), classes(1, 6, 40)
    torch.testing.assert_close(module(x, target), cross_entropy(x, target))


def test_what_is_left_as_it_is() -> None:
    x = rand(0, 6, 8, grad=False)
    many = torch.zeros(6, 4, dtype=torch.int64)
    few_rows = torch.zeros(2, 1, dtype=torch.int64)
    exp, bernoulli = aten.exp.default, aten.bernoulli.p
    assert gathered(graph_of(lambda x, i: x.exp().gather(1, i), x, many)) == [exp]  # it picks half of them
    assert gathered(graph_of(lambda x, i: x.exp().gather(1, i), x, few_rows)) == [exp]
    assert gathered(graph_of(lambda x, i: torch.bernoulli(x, 0.5).gather(1, i), x, many[:, :1])) == [bernoulli]


def test_an_index_outside_is_an_error_as_before() -> None:
    compiled = stator.compile(lambda x, i: (x * 2).exp().gather(1, i))
    x, inside = rand(0, 4, 9, grad=False), torch.tensor([[1], [8], [0], [3]])
    for _ in range(3):
        torch.testing.assert_close(compiled(x, inside), (x * 2).exp().gather(1, inside))
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled(x, inside + 5)
    torch.testing.assert_close(compiled(x, inside), (x * 2).exp().gather(1, inside))
