"""Reductions in vectors: accumulators, how elements join them, how lanes and blocks join each other.

What holds: the order in which numbers are added depends on sizes and on the vectors' width alone; NaN wins maxima and
minima; of equal values the smallest position wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import scalar
from .cpu_values import CpuValues
from .ir import ELEMENT

CASCADE = 64  # blocks that are added up before they join the total
BLOCK = 64  # vector steps that are added up before they join the total: long sums stay exact
Carried = Sequence[tuple[str, str]]  # types and values
Run = Callable[[str, str, Carried], list[str]]


class Reductions(CpuValues):
    columns = False  # whether lanes are neighbouring results, which never join

    def start(self, r: int) -> list[tuple[str, str]]:
        """What a reduction carries: types and values before the first element."""
        value = self.k.values[r]
        vector = self.w > 1
        self.f.width = self.w
        if value.attr in ("argmax", "argmin"):
            of = self.k.values[value.args[0]].dtype
            position = self.f.vector("i64")
            return [
                (self.f.vector(ELEMENT[of]), self._identity(value.attr[3:], of)),
                (position, self.f.constant(2**63 - 1, torch.int64)),
            ]
        kind = ELEMENT[value.dtype]
        return [(self.f.vector(kind) if vector else kind, self._identity(value.attr, value.dtype))]

    def _identity(self, kind: str, dtype: torch.dtype) -> str:
        if kind in ("max", "min"):
            if dtype.is_floating_point:
                number: Any = float("-inf") if kind == "max" else float("inf")
            elif dtype is torch.bool:
                number = kind == "min"
            else:
                number = torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max
                number = number - 256 if dtype is torch.uint8 and number > 127 else number
        else:
            number = {"sum": 0, "prod": 1, "any": False, "all": True}[kind]
        return self.f.constant(number, dtype)

    def fold(self, reduces: list[int], accumulated: list[str]) -> list[str]:
        """One more element for each accumulator; lanes behind the end change nothing."""
        results: list[str] = []
        for r in reduces:
            value = self.k.values[r]
            new = [self.get(a, vector=True) for a in value.args]
            self.f.width = self.w
            if self.mask is not None and not self.columns:
                kinds = [k for k, _ in self.start(r)]
                neutral = [v for _, v in self.start(r)]
                bits = self.f.vector("i1")
                new = [
                    self.f.emit(f"select {bits} {self.mask}, {kind} {x}, {kind} {none}")
                    for kind, x, none in zip(kinds, new, neutral, strict=True)
                ]
            taken = len(new)
            results += self.combined([r], accumulated[:taken], new)
            accumulated = accumulated[taken:]
        return results

    def combined(self, reduces: list[int], one: Sequence[str], other: Sequence[str]) -> list[str]:
        results: list[str] = []
        at = 0
        self.f.width = self.w
        for r in reduces:
            value = self.k.values[r]
            if value.attr in ("argmax", "argmin"):
                results += self._better(value, one[at : at + 2], other[at : at + 2])
                at += 2
                continue
            op = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(value.attr, value.attr)
            op = (
                "or"
                if op == "max" and value.dtype is torch.bool
                else "and"
                if op == "min" and value.dtype is torch.bool
                else op
            )
            results.append(scalar.emit(self.f, op, value.dtype, [value.dtype] * 2, [one[at], other[at]]))
            at += 1
        return results

    def _better(self, value: Any, one: Sequence[str], other: Sequence[str]) -> list[str]:
        """Of two (value, position): the better value, a NaN before all, then the smaller position."""
        f, dtype = self.f, self.k.values[value.args[0]].dtype
        kind, bits, i64 = f.vector(ELEMENT[dtype]), f.vector("i1"), f.vector("i64")
        better = scalar.emit(f, "gt" if value.attr == "argmax" else "lt", torch.bool, [dtype] * 2, [other[0], one[0]])
        same = scalar.emit(f, "eq", torch.bool, [dtype] * 2, [other[0], one[0]])
        if dtype.is_floating_point:
            a, b = (f.emit(f"fcmp uno {kind} {x[0]}, {x[0]}") for x in (one, other))
            only = f.emit(f"and {bits} {b}, {f.emit(f'xor {bits} {a}, {f.constant(True, torch.bool)}')}")
            better = f.emit(f"or {bits} {better}, {only}")
            same = f.emit(f"or {bits} {same}, {f.emit(f'and {bits} {a}, {b}')}")
        earlier = f.emit(f"icmp slt {i64} {other[1]}, {one[1]}")
        take = f.emit(f"or {bits} {better}, {f.emit(f'and {bits} {same}, {earlier}')}")
        return [
            f.emit(f"select {bits} {take}, {kind} {other[0]}, {kind} {one[0]}"),
            f.emit(f"select {bits} {take}, {i64} {other[1]}, {i64} {one[1]}"),
        ]

    def across_lanes(self, r: int, accumulated: Sequence[str]) -> str:
        """The lanes of an accumulator become one scalar, halves with halves."""
        f, value = self.f, self.k.values[r]
        kinds = (
            [ELEMENT[self.k.values[value.args[0]].dtype], "i64"] if len(accumulated) == 2 else [ELEMENT[value.dtype]]
        )
        now, width, whole = list(accumulated), self.w, self.w
        while width > 1:
            width //= 2
            low = ", ".join(f"i32 {n}" for n in range(width))
            high = ", ".join(f"i32 {n + width}" for n in range(width))
            halves = [
                [
                    f.emit(
                        f"shufflevector <{2 * width} x {kind}> {x}, <{2 * width} x {kind}> poison, "
                        f"<{width} x i32> <{part}>"
                    )
                    for kind, x in zip(kinds, now, strict=True)
                ]
                for part in (low, high)
            ]
            if width == 1:
                halves = [
                    [f.emit(f"extractelement <1 x {kind}> {x}, i64 0") for kind, x in zip(kinds, half, strict=True)]
                    for half in halves
                ]
            self.w = width
            now = self.combined([r], halves[0], halves[1])
        self.w = f.width = whole
        return now[-1]

    # ----------------------------------------------------------------------------------------------------- long sums

    def in_blocks(
        self,
        stop: str,
        block: int,
        carried: Sequence[tuple[str, str]],
        accumulated: list[str],
        reduces: list[int],
        run: Any,
    ) -> list[str]:
        """Sums over blocks of a fixed length, and those over blocks of blocks, added up: the error hardly grows with
        the length."""

        def summed(lo: str, hi: str, level: int, begin: Sequence[tuple[str, str]]) -> list[str]:
            if level == 0:
                return run(lo, hi, begin)  # type: ignore[no-any-return]
            length = block * CASCADE ** (level - 1)

            def body(start: str, totals: list[str]) -> list[str]:
                end = self.f.smaller(self.f.arithmetic("add", start, str(length)), hi)
                return self.combined(reduces, totals, summed(start, end, level - 1, carried))

            return self.f.loop(lo, hi, length, body, begin)[1]

        level = 2
        if stop.isdigit():
            level = next((n for n in range(3) if int(stop) <= block * CASCADE**n), 3)
        return summed("0", stop, level, [(kind, value) for (kind, _), value in zip(carried, accumulated, strict=True)])

    def _tree(self, reduces: list[int], made: list[str], each: int) -> list[str]:
        """Copies of accumulators become one."""
        while each and len(made) > each:
            half = len(made) // each // 2 * each
            first, second = made[:half], made[half : 2 * half]
            joined: list[str] = []
            for u in range(0, half, each):
                joined += self.combined(reduces, first[u : u + each], second[u : u + each])
            made = joined + made[2 * half :]
        return made if each else []

    def _tail(self, i: str, stop: str) -> str | None:
        """The lanes that are not behind the end."""
        f = self.f
        if self.w == 1:
            return None
        left = f.arithmetic("sub", stop, i)
        kind = f"<{self.w} x i64>"
        lanes = ", ".join(f"i64 {n}" for n in range(self.w))
        return f.emit(f"icmp slt {kind} <{lanes}>, {f.splat(left, 'i64')}")
