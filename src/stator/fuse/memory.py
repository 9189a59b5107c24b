"""Where a program's buffers lie: planned ahead, for one call.

Enters: a `LoopProgram`. Leaves: a `MemoryPlan`. Results and what calls take are tensors with storage of their own;
every other buffer is a part of the arena, an offset in bytes, which buffers that are not alive at the same time share.
The arena is there for the whole call, beside tensors that come and go: where that would take more memory at once than
buffers that come and go, the largest become tensors, too. Offsets are ints, or expressions of the graph's symbols.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import sympy  # type: ignore[import-untyped]  # torch's own for symbolic sizes

from .loops import Alias, Blocked, Call, LoopProgram, Ref, Size, product

ALIGNMENT = 64  # a cache line
# What a call may take beyond what is alive at once: so many bytes, or one of so many of those.
_SLACK, _SHARE = 1 << 18, 64


@dataclass
class MemoryPlan:
    offsets: dict[str, Size] = field(default_factory=dict)  # of buffers in the arena, in bytes
    size: Size = 0  # of the arena
    allocated: dict[int, list[str]] = field(default_factory=dict)  # by step: tensors that are made before it
    dropped: dict[int, list[str]] = field(default_factory=dict)  # by step: tensors that nobody wants behind it


def plan_memory(program: LoopProgram) -> MemoryPlan:
    made, last = lifetimes(program)
    in_arena = [name for name in made if name in program.places and name not in program.tensors]
    sizes = {name: program.places[name].reach * program.places[name].dtype.itemsize for name in in_arena}
    if not all(isinstance(size, int) for size in sizes.values()):
        plan = _tensors(program, made, last, set())
        _share_places(plan, in_arena, sizes, made, last)
        return plan
    least = _most_alive(program, made, last, MemoryPlan())  # if every buffer comes and goes
    allowed = least + max(_SLACK, least // _SHARE)
    fixed = {step.workspace for step in program.steps if isinstance(step, Blocked)}
    for largest in _limits(sizes):
        small = [name for name in in_arena if sizes[name] <= largest or name in fixed]
        plan = _tensors(program, made, last, {*in_arena} - {*small})
        _share_bytes(plan, small, sizes, made, last)
        if plan.size <= allowed - least or _most_alive(program, made, last, plan) <= allowed:
            break
    return plan


def _limits(sizes: dict[str, int]) -> Iterator[int]:
    """How large a buffer of the arena may be: as large as they are, half of that, and so on."""
    largest = max(sizes.values(), default=0)
    yield largest
    while largest > _SLACK:
        largest //= 2
        yield largest


def _tensors(program: LoopProgram, made: dict[str, int], last: dict[str, int], more: set[str]) -> MemoryPlan:
    """When tensors are made and dropped; `more`: buffers that are tensors, too."""
    plan = MemoryPlan()
    results = {out.name for out in program.outputs if isinstance(out, Ref)}
    for name, step in made.items():
        if name in more or (name in program.tensors and name not in program.inputs and _is_allocated(program, step)):
            plan.allocated.setdefault(step, []).append(name)
    for name, step in last.items():
        if name in more or (name in program.tensors and name not in results):
            plan.dropped.setdefault(step, []).append(name)
    return plan


def _is_allocated(program: LoopProgram, step: int) -> bool:
    return not isinstance(program.steps[step], (Call, Alias))


def lifetimes(program: LoopProgram) -> tuple[dict[str, int], dict[str, int]]:
    """By buffer: the step that makes it, and the last one that uses it."""
    made: dict[str, int] = {}
    last = {name: 0 for name in program.inputs}
    for number, step in enumerate(program.steps):
        for name in (*step.reads, *step.writes):
            last[name] = number
        for name in step.writes:
            made.setdefault(name, number)
    return made, last


def _most_alive(program: LoopProgram, made: dict[str, int], last: dict[str, int], plan: MemoryPlan) -> int:
    """The most bytes that are alive at once, with the plan's arena in place of the buffers that lie in it.

    What a tensor was made from by an alias lives as long as that. Of the inputs those count that this call alone holds:
    others stay alive whatever it does.
    """
    end = len(program.steps)
    until = last | {out.name: end for out in program.outputs if isinstance(out, Ref)}
    for step in reversed(program.steps):
        if isinstance(step, Alias):
            until[step.place.buffer] = max(until[step.place.buffer], until[step.out])
    changes = [0] * (end + 2)
    for name, first in [*made.items(), *[(name, 0) for name in program.dying]]:
        place = program.places.get(name)
        size = None if place is None else place.reach * place.dtype.itemsize
        seen = name in made and isinstance(program.steps[first], Alias)  # has no memory of its own
        if isinstance(size, int) and name not in plan.offsets and not seen:
            changes[first] += size
            changes[until[name] + 1] -= size
    return int(plan.size) + max(itertools.accumulate(changes))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _share_bytes(
    plan: MemoryPlan, names: list[str], sizes: dict[str, int], made: dict[str, int], last: dict[str, int]
) -> None:
    """In the order of the steps: a buffer takes the smallest gap that it fits in, and leaves one behind its last
    use."""
    gaps: list[tuple[int, int]] = []  # (offset, size), by offset, no two touching
    dying: list[tuple[int, int, int]] = []  # heap of (last step, offset, size)
    for name in sorted(names, key=made.__getitem__):
        while dying and dying[0][0] < made[name]:
            _add_gap(gaps, *heapq.heappop(dying)[1:])
        size = _aligned(sizes[name])
        taken = _take_gap(gaps, size)
        offset = plan.size if taken is None else taken
        if taken is None:
            offset = gaps.pop()[0] if gaps and sum(gaps[-1]) == plan.size else plan.size  # the last gap grows
            plan.size = offset + size
        plan.offsets[name] = offset
        heapq.heappush(dying, (last[name], offset, size))


def _take_gap(gaps: list[tuple[int, int]], size: int) -> int | None:
    fitting = [(gap[1], number) for number, gap in enumerate(gaps) if gap[1] >= size]
    if not fitting or size == 0:
        return 0 if size == 0 else None
    _, number = min(fitting)
    offset, room = gaps[number]
    gaps[number : number + 1] = [(offset + size, room - size)] if room > size else []
    return offset


def _add_gap(gaps: list[tuple[int, int]], offset: int, size: int) -> None:
    if size == 0:
        return
    at = bisect.bisect(gaps, (offset, size))
    if at < len(gaps) and gaps[at][0] == offset + size:
        size += gaps.pop(at)[1]
    if at > 0 and sum(gaps[at - 1]) == offset:
        at -= 1
        offset, size = gaps[at][0], gaps[at][1] + size
        gaps.pop(at)
    gaps.insert(at, (offset, size))


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
            size = sympy.Max(0, sizes[name])  # gaps between rows: with a size of 0 it would be negative
            padded = sympy.floor((size + ALIGNMENT - 1) / ALIGNMENT) * ALIGNMENT
            plan.size = plan.size + padded
        plan.offsets[name] = offset
        free.append((last[name], sizes[name], offset))


def bytes_moved(program: LoopProgram) -> Size:
    """What kernels read and write at least, in bytes: each buffer once per launch."""
    total: Size = 0
    for step in program.steps:
        for name in dict.fromkeys((*step.reads, *step.writes)):
            place = program.places.get(name)
            if place is not None and not isinstance(step, (Call, Alias)):
                total = total + product(place.sizes) * place.dtype.itemsize
    return total
