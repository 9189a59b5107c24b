"""Which nodes become one kernel.

Enters: an ATen graph, pure, with example values. Leaves: units in order: groups of nodes that one kernel computes, and
nodes that are calls. Nodes are taken from the last to the first, so that a producer sees all who want it, and at which
index. It joins a consumer's group where that computes every element once (or once per row, beside a reduction) and no
cycle of units comes of it; else it gets a group of its own. What is wanted by another unit is stored, everything else
stays in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..support.op_namespaces import has_promised_sizes, is_torchs_own
from .builder import KernelBuilder, V
from .loops import Index, Size, computed_in, product
from .lower import FROM_NOTHING, REDUCTIONS, SCANS, is_fusible, lower, reduce, reduced_dims, scanned_dim, val
from .order import Order
from .views import VIEWS, At, NeedsSplit, NoMap, over, reshaped, sizes_of

aten = torch.ops.aten
Supports = Callable[[str, Sequence[torch.dtype]], bool]
_SIBLINGS = 4  # so many groups are looked at for something to share
LARGEST = 128  # nodes in a group: a kernel of more gains nothing, and is slow to compile


@dataclass
class Group:
    """Nodes that one kernel computes, each with its index in terms of the kernel's axes."""

    number: int
    extents: list[Size] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)  # those in use: a split replaces one by two
    inner: list[int] | None = None  # the axes that its reductions fold; None: it has none
    members: dict[fx.Node, At] = field(default_factory=dict)
    inside: dict[fx.Node, At] = field(default_factory=dict)  # of reductions: the index of their operand
    scans: bool = False  # whether it visits its inner axes in order, and has no reductions
    splits: list[tuple[int, Index]] = field(
        default_factory=list
    )  # axes that were split, and by what they were replaced
    refused: list[str] = field(default_factory=list)  # why not more was fused

    def new_axis(self, extent: Size) -> Index:
        if extent == 1:
            return Index()
        self.extents.append(extent)
        self.axes.append(len(self.extents) - 1)
        return Index.axis(self.axes[-1])

    def moved(self, at: At) -> At:
        """An index from before axes were split."""
        for axis, by in self.splits:
            at = tuple([i.substitute(axis, by) for i in at])
        return at

    @property
    def outer(self) -> list[int]:
        return [a for a in self.axes if a not in (self.inner or ())]


@dataclass
class CallUnit:
    number: int
    node: fx.Node


Unit = Group | CallUnit


class DryRun:
    """A scope that learns what a node wants of its operands; values are made and thrown away."""

    def __init__(self, plan: Scheduler, group: Group) -> None:
        self.b = KernelBuilder()
        self._plan, self._group = plan, group
        self.wanted: list[tuple[fx.Node, At]] = []
        self.in_memory: list[fx.Node] = []
        self.may_fail = False

    def at(self, node: fx.Node, index: At) -> V:
        source, at = self._plan.look_through(node, index, self._group)
        if at is None:
            self.in_memory.append(source)
        else:
            self.wanted.append((source, at))
        return self.b.add("wanted", (), _type(node), (node, index))

    def load(self, node: fx.Node, index: At, condition: V | None) -> V:
        self.in_memory.append(root(node))
        return self.b.add("wanted", (), _type(node), (node, index))

    def unsupported(self, supports: Supports) -> str | None:
        """An operation that the target does not have."""
        for value in self.b.values:
            kinds = [self.b.values[a].dtype for a in value.args]
            if value.op not in _STRUCTURE and not supports(value.op, kinds):
                return f"{value.op} on {', '.join(str(kind).removeprefix('torch.') for kind in kinds)}"
        return None

    def check(self, condition: V) -> None:
        self.may_fail = True

    def number(self, value: Any, within: torch.dtype | None) -> Any:
        if isinstance(value, fx.Node):
            refuse_computed(value, within)
            return self.b.add("wanted", (), torch.float64 if _is_float(value) else torch.int64, value)
        return value


_STRUCTURE = frozenset("wanted const index load store reduce check".split())  # what every target has


def _type(node: fx.Node) -> torch.dtype:
    return computed_in(val(node).dtype)


def _is_float(node: fx.Node) -> bool:
    return isinstance(node.meta["val"], (float, torch.SymFloat))


def range_of(dtype: torch.dtype | None) -> tuple[float, float] | None:
    """The finite numbers of a type that is narrower than those of Python's numbers which it is made from."""
    if dtype in (None, torch.bool, torch.int64, torch.float64):
        return None
    found = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return found.min, found.max


def refuse_computed(number: fx.Node, within: torch.dtype | None) -> None:
    """A fraction that is computed, and then a whole number: neither infinity nor NaN is one."""
    whole = range_of(within) is not None and not within.is_floating_point  # type: ignore[union-attr]
    if whole and _is_float(number) and number.op != "placeholder":
        raise NoMap(f"{number.name} is computed, and must be within the range of {within}")


def root(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def is_view(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in VIEWS and _strided(node)


def _strided(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


class Scheduler:
    def __init__(self, graph: fx.Graph, supports: Supports) -> None:
        self._graph = graph
        self._supports = supports  # whether the target has code for a scalar operation on these types
        self.units: list[Unit] = []
        self.unit_of: dict[fx.Node, Unit] = {}
        self.stored: set[fx.Node] = set()  # nodes that must lie in memory
        self._wants: dict[fx.Node, list[tuple[Group, At]]] = {}
        self._users: dict[fx.Node, set[int]] = {}
        self._loaded: dict[fx.Node, set[int]] = {}  # by node: the units that read it from memory
        self._order = Order()
        self._next_effect: int | None = None
        self._acts = any(map(_acts, graph.nodes))  # then the graph cannot be run anew where a check fails
        self._near: dict[Any, list[tuple[fx.Node, Group]]] = {}  # by space: the last nodes that were placed there
        self._reductions: dict[fx.Node, frozenset[tuple[tuple[Size, ...], tuple[int, ...]]]] = {}

    # -- what is wanted

    def look_through(self, node: fx.Node, at: At, group: Group) -> tuple[fx.Node, At | None]:
        """Past views to what computes the value, with its index; no index: it must be loaded, through the view."""
        start = node
        while is_view(node):
            try:
                at = VIEWS[node.target](node, at, group.extents)
            except NoMap as why:
                group.refused.append(f"{start.name}: {why}")
                return root(start), None
            node = node.args[0]  # type: ignore[assignment]
        return node, at

    def _want(self, group: Group, node: fx.Node, at: At) -> None:
        self._users.setdefault(node, set()).add(group.number)
        if is_fusible(node):
            self._wants.setdefault(node, []).append((group, at))

    def _in_memory(self, unit: int, node: fx.Node) -> None:
        node = root(node)
        self.stored.add(node)
        self._users.setdefault(node, set()).add(unit)
        self._loaded.setdefault(node, set()).add(unit)

    def _split(self, group: Group, axis: int, factor: Size) -> None:
        """An axis becomes two, everywhere in the group."""
        group.extents += [over(group.extents[axis], factor), factor]
        high, low = len(group.extents) - 2, len(group.extents) - 1
        by = Index.axis(high) * factor + Index.axis(low)
        group.splits.append((axis, by))
        at = group.axes.index(axis)
        group.axes[at : at + 1] = [high, low]
        if group.inner is not None and axis in group.inner:
            at = group.inner.index(axis)
            group.inner[at : at + 1] = [high, low]
        for table in (group.members, group.inside):
            for node, index in table.items():
                table[node] = tuple([i.substitute(axis, by) for i in index])
        for wants in self._wants.values():
            wants[:] = [
                (g, tuple([i.substitute(axis, by) for i in index]) if g is group else index) for g, index in wants
            ]

    # -- nodes, from the last to the first

    def run(self) -> list[Unit]:
        for node in reversed(self._graph.nodes):
            if node.op == "output":
                for result in node.all_input_nodes:
                    if isinstance(result.meta.get("val"), torch.Tensor):
                        self.stored.add(root(result))
            elif node.op == "call_function" and not is_view(node):
                self._place(node)
            self._wants.pop(node, None)  # it has its place, or none: splits need not look there any more
        return self._ordered()

    def _place(self, node: fx.Node) -> None:
        if not isinstance(node.meta.get("val"), torch.Tensor) and _is_number(node):
            return
        wanted = node in self._users or node in self.stored
        if not wanted and not _has_effect(node) and not has_promised_sizes(node):
            return
        if not is_fusible(node):
            self._call(node)
            return
        if node.target in FROM_NOTHING and node not in self.stored:
            return  # written anew wherever it is wanted
        for group, at in () if node.target in SCANS else (*self._candidates(node), *self._siblings(node)):
            if self._join(node, group, at):
                self._note(node, group)
                return
        group = Group(len(self.units))
        self._open(group)
        at = tuple([group.new_axis(size) for size in sizes_of(node)])
        self.stored.add(node)
        try:
            joined = self._join(node, group, at)
        except NoMap:
            joined = False
        if joined and node.target in SCANS:
            along = set(group.members[node][scanned_dim(node)].axes)
            group.scans, group.inner = True, [axis for axis in group.axes if axis in along]  # in the order of splits
        elif joined:
            self._note(node, group)
        else:
            self.units.pop()
            self._order.drop_last()
            self._call(node)

    def _open(self, unit: Unit) -> None:
        self.units.append(unit)
        self._order.add()

    def _call(self, node: fx.Node) -> None:
        unit = CallUnit(len(self.units), node)
        self._open(unit)
        self.unit_of[node] = unit
        self.stored.add(node)
        for user in self._users.get(node, ()):
            self._order.edge(unit.number, user)
        for operand in node.all_input_nodes:
            self._in_memory(unit.number, operand)
        if _has_effect(node):
            if self._next_effect is not None:
                self._order.edge(unit.number, self._next_effect)
            self._next_effect = unit.number

    def _candidates(self, node: fx.Node) -> Iterator[tuple[Group, At]]:
        """The groups that it could join: all of a group's wants are for the same elements."""
        by_group: dict[int, tuple[Group, set[At]]] = {}
        for group, at in self._wants.get(node, ()):
            by_group.setdefault(group.number, (group, set()))[1].add(at)
        users = self._users.get(node, set())
        for number, (group, found) in sorted(by_group.items()):
            if len(found) > 1:
                group.refused.append(f"{node.name} is wanted at several indices")
            elif number in self._loaded.get(node, ()):
                group.refused.append(f"{node.name} is loaded from memory here")
            elif len(group.members) >= LARGEST:
                group.refused.append(f"{node.name}: the kernel has {LARGEST} operations")
            elif any(user != number and self._order.reaches(user, number) for user in users):
                group.refused.append(f"{node.name} is wanted by something that must run before")
            else:
                yield group, next(iter(found))

    # -- groups that read the same

    def _space(self, node: fx.Node) -> Any:
        """What it loops over: equal spaces, equal loops."""
        if node.target in REDUCTIONS:
            return sizes_of(node.args[0]), reduced_dims(node)  # type: ignore[arg-type]
        return sizes_of(node), None

    def _note(self, node: fx.Node, group: Group) -> None:
        near = self._near.setdefault(self._space(node), [])
        near.append((node, group))
        del near[:-_SIBLINGS]

    def _siblings(self, node: fx.Node) -> Iterator[tuple[Group, At]]:
        """Groups with the same loops that read some of the same, where nobody waits for the other."""
        users = self._users.get(node, set())
        wanted = self._wants.get(node, ())
        if node.target not in REDUCTIONS and wanted:
            return  # it has been refused by who wants it; alone it can still be a member of a group to come
        for other, group in reversed(self._near.get(self._space(node), ())):
            if (
                not users & {group.number}
                and len(group.members) < LARGEST
                and _sources(node) & _sources(other)
                and not any(self._order.reaches(user, group.number) for user in users)
            ):
                yield group, self._like(node, other, group)

    def _like(self, node: fx.Node, other: fx.Node, group: Group) -> At:
        """The index of a node in the loops of another one."""
        if node.target not in REDUCTIONS:
            return group.members[other]
        dims, inside = reduced_dims(node), group.inside[other]
        if len(sizes_of(node)) == len(inside):
            return tuple([Index() if d in dims else index for d, index in enumerate(inside)])
        return tuple([index for d, index in enumerate(inside) if d not in dims])

    def _join(self, node: fx.Node, group: Group, at: At) -> bool:
        had_inner = group.inner is not None
        users = self._users.get(node, set())
        alone = node not in self.stored and users <= {group.number}
        fits = (
            self._fits_reduction(node, group, at, alone)
            if node.target in REDUCTIONS
            else self._fits(node, group, at, alone)
        )
        if fits:
            group.members[node] = group.moved(at)
            probe = self._probe(node, group)
            if probe is not None:
                self.unit_of[node] = group
                for operand, index in probe.wanted:
                    self._want(group, operand, index)
                for operand in probe.in_memory:
                    self._in_memory(group.number, operand)
                for user in users:
                    self._order.edge(group.number, user)
                if users - {group.number}:
                    self.stored.add(node)
                return True
            del group.members[node]
        group.inside.pop(node, None)
        if not had_inner:  # splits stay, they change nothing; axes that were added for the node go
            group.inner = None
            used = {a for index in group.members.values() for i in index for a in i.axes}
            group.axes = [a for a in group.axes if a in used]
        return False

    def _probe(self, node: fx.Node, group: Group) -> DryRun | None:
        """What the node wants, with axes split as that needs."""
        for _ in range(8):
            probe = DryRun(self, group)
            try:
                if node.target in REDUCTIONS:
                    reduce(probe, node, group.inside[node])
                else:
                    lower(probe, node, group.members[node])
                missing = probe.unsupported(self._supports)
                if probe.may_fail and self._acts:
                    group.refused.append(f"{node.name}: it can fail, in a graph with effects")
                    return None
                if missing is None:
                    return probe
                group.refused.append(f"{node.name}: the target has no {missing}")
                return None
            except NeedsSplit as split:
                self._split(group, split.axis, split.factor)
            except NoMap as why:
                group.refused.append(f"{node.name}: {why}")
                return None
        return None

    def _fits(self, node: fx.Node, group: Group, at: At, alone: bool) -> bool:
        """Whether the group's loops compute each of its elements once (or fewer, if nobody else wants the others)."""
        used = {a for index in at for a in index.axes}
        if not alone and not _covers(at, sizes_of(node), group.extents):
            group.refused.append(f"{node.name} is only partly computed here")
            return False
        if any(index.gathered for index in at):
            group.refused.append(f"{node.name} is gathered from")
            return False
        if group.inner is not None and used == set(group.outer):
            return True
        if used == set(group.axes):
            if group.inner is None or alone or not self._folds_otherwise(node, group, at):
                return True
            group.refused.append(f"{node.name} is made of reductions over other axes")
            return False
        missing = [a for a in group.axes if a not in used]
        if group.inner is None and _leads_to_reduction(node, product([group.extents[a] for a in missing])):
            group.inner = missing
            return True
        group.refused.append(f"{node.name} would be computed once per row")
        return False

    def _folds_otherwise(self, node: fx.Node, group: Group, at: At) -> bool:
        """Whether it is computed from reductions that these loops cannot compute, so it had better be with them."""
        assert group.inner is not None
        sizes, inner = sizes_of(node), set(group.inner)
        elements, count = product(sizes), product([group.extents[a] for a in inner])
        for folded, dims in self._behind(node):
            if folded == sizes:
                other = {a for d in dims for a in at[d].axes} != inner
            else:  # seen through a view: as far as numbers of elements tell
                other = product(folded) == elements and product([folded[d] for d in dims]) != count
            if other:
                return True
        return False

    def _behind(self, node: fx.Node, depth: int = 16) -> frozenset[tuple[tuple[Size, ...], tuple[int, ...]]]:
        """Reductions that it is computed from, by pointwise operators in between: sizes and dimensions."""
        found = self._reductions.get(node)
        if found is None:
            made: set[tuple[tuple[Size, ...], tuple[int, ...]]] = set()
            for operand in node.all_input_nodes:
                source = root(operand)
                if not is_fusible(source) or depth == 0 or len(made) > 8:
                    continue
                if source.target in REDUCTIONS:
                    made.add(self._space(source))
                else:
                    made |= self._behind(source, depth - 1)
            found = self._reductions[node] = frozenset(made)
        return found

    def _fits_reduction(self, node: fx.Node, group: Group, at: At, alone: bool) -> bool:
        operand: Any = node.args[0]
        sizes, dims = sizes_of(operand), reduced_dims(node)
        folded = [sizes[d] for d in dims]
        used = {a for index in at for a in index.axes}
        if group.scans:
            group.refused.append(f"{node.name}: it is folded before it is scanned")
            return False
        if (
            any(size == 0 for size in sizes)
            or not _covers(at, sizes_of(node), group.extents)
            or any(i.gathered for i in at)
        ):
            group.refused.append(f"{node.name}: its result is not computed once here")
            return False
        if group.inner is None:
            missing = [a for a in group.axes if a not in used]
            if missing and product([group.extents[a] for a in missing]) != product(folded):
                group.refused.append(f"{node.name}: it folds other axes")
                return False
            group.inner = missing
            if not missing:
                new = [group.new_axis(size) for size in folded]
                group.inner = [a for index in new for a in index.axes]
        elif used != set(group.outer) or product([group.extents[a] for a in group.inner]) != product(folded):
            group.refused.append(f"{node.name}: it folds other axes")
            return False
        return self._map_folded(node, group, at, sizes, dims)

    def _map_folded(self, node: fx.Node, group: Group, at: At, sizes: tuple[Size, ...], dims: tuple[int, ...]) -> bool:
        assert group.inner is not None
        for _ in range(8):
            shown = [group.extents[a] for a in group.inner]
            try:
                inside = iter(
                    reshaped(
                        tuple([Index.axis(a) for a in group.inner]), shown, [sizes[d] for d in dims], group.extents
                    )
                )
            except NeedsSplit as split:
                self._split(group, split.axis, split.factor)
                at = group.moved(at)
                continue
            except NoMap:
                group.refused.append(f"{node.name}: its axes do not match")
                return False
            keeps = len(sizes_of(node)) == len(sizes)
            kept = iter([at[d] for d in range(len(sizes)) if d not in dims] if keeps else at)
            group.inside[node] = tuple([next(inside) if d in dims else next(kept) for d in range(len(sizes))])
            return True
        return False

    # -- the end

    def _ordered(self) -> list[Unit]:
        """Units in an order that their edges allow, close to that of the graph."""
        position = {node: i for i, node in enumerate(self._graph.nodes)}
        key = []
        for unit in self.units:
            nodes = [unit.node] if isinstance(unit, CallUnit) else list(unit.members)
            key.append(max(position[n] for n in nodes))
        return [self.units[number] for number in self._order.sorted(key)]


def _covers(at: At, sizes: tuple[Size, ...], extents: list[Size]) -> bool:
    """Whether the index runs over every element once."""
    used = [a for index in at for a in index.axes]
    if len(used) != len(set(used)):
        return False
    return bool(product([extents[a] for a in used]) == product(sizes))


def _leads_to_reduction(node: fx.Node, folded: Size, depth: int = 8) -> bool:
    """Whether it is computed, row by row, from a reduction over so many elements."""
    if depth == 0 or folded == 1:
        return False
    for operand in node.all_input_nodes:
        source = root(operand)
        if source.target in REDUCTIONS and is_fusible(source):
            sizes = sizes_of(source.args[0])  # type: ignore[arg-type]
            if product([sizes[d] for d in reduced_dims(source)]) == folded:
                return True
        elif is_fusible(source) and _leads_to_reduction(source, folded, depth - 1):
            return True
    return False


def _sources(node: fx.Node, depth: int = 3) -> set[fx.Node]:
    """What it is computed from, a few operators back."""
    found: set[fx.Node] = set()
    for operand in node.all_input_nodes:
        source = root(operand)
        if isinstance(source.meta.get("val"), torch.Tensor) and source.target not in FROM_NOTHING:
            found.add(source)
            if depth > 0 and is_fusible(source):
                found |= _sources(source, depth - 1)
    return found


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def _has_effect(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable or not target._schema.returns


def _acts(node: fx.Node) -> bool:
    """Whether it has an effect that would be seen twice; random numbers can be drawn again."""
    target = node.target
    if not _has_effect(node) or torch.Tag.nondeterministic_seeded in target.tags:  # type: ignore[union-attr]
        return False
    return target._schema.is_mutable or not is_torchs_own(target)  # type: ignore[union-attr]
