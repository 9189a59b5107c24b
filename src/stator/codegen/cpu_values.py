"""The values of a kernel as code: each made where it is wanted first, kept while its loop lasts.

Enters: numbers of values. Leaves: names of IR values, scalars or vectors. What does not vary over the lanes is computed
before a loop; what is dear and wanted by a later loop lies in scratch memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from . import scalar
from .cpu_memory import KernelMemory, Size
from .ir import ELEMENT, literal

DEAR = {
    name: 6
    for name in "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc pow sigmoid rsqrt sqrt div atan2 fmod remainder floor_div philox philox_more".split()
}
MOST_SCRATCH = 1 << 19  # bytes of each thread, where sizes are known
BYTES = {torch.float64: 8, torch.int64: 8, torch.float32: 4, torch.int32: 4, torch.int16: 2}


class CpuValues(KernelMemory):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.scratch: dict[int, Size] = {}  # value -> offset in bytes
        self.scratch_bytes: Size = 0
        self.loop_level = 0

    def body(self, roots: Sequence[int]) -> None:
        for r in roots:
            if self.k.values[r].op in ("store", "check"):
                self._root(r)
            else:  # kept for a later loop
                self._keep(r)

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
        if self.known and not uniform and (folded := self._folded(number)) is not None:
            return folded
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

    def _folded(self, number: int) -> str | None:
        """What a known condition makes of a value, as a vector."""
        value, self.f.width = self.k.values[number], self.w
        if number in self.known:
            return self.f.constant(self.known[number], torch.bool)
        if value.op == "where" and value.args[0] in self.known:
            return self.get(value.args[1 if self.known[value.args[0]] else 2], vector=True)
        if value.op == "load" and value.args and self.known.get(value.args[0]) is False:
            return self.f.constant(0, value.dtype)
        return None

    def _of_one(self, number: int, uniform: bool) -> str:
        """A reduction without inner axes."""
        value = self.k.values[number]
        assert not self.k.inner, f"v{number} is read before its loop"
        x = self.get(value.args[-1], vector=not uniform)
        if value.attr != "sum" or not value.dtype.is_floating_point:
            return x
        self.f.width = 1 if uniform else self.w
        return scalar.emit(self.f, "add", value.dtype, [value.dtype] * 2, [self.f.constant(0.0, value.dtype), x])

    # ------------------------------------------------------------------------------------------------ scratch memory

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
                if self.level[number] < level and self._kept_gladly(number, elements):
                    if number not in self.scratch:
                        self.scratch[number] = self.scratch_bytes
                        used = self.scratch_bytes + (elements + self.w) * BYTES[value.dtype]
                        self.scratch_bytes = (used + 63) // 64 * 64
                    continue
                pending.extend(self._operands(number))

    def _kept_gladly(self, number: int, elements: Size) -> bool:
        """Whether a row of this value lies in scratch memory or may: it is dear, and the row fits a cache."""
        dtype = self.k.values[number].dtype
        if number in self.scratch or self.is_uniform(number) or dtype not in BYTES or self._cost(number) < 6:
            return number in self.scratch
        used = self.scratch_bytes + elements * BYTES[dtype]
        return not isinstance(used, int) or used <= MOST_SCRATCH

    def _roots(self, level: int, stores: list[int]) -> list[int]:
        """What the loop of a level computes: reductions, stores, and values that later loops take from scratch."""
        roots = [n for n, v in enumerate(self.k.values) if v.op == "reduce" and self.level[n] == level + 1]
        roots += [s for s in stores if self.level[s] == level and self.varies[s] & self.inner]
        return roots + [n for n in self.scratch if self.level[n] == level]

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
            cost += 3 if op == "load" else DEAR.get(op, 1)
            pending.extend(self._operands(n))
        return cost

    def _is_kept(self, number: int) -> bool:
        """Whether an earlier loop than the one that is being written has stored it."""
        return number in self.scratch and self.level[number] < self.loop_level

    def _scratch_address(self, number: int) -> str:
        f, value = self.f, self.k.values[number]
        offset = self.scratch[number]
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
