"""Kernels over rows of a few elements that lie one behind the other: the lanes are rows.

Enters: a kernel that folds such rows, and may store along them. Leaves: IR for one vector of rows. Their memory is
loaded and stored in whole vectors, whose elements are sorted into one vector for each position in the row, and back;
so each position is computed once, and later levels take it from registers. What holds: the order in which a row is
folded is that of the positions, as where rows are left over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .cpu_memory import LONGEST_STEP, Size, alignment
from .cpu_reduce import Reductions
from .ir import IN_MEMORY

LONGEST = 15  # elements of a row: of more, one row fills a vector
MOST_VALUES = 512  # of a kernel, once for each position: all of them are code


def has_short_rows(kernel: Any, column: int, width: int) -> bool:
    """Whether rows of a few elements lie one behind the other: then the lanes are rows."""
    length, rows = 1, kernel.extents[column]
    for axis in kernel.inner:
        length = length * kernel.extents[axis]
    if not isinstance(length, int) or not isinstance(rows, int) or rows < width:
        return False
    sorted_ = sorts_rows(kernel, length)
    if not 2 <= length <= (LONGEST if sorted_ else LONGEST_STEP):
        return False
    varies, inner = kernel.varies(), set(kernel.inner)
    for number, value in enumerate(kernel.values):
        if value.op in ("load", "store") and varies[number] & inner:
            step = value.attr[1].coefficient(column)
            if (value.op == "store" or step == 0 or value.args) and not sorted_:
                return False
            if step != length and not (step == 0 and value.op == "load" and not value.attr[1].gathered):
                return False
    return True


def sorts_rows(kernel: Any, length: Size) -> bool:
    """Whether it can be written position by position."""
    return len(kernel.inner) == 1 and len(kernel.values) * length <= MOST_VALUES


class ShortRows(Reductions):
    in_rows = False  # is a whole vector of rows being written?
    row_vectors: dict[int, list[str]]  # by load: the vectors of these rows, as they lie in memory

    def rows_at(self, start: str, stores: Sequence[int]) -> list[str]:
        """All levels for one vector of rows, without a mask."""
        (axis,) = self.k.inner
        length = self.k.extents[axis]
        self.lane, self.row_vectors, self.in_rows = start, {}, True
        shared: dict[int, str] = {}
        by_position: list[dict[int, str]] = [{} for _ in range(length)]
        for level in range(max(self.level) + 1):
            roots = self._roots(level, list(stores))
            self._rows_of_level(roots, shared, by_position, axis)
            self.env.append(shared)
            self.body([s for s in stores if self.level[s] == level and not self.varies[s] & self.inner])
            self.env.pop()
        self.in_rows = False
        return []

    def _rows_of_level(
        self, roots: list[int], shared: dict[int, str], by_position: list[dict[int, str]], axis: int
    ) -> None:
        reduces = [r for r in roots if self.k.values[r].op == "reduce"]
        stored: dict[int, list[str]] = {r: [] for r in roots if r not in reduces and self._lies_in_rows(r, axis)}
        rest = [r for r in roots if r not in reduces and r not in stored]
        self.env.append(shared)
        self._same_in_a_row(roots)
        accumulated = [value for r in reduces for _, value in self.start(r)]
        for position, made in enumerate(by_position):
            self.axis[axis] = str(position)
            self.env.append(made)
            for store, values in stored.items():
                found = self.get(self.k.values[store].args[0], vector=True)
                self.f.width = self.w
                values.append(self._to_memory(found, self.k.buffers[self.k.values[store].attr[0]].dtype))
            self.body(rest)
            accumulated = self.fold(reduces, accumulated)
            self.env.pop()
        for r in reduces:
            taken = len(self.start(r))
            shared[r] = accumulated[taken - 1]
            if self.is_uniform(r):
                kind = self.start(r)[-1][0]
                shared[r] = self.f.emit(f"extractelement {kind} {shared[r]}, i64 0")
            accumulated = accumulated[taken:]
        for store, values in stored.items():
            self._store_rows(store, values, axis)
        self.env.pop()

    def _same_in_a_row(self, roots: Sequence[int]) -> None:
        """What does not vary along the row is computed before."""
        seen: set[int] = set()
        pending, found = list(roots), []
        while pending:
            n = pending.pop()
            if n in seen or self.find(n) is not None:
                continue
            seen.add(n)
            if not self.varies[n] & self.inner and self.k.values[n].op not in ("store", "check", "reduce", "const"):
                found.append(n)
            else:
                pending.extend(self._operands(n))
        for n in sorted(found):
            self.get(n, vector=True)

    # ------------------------------------------------------------------------------------------------------- memory

    def _lies_in_rows(self, number: int, axis: int) -> bool:
        value = self.k.values[number]
        if value.op not in ("load", "store") or self.vector_axis is None:
            return False
        index, length = value.attr[1], self.k.extents[axis]
        gathered = index.gathered or (value.op == "load" and value.args)
        return not gathered and index.coefficient(self.vector_axis) == length and index.coefficient(axis) == 1

    def _first_of_rows(self, number: int, axis: int) -> str:
        f = self.f
        buffer, index = self.k.values[number].attr
        element = IN_MEMORY[self.k.buffers[buffer].dtype]
        former, self.axis[axis] = self.axis.get(axis, "0"), "0"
        flat = self._flat(index, with_vector_axis=False)
        self.axis[axis] = former
        flat = f.arithmetic("add", flat, f.arithmetic("mul", self.lane, str(self.k.extents[axis])))
        return f.emit(f"getelementptr {element}, ptr %buffer{buffer}, i64 {flat}")

    def _vector_load(self, number: int, element: str, dtype: torch.dtype, index: Any, mask: str | None) -> str:
        """One position of all rows, where a load takes those."""
        if not self.in_rows or mask is not None or not self._lies_in_rows(number, self.k.inner[0]):
            return super()._vector_load(number, element, dtype, index, mask)
        (axis,) = self.k.inner
        f, w, length = self.f, self.w, self.k.extents[axis]
        kind = f"<{w} x {element}>"
        if number not in self.row_vectors:
            first = self._first_of_rows(number, axis)
            places = [f.emit(f"getelementptr {element}, ptr {first}, i64 {n * w}") for n in range(length)]
            self.row_vectors[number] = [f.emit(f"load {kind}, ptr {p}, align {alignment(dtype)}") for p in places]
        position = int(self.axis[axis])
        made = "poison"
        wanted = [row * length + position for row in range(w)]
        for n, loaded in enumerate(self.row_vectors[number]):
            here = [w + at - n * w if at // w == n else lane for lane, at in enumerate(wanted)]
            if any(at // w == n for at in wanted):
                made = f.emit(f"shufflevector {kind} {made}, {kind} {loaded}, <{w} x i32> {_mask(here)}")
        return made

    def _store_rows(self, number: int, values: Sequence[str], axis: int) -> None:
        f, w, length = self.f, self.w, self.k.extents[axis]
        dtype = self.k.buffers[self.k.values[number].attr[0]].dtype
        element = IN_MEMORY[dtype]
        kind = f"<{w} x {element}>"
        first = self._first_of_rows(number, axis)
        for n in range(length):
            made = "poison"
            elements = [((n * w + lane) // length, (n * w + lane) % length) for lane in range(w)]  # row, position
            for position, value in enumerate(values):
                here = [w + row if at == position else lane for lane, (row, at) in enumerate(elements)]
                if any(at == position for _, at in elements):
                    made = f.emit(f"shufflevector {kind} {made}, {kind} {value}, <{w} x i32> {_mask(here)}")
            place = f.emit(f"getelementptr {element}, ptr {first}, i64 {n * w}")
            f.do(f"store {kind} {made}, ptr {place}, align {alignment(dtype)}")


def _mask(lanes: Sequence[int]) -> str:
    return "<" + ", ".join(f"i32 {n}" for n in lanes) + ">"
