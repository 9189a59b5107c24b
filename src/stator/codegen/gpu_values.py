"""The values of a kernel, as code of one GPU thread.

A thread computes some neighbouring points of one axis, the *packed* one, at a time (slots): their values are scalars,
their memory is read and written in vectors where it is dense and aligned. A `GpuScope` says where on each axis the
thread stands, and what was made there already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import gpu_scalar, scalar
from .gpu_scalar import GpuFunction
from .ir import IN_MEMORY, literal

Size = Any
SlotValues = tuple[str, ...]  # one value for all slots, or one for each
GLOBAL = "ptr addrspace(1)"


@dataclass
class GpuScope:
    """A place in the loops. `mask`: whether the thread is inside (None: it is); `may_store`: likewise, for stores."""

    axis: dict[int, str] = field(default_factory=dict)
    mask: str | None = None
    may_store: str | None = None
    parent: GpuScope | None = None
    made: dict[int, SlotValues] = field(default_factory=dict)

    def find(self, number: int) -> SlotValues | None:
        scope: GpuScope | None = self
        while scope is not None:
            if number in scope.made:
                return scope.made[number]
            scope = scope.parent
        return None


def operands(value: Any) -> Iterable[int]:
    yield from value.args
    if (index := index_of(value)) is not None:
        yield from (v for v, _ in index.gathered)


def index_of(value: Any) -> Any:
    if value.op in ("load", "store"):
        return value.attr[1]
    return value.attr if value.op == "index" else None


def rounded_soon(kernel: Any) -> set[int]:
    """Values that nobody sees but rounded to bfloat16 or float16, after operations that keep their relative error."""
    exact: set[int] = set()
    for number in reversed(range(len(kernel.values))):
        value = kernel.values[number]
        if value.op in ("round_bf16", "round_f16"):
            continue
        if value.op == "store" and kernel.buffers[value.attr[0]].dtype in (torch.bfloat16, torch.float16):
            continue
        if value.op in ("mul", "div", "neg", "abs") and number not in exact:
            continue
        exact.update(operands(value))
    return set(range(len(kernel.values))) - exact


class GpuValues:
    """Writes values, with `slots` of the packed axis to a thread; `vectors` are the accesses that are aligned."""

    def __init__(
        self, kernel: Any, f: GpuFunction, packed: int | None, slots: int, vectors: frozenset[int], sizes: SizeTable
    ) -> None:
        self.k, self.f = kernel, f
        self.packed, self.slots, self.vectors = packed, slots, vectors
        self.varies = kernel.varies()
        self.level = kernel.levels()
        self.sizes = sizes
        self.rough = rounded_soon(kernel)

    # ------------------------------------------------------------------------------------------------ integers

    def size(self, size: Size) -> str:
        return str(size) if isinstance(size, int) else self._as_index(self.sizes.name(size))

    def _as_index(self, name: str) -> str:
        """A size that the host gave, in the type of positions."""
        return name if self.f.index_type == "i64" else self.f.emit(f"trunc i64 {name} to i32")

    def integer(self, op: str, a: str, b: str) -> str:
        return self.f.arithmetic(op, a, b)

    def as_i64(self, x: str) -> str:
        if self.f.index_type == "i64" or x.lstrip("-").isdigit():
            return x
        return self.f.emit(f"sext i32 {x} to i64")

    def decode(self, p: str, axes: Sequence[int]) -> dict[int, str]:
        """The position on each axis, from a number that runs through all of them."""
        axis: dict[int, str] = {}
        for a in reversed(axes[1:]):
            extent = self.size(self.k.extents[a])
            axis[a] = self.integer("urem", p, extent)
            p = self.integer("udiv", p, extent)
        if axes:
            axis[axes[0]] = p
        return axis

    def both(self, a: str | None, b: str | None) -> str | None:
        if a is None or b is None:
            return a or b
        return self.f.emit(f"and i1 {a}, {b}")

    # -------------------------------------------------------------------------------------------------- values

    def in_slots(self, number: int) -> bool:
        return self.packed is not None and self.slots > 1 and self.packed in self.varies[number]

    def get(self, number: int, scope: GpuScope) -> SlotValues:
        made = scope.find(number)
        if made is None:
            made = scope.made[number] = self._make(number, scope)
        return made

    def one(self, number: int, scope: GpuScope, slot: int) -> str:
        made = self.get(number, scope)
        return made[slot if len(made) > 1 else 0]

    def _make(self, number: int, scope: GpuScope) -> SlotValues:
        value = self.k.values[number]
        if value.op == "const":
            return (literal(value.attr, value.dtype),)
        if value.op == "load":
            return self._load(number, scope)
        count = self.slots if self.in_slots(number) else 1
        if value.op == "index":
            return tuple([self.place(value.attr, scope, slot) for slot in range(count)])
        if value.op == "reduce" and not self.k.inner:
            return self._of_one(number, scope)
        assert value.op != "reduce", f"v{number} is read before its loop"
        kinds = [self.k.values[a].dtype for a in value.args]
        made = []
        for slot in range(count):
            args = [self.one(a, scope, slot) for a in value.args]
            made.append(gpu_scalar.emit(self.f, value.op, value.dtype, kinds, args, rough=number in self.rough))
        return tuple(made)

    def _of_one(self, number: int, scope: GpuScope) -> SlotValues:
        """A reduction without inner axes."""
        value, made = self.k.values[number], self.get(self.k.values[number].args[-1], scope)
        if value.attr != "sum" or not value.dtype.is_floating_point:
            return made
        zero, kinds = literal(0.0, value.dtype), [value.dtype] * 2
        return tuple([gpu_scalar.emit(self.f, "add", value.dtype, kinds, [zero, x]) for x in made])

    def prepare(self, roots: Iterable[int], scope: GpuScope, axes: set[int]) -> None:
        """What does not vary over these axes is computed here, before the loop over them."""
        seen: set[int] = set()
        found: list[int] = []
        pending = list(roots)
        while pending:
            n = pending.pop()
            if n in seen or scope.find(n) is not None:
                continue
            seen.add(n)
            op = self.k.values[n].op
            if not self.varies[n] & axes and op not in ("store", "check", "reduce"):
                if op != "const":
                    found.append(n)
                continue
            if op != "reduce" or n in roots:
                pending.extend(operands(self.k.values[n]))
        for n in sorted(found):
            self.get(n, scope)

    # ------------------------------------------------------------------------------------------------- indices

    def place(self, index: Any, scope: GpuScope, slot: int) -> str:
        """An index at a slot, as i64."""
        total = self.size(index.offset)
        for axis, c in index.terms:
            at = scope.axis[axis]
            if axis == self.packed:
                at = self.integer("add", at, str(slot))
            total = self.integer("add", total, self.integer("mul", at, self.size(c)))
        total = self.as_i64(total)
        for v, stride in index.gathered:
            by = str(stride) if isinstance(stride, int) else self.sizes.name(stride)
            step = self.one(v, scope, slot)
            step = step if by == "1" else self.f.emit(f"mul i64 {step}, {by}")
            total = step if total == "0" else self.f.emit(f"add i64 {total}, {step}")
        return total

    def address(self, number: int, scope: GpuScope, slot: int) -> str:
        buffer, index = self.k.values[number].attr
        element = IN_MEMORY[self.k.buffers[buffer].dtype]
        flat = self.place(index, scope, slot)
        name = f"%buffer{buffer}"
        return name if flat == "0" else self.f.emit(f"getelementptr {element}, {GLOBAL} {name}, i64 {flat}")

    # -------------------------------------------------------------------------------------------------- memory

    def _load(self, number: int, scope: GpuScope) -> SlotValues:
        value = self.k.values[number]
        dtype = self.k.buffers[value.attr[0]].dtype
        count = self.slots if self.in_slots(number) else 1
        condition = self.get(value.args[0], scope) if value.args else (None,)
        # only what varies with the masked axes may lie outside
        mask = scope.mask
        if len(condition) == 1:
            width = self._width(number, count)
            raw = self._guarded(
                self.both(mask, condition[0]),
                [self.address(number, scope, slot) for slot in range(0, count, width)],
                dtype,
                width,
            )
        else:
            raw = []
            for slot in range(count):
                address = self.address(number, scope, slot)
                raw += self._guarded(self.both(mask, condition[slot]), [address], dtype, 1)
        return tuple([self.from_memory(x, dtype) for x in raw])

    def _width(self, number: int, count: int) -> int:
        """Elements that one instruction moves: at most 16 bytes."""
        dtype = self.k.buffers[self.k.values[number].attr[0]].dtype
        return min(count, 16 // dtype.itemsize) if number in self.vectors else 1

    def _guarded(self, condition: str | None, addresses: list[str], dtype: torch.dtype, width: int) -> list[str]:
        """Loads, done only where the condition holds; zeros elsewhere."""
        f, element = self.f, IN_MEMORY[dtype]
        kind = element if width == 1 else f"<{width} x {element}>"
        align = dtype.itemsize * width
        before, yes, on = f.block, f.fresh("yes"), f.fresh("on")
        if condition is not None:
            f.do(f"br i1 {condition}, label %{yes}, label %{on}")
            f.label(yes)
        loaded = [f.emit(f"load {kind}, {GLOBAL} {a}, align {align}") for a in addresses]
        if condition is not None:
            f.do(f"br label %{on}")
            f.label(on)
            loaded = [f.emit(f"phi {kind} [{x}, %{yes}], [zeroinitializer, %{before}]") for x in loaded]
        if width == 1:
            return loaded
        return [f.emit(f"extractelement {kind} {x}, i32 {n}") for x in loaded for n in range(width)]

    def from_memory(self, x: str, dtype: torch.dtype) -> str:
        if dtype is torch.bool:
            return self.f.emit(f"icmp ne i8 {x}, 0")
        if dtype is torch.bfloat16:
            return scalar.from_bf16(self.f, x)
        return self.f.emit(f"fpext half {x} to float") if dtype is torch.float16 else x

    def to_memory(self, x: str, dtype: torch.dtype) -> str:
        if dtype is torch.bool:
            return self.f.emit(f"zext i1 {x} to i8")
        if dtype is torch.bfloat16:
            return gpu_scalar.to_bf16(self.f, x)
        return self.f.emit(f"fptrunc float {x} to half") if dtype is torch.float16 else x

    # --------------------------------------------------------------------------------------------------- roots

    def compute(self, roots: Iterable[int], scope: GpuScope) -> None:
        """What the roots store or check; memory is not written yet."""
        for r in roots:
            for n in operands(self.k.values[r]):
                self.get(n, scope)

    def finish(self, roots: Iterable[int], scope: GpuScope) -> None:
        """Stores and checks. All of them in one branch: most threads are inside."""
        roots = list(roots)
        if not roots:
            return
        self.compute(roots, scope)
        f = self.f
        on = f.fresh("on")
        if scope.may_store is not None:
            yes = f.fresh("store")
            f.do(f"br i1 {scope.may_store}, label %{yes}, label %{on}")
            f.label(yes)
        for r in roots:
            if self.k.values[r].op == "check":
                self._check(r, scope)
            else:
                self._store(r, scope)
        if scope.may_store is not None:
            f.do(f"br label %{on}")
            f.label(on)

    def _store(self, number: int, scope: GpuScope) -> None:
        f, value = self.f, self.k.values[number]
        dtype = self.k.buffers[value.attr[0]].dtype
        element = IN_MEMORY[dtype]
        varying = self.in_slots(number) or (self.slots > 1 and self.packed in set(value.attr[1].axes))
        count = self.slots if varying else 1
        width = self._width(number, count)
        made = [self.to_memory(self.one(value.args[0], scope, slot), dtype) for slot in range(count)]
        for slot in range(0, count, width):
            address = self.address(number, scope, slot)
            if width == 1:
                f.do(f"store {element} {made[slot]}, {GLOBAL} {address}, align {dtype.itemsize}")
                continue
            whole = "poison"
            for n in range(width):
                whole = f.emit(f"insertelement <{width} x {element}> {whole}, {element} {made[slot + n]}, i32 {n}")
            f.do(f"store <{width} x {element}> {whole}, {GLOBAL} {address}, align {dtype.itemsize * width}")

    def _check(self, number: int, scope: GpuScope) -> None:
        """What does not hold is noted in the status word; without one the kernel stops, as eager's assertions do."""
        f = self.f
        holds = self.get(self.k.values[number].args[0], scope)
        every = holds[0]
        for other in holds[1:]:
            every = f.emit(f"and i1 {every}, {other}")
        note, on = f.fresh("note"), f.fresh("on")
        f.do(f"br i1 {every}, label %{on}, label %{note}")
        f.label(note)
        stop, word = f.fresh("stop"), f.fresh("word")
        f.do(f"br i1 {f.emit(f'icmp eq {GLOBAL} %status, null')}, label %{stop}, label %{word}")
        f.label(stop)
        f.declare("declare void @llvm.trap()")
        f.do("call void @llvm.trap()")
        f.do("unreachable")
        f.label(word)
        f.do(f"store i64 1, {GLOBAL} %status, align 8")
        f.do(f"br label %{on}")
        f.label(on)


class SizeTable:
    """The sizes that the host passes, in order; shared by all kernels that are written for one loop program."""

    def __init__(self) -> None:
        self.sizes: list[Size] = []
        self._names: dict[str, str] = {}

    def name(self, size: Size) -> str:
        key = str(size)
        if key not in self._names:
            self._names[key] = f"%size{len(self.sizes)}"
            self.sizes.append(size)
        return self._names[key]
