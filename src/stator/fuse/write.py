"""Groups become kernels, the graph becomes a program.

Enters: the scheduler's units. Leaves: a `LoopProgram`: launches, GEMMs and calls in order, on named buffers.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ..support.literals import one_line
from .builder import KernelBuilder, V
from .loops import (
    FLOATS,
    Alias,
    Buffer,
    BufferView,
    Call,
    Gemm,
    Index,
    Kernel,
    Launch,
    LoopProgram,
    Malformed,
    NumberRange,
    ProgramStep,
    Ref,
    Size,
    check,
    computed_in,
    product,
)
from .lower import FROM_NOTHING, REDUCTIONS, is_fusible, lower, reduce, val
from .schedule import Group, Scheduler, Supports, Unit, range_of, refuse_computed, root
from .simplify import simplify
from .views import At, NoMap, size_of, sizes_of

aten = torch.ops.aten


def strides_of(node: fx.Node) -> tuple[Size, ...]:
    return tuple([size_of(s) for s in val(node).stride()])


def place_of(node: fx.Node) -> BufferView:
    """Where a node's value lies: in its own buffer, or in that of what it is a view of."""
    base = root(node)
    offset = size_of(val(node).storage_offset()) - size_of(val(base).storage_offset())
    place = BufferView(base.name, val(node).dtype, sizes_of(node), strides_of(node), offset)
    last, end = offset + _span(place.sizes, place.strides), _span(sizes_of(base), strides_of(base))
    known = isinstance(offset, int) and isinstance(last, int) and isinstance(end, int)
    if known and 0 not in place.sizes and not 0 <= offset <= last <= end:
        raise Malformed(f"{node.name} lies at {offset} to {last} of {base.name}, which ends at {end}")
    return place


def _span(sizes: tuple[Size, ...], strides: tuple[Size, ...]) -> Size:
    """How far behind the first element the last one lies."""
    return sum([(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)])


class GroupWriter:
    """The scope in which a group's nodes are lowered."""

    def __init__(self, plan: Scheduler, group: Group) -> None:
        self.b = KernelBuilder()
        self._plan, self._group = plan, group
        self.buffers: dict[str, int] = {}
        self.types: list[torch.dtype] = []
        self._made: dict[fx.Node, V] = {}
        self.limits: list[NumberRange] = []

    def _buffer(self, name: str, dtype: torch.dtype) -> int:
        number = self.buffers.setdefault(name, len(self.buffers))
        if number == len(self.types):
            self.types.append(dtype)
        return number

    def at(self, node: fx.Node, index: At) -> V:
        base = root(node)
        if base in self._group.members:
            source, at = self._plan.look_through(node, index, self._group)
            assert at is not None
            assert at == self._group.members[source], f"{source.name} is wanted at {at}"
            return self.value(source)
        if base.target in FROM_NOTHING and base not in self._plan.stored and is_fusible(base):
            source, mapped = self._plan.look_through(node, index, self._group)
            if mapped is None:  # the same number everywhere, or a progression through a view that has no map
                raise NoMap(f"{node.name} is seen through a view that has no map")
            return lower(self, source, mapped)
        return self.load(node, index, None)

    def load(self, node: fx.Node, index: At, condition: V | None) -> V:
        place = place_of(node)
        return self.b.load(self._buffer(place.buffer, place.dtype), _flat(place, index), place.dtype, condition)

    def check(self, condition: V) -> None:
        self.b.check(condition)

    def number(self, value: Any, within: torch.dtype | None) -> Any:
        if not isinstance(value, fx.Node):
            return value
        number = value.meta["val"]
        is_whole = isinstance(number, (torch.SymInt, int))
        if (limits := range_of(within)) is not None:
            refuse_computed(value, within)
            self.limits.append(NumberRange(size_of(number) if is_whole else value.name, *limits))
        if is_whole:
            return self.b.index(Index(size_of(number)))
        return self.b.load(self._buffer(value.name, torch.float64), Index(), torch.float64)

    def value(self, node: fx.Node) -> V:
        made = self._made.get(node)
        if made is None:
            if node.target in REDUCTIONS:
                made = reduce(self, node, self._group.inside[node])
            else:
                made = lower(self, node, self._group.members[node])
            self._made[node] = made
        return made

    def store(self, node: fx.Node) -> None:
        value = self.value(node)
        place = place_of(node)
        index = _flat(place, self._group.members[node])
        self.b.add(
            "store",
            (value.to(computed_in(place.dtype)).id,),
            value.dtype,
            (self._buffer(place.buffer, place.dtype), index),
        )


def _flat(place: BufferView, at: At) -> Index:
    index = Index(place.offset)
    for i, stride in zip(at, place.strides, strict=True):
        index = index + i * stride
    return index


def write_kernel(plan: Scheduler, group: Group, name: str) -> tuple[Launch, list[NumberRange]]:
    writer = GroupWriter(plan, group)
    stored = [node for node in group.members if node in plan.stored]
    for node in reversed(stored):
        writer.store(node)
    inner = list(group.inner or ())
    buffers = [Buffer(n, t) for n, t in zip(writer.buffers, writer.types, strict=True)]
    lines = dict.fromkeys(line for node in group.members if (line := _line(node)))
    kernel = Kernel(
        name, list(group.extents), group.outer, inner, buffers, writer.b.values,
        tuple(node.name for node in reversed(group.members)), tuple(reversed(lines)),
        tuple(dict.fromkeys(group.refused)),
    )  # fmt: skip
    check(kernel)
    kernel = simplify(kernel)
    check(kernel)
    return Launch(kernel, [b.name for b in kernel.buffers], [node.name for node in stored]), writer.limits


def _line(node: fx.Node) -> str:
    trace = str(node.meta.get("stack_trace") or "")
    lines = [line.strip() for line in trace.strip().splitlines()]
    return one_line(lines[-1]) if lines else ""


# ------------------------------------------------------------------------------------------------------ calls


def _as_gemm(node: fx.Node) -> Gemm | None:
    if node.target not in (aten.mm.default, aten.bmm.default) or val(node).dtype not in (*FLOATS, torch.bfloat16):
        return None
    a, b = node.args[:2]
    assert isinstance(a, fx.Node) and isinstance(b, fx.Node)
    out = place_of(node)
    places = [out, place_of(a), place_of(b)]
    if val(node).device.type == "cuda" or any(not _has_rows(p) for p in places):
        return None
    if out.dtype is torch.bfloat16 and not _is_of_few_rows(*places):
        return None
    return Gemm(places[0], places[1], places[2], False, str(node.target))


def _is_of_few_rows(out: BufferView, a: BufferView, b: BufferView) -> bool:
    """Whether it is a product of at most eight rows with a matrix that lies column by column, as a weight does."""
    known = all(isinstance(n, int) for place in (out, a, b) for n in (*place.sizes, *place.strides))
    if len(out.sizes) != 2 or not known or not 1 <= out.sizes[0] <= 8:
        return False
    (depth, columns), (s, t) = b.sizes, b.strides
    rows = a.strides[1] == 1 and a.strides[0] >= depth and out.strides[1] == 1
    return rows and depth > 1 and columns > 1 and s == 1 and t >= depth


def _has_rows(place: BufferView) -> bool:
    """Whether BLAS can take it: one of the last two dimensions is dense, the other has a stride that is no shorter."""
    (rows, columns), (s, t) = place.sizes[-2:], place.strides[-2:]
    if not all(isinstance(n, int) for n in (rows, columns, s, t)):
        return bool(t == 1 and s == columns)
    return columns > 0 and rows > 0 and ((t == 1 and s >= columns) or (s == 1 and t >= rows))


def write_program(module: fx.GraphModule, supports: Supports) -> LoopProgram:
    plan = Scheduler(module.graph, supports)
    writer = _ProgramWriter(module.graph, plan)
    for unit in plan.run():
        writer.unit(unit)
    return writer.finished()


class _ProgramWriter:
    """Steps in order. A value is memory, and a tensor only if a call takes it or it is a result.

    A result's shape is that of its tensor: where it is a view of all of a kernel's result, that result is allocated as
    it. Calls get every other view as an `Alias`, which only they see.
    """

    def __init__(self, graph: fx.Graph, plan: Scheduler) -> None:
        self._graph, self._plan = graph, plan
        self._floats = {node.name: node for node in graph.nodes if _is_float(node)}
        self.steps: list[ProgramStep] = []
        self.places: dict[str, BufferView] = {}
        self.tensors: set[str] = set()
        self._in_tensors: dict[fx.Node, str] = {}  # and the tensor's name
        self._aliases: set[str] = set()
        self._may_fail = False
        self._limits: list[NumberRange] = []
        self._given = {node.name for node in graph.find_nodes(op="placeholder")}
        results: Any = graph.output_node().args[0]
        self._results = [r for r in results if isinstance(r, fx.Node)]
        self._whole = self._shown_whole()
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._in_tensors[node] = node.name
                if isinstance(node.meta.get("val"), torch.Tensor):
                    self.places[node.name] = place_of(node)
                    self.tensors.add(node.name)

    def _shown_whole(self) -> dict[fx.Node, fx.Node]:
        """By what results are views of: the one that shows all of it, or itself, where several do or none does."""
        found: dict[fx.Node, fx.Node] = {}
        for result in self._results:
            if isinstance(result.meta.get("val"), torch.Tensor):
                base = root(result)
                alone = base not in found and _shows_all(place_of(result), place_of(base))
                found[base] = result if alone or result is found.get(base) else base
        return found

    def unit(self, unit: Unit) -> None:
        if isinstance(unit, Group):
            launch, limits = write_kernel(self._plan, unit, f"kernel_{len(self.steps)}")
            self._limits += limits
            self._may_fail |= any(isinstance(r.number, str) and r.number not in self._given for r in limits)
            self._may_fail |= any(v.op == "check" for v in launch.kernel.values)
            for node in unit.members:
                if node in self._plan.stored:
                    self._stored(node)
            self._compute_numbers(launch)
            self.steps.append(launch)
        elif (gemm := _as_gemm(unit.node)) is not None:
            self._stored(unit.node)
            self.steps.append(gemm)
        elif unit.node not in self._in_tensors:  # a part of a call's result came with it
            self._call(unit.node)

    def _compute_numbers(self, launch: Launch) -> None:
        """Floats that are computed from sizes come before the kernel that reads them."""
        for name in launch.buffers:
            if name in self._floats:
                self._operand(self._floats[name])

    def _stored(self, node: fx.Node) -> None:
        """A kernel or a GEMM makes it: in the arena, or as a result."""
        shown = self._whole.get(node)
        place = place_of(node if shown is None else shown)
        self.places[node.name] = replace(place, buffer=node.name)
        if shown is not None:
            self.tensors.add(node.name)
            self._in_tensors[shown] = node.name

    def _call(self, node: fx.Node) -> None:
        def ref(arg: Any) -> Any:
            return fx.node.map_arg(arg, lambda n: Ref(self._operand(n)))  # type: ignore[arg-type,return-value]

        args, kwargs = ref(node.args), ref(dict(node.kwargs))
        reads = list(dict.fromkeys(self._operand(operand) for operand in node.all_input_nodes))
        parts = [user for user in node.users if user.target is operator.getitem]
        if parts and len(parts) == len(node.users):
            chosen = [user.args[1] for user in parts]
            outs = [self._made(part) for part in parts]
            self.steps.append(Call(node.target, args, kwargs, outs, reads, str(node.target), chosen))  # type: ignore[arg-type]
        else:
            label = f"{reads[0]}[{node.args[1]}]" if node.target is operator.getitem else str(node.target)
            self.steps.append(Call(node.target, args, kwargs, [self._made(node)], reads, label))

    def _made(self, node: fx.Node) -> str:
        """A call makes it."""
        self._in_tensors[node] = node.name
        self.tensors.add(node.name)
        if isinstance(node.meta.get("val"), torch.Tensor):
            self.places[node.name] = place_of(node)
        return node.name

    def _operand(self, node: fx.Node) -> str:
        """What a call takes."""
        if node not in self._in_tensors:
            if not isinstance(node.meta.get("val"), torch.Tensor):
                self._call(node)  # a number, computed from sizes
            else:
                base = root(node)
                self.tensors.add(base.name)
                if node is base and self._whole.get(base, base) is base:
                    self._in_tensors[node] = node.name
                else:
                    self._alias(node)
        return self._in_tensors[node]

    def _alias(self, node: fx.Node) -> None:
        name = f"{node.name}_alias"
        self.steps.append(Alias(name, place_of(node)))
        self.tensors.add(name)
        self._aliases.add(name)
        self._in_tensors[node] = name

    def _result(self, node: fx.Node) -> str:
        """What is returned: tensors that autograd knows to share memory where they do."""
        found = self._in_tensors.get(node)
        if found is not None and found not in self._aliases:
            return found
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return self._operand(node)
        operand: Any = node.args[0]
        of = self._result(operand)
        rest = fx.node.map_arg(node.args[1:], lambda n: Ref(self._operand(n)))  # type: ignore[arg-type,return-value]
        more = [self._operand(n) for n in node.all_input_nodes if n is not operand]
        kwargs = dict(node.kwargs)
        self.steps.append(
            Call(node.target, (Ref(of), *rest), kwargs, [self._made(node)], [of, *more], str(node.target))
        )
        return node.name

    def finished(self) -> LoopProgram:
        results: Any = self._graph.output_node().args[0]
        outputs = [Ref(self._result(r)) if isinstance(r, fx.Node) else r for r in results]
        placeholders = self._graph.find_nodes(op="placeholder")
        numbers = {node.name: node.meta["val"].node.expr for node in placeholders if _is_symbol(node)}
        inputs = [node.name for node in placeholders]
        return LoopProgram(
            inputs, self.steps, outputs, self.places, self.tensors, numbers, self._may_fail, limits=self._limits
        )


def _shows_all(view: BufferView, base: BufferView) -> bool:
    """Whether a view has all elements of what it shows, each once, and begins where that begins."""
    return bool(view.offset == 0 and _is_dense(view) and _is_dense(base) and product(view.sizes) == product(base.sizes))


def _is_dense(place: BufferView) -> bool:
    """Whether its elements lie in memory without gaps, in the order of some permutation of its dimensions."""
    expected: Size = 1
    dims = [(stride, size) for size, stride in zip(place.sizes, place.strides, strict=True) if size != 1]
    if not all(isinstance(n, int) for dim in dims for n in dim):
        for size, stride in reversed([*zip(place.sizes, place.strides, strict=True)]):
            if size != 1 and stride != expected:
                return False
            expected = expected * size
        return True
    for stride, size in sorted(dims):
        if stride != expected:
            return False
        expected = expected * size
    return True


def _is_float(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (float, torch.SymFloat))


def _is_symbol(node: fx.Node) -> bool:
    number = node.meta.get("val")
    return isinstance(number, torch.SymInt) and number.node.expr.is_Symbol
