"""Where a program's buffers lie: planned ahead, for one call.

Enters: a `Program`. Leaves: a `MemoryPlan`. Results and what calls take are tensors with storage of their own; every
other buffer is a part of the arena, an offset in bytes, which buffers that are not alive at the same time share.
Offsets are ints, or expressions of the graph's symbols.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

import sympy  # type: ignore[import-untyped]  # torch's own for symbolic sizes

from .loops import Call, Place, Program, Ref, Size, product

ALIGNMENT = 64  # a cache line


@dataclass
class MemoryPlan:
    offsets: dict[str, Size] = field(default_factory=dict)  # of buffers in the arena, in bytes
    size: Size = 0  # of the arena
    allocated: dict[int, list[str]] = field(default_factory=dict)  # by step: tensors that are made before it
    dropped: dict[int, list[str]] = field(default_factory=dict)  # by step: tensors that nobody wants behind it


def reach(place: Place) -> Size:
    """Elements from the first to behind the last one."""
    if any(size == 0 for size in place.sizes):
        return 0
    last: Size = 1
    for size, stride in zip(place.sizes, place.strides, strict=True):
        last = last + (size - 1) * stride
    return last


def plan_memory(program: Program) -> MemoryPlan:
    plan = MemoryPlan()
    made, last = _lifetimes(program)
    results = {out.name for out in program.outputs if isinstance(out, Ref)}
    for name, step in made.items():
        if name in program.tensors and not isinstance(program.steps[step], Call):
            plan.allocated.setdefault(step, []).append(name)
    for name, step in last.items():
        if name in program.tensors and name not in results:
            plan.dropped.setdefault(step, []).append(name)
    in_arena = [name for name in made if name in program.places and name not in program.tensors]
    sizes = {name: reach(program.places[name]) * program.places[name].dtype.itemsize for name in in_arena}
    if all(isinstance(size, int) for size in sizes.values()):
        _share_bytes(plan, in_arena, sizes, made, last)
    else:
        _share_places(plan, in_arena, sizes, made, last)
    return plan


def _lifetimes(program: Program) -> tuple[dict[str, int], dict[str, int]]:
    """By buffer: the step that makes it, and the last one that uses it."""
    made: dict[str, int] = {}
    last = {name: 0 for name in program.inputs}
    for number, step in enumerate(program.steps):
        for name in (*step.reads, *step.writes):
            last[name] = number
        for name in step.writes:
            made.setdefault(name, number)
    return made, last


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _share_bytes(
    plan: MemoryPlan, names: list[str], sizes: dict[str, int], made: dict[str, int], last: dict[str, int]
) -> None:
    """Each buffer goes to the lowest gap between those alive with it; the largest first."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first step, last step
    for name in sorted(names, key=lambda n: -sizes[n]):
        size, begin, end = _aligned(sizes[name]), made[name], last[name]
        offset = 0
        for low, high, first, until in placed:
            if first <= end and begin <= until:
                if low - offset >= size:
                    break
                offset = max(offset, high)
        plan.offsets[name] = offset
        bisect.insort(placed, (offset, offset + size, begin, end))
        plan.size = max(plan.size, offset + size)


def _share_places(
    plan: MemoryPlan, names: list[str], sizes: dict[str, Size], made: dict[str, int], last: dict[str, int]
) -> None:
    """With symbols: a buffer takes over the place of a dead one whose size is the same expression."""
    free: list[tuple[int, Size, Size]] = []  # free behind this step, size, offset
    for name in sorted(names, key=made.__getitem__):
        for place in free:
            if place[0] < made[name] and place[1] == sizes[name]:
                free.remove(place)
                offset = place[2]
                break
        else:
            offset = plan.size
            padded = sympy.floor((sympy.sympify(sizes[name]) + ALIGNMENT - 1) / ALIGNMENT) * ALIGNMENT
            plan.size = plan.size + padded
        plan.offsets[name] = offset
        free.append((last[name], sizes[name], offset))


def bytes_moved(program: Program) -> Size:
    """What kernels read and write at least, in bytes: each buffer once per launch."""
    total: Size = 0
    for step in program.steps:
        for name in dict.fromkeys((*step.reads, *step.writes)):
            place = program.places.get(name)
            if place is not None and not isinstance(step, Call):
                total = total + product(place.sizes) * place.dtype.itemsize
    return total
