"""Somebody writes to an input between a call and its backward: the backward raises where eager's does,
whatever a compiled graph keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stator


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) + 0.5


def whole(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


# The function, and what it is given. The first argument requires gradients, and so do others of floats, if they may.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "add": (lambda x, y: x + y, lambda: (rand(3), rand(3))),
    "mul": (lambda x, y: x * y, lambda: (rand(3), rand(3))),
    "mul, twice": (lambda x, y: (x * y) * y, lambda: (rand(3), rand(3))),
    "div": (lambda x, y: x / y, lambda: (rand(3), rand(3))),
    "pow": (lambda x, y: x**y, lambda: (rand(3), rand(3))),
    "where": (lambda x, y, c: torch.where(c > 1, x, y), lambda: (rand(3), rand(3), rand(3))),
    "relu": (lambda x: x.relu() + 1, lambda: (rand(3),)),
    "exp": (lambda x: x.exp() + 1, lambda: (rand(3),)),
    "sin": (lambda x: x.sin() + 1, lambda: (rand(3),)),
    "gelu": (lambda x: F.gelu(x) + 1, lambda: (rand(3),)),
    "softmax": (lambda x: x.softmax(0) + 1, lambda: (rand(3),)),
    "linear": (F.linear, lambda: (rand(2, 3), rand(4, 3), rand(4))),
    "a view": (lambda x, y: x[1:] * y.t(), lambda: (rand(3, 2), rand(2, 2))),
    "matmul": (torch.matmul, lambda: (rand(2, 3), rand(3, 2))),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (3,), w, b),
        lambda: (rand(2, 3), rand(3), rand(3)),
    ),
    "batch_norm, training": (
        lambda x, m, v, w: F.batch_norm(x, m, v, w, training=True),
        lambda: (rand(4, 3), rand(3), rand(3), rand(3)),
    ),
    "batch_norm": (
        lambda x, m, v, w: F.batch_norm(x, m, v, w),
        lambda: (rand(4, 3), rand(3), rand(3), rand(3)),
    ),
    "embedding": (lambda w, i: F.embedding(i, w), lambda: (rand(5, 2), whole(1, 2))),
    "gather": (lambda x, i: x.gather(0, i), lambda: (rand(5), whole(1, 2))),
    "cross_entropy": (F.cross_entropy, lambda: (rand(2, 3), whole(0, 2))),
    "mse_loss": (F.mse_loss, lambda: (rand(3), rand(3))),
    "conv2d": (F.conv2d, lambda: (rand(1, 2, 3, 3), rand(2, 2, 2, 2))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2) * 2, lambda: (rand(1, 2, 4, 4),)),
    "cumprod": (lambda x: x.cumprod(0) + 1, lambda: (rand(3),)),
    "sort": (lambda x: x.sort().values * 2, lambda: (rand(3),)),
}
# Eager keeps what these give. A graph keeps what they are given, and computes that once more: then its backward raises.
COMPUTED_AGAIN = {("relu", 0), ("exp", 0), ("softmax", 0), ("cross_entropy", 0)}
_STATISTICS = ("batch_norm, training", "batch_norm")


def _given(name: str, seed: int, others: bool) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    given = [*FUNCTIONS[name][1]()]
    for place, tensor in enumerate(given):
        statistic = name in _STATISTICS and place in (1, 2)
        if tensor.is_floating_point() and not statistic and (others or place == 0):
            tensor.requires_grad_()
    return given


INPLACE = "one of the variables needed for gradient computation has been modified by an inplace operation"


def _backward(fn: Callable[..., Any], given: list[torch.Tensor], written: int | None) -> Any:
    """Gradients, or what the backward raises."""
    result = fn(*given)
    if written is not None:
        given[written].detach().mul_(1)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return str(error).split(":")[0]
    return [None if tensor.grad is None else tensor.grad for tensor in given]


def _places() -> Iterator[tuple[str, int]]:
    for name, (_, make) in FUNCTIONS.items():
        yield from ((name, place) for place in range(len(make())))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name, place", _places())
def test_an_input_is_written(name: str, place: int, backend: str) -> None:
    fn = FUNCTIONS[name][0]
    for others in (False, True):
        compiled = stator.compile(lambda *given: fn(*given), backend=backend)
        compiled.stator.reset()
        for call, written in enumerate((None, None, place, place, None)):
            wanted = _backward(fn, _given(name, call, others), written)
            if written is not None and (name, place) in COMPUTED_AGAIN:
                assert not isinstance(wanted, str)
                wanted = INPLACE
            got = _backward(compiled, _given(name, call, others), written)
            assert type(wanted) is type(got), (others, call, wanted, got)
            if isinstance(wanted, str):
                assert wanted == got == INPLACE
                continue
            for one, other in zip(wanted, got, strict=True):
                assert (one is None) == (other is None)
                assert one is None or torch.allclose(one, other, rtol=1e-4, atol=1e-6)
        assert compiled.stator.hits == 4 and not compiled.stator.break_reasons


CHANGES: dict[str, Callable[[nn.BatchNorm2d], Any]] = {
    "nothing": lambda norm: None,
    "the mean": lambda norm: norm.running_mean.add_(1),
    "the variance": lambda norm: norm.running_var.mul_(2),
    "the count": lambda norm: norm.num_batches_tracked.add_(1),
    "all": lambda norm: norm.reset_running_stats(),
    "another buffer": lambda norm: setattr(norm, "running_mean", torch.zeros(3)),
    "another call": lambda norm: norm(torch.ones(1, 3, 2, 2)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("change", CHANGES)
def test_statistics_are_written(change: str, backend: str, training: bool) -> None:
    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)).train(training)

    plain, net = make(), make()
    compiled = stator.compile(net, backend=backend)
    compiled.stator.reset()
    for call in range(4):
        outcomes = []
        for run, module in ((plain, plain), (compiled, net)):
            module.zero_grad()
            result = run(torch.full((2, 2, 2, 2), 1.0 + call) * torch.arange(1.0, 17).view(2, 2, 2, 2)).square().sum()
            if call >= 2:
                with torch.no_grad():
                    CHANGES[change](module[1])
            try:
                result.backward()
                outcomes.append(None)
            except RuntimeError as error:
                outcomes.append(str(error)[:100])
        assert outcomes[0] == outcomes[1], call
        for one, other in zip(plain.buffers(), net.buffers(), strict=True):
            assert torch.allclose(one, other, rtol=1e-4)
        if outcomes[0] is None:
            for weight, own in zip(plain.parameters(), net.parameters(), strict=True):
                assert torch.allclose(weight.grad, own.grad, rtol=1e-3, atol=1e-3)
    assert compiled.stator.hits


def test_an_input_that_is_gone() -> None:
    """Nobody can write to it any more."""
    compiled = stator.compile(lambda x, m, v: F.batch_norm(x, m, v), backend="native")
    for call in range(4):
        x = rand(4, 3).requires_grad_()
        m, v = rand(3), rand(3)
        wanted = torch.autograd.grad(F.batch_norm(x, m, v).sum(), x)
        result = compiled(x, m, v)
        del m, v
        (found,) = torch.autograd.grad(result.sum(), x)
        assert torch.allclose(found, wanted[0], rtol=1e-4), call
    assert compiled.stator.hits == 3
