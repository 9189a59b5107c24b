"""Kernels as PTX, for NVIDIA GPUs.

Enters: a `Kernel`. Leaves: LLVM IR of `ptx_kernel`s, and how they are launched. Each takes pointers to its buffers, to
scratch memory and to a status word, then sizes, in this order.

Four shapes (`gpu_shape` chooses). *Pointwise*: a thread takes some neighbouring points. *Tiles*: likewise, where loads
and stores run along different axes; they meet in shared memory. *Rows*: reductions fold the
axis that is dense in memory; some lanes, a warp or a block fold one row, kept in registers where it fits. *Columns*:
they fold another axis; neighbouring threads have neighbouring results. Where results are few and long, several blocks
fold parts of each, one launch for each level: partial results go through scratch memory, in an order that depends on
sizes alone. Variants for aligned and any memory are chosen at launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .gpu_reduce import Folded, Reducer
from .gpu_scalar import GpuFunction
from .gpu_shape import LaunchShape, Requirement, product, shapes
from .gpu_values import GLOBAL, GpuScope, GpuValues, Size, SizeTable
from .ir import ELEMENT, Module

PARTIAL_BYTES = 8  # room for a partial result of any type


@dataclass
class GridLaunch:
    """One function on a grid of blocks. Where `blocks` is 0 nothing is to be done."""

    name: str
    blocks: Size
    splits: int  # the grid's second dimension
    threads: int


@dataclass
class Variant:
    """Code that is right where its requirements hold."""

    requirements: list[Requirement]
    launches: list[GridLaunch]
    declarations: list[str]
    functions: list[str]
    scratch: Size  # bytes
    shape: LaunchShape


@dataclass
class PtxKernel:
    """A kernel as text, and how to call it."""

    name: str
    buffers: int  # how many it has
    variants: list[Variant]  # the first whose requirements hold is taken; the last has none
    sizes: list[Size]  # what is passed behind the pointers
    work: Size  # points in all
    checks: bool = False  # whether the status word must be looked at


def write(kernel: Any, name: str) -> PtxKernel:
    table = SizeTable()
    variants = [_Writer(kernel, f"{name}_{n}", shape, table).write() for n, shape in enumerate(shapes(kernel))]
    work = product(kernel, [*kernel.outer, *kernel.inner])
    return PtxKernel(
        name, len(kernel.buffers), variants, table.sizes, work, any(v.op == "check" for v in kernel.values)
    )


def module_text(variants: Sequence[Variant]) -> str:
    """One module of several kernels."""
    declarations = dict.fromkeys(d for v in variants for d in v.declarations)
    return "\n".join([*declarations, *[f for v in variants for f in v.functions]])


def _over(size: Size, by: int) -> Size:
    """Divided, rounded up."""
    return -(-size // by) if isinstance(size, int) else (size + by - 1) // by


class _Writer:
    def __init__(self, kernel: Any, name: str, shape: LaunchShape, table: SizeTable) -> None:
        self.k, self.name, self.shape, self.table = kernel, name, shape, table
        self.module = Module()
        self.stores = [n for n, v in enumerate(kernel.values) if v.op in ("store", "check")]
        self.level, self.varies = kernel.levels(), kernel.varies()
        self.inner = set(kernel.inner)
        self.levels = max(self.level, default=0)
        self.scratch: Size = 0

    def write(self) -> Variant:
        if self.shape.kind == "pointwise":
            launches = [self._function(self._pointwise, self.name)]
        elif self.shape.kind == "tiles":
            launches = [self._function(self._tiles, self.name)]
        elif self.shape.splits == 1:
            launches = [self._function(lambda: self._fold(range(self.levels + 1)), self.name)]
        else:
            launches = []
            for level in range(self.levels + 1):
                last = not self._inner_roots(level)
                launches.append(
                    self._function(lambda level=level: self._fold([level]), f"{self.name}_{level}", alone=last)
                )
        functions = [text.replace("%PARAMETERS", self._parameters()) for text in self.module.functions]
        return Variant(self.shape.requirements, launches, self.module.declared(), functions, self.scratch, self.shape)

    def _parameters(self) -> str:
        """All buffers are aligned as the variant requires; what is written overlaps nothing else."""
        aligned = {r.what: r.of for r in self.shape.requirements if r.kind == "aligned"}
        written = {self.k.values[s].attr[0] for s in self.stores if self.k.values[s].op == "store"}
        names = []
        for n, buffer in enumerate(self.k.buffers):
            align = aligned.get(n, buffer.dtype.itemsize)
            names.append(f"{GLOBAL} noalias {'' if n in written else 'readonly '}align {align} %buffer{n}")
        names += [f"{GLOBAL} align 8 %scratch", f"{GLOBAL} align 8 %status"]
        return ", ".join([*names, *[f"i64 %size{n}" for n in range(len(self.table.sizes))]])

    def _function(self, body: Any, name: str, *, alone: bool = False) -> GridLaunch:
        shape = self.shape
        self.f = f = GpuFunction(self.module, name, "%PARAMETERS", f'"nvvm.reqntid"="{shape.threads}"')
        f.index_type = "i32" if shape.narrow else "i64"
        self.v = GpuValues(self.k, f, shape.packed, shape.slots, shape.vectors, self.table)
        self.r = Reducer(self.k, f, shape, name)
        self.thread = self._register("tid.x")
        self.block = self._wide(self._register("ctaid.x"))
        self.split = "0" if shape.splits == 1 or alone else self._wide(self._register("ctaid.y"))
        self.r.thread = self.thread
        blocks: Size = body()
        f.finish()
        return GridLaunch(name, blocks, 1 if alone else shape.splits, shape.threads)

    def _register(self, name: str) -> str:
        return self.f.call(f"llvm.nvvm.read.ptx.sreg.{name}", "i32")

    def _wide(self, x: str) -> str:
        """A register in the type of positions."""
        return x if self.f.index_type == "i32" else self.f.emit(f"zext i32 {x} to i64")

    # ------------------------------------------------------------------------------------------------ pointwise

    def _pointwise(self) -> Size:
        f, v, shape = self.f, self.v, self.shape
        total = product(self.k, self.k.outer)
        if shape.packed is None or (isinstance(total, int) and total == 1):
            self._only_thread(GpuScope({a: "0" for a in self.k.outer}))
            return 1
        step = shape.threads * shape.slots  # between groups
        whole = step * shape.groups
        begin = v.integer("mul", self.block, str(whole))
        mine = v.integer("add", begin, v.integer("mul", self._wide(self.thread), str(shape.slots)))
        n = v.size(total)
        rest = not (isinstance(total, int) and total % whole == 0)
        if rest:
            full, part, out = (f.fresh(x) for x in ("full", "part", "out"))
            inside = f.emit(f"icmp sle {f.index_type} {v.integer('add', begin, str(whole))}, {n}")
            f.do(f"br i1 {inside}, label %{full}, label %{part}")
            f.label(full)
        scopes = [GpuScope(v.decode(v.integer("add", mine, str(g * step)), self.k.outer)) for g in range(shape.groups)]
        for scope in scopes:
            v.compute(self.stores, scope)
        for scope in scopes:
            v.finish(self.stores, scope)
        if rest:
            f.do(f"br label %{out}")
            f.label(part)
            self._rest(mine, n, step, total)
            f.do(f"br label %{out}")
            f.label(out)
        return _over(total, whole)

    def _only_thread(self, scope: GpuScope) -> None:
        first = self.f.emit(f"icmp eq i32 {self.thread}, 0")
        scope.mask = scope.may_store = first
        self.v.finish(self.stores, scope)

    def _rest(self, mine: str, n: str, step: int, total: Size) -> None:
        """The last block: groups that are whole, then single points."""
        f, v, slots = self.f, self.v, self.shape.slots

        def body(at: str, _: list[str]) -> list[str]:
            v.finish(self.stores, GpuScope(v.decode(at, self.k.outer)))
            return []

        f.loop(mine, v.integer("sub", n, str(slots - 1)), step, body)
        if slots == 1 or len(self.k.outer) > 1 or (isinstance(total, int) and total % slots == 0):
            return
        # the end: fewer points than a thread takes
        done = v.integer("mul", f.emit(f"udiv {f.index_type} {n}, {slots}"), str(slots))
        at = v.integer("add", done, self._wide(self.thread))
        yes, on = f.fresh("yes"), f.fresh("on")
        f.do(f"br i1 {f.emit(f'icmp slt {f.index_type} {at}, {n}')}, label %{yes}, label %{on}")
        f.label(yes)
        GpuValues(self.k, f, self.shape.packed, 1, frozenset(), self.table).finish(
            self.stores, GpuScope(v.decode(at, self.k.outer))
        )
        f.do(f"br label %{on}")
        f.label(on)

    # ---------------------------------------------------------------------------------------------------- tiles

    def _tiles(self) -> Size:
        """Some loads run along another axis than the stores: a block's tile of them is turned in shared memory."""
        f, v, r, shape = self.f, self.v, self.r, self.shape
        assert shape.packed is not None and shape.turned is not None
        size = shape.across
        high, low = shape.turned, shape.packed
        lead = [a for a in self.k.outer if a not in (high, low)]
        across, down = _over(self.k.extents[low], size), _over(self.k.extents[high], size)
        rest = v.integer("udiv", self.block, v.size(across))
        corner = {
            low: v.integer("mul", v.integer("urem", self.block, v.size(across)), str(size)),
            high: v.integer("mul", v.integer("urem", rest, v.size(down)), str(size)),
        }
        fixed = v.decode(v.integer("udiv", rest, v.size(down)), lead)
        column = f.emit(f"and i32 {self.thread}, {size - 1}")
        line = f.emit(f"lshr i32 {self.thread}, {size.bit_length() - 1}")
        lines = [f.emit(f"add i32 {line}, {g * shape.lanes}") for g in range(shape.groups)]

        def scope(along: int, other: int, row: str) -> GpuScope:
            at = {
                along: v.integer("add", corner[along], self._wide(column)),
                other: v.integer("add", corner[other], self._wide(row)),
            }
            mask = None
            for axis, position in at.items():
                extent = self.k.extents[axis]
                if not isinstance(extent, int) or extent % size:
                    mask = v.both(mask, f.emit(f"icmp slt {f.index_type} {position}, {v.size(extent)}"))
            return GpuScope({**fixed, **at}, mask, mask)

        loads = sorted(shape.through)
        types = [self.k.values[n].dtype for n in loads]
        arrays = [r.array(t, size * (size + 1)) for t in types]
        given = [scope(high, low, row) for row in lines]
        for place in given:
            for n in loads:
                v.get(n, place)
        for row, place in zip(lines, given, strict=True):
            flat = f.emit(f"add i32 {f.emit(f'mul i32 {row}, {size + 1}')}, {column}")
            for n, array, t in zip(loads, arrays, types, strict=True):
                r.put(array, flat, v.one(n, place, 0), t)
        r.barrier()
        wanted = [scope(low, high, row) for row in lines]
        for row, place in zip(lines, wanted, strict=True):
            flat = f.emit(f"add i32 {f.emit(f'mul i32 {column}, {size + 1}')}, {row}")
            for n, array, t in zip(loads, arrays, types, strict=True):
                place.made[n] = (r.take(array, flat, t),)
            v.compute(self.stores, place)
        for place in wanted:
            v.finish(self.stores, place)
        return product(self.k, lead) * across * down

    # ------------------------------------------------------------------------------------------------ reductions

    def _inner_roots(self, level: int) -> list[int]:
        """What the loop of a level computes: reductions, and stores of every element."""
        roots = [n for n, v in enumerate(self.k.values) if v.op == "reduce" and self.level[n] == level + 1]
        return roots + [s for s in self.stores if self.level[s] == level and self.varies[s] & self.inner]

    def _fold(self, levels: Sequence[int]) -> Size:
        """A result's loops, one after the other; the reductions below the first level come from scratch memory."""
        v = self.v
        row, blocks = self._results()
        self.length = product(self.k, self.k.inner)
        low, high = self._part()
        for level in range(1, levels[0] + 1):
            self._from_scratch(level, row)
        groups = self._all_groups(row) if self.shape.kept else []
        for level in levels:
            roots = self._inner_roots(level)
            if roots:
                v.prepare(roots, row, self.inner)
                parts = self._kept(roots, groups) if self.shape.kept else self._loop(roots, row, low, high)
                parts = self.r.among_threads(parts) if parts else {}
                if self.shape.splits > 1:
                    self._to_scratch(parts, row)
                else:
                    self._publish(parts, row)
            outside = [s for s in self.stores if self.level[s] == level and not self.varies[s] & self.inner]
            if outside:
                v.compute(outside, row)
                v.finish(outside, GpuScope(row.axis, None, self._one_thread(row), row))
        return blocks

    def _publish(self, parts: Mapping[int, list[Folded]], row: GpuScope) -> None:
        for r, folded in parts.items():
            row.made[r] = tuple([self.r.result(r, part) for part in folded])

    def _one_thread(self, row: GpuScope) -> str | None:
        """Of all that have a result, the one that stores it."""
        mine: str | None = None
        if self.shape.lanes > 1:
            mine = self.f.emit(f"icmp eq i32 {self.r.lane}, 0")
        if self.split != "0":
            mine = self.v.both(mine, self.f.emit(f"icmp eq {self.f.index_type} {self.split}, 0"))
        return self.v.both(mine, row.may_store)

    # -- which results a thread works for

    def _results(self) -> tuple[GpuScope, Size]:
        return self._columns() if self.shape.kind == "columns" else self._rows()

    def _rows(self) -> tuple[GpuScope, Size]:
        f, v, shape = self.f, self.v, self.shape
        count = product(self.k, self.k.outer)
        row, ok = self.block, None
        if shape.across == 1:
            self.r.lane = self.thread
        else:
            shift = shape.lanes.bit_length() - 1
            self.r.lane = f.emit(f"and i32 {self.thread}, {shape.lanes - 1}")
            self.r.across = f.emit(f"lshr i32 {self.thread}, {shift}")
            row = v.integer("add", v.integer("mul", self.block, str(shape.across)), self._wide(self.r.across))
            if not isinstance(count, int) or count % shape.across:
                # threads behind the end do as the last ones do, and store nothing: all lanes take part in exchanges
                ok = f.emit(f"icmp slt {f.index_type} {row}, {v.size(count)}")
                row = f.smaller(row, v.integer("sub", v.size(count), "1"))
        self.unit = [row]
        return GpuScope(v.decode(row, self.k.outer), None, ok), _over(count, shape.across)

    def _columns(self) -> tuple[GpuScope, Size]:
        f, v, shape = self.f, self.v, self.shape
        assert shape.packed is not None
        width, lead = self.k.extents[shape.packed], self.k.outer[:-1]
        per_block = shape.across * shape.slots
        tiles = _over(width, per_block)
        shift = shape.across.bit_length() - 1
        self.r.across = f.emit(f"and i32 {self.thread}, {shape.across - 1}")
        self.r.lane = f.emit(f"lshr i32 {self.thread}, {shift}")
        tile, line = v.integer("urem", self.block, v.size(tiles)), v.integer("udiv", self.block, v.size(tiles))
        column = v.integer(
            "add", v.integer("mul", tile, str(per_block)), v.integer("mul", self._wide(self.r.across), str(shape.slots))
        )
        ok = None
        if not isinstance(width, int) or width % per_block:
            ok = f.emit(f"icmp slt {f.index_type} {column}, {v.size(width)}")
            column = f.smaller(column, v.integer("sub", v.size(width), str(shape.slots)))
        first = v.integer("add", v.integer("mul", line, v.size(width)), column)
        self.unit = [v.integer("add", first, str(slot)) for slot in range(shape.slots)]
        return GpuScope({**v.decode(line, lead), shape.packed: column}, None, ok), product(self.k, lead) * tiles

    # -- which elements

    @property
    def _pack(self) -> int:
        return self.shape.slots if self.shape.kind == "rows" else 1

    def _part(self) -> tuple[str, str]:
        """The elements of this block: all, or its part of them, in whole steps."""
        v, shape = self.v, self.shape
        length = v.size(self.length)
        if shape.splits == 1:
            return "0", length
        step = shape.lanes * self._pack * shape.groups
        each = _over(_over(self.length, shape.splits), step) * step
        low = v.integer("mul", self.split, v.size(each))
        return low, self.f.smaller(v.integer("add", low, v.size(each)), length)

    def _element(self, row: GpuScope, at: str, mask: str | None) -> GpuScope:
        """The scope of a thread's elements at a position."""
        at = self.v.integer("add", at, self.v.integer("mul", self._wide(self.r.lane), str(self._pack)))
        if mask is not None:
            mask = self.f.emit(f"icmp slt {self.f.index_type} {at}, {mask}")
        axis = {**row.axis, **self.v.decode(at, self.k.inner)}
        return GpuScope(axis, mask, self.v.both(mask, row.may_store), row)

    def _all_groups(self, row: GpuScope) -> list[GpuScope]:
        step = self.shape.lanes * self._pack
        return [
            self._element(row, str(g * step), None if (g + 1) * step <= self.length else str(self.length))
            for g in range(self.shape.groups)
        ]

    # -- folding

    def _split_roots(self, roots: list[int]) -> tuple[list[int], list[int]]:
        reduces = [r for r in roots if self.k.values[r].op == "reduce"]
        return reduces, [r for r in roots if self.k.values[r].op != "reduce"]

    def _results_of(self, r: int) -> int:
        """How many results of a reduction a thread has: columns have one in each slot."""
        return self.shape.slots if self.shape.kind == "columns" and self.v.in_slots(r) else 1

    def _new(self, r: int, scope: GpuScope) -> list[Folded]:
        """An element of each slot."""
        args = [self.v.get(a, scope) for a in self.k.values[r].args]
        count = self._results_of(r) if self.shape.kind == "columns" else self.shape.slots
        new = [[a[s if len(a) > 1 else 0] for a in args] for s in range(count)]
        return [self.r.masked(r, part, scope.mask) for part in new]

    def _kept(self, roots: list[int], groups: list[GpuScope]) -> dict[int, list[Folded]]:
        reduces, stores = self._split_roots(roots)
        for scope in groups:
            self.v.compute(roots, scope)
        parts = {r: [self._new(r, scope) for scope in groups] for r in reduces}
        for scope in groups:
            self.v.finish(stores, scope)
        made: dict[int, list[Folded]] = {}
        for r, by_group in parts.items():
            if self.shape.kind == "rows":
                made[r] = [self.r.tree(r, [part for group in by_group for part in group])]
            else:
                made[r] = [self.r.tree(r, list(column)) for column in zip(*by_group, strict=True)]
        return made

    def _loop(self, roots: list[int], row: GpuScope, low: str, high: str) -> dict[int, list[Folded]]:
        """Whole steps, then groups of which only some threads are inside."""
        f, shape = self.f, self.shape
        reduces, stores = self._split_roots(roots)
        group = shape.lanes * self._pack
        slots = {r: len(self._columns_or_slots(r)) for r in reduces}
        one = [item for r in reduces for _ in range(slots[r]) for item in self._start(r)]

        def at(scopes: list[GpuScope], carried: list[str]) -> list[str]:
            for scope in scopes:
                self.v.compute(roots, scope)
            result: list[str] = []
            for g, scope in enumerate(scopes):
                here = carried[g * len(one) : (g + 1) * len(one)]
                for r in reduces:
                    width = len(self.r.types(r))
                    for new in self._new(r, scope):
                        result += self.r.joined(r, here[:width], new)
                        here = here[width:]
            for scope in scopes:
                self.v.finish(stores, scope)
            return result

        def step(i: str, carried: list[str]) -> list[str]:
            starts = [self.v.integer("add", i, str(g * group)) for g in range(shape.groups)]
            return at([self._element(row, start, None) for start in starts], carried)

        def rest(i: str, carried: list[str]) -> list[str]:
            return at([self._element(row, i, high)], carried)

        i, carried = f.loop(low, high, group * shape.groups, step, one * shape.groups, whole=True)
        kinds = [kind for kind, _ in one]
        first = list(zip(kinds, carried[: len(one)], strict=True))
        _, last = f.loop(i, high, group, rest, first)
        return self._gathered(reduces, slots, [*last, *carried[len(one) :]], len(one))

    def _columns_or_slots(self, r: int) -> range:
        return range(self._results_of(r) if self.shape.kind == "columns" else self.shape.slots)

    def _start(self, r: int) -> list[tuple[str, str]]:
        return [(ELEMENT[t], x) for t, x in zip(self.r.types(r), self.r.start(r), strict=True)]

    def _gathered(
        self, reduces: list[int], slots: Mapping[int, int], carried: list[str], each: int
    ) -> dict[int, list[Folded]]:
        """What the groups and slots of a thread have folded becomes one part for each result."""
        made: dict[int, list[Folded]] = {}
        at = 0
        for r in reduces:
            width = len(self.r.types(r))
            parts = [
                [carried[g * each + at + s * width :][:width] for s in range(slots[r])]
                for g in range(self.shape.groups)
            ]
            at += slots[r] * width
            if self.shape.kind == "rows":
                made[r] = [self.r.tree(r, [part for group in parts for part in group])]
            else:
                made[r] = [self.r.tree(r, list(column)) for column in zip(*parts, strict=True)]
        return made

    # -- partial results

    def _place(self, r: int, part: int, split: str, slot: int) -> str:
        """The address of a partial result."""
        count = product(self.k, self.k.outer)
        numbers = [n for n, value in enumerate(self.k.values) if value.op == "reduce"]
        column = sum(len(self.r.types(n)) for n in numbers if n < r) + part
        columns = sum(len(self.r.types(n)) for n in numbers)
        self.scratch = count * (self.shape.splits * columns * PARTIAL_BYTES)
        line = self.v.integer("add", split, str(column * self.shape.splits))
        flat = self.v.integer("add", self.v.integer("mul", line, self.v.size(count)), self.unit[slot])
        flat = self.v.as_i64(flat)
        return self.f.emit(f"getelementptr i64, {GLOBAL} %scratch, i64 {flat}")

    def _to_scratch(self, parts: Mapping[int, list[Folded]], row: GpuScope) -> None:
        if not parts:
            return
        f = self.f
        mine = self.v.both(f.emit(f"icmp eq i32 {self.r.lane}, 0"), row.may_store)
        yes, on = f.fresh("yes"), f.fresh("on")
        f.do(f"br i1 {mine}, label %{yes}, label %{on}")
        f.label(yes)
        for r, slots in parts.items():
            for slot, folded in enumerate(slots):
                for part, (x, dtype) in enumerate(zip(folded, self.r.types(r), strict=True)):
                    self.r.store_partial(x, self._place(r, part, self.split, slot), dtype)
        f.do(f"br label %{on}")
        f.label(on)

    def _from_scratch(self, level: int, row: GpuScope) -> None:
        """The reductions of a level, from the parts that an earlier launch left: folded as a loop over the parts."""
        reduces = [n for n, v in enumerate(self.k.values) if v.op == "reduce" and self.level[n] == level]
        one = [item for r in reduces for _ in range(self._results_of(r)) for item in self._start(r)]

        def body(split: str, carried: list[str]) -> list[str]:
            result: list[str] = []
            for r in reduces:
                types = self.r.types(r)
                for slot in range(self._results_of(r)):
                    new = [self.r.load_partial(self._place(r, p, split, slot), t) for p, t in enumerate(types)]
                    result += self.r.joined(r, carried[: len(types)], new)
                    carried = carried[len(types) :]
            return result

        _, carried = self.f.loop(self._wide(self.r.lane), str(self.shape.splits), self.shape.lanes, body, one)
        folded: dict[int, list[Folded]] = {}
        for r in reduces:
            width = len(self.r.types(r))
            folded[r] = [carried[s * width : (s + 1) * width] for s in range(self._results_of(r))]
            carried = carried[self._results_of(r) * width :]
        self._publish(self.r.among_threads(folded), row)
