"""Reductions among the threads of a block.

Enters: what each thread has folded so far. Leaves: the result, in every thread that belongs to it. Lanes of one warp
exchange registers (`shfl.sync.bfly`), warps of a block meet in shared memory; threads of neighbouring columns fold in
shared memory alone. The order of a sum depends on the shape alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import gpu_scalar
from .gpu_shape import LaunchShape
from .gpu_values import GLOBAL
from .ir import ELEMENT, IN_MEMORY, Function, literal

SHARED = "ptr addrspace(3)"
Folded = list[str]  # what a reduction carries: a value; for argmax and argmin also its position
_OPERATION = {"sum": "add", "prod": "mul", "any": "or", "all": "and", "max": "max", "min": "min"}
_OF_BOOL = {"max": "or", "min": "and"}


class Reducer:
    """Code that folds values of a kernel's reductions."""

    def __init__(self, kernel: Any, f: Function, shape: LaunchShape, name: str) -> None:
        self.k, self.f, self.shape, self.name = kernel, f, shape, name
        self._arrays = 0
        self.thread = self.lane = self.across = "0"  # as i32: of the block; among those of one result; of the results

    # ------------------------------------------------------------------------------------------------- folding

    def types(self, r: int) -> list[torch.dtype]:
        value = self.k.values[r]
        if value.attr in ("argmax", "argmin"):
            return [self.k.values[value.args[0]].dtype, torch.int64]
        return [value.dtype]

    def start(self, r: int) -> Folded:
        """Before the first element."""
        value = self.k.values[r]
        if value.attr in ("argmax", "argmin"):
            of = self.types(r)[0]
            return [_identity(value.attr[3:], of), literal(2**63 - 1, torch.int64)]
        return [_identity(value.attr, value.dtype)]

    def result(self, r: int, folded: Folded) -> str:
        return folded[-1]

    def joined(self, r: int, one: Folded, other: Folded) -> Folded:
        value = self.k.values[r]
        if value.attr in ("argmax", "argmin"):
            return self._better(r, one, other)
        op = _OPERATION[value.attr]
        op = _OF_BOOL.get(op, op) if value.dtype is torch.bool else op
        return [gpu_scalar.emit(self.f, op, value.dtype, [value.dtype] * 2, [one[0], other[0]])]

    def _better(self, r: int, one: Folded, other: Folded) -> Folded:
        """Of two (value, position): the better value, a NaN before all, then the smaller position."""
        f, dtype, attr = self.f, self.types(r)[0], self.k.values[r].attr
        kind = ELEMENT[dtype]
        pair = [other[0], one[0]]
        better = gpu_scalar.emit(f, "gt" if attr == "argmax" else "lt", torch.bool, [dtype] * 2, pair)
        same = gpu_scalar.emit(f, "eq", torch.bool, [dtype] * 2, pair)
        if dtype.is_floating_point:
            a, b = (f.emit(f"fcmp uno {kind} {x[0]}, {x[0]}") for x in (one, other))
            better = f.emit(f"or i1 {better}, {f.emit(f'and i1 {b}, ' + f.emit(f'xor i1 {a}, true'))}")
            same = f.emit(f"or i1 {same}, {f.emit(f'and i1 {a}, {b}')}")
        earlier = f.emit(f"icmp slt i64 {other[1]}, {one[1]}")
        take = f.emit(f"or i1 {better}, {f.emit(f'and i1 {same}, {earlier}')}")
        return [
            f.emit(f"select i1 {take}, {kind} {other[0]}, {kind} {one[0]}"),
            f.emit(f"select i1 {take}, i64 {other[1]}, i64 {one[1]}"),
        ]

    def masked(self, r: int, new: Folded, mask: str | None) -> Folded:
        """A thread that is outside changes nothing."""
        if mask is None:
            return new
        kinds = [ELEMENT[t] for t in self.types(r)]
        return [
            self.f.emit(f"select i1 {mask}, {kind} {x}, {kind} {none}")
            for kind, x, none in zip(kinds, new, self.start(r), strict=True)
        ]

    def tree(self, r: int, parts: Sequence[Folded]) -> Folded:
        """Neighbours first: the error grows with the logarithm of their number."""
        parts = list(parts)
        while len(parts) > 1:
            pairs = [self.joined(r, a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + parts[len(pairs) * 2 :]
        return parts[0]

    # ------------------------------------------------------------------------------------------ among threads

    def among_threads(self, folded: dict[int, list[Folded]]) -> dict[int, list[Folded]]:
        """By reduction: one part for each slot; all threads of the block come here."""
        if self.shape.kind == "columns":
            return self._among_columns(folded)
        made = {r: [self._in_warp(r, part, min(32, self.shape.lanes)) for part in parts] for r, parts in folded.items()}
        return made if self.shape.lanes <= 32 else self._among_warps(made)

    def _in_warp(self, r: int, part: Folded, lanes: int) -> Folded:
        step = lanes // 2
        while step:
            other = [self._exchanged(x, t, step) for x, t in zip(part, self.types(r), strict=True)]
            part = self.joined(r, part, other)
            step //= 2
        return part

    def _exchanged(self, x: str, dtype: torch.dtype, step: int) -> str:
        """The value of the lane whose number differs in one bit."""
        f, kind = self.f, ELEMENT[dtype]

        def move(word: str) -> str:
            return f.call(
                "llvm.nvvm.shfl.sync.bfly.i32", "i32", ("i32", "-1"), ("i32", word), ("i32", str(step)), ("i32", "31")
            )

        if kind == "float":
            return f.emit(f"bitcast i32 {move(f.emit(f'bitcast float {x} to i32'))} to float")
        if kind in ("i64", "double"):
            words = f.emit(f"bitcast {kind} {x} to <2 x i32>")
            low, high = (move(f.emit(f"extractelement <2 x i32> {words}, i32 {n}")) for n in (0, 1))
            pair = f.emit(f"insertelement <2 x i32> poison, i32 {low}, i32 0")
            return f.emit(f"bitcast <2 x i32> {f.emit(f'insertelement <2 x i32> {pair}, i32 {high}, i32 1')} to {kind}")
        if kind == "i32":
            return move(x)
        return f.emit(f"trunc i32 {move(f.emit(f'zext {kind} {x} to i32'))} to {kind}")

    # -- shared memory

    def array(self, dtype: torch.dtype, length: int) -> str:
        name = f"@{self.name}.shared{self._arrays}"
        self._arrays += 1
        kind = IN_MEMORY[dtype]
        self.f.declare(f"{name} = internal addrspace(3) global [{length} x {kind}] undef, align 16")
        return name

    def put(self, array: str, at: str, x: str, dtype: torch.dtype) -> None:
        kind = IN_MEMORY[dtype]
        address = self.f.emit(f"getelementptr {kind}, {SHARED} {array}, i32 {at}")
        if dtype is torch.bool:
            x = self.f.emit(f"zext i1 {x} to i8")
        self.f.do(f"store {kind} {x}, {SHARED} {address}")

    def take(self, array: str, at: str, dtype: torch.dtype) -> str:
        kind = IN_MEMORY[dtype]
        address = self.f.emit(f"getelementptr {kind}, {SHARED} {array}, i32 {at}")
        x = self.f.emit(f"load {kind}, {SHARED} {address}")
        return self.f.emit(f"icmp ne i8 {x}, 0") if dtype is torch.bool else x

    def barrier(self) -> None:
        self.f.declare("declare void @llvm.nvvm.barrier0()")  # the name that all LLVMs know
        self.f.do("call void @llvm.nvvm.barrier0()")

    def _only(self, condition: str, body: Any) -> None:
        f = self.f
        yes, on = f.fresh("only"), f.fresh("on")
        f.do(f"br i1 {condition}, label %{yes}, label %{on}")
        f.label(yes)
        body()
        f.do(f"br label %{on}")
        f.label(on)

    def _among_warps(self, folded: dict[int, list[Folded]]) -> dict[int, list[Folded]]:
        f, warps = self.f, self.shape.lanes // 32
        arrays = {r: [[self.array(t, warps) for t in self.types(r)] for _ in parts] for r, parts in folded.items()}
        warp = f.emit(f"lshr i32 {self.thread}, 5")
        first = f.emit(f"icmp eq i32 {f.emit(f'and i32 {self.thread}, 31')}, 0")

        def put() -> None:
            for r, parts in folded.items():
                for part, places in zip(parts, arrays[r], strict=True):
                    for x, array, t in zip(part, places, self.types(r), strict=True):
                        self.put(array, warp, x, t)

        self._only(first, put)
        self.barrier()
        return {r: [self._over_warps(r, places, warps) for places in arrays[r]] for r in folded}

    def _over_warps(self, r: int, places: list[str], warps: int) -> Folded:
        f, types = self.f, self.types(r)
        if warps <= 8:
            return self.tree(
                r,
                [[self.take(a, str(w), t) for a, t in zip(places, types, strict=True)] for w in range(warps)],
            )
        lane = f.emit(f"and i32 {self.thread}, 31")
        inside = f.emit(f"icmp ult i32 {lane}, {warps}")
        at = f.emit(f"select i1 {inside}, i32 {lane}, i32 0")
        part = self.masked(r, [self.take(a, at, t) for a, t in zip(places, types, strict=True)], inside)
        return self._in_warp(r, part, 32)

    def _among_columns(self, folded: dict[int, list[Folded]]) -> dict[int, list[Folded]]:
        """Rows of threads lie behind each other in shared memory; halves are folded until one is left."""
        f, lanes, across = self.f, self.shape.lanes, self.shape.across
        if lanes == 1:
            return folded
        slots = [(r, n) for r, parts in folded.items() for n in range(len(parts))]
        arrays = {(r, n): [self.array(t, lanes * across) for t in self.types(r)] for r, n in slots}

        def put(part: Folded, key: tuple[int, int]) -> None:
            for x, array, t in zip(part, arrays[key], self.types(key[0]), strict=True):
                self.put(array, self.thread, x, t)

        for r, n in slots:
            put(folded[r][n], (r, n))
        self.barrier()
        step = lanes // 2
        while step:
            other = f.emit(f"add i32 {self.thread}, {step * across}")

            def fold(other: str = other) -> None:
                for r, n in slots:
                    types = self.types(r)
                    one, two = (
                        [self.take(a, at, t) for a, t in zip(arrays[r, n], types, strict=True)]
                        for at in (self.thread, other)
                    )
                    put(self.joined(r, one, two), (r, n))

            self._only(f.emit(f"icmp ult i32 {self.lane}, {step}"), fold)
            self.barrier()
            step //= 2
        made: dict[int, list[Folded]] = {r: [] for r in folded}
        for r, n in slots:
            made[r].append([self.take(a, self.across, t) for a, t in zip(arrays[r, n], self.types(r), strict=True)])
        return made

    # ----------------------------------------------------------------------------------- partial results in memory

    def store_partial(self, x: str, address: str, dtype: torch.dtype) -> None:
        kind = IN_MEMORY[dtype]
        if dtype is torch.bool:
            x = self.f.emit(f"zext i1 {x} to i8")
        self.f.do(f"store {kind} {x}, {GLOBAL} {address}, align {dtype.itemsize}")

    def load_partial(self, address: str, dtype: torch.dtype) -> str:
        x = self.f.emit(f"load {IN_MEMORY[dtype]}, {GLOBAL} {address}, align {dtype.itemsize}")
        return self.f.emit(f"icmp ne i8 {x}, 0") if dtype is torch.bool else x


def _identity(kind: str, dtype: torch.dtype) -> str:
    number: Any
    if kind in ("max", "min"):
        if dtype.is_floating_point:
            number = float("-inf") if kind == "max" else float("inf")
        elif dtype is torch.bool:
            number = kind == "min"
        else:
            number = torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max
            number = number - 256 if dtype is torch.uint8 and number > 127 else number
    else:
        number = {"sum": 0, "prod": 1, "any": False, "all": True}[kind]
    return literal(number, dtype)
