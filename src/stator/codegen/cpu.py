"""Kernels as vector code for CPUs.

Enters: a `Kernel`. Leaves: LLVM IR of `void kernel(ptr buffers, ptr sizes, i64 lo, i64 hi, ptr scratch, ptr status)`,
and how the host calls it: which sizes it takes, and over how many units it may be split.

Three shapes. *Pointwise*: the last axis runs in vectors. *Rows*: reductions fold the axis that is dense in memory; one
row at a time, its loops in vectors, results of earlier loops kept in scratch memory where they are dear. *Columns*:
they fold another axis; the lanes are neighbouring results. The order of additions depends on sizes alone, not on the
number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import scalar
from .ir import ELEMENT, IN_MEMORY, Function, Module, literal

Size = Any
PARAMETERS = "ptr %buffers, ptr %sizes, i64 %lo, i64 %hi, ptr %scratch, ptr %status"
_DEAR = {
    name: 6
    for name in "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc pow sigmoid rsqrt sqrt div atan2 fmod remainder floor_div".split()
}
CASCADE = 64  # blocks that are added up before they join the total
BLOCK = 64  # vector steps that are added up before they join the total: long sums stay exact
COLUMN_VECTORS = 4
BYTES = {torch.float64: 8, torch.int64: 8, torch.float32: 4, torch.int32: 4, torch.int16: 2}


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


class _Writer:
    def __init__(self, kernel: Any, name: str, width: int) -> None:
        self.k, self.name = kernel, name
        self.module = Module()
        self.varies = kernel.varies()
        self.level = kernel.levels()
        self.sizes: list[Size] = []
        self._size_names: dict[Any, str] = {}
        self.inner = set(kernel.inner)
        self.vector_axis: int | None = None
        self.columns = False
        self._choose_shape()
        if self.vector_axis is None:
            width = 1
        self.f = Function(self.module, name, PARAMETERS, width, f'"prefer-vector-width"="{32 * width}"')
        self.f.opaque_counters = True
        self.w = width
        self.axis: dict[int, str] = {}  # the scalar part of each axis' position
        self.env: list[dict[int, str]] = [{}]
        self.lane: str = "0"  # position on the vector axis
        self.mask: str | None = None
        self.scratch: dict[int, tuple[Size, str]] = {}  # value -> offset in bytes, pointer
        self.scratch_bytes: Size = 0
        self.loop_level = 0

    # ------------------------------------------------------------------------------------------------- shape

    def _choose_shape(self) -> None:
        k = self.k
        if not k.inner:
            self.vector_axis = k.outer[-1] if k.outer else None
            return
        row, column = k.inner[-1], k.outer[-1] if k.outer else None
        votes = {row: 0, column: 0}
        for number, value in enumerate(k.values):
            if value.op in ("load", "store") and self.varies[number] & self.inner:
                for axis in votes:
                    votes[axis] += axis is not None and value.attr[1].coefficient(axis) == 1
        self.columns = column is not None and votes[column] > votes[row]
        self.vector_axis = column if self.columns else row

    def is_uniform(self, number: int) -> bool:
        return self.vector_axis not in self.varies[number]

    # ------------------------------------------------------------------------------------------------- sizes

    def size(self, size: Size) -> str:
        if isinstance(size, int):
            return str(size)
        key = str(size)
        if key not in self._size_names:
            self._size_names[key] = f"%size{len(self.sizes)}"
            self.sizes.append(size)
        return self._size_names[key]

    # ------------------------------------------------------------------------------------------------ writing

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
        for n, name in enumerate(self._size_names.values()):
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

    # -- rows: one outer point, loops over the inner axes

    def _row(self, p: str, leading: Sequence[int], stores: list[int]) -> list[str]:
        self._decode(p, leading)
        self.env.append({})
        for level in range(max(self.level) + 1):
            self.loop_level = level
            self._inner_loops(self._roots(level, stores))
            self.body([s for s in stores if self.level[s] == level and not self.varies[s] & self.inner])
        self.env.pop()
        return []

    def _roots(self, level: int, stores: list[int]) -> list[int]:
        """What the loop of a level computes: reductions, stores, and values that later loops take from scratch."""
        roots = [n for n, v in enumerate(self.k.values) if v.op == "reduce" and self.level[n] == level + 1]
        roots += [s for s in stores if self.level[s] == level and self.varies[s] & self.inner]
        return roots + [n for n in self.scratch if self.level[n] == level]

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

    def _plan_scratch(self, stores: list[int]) -> None:
        """Values that a later loop needs again and that are dear are kept: it costs less to load than to compute
        them."""
        k = self.k
        elements: Size = 1
        for axis in k.inner:
            elements = elements * k.extents[axis]
        for level in range(1, max(self.level) + 1):
            pending = [a for r in self._roots(level, stores) for a in self._operands(r)]
            seen: set[int] = set()
            while pending:
                number = pending.pop()
                if number in seen:
                    continue
                seen.add(number)
                value = k.values[number]
                if not self.varies[number] & self.inner:
                    continue  # known before the loop
                if (
                    not self.is_uniform(number)
                    and self.level[number] < level
                    and value.dtype in BYTES
                    and self._cost(number) >= 6
                ):
                    if number not in self.scratch:
                        self.scratch[number] = (self.scratch_bytes, "")
                        used = self.scratch_bytes + (elements + self.w) * BYTES[value.dtype]
                        self.scratch_bytes = (used + 63) // 64 * 64
                    continue
                pending.extend(self._operands(number))

    def _operands(self, number: int) -> Iterable[int]:
        value = self.k.values[number]
        yield from value.args
        if value.op in ("load", "store", "index"):
            index = value.attr if value.op == "index" else value.attr[1]
            yield from (v for v, _ in index.gathered)

    def _cost(self, number: int) -> int:
        """Of computing a value again, in simple operations; at most 100."""
        cost, pending, seen = 0, [number], set()
        while pending and cost < 100:
            n = pending.pop()
            if n in seen or not self.varies[n] & self.inner:
                continue
            seen.add(n)
            op = self.k.values[n].op
            cost += 3 if op == "load" else _DEAR.get(op, 1)
            pending.extend(self._operands(n))
        return cost

    # -- columns: neighbouring results in lanes

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

    def in_blocks(
        self,
        stop: str,
        block: int,
        carried: Sequence[tuple[str, str]],
        accumulated: list[str],
        reduces: list[int],
        run: Any,
    ) -> list[str]:
        """Sums over blocks of a fixed length, and those over blocks of blocks, added up: the error hardly grows with
        the length."""

        def summed(lo: str, hi: str, level: int, begin: Sequence[tuple[str, str]]) -> list[str]:
            if level == 0:
                return run(lo, hi, begin)  # type: ignore[no-any-return]
            length = block * CASCADE ** (level - 1)

            def body(start: str, totals: list[str]) -> list[str]:
                end = self.f.smaller(self.f.arithmetic("add", start, str(length)), hi)
                return self.combined(reduces, totals, summed(start, end, level - 1, carried))

            return self.f.loop(lo, hi, length, body, begin)[1]

        level = 2
        if stop.isdigit():
            level = next((n for n in range(3) if int(stop) <= block * CASCADE**n), 3)
        return summed("0", stop, level, [(kind, value) for (kind, _), value in zip(carried, accumulated, strict=True)])

    # -- vector loops

    def _unroll(self, roots: list[int], reduces: list[int]) -> int:
        seen: set[int] = set()
        pending = list(roots)
        cost = 0
        while pending:
            n = pending.pop()
            if n not in seen:
                seen.add(n)
                cost += 5 * _DEAR.get(self.k.values[n].op, 0) + 1
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

    def _tree(self, reduces: list[int], made: list[str], each: int) -> list[str]:
        """Copies of accumulators become one."""
        while each and len(made) > each:
            half = len(made) // each // 2 * each
            first, second = made[:half], made[half : 2 * half]
            joined: list[str] = []
            for u in range(0, half, each):
                joined += self.combined(reduces, first[u : u + each], second[u : u + each])
            made = joined + made[2 * half :]
        return made if each else []

    def _tail(self, i: str, stop: str) -> str | None:
        """The lanes that are not behind the end."""
        f = self.f
        if self.w == 1:
            return None
        left = f.arithmetic("sub", stop, i)
        kind = f"<{self.w} x i64>"
        lanes = ", ".join(f"i64 {n}" for n in range(self.w))
        return f.emit(f"icmp slt {kind} <{lanes}>, {f.splat(left, 'i64')}")

    # ------------------------------------------------------------------------------------------- reductions

    def start(self, r: int) -> list[tuple[str, str]]:
        """What a reduction carries: types and values before the first element."""
        value = self.k.values[r]
        vector = self.w > 1
        self.f.width = self.w
        if value.attr in ("argmax", "argmin"):
            of = self.k.values[value.args[0]].dtype
            position = self.f.vector("i64")
            return [
                (self.f.vector(ELEMENT[of]), self._identity(value.attr[3:], of)),
                (position, self.f.constant(2**63 - 1, torch.int64)),
            ]
        kind = ELEMENT[value.dtype]
        return [(self.f.vector(kind) if vector else kind, self._identity(value.attr, value.dtype))]

    def _identity(self, kind: str, dtype: torch.dtype) -> str:
        if kind in ("max", "min"):
            if dtype.is_floating_point:
                number: Any = float("-inf") if kind == "max" else float("inf")
            elif dtype is torch.bool:
                number = kind == "min"
            else:
                number = torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max
                number = number - 256 if dtype is torch.uint8 and number > 127 else number
        else:
            number = {"sum": 0, "prod": 1, "any": False, "all": True}[kind]
        return self.f.constant(number, dtype)

    def fold(self, reduces: list[int], accumulated: list[str]) -> list[str]:
        """One more element for each accumulator; lanes behind the end change nothing."""
        results: list[str] = []
        for r in reduces:
            value = self.k.values[r]
            new = [self.get(a, vector=True) for a in value.args]
            self.f.width = self.w
            if self.mask is not None and not self.columns:
                kinds = [k for k, _ in self.start(r)]
                neutral = [v for _, v in self.start(r)]
                bits = self.f.vector("i1")
                new = [
                    self.f.emit(f"select {bits} {self.mask}, {kind} {x}, {kind} {none}")
                    for kind, x, none in zip(kinds, new, neutral, strict=True)
                ]
            taken = len(new)
            results += self.combined([r], accumulated[:taken], new)
            accumulated = accumulated[taken:]
        return results

    def combined(self, reduces: list[int], one: Sequence[str], other: Sequence[str]) -> list[str]:
        results: list[str] = []
        at = 0
        self.f.width = self.w
        for r in reduces:
            value = self.k.values[r]
            if value.attr in ("argmax", "argmin"):
                results += self._better(value, one[at : at + 2], other[at : at + 2])
                at += 2
                continue
            op = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(value.attr, value.attr)
            op = (
                "or"
                if op == "max" and value.dtype is torch.bool
                else "and"
                if op == "min" and value.dtype is torch.bool
                else op
            )
            results.append(scalar.emit(self.f, op, value.dtype, [value.dtype] * 2, [one[at], other[at]]))
            at += 1
        return results

    def _better(self, value: Any, one: Sequence[str], other: Sequence[str]) -> list[str]:
        """Of two (value, position): the better value, a NaN before all, then the smaller position."""
        f, dtype = self.f, self.k.values[value.args[0]].dtype
        kind, bits, i64 = f.vector(ELEMENT[dtype]), f.vector("i1"), f.vector("i64")
        better = scalar.emit(f, "gt" if value.attr == "argmax" else "lt", torch.bool, [dtype] * 2, [other[0], one[0]])
        same = scalar.emit(f, "eq", torch.bool, [dtype] * 2, [other[0], one[0]])
        if dtype.is_floating_point:
            a, b = (f.emit(f"fcmp uno {kind} {x[0]}, {x[0]}") for x in (one, other))
            only = f.emit(f"and {bits} {b}, {f.emit(f'xor {bits} {a}, {f.constant(True, torch.bool)}')}")
            better = f.emit(f"or {bits} {better}, {only}")
            same = f.emit(f"or {bits} {same}, {f.emit(f'and {bits} {a}, {b}')}")
        earlier = f.emit(f"icmp slt {i64} {other[1]}, {one[1]}")
        take = f.emit(f"or {bits} {better}, {f.emit(f'and {bits} {same}, {earlier}')}")
        return [
            f.emit(f"select {bits} {take}, {kind} {other[0]}, {kind} {one[0]}"),
            f.emit(f"select {bits} {take}, {i64} {other[1]}, {i64} {one[1]}"),
        ]

    def across_lanes(self, r: int, accumulated: Sequence[str]) -> str:
        """The lanes of an accumulator become one scalar, halves with halves."""
        f, value = self.f, self.k.values[r]
        kinds = (
            [ELEMENT[self.k.values[value.args[0]].dtype], "i64"] if len(accumulated) == 2 else [ELEMENT[value.dtype]]
        )
        now, width, whole = list(accumulated), self.w, self.w
        while width > 1:
            width //= 2
            low = ", ".join(f"i32 {n}" for n in range(width))
            high = ", ".join(f"i32 {n + width}" for n in range(width))
            halves = [
                [
                    f.emit(
                        f"shufflevector <{2 * width} x {kind}> {x}, <{2 * width} x {kind}> poison, "
                        f"<{width} x i32> <{part}>"
                    )
                    for kind, x in zip(kinds, now, strict=True)
                ]
                for part in (low, high)
            ]
            if width == 1:
                halves = [
                    [f.emit(f"extractelement <1 x {kind}> {x}, i64 0") for kind, x in zip(kinds, half, strict=True)]
                    for half in halves
                ]
            self.w = width
            now = self.combined([r], halves[0], halves[1])
        self.w = f.width = whole
        return now[-1]

    # ---------------------------------------------------------------------------------------------- values

    def body(self, roots: Sequence[int]) -> None:
        for r in roots:
            if self.k.values[r].op in ("store", "check"):
                self._root(r)
            else:  # kept for a later loop
                self._keep(r)

    def find(self, number: int) -> str | None:
        return next((level[number] for level in reversed(self.env) if number in level), None)

    def get(self, number: int, vector: bool) -> str:
        """A value, as a vector if that is wanted."""
        name = self.find(number)
        if name is None:
            name = self._make(number)
            self.env[-1][number] = name
        if vector and self.w > 1 and self.is_uniform(number):
            self.f.width = self.w
            return self._splat(number, name)
        return name

    def _splat(self, number: int, name: str) -> str:
        value = self.k.values[number]
        if value.op == "const":
            return self.f.constant(value.attr, value.dtype)
        key = -1 - number
        made = self.find(key)
        if made is None:
            made = self.env[-1][key] = self.f.splat(name, ELEMENT[value.dtype])
        return made

    def hoist(self, roots: Sequence[int]) -> None:
        """What does not vary over the lanes is computed before the loop."""
        seen: set[int] = set()
        pending = list(roots)
        found: list[int] = []
        while pending:
            n = pending.pop()
            if n in seen or self.find(n) is not None:
                continue
            seen.add(n)
            op = self.k.values[n].op
            if self._is_kept(n):
                continue
            if self.is_uniform(n) and op not in ("store", "check", "reduce"):
                found.append(n)
                continue
            pending.extend(self._operands(n))
        for n in sorted(found):
            if self.k.values[n].op != "const":
                self.get(n, vector=True)
        for n in sorted(seen) if self.w > 1 else ():
            value = self.k.values[n]
            if value.op in ("load", "store") and not self.is_uniform(n):
                self._base(n)

    def _make(self, number: int) -> str:
        value = self.k.values[number]
        if self._is_kept(number):
            return self._kept(number)
        uniform = self.is_uniform(number) or self.w == 1
        if value.op == "const":
            return literal(value.attr, value.dtype)
        if value.op == "index":
            return self._index(value.attr, uniform)
        if value.op == "load":
            return self._load(number)
        if value.op == "reduce":
            return self._of_one(number, uniform)
        args = [self.get(a, vector=not uniform) for a in value.args]
        self.f.width = 1 if uniform else self.w
        return scalar.emit(self.f, value.op, value.dtype, [self.k.values[a].dtype for a in value.args], args)

    def _of_one(self, number: int, uniform: bool) -> str:
        """A reduction without inner axes."""
        value = self.k.values[number]
        assert not self.k.inner, f"v{number} is read before its loop"
        x = self.get(value.args[-1], vector=not uniform)
        if value.attr != "sum" or not value.dtype.is_floating_point:
            return x
        self.f.width = 1 if uniform else self.w
        return scalar.emit(self.f, "add", value.dtype, [value.dtype] * 2, [self.f.constant(0.0, value.dtype), x])

    # -- indices

    def _flat(self, index: Any, *, with_vector_axis: bool) -> str:
        """The part of an index that is the same in all lanes."""
        f = self.f
        total = self.size(index.offset)
        for axis, c in index.terms:
            if axis == self.vector_axis:
                if with_vector_axis:
                    total = f.arithmetic("add", total, f.arithmetic("mul", self.lane, self.size(c)))
                continue
            total = f.arithmetic("add", total, f.arithmetic("mul", self.axis[axis], self.size(c)))
        for v, stride in index.gathered:
            if self.w == 1 or self.is_uniform(v):
                total = f.arithmetic("add", total, f.arithmetic("mul", self.get(v, vector=False), self.size(stride)))
        return total

    def _index(self, index: Any, uniform: bool) -> str:
        f = self.f
        if uniform:
            return self._flat(index, with_vector_axis=self.w == 1)
        base = f.splat(self._flat(index, with_vector_axis=False), "i64")
        f.width = self.w
        assert self.vector_axis is not None
        return f.emit(f"add <{self.w} x i64> {base}, {self._steps(index.coefficient(self.vector_axis))}")

    def _steps(self, coefficient: Size) -> str:
        """The positions of the lanes, times a coefficient."""
        f = self.f
        kind = f"<{self.w} x i64>"
        lanes = ", ".join(f"i64 {n}" for n in range(self.w))
        here = f.emit(f"add {kind} {f.splat(self.lane, 'i64')}, <{lanes}>")
        return here if coefficient == 1 else f.emit(f"mul {kind} {here}, {f.splat(self.size(coefficient), 'i64')}")

    # -- memory

    def _base(self, number: int) -> str:
        """The address of an access, without what varies over the lanes."""
        key = -(1 << 20) - number
        made = self.find(key)
        if made is None:
            buffer, index = self.k.values[number].attr
            element = IN_MEMORY[self.k.buffers[buffer].dtype]
            flat = self._flat(index, with_vector_axis=False)
            made = (
                f"%buffer{buffer}"
                if flat == "0"
                else self.f.emit(f"getelementptr {element}, ptr %buffer{buffer}, i64 {flat}")
            )
            self.env[-1][key] = made
        return made

    def _mask_with(self, condition: str | None) -> str | None:
        if condition is None or self.mask is None:
            return condition or self.mask
        return self.f.emit(f"and <{self.w} x i1> {self.mask}, {condition}")

    def _load(self, number: int) -> str:
        f, value = self.f, self.k.values[number]
        buffer, index = value.attr
        dtype = self.k.buffers[buffer].dtype
        element = IN_MEMORY[dtype]
        if self.w == 1 or self.is_uniform(number):
            address = f.emit(
                f"getelementptr {element}, ptr %buffer{buffer}, i64 {self._flat(index, with_vector_axis=self.w == 1)}"
            )
            if value.args:
                condition = self.get(value.args[0], vector=False)
                address = f.emit(
                    f"select i1 {condition}, ptr {address}, ptr %status"
                )  # 8 bytes that may always be read
            f.width = 1
            return self._from_memory(f.emit(f"load {element}, ptr {address}, align {_align(dtype)}"), dtype)
        mask = self._mask_with(self.get(value.args[0], vector=True) if value.args else None)
        made = self._vector_load(number, element, dtype, index, mask)
        f.width = self.w
        return self._from_memory(made, dtype)

    def _vector_load(self, number: int, element: str, dtype: torch.dtype, index: Any, mask: str | None) -> str:
        f, w = self.f, self.w
        kind, suffix = f"<{w} x {element}>", _suffix(element, w)
        bits = f"<{w} x i1>"
        assert self.vector_axis is not None
        dense = index.coefficient(self.vector_axis) == 1 and all(self.is_uniform(v) for v, _ in index.gathered)
        if dense:
            address = f.emit(f"getelementptr {element}, ptr {self._base(number)}, i64 {self.lane}")
            if mask is None:
                return f.emit(f"load {kind}, ptr {address}, align {_align(dtype)}")
            f.declare(f"declare {kind} @llvm.masked.load.{suffix}.p0(ptr, {bits}, {kind})")
            return f.emit(
                f"call {kind} @llvm.masked.load.{suffix}.p0(ptr align {_align(dtype)} {address}, {bits} {mask}, "
                f"{kind} zeroinitializer)"
            )
        addresses = self._addresses(number, element, index)
        every = "splat (i1 true)"
        f.declare(f"declare {kind} @llvm.masked.gather.{suffix}.v{w}p0(<{w} x ptr>, {bits}, {kind})")
        return f.emit(
            f"call {kind} @llvm.masked.gather.{suffix}.v{w}p0(<{w} x ptr> align {_align(dtype)} {addresses}, "
            f"{bits} {mask or every}, {kind} zeroinitializer)"
        )

    def _addresses(self, number: int, element: str, index: Any) -> str:
        f, w = self.f, self.w
        kind = f"<{w} x i64>"
        assert self.vector_axis is not None
        steps = "zeroinitializer"
        c = index.coefficient(self.vector_axis)
        if c != 0:
            steps = self._steps(c)
        for v, stride in index.gathered:
            if not self.is_uniform(v):
                scaled = self.get(v, vector=True)
                if stride != 1:
                    scaled = f.emit(f"mul {kind} {scaled}, {f.splat(self.size(stride), 'i64')}")
                steps = f.emit(f"add {kind} {steps}, {scaled}")
        return f.emit(f"getelementptr {element}, ptr {self._base(number)}, {kind} {steps}")

    def _from_memory(self, x: str, dtype: torch.dtype) -> str:
        f = self.f
        if dtype is torch.bool:
            return f.emit(f"icmp ne {f.vector('i8')} {x}, {'0' if f.width == 1 else 'zeroinitializer'}")
        if dtype is torch.bfloat16:
            return scalar.from_bf16(f, x)
        return f.emit(f"fpext {f.vector('half')} {x} to {f.vector('float')}") if dtype is torch.float16 else x

    def _to_memory(self, x: str, dtype: torch.dtype) -> str:
        f = self.f
        if dtype is torch.bool:
            return f.emit(f"zext {f.vector('i1')} {x} to {f.vector('i8')}")
        if dtype is torch.bfloat16:
            return scalar.to_bf16(f, x)
        return f.emit(f"fptrunc {f.vector('float')} {x} to {f.vector('half')}") if dtype is torch.float16 else x

    def _root(self, number: int) -> None:
        value = self.k.values[number]
        if value.op == "check":
            self._check(value.args[0])
            return
        f = self.f
        buffer, index = value.attr
        dtype = self.k.buffers[buffer].dtype
        element = IN_MEMORY[dtype]
        varying = self.w > 1 and (self.vector_axis in self.varies[number] or self.vector_axis in set(index.axes))
        x = self.get(value.args[0], vector=varying)
        f.width = self.w if varying else 1
        x = self._to_memory(x, dtype)
        if not varying:
            address = f.emit(
                f"getelementptr {element}, ptr %buffer{buffer}, i64 {self._flat(index, with_vector_axis=self.w == 1)}"
            )
            f.do(f"store {element} {x}, ptr {address}, align {_align(dtype)}")
            return
        kind, suffix, bits = f"<{self.w} x {element}>", _suffix(element, self.w), f"<{self.w} x i1>"
        if index.coefficient(self.vector_axis) != 1:
            every = "splat (i1 true)"
            addresses = self._addresses(number, element, index)
            f.declare(f"declare void @llvm.masked.scatter.{suffix}.v{self.w}p0({kind}, <{self.w} x ptr>, {bits})")
            f.do(
                f"call void @llvm.masked.scatter.{suffix}.v{self.w}p0({kind} {x}, "
                f"<{self.w} x ptr> align {_align(dtype)} {addresses}, {bits} {self.mask or every})"
            )
            return
        address = f.emit(f"getelementptr {element}, ptr {self._base(number)}, i64 {self.lane}")
        if self.mask is None:
            f.do(f"store {kind} {x}, ptr {address}, align {_align(dtype)}")
        else:
            f.declare(f"declare void @llvm.masked.store.{suffix}.p0({kind}, ptr, {bits})")
            f.do(
                f"call void @llvm.masked.store.{suffix}.p0({kind} {x}, ptr align {_align(dtype)} {address}, "
                f"{bits} {self.mask})"
            )

    def _check(self, condition: int) -> None:
        """What does not hold is noted; the host looks when the kernel is done."""
        f = self.f
        uniform = self.w == 1 or self.is_uniform(condition)
        holds = self.get(condition, vector=not uniform)
        if uniform:
            wrong = f.emit(f"xor i1 {holds}, true")
        else:
            bits = f"<{self.w} x i1>"
            failed = f.emit(f"xor {bits} {holds}, splat (i1 true)")
            if self.mask is not None:
                failed = f.emit(f"and {bits} {failed}, {self.mask}")
            f.declare(f"declare i1 @llvm.vector.reduce.or.v{self.w}i1({bits})")
            wrong = f.emit(f"call i1 @llvm.vector.reduce.or.v{self.w}i1({bits} {failed})")
        note, on = f.fresh("note"), f.fresh("on")
        f.do(f"br i1 {wrong}, label %{note}, label %{on}")
        f.label(note)
        f.do("store i64 1, ptr %status, align 8")
        f.do(f"br label %{on}")
        f.label(on)

    # -- scratch memory

    def _is_kept(self, number: int) -> bool:
        """Whether an earlier loop than the one that is being written has stored it."""
        return number in self.scratch and self.level[number] < self.loop_level

    def _scratch_address(self, number: int) -> str:
        f, value = self.f, self.k.values[number]
        offset, _ = self.scratch[number]
        element = ELEMENT[value.dtype]
        base = f.emit(f"getelementptr i8, ptr %scratch, i64 {self.size(offset)}")
        flat = self.lane
        inside: Size = self.k.extents[self.k.inner[-1]]
        for axis in reversed(self.k.inner[:-1]):
            flat = f.arithmetic("add", flat, f.arithmetic("mul", self.axis[axis], self.size(inside)))
            inside = inside * self.k.extents[axis]
        return f.emit(f"getelementptr {element}, ptr {base}, i64 {flat}")

    def _keep(self, number: int) -> None:
        """Computed in its own loop, stored for later ones. Lanes behind the end are stored too: there is room."""
        f, value = self.f, self.k.values[number]
        found = self.get(number, vector=True)
        kind = ELEMENT[value.dtype] if self.w == 1 else f"<{self.w} x {ELEMENT[value.dtype]}>"
        f.do(f"store {kind} {found}, ptr {self._scratch_address(number)}, align {BYTES[value.dtype]}")

    def _kept(self, number: int) -> str:
        f, value = self.f, self.k.values[number]
        kind = ELEMENT[value.dtype] if self.w == 1 else f"<{self.w} x {ELEMENT[value.dtype]}>"
        return f.emit(f"load {kind}, ptr {self._scratch_address(number)}, align {BYTES[value.dtype]}")


def _align(dtype: torch.dtype) -> int:
    return dtype.itemsize


def _suffix(element: str, width: int) -> str:
    return f"v{width}" + {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)
