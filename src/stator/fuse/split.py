"""Reductions with few results and many elements: chunks of a fixed length, that threads can share, then the rest.

Enters: a `LoopProgram`. Leaves: the same, with such launches as several: partial results of each chunk, those folded,
and what is computed with them. What holds: the chunks depend on sizes alone, so every number of threads gives the same
bits. An axis whose size is a symbol has chunks of one length, as many as there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch.utils._sympy.functions import FloorDiv

from .loops import (
    Buffer,
    BufferView,
    Index,
    Kernel,
    Launch,
    LoopProgram,
    ProgramStep,
    Size,
    Value,
    check,
    index_of,
    operands,
    product,
)
from .simplify import simplify

LEAST_POINTS = 1 << 18  # below, one thread is as fast
FEW_UNITS = 8
WANTED_UNITS = 32
SHORTEST = 1 << 12  # elements of a chunk
COLUMNS = 64  # results beside each other that are one unit


def split_reductions(program: LoopProgram) -> LoopProgram:
    steps: list[ProgramStep] = []
    for step in program.steps:
        steps += (isinstance(step, Launch) and split(step, program.places)) or [step]
    program.steps = steps
    return program


def split(
    launch: Launch, places: dict[str, BufferView], least: int = LEAST_POINTS, shortest: int = SHORTEST
) -> list[Launch]:
    """The launches that replace this one; none where it stays. `places` gets the partial results."""
    chunks = _chunks(launch.kernel, least, shortest)
    if chunks is None:
        return []
    made = _Split(launch, places, *chunks)
    parts = [made.partial(0, made.count, made.length, 0)]
    if made.left != 0:
        parts.append(made.partial(made.count * made.length, 1, made.left, made.count))
    parts.append(made.folded())
    rest = made.rest()
    if rest is not None:
        parts += split(rest, places, least, shortest) or [rest]
    return parts


def _chunks(kernel: Kernel, least: int, shortest: int) -> tuple[Size, int] | None:
    """How many chunks of which length the outermost inner axis has, where it is worth it."""
    if not any(value.op == "reduce" for value in kernel.values) or not kernel.inner:
        return None
    results = product([kernel.extents[a] for a in kernel.outer])
    if not isinstance(results, int):
        return None
    units = -(-results // COLUMNS) if _beside(kernel) else results
    if not 0 < units < FEW_UNITS:
        return None
    folded = product([kernel.extents[a] for a in kernel.inner])
    if not isinstance(folded, int):
        return _chunks_of_any_size(kernel, results, 4 * shortest)
    if results * folded < least:
        return None
    extent = kernel.extents[kernel.inner[0]]
    most = min(extent // 2, results * folded // shortest // units)
    wanted = min(most, WANTED_UNITS // units)
    if wanted < 2:
        return None
    count = next((n for n in range(wanted, min(most, 2 * wanted) + 1) if extent % n == 0), wanted)
    return count, extent // count


def _chunks_of_any_size(kernel: Kernel, results: int, elements: int) -> tuple[Size, int] | None:
    """Chunks of so many elements, and a last one which is never empty."""
    extent, *rest = [kernel.extents[a] for a in kernel.inner]
    beside = product(rest) * results
    if isinstance(extent, int) or not extent.is_positive or not isinstance(beside, int):
        return None
    length = max(1, elements // beside)
    return FloorDiv(extent - 1, length), length


def _beside(kernel: Kernel) -> bool:
    """Whether results lie beside each other in what is read, rather than the elements of one."""
    if not kernel.outer:
        return False
    votes = {kernel.outer[-1]: 0, kernel.inner[-1]: 0}
    for value in kernel.values:
        if value.op == "load":
            for axis in votes:
                votes[axis] += value.attr[1].coefficient(axis) == 1
    return votes[kernel.outer[-1]] > votes[kernel.inner[-1]]


@dataclass
class _Split:
    launch: Launch
    places: dict[str, BufferView]
    count: Size
    length: int

    def __post_init__(self) -> None:
        self.k = k = self.launch.kernel
        self.axis = k.inner[0]
        self.left: Size = k.extents[self.axis] - self.count * self.length
        self.slots = self.count + int(self.left != 0)
        self.results: int = product([k.extents[a] for a in k.outer])
        self.level, self.varies = k.levels(), k.varies()
        self.reduces = [n for n, v in enumerate(k.values) if v.op == "reduce" and self.level[n] == 1]
        inside = [bool(self.varies[n] & set(k.inner)) for n in range(len(k.values))]
        roots = k.roots()
        self.early = [r for r in roots if self.level[r] == 0 and inside[r]]
        self.middle = [r for r in roots if self.level[r] <= 1 and not inside[r]]
        self.late = [r for r in roots if r not in self.early and r not in self.middle]
        self._partials: dict[tuple[int, str], int] = {}  # (reduction, what) -> its buffer
        self._finals: dict[int, int] = {}
        self.buffers = [Buffer(name, b.dtype) for name, b in zip(self.launch.buffers, k.buffers, strict=True)]
        for r in self.reduces:
            value = k.values[r]
            if value.attr in ("argmax", "argmin"):
                self._partials[r, "best"] = self._buffer(k.values[value.args[0]].dtype, self.results * self.slots)
            self._partials[r, "result"] = self._buffer(value.dtype, self.results * self.slots)
            if self.late:
                self._finals[r] = self._buffer(value.dtype, self.results)

    def _buffer(self, dtype: torch.dtype, elements: Size) -> int:
        name = f"{self.k.name}_{len(self.buffers)}"
        while name in self.places:
            name += "_"
        self.places[name] = BufferView(name, dtype, (elements,), (1,))
        self.buffers.append(Buffer(name, dtype))
        return len(self.buffers) - 1

    def _at(self, slot: Index) -> Index:
        """Where a partial result lies: results, or the chunks of one, beside each other, as they are computed."""
        flat = Index()
        for axis in self.k.outer:
            flat = flat * self.k.extents[axis] + Index.axis(axis)
        return flat + slot * self.results if _beside(self.k) else flat * self.slots + slot

    def partial(self, start: Size, count: Size, length: Size, slot: Size) -> Launch:
        """Reductions of each chunk, and what is stored on the way to them."""
        extents = [*self.k.extents, count]
        extents[self.axis] = length
        chunk = len(extents) - 1
        inside = Index.axis(chunk) * length + Index.axis(self.axis) + start
        copy = _Copy(self.k, lambda index: index.substitute(self.axis, inside))
        for r in self.early:
            copy.value(r)
        at = self._at(Index.axis(chunk) + slot)
        for r in self.reduces:
            value = self.k.values[r]
            args = tuple(copy.value(a) for a in value.args)
            if value.attr in ("argmax", "argmin"):
                best = copy.add("reduce", args[:1], self.k.values[value.args[0]].dtype, value.attr[3:])
                copy.store(best, self._partials[r, "best"], at)
            copy.store(copy.add("reduce", args, value.dtype, value.attr), self._partials[r, "result"], at)
        return self._launch("part", copy, extents, [chunk, *self.k.outer], self.k.inner)

    def folded(self) -> Launch:
        """The chunks' results become one, with what needs no more."""
        extents = [*self.k.extents, self.slots]
        chunk = len(extents) - 1
        copy = _Copy(self.k, lambda index: index)
        at = self._at(Index.axis(chunk))
        for r in self.reduces:
            value = self.k.values[r]
            taken = [copy.load(self._partials[r, "result"], at, value.dtype)]
            if value.attr in ("argmax", "argmin"):
                taken.insert(0, copy.load(self._partials[r, "best"], at, self.k.values[value.args[0]].dtype))
            copy.new[r] = copy.add("reduce", tuple(taken), value.dtype, value.attr)
        for r in self.middle:
            copy.value(r)
        for r, buffer in self._finals.items():
            copy.store(copy.new[r], buffer, self._result())
        return self._launch("fold", copy, extents, self.k.outer, [chunk])

    def _result(self) -> Index:
        flat = Index()
        for axis in self.k.outer:
            flat = flat * self.k.extents[axis] + Index.axis(axis)
        return flat

    def rest(self) -> Launch | None:
        """What varies over the inner axes and depends on these reductions."""
        if not self.late:
            return None
        copy = _Copy(self.k, lambda index: index)
        for r, buffer in self._finals.items():
            copy.new[r] = copy.load(buffer, self._result(), self.k.values[r].dtype)
        for r in self.late:
            copy.value(r)
        again = any(value.op == "reduce" for value in copy.values)
        outer = self.k.outer if again else [*self.k.outer, *self.k.inner]
        return self._launch("rest", copy, self.k.extents, outer, self.k.inner if again else [])

    def _launch(self, what: str, copy: _Copy, extents: Iterable[Size], outer: list[int], inner: list[int]) -> Launch:
        name = f"{self.k.name}_{what}"
        buffers = list(self.buffers)
        kernel = Kernel(
            name, list(extents), list(outer), list(inner), buffers, copy.values, self.k.origins, self.k.lines,
            self.k.why_not_more,
        )  # fmt: skip
        kernel = simplify(kernel)
        check(kernel)
        names = [b.name for b in kernel.buffers]
        writes = {kernel.buffers[v.attr[0]].name for v in kernel.values if v.op == "store"}
        return Launch(kernel, names, [n for n in names if n in writes])


class _Copy:
    """Values of a kernel in another one: those asked for, and what they need."""

    def __init__(self, kernel: Kernel, moved: Callable[[Index], Index]) -> None:
        self._k, self._moved = kernel, moved
        self.values: list[Value] = []
        self.new: dict[int, int] = {}

    def add(self, op: str, args: tuple[int, ...], dtype: torch.dtype, attr: object = None) -> int:
        self.values.append(Value(op, args, dtype, attr))
        return len(self.values) - 1

    def load(self, buffer: int, at: Index, dtype: torch.dtype) -> int:
        return self.add("load", (), dtype, (buffer, at))

    def store(self, value: int, buffer: int, at: Index) -> None:
        self.add("store", (value,), self.values[value].dtype, (buffer, at))

    def value(self, number: int) -> int:
        for n in self._needed(number):
            value = self._k.values[n]
            made = replace(value, args=tuple(self.new[a] for a in value.args))
            index = index_of(value)
            if index is not None:
                moved = self._moved(replace(index, gathered=tuple((self.new[v], s) for v, s in index.gathered)))
                made = replace(made, attr=moved if value.op == "index" else (value.attr[0], moved))
            self.values.append(made)
            self.new[n] = len(self.values) - 1
        return self.new[number]

    def _needed(self, number: int) -> Iterator[int]:
        """What is not there yet, in order."""
        found: set[int] = set()
        pending = [number]
        while pending:
            n = pending.pop()
            if n not in found and n not in self.new:
                found.add(n)
                pending.extend(operands(self._k.values[n]))
        return iter(sorted(found))
