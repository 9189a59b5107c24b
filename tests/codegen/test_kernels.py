"""Machine code of loop programs against the reference evaluator, on memory that ends where a forbidden page begins."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from guarded import Guarded
from kernels import AARCH64, AVX2, SSE4, Compiled, Ranges, whole
from random_kernels import Made, draw

from stator.codegen import cpu, jit
from stator.fuse import evaluate
from stator.fuse.builder import KernelBuilder
from stator.fuse.loops import Buffer, Index, Kernel

AXIS = Index.axis


def machines() -> list[tuple[int, jit.Target | None]]:
    """Widths, with the targets whose instructions this machine has."""
    if not jit.host_target().triple.startswith("x86_64"):
        return [(4, None), (1, None)]
    has = jit.host_target().features
    found: list[tuple[int, jit.Target | None]] = [(4, SSE4), (1, None)]
    found += [(8, AVX2)] if "+avx2" in has else []
    return [*found, (16, None)] if "+avx512f" in has else found


def same(got: Tensor, want: Tensor) -> bool:
    """Any NaN is a NaN, and the sign of a zero may be that of another one."""
    return bool(((got == want) | ((got != got) & (want != want))).all())


def cut(seed: int) -> Ranges:
    """Some ranges of the units, in any order."""
    source = random.Random(seed)

    def ranges(count: int, align: int) -> list[tuple[int, int]]:
        cuts = sorted({0, count, *[source.randrange(count + 1) // align * align for _ in range(4)]})
        parts = list(itertools.pairwise(cuts))
        source.shuffle(parts)
        return parts

    return ranges


def run(made: Made, code: Compiled, given: list[Tensor], ranges: Ranges, *, at_end: bool) -> tuple[list[Tensor], bool]:
    memory = [Guarded(tensor, at_end=at_end) for tensor in given]
    held = code([m.address for m in memory], made.symbols, ranges)
    assert all(m.bands_are_whole() for m in memory), "written outside"
    return [m.content() for m in memory], held


@pytest.mark.parametrize("part", range(10))
def test_random_programs(part: int) -> None:
    for seed in range(part * 20, part * 20 + 20):
        made = draw(seed)
        for width, target in (machines() * 2)[seed % len(machines()) :][:2]:  # each two of them, all of them in turn
            code = Compiled(made.kernel, width, target)
            given = [m.tensor(made.symbols, seed + n) for n, m in enumerate(made.memory)]
            want, holds = [g.clone() for g in given], True
            try:
                evaluate.run_kernel(made.kernel, want, made.symbols)
            except evaluate.OutOfRange:
                holds = False
            got, held = run(made, code, given, cut(seed), at_end=seed % 2 == 0)
            assert held == holds, f"{seed=} {width=}"
            for n, memory in enumerate(made.memory):
                if holds or not memory.written:  # a check that fails leaves its results open
                    assert same(got[n], want[n]), f"{seed=} {width=} b{n}: {got[n]} {want[n]}"


@pytest.mark.parametrize("part", range(5))
def test_results_do_not_depend_on_how_the_units_are_split(part: int) -> None:
    """Bit for bit, for numbers whose sums depend on the order of additions."""
    width, target = machines()[-1]
    for seed in range(1000 + part * 12, 1000 + part * 12 + 12):
        made = draw(seed)
        code = Compiled(made.kernel, width, target)
        given = [m.tensor(made.symbols, seed + n, real=True) for n, m in enumerate(made.memory)]
        once, held = run(made, code, given, whole, at_end=True)
        for again in range(3):
            other, held_again = run(made, code, given, cut(seed * 3 + again), at_end=False)
            assert held == held_again
            for a, b in zip(once, other, strict=True):
                assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), f"{seed=}"


def test_other_machines_take_random_programs() -> None:
    for seed in range(40):
        assert "ret" in jit.assembly(cpu.write(draw(seed).kernel, "kernel", 4).text, AARCH64)


# ------------------------------------------------------------------------------------------------ written by hand


def kernel(
    b: KernelBuilder, extents: Sequence[Any], outer: list[int], inner: list[int], types: list[torch.dtype]
) -> Kernel:
    return Kernel("kernel", list(extents), outer, inner, [Buffer(f"b{n}", t) for n, t in enumerate(types)], b.values)


def rows_or_columns(rows: Any, columns: Any, folded: int) -> tuple[KernelBuilder, Index, Index, list[int], list[int]]:
    """Axes 0 and 1 of a dense matrix: the index of an element, and that of a result."""
    return KernelBuilder(), AXIS(0) * columns + AXIS(1), AXIS(1 - folded), [1 - folded], [folded]


def softmax(rows: Any, columns: Any, dtype: torch.dtype, folded: int) -> Kernel:
    b, at, _, outer, inner = rows_or_columns(rows, columns, folded)
    x = b.load(0, at, dtype)
    powers = (x - b.add("reduce", (x.id,), x.dtype, "max")).exp()
    result = powers / b.add("reduce", (powers.id,), x.dtype, "sum")
    b.add("store", (result.id,), x.dtype, (1, at))
    return kernel(b, [rows, columns], outer, inner, [dtype, dtype])


def normalized(rows: Any, columns: Any, dtype: torch.dtype, folded: int) -> Kernel:
    b, at, one, outer, inner = rows_or_columns(rows, columns, folded)
    x = b.load(0, at, dtype)
    count = b.index(Index((rows, columns)[folded])).to(x.dtype)
    mean = b.add("reduce", (x.id,), x.dtype, "sum") / count
    centred = x - mean
    variance = b.add("reduce", ((centred * centred).id,), x.dtype, "sum") / count
    scale = (variance + 1e-5).rsqrt()
    b.add("store", ((centred * scale).id,), x.dtype, (1, at))
    b.add("store", (mean.id,), x.dtype, (2, one))
    b.add("store", (scale.id,), x.dtype, (3, one))
    return kernel(b, [rows, columns], outer, inner, [dtype, dtype, torch.float32, torch.float32])


SHAPES = [(1, 1), (3, 1), (1, 17), (5, 64), (7, 33), (33, 257), (2, 5000), (5000, 3), (130, 130)]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("folded", [1, 0])
@pytest.mark.parametrize("write", [softmax, normalized])
def test_normalizing(write: Any, folded: int, dtype: torch.dtype, symbolic: bool) -> None:
    names = sympy.symbols("rows columns", positive=True, integer=True)
    for width, target in [m for m in machines() if m[0] > 1]:
        code = Compiled(write(*names, dtype, folded), width, target) if symbolic else None
        for shape in SHAPES:
            x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).mul(3).to(dtype)
            compiled = code or Compiled(write(*shape, dtype, folded), width, target)
            out, mean, scale = torch.empty_like(x), torch.empty(max(shape)), torch.empty(max(shape))
            addresses = [x.data_ptr(), out.data_ptr(), mean.data_ptr(), scale.data_ptr()]
            assert compiled(addresses, dict(zip(names, shape, strict=True)), cut(shape[1]))
            wide = x.double()
            if write is softmax:
                want, eager = wide.softmax(folded), x.softmax(folded)
            else:
                want = (wide - wide.mean(folded, True)) * (wide.var(folded, correction=0, keepdim=True) + 1e-5).rsqrt()
                moved = x.movedim(folded, -1)
                eager = torch.nn.functional.layer_norm(moved, moved.shape[-1:]).movedim(-1, folded)
            ours, theirs = (out.double() - want).abs().max(), (eager.double() - want).abs().max()
            assert ours <= 1.5 * theirs + torch.finfo(dtype).eps * want.abs().max(), (shape, width, ours, theirs)


@pytest.mark.parametrize("folded", [1, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_long_sums_are_as_exact_as_eager(dtype: torch.dtype, folded: int) -> None:
    shape = (2, 1 << 20) if folded else (1 << 18, 8)
    b, at, one, outer, inner = rows_or_columns(*shape, folded)
    x = b.load(0, at, dtype)
    b.add("store", (b.add("reduce", (x.id,), torch.float32, "sum").id,), torch.float32, (1, one))
    made = kernel(b, shape, outer, inner, [dtype, torch.float32])
    data = torch.rand(shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    want = data.double().sum(folded)
    for width, target in machines():
        out = torch.empty(want.shape)
        Compiled(made, width, target)([data.data_ptr(), out.data_ptr()])
        error, eager = (out - want).abs().max(), (data.sum(folded, dtype=torch.float32) - want).abs().max()
        assert error <= 2 * eager + want.max() * 3e-7, (width, error, eager)


def test_an_index_outside_is_noted_and_not_read() -> None:
    rows, columns = 50, 37
    b = KernelBuilder()
    number = b.load(0, AXIS(0), torch.int64)
    inside = (number >= 0) & (number < rows)
    b.check(inside)
    safe = b.where(inside, number, b.const(0, torch.int64))
    value = b.load(1, Index(0, ((1, 1),), ((safe.id, columns),)), torch.float32)
    b.add("store", (value.id,), torch.float32, (2, AXIS(0) * columns + AXIS(1)))
    made = kernel(b, [20, columns], [0, 1], [], [torch.int64, torch.float32, torch.float32])
    table = Guarded(torch.randn(rows * columns), at_end=True)
    for width, target in machines():
        code = Compiled(made, width, target)
        for wrong in (None, -1, rows, 1 << 62, -(1 << 62)):
            numbers = torch.randint(0, rows, (20,))
            if wrong is not None:
                numbers[13] = wrong
            out = torch.empty(20, columns)
            assert code([numbers.data_ptr(), table.address, out.data_ptr()]) == (wrong is None)
            if wrong is None:
                assert torch.equal(out, table.content().view(rows, columns)[numbers])


@pytest.mark.parametrize("scratch", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_transposes(dtype: torch.dtype, symbolic: bool, scratch: bool) -> None:
    """out[n, i, j] = x[n, j, i] + y[n, i, j]: in tiles, in registers or in scratch memory, and beside them."""
    names = sympy.symbols("rows columns", positive=True, integer=True)

    def write(rows: Any, columns: Any) -> Kernel:
        b = KernelBuilder()
        dense = AXIS(0) * (rows * columns) + AXIS(1) * columns + AXIS(2)
        x = b.load(0, AXIS(0) * (rows * columns) + AXIS(2) * rows + AXIS(1), dtype)
        y = b.load(1, dense, dtype)
        total = x ^ y if dtype is torch.bool else x + y
        for _ in range(4 * scratch):  # twice there and back
            total = b.cast(total, torch.float32 if total.dtype is dtype else dtype)
        b.add("store", (total.id,), total.dtype, (2, dense))
        return kernel(b, [2, rows, columns], [0, 1, 2], [], [dtype] * 3)

    for width, target in machines():
        code = Compiled(write(*names), width, target) if symbolic else None
        for rows, columns in [(1, 1), (16, 16), (32, 64), (17, 33), (70, 16), (16, 70), (5, 100), (300, 5), (530, 20)]:
            compiled = code or Compiled(write(rows, columns), width, target)
            assert ("shufflevector" in compiled.written.text) or rows < 4 or columns < 4 or width == 1
            x = torch.randint(0, 2 if dtype is torch.bool else 100, (2, columns, rows)).to(dtype)
            y = torch.randint(0, 2 if dtype is torch.bool else 100, (2, rows, columns)).to(dtype)
            given = [Guarded(t.flatten(), at_end=True) for t in (x, y, torch.empty_like(y))]
            addresses = [g.address for g in given]
            assert compiled(addresses, dict(zip(names, (rows, columns), strict=True)), cut(rows))
            want = x.mT ^ y if dtype is torch.bool else x.mT + y
            assert torch.equal(given[2].content(), want.flatten()) and given[2].bands_are_whole()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("lengths", [[64, 32], [17, 1, 30], [5, 100], [1, 1], [9, 8, 7, 6, 5, 4, 3]], ids=str)
def test_parts_put_together(lengths: list[int], rows: int) -> None:
    """Along the lanes, each part from its own memory, and 3 more of a pad: nothing is read outside of a part."""
    b = KernelBuilder()
    position = AXIS(1)
    total = sum(lengths) + 3
    result = b.const(7.0, torch.float32)
    start = 0
    for n, length in enumerate(lengths):
        here = b.index(position + -start)
        inside = (here >= 0) & (here < b.index(Index(length)))
        part = b.load(n, AXIS(0) * length + position + -start, torch.float32, inside)
        result = b.where(inside, part, result)
        start += length
    b.add("store", (result.id,), torch.float32, (len(lengths), AXIS(0) * total + position))
    extents, outer = ([1, total], [1]) if rows == 1 else ([rows, total], [0, 1])
    values = b.values
    if rows == 1:
        values = [
            v if not isinstance(v.attr, tuple) else replace(v, attr=(v.attr[0], _one_row(v.attr[1]))) for v in values
        ]
    made = Kernel(
        "kernel", extents, outer, [], [Buffer(f"b{n}", torch.float32) for n in range(len(lengths) + 1)], values
    )
    parts = [torch.randn(rows, length) for length in lengths]
    want = torch.cat([*parts, torch.full((rows, 3), 7.0)], 1)
    for width, target in machines():
        memory = [Guarded(p.flatten(), at_end=True) for p in (*parts, torch.zeros_like(want))]
        code = Compiled(made, width, target)
        assert code([m.address for m in memory], {}, cut(total))
        assert torch.equal(memory[-1].content(), want.flatten()) and memory[-1].bands_are_whole()


def _one_row(index: Index) -> Index:
    return Index(index.offset, tuple(term for term in index.terms if term[0] != 0), index.gathered)


SHORT = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


@pytest.mark.parametrize("length", range(2, 10))
@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_short_rows(dtype: torch.dtype, length: int) -> None:
    """out[i] = max over j of x[i, j], with forbidden pages before and behind x: whole vectors, and no element more."""
    b = KernelBuilder()
    x = b.load(0, AXIS(0) * length + AXIS(1), dtype)
    b.add(
        "store", (b.add("reduce", (x.id,), x.dtype, "any" if dtype is torch.bool else "max").id,), x.dtype, (1, AXIS(0))
    )
    for width, target in machines():
        for rows in (1, 15, 16, 67, 256):
            code = Compiled(kernel(b, [rows, length], [0], [1], [dtype] * 2), width, target)
            by_vectors = "shufflevector" in code.written.text and "llvm.vector.reduce" not in code.written.text
            assert by_vectors or length > 8 or rows < width or width == 1
            x_ = (torch.randn(rows, length) * 8).to(dtype)
            for at_end in (False, True):
                given = [Guarded(t.flatten(), at_end=at_end) for t in (x_, x_[:, 0])]
                assert code([g.address for g in given], {}, cut(rows))
                want = x_.any(-1) if dtype is torch.bool else x_.amax(-1)
                assert torch.equal(given[1].content(), want) and given[1].bands_are_whole()


@pytest.mark.parametrize("length", [2, 5, 8, 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_results_along_short_rows(dtype: torch.dtype, length: int) -> None:
    """out[i, j] = (x[i, j] - max of x[i]) * w[j] + m[i], the sum of those in a second level; no element too much."""
    b = KernelBuilder()
    at = AXIS(0) * length + AXIS(1)
    x = b.load(0, at, dtype)
    largest = b.add("reduce", (x.id,), x.dtype, "max")
    scaled = (x - largest) * b.load(1, AXIS(1), dtype) + b.load(2, AXIS(0), dtype)
    b.add("store", (scaled.id,), x.dtype, (3, at))
    b.add("store", (b.add("reduce", (scaled.id,), x.dtype, "min").id,), x.dtype, (4, AXIS(0)))
    for width, target in machines():
        for rows in (16, 67):
            code = Compiled(kernel(b, [rows, length], [0], [1], [dtype] * 5), width, target)
            given = [torch.randint(-9, 9, size).to(dtype) for size in ((rows, length), (length,), (rows,))]
            x_, w, m = given
            want = (x_ - x_.amax(-1, keepdim=True)) * w + m[:, None]
            memory = [Guarded(t.flatten(), at_end=True) for t in (*given, want.clone(), want[:, 0].clone())]
            assert code([g.address for g in memory], {}, cut(rows))
            assert torch.equal(memory[3].content(), want.flatten()), (width, rows)
            assert torch.equal(memory[4].content(), want.amin(-1)) and all(g.bands_are_whole() for g in memory)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("step", [2, 3, 5, 8, 9])
def test_every_so_many_elements(dtype: torch.dtype, step: int) -> None:
    """out[i] = x[i * step] + x[i * step + 1]: x ends behind the last element that is read."""
    b = KernelBuilder()
    one, other = (b.load(0, AXIS(0) * step + first, dtype) for first in (0, 1))
    total = one ^ other if dtype is torch.bool else one + other
    b.add("store", (total.id,), total.dtype, (1, AXIS(0)))
    for width, target in machines():
        for count in (1, 16, 64, 131):
            code = Compiled(kernel(b, [count], [0], [], [dtype] * 2), width, target)
            x = (torch.randn((count - 1) * step + 2) * 8).to(dtype)
            given = [Guarded(t, at_end=True) for t in (x, x[::step].clone())]
            assert code([g.address for g in given], {}, cut(count))
            want = x[::step] ^ x[1::step] if dtype is torch.bool else x[::step] + x[1::step]
            assert torch.equal(given[1].content(), want) and given[1].bands_are_whole()


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_elements_the_other_way_round(dtype: torch.dtype) -> None:
    """out[i, j] = x[i, -1 - j], in whole vectors and beside them."""
    for width, target in machines():
        for count in (1, 16, 64, 131):
            b = KernelBuilder()
            x = b.load(0, AXIS(0) * count + AXIS(1) * -1 + (count - 1), dtype)
            b.add("store", (x.id,), x.dtype, (1, AXIS(0) * count + AXIS(1)))
            code = Compiled(kernel(b, [3, count], [0, 1], [], [dtype] * 2), width, target)
            assert ("shufflevector" in code.written.text) or count < width or width == 1
            data = (torch.randn(3, count) * 8).to(dtype)
            for at_end in (False, True):
                given = [Guarded(t.flatten(), at_end=at_end) for t in (data, torch.empty_like(data))]
                assert code([g.address for g in given], {}, cut(3))
                assert torch.equal(given[1].content(), data.flip(1).flatten()) and given[1].bands_are_whole()
