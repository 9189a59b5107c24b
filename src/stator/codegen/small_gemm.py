"""Matrix products with few rows: out[m, n] = a[m, k] · b[k, n] for 1 to 8 rows, or up to 32, reading b once.

A BLAS packs b before it computes, or reads it row by row of a; for a batch of one that is most of the time. Here a
unit is a few columns of the result, and all rows of a are multiplied with them while they are in registers. b lies row
by row (`by_rows`: lanes are neighbouring columns), or column by column, as a linear layer's weight does (lanes run
along k). More than 8 rows are taken a few at a time, while the unit's columns of b stay in the first cache; where the
BLAS is faster then, is a table of measurements. float32; sums in the order of k, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import scalar
from .cpu import PARAMETERS
from .ir import Function, Module

MOST_ROWS = 8
# (elements of b, rows), where b lies column by column and vectors are of 512 bits: the larger b, the more of a BLAS'
# time goes into packing it. Measured on one thread: docs/design/native.md.
MORE_ROWS = ((1 << 18, 16), (1 << 19, 24), (1 << 21, 32))
SUMS = 24  # accumulators of a group of rows then: vectors have 32 registers
SIZES = ("k", "ldc", "lda", "ldb", "offset_c", "offset_a", "offset_b", "n")


@dataclass(frozen=True)
class GemmShape:
    rows: int
    columns: int  # of a unit; vectors of them, if b lies by rows
    group: int  # rows that are taken at a time
    by_rows: bool
    width: int
    half: bool = False  # bfloat16 in memory; sums are of float32, rounded once

    @property
    def key(self) -> str:
        return f"small gemm {self.rows} {self.columns} {self.group} {self.by_rows} {self.width} {self.half}"


def shape_for(
    rows: Any, columns: Any, depth: Any, *, by_rows: bool, width: int, half: bool = False
) -> GemmShape | None:
    """How to compute it; None: the BLAS does."""
    if not isinstance(rows, int) or not isinstance(columns, int) or rows < 1:
        return None
    if half and (by_rows or rows > MOST_ROWS):
        return None
    if rows > MOST_ROWS:
        size = columns * depth if isinstance(depth, int) else 0
        most = max((most for least, most in MORE_ROWS if size >= least), default=MOST_ROWS)
        if by_rows or width < 16 or rows > most or columns % 4:
            return None
        together = 8 if columns % 8 == 0 else 4
        return GemmShape(rows, together, SUMS // together, False, width)
    if by_rows:
        vectors = max(1, min(4, 16 // rows))
        return GemmShape(rows, vectors, rows, True, width) if columns >= width else None
    fitting = [c for c in (8, 4, 2, 1) if columns % c == 0 and c * rows <= 16]
    return GemmShape(rows, fitting[0], rows, False, width, half)


def units(shape: GemmShape, columns: int) -> int:
    each = shape.columns * shape.width if shape.by_rows else shape.columns
    return -(-columns // each)


def write(shape: GemmShape, name: str) -> str:
    module = Module()
    f = Function(module, name, PARAMETERS, shape.width, f'"prefer-vector-width"="{32 * shape.width}"')
    for number, size in enumerate(SIZES):
        f.do(f"%{size}.p = getelementptr i64, ptr %sizes, i64 {number}")
        f.do(f"%{size} = load i64, ptr %{size}.p")
    for number, buffer in enumerate("cab"):
        f.do(f"%{buffer}.p = getelementptr ptr, ptr %buffers, i64 {number}")
        f.do(f"%{buffer}.0 = load ptr, ptr %{buffer}.p")
        f.do(f"%{buffer} = getelementptr {_element(shape.half)}, ptr %{buffer}.0, i64 %offset_{buffer}")
    unit = _unit_by_rows if shape.by_rows else _unit_by_columns
    f.loop("%lo", "%hi", 1, lambda i, _: unit(f, shape, i))
    f.finish()
    return module.text()


def _element(half: bool) -> str:
    return "i16" if half else "float"


def _row(f: Function, base: str, row: str, leading: str, half: bool = False) -> str:
    return f.emit(f"getelementptr {_element(half)}, ptr {base}, i64 {f.arithmetic('mul', row, leading)}")


def _load(f: Function, pointer: str, at: str, mask: str | None, half: bool = False) -> str:
    element, suffix, align = ("i16", "i16", 2) if half else ("float", "f32", 4)
    kind, bits, w = f"<{f.lanes} x {element}>", f"<{f.lanes} x i1>", f.lanes
    address = f.emit(f"getelementptr {element}, ptr {pointer}, i64 {at}")
    if mask is None:
        loaded = f.emit(f"load {kind}, ptr {address}, align {align}")
    else:
        name = f"llvm.masked.load.v{w}{suffix}.p0"
        f.declare(f"declare {kind} @{name}(ptr, {bits}, {kind})")
        loaded = f.emit(f"call {kind} @{name}(ptr align {align} {address}, {bits} {mask}, {kind} zeroinitializer)")
    return scalar.from_bf16(f, loaded) if half else loaded


def _store(f: Function, total: str, at: str, half: bool) -> None:
    address = f.emit(f"getelementptr {_element(half)}, ptr %c, i64 {at}")
    if half:
        f.width = 1
        total = scalar.to_bf16(f, total)
        f.width = f.lanes
    f.do(f"store {_element(half)} {total}, ptr {address}, align {2 if half else 4}")


def _tail(f: Function, at: str, stop: str) -> str:
    left = f.splat(f.arithmetic("sub", stop, at), "i64")
    lanes = ", ".join(f"i64 {n}" for n in range(f.lanes))
    return f.emit(f"icmp slt <{f.lanes} x i64> <{lanes}>, {left}")


def _unit_by_columns(f: Function, shape: GemmShape, unit: str) -> list[str]:
    """Lanes run along k; each sum of a unit has an accumulator, whose lanes are added up at the end."""
    first = f.arithmetic("mul", unit, str(shape.columns))
    weights = [_row(f, "%b", f.arithmetic("add", first, str(c)), "%ldb", shape.half) for c in range(shape.columns)]
    for start in range(0, shape.rows, shape.group):
        _rows_of_unit(f, range(start, min(start + shape.group, shape.rows)), first, weights, shape.half)
    return []


def _rows_of_unit(f: Function, rows: Sequence[int], first: str, weights: Sequence[str], half: bool) -> None:
    inputs = [_row(f, "%a", str(r), "%lda", half) for r in rows]
    zero = (f"<{f.lanes} x float>", "zeroinitializer")

    def step(at: str, sums: list[str], mask: str | None) -> list[str]:
        given = [_load(f, pointer, at, mask, half) for pointer in inputs]
        result = []
        for column, pointer in enumerate(weights):
            weight = _load(f, pointer, at, mask, half)
            for row in range(len(rows)):
                result.append(f.intrinsic("fma", "float", given[row], weight, sums[column * len(rows) + row]))
        return result

    count = len(rows) * len(weights)
    at, sums = f.loop("0", "%k", f.lanes, lambda i, s: step(i, s, None), [zero] * count, whole=True)
    carried = [(zero[0], value) for value in sums]
    _, sums = f.loop(at, "%k", f.lanes, lambda i, s: step(i, s, _tail(f, i, "%k")), carried)
    reduce = f"llvm.vector.reduce.fadd.v{f.lanes}f32"
    for number, value in enumerate(sums):
        column, row = number // len(rows), rows[number % len(rows)]
        total = f.call(reduce, "float", ("float", "-0.0"), (zero[0], value), attributes="reassoc ")
        place = f.arithmetic("add", f.arithmetic("add", first, str(column)), f.arithmetic("mul", str(row), "%ldc"))
        _store(f, total, place, half)


def _unit_by_rows(f: Function, shape: GemmShape, unit: str) -> list[str]:
    """Lanes are neighbouring columns; k runs in one loop, with a's numbers in all lanes."""
    block = shape.columns * f.lanes
    first = f.arithmetic("mul", unit, str(block))
    kind, bits, w = f"<{f.lanes} x float>", f"<{f.lanes} x i1>", f.lanes
    starts = [f.arithmetic("add", first, str(v * f.lanes)) for v in range(shape.columns)]
    masks = [_tail(f, start, "%n") for start in starts]
    inputs = [_row(f, "%a", str(r), "%lda") for r in range(shape.rows)]

    def step(at: str, sums: list[str]) -> list[str]:
        line = _row(f, "%b", at, "%ldb")
        weights = [_load(f, line, start, mask) for start, mask in zip(starts, masks, strict=True)]
        result = []
        for row, pointer in enumerate(inputs):
            one = f.emit(f"load float, ptr {f.emit(f'getelementptr float, ptr {pointer}, i64 {at}')}, align 4")
            given = f.splat(one, "float")
            for column, weight in enumerate(weights):
                result.append(f.intrinsic("fma", "float", given, weight, sums[row * shape.columns + column]))
        return result

    _, sums = f.loop("0", "%k", 1, step, [(kind, "zeroinitializer")] * (shape.rows * shape.columns))
    f.declare(f"declare void @llvm.masked.store.v{w}f32.p0({kind}, ptr, {bits})")
    for number, value in enumerate(sums):
        row, column = number // shape.columns, number % shape.columns
        place = f.arithmetic("add", starts[column], f.arithmetic("mul", str(row), "%ldc"))
        address = f.emit(f"getelementptr float, ptr %c, i64 {place}")
        f.do(f"call void @llvm.masked.store.v{w}f32.p0({kind} {value}, ptr align 4 {address}, {bits} {masks[column]})")
    return []
