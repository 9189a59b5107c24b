"""Kernels for GPUs, run by simulated threads: the evaluator's values, in memory that ends where a forbidden page
begins, in both orders of threads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

import simulated
from gpu_cases import CASES, Case, function_kernel, steps_of
from guarded import Guarded
from launching import Bound
from random_kernels import draw
from reference import REFERENCES, TWO_ARGUMENTS, ulps
from simulated import Simulated, Stopped
from test_math import pairs, samples

from stator.codegen import math, ptx
from stator.fuse.evaluate import OutOfRange, run_kernel
from stator.fuse.loops import Kernel, concrete

MOST = 20_000  # elements of the largest buffer: longer ones take too long here
MOST_THREADS = 20_000
SMALL = [c for c in CASES if max(t.numel() for t in c.inputs()) <= MOST]


def bind(kernel: Kernel, symbols: dict[Any, int]) -> Bound:
    return Simulated([ptx.write(kernel, "kernel")]).bind(0, lambda size: concrete(size, symbols))


def launch(bound: Bound, given: list[Tensor], *, at_end: bool) -> tuple[list[Tensor], int]:
    """What the buffers hold behind it, and the status."""
    buffers = [Guarded(t, at_end=at_end) for t in given]
    pointers = [b.address for b in buffers]
    scratch = Guarded(torch.zeros(max(8, bound.scratch(pointers)), dtype=torch.uint8), at_end=True)
    status = Guarded(torch.zeros(1, dtype=torch.int64), at_end=True)
    bound.launch(pointers, scratch.address, status.address, 0)
    assert all(b.bands_are_whole() for b in (*buffers, scratch, status)), "written outside"
    return [b.content() for b in buffers], int(status.content()[0])


def in_all_ways(bound: Bound, given: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Tensor], int]]:
    """At the beginning of a page, where it is aligned, in both orders of threads; and at the end."""
    one, status = launch(bound, given, at_end=False)
    monkeypatch.setattr(simulated, "BACKWARD", True)
    other, same = launch(bound, given, at_end=False)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), "the order of threads counts: a race"
    assert status == same
    monkeypatch.setattr(simulated, "BACKWARD", False)
    return [(one, status), launch(bound, given, at_end=True)]


def close(got: Tensor, want: Tensor, loose: float) -> bool:
    if not want.dtype.is_floating_point:
        return torch.equal(got, want)
    eps = {torch.float64: 1e-13, torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}[want.dtype]
    return torch.allclose(got, want, rtol=eps * loose, atol=eps * loose, equal_nan=True)


@pytest.mark.parametrize("case", SMALL, ids=[c.name for c in SMALL])
def test_cases(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for step, before, after, symbols in steps_of(case):
        for got, status in in_all_ways(bind(step.kernel, symbols), before, monkeypatch):
            assert status == 0
            for name, made, want in zip(step.buffers, got, after, strict=True):
                assert close(made, want, case.loose), (case.name, name)


def threads_of(bound: Bound) -> int:
    return sum(blocks * splits * threads for _, blocks, splits, threads in bound.choose([0] * 64).grids)


@pytest.mark.parametrize("part", range(4))
def test_random_programs(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = 0
    for seed in range(part * 12, part * 12 + 12):
        made = draw(seed)
        bound = bind(made.kernel, made.symbols)
        if threads_of(bound) > MOST_THREADS:
            continue
        run += 1
        given = [m.tensor(made.symbols, seed + n) for n, m in enumerate(made.memory)]
        want, holds = [g.clone() for g in given], True
        try:
            run_kernel(made.kernel, want, made.symbols)
        except OutOfRange:
            holds = False
        for got, status in in_all_ways(bound, given, monkeypatch):
            assert (status == 0) == holds, f"{seed=}"
            for n, memory in enumerate(made.memory):
                if holds or not memory.written:
                    same = (got[n] == want[n]) | ((got[n] != got[n]) & (want[n] != want[n]))
                    assert bool(same.all()), f"{seed=} buffer {n}"
    assert run >= 6


@pytest.mark.parametrize("name", sorted(math.F32))
def test_functions_with_an_exact_special_unit(name: str) -> None:
    """The hardware's own approximations have no error here: what is left is ours."""
    given = pairs() if name in TWO_ARGUMENTS else (samples(0),)
    n = len(given[0])
    bound = bind(function_kernel(name, len(given), torch.float32, n), {})
    tensors = [torch.from_numpy(np.ascontiguousarray(g)) for g in given]
    results, _ = launch(bound, [*tensors, torch.zeros(n)], at_end=False)
    with np.errstate(all="ignore"):
        distance = ulps(results[-1].numpy(), REFERENCES[name](*[g.astype(np.float64) for g in given]))
    worst = int(np.argmax(distance))
    assert distance[worst] <= 2.0, ([float(g[worst]) for g in given], results[-1][worst])


def test_a_check_without_a_status_word_stops_the_kernel() -> None:
    case = next(c for c in CASES if c.name == "embedding")
    ((step, before, _, symbols),) = list(steps_of(case))
    bound = bind(step.kernel, symbols)
    indices = next(n for n, b in enumerate(step.kernel.buffers) if b.dtype is torch.int64)
    table = next(n for n, name in enumerate(step.buffers) if n != indices and name not in step.writes)
    before[indices][500] = 100
    before[table] = torch.cat([before[table], torch.zeros(64)])  # the load itself comes before the check
    memory = [b.clone() for b in before]
    with pytest.raises(Stopped):
        bound.launch([m.data_ptr() for m in memory], 0, 0, 0)
    assert launch(bound, before, at_end=False)[1] == 1
