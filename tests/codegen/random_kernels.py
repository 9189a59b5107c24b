"""Random loop programs, from a seed: what a schedule may write, and more.

Numbers are small and whole, where they are added up: then every order of additions gives the same bits, and machine
code must equal the reference evaluator exactly.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from stator.fuse.builder import KernelBuilder, V
from stator.fuse.loops import STORABLE, Buffer, Index, Kernel, computed_in, concrete, product

EXTENTS = [0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130, 257, 1000, 4099]
MOST_POINTS = 1 << 15
EXACT = 1 << 20  # numbers below stay whole in float32, also as products and sums
DTYPES = sorted(STORABLE, key=str)
ARITHMETIC = ["add", "sub", "mul", "min", "max"]


@dataclass
class Memory:
    """What a buffer holds: elements, and how its numbers are drawn."""

    elements: Any
    dtype: torch.dtype
    low: int
    high: int
    written: bool = False

    def tensor(self, symbols: dict[Any, int], seed: int, *, real: bool = False) -> torch.Tensor:
        n = max(1, concrete(self.elements, symbols))
        generator = torch.Generator().manual_seed(seed)
        if self.dtype.is_floating_point and real:
            return torch.randn(n, generator=generator).to(self.dtype)
        drawn = torch.randint(self.low, self.high, (n,), generator=generator)
        made = drawn.to(self.dtype)
        if self.dtype.is_floating_point and seed % 3 == 0 and n > 4:
            for position, number in ((n // 3, torch.inf), (n // 2, torch.nan), (n - 1, -0.0)):
                made[position] = number
        return made


@dataclass
class Made:
    """A random kernel, and what it runs on."""

    kernel: Kernel
    memory: list[Memory]
    symbols: dict[Any, int]


@dataclass
class _Drawing:
    random: random.Random
    b: KernelBuilder = field(default_factory=KernelBuilder)
    extents: list[Any] = field(default_factory=list)
    outer: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    symbols: dict[Any, int] = field(default_factory=dict)
    values: list[V] = field(default_factory=list)
    bound: dict[int, int] = field(default_factory=dict)  # by value: what its numbers stay below

    # -- axes

    def axes(self) -> None:
        points, count = 1, self.random.choice([0, 1, 1, 2, 2, 3, 3, 4])
        for axis in range(count):
            size = self.random.choice([e for e in EXTENTS if points * e <= MOST_POINTS])
            size = self.random.choice([0, 1]) if size == 0 else size
            points *= max(1, size)
            self.extents.append(self._size(size))
            (self.inner if self.random.random() < 0.4 else self.outer).append(axis)
        self.random.shuffle(self.outer)
        self.random.shuffle(self.inner)

    def _size(self, size: int) -> Any:
        how = self.random.randrange(6)
        if how > 1:
            return size
        symbol = sympy.Symbol(f"s{len(self.symbols)}", positive=True, integer=True)
        if how == 0 or size < 4:
            self.symbols[symbol] = size
            return symbol
        self.symbols[symbol] = size // 2
        return symbol * 2 + size % 2

    # -- memory

    def layout(self, axes: list[int]) -> tuple[Index, Any]:
        """An index over some axes, each element once, in any order of dimensions; and the elements it reaches."""
        index, reach, step = Index(), 1, 1
        order = list(axes)
        if self.random.random() < 0.4:
            self.random.shuffle(order)
        if self.random.random() < 0.15:
            step = self.random.choice([2, 3])
        for axis in reversed(order):
            extent = self.extents[axis]
            last = (extent - 1) * step
            if self.random.random() < 0.1:
                index = index + Index.axis(axis) * -step + last
            else:
                index = index + Index.axis(axis) * step
            reach = reach + last
            step = reach + self.random.choice([0, 0, 0, 1, 5])
            step = max(1, int(step)) if getattr(step, "is_number", True) else step
        return index, reach

    def some_axes(self) -> list[int]:
        axes = [*self.outer, *self.inner]
        return [a for a in axes if self.random.random() < 0.75]

    def buffer(self, elements: Any, dtype: torch.dtype, low: int, high: int, *, written: bool = False) -> int:
        self.memory.append(Memory(elements, dtype, low, high, written))
        return len(self.memory) - 1

    # -- values

    def keep(self, value: V, bound: int) -> V:
        self.values.append(value)
        self.bound[value.id] = min(bound, self.bound.get(value.id, bound))
        return value

    def load(self, dtype: torch.dtype | None = None) -> V:
        dtype = dtype or self.random.choice(DTYPES)
        low, high = (0, 2) if dtype is torch.bool else (0, 5) if dtype is torch.uint8 else (-4, 5)
        index, reach = self.layout(self.some_axes())
        kind = self.random.randrange(8)
        if kind == 0 and index.terms:
            return self._shifted(index, reach, dtype, low, high)
        if kind == 1:
            return self._gathered(index, dtype, low, high)
        return self.keep(self.b.load(self.buffer(reach, dtype, low, high), index, dtype), 5)

    def _shifted(self, index: Index, reach: Any, dtype: torch.dtype, low: int, high: int) -> V:
        """Only where the condition holds there is memory: a part of what is put together, or a pad."""
        by = self.random.choice([1, 3, 16])
        position = self.b.index(index + -by)
        inside = position >= 0
        if self.random.random() < 0.5:
            inside = inside & (position < self.b.index(Index(reach)))
        return self.keep(self.b.load(self.buffer(reach, dtype, low, high), index + -by, dtype, inside), 5)

    def _gathered(self, index: Index, dtype: torch.dtype, low: int, high: int) -> V:
        rows = self.random.choice([1, 7, 100])
        where, reach = self.layout(self.some_axes())
        number = self.b.load(self.buffer(reach, torch.int64, 0, rows), where, torch.int64)
        if self.random.random() < 0.5:
            limit = self.b.const(rows, torch.int64)
            inside = (number >= 0) & (number < limit)
            self.b.check(inside)
            number = self.b.where(inside, number, self.b.const(0, torch.int64))
        base, inner_reach = self.layout(self.random.sample([*self.outer, *self.inner], k=min(1, len(self.extents))))
        gathered = base + Index(0, (), ((number.id, inner_reach),))
        elements = inner_reach * rows
        return self.keep(self.b.load(self.buffer(elements, dtype, low, high), gathered, dtype), 5)

    def of_type(self, dtype: torch.dtype) -> V:
        value = self.random.choice(self.values)
        if value.dtype is dtype:
            return value
        floating = value.dtype.is_floating_point and not dtype.is_floating_point
        bound = 1 << 70 if floating and dtype is not torch.bool else self.bound[value.id]
        return self.keep(value.to(dtype), bound if dtype is not torch.bool else 1)

    def step(self) -> None:
        b, how, x = self.b, self.random.randrange(10), self.random.choice(self.values)
        y = self.of_type(x.dtype)
        at_most = [self.bound[v.id] for v in (x, y)]
        if how <= 3:
            op = self.random.choice(ARITHMETIC if x.dtype is not torch.bool else ["and", "or", "xor", "min", "max"])
            bound = at_most[0] * at_most[1] if op == "mul" else sum(at_most)
            if bound < EXACT:
                self.keep(b.op(op, x, y), bound)
        elif how == 4:
            self.keep(b.op(self.random.choice(["lt", "ge", "eq", "ne"]), x, y, dtype=torch.bool), 1)
        elif how == 5:
            self.keep(b.where(self.of_type(torch.bool), x, y), max(at_most))
        elif how == 6 and x.dtype is not torch.bool:
            self.keep(b.op(self.random.choice(["neg", "abs", "sign"]), x), at_most[0])
        elif how == 7:
            index, reach = self.layout(self.some_axes())
            self.keep(b.index(index), concrete(reach, self.symbols) + 1)
        elif how == 8 and (x.dtype is torch.float32):
            self.keep(b.op(self.random.choice(["round_bf16", "round_f16", "floor"]), x), at_most[0] * 2)
        else:
            self.load()

    def reduce(self) -> None:
        x = self.random.choice(self.values)
        points = product([concrete(self.extents[a], self.symbols) for a in self.inner])
        kinds = "sum sum prod max min any all argmax argmin" if points else "sum prod any all"  # as eager
        kind = self.random.choice(kinds.split())
        if kind in ("any", "all"):
            self.keep(self.b.add("reduce", (self.of_type(torch.bool).id,), torch.bool, kind), 1)
        elif kind in ("argmax", "argmin"):
            position = Index()
            for axis in self.inner:
                position = position * self.extents[axis] + Index.axis(axis)
            at = self.b.index(position)
            self.keep(self.b.add("reduce", (x.id, at.id), torch.int64, kind), points)
        elif kind in ("max", "min"):
            self.keep(self.b.add("reduce", (x.id,), x.dtype, kind), self.bound[x.id])
        elif kind == "prod":
            x = self.of_type(self.random.choice([torch.int64, torch.int32, torch.float32, torch.float64]))
            self.keep(self.b.add("reduce", (x.sign().id,), x.dtype, kind), 1)
        else:
            x = self.of_type(self.random.choice([torch.int64, torch.float32, torch.float64]))
            bound = self.bound[x.id] * points
            if bound < 16 * EXACT or not x.dtype.is_floating_point:
                self.keep(self.b.add("reduce", (x.id,), x.dtype, kind), bound)

    def store(self, value: V) -> None:
        kernel = Kernel("", self.extents, self.outer, self.inner, [], self.b.values)
        inside = kernel.varies()[value.id] & set(self.inner)
        index, reach = self.layout([*self.outer, *self.inner] if inside else list(self.outer))
        same = [t for t in DTYPES if computed_in(t) is value.dtype]
        dtype = self.random.choice(same)
        buffer = self.buffer(reach, dtype, 0, 1, written=True)
        self.b.add("store", (value.id,), value.dtype, (buffer, index))


def draw(seed: int) -> Made:
    d = _Drawing(random.Random(seed))
    d.axes()
    d.load(torch.float32)
    d.load()
    for _ in range(d.random.randrange(1, 4)):
        for _ in range(d.random.randrange(2, 8)):
            d.step()
        if d.inner or d.random.random() < 0.1:
            for _ in range(d.random.randrange(1, 3)):
                d.reduce()
    if d.random.random() < 0.3:
        d.b.check(d.of_type(torch.bool))
    for value in d.random.sample(d.values, k=min(len(d.values), d.random.randrange(1, 4))):
        d.store(value)
    d.store(d.values[-1])
    buffers = [Buffer(f"b{n}", m.dtype) for n, m in enumerate(d.memory)]
    return Made(Kernel(f"random {seed}", d.extents, d.outer, d.inner, buffers, d.b.values), d.memory, d.symbols)
