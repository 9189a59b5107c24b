"""Cumulative operators in kernels: eager's very numbers, their gradients, and what is fused with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from native_check import by_evaluator, compare
from torch import Tensor

import stator
from stator.codegen import gpu_scalar, scalar
from stator.fuse.loops import Index, Kernel, Malformed, Value, check

FUNCTIONS = {"cumsum": torch.cumsum, "cumprod": torch.cumprod, "logcumsumexp": torch.logcumsumexp}


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[int], Sequence[Tensor]]:
    def make(seed: int) -> Sequence[Tensor]:
        numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return [(numbers * 3).to(dtype).requires_grad_(dtype.is_floating_point)]

    return make


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Sequence[Tensor]]]] = {
    "last": (lambda x: (x * 2).cumsum(-1), normal(7, 33)),
    "first": (lambda x: (x * 2).cumsum(0) + x, normal(70, 37)),
    "middle": (lambda x: torch.cumsum(x.tanh(), 1), normal(3, 9, 20)),
    "one dimension": (lambda x: x.cumsum(0), normal(1000)),
    "log of sums": (lambda x: x.logcumsumexp(1), normal(5, 40)),
    "log of sums of columns": (lambda x: (x + 1).logcumsumexp(0), normal(50, 40)),
    "bfloat16": (lambda x: x.cumsum(0), normal(50, 40, dtype=torch.bfloat16)),
    "float64": (lambda x: x.cumsum(0) * 2, normal(50, 40, dtype=torch.float64)),
    "integers": (lambda x: (x.cumsum(0), x.cumprod(1)), normal(6, 20, dtype=torch.int64)),
    "booleans": (lambda x: (x > 0).cumsum(0), normal(60, 20, dtype=torch.int64)),
    "transposed": (lambda x: x.t().cumsum(1) * 2, normal(30, 12)),
    "seen otherwise": (lambda x: (x + 1).view(4, -1).cumsum(1), normal(4, 6, 7)),
    "of a softmax": (lambda x: x.softmax(-1).cumsum(-1), normal(4, 16)),
    "of sums": (lambda x: (x - x.mean(0)).cumsum(0).sum(1), normal(20, 16)),
    "over what it reads": (lambda x: (x @ x.t()).cumsum(0).flip(0).cumsum(1) + 1, normal(20, 16)),
    "twice": (lambda x: x.cumsum(0).cumsum(1), normal(20, 16)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_are_eagers(name: str, dynamic: bool | None) -> None:
    seen = compare(*PROGRAMS[name], dynamic=dynamic)
    assert seen.kernels > 0 and not [label for label in seen.calls if "cum" in label]


def test_products_and_their_gradients() -> None:
    """Whose formula finds zeros by `max` and writes behind them, which are calls."""
    seen = compare(lambda x: x.cumprod(1), normal(5, 8))
    assert not [label for label in seen.calls if "cum" in label]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32]
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_bits_are_eagers(name: str, dtype: torch.dtype) -> None:
    """Numbers are folded in the same order, in the same wider type, and special ones alike."""
    if name == "logcumsumexp" and (not dtype.is_floating_point or dtype is torch.float64):
        return  # in float64 there is no wider type to hide the last digit
    for dim in (0, 1):
        compiled = stator.compile(lambda x, dim=dim: FUNCTIONS[name](x, dim), backend="native")
        for seed in range(4):
            x = torch.randn(67, 35, generator=torch.Generator().manual_seed(seed))
            if dtype.is_floating_point and seed == 3:
                x[3, :9] = torch.tensor(
                    [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, 1e38, 3e38, -3e38]
                )
                x[5, 2:4] = float("-inf")
            x = (x if dtype.is_floating_point else x * 5).to(dtype)
            got, want = compiled(x), FUNCTIONS[name](x, dim)
            assert got.dtype is want.dtype
            assert torch.equal(got.nan_to_num(77), want.nan_to_num(77)) and torch.equal(got.isnan(), want.isnan())


@pytest.mark.parametrize("name", ["last", "first", "log of sums", "twice", "of sums"])
def test_the_evaluator_computes_the_same(name: str) -> None:
    fn, make = PROGRAMS[name]
    seen = compare(fn, lambda seed: [t.detach() for t in make(seed)], grads=False)
    inputs = [t.detach() for t in make(9)]
    (program,) = seen.programs
    torch.testing.assert_close(by_evaluator(program, inputs)[0], fn(*inputs), rtol=1e-5, atol=1e-4)


def test_a_program_before_it_is_one_kernel() -> None:
    seen = compare(lambda x: (x.exp() * 2 + 1).cumsum(0), lambda s: [normal(40, 16)(s)[0].detach()], grads=False)
    assert seen.kernels == 1 and seen.calls == []


def test_sizes_without_elements_and_single_ones() -> None:
    for shape in ((0, 4), (4, 0), (1, 5), (5, 1)):
        compiled = stator.compile(lambda x: (x.cumsum(0) + 1, x.cumsum(1) * 2), backend="native")
        for _ in range(3):
            x = torch.randn(shape)
            for got, want in zip(compiled(x), (x.cumsum(0) + 1, x.cumsum(1) * 2), strict=True):
                assert torch.equal(got, want)


def test_a_number_and_its_gradient() -> None:
    """Whose graph has no step: the tangent is the gradient."""
    seen = compare(lambda x: x.cumsum(0), normal())
    assert len(seen.programs) == 2 and seen.programs[1].steps == []


def test_a_target_without_scans_leaves_them() -> None:
    assert scalar.supported("scan", [torch.float32]) and not gpu_scalar.supported("scan", [torch.float32])


def test_the_checker_wants_axes_and_no_reductions() -> None:
    load = Value("load", (), torch.float32, (0, Index.axis(0)))
    scan = Value("scan", (0,), torch.float32, "sum")
    for outer, inner, more in (([0], [], []), ([], [0], [Value("reduce", (0,), torch.float32, "sum")])):
        kernel = Kernel("k", [5], outer, inner, [], [load, scan, *more])
        with pytest.raises(Malformed):
            check(kernel)
