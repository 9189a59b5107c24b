"""Groups become kernels, the graph becomes a program.

Enters: the scheduler's units. Leaves: a `Program`: launches, GEMMs and calls in order, on named buffers.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from .builder import Builder, V
from .loops import Buffer, Call, Gemm, Index, Kernel, Launch, Place, Program, Ref, Size, check, computed_in
from .lower import FROM_NOTHING, REDUCTIONS, lower, reduce, val
from .schedule import CallUnit, Group, Scheduler, Supports, is_view, root
from .simplify import simplify
from .views import At, NoMap, size_of, sizes_of

aten = torch.ops.aten


def strides_of(node: fx.Node) -> tuple[Size, ...]:
    return tuple([size_of(s) for s in val(node).stride()])


def place_of(node: fx.Node) -> Place:
    """Where a node's value lies: in its own buffer, or in that of what it is a view of."""
    base = root(node)
    offset = size_of(val(node).storage_offset()) - size_of(val(base).storage_offset())
    return Place(base.name, val(node).dtype, sizes_of(node), strides_of(node), offset)


class Writer:
    """The scope in which a group's nodes are lowered."""

    def __init__(self, plan: Scheduler, group: Group) -> None:
        self.b = Builder()
        self._plan, self._group = plan, group
        self.buffers: dict[str, int] = {}
        self.types: list[torch.dtype] = []
        self._made: dict[fx.Node, V] = {}
        self.numbers: list[Any] = []

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
        if base.target in FROM_NOTHING and base not in self._plan.stored:
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

    def number(self, value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        number = value.meta["val"]
        if isinstance(number, (torch.SymInt, int)):
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


def _flat(place: Place, at: At) -> Index:
    index = Index(place.offset)
    for i, stride in zip(at, place.strides, strict=True):
        index = index + i * stride
    return index


def write_kernel(plan: Scheduler, group: Group, name: str) -> Launch:
    writer = Writer(plan, group)
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
    return Launch(kernel, [b.name for b in kernel.buffers], [node.name for node in stored])


def _line(node: fx.Node) -> str:
    trace = str(node.meta.get("stack_trace") or "")
    lines = [line.strip() for line in trace.strip().splitlines()]
    return lines[-1] if lines else ""


# ------------------------------------------------------------------------------------------------------ calls


def _as_gemm(node: fx.Node) -> Gemm | None:
    if node.target not in (aten.mm.default, aten.bmm.default) or val(node).dtype not in (torch.float32, torch.float64):
        return None
    a, b = node.args[:2]
    assert isinstance(a, fx.Node) and isinstance(b, fx.Node)
    out = place_of(node)
    places = [out, place_of(a), place_of(b)]
    if val(node).device.type == "cuda" or any(not _has_rows(p) for p in places):
        return None
    return Gemm(places[0], places[1], places[2], False, str(node.target))


def _has_rows(place: Place) -> bool:
    """Whether BLAS can take it: one of the last two dimensions is dense, the other has a stride that is no shorter."""
    (rows, columns), (s, t) = place.sizes[-2:], place.strides[-2:]
    if not all(isinstance(n, int) for n in (rows, columns, s, t)):
        return bool(t == 1 and s == columns)
    return columns > 0 and rows > 0 and ((t == 1 and s >= columns) or (s == 1 and t >= rows))


def _call(node: fx.Node) -> Call:
    def ref(arg: Any) -> Any:
        return fx.node.map_arg(arg, lambda n: Ref(n.name))  # type: ignore[arg-type,return-value]

    reads = [operand.name for operand in node.all_input_nodes]
    label = str(node.target) if node.target is not operator.getitem else f"{reads[0]}[{node.args[1]}]"
    return Call(node.target, ref(node.args), ref(dict(node.kwargs)), node.name, reads, label)


def write_program(module: fx.GraphModule, supports: Supports) -> Program:
    graph = module.graph
    plan = Scheduler(graph, supports)
    units = plan.run()
    inputs = [node.name for node in graph.find_nodes(op="placeholder")]
    tensors: set[str] = set()
    places: dict[str, Place] = {}
    steps: list[Launch | Gemm | Call] = []
    made: set[fx.Node] = set()

    def as_tensor(node: fx.Node) -> None:
        """The node's value is wanted as a tensor: a view is made by its operator, of its base as a tensor."""
        if node in made:
            return
        made.add(node)
        if is_view(node) or _computes_number(node):
            for operand in node.all_input_nodes:
                as_tensor(operand)
            steps.append(_call(node))
        tensors.add(node.name)

    may_fail = False
    for unit in units:
        if isinstance(unit, CallUnit):
            gemm = _as_gemm(unit.node)
            if gemm is not None:
                steps.append(gemm)
                places[gemm.out.buffer] = gemm.out
                continue
            for operand in unit.node.all_input_nodes:
                as_tensor(operand)
            steps.append(_call(unit.node))
            tensors.add(unit.node.name)
            made.add(unit.node)
        else:
            launch = write_kernel(plan, unit, f"kernel_{len(steps)}")
            may_fail |= any(v.op == "check" for v in launch.kernel.values)
            for node in unit.members:
                if node in plan.stored:
                    places[node.name] = place_of(node)
            steps.append(launch)
    outputs: list[Any] = []
    for result in graph.output_node().args[0]:  # type: ignore[union-attr]
        if isinstance(result, fx.Node):
            as_tensor(result)
            outputs.append(Ref(result.name))
        else:
            outputs.append(result)
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr") and isinstance(node.meta.get("val"), torch.Tensor):
            places[node.name] = place_of(node)
            tensors.add(node.name)
    numbers = {node.name: node.meta["val"].node.expr for node in graph.find_nodes(op="placeholder") if _is_symbol(node)}
    return Program(inputs, steps, outputs, places, tensors, numbers, may_fail)


def _computes_number(node: fx.Node) -> bool:
    """Sizes as nodes: `sym_size`, arithmetic."""
    return node.op == "call_function" and isinstance(
        node.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
    )


def _is_symbol(node: fx.Node) -> bool:
    number = node.meta.get("val")
    return isinstance(number, torch.SymInt) and number.node.expr.is_Symbol
