"""How a kernel is spread over the threads of a GPU.

Enters: a `Kernel`, and whether memory may be taken for aligned. Leaves: a `LaunchShape`, plain numbers; they depend on
the kernel's sizes alone, not on the device, so that sums have one order everywhere. The numbers below are the cost
model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .gpu_values import Size, index_of, operands

THREADS = 256
POINTWISE_BYTES = 16  # that a thread reads of one buffer
WARP_SLOTS = 32  # elements of a row that one lane of a warp keeps; longer rows take a block
KEPT_THREADS = 128  # of a block that keeps a row; more only where each keeps KEPT_SLOTS elements
KEPT_SLOTS = 16
KEPT_REGISTERS = 48  # for values that later loops use again
LONGEST_KEPT = 32  # elements of a row to a thread, likewise
ROW_THREADS = 1024  # of a block that loops over a row
COLUMN_THREADS = 32  # neighbours that read one line
TILE = 32  # points along both axes of a tile
SHARED_BYTES = 40 * 1024
ENOUGH_BLOCKS = 512  # fewer, and rows are split among several blocks
MOST_SPLITS = 256
NARROW = 2**31 - 2**20  # positions below it fit an i32, also a block's length further on


@dataclass(frozen=True)
class Requirement:
    """What must hold at launch: a buffer begins at a multiple of `of` bytes, or a size is a multiple of it, or is at
    most that."""

    kind: str  # "aligned", "multiple" or "at_most"
    what: Any  # a buffer's number, or a size
    of: int


@dataclass
class LaunchShape:
    """`packed`: the axis whose neighbours one thread takes, `slots` at a time, `groups` times in a step."""

    kind: str  # "pointwise", "tiles", "rows" or "columns"
    packed: int | None
    slots: int
    vectors: frozenset[int]
    requirements: list[Requirement] = field(default_factory=list)
    threads: int = THREADS
    groups: int = 1
    lanes: int = 1  # threads that fold one result together
    across: int = 1  # results side by side in a block: rows, or threads of neighbouring columns
    kept: bool = False  # all elements of a result's loop at once, in registers
    splits: int = 1
    narrow: bool = False
    turned: int | None = None  # tiles: the axis along which some loads are dense
    through: frozenset[int] = frozenset()  # tiles: those loads


def product(kernel: Any, axes: list[int]) -> Size:
    total: Size = 1
    for axis in axes:
        total = total * kernel.extents[axis]
    return total


def shapes(kernel: Any) -> Iterator[LaunchShape]:
    """The fastest first; the last has no requirements."""
    kind, packed = _kind(kernel)
    turned, through = _turned(kernel, packed) if kind == "pointwise" else (None, frozenset[int]())
    kind = "tiles" if through else kind
    widest = _slots(kernel, packed)
    found = []
    if widest > 1 and not through and (shape := _packed_shape(kernel, kind, packed, widest)) is not None:
        found.append(shape)
    positions = _positions(kernel)
    symbolic = [n for n in positions if not isinstance(n, int)]
    small = all(n <= NARROW for n in positions if isinstance(n, int))
    if symbolic and not found:
        found.append(LaunchShape(kind, packed, 1, frozenset()))
    for shape in found:
        shape.narrow = small
        if small:
            shape.requirements += [Requirement("at_most", n, NARROW) for n in symbolic]
    found.append(LaunchShape(kind, packed, 1, frozenset(), narrow=small and not symbolic))
    for shape in found:
        shape.turned, shape.through = turned, through
        _spread(kernel, shape)
        yield shape


def _kind(kernel: Any) -> tuple[str, int | None]:
    outer, inner = kernel.outer, kernel.inner
    if not inner:
        return "pointwise", outer[-1] if outer else None
    row, column = inner[-1], outer[-1] if outer else None
    votes = {row: 0, column: 0}
    varies = kernel.varies()
    for number, value in enumerate(kernel.values):
        if value.op in ("load", "store") and varies[number] & set(inner):
            for axis in votes:
                votes[axis] += axis is not None and value.attr[1].coefficient(axis) == 1
    return ("columns", column) if column is not None and votes[column] > votes[row] else ("rows", row)


def _turned(kernel: Any, packed: int | None) -> tuple[int | None, frozenset[int]]:
    """Loads that are dense along another axis than the packed one: their tiles go through shared memory."""
    by_axis: dict[int, list[int]] = {}
    for n, v in enumerate(kernel.values):
        if v.op != "load" or v.args or v.attr[1].gathered or v.attr[1].coefficient(packed) in (0, 1):
            continue
        for axis, c in v.attr[1].terms:
            if c == 1:
                by_axis.setdefault(axis, []).append(n)
    if not by_axis or packed is None:
        return None, frozenset()
    axis = max(by_axis, key=lambda a: len(by_axis[a]))
    loads = by_axis[axis]
    long = [isinstance(n, int) and n < TILE // 2 for n in (kernel.extents[axis], kernel.extents[packed])]
    if any(long) or sum(kernel.values[n].dtype.itemsize for n in loads) * TILE * (TILE + 1) > SHARED_BYTES:
        return None, frozenset()
    return axis, frozenset(loads)


def _dense(kernel: Any, packed: int | None) -> list[int]:
    """Accesses that run along the packed axis without gaps."""
    varies = kernel.varies()
    return [
        n
        for n, v in enumerate(kernel.values)
        if v.op in ("load", "store")
        and v.attr[1].coefficient(packed) == 1
        and all(packed not in varies[g] for g, _ in v.attr[1].gathered)
    ]


def _slots(kernel: Any, packed: int | None) -> int:
    """As many as make 16 bytes of the most common type, among the accesses that run over the most axes."""
    dense = _dense(kernel, packed)
    if not dense:
        return 1
    axes = {n: len(kernel.values[n].attr[1].terms) for n in dense}
    bytes_of = sorted(
        kernel.buffers[kernel.values[n].attr[0]].dtype.itemsize for n in dense if axes[n] == max(axes.values())
    )
    return min(8, 16 // int(bytes_of[len(bytes_of) // 2]))


def _packed_shape(kernel: Any, kind: str, packed: int | None, slots: int) -> LaunchShape | None:
    requirements: dict[Requirement, None] = {}

    def multiple(size: Size) -> bool:
        if isinstance(size, int) or getattr(size, "is_Integer", False):
            return int(size) % slots == 0
        requirements[Requirement("multiple", size, slots)] = None
        return True

    assert packed is not None
    alone = kind == "pointwise" and len(kernel.outer) == 1  # its end is done one by one
    if not alone and not multiple(kernel.extents[packed]):
        return None
    if isinstance(extent := kernel.extents[packed], int) and extent < slots:
        return None
    vectors = []
    for n in _dense(kernel, packed):
        buffer, index = kernel.values[n].attr
        steps = [index.offset, *[c for a, c in index.terms if a != packed], *[s for _, s in index.gathered]]
        before = dict(requirements)
        if not all([multiple(s) for s in steps]):
            requirements = before
            continue
        vectors.append(n)
        size = min(16, slots * kernel.buffers[buffer].dtype.itemsize)
        if size > 1:
            requirements[Requirement("aligned", buffer, size)] = None
    return LaunchShape(kind, packed, slots, frozenset(vectors), list(requirements)) if vectors else None


def _positions(kernel: Any) -> list[Size]:
    """The largest numbers that positions and indices reach."""
    found = [product(kernel, [*kernel.outer, *kernel.inner])]
    for value in kernel.values:
        index = index_of(value)
        if index is None:
            continue
        reach: Size = abs(index.offset)
        for axis, c in index.terms:
            reach = reach + abs(c) * kernel.extents[axis]
        found.append(reach)
    return list(dict.fromkeys(found))


# -------------------------------------------------------------------------------------------------------- threads


def _spread(kernel: Any, shape: LaunchShape) -> None:
    shape.threads = THREADS
    if shape.kind == "pointwise":
        bytes_of = max((b.dtype.itemsize for b in kernel.buffers), default=4)
        shape.groups = max(1, min(8, POINTWISE_BYTES // (bytes_of * shape.slots)))
        total = product(kernel, kernel.outer)
        while shape.groups > 1 and isinstance(total, int) and total < ENOUGH_BLOCKS * THREADS * shape.slots:
            shape.groups //= 2
            if total * 2 < ENOUGH_BLOCKS * THREADS * shape.slots * shape.groups:
                shape.groups = 1
    elif shape.kind == "tiles":
        shape.across, shape.lanes, shape.groups = TILE, THREADS // TILE, TILE * TILE // THREADS
    elif shape.kind == "rows":
        _spread_rows(kernel, shape)
    else:
        _spread_columns(kernel, shape)


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _registers(kernel: Any) -> int:
    """Registers for one element's values that later loops use again."""
    level, varies, inner = kernel.levels(), kernel.varies(), set(kernel.inner)
    kept: set[int] = set()
    for number, value in enumerate(kernel.values):
        later = level[number] - (value.op == "reduce")
        kept |= {a for a in operands(value) if level[a] < later and varies[a] & inner}
    return max(1, sum(max(1, int(kernel.values[a].dtype.itemsize) // 4) for a in kept))


def _spread_rows(kernel: Any, shape: LaunchShape) -> None:
    length, count = product(kernel, kernel.inner), product(kernel, kernel.outer)
    slots = shape.slots
    limit = min(LONGEST_KEPT, max(slots, KEPT_REGISTERS // _registers(kernel)))
    shape.kept = isinstance(length, int) and 0 < length <= 1024 * limit
    if shape.kept:
        need = -(-length // slots)  # threads, with one group to each
        if need <= 32:
            shape.lanes = _power_of_two(need)
            shape.threads = 128
            shape.across = shape.threads // shape.lanes
            return
        groups = -(-need // 32)
        if groups * slots <= min(limit, WARP_SLOTS):
            shape.lanes, shape.groups, shape.threads, shape.across = 32, groups, 128, 4
            return
        groups = 1
        while -(-need // groups) > (KEPT_THREADS if groups * slots < min(limit, KEPT_SLOTS) else 1024):
            groups += 1
        if groups * slots <= limit:
            shape.lanes = shape.threads = -(-need // (groups * 32)) * 32
            shape.groups = groups
            return
        shape.kept = False
    shape.lanes = shape.threads = ROW_THREADS
    shape.groups = max(1, 8 // slots)
    if not isinstance(length, int) or length < ROW_THREADS * slots * shape.groups:
        shape.lanes = shape.threads = THREADS
    if isinstance(count, int) and count * 2 <= ENOUGH_BLOCKS:
        shape.lanes = shape.threads = THREADS
        shape.groups = max(1, 4 // slots)
    _split(shape, length, count)


def _split(shape: LaunchShape, length: Size, blocks: Size) -> None:
    """Few results of many elements: several blocks to each."""
    step = shape.lanes * shape.groups * (shape.slots if shape.kind == "rows" else 1)
    if not isinstance(blocks, int) or blocks * 2 > ENOUGH_BLOCKS or blocks == 0:
        return
    splits = min(MOST_SPLITS, -(-ENOUGH_BLOCKS // blocks))
    if isinstance(length, int):
        splits = min(splits, length // (2 * step))
    shape.splits = max(1, splits)


def _reductions(kernel: Any) -> list[Any]:
    return [value for value in kernel.values if value.op == "reduce"]


def _spread_columns(kernel: Any, shape: LaunchShape) -> None:
    assert shape.packed is not None
    length, width = product(kernel, kernel.inner), kernel.extents[shape.packed]
    threads = COLUMN_THREADS
    if isinstance(width, int):
        threads = min(threads, _power_of_two(-(-width // shape.slots)))
    shape.across, shape.lanes = threads, THREADS // threads
    folded = sum(
        max(4, kernel.values[v.args[0]].dtype.itemsize) + 8 * (v.attr[:3] == "arg") for v in _reductions(kernel)
    )
    while shape.lanes > 1 and threads * shape.lanes * shape.slots * folded > SHARED_BYTES:
        shape.lanes //= 2
    shape.threads = threads * shape.lanes
    shape.groups = 4 if shape.slots <= 4 else 2
    if isinstance(length, int) and 0 < length <= shape.lanes * 8 and max(kernel.levels()) > 0:
        groups = -(-length // shape.lanes)
        if groups * shape.slots * _registers(kernel) <= KEPT_REGISTERS:
            shape.kept, shape.groups = True, groups
            return
    per_block = threads * shape.slots
    tiles: Size = -(-width // per_block) if isinstance(width, int) else (width + per_block - 1) // per_block
    _split(shape, length, product(kernel, kernel.outer[:-1]) * tiles)
