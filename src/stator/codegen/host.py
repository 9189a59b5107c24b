"""The host function of a graph: a loop program and its memory plan, as the tables that `_native/host.c` runs.

Enters: a `Program` (any object of that form: this room does not know `fuse`), offsets of its buffers, and what makes a
call of an operator callable. Leaves: a `_native.Host`, which takes the list of inputs and gives the results. Sizes
that depend on the inputs are computed first in each call, by one function; everything else is known. What launches
kernels, and where, is a target's: this file has the CPU's, `gpu_host` that of GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import _native as n
from ..support.graph_numbers import Unexpected
from ..support.op_namespaces import is_torchs_own
from ..support.tensor_memory import reads_memory, refuse_short
from . import cpu, jit, small_gemm
from .kernels import compile_kernels, compile_small_gemm, vector_width

Size = Any
# Weights that stay packed: a BLAS packs once per call, which is little of the time where there are many rows.
MOST_PACKED_ROWS, LEAST_PACKED = 512, 1 << 16
NO_LIMIT = -1.0
MOST = 64  # buffers of a kernel, operands of a call: what `_native/host.c` has room for


class NotCompiled(Exception):
    """The program has something in it that the host function cannot do; the text says what."""


class Tables:
    """Registers, buffers and slots, numbered as they are asked for."""

    def __init__(self, program: Any, plan: Any, constants: Mapping[str, Any], frozen: Collection[str]) -> None:
        self.program, self.plan, self.frozen = program, plan, frozen
        self.registers = {name: number for number, name in enumerate([*program.inputs, *constants])}
        self.constants = list(constants.values())
        self._inputs = len(program.inputs)
        self.buffers: dict[str, int] = {}
        self.rows: list[tuple[int, int, float]] = []
        self.known: list[int] = []
        self._known: dict[int, int] = {}
        self.unknown: dict[Any, int] = {}
        self._pending: list[tuple[list[Any], int]] = []

    def register(self, name: str) -> int:
        return self.registers.setdefault(name, len(self.registers))

    def buffer(self, name: str) -> int:
        if name not in self.buffers:
            self.buffers[name] = len(self.rows)
            offset = self.plan.offsets.get(name)
            if offset is None:
                self.rows.append((self.register(name), 0, self.limit(name)))
            else:
                self.part_of_arena(offset)
        return self.buffers[name]

    def part_of_arena(self, offset: Size) -> int:
        """A buffer that has no name."""
        self.rows.append((-1, self.slot(offset), NO_LIMIT))
        return len(self.rows) - 1

    def limit(self, name: str) -> float:
        """How far from 0 a number may be that kernels read."""
        ranges = [r for r in self.program.limits if r.number == name]
        return min((min(-r.least, r.largest) for r in ranges), default=NO_LIMIT)

    def slot(self, size: Size) -> Any:
        """The slot of a number; those that are computed come behind the known ones, so they are numbered at the end."""
        if not isinstance(size, int) and getattr(size, "is_Integer", False):
            size = int(size)
        if isinstance(size, int):
            if size not in self._known:
                self._known[size] = len(self.known)
                self.known.append(size)
            return self._known[size]
        self.unknown.setdefault(size, len(self.unknown))
        return _Later(self.unknown[size])


class _Later:
    """The number of a slot that is computed."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Deferred:
    """What is made when all slots have numbers: `make` takes its parts, with those numbers, and how many slots there
    are. It is made once."""

    def __init__(self, parts: Any, make: Callable[[Any, int], Any]) -> None:
        self._parts, self._make = parts, make
        self._made: Any = None

    def made(self, known: int, count: int) -> Any:
        if self._made is None:
            self._made = self._make(_settled(self._parts, known, count), count)
        return self._made


def _settled(value: Any, known: int, count: int) -> Any:
    if isinstance(value, _Later):
        return known + value.index
    if isinstance(value, Deferred):
        return value.made(known, count)
    if isinstance(value, (list, tuple)):
        return type(value)([_settled(item, known, count) for item in value])
    return value


class Cpu:
    """Kernels are functions in memory, which the host calls."""

    facts = None
    draws_again = True  # where a check of an index fails, the graph runs anew

    def __init__(self, program: Any) -> None:
        parts = [part for step in program.steps for part in getattr(step, "steps", [step])]
        self._compiled = iter(compile_kernels([part.kernel for part in parts if hasattr(part, "kernel")]))

    def kind(self, name: str) -> int:
        """The kind of device that a tensor is on, in torch's C functions."""
        return 0

    def launch(self, t: Tables, step: Any) -> list[Any]:
        """The steps that run one kernel."""
        made = next(self._compiled)
        if len(step.buffers) > MOST or len(made.sizes) > MOST:
            raise NotCompiled(f"a kernel with {len(step.buffers)} buffers and {len(made.sizes)} sizes")
        numbers = (t.slot(made.count), t.slot(made.work), t.slot(made.scratch), made.align)
        sizes = tuple(map(t.slot, made.sizes))
        return [(n.HOST_KERNEL, tuple(map(t.buffer, step.buffers)), sizes, numbers, made.address, made)]

    def size(self, planned: Size) -> Size:
        """Bytes of the arena."""
        return planned


def build(
    program: Any,
    plan: Any,
    constants: Mapping[str, Any],
    tape_of_call: Callable[[Any], Any],
    compute_of: Callable[[Sequence[Any]], Callable[..., Any] | None],
    fallback: Callable[[list[Any]], Any],
    target: Any = None,
    written_behind: Collection[int] = (),
    frozen: Collection[str] = (),
) -> Any:
    """The host function. `compute_of`: for expressions, a function from the inputs to their values. `target`: who
    launches kernels; None: the CPU. `written_behind`: inputs that results are written to behind this function.
    `frozen`: inputs whose versions tell when they change, see `_native/host_packed.c`."""
    target = target or Cpu(program)
    fixed = {f"constant {i}": out for i, out in enumerate(program.outputs) if not hasattr(out, "name")}
    t = Tables(program, plan, {**constants, **fixed}, frozen)
    touched = {name for step in program.steps if not hasattr(step, "target") for name in (*step.reads, *step.writes)}
    by_calls = {name for step in program.steps if reads_memory(getattr(step, "target", None)) for name in step.reads}
    wanted = touched | by_calls | {program.inputs[number] for number in written_behind}
    checks = [
        _check(t, name, touched, wanted, target) for name in (*program.inputs, *constants) if name in program.places
    ]
    steps: list[Any] = []
    foreign = _foreign(program)
    first_draw = _first_draw(program) if target.draws_again else None
    _check_order(program, plan, constants)
    for number, step in enumerate(program.steps):
        if number == first_draw:
            steps.append(_note_state(t, tape_of_call))
        steps += [_allocate(t, name) for name in plan.allocated.get(number, ())]
        if hasattr(step, "kernel"):
            steps += target.launch(t, step)
        elif hasattr(step, "accumulate"):
            steps.append(_gemm(t, step))
        elif hasattr(step, "strips"):
            steps += _blocks(t, step, target)
        elif hasattr(step, "place"):
            steps.append(_alias(t, step))
        else:
            steps += _call(t, step, tape_of_call(step), touched, target)
            steps += [_expect(t, name, target) for name in foreign.get(number, ())]
        if dropped := plan.dropped.get(number):
            steps.append((n.HOST_FREE, tuple(map(t.register, dropped)), (), (), 0, None))
    outputs = [t.register(getattr(out, "name", f"constant {i}")) for i, out in enumerate(program.outputs)]
    arena = t.slot(target.size(plan.size))
    compute = compute_of(list(t.unknown))
    known = len(t.known)
    settled = functools.partial(_settled, known=known, count=known + len(t.unknown))
    return n.Host(
        len(program.inputs), len(t.registers), t.known, len(t.unknown), compute, settled(t.rows), settled(checks),
        settled(steps), tuple(outputs), tuple(t.constants), settled(arena),
        bool(program.may_fail and target.draws_again), fallback, t.registers.get(_STATE, -1), torch.set_rng_state,
        target.facts,
    )  # fmt: skip


_STATE = "state of the random numbers"


def _first_draw(program: Any) -> int | None:
    """The step that draws the first random numbers, if a check of indices or numbers behind it can fail: then the
    graph runs anew, and the same numbers must come."""
    numbers = {r.number for r in program.limits if isinstance(r.number, str)}
    checks = [i for i, step in enumerate(program.steps) if _has_check(step) or numbers & {*step.writes}]
    draws = [i for i, step in enumerate(program.steps) if hasattr(step, "target") and _draws(step.target)]
    return draws[0] if draws and checks and draws[0] < checks[-1] else None


def _has_check(step: Any) -> bool:
    return hasattr(step, "kernel") and any(value.op == "check" for value in step.kernel.values)


def _draws(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _note_state(t: Tables, tape_of_call: Callable[[Any], Any]) -> Any:
    noting = SimpleNamespace(target=torch.get_rng_state, args=(), kwargs={}, reads=[], parts=None, label="its state")
    return (n.HOST_CALL, (), (t.register(_STATE),), (), 0, tape_of_call(noting))


def _foreign(program: Any) -> dict[int, list[str]]:
    """By call of an operator that is not torch's own: memory that is used behind it. It is looked at again, as the
    operator may be any Python, which can resize or replace what it reaches."""
    last: dict[str, int] = {}
    made = dict.fromkeys((*program.inputs, *program.tensors - {o for s in program.steps for o in s.writes}), -1)
    calls = []
    for number, step in enumerate(program.steps):
        for name in step.writes:
            made.setdefault(name, number)
        if not hasattr(step, "target"):
            last.update((name, number) for name in (*step.reads, *step.writes))
        elif not is_torchs_own(step.target):
            calls.append(number)
    live = [name for name in last if name in program.tensors and name in program.places]
    return {call: [name for name in live if made.get(name, call) < call < last[name]] for call in calls}


def _check_order(program: Any, plan: Any, constants: Mapping[str, Any]) -> None:
    """Nothing is read that nobody has made."""
    made = {*program.inputs, *constants, *plan.offsets}
    for number, step in enumerate(program.steps):
        made.update(plan.allocated.get(number, ()))
        if missing := [name for name in step.reads if name not in made]:
            raise NotCompiled(f"{missing[0]} is read before it is made")
        made.update(step.writes)


def _check(t: Tables, name: str, touched: set[str], wanted: set[str], target: Any) -> Any:
    """What is compared with an input in each call, before anything is touched. Kernels touch those of `touched`; the
    memory of those of `wanted` must be there."""
    place = t.program.places[name]
    reach = t.slot(place.reach) if name in wanted else -1
    slots = tuple(t.slot(size) for size in (*place.sizes, *place.strides))
    written = int(name in t.program.written)
    return (
        t.register(name),
        dtype_code(place.dtype),
        reach,
        place.dtype.itemsize,
        slots,
        written,
        target.kind(name),
        int(name in touched),
    )


def _expect(t: Tables, name: str, target: Any) -> Any:
    """The same for what a call gave, before a kernel touches it."""
    place = t.program.places[name]
    slots = tuple(t.slot(size) for size in (*place.sizes, *place.strides))
    numbers = (
        t.register(name), dtype_code(place.dtype), t.slot(place.reach), place.dtype.itemsize, target.kind(name),
    )  # fmt: skip
    return (n.HOST_EXPECT, slots, (), numbers, 0, _restrided)


def _restrided(tensor: Any, sizes: list[int], strides: list[int], itemsize: int) -> Any:
    """What an operator gave, with the strides that its meta kernel had promised."""
    if list(tensor.shape) != sizes or tensor.element_size() != itemsize:
        raise Unexpected(f"an operator gave {tuple(tensor.shape)} of {tensor.dtype}, not {tuple(sizes)}")
    refuse_short(tensor)
    return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _alias(t: Tables, step: Any) -> Any:
    place = step.place
    slots = tuple(t.slot(size) for size in (*place.sizes, *place.strides, place.offset))
    return (n.HOST_ALIAS, slots, (t.register(place.buffer),), (t.register(step.out), 0, len(place.sizes)), 0, None)


@functools.cache
def dtype_code(dtype: torch.dtype) -> int:
    """The number of a type in torch's C functions."""
    return n.tensor_numbers(torch.empty(0, dtype=dtype))[0]


def _allocate(t: Tables, name: str) -> Any:
    place = t.program.places[name]
    slots = tuple(t.slot(size) for size in (*place.sizes, *place.strides))
    return (n.HOST_ALLOCATE, slots, (), (t.register(name), dtype_code(place.dtype), len(place.sizes)), 0, None)


def _blocks(t: Tables, step: Any, target: Cpu) -> list[Any]:
    """The loop over blocks, and behind it the steps that it runs, with how many of their own units are one of its."""
    base = t.plan.offsets[step.workspace]
    for name, (offset, _) in step.strips.items():
        t.buffers[name] = t.part_of_arena(base + offset)
    body = []
    for number, (part, share) in enumerate(zip(step.steps, step.shares, strict=True)):
        if hasattr(part, "kernel"):
            kind, items, more, numbers, address, code = target.launch(t, part)[0]
        else:
            kind, items, more, numbers, address, code = _blas(t, part)
            if number in step.packs:
                items = (*items, t.part_of_arena(base + step.packs[number]))
        body.append((kind, items, more, (*numbers, share), address, code))
    buffers = tuple(t.buffer(name) for name in step.strips)
    sizes = (step.units, step.each, step.thread_bytes, step.threads, *[size for _, size in step.strips.values()])
    return [(n.HOST_BLOCKS, buffers, tuple(map(t.slot, sizes)), (len(body),), 0, None), *body]


def pack_bytes(m: int, columns: int, k: int) -> int:
    """Of the second matrix of a product of float32, packed by the BLAS; 0: it cannot."""
    return n.host_pack_bytes(m, columns, k) if _learned() and max(m, columns, k) < 1 << 31 else 0


def units_of(kernel: Any) -> tuple[list[int], int] | None:
    return cpu.units_of(kernel, vector_width())


def _gemm(t: Tables, step: Any) -> Any:
    made = _few_rows(t, step)
    if made is None and step.out.dtype is torch.bfloat16:
        raise NotCompiled("a product of bfloat16 that is not of few rows")
    if made is not None or not _stays_packed(t, step):
        return made or _blas(t, step)
    kind, items, more, numbers, *rest = _blas(t, step)
    return (kind, items, more, (*numbers, 0, 1), *rest)


def _stays_packed(t: Tables, step: Any) -> bool:
    """Whether the second matrix is a weight that keeps its pack from call to call, and that saves time."""
    numbers = (*step.out.sizes, step.a.sizes[-1])
    if step.b.buffer not in t.frozen or step.out.dtype is not torch.float32 or len(numbers) != 3:
        return False
    if not all(isinstance(number, int) for number in numbers):
        return False
    rows, columns, depth = numbers
    return rows <= MOST_PACKED_ROWS and columns * depth >= LEAST_PACKED and pack_bytes(rows, columns, depth) > 0


def _blas(t: Tables, step: Any) -> Any:
    out, a, b = step.out, step.a, step.b
    m, k = a.sizes[-2:]
    columns = b.sizes[-1]
    (transposed_a, lda), (transposed_b, ldb) = _leading(a), _leading(b)
    batch, *batch_strides = (1, 0, 0, 0)
    if len(out.sizes) == 3:
        batch, batch_strides = out.sizes[0], [place.strides[0] for place in (out, a, b)]
    numbers = (m, columns, k, out.strides[-2], lda, ldb, out.offset, a.offset, b.offset, batch, *batch_strides)
    flags = (int(out.dtype is torch.float64), int(transposed_a), int(transposed_b), int(step.accumulate))
    buffers = tuple(t.buffer(place.buffer) for place in (out, a, b))
    return (n.HOST_GEMM, buffers, tuple(map(t.slot, numbers)), flags, 0, None)


def _few_rows(t: Tables, step: Any) -> Any:
    """A kernel of ours, where the first matrix has few rows."""
    out, a, b = step.out, step.a, step.b
    (m, k), columns = a.sizes[-2:], b.sizes[-1]
    (transposed_a, lda), (transposed_b, ldb) = _leading(a), _leading(b)
    if any(size != 1 for size in out.sizes[:-2]) or out.dtype is torch.float64 or transposed_a or step.accumulate:
        return None
    shape = small_gemm.shape_for(
        m, columns, k, by_rows=not transposed_b, width=vector_width(), half=out.dtype is torch.bfloat16
    )
    if shape is None:
        return None
    code = compile_small_gemm(shape)
    buffers = tuple(t.buffer(place.buffer) for place in (out, a, b))
    sizes = (k, out.strides[-2], lda, ldb, out.offset, a.offset, b.offset, columns)
    numbers = (t.slot(small_gemm.units(shape, columns)), t.slot(columns * k), t.slot(0), 1)
    return (n.HOST_KERNEL, buffers, tuple(map(t.slot, sizes)), numbers, code.address("kernel"), code)


def _leading(place: Any) -> tuple[bool, Size]:
    """Whether a matrix lies in memory column by column, and its leading dimension."""
    (rows, columns), (s, u) = place.sizes[-2:], place.strides[-2:]
    if u == 1 and (columns == 1 or rows == 1 or s != 1 or not isinstance(s, int)) and _at_least(s, columns):
        return False, s
    return True, u


def _at_least(number: Size, limit: Size) -> bool:
    return number >= limit if isinstance(number, int) and isinstance(limit, int) else bool(number == limit)


def _call(t: Tables, step: Any, tape: Any, touched: set[str], target: Any) -> list[Any]:
    if len(step.reads) > MOST or len(step.outs) > MOST:
        raise NotCompiled(f"a call with {len(step.reads)} operands")
    call = (n.HOST_CALL, tuple(map(t.register, step.reads)), tuple(map(t.register, step.outs)), (), 0, tape)
    looked_at = step.outs if not is_torchs_own(step.target) else [name for name in step.outs if name in touched]
    return [call, *[_expect(t, name, target) for name in looked_at if name in t.program.places]]


def is_available() -> str | None:
    """None, or why there can be no host functions here."""
    try:
        jit.host_target()
    except jit.Unavailable as why:
        return str(why)
    return None if _learned() else "torch's C functions were not found"


_usable: bool | None = None


def _learned() -> bool:
    global _usable
    if _usable is None:
        cpu, python, omp = jit.torch_libraries()
        keys = []
        for inference in (False, True):  # tensors of inference have fewer
            with _disable_current_modes(), torch.inference_mode(inference):
                keys.append(n.tensor_keys(torch.empty(0, device="cpu")) or 0)
        usable, has_blas = n.host_learn(cpu, python, omp, keys[0] | keys[1], keys[0] & keys[1])
        _usable = bool(usable and has_blas)
    return _usable
