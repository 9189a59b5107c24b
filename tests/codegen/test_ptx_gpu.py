"""Kernels on a GPU: the values of the reference evaluator, and not one byte written beside them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from gpu_cases import CASES, Case, function_kernel, steps_of
from launching import Bound
from launching import Launching as Loaded
from random_kernels import draw
from reference import REFERENCES, TWO_ARGUMENTS, ulps
from test_math import pairs, samples

from stator.codegen import math, ptx
from stator.fuse.evaluate import OutOfRange, run_kernel
from stator.fuse.loops import Kernel, concrete

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

GUARD = 4096  # bytes on both sides of each buffer
PATTERN = 0xA5


class Fenced:
    """Device memory with a guard band on both sides; `off`: elements that it begins beside an aligned address."""

    def __init__(self, content: Tensor, off: int) -> None:
        self.bytes = content.numel() * content.element_size()
        self.begin = GUARD + off * content.element_size()
        self.memory = torch.full((self.bytes + 2 * GUARD + 64,), PATTERN, dtype=torch.uint8, device="cuda")
        self.dtype = content.dtype
        self.inside.copy_(content.contiguous().view(torch.uint8).cuda() if self.bytes else content.view(torch.uint8))

    @property
    def inside(self) -> Tensor:
        return self.memory[self.begin : self.begin + self.bytes]

    @property
    def pointer(self) -> int:
        return self.memory.data_ptr() + self.begin

    def content(self) -> Tensor:
        return self.inside.cpu().view(self.dtype)

    def intact(self) -> bool:
        around = torch.cat([self.memory[: self.begin], self.memory[self.begin + self.bytes :]])
        return bool((around == PATTERN).all())


def loaded(kernel: Kernel) -> tuple[ptx.PtxKernel, Loaded]:
    written = ptx.write(kernel, "kernel")
    return written, Loaded([written], torch.cuda.current_device())


def launch(bound: Bound, buffers: list[Fenced]) -> int:
    """Runs it; the status word, after a check of all guard bands."""
    pointers = [b.pointer for b in buffers]
    scratch = Fenced(torch.zeros(bound.scratch(pointers), dtype=torch.uint8), 0)
    status = Fenced(torch.zeros(1, dtype=torch.int64), 0)
    bound.launch(pointers, scratch.pointer, status.pointer, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    assert all(b.intact() for b in (*buffers, scratch, status)), "a guard band was written"
    return int(status.content()[0])


def tolerance(dtype: torch.dtype, loose: float) -> dict[str, float]:
    eps = {torch.float64: 1e-13, torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}[dtype]
    return {"rtol": eps * loose, "atol": eps * loose}


def compare(got: Tensor, want: Tensor, loose: float, where: str) -> None:
    if want.dtype.is_floating_point:
        torch.testing.assert_close(
            got, want, equal_nan=True, **tolerance(want.dtype, loose), msg=lambda m: f"{where}: {m}"
        )
    else:
        assert torch.equal(got, want), where


@pytest.mark.parametrize("off", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_kernels_give_the_evaluators_values(case: Case, off: int) -> None:
    for step, before, after, symbols in steps_of(case):
        _, module = loaded(step.kernel)
        bound = module.bind(0, lambda size, symbols=symbols: concrete(size, symbols))
        for _ in range(3):
            buffers = [Fenced(b, off) for b in before]
            assert launch(bound, buffers) == 0
            for buffer, start, want, name in zip(buffers, before, after, step.buffers, strict=True):
                if name in step.writes:
                    compare(buffer.content(), want, case.loose, f"{case.name} {name}")
                else:
                    assert torch.equal(buffer.content().view(torch.uint8), start.view(torch.uint8)), "an input changed"


@pytest.mark.parametrize("part", range(20))
def test_random_programs(part: int) -> None:
    for seed in range(part * 20, part * 20 + 20):
        made = draw(seed)
        given = [m.tensor(made.symbols, seed + n) for n, m in enumerate(made.memory)]
        want, holds = [g.clone() for g in given], True
        try:
            run_kernel(made.kernel, want, made.symbols)
        except OutOfRange:
            holds = False
        _, module = loaded(made.kernel)
        bound = module.bind(0, lambda size, symbols=made.symbols: concrete(size, symbols))
        for off in (0, 1):
            buffers = [Fenced(g, off) for g in given]
            assert (launch(bound, buffers) == 0) == holds, f"{seed=} {off=}"
            for n, memory in enumerate(made.memory):
                if holds or not memory.written:
                    got = buffers[n].content()
                    same = (got == want[n]) | ((got != got) & (want[n] != want[n]))
                    assert bool(same.all()), f"{seed=} {off=} buffer {n}"


@pytest.mark.parametrize("variant", [0, 1])
def test_unaligned_memory_takes_the_other_variant(variant: int) -> None:
    written, module = loaded(function_kernel("exp", 1, torch.float32, 1024))
    buffers = [Fenced(torch.ones(1024), variant), Fenced(torch.zeros(1024), variant)]
    bound = module.bind(0, int)
    assert bound.variant([b.pointer for b in buffers]) is written.variants[variant]
    launch(bound, buffers)
    assert torch.allclose(buffers[1].content(), torch.ones(1024).exp())


@pytest.mark.parametrize("name", sorted(math.F32))
def test_functions_are_within_two_ulp(name: str) -> None:
    given = pairs() if name in TWO_ARGUMENTS else (samples(0),)
    worst, where = _worst(name, given)
    assert worst <= 2.0, where


def _worst(name: str, given: tuple[Any, ...]) -> tuple[float, Any]:
    _, module = loaded(function_kernel(name, len(given), torch.float32, len(given[0])))
    buffers = [Fenced(torch.from_numpy(np.ascontiguousarray(g)), 0) for g in given]
    buffers.append(Fenced(torch.zeros(len(given[0])), 0))
    launch(module.bind(0, int), buffers)
    got = buffers[-1].content().numpy()
    with np.errstate(all="ignore"):
        want = REFERENCES[name](*[values.astype(np.float64) for values in given])
        distance = ulps(got, want)
    at = int(np.argmax(distance))
    return float(distance[at]), ([float(values[at]) for values in given], got[at], want[at], distance[at])


_ON_DEVICE = {"exp": torch.exp, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "log": torch.log, "rsqrt": torch.rsqrt}


@pytest.mark.parametrize("name", sorted(_ON_DEVICE))
def test_common_functions_over_sixty_million_arguments(name: str) -> None:
    n = 2**26
    _, module = loaded(function_kernel(name, 1, torch.float32, n))
    bound = module.bind(0, int)
    bits = (torch.arange(n, device="cuda", dtype=torch.int64) * 64 + 13).to(torch.int32)
    x = bits.view(torch.float32)
    y = torch.empty_like(x)
    bound.launch([x.data_ptr(), y.data_ptr()], 0, 0, torch.cuda.current_stream().cuda_stream)
    want = _ON_DEVICE[name](x.double())
    nearest = want.float()
    usual = nearest.isfinite() & ~nearest.isnan()
    assert torch.equal(y.isnan(), nearest.isnan())
    spacing = torch.exp2((torch.frexp(nearest.abs()).exponent - 24).clamp(min=-149).double())
    distance = torch.where(usual & y.isfinite(), (y.double() - nearest.double()).abs() / spacing, 0.0)
    worst = int(distance.argmax())
    assert float(distance[worst]) <= 2.0, (float(x[worst]), float(y[worst]), float(want[worst]))
    overflow = ~nearest.isfinite() & ~nearest.isnan()
    assert bool(((y == nearest) | (y.abs() >= 3.4028230e38))[overflow].all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_division_and_remainders(dtype: torch.dtype) -> None:
    special = torch.tensor([0.0, -0.0, 1.0, -3.0, 1e-40, 3e38, float("inf"), float("-inf"), float("nan"), 5e-324])
    x, y = torch.randn(3000, dtype=torch.float64) * 1e3, torch.randn(3000, dtype=torch.float64)
    wide = torch.cartesian_prod(special, special)
    x, y = torch.cat([x, wide[:, 0].double()]).to(dtype), torch.cat([y, wide[:, 1].double()]).to(dtype)
    exact: dict[str, Any] = {"fmod": np.fmod, "remainder": np.mod}  # torch's own lose digits of large quotients
    for op in ("div", "fmod", "remainder", "floor_div"):
        kernel = function_kernel(op, 2, dtype, len(x))
        _, module = loaded(kernel)
        buffers = [Fenced(x, 0), Fenced(y, 0), Fenced(torch.zeros_like(x), 0)]
        launch(module.bind(0, int), buffers)
        want = torch.zeros_like(x)
        if op in exact:
            with np.errstate(all="ignore"):
                want = torch.from_numpy(exact[op](x.numpy(), y.numpy()))
        else:
            run_kernel(kernel, [x, y, want], {})
        bad = _differ(buffers[2].content(), want, 0.0 if op in exact else 3e-7)
        assert not bad.any(), (op, x[bad][:4], y[bad][:4], buffers[2].content()[bad][:4], want[bad][:4])


def _differ(got: Tensor, want: Tensor, rtol: float) -> Tensor:
    return ~torch.isclose(got, want, rtol=rtol, atol=0.0, equal_nan=True)


def test_an_index_out_of_range_is_noted() -> None:
    case = next(c for c in CASES if c.name == "embedding")
    ((step, before, _, symbols),) = list(steps_of(case))
    _, module = loaded(step.kernel)
    bound = module.bind(0, int)
    indices = next(n for n, b in enumerate(step.kernel.buffers) if b.dtype is torch.int64)
    before[indices][500] = 100
    with pytest.raises(OutOfRange):
        run_kernel(step.kernel, [b.clone() for b in before], symbols)
    # the kernel itself reads beside the table, so the table has room behind it here
    table = next(n for n, name in enumerate(step.buffers) if n != indices and name not in step.writes)
    before[table] = torch.cat([before[table], torch.zeros(64)])
    assert launch(bound, [Fenced(b, 0) for b in before]) == 1
    before[indices][500] = 99
    assert launch(bound, [Fenced(b, 0) for b in before]) == 0


def test_side_streams_and_threads_without_a_context() -> None:
    kernel = function_kernel("exp", 1, torch.float32, 4096)
    _, module = loaded(kernel)
    bound = module.bind(0, int)
    x = torch.linspace(-1, 1, 4096, device="cuda")
    results: list[Tensor] = []

    def work() -> None:
        y = torch.zeros_like(x)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        bound.launch([x.data_ptr(), y.data_ptr()], 0, 0, stream.cuda_stream)
        stream.synchronize()
        results.append(y)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for y in results:
        assert torch.allclose(y, x.exp())


def test_sums_have_one_order() -> None:
    for name in ("full_sum_1000003", "column_sum_4096x512", "softmax_few_long_rows"):
        for step, before, _, symbols in steps_of(next(c for c in CASES if c.name == name)):
            _, module = loaded(step.kernel)
            bound = module.bind(0, lambda size, symbols=symbols: concrete(size, symbols))
            made = []
            for _ in range(5):
                buffers = [Fenced(b, 0) for b in before]
                launch(bound, buffers)
                made.append(torch.cat([b.content().view(torch.uint8) for b in buffers]))
            assert all(torch.equal(made[0], other) for other in made[1:])
