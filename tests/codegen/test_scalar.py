"""Every row of the table of scalar operations, on every type, as eager: fuzzed, and with the values that LLVM leaves
undefined."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from kernels import AVX2, SSE4, Compiled, pointwise, run_pointwise

from stator.codegen import cpu, jit, math, scalar
from stator.fuse import evaluate
from stator.fuse.builder import V
from stator.fuse.loops import STORABLE, computed_in
from stator.fuse.pointwise import POINTWISE
from stator.fuse.random_numbers import philox

aten = torch.ops.aten
WIDTHS = [1, 8, 16]
TYPES = [t for t in sorted(STORABLE, key=str) if computed_in(t) is t]
BINARY: dict[str, Callable[..., Tensor]] = {
    "philox": functools.partial(philox, more=False), "philox_more": functools.partial(philox, more=True),
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.true_divide,
    "floor_div": torch.floor_divide, "trunc_div": functools.partial(torch.div, rounding_mode="trunc"),
    "remainder": torch.remainder, "fmod": torch.fmod, "min": torch.minimum, "max": torch.maximum,
    "copysign": torch.copysign, "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip
UNARY: dict[str, Callable[..., Tensor]] = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "signbit": torch.signbit, "not": torch.bitwise_not,
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round,
    "round_bf16": lambda x: x.bfloat16().float(), "round_f16": lambda x: x.half().float(),
}  # fmt: skip
OTHERS = {"where", "cast"}
TESTS = {"eq", "ne", "lt", "le", "gt", "ge", "signbit"}


def values(dtype: torch.dtype) -> Tensor:
    """Special values, and random bits."""
    generator = torch.Generator().manual_seed(3)
    if dtype is torch.bool:
        return torch.tensor([False, True, True, False, True])
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        near = [0, 1, 2, 3, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, info.max, info.max - 1, info.min + 1]
        kept = sorted({n for m in near for n in (m, -m, info.min) if info.min <= n <= info.max})
        return torch.cat([torch.tensor(kept, dtype=dtype), _bits(dtype, 40, generator)])
    info = torch.finfo(dtype)
    positive = [0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 7.0, 0.1, 3.7, info.max, info.tiny, info.tiny / 4, info.eps]
    positive += [torch.inf, torch.nan, 127.0, 128.0, 200.5, 255.0, 256.0, 32767.0, 32768.0, 40000.7, 65535.0, 70000.9]
    positive += [2.0**31 - 128, 2.0**31 - 1, 2.0**31, 2.0**31 + 1, 3000000123.0, 5000000077.0, 2.0**63, 2.0**64, 1e30]
    made = torch.tensor([*positive, *[-x for x in positive]], dtype=torch.float64).to(dtype)
    return torch.cat([made, _bits(dtype, 60, generator), torch.randn(60, generator=generator).to(dtype)])


def _bits(dtype: torch.dtype, n: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 256, (n * dtype.itemsize,), generator=generator, dtype=torch.uint8).view(dtype)


def pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x = values(dtype)
    return x.repeat_interleave(len(x)), x.repeat(len(x))


def assert_same(got: Tensor, want: Tensor, *given: Tensor, zeros: bool = True) -> None:
    """Bit for bit, but any NaN is a NaN."""
    assert got.dtype is want.dtype
    same = (got == want) | ((got != got) & (want != want))
    if zeros and got.dtype.is_floating_point:
        same &= (torch.signbit(got) == torch.signbit(want)) | (got != got)
    wrong = (~same).nonzero().flatten().tolist()
    shown = [([g[n].item() for g in given], got[n].item(), want[n].item()) for n in wrong[:10]]
    assert not wrong, f"{len(wrong)} wrong: (operands, got, wanted) {shown}"


def one_by_one(op: str, x: Tensor, y: Tensor) -> Tensor:
    """Eager's remainders of whole vectors are wrong where the quotient overflows; those of single numbers are exact."""
    return torch.stack([BINARY[op](a, b) for a, b in zip(x, y, strict=True)])


def formula(op: str) -> Callable[..., V]:
    return lambda x, *more: x.b.op(op, x, *more, dtype=torch.bool if op in TESTS else None)


def runs(op: str) -> list[Any]:
    return [
        pytest.param(op, dtype, id=f"{op}-{str(dtype).removeprefix('torch.')}")
        for dtype in TYPES
        if scalar.supported(op, [dtype, dtype])
    ]


def test_every_row_is_compared_with_eager() -> None:
    assert {*BINARY, *UNARY, *OTHERS, *math.FUNCTIONS} == set(scalar.OPERATIONS)
    assert set(scalar.OPERATIONS) <= evaluate.SCALAR_OPS


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("op", "dtype"), [run for op in UNARY for run in runs(op)])
def test_one_operand(op: str, dtype: torch.dtype, width: int) -> None:
    x = values(dtype)
    want = UNARY[op](x)
    assert_same(run_pointwise(formula(op), [x], want.dtype, width), want, x)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("op", "dtype"), [run for op in BINARY for run in runs(op)])
def test_two_operands(op: str, dtype: torch.dtype, width: int) -> None:
    x, y = pairs(dtype)
    if not dtype.is_floating_point and op in ("floor_div", "trunc_div", "remainder", "fmod"):
        x, y = x[y != 0], y[y != 0]  # eager raises
    if op == "trunc_div" and dtype in (torch.int64, torch.int32):
        trap = (x == torch.iinfo(dtype).min) & (y == -1)  # eager's process dies
        x, y = x[~trap], y[~trap]
    want = one_by_one(op, x, y) if op in ("fmod", "remainder") else BINARY[op](x, y)
    # which of two zeros is the larger one differs within eager, by position
    assert_same(run_pointwise(formula(op), [x, y], want.dtype, width), want, x, y, zeros=op not in ("min", "max"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", ["floor_div", "trunc_div", "remainder", "fmod"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_integers_divide_without_a_trap(op: str, dtype: torch.dtype, width: int) -> None:
    """By 0 anything may come out (a check fails), the smallest number by -1 is itself."""
    x, y = pairs(dtype)
    got = run_pointwise(formula(op), [x, y], dtype, width)
    hardest = (x == torch.iinfo(dtype).min) & (y == -1)
    wanted = torch.iinfo(dtype).min if op in ("floor_div", "trunc_div") else 0
    assert got[hardest].eq(wanted).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_divisor_of_zero_fails_the_call(width: int) -> None:
    rows = [POINTWISE[op] for op in (aten.floor_divide.default, aten.remainder.Tensor, aten.fmod.Tensor)]
    divide = POINTWISE[aten.div.Tensor_mode].formula
    formulas = [row.formula for row in rows] + [
        functools.partial(divide, rounding_mode=mode) for mode in ("trunc", "floor")
    ]
    x, y = torch.arange(1, 40), torch.arange(-40, -1)
    out = torch.empty_like(x)
    for of_two in formulas:
        run = Compiled(pointwise(of_two, [x.dtype, y.dtype], x.dtype, len(x)), width)
        for at in (None, 0, 17, 38):
            by = y.clone()
            if at is not None:
                by[at] = 0
            assert run([x.data_ptr(), by.data_ptr(), out.data_ptr()]) == (at is None)
    known = Compiled(pointwise(lambda v: formulas[0](v, 0), [x.dtype], x.dtype, len(x)), width)
    assert not known([x.data_ptr(), out.data_ptr()])
    free = pointwise(lambda v: formulas[0](v, 3), [x.dtype], x.dtype, len(x))
    assert all(value.op != "check" for value in free.values)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("source", sorted(STORABLE, key=str), ids=str)
def test_casts(source: torch.dtype, width: int) -> None:
    x = values(source)
    for dtype in sorted(STORABLE, key=str):
        want = x.to(dtype)
        got = run_pointwise(lambda v, to=dtype: v.b.cast(v, to), [x], dtype, width)
        assert_same(got, want, x)
        assert_same(torch.stack([one.to(dtype) for one in x]), want, x)  # eager agrees with itself


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_where(dtype: torch.dtype, width: int) -> None:
    x, y = pairs(dtype)
    condition = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(1)).bool()
    got = run_pointwise(lambda c, a, b: c.b.where(c, a, b), [condition, x, y], dtype, width)
    assert_same(got, torch.where(condition, x, y), x, y)


@pytest.mark.parametrize("width", WIDTHS)
def test_bool_bytes_other_than_0_and_1(width: int) -> None:
    raw = torch.arange(256, dtype=torch.uint8)
    x = raw.view(torch.bool)
    assert_same(run_pointwise(lambda v: v, [x], torch.bool, width).view(torch.uint8), (raw != 0).to(torch.uint8))
    assert_same(run_pointwise(lambda v: v.to(torch.float32), [x], torch.float32, width), (raw != 0).float())
    assert_same(run_pointwise(lambda v: v ^ v.b.const(True, torch.bool), [x], torch.bool, width), raw == 0)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", sorted(STORABLE, key=str), ids=str)
def test_constants(dtype: torch.dtype, width: int) -> None:
    for number in [0, 1, 200, -5, 3.7, torch.inf, -torch.inf, torch.nan, -0.0, 1e300, 1e-300, 3.4028236e38]:
        if not dtype.is_floating_point and number not in (0, 1, 200, -5):
            continue
        exact = torch.float64 if dtype.is_floating_point else torch.int64
        want = torch.full((19,), number, dtype=exact).to(computed_in(dtype)).to(dtype)
        x = torch.zeros(19, dtype=dtype)
        assert_same(run_pointwise(lambda v, n=number: v.b.const(n, v.dtype), [x], dtype, width), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", [None, AVX2], ids=["host", "avx2"])
def test_narrow_floats_round_as_eager(dtype: torch.dtype, target: jit.Target | None) -> None:
    """Every number of the type comes back, and ties go to even."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    assert_same(run_pointwise(lambda v: v, [every], dtype, 16, target), every)
    wide = every.float()
    between = (wide + torch.roll(wide, 1)) / 2
    off = torch.nextafter(between, torch.full_like(between, torch.inf))
    for x in (between, off, torch.nextafter(between, torch.full_like(between, -torch.inf))):
        assert_same(run_pointwise(lambda v: v, [x], dtype, 16, target), x.to(dtype), x)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", sorted(math.FUNCTIONS))
def test_functions_are_near_eager(op: str, width: int) -> None:
    """Within 8 ulp of eager, whose own error is some of them; `test_math` holds them to 2 ulp of the truth."""
    for dtype in (torch.float32, torch.float64):
        if not scalar.supported(op, [dtype]):
            continue
        eager = getattr(torch, op)
        given = pairs(dtype) if op in ("pow", "atan2") else (values(dtype),)
        got = run_pointwise(formula(op), given, dtype, width)
        want = eager(*[x.double() for x in given]).to(dtype)
        ulp = torch.nextafter(want.abs(), torch.full_like(want, torch.inf)) - want.abs()
        near = (got - want).abs() <= 8 * ulp
        assert_same(torch.where(near, want, got), want, *given)
        assert_same(got.isnan(), want.isnan(), *given)


CASES = [("shr", torch.int8), ("floor_div", torch.int64), ("remainder", torch.float32), ("max", torch.float32)]


@pytest.mark.parametrize("target", [AVX2, SSE4], ids=["avx2", "sse4"])
def test_other_machines(target: jit.Target) -> None:
    for op, dtype in CASES:
        x, y = pairs(dtype)
        x, y = (x, y) if dtype.is_floating_point or op != "floor_div" else (x[y != 0], y[y != 0])
        want = one_by_one(op, x, y)
        assert_same(run_pointwise(formula(op), [x, y], want.dtype, 4, target), want, x, y, zeros=op != "max")


def test_arm_takes_the_same_text() -> None:
    arm = jit.Target("aarch64-unknown-linux-gnu", "generic", "")
    for op in scalar.OPERATIONS:
        for dtype in TYPES:
            if op in OTHERS or not scalar.supported(op, [dtype, dtype]):
                continue
            count = 2 if op in BINARY or op in ("pow", "atan2") else 1
            kernel = pointwise(formula(op), [dtype] * count, torch.bool if op in TESTS else dtype, 100)
            assert "ret" in jit.assembly(cpu.write(kernel, "kernel", 4).text, arm)


def test_what_is_not_offered() -> None:
    assert not scalar.supported("div", [torch.int64]) and not scalar.supported("add", [torch.bool])
    assert not scalar.supported("exp", [torch.int32]) and not scalar.supported("nonsense", [torch.float32])
    assert not scalar.supported("add", [torch.complex64]) and not scalar.supported("shl", [torch.float32])
