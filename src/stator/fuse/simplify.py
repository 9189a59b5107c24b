"""Kernels made simpler without changing what they compute: dead values go, axes that run together become one, loops
get an order.

Enters and leaves: a `Kernel` that `loops.check` accepts.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations

from .loops import Index, Kernel, Size, Value, index_of, operands


def simplify(kernel: Kernel) -> Kernel:
    kernel = _without_dead_values(kernel)
    kernel.outer = _in_order(kernel, kernel.outer)
    if not kernel.scans:
        kernel.inner = _in_order(kernel, kernel.inner)
    while _merge_axes(kernel):
        pass
    return _renumbered(kernel)


def _without_dead_values(kernel: Kernel) -> Kernel:
    alive: set[int] = set()
    pending = kernel.roots()
    while pending:
        number = pending.pop()
        if number not in alive:
            alive.add(number)
            pending.extend(operands(kernel.values[number]))
    new: dict[int, int] = {}
    values: list[Value] = []
    for number, value in enumerate(kernel.values):
        if number in alive:
            new[number] = len(values)
            values.append(_rewired(value, new))
    kernel.values = values
    return kernel


def _rewired(value: Value, new: dict[int, int]) -> Value:
    args = tuple([new[a] for a in value.args])
    index = index_of(value)
    if index is None:
        return replace(value, args=args)
    moved = Index(index.offset, index.terms, tuple((new[v], s) for v, s in index.gathered))
    return _with_index(replace(value, args=args), moved)


def _with_index(value: Value, index: Index) -> Value:
    return replace(value, attr=index if value.op == "index" else (value.attr[0], index))


def _in_order(kernel: Kernel, axes: list[int]) -> list[int]:
    """Loop order: the axis that most accesses take in the smallest steps comes last."""

    def cost(axis: int) -> tuple[float, int]:
        strides = []
        for value in kernel.values:
            if value.op in ("load", "store"):
                c = value.attr[1].coefficient(axis)
                strides.append((float(c) if isinstance(c, (int, float)) else 1e6) * (4 if value.op == "store" else 1))
        return -sum(abs(s) ** 0.5 for s in strides), axis

    return sorted(axes, key=cost)


def _merge_axes(kernel: Kernel) -> bool:
    """Two axes become one, where every index runs through them as through one. Loops between them are free to go
    elsewhere, but for what scans visit in order."""
    for loops in (kernel.outer, kernel.inner):
        ordered = kernel.scans and loops is kernel.inner
        for high, low in pairwise(loops) if ordered else permutations(loops, 2):
            extent: Size = kernel.extents[low]
            indices = [i for v in kernel.values if (i := index_of(v)) is not None]
            if all(_same(i.coefficient(high), i.coefficient(low) * extent) for i in indices):
                kernel.extents[low] = kernel.extents[high] * extent
                kernel.values = [
                    v if (i := index_of(v)) is None else _with_index(v, _without(i, high)) for v in kernel.values
                ]
                loops.remove(high)
                return True
    return False


def _same(a: Size, b: Size) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool((a - b).expand() == 0) if hasattr(a - b, "expand") else bool(a == b)


def _without(index: Index, axis: int) -> Index:
    return Index(index.offset, tuple(t for t in index.terms if t[0] != axis), index.gathered)


def _renumbered(kernel: Kernel) -> Kernel:
    """Axes numbered in loop order, buffers in the order of their first use: equal kernels get equal texts."""
    new = {axis: n for n, axis in enumerate([*kernel.outer, *kernel.inner])}
    used: list[int] = []
    for value in kernel.values:
        if value.op in ("load", "store") and value.attr[0] not in used:
            used.append(value.attr[0])
    values = []
    for value in kernel.values:
        index = index_of(value)
        if index is not None:
            terms = tuple(sorted((new[a], c) for a, c in index.terms))
            moved = Index(index.offset, terms, index.gathered)
            value = _with_index(value, moved)
            if value.op != "index":
                value = replace(value, attr=(used.index(value.attr[0]), moved))
        values.append(value)
    extents = [kernel.extents[a] for a in [*kernel.outer, *kernel.inner]]
    outer = list(range(len(kernel.outer)))
    inner = list(range(len(outer), len(extents)))
    return replace(
        kernel, extents=extents, outer=outer, inner=inner, values=values, buffers=[kernel.buffers[b] for b in used]
    )
