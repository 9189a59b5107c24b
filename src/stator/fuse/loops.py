"""The loop program: a small typed IR for loop nests, shared by all targets.

A `Kernel` computes, for every point of its *outer* axes, a sequence of values; some of them vary over the *inner* axes
too, and reductions fold those over all inner points. Written out:

    for each outer point:            # independent of each other: may run in parallel, in vectors
        for each inner point: …      # one loop per level: what a level reads of earlier reductions is complete
        values that vary over outer axes alone

A kernel with a *scan* has no reductions: its inner points are visited in order, and a scan has what was folded so far.

Indices are affine in the axes, plus values (gathers) times strides. Sizes are ints, or sympy expressions over the
symbols of the graph. What holds (`check` says so): values are used after they are made, levels only grow, every index
names axes of the kernel, and a store covers each element once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Size = Any  # an int, or a sympy expression of positive integers

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
STORED_AS_FLOAT32 = (torch.bfloat16, torch.float16)  # computed with in float32, rounded when stored
STORABLE = frozenset((*FLOATS, *INTEGERS, *STORED_AS_FLOAT32, torch.bool))


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The type of values in a kernel that come from, or go to, memory of this type."""
    return torch.float32 if dtype in STORED_AS_FLOAT32 else dtype


@dataclass(frozen=True)
class Index:
    """offset + Σ axis·coefficient + Σ value·stride, in elements."""

    offset: Size = 0
    terms: tuple[tuple[int, Size], ...] = ()  # (axis, coefficient), ascending by axis, no coefficient is 0
    gathered: tuple[tuple[int, Size], ...] = ()  # (value, stride)

    @staticmethod
    def axis(number: int) -> Index:
        return Index(0, ((number, 1),))

    def __add__(self, other: Index | Size) -> Index:
        if not isinstance(other, Index):
            return Index(self.offset + other, self.terms, self.gathered)
        terms = dict(self.terms)
        for axis, coefficient in other.terms:
            terms[axis] = terms.get(axis, 0) + coefficient
        kept = tuple(sorted((a, c) for a, c in terms.items() if c != 0))
        return Index(self.offset + other.offset, kept, self.gathered + other.gathered)

    def __mul__(self, factor: Size) -> Index:
        if factor == 0:
            return Index()
        return Index(
            self.offset * factor,
            tuple((a, c * factor) for a, c in self.terms),
            tuple((v, s * factor) for v, s in self.gathered),
        )

    def coefficient(self, axis: int) -> Size:
        return next((c for a, c in self.terms if a == axis), 0)

    def substitute(self, axis: int, by: Index) -> Index:
        c = self.coefficient(axis)
        if c == 0:
            return self
        rest = Index(self.offset, tuple(t for t in self.terms if t[0] != axis), self.gathered)
        return rest + by * c

    @property
    def axes(self) -> Iterator[int]:
        return (a for a, _ in self.terms)


@dataclass(frozen=True)
class Buffer:
    """Memory that a kernel reads or writes: elements of one type, reached by an index."""

    name: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Value:
    """One scalar operation, done at every point where it is wanted.

    `op`: `load` (attr: buffer number, Index; a second operand is the condition), `store` (args: value; attr likewise),
    `const` (attr: number), `index` (attr: Index), `reduce` and `scan` (attr: kind), `check` (args: condition that must
    hold), or the name of a row of the table of scalar operations.
    """

    op: str
    args: tuple[int, ...]
    dtype: torch.dtype
    attr: Any = None


@dataclass
class Kernel:
    name: str
    extents: list[Size]  # by axis
    outer: list[int]  # axes in loop order
    inner: list[int]
    buffers: list[Buffer]
    values: list[Value]
    origins: tuple[str, ...] = ()  # names of the graph's nodes that it computes
    lines: tuple[str, ...] = ()  # of the user
    why_not_more: tuple[str, ...] = ()

    def roots(self) -> list[int]:
        return [i for i, v in enumerate(self.values) if v.op in ("store", "check")]

    @property
    def scans(self) -> list[int]:
        return [i for i, v in enumerate(self.values) if v.op == "scan"]

    def levels(self) -> list[int]:
        """By value: how many reductions, one after the other, it depends on."""
        level: list[int] = []
        for value in self.values:
            below = max((level[a] for a in operands(value)), default=0)
            level.append(below + (value.op == "reduce"))
        return level

    def varies(self) -> list[set[int]]:
        """By value: the axes that it depends on."""
        axes: list[set[int]] = []
        inner = set(self.inner)
        for value in self.values:
            found: set[int] = set()
            for a in operands(value):
                found |= axes[a]
            if isinstance(index := index_of(value), Index):
                found |= set(index.axes)
            if value.op == "reduce":
                found -= inner
            elif value.op == "scan":
                found |= inner
            axes.append(found)
        return axes

    @property
    def is_static(self) -> bool:
        """Are all sizes numbers of Python's? (Not if one is 0 as an expression, which has the same text.)"""
        found = [index for value in self.values if (index := index_of(value)) is not None]
        steps = [step for index in found for _, step in (*index.terms, *index.gathered)]
        return all(isinstance(size, int) for size in (*self.extents, *steps, *[index.offset for index in found]))

    def key(self) -> str:
        """What the machine code depends on: equal texts of static kernels, equal code."""
        return "\n".join(self.text_lines(names=False))

    def __str__(self) -> str:
        return "\n".join(self.text_lines(names=True))

    # -- as Python that runs: see `evaluate.run_text`

    def text_lines(self, *, names: bool) -> Iterator[str]:
        if names:
            yield f"# {self.name}: {', '.join(self.origins)}"
            yield from (f"# {line}" for line in self.lines)
            yield from (f"# not fused with more: {why}" for why in self.why_not_more)
        label = self.name if names else "kernel"
        buffers = [buffer.name if names else f"b{i}" for i, buffer in enumerate(self.buffers)]
        yield f"kernel({label!r}, extents={[*map(str, self.extents)]}, outer={self.outer}, inner={self.inner})"
        for name, buffer in zip(buffers, self.buffers, strict=True):
            yield f"buffer({name!r}, {str(buffer.dtype).removeprefix('torch.')!r})"
        for number, value in enumerate(self.values):
            args = ", ".join([f"v{a}" for a in value.args])
            dtype = str(value.dtype).removeprefix("torch.")
            attr = ""
            if value.op in ("load", "store"):
                attr = f", at=({buffers[value.attr[0]]!r}, {index_text(value.attr[1])!r})"
            elif value.op == "index":
                attr = f", at={index_text(value.attr)!r}"
            elif value.attr is not None:
                attr = f", attr={value.attr!r}"
            yield f"v{number} = value({value.op!r}, [{args}], {dtype!r}{attr})"


def index_text(index: Index) -> str:
    parts = [] if index.offset == 0 and (index.terms or index.gathered) else [str(index.offset)]
    parts += [f"i{a}" if c == 1 else f"i{a}*({c})" for a, c in index.terms]
    parts += [f"v{v}*({s})" for v, s in index.gathered]
    return " + ".join(parts)


def index_of(value: Value) -> Index | None:
    if value.op in ("load", "store"):
        return value.attr[1]
    return value.attr if value.op == "index" else None


def operands(value: Value) -> Iterator[int]:
    """The values that it reads, those in its index included."""
    yield from value.args
    if (index := index_of(value)) is not None:
        yield from (v for v, _ in index.gathered)


# ------------------------------------------------------------------------------------------------------ the checker


class Malformed(Exception):
    """A loop program that breaks its own rules: a mistake in stator."""


def check(kernel: Kernel) -> None:
    axes = [*kernel.outer, *kernel.inner]
    if sorted(axes) != sorted(set(axes)) or not set(axes) <= set(range(len(kernel.extents))):
        raise Malformed(f"{kernel.name}: axes {axes} of {len(kernel.extents)}")
    for number, value in enumerate(kernel.values):
        where = f"{kernel.name}: v{number} = {value}"
        if any(not 0 <= a < number for a in operands(value)):
            raise Malformed(f"{where}: an operand is not made yet")
        index = index_of(value)
        if index is not None and not set(index.axes) <= set(axes):
            raise Malformed(f"{where}: an axis is not the kernel's")
        if index is not None and any(kernel.values[v].dtype is not torch.int64 for v, _ in index.gathered):
            raise Malformed(f"{where}: an index is not an int64")
        if value.op in ("load", "store") and not 0 <= value.attr[0] < len(kernel.buffers):
            raise Malformed(f"{where}: no such buffer")
        if value.dtype in STORED_AS_FLOAT32:
            raise Malformed(f"{where}: values are computed in float32")
    if any(b.dtype not in STORABLE for b in kernel.buffers):
        raise Malformed(f"{kernel.name}: a buffer's type cannot be stored")
    if kernel.scans and (not kernel.inner or any(v.op == "reduce" for v in kernel.values)):
        raise Malformed(f"{kernel.name}: a scan needs axes of its own")
    varies = kernel.varies()
    written: set[int] = set()
    for number, value in enumerate(kernel.values):
        if value.op == "reduce" and not varies[value.args[0]] <= set(axes):
            raise Malformed(f"{kernel.name}: v{number} folds over axes that are not there")
        if value.op == "store":
            buffer, index = value.attr
            needed = set(kernel.outer) if not varies[number] & set(kernel.inner) else set(axes)
            several = {a for a in needed if kernel.extents[a] != 1} - set(index.axes)
            if buffer in written or (several and all(kernel.extents[a] != 0 for a in needed)):
                raise Malformed(f"{kernel.name}: v{number} writes an element twice")
            written.add(buffer)
    stored = {v.attr[0] for v in kernel.values if v.op == "store"}
    for number, value in enumerate(kernel.values):
        if value.op == "load" and value.attr[0] in stored:
            raise Malformed(f"{kernel.name}: v{number} reads a buffer that the kernel writes")


# ------------------------------------------------------------------------------------------------------ the program


@dataclass(frozen=True)
class BufferView:
    """A strided piece of memory: which buffer, how it is seen."""

    buffer: str
    dtype: torch.dtype
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0

    @property
    def reach(self) -> Size:
        """Elements from the first to behind the last one."""
        if any(size == 0 for size in self.sizes):
            return 0
        last: Size = 1
        for size, stride in zip(self.sizes, self.strides, strict=True):
            last = last + (size - 1) * stride
        return last


@dataclass
class Launch:
    """One kernel on these buffers."""

    kernel: Kernel
    buffers: list[str]  # in the order of `kernel.buffers`
    writes: list[str]

    @property
    def reads(self) -> list[str]:
        return [name for name in self.buffers if name not in self.writes]


@dataclass
class Gemm:
    """out = a @ b (+ out, where it was filled before), by the BLAS; with a batch in front for three dimensions."""

    out: BufferView
    a: BufferView
    b: BufferView
    accumulate: bool
    label: str

    @property
    def writes(self) -> list[str]:
        return [self.out.buffer]

    @property
    def reads(self) -> list[str]:
        return [self.a.buffer, self.b.buffer, *([self.out.buffer] if self.accumulate else [])]


@dataclass
class Call:
    """One ATen operator through the dispatcher, on tensors."""

    target: Any
    args: Any  # nested; `Ref`s where tensors and numbers stand
    kwargs: Any
    outs: list[str]
    reads: list[str]
    label: str
    parts: list[int] | None = None  # of an operator with several results: which of them; None: its one result

    @property
    def writes(self) -> list[str]:
        return self.outs


@dataclass
class Alias:
    """A tensor on the memory of another one, for a call."""

    out: str
    place: BufferView

    @property
    def writes(self) -> list[str]:
        return [self.out]

    @property
    def reads(self) -> list[str]:
        return [self.place.buffer]


@dataclass
class Blocked:
    """Kernels and GEMMs that run together, block by block of rows, so that what one leaves for the next stays in a
    cache. The order of operations within a row is as without blocks."""

    steps: list[Launch | Gemm]
    shares: list[int]  # by step: how many of its own rows (or units, or batch entries) are one unit
    units: int
    each: int  # units of a block; divides `units`
    workspace: str  # a buffer: for each thread the strips, then the packed matrices
    threads: int  # there is room for so many
    thread_bytes: int
    strips: dict[str, tuple[int, int]]  # buffers that nobody else reads: where they lie in it, and bytes of a unit
    packs: dict[int, int]  # by step: where its second matrix is packed, for all blocks

    @property
    def writes(self) -> list[str]:
        return [self.workspace, *[name for step in self.steps for name in step.writes if name not in self.strips]]

    @property
    def reads(self) -> list[str]:
        made = {name for step in self.steps for name in step.writes}
        return list(dict.fromkeys(name for step in self.steps for name in step.reads if name not in made))


ProgramStep = Launch | Gemm | Call | Alias | Blocked


def in_order(steps: Iterable[ProgramStep]) -> Iterator[Launch | Gemm | Call | Alias]:
    """The steps, without blocks."""
    for step in steps:
        if isinstance(step, Blocked):
            yield from step.steps
        else:
            yield step


@dataclass(frozen=True)
class Ref:
    """A register in the arguments of a call."""

    name: str


@dataclass(frozen=True)
class NumberRange:
    """Where a number must lie, or the graph is run by other means: eager raises, or does what is undefined here."""

    number: Any  # an expression of whole numbers, or the name of an input
    least: float
    largest: float


@dataclass
class LoopProgram:
    """A graph as steps in order."""

    inputs: list[str]
    steps: list[ProgramStep]
    outputs: list[Any]  # `Ref`s, or constants
    places: dict[str, BufferView]  # memory that launches and GEMMs use, by name
    tensors: set[str]  # names that must be tensors: inputs, outputs, what calls take and give
    numbers: dict[str, Any] = field(default_factory=dict)  # inputs that are numbers: their symbols
    may_fail: bool = False  # checks of indices: inputs are kept until the end, for a run by other means
    limits: list[NumberRange] = field(default_factory=list)
    written: list[str] = field(default_factory=list)  # inputs that kernels write to, the last ones
    dying: list[str] = field(default_factory=list)  # inputs that nobody else holds: freed behind their last use

    def __str__(self) -> str:
        lines = [f"inputs: {', '.join(self.inputs)}"]
        for step in self.steps:
            if isinstance(step, Blocked):
                lines += ["", f"# the next {len(step.steps)} steps, {step.each} of {step.units} units at a time"]
            for part in in_order([step]):
                lines += _lines_of(part)
        return "\n".join([*lines, "", f"return {self.outputs}"])


def _lines_of(step: Launch | Gemm | Call | Alias) -> list[str]:
    if isinstance(step, Launch):
        return ["", str(step.kernel), f"launch({step.kernel.name!r}, {step.buffers})"]
    if isinstance(step, Gemm):
        return [f"gemm({step.out.buffer!r}, {step.a.buffer!r}, {step.b.buffer!r}, accumulate={step.accumulate})"]
    if isinstance(step, Alias):
        sizes, strides = step.place.sizes, step.place.strides
        return [f"{step.out} = alias({step.place.buffer!r}, {sizes}, {strides}, {step.place.offset})"]
    return [f"{', '.join(step.outs) or '_'} = call({step.label!r}, {step.reads})"]


def flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        else:
            yield value


def product(sizes: Sequence[Size] | Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def concrete(size: Size, symbols: Mapping[Any, int]) -> int:
    """A size, with numbers for its symbols."""
    return size if isinstance(size, int) else int(size.subs(symbols))
