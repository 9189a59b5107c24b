"""Reductions split into chunks compute what the whole ones do, for any number of threads the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stator

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "codegen"))

from native_check import compare
from random_kernels import draw

from stator.fuse import evaluate
from stator.fuse.loops import BufferView, Kernel, Launch, check
from stator.fuse.schedule import Scheduler
from stator.fuse.split import split


def run(launches: list[Launch], memory: dict[str, Tensor]) -> bool:
    """Whether all checks held."""
    held = True
    for launch in launches:
        check(launch.kernel)
        try:
            evaluate.run_kernel(launch.kernel, [memory[name] for name in launch.buffers], {})
        except evaluate.OutOfRange:
            held = False
    return held


def launch_of(kernel: Kernel) -> Launch:
    stored = [f"b{v.attr[0]}" for v in kernel.values if v.op == "store"]
    return Launch(kernel, [b.name for b in kernel.buffers], stored)


def test_random_programs() -> None:
    parts_seen: set[str] = set()
    tried = 0
    for seed in range(5000, 5400):
        made = draw(seed)
        if made.symbols or not made.kernel.inner:
            continue
        places: dict[str, BufferView] = {}
        parts = split(launch_of(made.kernel), places, least=8, shortest=4)
        if not parts:
            continue
        tried += 1
        parts_seen |= {part.kernel.name.rsplit("_", 1)[1] for part in parts}
        memory = {f"b{n}": m.tensor({}, seed + n) for n, m in enumerate(made.memory)}
        want = {name: tensor.clone() for name, tensor in memory.items()}
        holds = run([launch_of(made.kernel)], want)
        for name, place in places.items():
            memory[name] = torch.zeros(place.sizes, dtype=place.dtype)
        assert run(parts, memory) == holds, f"{seed=}"
        for name, tensor in want.items() if holds else ():
            same = (memory[name] == tensor) | ((memory[name] != memory[name]) & (tensor != tensor))
            assert same.all(), f"{seed=} {name}: {memory[name]} {tensor}"
    assert tried > 40 and parts_seen == {"part", "fold", "rest"}


SHAPES = [(1 << 20,), (1000003,), (3, 400001), (300000, 5), (2, 700, 700)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_number_of_threads_gives_the_same_bits(shape: tuple[int, ...]) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        dim = 0 if shape[0] > shape[-1] or len(shape) == 1 else tuple(range(1, len(shape)))
        return (x * 2).sum(dim), x.amax(dim), (x + 1).softmax(0 if len(shape) == 1 else -1), x.argmax()

    seen = compare(program, lambda seed: [torch.randn(shape, generator=torch.Generator().manual_seed(seed))])
    names = [step.kernel.name for made in seen.programs for step in made.steps if isinstance(step, Launch)]
    assert any(name.endswith("_part") for name in names) and any(name.endswith("_fold") for name in names)
    compiled = stator.compile(program, backend="native")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    results = []
    former = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 1):
            torch.set_num_threads(threads)
            results.append(compiled(x))
    finally:
        torch.set_num_threads(former)
    for result in results[2:]:  # the first call ran eagerly
        for got, first in zip(result, results[1], strict=True):
            assert torch.equal(got, first)


LENGTHS = [2, 3, 16384, 16385, 16386, 3 * 16384, 100003, 1 << 20]


@pytest.mark.parametrize("columns", [0, 5])
def test_symbolic_lengths_are_split_too(columns: int) -> None:
    """One recording for all lengths: chunks of one length, of which the last is never empty."""

    def program(x: Tensor) -> tuple[Tensor, ...]:
        return (x * 2).sum(0), x.amax(0), (x + 1).softmax(0), x.argmin(0), x.mean(0)

    def make(seed: int) -> list[Tensor]:
        rows = (50021, 16384 * 4, 70001)[seed]
        shape = (rows, columns) if columns else (rows,)
        return [torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()]

    seen = compare(program, make)
    names = [step.kernel.name for step in seen.programs[-1].steps if isinstance(step, Launch)]
    assert any(name.endswith("_part") for name in names)
    compiled = stator.compile(lambda x: program(x), backend="native")  # recordings of its own
    for rows in (7, 8, *LENGTHS):
        x = torch.randn((rows, columns) if columns else rows, generator=torch.Generator().manual_seed(rows))
        for got, want in zip(compiled(x), program(x.double()), strict=True):
            torch.testing.assert_close(got.double(), want.double(), rtol=1e-5, atol=1e-5 * rows**0.5)
    assert len(compiled.stator.entries) == 2
    former, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(compiled(x))
    finally:
        torch.set_num_threads(former)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_the_evaluator_computes_chunks_of_any_size() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(), x.amax()

    def make(seed: int) -> list[Tensor]:
        return [torch.randn(20000 + 9001 * seed, generator=torch.Generator().manual_seed(seed))]

    made = compare(program, make, dynamic=True).programs[-1]
    (symbol,) = {s for place in made.places.values() for size in place.sizes for s in getattr(size, "free_symbols", ())}
    for rows in (1, 16384, 16385, 40000):
        x = torch.randn(rows)
        inputs = [x if name in made.places else rows for name in made.inputs]
        got = [r for r in evaluate.run_program(made, inputs, {}, {symbol: rows}) if isinstance(r, Tensor)]
        torch.testing.assert_close(got, list(program(x)), rtol=1e-4, atol=1e-3)


def test_splitting_an_axis_looks_at_no_node_that_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    split_axis = Scheduler._split

    def counting(self: Scheduler, *args: Any) -> None:
        looked_at.append(len(self._wants))
        split_axis(self, *args)

    monkeypatch.setattr(Scheduler, "_split", counting)

    def fn(x: Tensor) -> Tensor:
        for _ in range(60):
            x = (x.softmax(-1) + 0.5).reshape(2, 4).t().reshape(8)
        return x

    fast = stator.compile(fn, backend="native")
    x = torch.arange(8.0)
    for _ in range(3):
        torch.testing.assert_close(fast(x), fn(x))
    assert fast.stator.hits == 2 and len(looked_at) >= 50
    assert max(looked_at) < 10
