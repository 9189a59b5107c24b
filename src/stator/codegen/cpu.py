"""Kernels as vector code for CPUs.

Enters: a `Kernel`. Leaves: LLVM IR of `void kernel(ptr buffers, ptr sizes, i64 lo, i64 hi, ptr scratch, ptr status)`,
and how the host calls it: which sizes it takes, and over how many units it may be split.

Four shapes. *Pointwise*: the last axis runs in vectors. *Rows*: reductions fold the axis that is dense in memory; one
row at a time, its loops in vectors, results of earlier loops kept in scratch memory where they are dear. *Columns*:
they fold another axis, or rows of a few elements (`cpu_short_rows`); the lanes are neighbouring results. *Scans* visit
that axis in order. The order of additions depends on sizes alone, not on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .cpu_memory import Size
from .cpu_reduce import BLOCK
from .cpu_scan import Scans
from .cpu_segments import find_tests, stretches, truths
from .cpu_short_rows import ShortRows, has_short_rows, sorts_rows
from .cpu_tiles import Tiles, choose_axes
from .cpu_values import DEAR
from .ir import ELEMENT

PARAMETERS = "ptr %buffers, ptr %sizes, i64 %lo, i64 %hi, ptr %scratch, ptr %status"
COLUMN_VECTORS = 4
LINE_VECTORS = 4  # a range of a single axis begins at multiples of so many


@dataclass
class CpuKernel:
    """A kernel as text, and how to call it."""

    name: str
    text: str
    sizes: list[Size]  # what `sizes` must hold
    count: Size  # units: the range of lo and hi
    align: int  # ranges begin at multiples of it
    work: Size  # points of the loops; 0 where there is nothing to store
    scratch: Size  # bytes for each thread


def write(kernel: Any, name: str, width: int) -> CpuKernel:
    return _Writer(kernel, name, width).write()


def units_of(kernel: Any, width: int) -> tuple[list[int], int] | None:
    """The axes that the units of a kernel run through, and of what number ranges of units begin at multiples. None: a
    unit is something else than a position on them."""
    if kernel.inner:
        return None if _vector_axis(kernel, width)[1] else (list(kernel.outer), 1)
    axis, turned = choose_axes(kernel, width)
    if turned is not None or axis is None:
        return None
    return ([axis], width * LINE_VECTORS) if kernel.outer == [axis] else ([a for a in kernel.outer if a != axis], 1)


class _Writer(Tiles, Scans, ShortRows):
    sorts = False  # whether vectors of short rows are sorted by position

    def __init__(self, kernel: Any, name: str, width: int) -> None:
        axis: int | None
        if kernel.inner:
            axis, self.columns = _vector_axis(kernel, width)
            self.sorts = width > 1 and _are_short(kernel, width) and sorts_rows(kernel, kernel.extents[kernel.inner[0]])
            if kernel.scans and not self.columns:
                axis = None
        else:
            axis, self.tile_axis = choose_axes(kernel, width)
        super().__init__(kernel, name, PARAMETERS, width, axis)

    def write(self) -> CpuKernel:
        k = self.k
        stores = [n for n, v in enumerate(k.values) if v.op in ("store", "check")]
        if not k.inner and k.outer == [self.vector_axis]:
            self._in_stretches(stores, "%lo", "%hi")
            return self._written(k.extents[self.vector_axis], self.w * LINE_VECTORS)
        leading = [a for a in k.outer if a not in (self.vector_axis, self.tile_axis)]
        blocks: Size = 1
        body: Callable[[str], None]
        if k.scans:
            blocks = _blocks(k.extents[self.vector_axis], self.w) if self.columns else 1
            body = lambda block: self.scan_unit(block, stores)  # noqa: E731
        elif self.columns:
            blocks = _blocks(k.extents[self.vector_axis], self.w * COLUMN_VECTORS)
            body = self._column_unit
        elif k.inner:
            self._plan_scratch(stores)
            body = lambda block: self._row(stores)  # noqa: E731
        elif self.tile_axis is not None:
            self.plan_tiles()
            blocks = _blocks(k.extents[self.tile_axis], self.w * self.tile_vectors)
            body = lambda block: self.tile_unit(block, stores)  # noqa: E731
        else:
            body = lambda block: self._line(stores)  # noqa: E731
        self._units([*[k.extents[a] for a in leading], blocks], leading, body)
        return self._written(_product([*[k.extents[a] for a in leading], blocks]), 1)

    def _units(self, extents: list[Size], axes: Sequence[int], body: Callable[[str], None]) -> None:
        """A loop over units from `lo` to `hi`: positions on the axes, and the number of a block, run like an
        odometer. Only where it begins they are computed by divisions."""
        f = self.f
        sizes = [self.size(extent) for extent in extents]
        turning = [n for n, size in enumerate(sizes) if size != "1"]
        first, p = {}, "%lo"
        for n in reversed(turning[1:]):
            by = self._at_least_1(sizes[n])  # where a size is 0 there are no units, but this comes before the loop
            first[n] = f.emit(f"urem i64 {p}, {by}")
            p = f.emit(f"udiv i64 {p}, {by}")
        if turning:
            first[turning[0]] = p

        def unit(_: str, now: list[str]) -> list[str]:
            at = dict(zip(turning, now, strict=True))
            for n, axis in enumerate(axes):
                self.axis[axis] = at.get(n, "0")
            self.env.append({})
            body(at.get(len(axes), "0"))
            self.env.pop()
            carry, following = "true", []
            for n in reversed(turning):
                added = f.emit(f"add i64 {at[n]}, {f.emit(f'zext i1 {carry} to i64')}")
                carry = f.emit(f"icmp eq i64 {added}, {sizes[n]}")
                following.append(f.emit(f"select i1 {carry}, i64 0, i64 {added}"))
            return following[::-1]

        f.loop("%lo", "%hi", 1, unit, [("i64", first[n]) for n in turning])

    def _written(self, count: Size, align: int) -> CpuKernel:
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
        # Of reductions and scans over nothing there are results all the same, so that is no reason not to run.
        folded = _one_or_more(_product(self.k.extents[axis] for axis in self.k.inner))
        work = _product([*[self.k.extents[axis] for axis in self.k.outer], folded])
        return CpuKernel(self.name, text, self.sizes, count, align, work, self.scratch_bytes)

    def _at_least_1(self, size: str) -> str:
        if size.isdigit():
            return str(max(1, int(size)))
        none = self.f.emit(f"icmp eq i64 {size}, 0")
        return self.f.emit(f"select i1 {none}, i64 1, i64 {size}")

    def _line(self, stores: list[int]) -> None:
        if self.vector_axis is None:
            self.body(stores)
        else:
            self._in_stretches(stores, "0", self.size(self.k.extents[self.vector_axis]))

    def _in_stretches(self, stores: list[int], start: str, stop: str) -> None:
        """A loop for each stretch on which conditions are known."""
        assert self.vector_axis is not None
        tests = find_tests(self.k, self.vector_axis) if self.w > 1 else {}
        found = stretches(tests, self.k.extents[self.vector_axis])
        if not found:
            self.vector_loop(stores, start, stop)
        for first, last in found:
            self.known = truths(self.k, tests, first)
            lo, hi = (str(first), str(last)) if start == "0" else self._part(start, stop, first, last)
            self.env.append({})
            self.vector_loop(stores, lo, hi)
            self.env.pop()
        self.known = {}

    def _part(self, start: str, stop: str, first: int, last: int) -> tuple[str, str]:
        """Of a stretch, what lies between two positions."""
        f = self.f
        later = f.emit(f"icmp sgt i64 {start}, {first}")
        return f.emit(f"select i1 {later}, i64 {start}, i64 {first}"), f.smaller(stop, str(last))

    # ---------------------------------------------------------------------------------------------------------- rows

    def _row(self, stores: list[int]) -> None:
        for level in range(max(self.level) + 1):
            self.loop_level = level
            self._inner_loops(self._roots(level, stores))
            self.body([s for s in stores if self.level[s] == level and not self.varies[s] & self.inner])

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

    def _column_unit(self, number: str) -> None:
        f, k = self.f, self.k
        assert self.vector_axis is not None
        extent = self.size(k.extents[self.vector_axis])
        block = self.w * COLUMN_VECTORS
        start = f.arithmetic("mul", number, str(block))
        if self.sorts:
            self._short_rows(start, f.smaller(f.arithmetic("add", start, str(block)), extent))
            return
        if extent.isdigit() and int(extent) % block == 0:
            self._columns_at(start, COLUMN_VECTORS, None)
            return
        stop = f.smaller(f.arithmetic("add", start, str(block)), extent)
        i, _ = f.loop(start, stop, block, lambda at, _: self._columns_at(at, COLUMN_VECTORS, None), whole=True)
        f.loop(i, stop, self.w, lambda at, _: self._columns_at(at, 1, self._tail(at, stop)))

    def _short_rows(self, start: str, stop: str) -> None:
        f = self.f
        stores = [n for n, v in enumerate(self.k.values) if v.op in ("store", "check")]
        i, _ = f.loop(start, stop, self.w, lambda at, _: self.rows_at(at, stores), whole=True)
        if self.k.extents[self.vector_axis] % self.w:
            f.loop(i, stop, self.w, lambda at, _: self._columns_at(at, 1, self._tail(at, stop)))

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
        return start.isdigit() and stop.isdigit() and (int(stop) - int(start)) % step == 0

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

        def straight(vectors: int, lo: str, begin: Sequence[tuple[str, str]]) -> list[str]:
            """Without a loop: vector after vector, into accumulators by turns."""
            first = [value for _, value in begin]
            sets = [first, *[[value for _, value in carried] for _ in range(min(unroll, vectors) - 1)]]
            for number in range(vectors):
                turn = number % len(sets)
                sets[turn] = at(str(int(lo) + number * self.w), sets[turn], None)
            return [value for each in sets for value in each]

        def run(lo: str, hi: str, begin: Sequence[tuple[str, str]]) -> list[str]:
            def main(i: str, inside: list[str]) -> list[str]:
                results: list[str] = []
                for u in range(unroll):
                    lane = self.f.arithmetic("add", i, str(u * self.w))
                    results += at(lane, inside[u * len(begin) : (u + 1) * len(begin)], None)
                return results

            copies = [*begin, *[item for _ in range(unroll - 1) for item in carried]]
            vectors = _whole_vectors(lo, hi, self.w)
            if vectors is None or vectors > 2 * unroll:
                i, made = self.f.loop(lo, hi, self.w * unroll, main, copies, whole=True)
            else:
                i, made = str(int(lo) + vectors * self.w), straight(vectors, lo, begin)
            made = self._tree(list(reduces), made, len(carried))
            if no_tail or i == hi:
                return made
            kinds = [(kind, value) for (kind, _), value in zip(carried, made, strict=True)]
            return self.f.loop(i, hi, self.w, lambda i, inside: at(i, inside, self._tail(i, hi)), kinds)[1]

        if any(self.k.values[r].attr == "sum" for r in reduces):
            return self.in_blocks(stop, BLOCK * self.w * unroll, carried, list(accumulated), list(reduces), run)
        return run(start, stop, [(kind, value) for (kind, _), value in zip(carried, accumulated, strict=True)])


def _whole_vectors(start: str, stop: str, width: int) -> int | None:
    """How many vectors a stretch fills, if that is known."""
    return (int(stop) - int(start)) // width if start.isdigit() and stop.isdigit() else None


def _product(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def _one_or_more(size: Size) -> Size:
    if isinstance(size, int):
        return max(1, size)
    from torch.utils._sympy.functions import Max  # with symbols it has been imported by then

    return Max(1, size)  # type: ignore[no-untyped-call]


def _blocks(extent: Size, length: int) -> Size:
    return -(-extent // length) if isinstance(extent, int) else (extent + length - 1) // length


def _are_short(kernel: Any, width: int) -> bool:
    return bool(kernel.outer) and not kernel.scans and has_short_rows(kernel, kernel.outer[-1], width)


def _vector_axis(kernel: Any, width: int) -> tuple[int, bool]:
    """Of a kernel with reductions: the axis of the lanes, and whether it is one of results (columns)."""
    row, column = kernel.inner[-1], kernel.outer[-1] if kernel.outer else None
    if column is not None and _are_short(kernel, width):
        return column, True
    votes = {row: 0, column: 0}
    varies, inner = kernel.varies(), set(kernel.inner)
    for number, value in enumerate(kernel.values):
        if value.op in ("load", "store") and varies[number] & inner:
            for axis in votes:
                votes[axis] += axis is not None and value.attr[1].coefficient(axis) == 1
    columns = column is not None and votes[column] > votes[row]
    return (column if columns and column is not None else row), columns
