"""Decompositions and lowerings where they were once wrong: values, types, strides and errors as eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native_check import compare
from torch import Tensor

import stator


def rand(seed: int, *shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def tensors(*shapes: tuple[int, ...], **how: Any) -> Callable[[int], Sequence[Tensor]]:
    return lambda seed: [rand(100 * seed + i, *shape, **how) for i, shape in enumerate(shapes)]


def turned(seed: int) -> list[Tensor]:
    return [rand(seed, 4, 3, 2, grad=False).movedim(0, -1)]


def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, b, training=True)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Sequence[Any]]]] = {
    "reductions of one": (lambda x: (x.sum(1), x.amax(1), x.mean(1), x.prod(1), x * 2), tensors((5, 1, 4))),
    "truths of one": (lambda x: (x.argmax(1), x.any(1), x.all(1), x.std(0)), tensors((5, 1, 4), grad=False)),
    "sum of a number": (lambda x: (x.sum(), x * 3), tensors(())),
    "sign bits": (lambda x: torch.signbit(x), lambda s: [torch.tensor([0.0, -0.0, 1.0, -2.0 - s])]),
    "a shape changed in place": (lambda x: torch.quantile(x, 0.5, dim=-1), tensors((3, 5))),
    "whole numbers divided, turned": (
        lambda x: (torch.div(x, 2, rounding_mode="trunc"), torch.floor_divide(x, 3)),
        lambda s: [torch.arange(24).view(4, 3, 2).movedim(0, -1) + s],
    ),
    "batch norm in bfloat16": (batch_norm, tensors((4, 3, 5), (3,), (3,), dtype=torch.bfloat16)),
    "batch norm, channels last": (
        batch_norm,
        lambda s: [rand(s, 2, 5, 3, 4, grad=False).permute(0, 3, 1, 2).requires_grad_(), rand(s, 4), rand(s + 9, 4)],
    ),
    "powers of rounded numbers": (
        lambda x, y: x ** (y - 1),
        lambda s: [rand(s, 50, dtype=torch.bfloat16), (rand(s, 50, grad=False) * 300).bfloat16()],
    ),
    "fractions in bfloat16": (lambda x: x + torch.arange(0, 2, 0.25, dtype=torch.bfloat16), tensors((8,))),
    "computed and gathered from": (
        lambda x, y, i: (d := x / (y * y + 1)) * 2 + d.index_select(0, i),
        lambda s: [rand(s, 6), rand(s + 50, 6), torch.tensor([1, 0, s, 5, 4, 2])],
    ),
    "special functions": (
        lambda x: (torch.lgamma(x), torch.digamma(x), torch.erfc(x), torch.special.i0e(x), torch.polygamma(2, x.abs())),
        tensors((40,), grad=False),
    ),
    "norms and counts": (
        lambda x: (torch.linalg.vector_norm(x, 3, 1), x.norm(), torch.count_nonzero(x > 0, 0)),
        tensors((5, 9)),
    ),
    "whole numbers between fractions": (
        lambda x: x * torch.linspace(4.3, 0, 50, dtype=torch.int64) + torch.logspace(0.5, 3.7, 50, dtype=torch.int64),
        tensors((50,)),
    ),
    "spectra": (lambda x: torch.view_as_real(torch.fft.rfft2(x)) * 2, tensors((5, 6, 7), grad=False)),
    "narrow floats beside expanded ones": (
        lambda s, p: (s.expand(2, 8, 3) * p, s.expand(2, 8, 1) + p, s > p, (s * 3).expand(2, 8, 3).logical_and(p)),
        lambda s: [rand(s, 1, grad=False, dtype=torch.bfloat16), rand(s, 8, 3, 2, dtype=torch.bfloat16).movedim(2, 0)],
    ),
    "one hot, turned": (lambda x: F.one_hot((x > 0).long(), 3), turned),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_wrong(name: str) -> None:
    fn, make = PROGRAMS[name]
    assert compare(fn, make).kernels > 0


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_in_inference_is_a_kernel_with_what_follows(dtype: torch.dtype, grads: bool) -> None:
    def f(x: Tensor, y: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
        return F.relu(F.batch_norm(x, mean, var, w, b) + y), F.batch_norm(x, mean, var)

    def make(seed: int) -> list[Tensor]:
        x, y, *kept = tensors((2, 3, 4, 5), (2, 3, 4, 5), (3,), (3,), (3,), (3,), dtype=dtype, grad=False)(seed)
        kept[-1] = kept[-1].abs() + 1
        x = x.contiguous(memory_format=torch.channels_last if seed == 2 else torch.contiguous_format)
        return [t.requires_grad_(grads) if i < 4 else t for i, t in enumerate([x, y, *kept])]

    seen = compare(f, make)
    assert seen.kernels and not [call for call in seen.calls if "batch_norm" in call]


def test_batch_norm_with_given_statistics_keeps_none() -> None:
    """What the operator is said to give for the backward is not there: kernels were left for the dispatcher."""

    def f(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
        y, *kept = torch._native_batch_norm_legit(x, w, b, mean, var, False, 0.1, 0.5)
        return y * 2, *kept

    def make(seed: int) -> list[Tensor]:
        x, w, b, mean, var = tensors((2, 3, 4, 5), (3,), (3,), (3,), (3,))(seed)
        return [x, w, b, mean.detach(), var.detach().abs() + 1]

    seen = compare(f, make)
    assert seen.kernels and not [call for call in seen.calls if "batch_norm" in call], seen.calls


def test_random_numbers_do_not_overwrite_what_they_go_with() -> None:
    """`rrelu` writes to its noise alone, also where its operand has gaps in memory."""

    def f(x: Tensor) -> Tensor:
        return F.rrelu(x, 0.1, 0.3, training=True) * 2

    compiled = stator.compile(f, backend="native")
    for seed in range(3):
        x, y = (torch.empty(10)[::2].copy_(rand(seed, 5, grad=False)).requires_grad_() for _ in range(2))
        torch.manual_seed(seed)
        want = f(x)
        torch.manual_seed(seed)
        got = compiled(y)
        assert torch.equal(got, want) and torch.equal(x, y)
        assert torch.equal(*(torch.autograd.grad(r.sum(), t)[0] for r, t in ((want, x), (got, y))))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x[i] + 1,
        lambda x, i: torch.gather(x, 0, i) * 2,
        lambda x, i: x.index_select(0, i) * 2,
        lambda x, i: F.one_hot(i, 3) * 2,
        lambda x, i: (10 // (i + 1)) + 1,
    ],
)
def test_errors_are_eagers(f: Callable[..., Tensor]) -> None:
    compiled = stator.compile(f, backend="native")
    x, good, bad = rand(0, 3, grad=False), torch.tensor([0, 2, 1]), torch.tensor([0, 3, -1])
    for _ in range(3):
        assert torch.equal(compiled(x, good), f(x, good))
    if f(x, good).dtype is torch.int64 and f(x, good).dim() == 1:
        bad = torch.tensor([0, -1, 2])
    with pytest.raises((IndexError, RuntimeError)) as eager:
        f(x, bad)
    with pytest.raises(eager.type):
        compiled(x, bad)
    assert torch.equal(compiled(x, good), f(x, good))
