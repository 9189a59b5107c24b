"""GEMMs and the kernels beside them, run together block by block of rows.

Enters: a `LoopProgram` whose memory is not planned yet, and what the target can do. Leaves: the same, with runs of
steps as `Blocked` where that pays. What one step of a block leaves for the next lies in a strip of memory that stays in
a cache, and is never written out if nobody else reads it. What holds: a unit of a step needs of the others' results
only the same unit; the sizes of blocks depend on the sizes of tensors alone, so every number of threads gives the same
bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from .loops import Blocked, BufferView, Call, Gemm, Kernel, Launch, LoopProgram, ProgramStep, Ref, Value
from .memory import ALIGNMENT

# The cost model, measured on one core with 1 MiB of cache (docs/design/native.md).
LEAST_BYTES = 1 << 19  # of results between the steps: less stays in the cache anyway
MOST_BYTES = 1 << 19  # of a block's strips, where rows of a matrix are multiplied
ENTRY_BYTES = 1 << 17  # where the unit is a matrix of a batch: blocks of so much, or of one matrix
MOST_ENTRY_BYTES = 1 << 23
LEAST_ROWS = 64
MORE_BYTES = 1 << 20  # that the workspace may take beyond what need not be stored any more
LEAST_COLUMNS = 128  # of a product along rows: narrow ones are slow in pieces
MOST_STEPS = 8
MOST_STRIPS = 16

# By kernel: the axes that its units run through, outermost first, and of what number of units ranges begin at
# multiples; None: its units are no ranges of rows.
UnitsOf = Callable[[Kernel], tuple[list[int], int] | None]


@dataclass(frozen=True)
class BlockTarget:
    units_of: UnitsOf
    pack_bytes: Callable[[int, int, int], int]  # of the second matrix of a product m, n, k; 0: it cannot be packed
    threads: int


def run_in_blocks(program: LoopProgram, target: BlockTarget) -> LoopProgram:
    if not all(isinstance(size, int) for place in program.places.values() for size in (*place.sizes, *place.strides)):
        return program
    steps: list[ProgramStep] = []
    pending = list(program.steps)
    while pending:
        step = pending.pop(0)
        found = _block_from(program, [step, *pending], target, len(steps)) if isinstance(step, Gemm) else None
        if found is None:
            steps.append(step)
            continue
        before, block, rest = found
        steps += [*before, block]
        pending = rest
    return replace(program, steps=steps)


def _block_from(
    program: LoopProgram, steps: list[ProgramStep], target: BlockTarget, number: int
) -> tuple[list[ProgramStep], Blocked, list[ProgramStep]] | None:
    """The longest run of steps from the first one on that pays as a block; the steps in between that go before it, and
    the rest."""
    related, between = _related(program, steps)
    for count in range(len(related), 1, -1):
        chosen = related[:count]
        members = [steps[at] for at in chosen]
        # What came between and needs nothing of the block goes before it, all else stays behind.
        early = [at for at in between if at < chosen[-1]]
        group = _Group.of(program, members, target)  # type: ignore[arg-type]
        block = None if group is None else group.block(number)
        if block is not None:
            taken = {*early, *chosen}
            return [steps[at] for at in early], block, [s for at, s in enumerate(steps) if at not in taken]
    return None


def _related(program: LoopProgram, steps: list[ProgramStep]) -> tuple[list[int], list[int]]:
    """Steps that read what the first one makes, directly or not, and those in between that do not; as far as nothing
    comes that must stay behind the one and before the other."""
    members = [0]
    between: list[int] = []
    made = set(steps[0].writes)
    for at, step in enumerate(steps[1:], 1):
        reads_it = bool(made & set(step.reads))
        if len(members) < MOST_STEPS and reads_it and _can_join(program, step):
            members.append(at)
            made |= set(step.writes)
        elif reads_it or isinstance(step, (Call, Blocked)) or set(step.writes) & {*program.inputs, *made}:
            break
        else:
            between.append(at)
    return members, between


def _can_join(program: LoopProgram, step: ProgramStep) -> bool:
    if isinstance(step, Launch):
        return not any(v.op == "check" for v in step.kernel.values) and not set(step.writes) & set(program.inputs)
    return isinstance(step, Gemm) and not step.accumulate


@dataclass
class _Group:
    program: LoopProgram
    steps: list[Launch | Gemm]  # in order
    target: BlockTarget
    shared: dict[str, BufferView]  # what one of them makes and another one reads
    fine: list[int]  # by step: the most units that it can be parted into
    aligned: list[int]
    units: int

    @classmethod
    def of(cls, program: LoopProgram, steps: list[Launch | Gemm], target: BlockTarget) -> _Group | None:
        made = {name for step in steps for name in step.writes}
        shared = {n: program.places[n] for step in steps for n in step.reads if n in made}
        fine, aligned = [], []
        for step in steps:
            found = _gemm_units(step, shared) if isinstance(step, Gemm) else _kernel_units(step, shared, target)
            if found is None:
                return None
            fine.append(found[0])
            aligned.append(found[1])
        units = math.gcd(*fine)
        # A unit is so many elements of everything that they share.
        if units < 2 or any(place.reach % units for place in shared.values()):
            return None
        return cls(program, steps, target, shared, fine, aligned, units)

    def block(self, number: int) -> Blocked | None:
        unit_bytes = {n: p.reach // self.units * p.dtype.itemsize for n, p in self.shared.items()}
        each = self._each(sum(unit_bytes.values()))
        if each is None:
            return None
        strips, thread_bytes = {}, 0
        for name in self._strips():
            strips[name] = thread_bytes, unit_bytes[name]
            thread_bytes += _aligned(unit_bytes[name] * each)
        if not strips or len(strips) > MOST_STRIPS:
            return None
        threads = max(1, min(self.target.threads, self.units // each))
        packs, size = {}, threads * thread_bytes
        shares = [fine // self.units for fine in self.fine]
        for at, step in enumerate(self.steps):
            if isinstance(step, Gemm) and len(step.out.sizes) == 2:
                (_, columns), depth = step.out.sizes, step.a.sizes[-1]
                packs[at] = size
                size += _aligned(self.target.pack_bytes(each * shares[at], columns, depth))
        if size > sum(unit_bytes[name] for name in strips) * self.units + MORE_BYTES:
            return None  # packing asks for some 8 MiB beside the matrix
        workspace = f"blocks_{number}_{self.steps[0].writes[0]}"
        self.program.places[workspace] = BufferView(workspace, torch.uint8, (size,), (1,))
        return Blocked(self.steps, shares, self.units, each, workspace, threads, thread_bytes, strips, packs)

    def _strips(self) -> list[str]:
        """What nobody reads but they."""
        program = self.program
        others = {name for step in program.steps if not any(step is s for s in self.steps) for name in step.reads}
        others |= {out.name for out in program.outputs if isinstance(out, Ref)} | program.tensors
        return [name for name in self.shared if name not in others]

    def _each(self, unit_bytes: int) -> int | None:
        """Units of a block; None: it does not pay."""
        if unit_bytes * self.units < LEAST_BYTES:
            return None
        along_rows = [
            (step, fine // self.units)
            for step, fine in zip(self.steps, self.fine, strict=True)
            if isinstance(step, Gemm) and len(step.out.sizes) == 2
        ]
        fitting = [each for each in _divisors(self.units) if self._is_aligned(each)]
        if not along_rows:
            small = [each for each in fitting if each * unit_bytes <= ENTRY_BYTES] or fitting[:1]
            return small[-1] if small and small[-1] * unit_bytes <= MOST_ENTRY_BYTES else None
        if any(not self._packable(step) for step, _ in along_rows):
            return None
        # Each block reads all of a packed matrix: it needs rows in proportion to the matrix' depth.
        enough = [
            each
            for each in fitting
            if each * unit_bytes <= MOST_BYTES
            and all(each * share >= max(LEAST_ROWS, step.a.sizes[-1] / 2) for step, share in along_rows)
        ]
        return enough[0] if enough else None

    def _packable(self, step: Gemm) -> bool:
        (rows, columns), depth = step.out.sizes, step.a.sizes[-1]
        wide = columns >= LEAST_COLUMNS or depth <= LEAST_ROWS
        return step.out.dtype is torch.float32 and wide and self.target.pack_bytes(rows, columns, depth) > 0

    def _is_aligned(self, each: int) -> bool:
        if each == self.units:
            return False
        return all(each * fine // self.units % a == 0 for fine, a in zip(self.fine, self.aligned, strict=True))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _divisors(n: int) -> list[int]:
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*low, *[n // d for d in low]})


def _gemm_units(step: Gemm, shared: dict[str, BufferView]) -> tuple[int, int] | None:
    """The rows of a product, or the matrices of a batch; what is shared lies one behind the other."""
    batched = len(step.out.sizes) == 3
    units = step.out.sizes[0]
    if step.accumulate or units == 0 or (not batched and step.b.buffer in shared):
        return None
    for place in (step.out, step.a, step.b) if batched else (step.out, step.a):
        base = shared.get(place.buffer)
        if base is not None and not _lies_in_units(place, base, units):
            return None
    if batched and any(place.strides[0] <= 0 for place in (step.out, step.a, step.b)):
        return None
    return units, 1


def _lies_in_units(place: BufferView, base: BufferView, units: int) -> bool:
    """Whether unit u of a place is a part of the u-th of as many equal parts of its buffer."""
    whole = base.reach
    inner = replace(place, sizes=place.sizes[1:], strides=place.strides[1:]).reach
    part = whole // units
    return whole % units == 0 and place.strides[0] == part and place.offset >= 0 and place.offset + inner <= part


def _kernel_units(step: Launch, shared: dict[str, BufferView], target: BlockTarget) -> tuple[int, int] | None:
    kernel = step.kernel
    found = target.units_of(kernel)
    if found is None:
        return None
    axes, aligned = found
    accesses = [v for v in kernel.values if v.op in ("load", "store") and step.buffers[v.attr[0]] in shared]
    for count in range(len(axes), 0, -1):
        units = math.prod(kernel.extents[a] for a in axes[:count])
        if units and all(
            _in_units(kernel, axes[:count], v, shared[step.buffers[v.attr[0]]].reach, units) for v in accesses
        ):
            return units, aligned if count == len(axes) else 1
    return None


def _in_units(kernel: Kernel, axes: list[int], value: Value, whole: int, units: int) -> bool:
    """Whether in unit u of these axes only the u-th of as many equal parts of the buffer is touched."""
    index = value.attr[1]
    if whole % units or index.gathered:
        return False
    expected = part = whole // units
    for axis in reversed(axes):
        if kernel.extents[axis] != 1 and index.coefficient(axis) != expected:
            return False
        expected *= kernel.extents[axis]
    rest = [(kernel.extents[a], c) for a, c in index.terms if a not in axes]
    return index.offset >= 0 and all(c >= 0 for _, c in rest) and index.offset + _span(rest) < part


def _span(terms: Iterable[tuple[int, int]]) -> int:
    return sum((extent - 1) * c for extent, c in terms)
