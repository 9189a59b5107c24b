"""Kernels as vector code for CPUs.

Enters: a `Kernel`. Leaves: LLVM IR of `void kernel(ptr buffers, ptr sizes, i64 lo, i64 hi, ptr scratch, ptr status)`,
and how the host calls it: which sizes it takes, and over how many units it may be split.

Three shapes. *Pointwise*: the last axis runs in vectors. *Rows*: reductions fold the axis that is dense in memory; one
row at a time, its loops in vectors, results of earlier loops kept in scratch memory where they are dear. *Columns*:
they fold another axis; the lanes are neighbouring results. The order of additions depends on sizes alone, not on the
number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .cpu_memory import Size
from .cpu_reduce import BLOCK, Reductions
from .cpu_values import DEAR
from .ir import ELEMENT

PARAMETERS = "ptr %buffers, ptr %sizes, i64 %lo, i64 %hi, ptr %scratch, ptr %status"
COLUMN_VECTORS = 4


@dataclass
class Written:
    """A kernel as text, and how to call it."""

    name: str
    text: str
    sizes: list[Size]  # what `sizes` must hold
    count: Size  # units: the range of lo and hi
    align: int  # ranges begin at multiples of it
    work: Size  # elements that are read and written in all
    scratch: Size  # bytes for each thread


def write(kernel: Any, name: str, width: int) -> Written:
    return _Writer(kernel, name, width).write()


class _Writer(Reductions):
    def __init__(self, kernel: Any, name: str, width: int) -> None:
        axis, self.columns = _vector_axis(kernel)
        super().__init__(kernel, name, PARAMETERS, width, axis)

    def write(self) -> Written:
        k = self.k
        stores = [n for n, v in enumerate(k.values) if v.op in ("store", "check")]
        leading = k.outer[:-1] if self.columns or not k.inner else k.outer
        count: Size = 1
        for axis in leading:
            count = count * k.extents[axis]
        align = 1
        if self.columns:
            block = self.w * COLUMN_VECTORS
            extent = k.extents[self.vector_axis]
            blocks = -(-extent // block) if isinstance(extent, int) else (extent + block - 1) // block
            count, body = count * blocks, lambda p, _: self._column_unit(p, leading, blocks)
        elif k.inner:
            self._plan_scratch(stores)
            body = lambda p, _: self._row(p, leading, stores)  # noqa: E731
        elif not leading and self.vector_axis is not None:
            count, align = k.extents[self.vector_axis], self.w * 4
            self.vector_loop(stores, "%lo", "%hi")
            return self._written(count, align)
        else:
            body = lambda p, _: self._line(p, leading, stores)  # noqa: E731
        self.f.loop("%lo", "%hi", 1, body)
        return self._written(count, align)

    def _written(self, count: Size, align: int) -> Written:
        self.f.finish()
        text = self.module.text()
        loads = []
        for n, name in enumerate(self.size_names.values()):
            loads.append(f"  {name}.p = getelementptr i64, ptr %sizes, i64 {n}\n  {name} = load i64, ptr {name}.p")
        for n in range(len(self.k.buffers)):
            loads.append(
                f"  %buffer{n}.p = getelementptr ptr, ptr %buffers, i64 {n}\n  %buffer{n} = load ptr, ptr %buffer{n}.p"
            )
        text = text.replace("entry:", "entry:\n" + "\n".join(loads), 1)
        work: Size = 1
        for axis in (*self.k.outer, *self.k.inner):
            work = work * self.k.extents[axis]
        return Written(self.name, text, self.sizes, count, align, work, self.scratch_bytes)

    def _decode(self, p: str, axes: Sequence[int]) -> None:
        """The position on each axis, from the number of a unit."""
        for axis in reversed(axes[1:]):
            extent = self.size(self.k.extents[axis])
            self.axis[axis] = self.f.arithmetic("urem", p, extent)
            p = self.f.arithmetic("udiv", p, extent)
        if axes:
            self.axis[axes[0]] = p

    def _line(self, p: str, leading: Sequence[int], stores: list[int]) -> list[str]:
        self._decode(p, leading)
        self.env.append({})
        if self.vector_axis is None:
            self.body(stores)
        else:
            self.vector_loop(stores, "0", self.size(self.k.extents[self.vector_axis]))
        self.env.pop()
        return []

    # ---------------------------------------------------------------------------------------------------------- rows

    def _row(self, p: str, leading: Sequence[int], stores: list[int]) -> list[str]:
        self._decode(p, leading)
        self.env.append({})
        for level in range(max(self.level) + 1):
            self.loop_level = level
            self._inner_loops(self._roots(level, stores))
            self.body([s for s in stores if self.level[s] == level and not self.varies[s] & self.inner])
        self.env.pop()
        return []

    def _inner_loops(self, roots: list[int]) -> None:
        if not roots:
            return
        reduces = [r for r in roots if self.k.values[r].op == "reduce"]
        carried = [item for r in reduces for item in self.start(r)]

        def nest(axes: Sequence[int], accumulated: list[str]) -> list[str]:
            if len(axes) == 1:
                return self.vector_loop(roots, "0", self.size(self.k.extents[axes[0]]), reduces, accumulated)

            def body(i: str, inside: list[str]) -> list[str]:
                self.axis[axes[0]] = i
                self.env.append({})
                result = nest(axes[1:], inside)
                self.env.pop()
                return result

            kinds = [(kind, value) for (kind, _), value in zip(carried, accumulated, strict=True)]
            return self.f.loop("0", self.size(self.k.extents[axes[0]]), 1, body, kinds)[1]

        results = nest(self.k.inner, [value for _, value in carried])
        for r in reduces:
            taken = len(self.start(r))
            self.env[-1][r] = self.across_lanes(r, results[:taken])
            results = results[taken:]

    # ------------------------------------------------------------------------------------------------------- columns

    def _column_unit(self, p: str, leading: Sequence[int], blocks: Size) -> list[str]:
        f, k = self.f, self.k
        assert self.vector_axis is not None
        extent = self.size(k.extents[self.vector_axis])
        block = self.w * COLUMN_VECTORS
        count = self.size(blocks)
        start = f.arithmetic("mul", f.arithmetic("urem", p, count), str(block))
        self._decode(f.arithmetic("udiv", p, count), leading)
        if extent.isdigit() and int(extent) % block == 0:
            return self._columns_at(start, COLUMN_VECTORS, None)
        stop = f.smaller(f.arithmetic("add", start, str(block)), extent)
        i, _ = f.loop(start, stop, block, lambda at, _: self._columns_at(at, COLUMN_VECTORS, None), whole=True)
        f.loop(i, stop, self.w, lambda at, _: self._columns_at(at, 1, self._tail(at, stop)))
        return []

    def _columns_at(self, start: str, vectors: int, mask: str | None) -> list[str]:
        """All levels for some vectors of results."""
        stores = [n for n, v in enumerate(self.k.values) if v.op in ("store", "check")]
        lanes = [self.f.arithmetic("add", start, str(u * self.w)) for u in range(vectors)]
        copies: list[dict[int, str]] = [{} for _ in range(vectors)]
        shared: dict[int, str] = {}
        former = self.mask
        self.mask = mask

        def each(roots: list[int], local: bool) -> None:
            for lane, copy in zip(lanes, copies, strict=True):
                self.lane = lane
                self.env += [shared, copy, *([{}] if local else [])]
                self.body(roots)
                del self.env[-3 if local else -2 :]

        for level in range(max(self.level) + 1):
            self._column_loops(self._roots(level, stores), lanes, copies, shared)
            each([s for s in stores if self.level[s] == level and not self.varies[s] & self.inner], False)
        self.mask = former
        return []

    def _column_loops(
        self, roots: list[int], lanes: list[str], copies: list[dict[int, str]], shared: dict[int, str]
    ) -> None:
        if not roots:
            return
        reduces = [r for r in roots if self.k.values[r].op == "reduce"]
        rest = [r for r in roots if r not in reduces]
        one = [item for r in reduces for item in self.start(r)]
        carried = one * len(lanes)

        def innermost(accumulated: list[str]) -> list[str]:
            results: list[str] = []
            for u, (lane, copy) in enumerate(zip(lanes, copies, strict=True)):
                self.lane = lane
                self.env += [shared, copy, {}]
                self.body(rest)
                results += self.fold(reduces, accumulated[u * len(one) : (u + 1) * len(one)])
                del self.env[-3:]
            return results

        def nest(axes: Sequence[int], accumulated: list[str]) -> list[str]:
            if not axes:
                return innermost(accumulated)

            def body(i: str, inside: list[str]) -> list[str]:
                self.axis[axes[0]] = i
                return nest(axes[1:], inside)

            extent = self.size(self.k.extents[axes[0]])
            if len(axes) > 1 or not any(self.k.values[r].attr == "sum" for r in reduces):
                kinds = [(kind, value) for (kind, _), value in zip(carried, accumulated, strict=True)]
                return self.f.loop("0", extent, 1, body, kinds)[1]
            return self.in_blocks(
                extent,
                2 * BLOCK,
                carried,
                accumulated,
                reduces * len(lanes),
                lambda lo, hi, start: self.f.loop(lo, hi, 1, body, start)[1],
            )

        results = nest(self.k.inner, [value for _, value in carried])
        for u, copy in enumerate(copies):
            mine = results[u * len(one) : (u + 1) * len(one)]
            for r in reduces:
                taken = len(self.start(r))
                copy[r] = mine[taken - 1]
                if self.w > 1 and self.is_uniform(r):
                    kind = f"<{self.w} x {ELEMENT[self.k.values[r].dtype]}>"
                    copy[r] = self.f.emit(f"extractelement {kind} {copy[r]}, i64 0")
                mine = mine[taken:]

    # -------------------------------------------------------------------------------------------------- vector loops

    def _unroll(self, roots: list[int], reduces: list[int]) -> int:
        seen: set[int] = set()
        pending = list(roots)
        cost = 0
        while pending:
            n = pending.pop()
            if n not in seen:
                seen.add(n)
                cost += 5 * DEAR.get(self.k.values[n].op, 0) + 1
                if not self._is_kept(n):
                    pending.extend(self._operands(n))
        return 4 if cost <= 12 else 2 if cost <= 45 else 1

    def _fills_vectors(self, start: str, stop: str, step: int) -> bool:
        """Whether steps of this length come out even, so that no code for a tail is needed: half of all code."""
        if start == "%lo":  # this and `%hi` are multiples of `align`, or the end
            extent = self.k.extents[self.vector_axis]
            return isinstance(extent, int) and extent % step == 0
        return start == "0" and stop.isdigit() and int(stop) % step == 0

    def vector_loop(
        self, roots: list[int], start: str, stop: str, reduces: Sequence[int] = (), accumulated: Sequence[str] = ()
    ) -> list[str]:
        """`roots` at every point from `start` to `stop` of the vector axis; gives the accumulators of `reduces`."""
        self.hoist(roots)
        carried = [item for r in reduces for item in self.start(r)]
        rest = [r for r in roots if r not in reduces]
        unroll = self._unroll(roots, list(reduces))
        no_tail = self._fills_vectors(start, stop, self.w * unroll)

        def at(i: str, inside: list[str], mask: str | None) -> list[str]:
            self.lane, former, self.mask = i, self.mask, mask
            self.env.append({})
            self.body(rest)
            result = self.fold(list(reduces), inside)
            self.env.pop()
            self.mask = former
            return result

        def run(lo: str, hi: str, begin: Sequence[tuple[str, str]]) -> list[str]:
            def main(i: str, inside: list[str]) -> list[str]:
                results: list[str] = []
                for u in range(unroll):
                    lane = self.f.arithmetic("add", i, str(u * self.w))
                    results += at(lane, inside[u * len(begin) : (u + 1) * len(begin)], None)
                return results

            copies = [*begin, *[item for _ in range(unroll - 1) for item in carried]]
            i, made = self.f.loop(lo, hi, self.w * unroll, main, copies, whole=True)
            made = self._tree(list(reduces), made, len(carried))
            if no_tail:
                return made
            kinds = [(kind, value) for (kind, _), value in zip(carried, made, strict=True)]
            return self.f.loop(i, hi, self.w, lambda i, inside: at(i, inside, self._tail(i, hi)), kinds)[1]

        if any(self.k.values[r].attr == "sum" for r in reduces):
            return self.in_blocks(stop, BLOCK * self.w * unroll, carried, list(accumulated), list(reduces), run)
        return run(start, stop, [(kind, value) for (kind, _), value in zip(carried, accumulated, strict=True)])


def _vector_axis(kernel: Any) -> tuple[int | None, bool]:
    """The axis whose neighbours are lanes, and whether it is one of results beside each other (columns)."""
    if not kernel.inner:
        return (kernel.outer[-1] if kernel.outer else None), False
    row, column = kernel.inner[-1], kernel.outer[-1] if kernel.outer else None
    votes = {row: 0, column: 0}
    varies, inner = kernel.varies(), set(kernel.inner)
    for number, value in enumerate(kernel.values):
        if value.op in ("load", "store") and varies[number] & inner:
            for axis in votes:
                votes[axis] += axis is not None and value.attr[1].coefficient(axis) == 1
    columns = column is not None and votes[column] > votes[row]
    return (column if columns else row), columns
