"""On a GPU: traced on fake tensors, which know their device; compared with eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import as_it_is
from symbolic import captured
from torch import nn
from torch.utils.checkpoint import checkpoint

import stator
from stator import events
from stator.autograd import aot_function, aot_module
from stator.backends import aot_eager, inductor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def compare(fn: Any, *args: Any) -> None:
    """Results and gradients."""
    found = []
    for call in (fn, aot_function(fn, as_it_is)):
        torch.manual_seed(0)
        out = call(*args)
        wanted = [a for a in args if a.requires_grad]
        found.append([out, *torch.autograd.grad(out.float().pow(2).sum(), wanted)])
    for one, other in zip(*found, strict=True):
        assert one.device.type == "cuda"
        torch.testing.assert_close(one, other)


def x(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, device="cuda", dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype: torch.dtype, causal: bool) -> None:
    args = [x(2, 4, 64, 32, dtype=dtype) for _ in range(3)]
    compare(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), *args)


def test_convolution_and_norms() -> None:
    def fn(a: Any, w: Any, scale: Any) -> Any:
        return F.group_norm(F.conv2d(a, w, padding=1), 2, scale).relu_()

    compare(fn, x(2, 3, 8, 8), x(4, 3, 3, 3), x(4))


def test_batch_norm_counts() -> None:
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).cuda()
        call = aot_module(model, as_it_is) if compiled else model
        for _ in range(2):
            call(torch.randn(2, 3, 8, 8, device="cuda")).pow(2).mean().backward()
        ends.append([*model.state_dict().values(), *(p.grad for p in model.parameters())])
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other)


def test_tensors_made_inside_and_numbers_from_the_cpu() -> None:
    def fn(a: Any) -> Any:
        mask = torch.ones(4, 4, device=a.device).tril()
        return (a * mask + torch.tensor(2.0)).masked_fill(mask == 0, -1.0)

    compare(fn, x(4, 4))


def test_autocast() -> None:
    def fn(a: Any, w: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return F.linear(a, w).softmax(-1)

    compare(fn, x(8, 8), x(8, 8))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_training(backend: str) -> None:
    refused: list[Any] = []
    end = events.subscribe(refused.append, events.NotDerived, events.InternalFailure)
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 4)
        ).cuda()
        options = {"suppress_errors": False}
        call: Any = stator.compile(model, backend=backend, options=options) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            torch.manual_seed(step)
            optimizer.zero_grad()
            call(torch.randn(8, 16, device="cuda")).pow(2).mean().backward()
            optimizer.step()
        ends.append(model.state_dict())
    end()
    assert refused == []
    for name, expected in ends[0].items():
        torch.testing.assert_close(ends[1][name], expected, rtol=1e-4, atol=1e-5)


def test_a_checkpointed_region_draws_the_same_numbers_again() -> None:
    def fn(a: Any, w: Any) -> Any:
        for _ in range(2):
            a = checkpoint(lambda y: F.dropout(torch.sin(y @ w), 0.3) @ w, a, use_reentrant=False)
        return a

    compare(fn, x(64, 32), x(32, 32))


@pytest.mark.parametrize("backend", [aot_eager, inductor])
def test_symbolic_sizes(backend: Any) -> None:
    def fn(a: Any, w: Any) -> Any:
        rows = a.reshape(a.size(0) * a.size(1), 16) @ w
        return F.layer_norm(rows, (16,)).view(a.size(0), a.size(1), 16).softmax(1) * a.size(0)

    weight = nn.Parameter(torch.randn(16, 16, device="cuda"))
    case = captured(fn, x(5, 7, 16), weight)
    compiled = backend.compile_graph(case.graph, case.examples)
    for size in ((5, 7, 16), (9, 12, 16), (6, 31, 16)):
        a = x(*size)
        found = []
        for call in (lambda *args: compiled(*args)[0], fn):
            out = call(a, weight)
            found.append([out, *torch.autograd.grad(out.pow(2).sum(), [a, weight])])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
