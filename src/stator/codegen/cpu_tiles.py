"""Pointwise kernels whose accesses are dense along different axes: transposes, changes of memory format.

Enters: a kernel, and the two axes. A tile of vectors is loaded along one of them, turned in registers, and kept in
scratch memory while its rows are computed along the other: both sides of memory are touched in whole cache lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .cpu_memory import Size, alignment
from .cpu_reduce import Reductions
from .ir import IN_MEMORY

LONG = (
    64  # vectors of the tiles' axis in a unit, where that axis is the longer one: the fewer, longer streams are faster
)
FEW_VALUES = 4  # of a kernel whose tiles stay in registers


def choose_axes(kernel: Any, width: int) -> tuple[int | None, int | None]:
    """The axis of the lanes, that most stores are dense along, and the one that other loads are dense along, if any."""
    if not kernel.outer:
        return None, None
    votes = {axis: 0 for axis in reversed(kernel.outer) if _fills(kernel.extents[axis], width)}
    for value in kernel.values:
        if value.op in ("load", "store"):
            for axis in votes:
                votes[axis] += (4 if value.op == "store" else 1) * (value.attr[1].coefficient(axis) == 1)
    lanes: int = max(votes, key=lambda axis: votes[axis], default=kernel.outer[-1])
    if not votes.get(lanes) or width == 1:
        return kernel.outer[-1], None
    turned = {axis: sum(is_turned(v, lanes, axis) for v in kernel.values) for axis in votes if axis != lanes}
    other = max(turned, key=lambda axis: turned[axis], default=None)
    return lanes, other if other is not None and turned[other] else None


def _fills(extent: Size, width: int) -> bool:
    return not isinstance(extent, int) or extent >= width


def is_turned(value: Any, lanes: int, other: int) -> bool:
    """A load that is dense along the other axis, and strided along the lanes."""
    if value.op != "load" or value.args or value.attr[1].gathered:
        return False
    index = value.attr[1]
    c = index.coefficient(lanes)
    return index.coefficient(other) == 1 and (not isinstance(c, int) or c not in (0, 1))


class VectorLoop(Protocol):
    def __call__(
        self, roots: list[int], start: str, stop: str, reduces: Sequence[int] = (), accumulated: Sequence[str] = ()
    ) -> list[str]: ...


class Tiles(Reductions):
    vector_loop: VectorLoop  # over the lanes' axis: the class that writes whole kernels has it
    tile_axis: int | None = None
    tile_vectors = 1  # of that axis, in one unit

    def plan_tiles(self) -> None:
        """How much a unit is, and room in scratch memory for each load that is turned."""
        assert self.vector_axis is not None and self.tile_axis is not None
        along, across = self.k.extents[self.vector_axis], self.k.extents[self.tile_axis]
        if isinstance(along, int) and isinstance(across, int) and along < across:
            self.tile_vectors = LONG
        for number, value in enumerate(self.k.values):
            if is_turned(value, self.vector_axis, self.tile_axis):
                self.tile_offsets[number] = self.scratch_bytes
                size = self.w * self.w * self.k.buffers[value.attr[0]].dtype.itemsize
                self.scratch_bytes = self.scratch_bytes + (size + 63) // 64 * 64

    def tile_unit(self, block: str, stores: Sequence[int]) -> None:
        """Some vectors of positions on the tile's axis, and the whole axis of the lanes."""
        f, w, axis = self.f, self.w, self.tile_axis
        assert axis is not None and self.vector_axis is not None
        across, along = self.k.extents[axis], self.size(self.k.extents[self.vector_axis])
        start = f.arithmetic("mul", block, str(w * self.tile_vectors))
        stop = f.arithmetic("add", start, str(w * self.tile_vectors))
        if not is_multiple(across, w * self.tile_vectors):
            stop = f.smaller(stop, self.size(across))
        whole = f.arithmetic("add", start, f.arithmetic("and", f.arithmetic("sub", stop, start), str(-w)))

        done = f.arithmetic("and", along, str(-w))

        def across_first(u: str, _: list[str]) -> list[str]:
            f.loop("0", done, w, lambda at, _: self._tile(u, at, stores))
            return []

        def along_first(at: str, _: list[str]) -> list[str]:
            f.loop(start, whole, w, lambda u, _: self._tile(u, at, stores))
            return []

        if self.tile_vectors == 1:
            f.loop(start, whole, w, across_first)
        else:
            f.loop("0", done, w, along_first)

        def lines(first: str, last: str, begin: str) -> None:
            def line(u: str, _: list[str]) -> list[str]:
                self.axis[axis] = u
                self.env.append({})
                self.vector_loop(list(stores), begin, along)
                self.env.pop()
                return []

            f.loop(first, last, 1, line)

        if not is_multiple(self.k.extents[self.vector_axis], w):
            lines(start, whole, done)
        if not is_multiple(across, w):
            lines(whole, stop, "0")

    def _tile(self, start: str, at: str, stores: Sequence[int]) -> list[str]:
        f, axis = self.f, self.tile_axis
        assert axis is not None
        self.axis[axis], self.lane, self.mask = start, at, None
        self.env.append({})
        if len(self.k.values) <= FEW_VALUES:
            self._rows_in_registers(start, stores)
            return []
        for number in self.tile_offsets:
            self._turn(number)
        self.env.pop()

        def row(i: str, _: list[str]) -> list[str]:
            for u in range(2):
                self.tile_row = f.arithmetic("add", i, str(u))
                self.axis[axis] = f.arithmetic("add", start, self.tile_row)
                self.env.append({})
                self.body(list(stores))
                self.env.pop()
            return []

        f.loop("0", str(self.w), 2, row)
        self.tile_row = None
        return []

    def _rows_in_registers(self, start: str, stores: Sequence[int]) -> None:
        """All rows of a tile one after the other, without scratch memory between."""
        f, axis = self.f, self.tile_axis
        assert axis is not None
        turned = {number: self._turned(number) for number in self.tile_offsets}
        self.env.pop()
        for row in range(self.w):
            self.axis[axis] = f.arithmetic("add", start, str(row))
            self.env.append({})
            for number, rows in turned.items():
                f.width = self.w
                dtype = self.k.buffers[self.k.values[number].attr[0]].dtype
                self.env[-1][number] = self._from_memory(rows[row], dtype)
            self.body(list(stores))
            self.env.pop()

    def _turn(self, number: int) -> None:
        """A tile, turned, in scratch memory."""
        f, w = self.f, self.w
        dtype = self.k.buffers[self.k.values[number].attr[0]].dtype
        kind = f"<{w} x {IN_MEMORY[dtype]}>"
        for n, row in enumerate(self._turned(number)):
            f.do(f"store {kind} {row}, ptr {self._tile_address(number, str(n))}, align {alignment(dtype)}")

    def _turned(self, number: int) -> list[str]:
        """Loads the vectors of a tile, swaps rows and lanes."""
        f, w = self.f, self.w
        assert self.vector_axis is not None
        buffer, index = self.k.values[number].attr
        dtype = self.k.buffers[buffer].dtype
        element = IN_MEMORY[dtype]
        kind = f"<{w} x {element}>"
        first = f.emit(f"getelementptr {element}, ptr %buffer{buffer}, i64 {self._flat(index, with_vector_axis=True)}")
        step = self.size(index.coefficient(self.vector_axis))
        rows: list[str] = []
        for n in range(w):
            address = f.emit(f"getelementptr {element}, ptr {first}, i64 {f.arithmetic('mul', str(n), step)}")
            rows.append(f.emit(f"load {kind}, ptr {address}, align {alignment(dtype)}"))
        return self._transposed(rows, kind)

    def _transposed(self, rows: list[str], kind: str) -> list[str]:
        """Blocks of lanes swapped between pairs of rows, for blocks of 1, 2, 4, …"""
        f, w, size = self.f, self.w, 1
        while size < w:
            upper = ", ".join(f"i32 {n if not n & size else w + n - size}" for n in range(w))
            lower = ", ".join(f"i32 {n + size if not n & size else w + n}" for n in range(w))
            made = list(rows)
            for n in range(w):
                if not n & size:
                    pair = f"shufflevector {kind} {rows[n]}, {kind} {rows[n + size]}, <{w} x i32>"
                    made[n], made[n + size] = f.emit(f"{pair} <{upper}>"), f.emit(f"{pair} <{lower}>")
            rows, size = made, size * 2
        return rows


def is_multiple(extent: Size, width: int) -> bool:
    return isinstance(extent, int) and extent % width == 0
