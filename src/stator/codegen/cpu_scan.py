"""Scans: inner points in order, one after the other; neighbouring scans side by side in the lanes of a vector.

Enters: a kernel with scans. Leaves: IR for one unit: a point of the outer axes, or as many as a vector has lanes. What
holds: the order in which numbers are folded is that of the axis, as in eager.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import scalar
from .cpu_reduce import Reductions
from .ir import ELEMENT

_FIRST = {"sum": 0, "prod": 1, "logaddexp": float("-inf")}


class Scans(Reductions):
    def scan_unit(self, number: str, stores: list[int]) -> None:
        """All inner points. With lanes: `number` counts vectors of the vector axis."""
        f, k = self.f, self.k
        former = self.mask
        if self.vector_axis is not None:
            extent = self.size(k.extents[self.vector_axis])
            self.lane = f.arithmetic("mul", number, str(self.w))
            even = extent.isdigit() and int(extent) % self.w == 0
            self.mask = None if even else self._tail(self.lane, extent)
        self.env.append({})
        self.body([s for s in stores if not self.varies[s] & self.inner])
        inside = [s for s in stores if self.varies[s] & self.inner]

        def point(folded: Sequence[str]) -> list[str]:
            self.env.append({})
            new = []
            for scan, so_far in zip(k.scans, folded, strict=True):
                vector = not self.is_uniform(scan)
                x = self.get(k.values[scan].args[0], vector=vector)
                f.width = self.w if vector else 1
                self.env[-1][scan] = self._next(k.values[scan].attr, k.values[scan].dtype, so_far, x)
                new.append(self.env[-1][scan])
            self.body(inside)
            self.env.pop()
            return new

        def nest(axes: Sequence[int], folded: Sequence[str]) -> list[str]:
            if not axes:
                return point(folded)

            def body(i: str, now: list[str]) -> list[str]:
                self.axis[axes[0]] = i
                return nest(axes[1:], now)

            carried = [(kind, value) for (kind, _), value in zip(start, folded, strict=True)]
            return f.loop("0", self.size(k.extents[axes[0]]), 1, body, carried)[1]

        start = [self._start(scan) for scan in k.scans]
        nest(k.inner, [value for _, value in start])
        self.env.pop()
        self.mask = former

    def _start(self, scan: int) -> tuple[str, str]:
        value = self.k.values[scan]
        self.f.width = 1 if self.is_uniform(scan) else self.w
        return self.f.vector(ELEMENT[value.dtype]), self.f.constant(_FIRST[value.attr], value.dtype)

    def _next(self, kind: str, dtype: torch.dtype, so_far: str, x: str) -> str:
        def do(op: str, *args: str, gives: torch.dtype = dtype) -> str:
            return scalar.emit(self.f, op, gives, [dtype] * len(args), args)

        if kind in ("sum", "prod"):
            return do("add" if kind == "sum" else "mul", so_far, x)
        low, high = do("min", so_far, x), do("max", so_far, x)
        far = do("add", do("log1p", do("exp", do("sub", low, high))), high)
        finite = do("lt", do("abs", low), self.f.constant(float("inf"), dtype), gives=torch.bool)
        bits = self.f.vector("i1")
        differ = self.f.emit(f"or {bits} {finite}, {do('ne', low, high, gives=torch.bool)}")
        of = self.f.vector(ELEMENT[dtype])
        return self.f.emit(f"select {bits} {differ}, {of} {far}, {of} {x}")
