"""What a kernel's code reads and writes: sizes, indices, loads, stores, checks.

Enters: values of a loop program that are accesses. Leaves: IR, at the position that the loops have set (`axis`, `lane`,
`mask`). What holds: lanes that a mask or a condition excludes touch no memory. Masked accesses are spelt as before
LLVM 22 (the alignment is an operand): later versions take that too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from . import scalar
from .ir import IN_MEMORY, Function, Module

Size = Any
LONGEST_STEP = 8  # between elements that are taken out of whole vectors


class Get(Protocol):
    def __call__(self, number: int, vector: bool) -> str: ...


class KernelMemory:
    """A kernel that is being written: where its loops stand, and its accesses."""

    get: Get  # the name of a value, for indices that are read: classes that compute values have it

    def __init__(self, kernel: Any, name: str, parameters: str, width: int, vector_axis: int | None) -> None:
        self.k, self.name = kernel, name
        self.module = Module()
        self.varies = kernel.varies()
        self.level = kernel.levels()
        self.inner = set(kernel.inner)
        self.sizes: list[Size] = []
        self.size_names: dict[Any, str] = {}
        self.vector_axis = vector_axis
        self.w = 1 if vector_axis is None else width
        self.f = Function(self.module, name, parameters, self.w, f'"prefer-vector-width"="{32 * self.w}"')
        self.f.opaque_counters = True
        self.axis: dict[int, str] = {}  # the scalar part of each axis' position
        self.env: list[dict[int, str]] = [{}]
        self.lane: str = "0"  # position on the vector axis
        self.mask: str | None = None
        # What a `where` chooses, or an operand of that, is loaded by itself: LLVM would make the load part of an
        # instruction with a mask, which on some machines waits for all stores before it. It looks for none behind a
        # `freeze`.
        chosen = [a for value in kernel.values if value.op == "where" for a in value.args[1:]]
        self._chosen = {*chosen, *[a for number in chosen for a in kernel.values[number].args]}
        self.known: dict[int, bool] = {}  # conditions, in the stretch that is being written
        self.tile_offsets: dict[int, int] = {}  # loads that are turned -> where their tiles lie in scratch memory
        self.tile_row: str | None = None  # the row of the tiles that is computed; None: outside of tiles

    def find(self, number: int) -> str | None:
        return next((level[number] for level in reversed(self.env) if number in level), None)

    def is_uniform(self, number: int) -> bool:
        return self.vector_axis not in self.varies[number]

    def size(self, size: Size) -> str:
        if isinstance(size, int) or size.is_Integer:  # 0 of an expression that has come to nothing
            return str(size)
        key = str(size)
        if key not in self.size_names:
            self.size_names[key] = f"%size{len(self.sizes)}"
            self.sizes.append(size)
        return self.size_names[key]

    # ------------------------------------------------------------------------------------------------------- indices

    def _flat(self, index: Any, *, with_vector_axis: bool) -> str:
        """The part of an index that is the same in all lanes."""
        f = self.f
        total = self.size(index.offset)
        for axis, c in index.terms:
            if axis == self.vector_axis:
                if with_vector_axis:
                    total = f.arithmetic("add", total, f.arithmetic("mul", self.lane, self.size(c)))
                continue
            total = f.arithmetic("add", total, f.arithmetic("mul", self.axis[axis], self.size(c)))
        for v, stride in index.gathered:
            if self.w == 1 or self.is_uniform(v):
                total = f.arithmetic("add", total, f.arithmetic("mul", self.get(v, vector=False), self.size(stride)))
        return total

    def _index(self, index: Any, uniform: bool) -> str:
        f = self.f
        if uniform:
            return self._flat(index, with_vector_axis=self.w == 1)
        base = f.splat(self._flat(index, with_vector_axis=False), "i64")
        f.width = self.w
        assert self.vector_axis is not None
        return f.emit(f"add <{self.w} x i64> {base}, {self._steps(index.coefficient(self.vector_axis))}")

    def _steps(self, coefficient: Size) -> str:
        """The positions of the lanes, times a coefficient."""
        f = self.f
        kind = f"<{self.w} x i64>"
        lanes = ", ".join(f"i64 {n}" for n in range(self.w))
        here = f.emit(f"add {kind} {f.splat(self.lane, 'i64')}, <{lanes}>")
        return here if coefficient == 1 else f.emit(f"mul {kind} {here}, {f.splat(self.size(coefficient), 'i64')}")

    # ------------------------------------------------------------------------------------------------------ accesses

    def _base(self, number: int) -> str:
        """The address of an access, without what varies over the lanes."""
        key = -(1 << 20) - number
        made = self.find(key)
        if made is None:
            buffer, index = self.k.values[number].attr
            element = IN_MEMORY[self.k.buffers[buffer].dtype]
            flat = self._flat(index, with_vector_axis=False)
            made = (
                f"%buffer{buffer}"
                if flat == "0"
                else self.f.emit(f"getelementptr {element}, ptr %buffer{buffer}, i64 {flat}")
            )
            self.env[-1][key] = made
        return made

    def _mask_with(self, condition: str | None) -> str | None:
        if condition is None or self.mask is None:
            return condition or self.mask
        return self.f.emit(f"and <{self.w} x i1> {self.mask}, {condition}")

    def _load(self, number: int) -> str:
        f, value = self.f, self.k.values[number]
        buffer, index = value.attr
        dtype = self.k.buffers[buffer].dtype
        element = IN_MEMORY[dtype]
        if self.w == 1 or self.is_uniform(number):
            address = f.emit(
                f"getelementptr {element}, ptr %buffer{buffer}, i64 {self._flat(index, with_vector_axis=self.w == 1)}"
            )
            if value.args:
                condition = self.get(value.args[0], vector=False)
                f.declare("@stator.zero = internal constant i64 0")
                address = f.emit(f"select i1 {condition}, ptr {address}, ptr @stator.zero")
            f.width = 1
            return self._from_memory(f.emit(f"load {element}, ptr {address}, align {alignment(dtype)}"), dtype)
        if self.tile_row is not None and number in self.tile_offsets:
            address = self._tile_address(number, self.tile_row)
            f.width = self.w
            return self._from_memory(
                f.emit(f"load <{self.w} x {element}>, ptr {address}, align {alignment(dtype)}"), dtype
            )
        given = value.args if not value.args or value.args[0] not in self.known else ()
        mask = self._mask_with(self.get(given[0], vector=True) if given else None)
        made = self._vector_load(number, element, dtype, index, mask)
        f.width = self.w
        return self._from_memory(made, dtype)

    def _vector_load(self, number: int, element: str, dtype: torch.dtype, index: Any, mask: str | None) -> str:
        f, w = self.f, self.w
        kind, suffix = f"<{w} x {element}>", _suffix(element, w)
        bits = f"<{w} x i1>"
        assert self.vector_axis is not None
        dense = index.coefficient(self.vector_axis) == 1 and all(self.is_uniform(v) for v, _ in index.gathered)
        if dense:
            address = f.emit(f"getelementptr {element}, ptr {self._base(number)}, i64 {self.lane}")
            if mask is None:
                loaded = f.emit(f"load {kind}, ptr {address}, align {alignment(dtype)}")
                return f.emit(f"freeze {kind} {loaded}") if number in self._chosen else loaded
            f.declare(f"declare {kind} @llvm.masked.load.{suffix}.p0(ptr, i32, {bits}, {kind})")
            return f.emit(
                f"call {kind} @llvm.masked.load.{suffix}.p0(ptr {address}, i32 {alignment(dtype)}, {bits} {mask}, "
                f"{kind} zeroinitializer)"
            )
        step = index.coefficient(self.vector_axis)
        if mask is None and not index.gathered and isinstance(step, int) and 2 <= step <= LONGEST_STEP:
            return self._every(step, number, element, dtype)
        if mask is None and not index.gathered and step == -1:
            return self._backwards(number, element, dtype)
        addresses = self._addresses(number, element, index)
        every = "splat (i1 true)"
        f.declare(f"declare {kind} @llvm.masked.gather.{suffix}.v{w}p0(<{w} x ptr>, i32, {bits}, {kind})")
        return f.emit(
            f"call {kind} @llvm.masked.gather.{suffix}.v{w}p0(<{w} x ptr> {addresses}, i32 {alignment(dtype)}, "
            f"{bits} {mask or every}, {kind} zeroinitializer)"
        )

    def _every(self, step: int, number: int, element: str, dtype: torch.dtype) -> str:
        """Every so many elements, out of whole vectors from the first wanted element to the last, and not beyond:
        gathers are slow on many machines."""
        f, w = self.f, self.w
        kind = f"<{w} x {element}>"
        first = f.emit(
            f"getelementptr {element}, ptr {self._base(number)}, i64 {f.arithmetic('mul', self.lane, str(step))}"
        )
        behind = (w - 1) * step + 1
        starts = [*range(0, behind - w, w), behind - w]  # the last vector ends with the last element
        made, done = "poison", 0  # so many lanes
        for start in starts:
            address = f.emit(f"getelementptr {element}, ptr {first}, i64 {start}")
            loaded = f.emit(f"load {kind}, ptr {address}, align {alignment(dtype)}")
            there = [n for n in range(done, w) if start <= step * n < start + w]
            lanes = [*range(done), *[w + step * n - start for n in there]]
            done = len(lanes)
            made = f.emit(f"shufflevector {kind} {made}, {kind} {loaded}, <{w} x i32> {_lanes(lanes, w)}")
        return made

    def _backwards(self, number: int, element: str, dtype: torch.dtype) -> str:
        """A vector that lies in memory the other way round."""
        f, w = self.f, self.w
        kind = f"<{w} x {element}>"
        last = f.arithmetic("sub", str(1 - w), self.lane)
        address = f.emit(f"getelementptr {element}, ptr {self._base(number)}, i64 {last}")
        loaded = f.emit(f"load {kind}, ptr {address}, align {alignment(dtype)}")
        return f.emit(f"shufflevector {kind} {loaded}, {kind} poison, <{w} x i32> {_lanes(range(w - 1, -1, -1), w)}")

    def _tile_address(self, number: int, row: str) -> str:
        element = IN_MEMORY[self.k.buffers[self.k.values[number].attr[0]].dtype]
        base = self.f.emit(f"getelementptr i8, ptr %scratch, i64 {self.tile_offsets[number]}")
        return self.f.emit(f"getelementptr <{self.w} x {element}>, ptr {base}, i64 {row}")

    def _addresses(self, number: int, element: str, index: Any) -> str:
        f, w = self.f, self.w
        kind = f"<{w} x i64>"
        assert self.vector_axis is not None
        steps = "zeroinitializer"
        c = index.coefficient(self.vector_axis)
        if c != 0:
            steps = self._steps(c)
        for v, stride in index.gathered:
            if not self.is_uniform(v):
                scaled = self.get(v, vector=True)
                if stride != 1:
                    scaled = f.emit(f"mul {kind} {scaled}, {f.splat(self.size(stride), 'i64')}")
                steps = f.emit(f"add {kind} {steps}, {scaled}")
        return f.emit(f"getelementptr {element}, ptr {self._base(number)}, {kind} {steps}")

    def _from_memory(self, x: str, dtype: torch.dtype) -> str:
        f = self.f
        if dtype is torch.bool:
            return f.emit(f"icmp ne {f.vector('i8')} {x}, {'0' if f.width == 1 else 'zeroinitializer'}")
        if dtype is torch.bfloat16:
            return scalar.from_bf16(f, x)
        return f.emit(f"fpext {f.vector('half')} {x} to {f.vector('float')}") if dtype is torch.float16 else x

    def _to_memory(self, x: str, dtype: torch.dtype) -> str:
        f = self.f
        if dtype is torch.bool:
            return f.emit(f"zext {f.vector('i1')} {x} to {f.vector('i8')}")
        if dtype is torch.bfloat16:
            return scalar.to_bf16(f, x)
        return f.emit(f"fptrunc {f.vector('float')} {x} to {f.vector('half')}") if dtype is torch.float16 else x

    def _root(self, number: int) -> None:
        value = self.k.values[number]
        if value.op == "check":
            self._check(value.args[0])
            return
        f = self.f
        buffer, index = value.attr
        dtype = self.k.buffers[buffer].dtype
        element = IN_MEMORY[dtype]
        varying = self.w > 1 and (self.vector_axis in self.varies[number] or self.vector_axis in set(index.axes))
        x = self.get(value.args[0], vector=varying)
        f.width = self.w if varying else 1
        x = self._to_memory(x, dtype)
        if not varying:
            address = f.emit(
                f"getelementptr {element}, ptr %buffer{buffer}, i64 {self._flat(index, with_vector_axis=self.w == 1)}"
            )
            f.do(f"store {element} {x}, ptr {address}, align {alignment(dtype)}")
            return
        kind, suffix, bits = f"<{self.w} x {element}>", _suffix(element, self.w), f"<{self.w} x i1>"
        if index.coefficient(self.vector_axis) != 1:
            every = "splat (i1 true)"
            addresses = self._addresses(number, element, index)
            f.declare(f"declare void @llvm.masked.scatter.{suffix}.v{self.w}p0({kind}, <{self.w} x ptr>, i32, {bits})")
            f.do(
                f"call void @llvm.masked.scatter.{suffix}.v{self.w}p0({kind} {x}, "
                f"<{self.w} x ptr> {addresses}, i32 {alignment(dtype)}, {bits} {self.mask or every})"
            )
            return
        address = f.emit(f"getelementptr {element}, ptr {self._base(number)}, i64 {self.lane}")
        if self.mask is None:
            f.do(f"store {kind} {x}, ptr {address}, align {alignment(dtype)}")
        else:
            f.declare(f"declare void @llvm.masked.store.{suffix}.p0({kind}, ptr, i32, {bits})")
            f.do(
                f"call void @llvm.masked.store.{suffix}.p0({kind} {x}, ptr {address}, i32 {alignment(dtype)}, "
                f"{bits} {self.mask})"
            )

    def _check(self, condition: int) -> None:
        """What does not hold is noted; the host looks when the kernel is done."""
        f = self.f
        uniform = self.w == 1 or self.is_uniform(condition)
        holds = self.get(condition, vector=not uniform)
        if uniform:
            wrong = f.emit(f"xor i1 {holds}, true")
        else:
            bits = f"<{self.w} x i1>"
            failed = f.emit(f"xor {bits} {holds}, splat (i1 true)")
            if self.mask is not None:
                failed = f.emit(f"and {bits} {failed}, {self.mask}")
            f.declare(f"declare i1 @llvm.vector.reduce.or.v{self.w}i1({bits})")
            wrong = f.emit(f"call i1 @llvm.vector.reduce.or.v{self.w}i1({bits} {failed})")
        note, on = f.fresh("note"), f.fresh("on")
        f.do(f"br i1 {wrong}, label %{note}, label %{on}")
        f.label(note)
        f.do("store atomic i64 1, ptr %status monotonic, align 8")  # several threads may
        f.do(f"br label %{on}")
        f.label(on)


def _lanes(taken: Sequence[int], width: int) -> str:
    """Of two vectors, which of their elements come first; the other lanes are open."""
    return "<" + ", ".join([*[f"i32 {n}" for n in taken], *["i32 poison"] * (width - len(taken))]) + ">"


def alignment(dtype: torch.dtype) -> int:
    return dtype.itemsize


def _suffix(element: str, width: int) -> str:
    return f"v{width}" + {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)
