"""From nodes of an ATen graph to values of kernels.

Enters: a node, the index at which it is wanted, and a *scope* that answers for its operands (`at`: the operand's value
there; `load`: an element of an operand that lies in memory). Leaves: a `V`. The scheduler calls this twice: once to
learn what a node wants of its operands, once to write the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from . import special as special  # its rows
from .builder import KernelBuilder, V
from .loops import STORABLE, Index, Size, computed_in, product
from .pointwise import POINTWISE, PointwiseRow
from .random_numbers import random_bits
from .views import At, NoMap, broadcast, size_of, sizes_of

aten, prims = torch.ops.aten, torch.ops.prims


class LoweringScope(Protocol):
    b: KernelBuilder

    def at(self, node: fx.Node, index: At) -> V: ...

    def load(self, node: fx.Node, index: At, condition: V | None) -> V: ...

    def check(self, condition: V) -> None: ...

    def number(self, value: Any, within: torch.dtype | None) -> Any:
        """`within`: eager converts the number to this type, and raises where that has no such number."""


Lowering = Callable[[LoweringScope, fx.Node, At], V]


def val(node: fx.Node) -> torch.Tensor:
    return node.meta["val"]


def is_fusible(node: fx.Node) -> bool:
    """Whether a kernel can compute it."""
    if node.op != "call_function" or (
        node.target not in POINTWISE and node.target not in LOWERINGS and node.target not in REDUCTIONS
    ):
        return False
    result = node.meta.get("val")
    tensors = [n.meta.get("val") for n in node.all_input_nodes]
    if not all(_plain(t) for t in (result, *tensors)):
        return False
    supported = _SUPPORTED.get(node.target)
    return supported is None or supported(node)


def _plain(value: Any) -> bool:
    if isinstance(value, (torch.SymInt, torch.SymFloat, int, float)):
        return True
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in STORABLE
        and value.layout is torch.strided
        and not value.is_neg()
        and value.device.type in ("cpu", "meta", "cuda")
    )


def lower(scope: LoweringScope, node: fx.Node, at: At) -> V:
    """The node's value at an index."""
    special = LOWERINGS.get(node.target)
    if special is not None:
        return special(scope, node, at)
    return _pointwise(scope, node, at, POINTWISE[node.target])


def _pointwise(scope: LoweringScope, node: fx.Node, at: At, row: PointwiseRow) -> V:
    dtype = _operand_type(node, row)
    shown = sizes_of(node)

    wrapped = {*node.args[:2]} if node.target in _WRAPPED else ()

    def operand(arg: Any) -> Any:
        if not isinstance(arg, fx.Node):
            return arg
        if not isinstance(arg.meta["val"], torch.Tensor):
            number = scope.number(arg, None if arg in wrapped else val(node).dtype)
            to = dtype(len(seen), number.dtype)
            return number if to is None else number.to(computed_in(to))
        value = scope.at(arg, broadcast(at, shown, sizes_of(arg)))
        kind = val(arg).dtype
        if row.compares or (node.target in _CASTS and not val(node).dtype.is_floating_point):
            value = scope.b.rounded(value, kind)
        to = dtype(len(seen), kind)
        seen.append(arg)
        return value if to is None else value.to(computed_in(to))

    seen: list[fx.Node] = []
    args = [operand(arg) for arg in node.args]
    kwargs = {k: operand(arg) for k, arg in node.kwargs.items() if k in _MEANT}
    if not any(isinstance(a, V) for a in (*args, *kwargs.values())):
        raise NoMap("no tensor among the operands")
    result = row.formula(*args, **kwargs)
    return scope.b.cast(result, val(node).dtype) if node.target in _CASTS else result.to(computed_in(val(node).dtype))


# What these take beside a tensor becomes a tensor, whose conversion checks nothing.
_WRAPPED = frozenset(
    op
    for name in "add sub rsub mul div remainder fmod pow floor_divide eq ne lt le gt ge bitwise_and bitwise_or "
    "bitwise_xor __lshift__ __rshift__ bitwise_left_shift bitwise_right_shift".split()
    for overload in getattr(aten, name).overloads()
    if (op := getattr(getattr(aten, name), overload)) in POINTWISE
)
_MEANT = frozenset("alpha value rounding_mode approximate min max nan posinf neginf low high".split())
_CASTS = frozenset((aten._to_copy.default, prims.convert_element_type.default, aten.copy.default))


def _operand_type(node: fx.Node, row: PointwiseRow) -> Callable[[int, torch.dtype], torch.dtype | None]:
    result = val(node).dtype
    if row.promote == "own":
        return lambda position, own: None
    if row.promote == "where":
        return lambda position, own: None if position == 0 else result
    if row.promote == "masked":
        return lambda position, own: None if position == 1 else result
    if row.promote == "common":
        x, y = [a.meta["val"] if isinstance(a, fx.Node) else a for a in node.args[:2]]  # type: Any, Any
        common = torch.result_type(x, y)
        return lambda position, own: common
    if node.target in _CASTS:
        return lambda position, own: None
    return lambda position, own: result


# ------------------------------------------------------------------------------------------ creating from nothing


def _full(scope: LoweringScope, node: fx.Node, at: At) -> V:
    return _filled(scope, node, node.args[1])


def _filled(scope: LoweringScope, node: fx.Node, number: Any) -> V:
    dtype = computed_in(val(node).dtype)
    value = scope.number(number, val(node).dtype)
    result = value if isinstance(value, V) else scope.b.const(value, dtype)
    return scope.b.rounded(result.to(dtype), val(node).dtype)


def _constant(number: int) -> Lowering:
    return lambda scope, node, at: scope.b.const(number, val(node).dtype)


def _arange(scope: LoweringScope, node: fx.Node, at: At) -> V:
    numbers = [a for a in node.args if a is not None]
    start: Any = 0
    step: Any = 1
    if node.target is not aten.arange.default:
        start, step = numbers[0], numbers[2] if len(numbers) > 2 else node.kwargs.get("step", 1)
    return _progression(scope, node, at, start, step)


def _arange_supported(node: fx.Node) -> bool:
    """Fractions are converted before they are added up, or after, as the type has it: left to ATen where it matters."""
    fractions = any(isinstance(n, float) for n in (*node.args, node.kwargs.get("step")))
    return not fractions or val(node).dtype in (torch.float32, torch.float64)


def _progression(scope: LoweringScope, node: fx.Node, at: At, start: Any, step: Any) -> V:
    dtype = val(node).dtype
    start, step = (n if isinstance(n, float) else size_of(n) for n in (start, step))
    if isinstance(start, float) or isinstance(step, float):
        position = scope.b.index(at[0]).to(torch.float64)
        return (start + position * float(step)).to(dtype)
    return scope.b.cast(scope.b.index(at[0] * step + start), dtype)


# ------------------------------------------------------------------------------------------------- gathering


def _row_number(scope: LoweringScope, index: V, size: Size, *, wraps: bool) -> V:
    """An index from memory, checked: what lies outside is not read, and the call fails."""
    if size == 0:
        raise NoMap("there is nothing to gather from")
    index = index.to(torch.int64)
    limit = scope.b.index(Index(size))
    if wraps:
        index = scope.b.where(index < 0, index + limit, index)
    inside = (index >= 0) & (index < limit)
    scope.check(inside)
    return scope.b.where(inside, index, scope.b.const(0, torch.int64))


def _gathered(value: V) -> Index:
    return Index(0, (), ((value.id, 1),))


def _embedding(scope: LoweringScope, node: fx.Node, at: At) -> V:
    weight, indices = node.args[:2]
    assert isinstance(weight, fx.Node) and isinstance(indices, fx.Node)
    number = _row_number(scope, scope.at(indices, at[:-1]), sizes_of(weight)[0], wraps=False)
    return scope.load(weight, (_gathered(number), at[-1]), None)


def _index_select(scope: LoweringScope, node: fx.Node, at: At) -> V:
    source, dim, indices = node.args
    assert isinstance(source, fx.Node) and isinstance(indices, fx.Node)
    sizes = sizes_of(source)
    if not sizes:
        raise NoMap("of a number")
    d = size_of(dim) % len(sizes)
    position = scope.at(indices, at[d : d + 1] if sizes_of(indices) else ())
    number = _row_number(scope, position, sizes[d], wraps=False)
    return scope.load(source, (*at[:d], _gathered(number), *at[d + 1 :]), None)


def _gather(scope: LoweringScope, node: fx.Node, at: At) -> V:
    source, dim, indices = node.args[:3]
    assert isinstance(source, fx.Node) and isinstance(indices, fx.Node)
    sizes = sizes_of(source)
    if not sizes or len(sizes) != len(sizes_of(indices)):
        raise NoMap("of a number, or by a number")
    d = size_of(dim) % len(sizes)
    number = _row_number(scope, scope.at(indices, at), sizes[d], wraps=False)
    return scope.load(source, (*at[:d], _gathered(number), *at[d + 1 :]), None)


def _index(scope: LoweringScope, node: fx.Node, at: At) -> V:
    source: Any = node.args[0]
    indices: Any = node.args[1]
    sizes = sizes_of(source)
    given = [d for d, i in enumerate(indices) if i is not None]
    adjacent = given == list(range(given[0], given[-1] + 1))
    shape: Any = torch.broadcast_shapes(*[val(indices[d]).shape for d in given])  # type: ignore[no-untyped-call]
    rank = len(shape)
    begin = given[0] if adjacent else 0
    picked, rest = at[begin : begin + rank], iter([*at[:begin], *at[begin + rank :]])
    shown = tuple([size_of(s) for s in shape])
    result = []
    for d, size in enumerate(sizes):
        if d < len(indices) and indices[d] is not None:
            value = scope.at(indices[d], broadcast(picked, shown, sizes_of(indices[d])))
            result.append(_gathered(_row_number(scope, value, size, wraps=True)))
        else:
            result.append(next(rest))
    return scope.load(source, tuple(result), None)


def _index_supported(node: fx.Node) -> bool:
    indices: Any = node.args[1]
    return all(i is None or val(i).dtype in (torch.int64, torch.int32) for i in indices) and any(
        i is not None for i in indices
    )


# ------------------------------------------------------------------------------------ putting together, padding


def _inside(scope: LoweringScope, index: Index, size: Size) -> V:
    position = scope.b.index(index)
    return (position >= 0) & (position < scope.b.index(Index(size)))


def _cat(scope: LoweringScope, node: fx.Node, at: At) -> V:
    parts: Any = node.args[0]
    dtype = val(node).dtype
    rank = len(at)
    dim = size_of(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % rank
    start: Size = 0
    result: V | None = None
    pieces: list[tuple[V, V]] = []
    for part in parts:
        sizes = sizes_of(part)
        if len(sizes) != rank:  # an empty one, of one dimension
            continue
        inside = (*at[:dim], at[dim] + (0 - start), *at[dim + 1 :])
        condition = _inside(scope, inside[dim], sizes[dim])
        pieces.append((condition, scope.load(part, inside, condition).to(computed_in(dtype))))
        start = start + sizes[dim]
    for condition, value in reversed(pieces):
        result = value if result is None else scope.b.where(condition, value, result)
    if result is None:
        raise NoMap("nothing to put together")
    return scope.b.rounded(result, dtype)


def _pad(scope: LoweringScope, node: fx.Node, at: At) -> V:
    source, pads = node.args[:2]
    assert isinstance(source, fx.Node) and isinstance(pads, (list, tuple))
    sizes = sizes_of(source)
    number = node.args[2] if len(node.args) > 2 else node.kwargs.get("value", 0)
    inside, conditions = list(at), []
    for k in range(len(pads) // 2):
        before, after = size_of(pads[2 * k]), size_of(pads[2 * k + 1])
        d = len(at) - 1 - k
        inside[d] = at[d] + (0 - before)
        if before != 0 or after != 0:
            conditions.append(_inside(scope, inside[d], sizes[d]))
    condition = scope.b.all(conditions)
    value = scope.load(source, tuple(inside), condition)
    if condition is None:
        return value
    return scope.b.where(condition, value, scope.b.const(number, val(source).dtype))  # type: ignore[arg-type]


def _flip(scope: LoweringScope, node: fx.Node, at: At) -> V:
    source, dims = node.args
    assert isinstance(source, fx.Node) and isinstance(dims, (list, tuple))
    inside = list(at)
    sizes = sizes_of(source)
    for dim in dims:
        d = size_of(dim) % len(sizes)
        inside[d] = at[d] * -1 + (sizes[d] - 1)
    return scope.at(source, tuple(inside))


def _triangle(upper: bool) -> Lowering:
    def lowering(scope: LoweringScope, node: fx.Node, at: At) -> V:
        source: Any = node.args[0]
        diagonal = size_of(node.args[1] if len(node.args) > 1 else node.kwargs.get("diagonal", 0))
        rows, columns = scope.b.index(at[-2] + diagonal), scope.b.index(at[-1])
        value = scope.at(source, at)
        kept = columns >= rows if upper else columns <= rows
        return scope.b.where(kept, value, scope.b.const(0, value.dtype))

    return lowering


def _slice_scatter(scope: LoweringScope, node: fx.Node, at: At) -> V:
    base, part, *given = node.args
    assert isinstance(base, fx.Node) and isinstance(part, fx.Node)
    dim, start, _, step = [*given, *[None] * 4][:4]
    d = size_of(dim or 0) % len(at)
    size = sizes_of(base)[d]
    begin, step = size_of(start or 0), size_of(step or 1)
    if step != 1 or not isinstance(begin, int):
        raise NoMap("a slice with steps")
    if begin < 0:
        begin = max(begin + size, 0)
    inside = (*at[:d], at[d] + -begin, *at[d + 1 :])
    condition = _inside(scope, inside[d], sizes_of(part)[d])
    return scope.b.where(
        condition, scope.load(part, inside, condition).to(computed_in(val(node).dtype)), scope.at(base, at)
    )


def _select_scatter(scope: LoweringScope, node: fx.Node, at: At) -> V:
    base, part, dim, position = node.args
    assert isinstance(base, fx.Node) and isinstance(part, fx.Node)
    d = size_of(dim) % len(at)
    number = size_of(position)
    if isinstance(number, int) and number < 0:
        number = number + sizes_of(base)[d]
    condition = scope.b.index(at[d]).eq(scope.b.index(Index(number)))
    value = scope.at(part, (*at[:d], *at[d + 1 :])).to(computed_in(val(node).dtype))
    return scope.b.where(condition, value, scope.at(base, at))


def _select_backward(scope: LoweringScope, node: fx.Node, at: At) -> V:
    part, sizes, dim, position = node.args
    assert isinstance(part, fx.Node) and isinstance(sizes, (list, tuple))
    d = size_of(dim) % len(at)
    number = size_of(position)
    if isinstance(number, int) and number < 0:
        number = number + size_of(sizes[d])
    condition = scope.b.index(at[d]).eq(scope.b.index(Index(number)))
    value = scope.at(part, (*at[:d], *at[d + 1 :]))
    return scope.b.where(condition, value, scope.b.const(0, value.dtype))


def _slice_backward(scope: LoweringScope, node: fx.Node, at: At) -> V:
    part, sizes, dim, start, _, step = node.args
    assert isinstance(part, fx.Node) and isinstance(sizes, (list, tuple))
    d = size_of(dim) % len(at)
    begin = size_of(start)
    if size_of(step) != 1 or not isinstance(begin, int):
        raise NoMap("a slice with steps")
    if begin < 0:
        begin = max(begin + size_of(sizes[d]), 0)
    inside = (*at[:d], at[d] + -begin, *at[d + 1 :])
    condition = _inside(scope, inside[d], sizes_of(part)[d])
    value = scope.load(part, inside, condition)
    return scope.b.where(condition, value, scope.b.const(0, value.dtype))


def _repeat(scope: LoweringScope, node: fx.Node, at: At) -> V:
    source: Any = node.args[0]
    inside = sizes_of(source)
    added = len(at) - len(inside)
    for size, shown in zip(inside, sizes_of(node)[added:], strict=True):
        if size != 1 and size != shown:
            raise NoMap("a dimension is repeated")
    return scope.at(source, broadcast(at, sizes_of(node), inside))


def _random_bits(scope: LoweringScope, node: fx.Node, at: At) -> V:
    seed: Any = node.args[0]
    more = node.args[2] if len(node.args) > 2 else node.kwargs.get("more", False)
    position = Index()
    for index, size in zip(at, sizes_of(node), strict=True):
        position = position * size + index
    return scope.b.op("philox_more" if more else "philox", scope.at(seed, ()), scope.b.index(position))


def _scan(kind: str) -> Lowering:
    """Added up as eager does it: one by one, in a wider type."""

    def lowering(scope: LoweringScope, node: fx.Node, at: At) -> V:
        operand: Any = node.args[0]
        if not at or not any(True for _ in at[scanned_dim(node)].axes):
            raise NoMap("along one element")
        result = val(node).dtype
        wide = torch.float64 if result is torch.float32 else computed_in(result)
        value = scope.at(operand, at).to(wide)
        return scope.b.cast(scope.b.add("scan", (value.id,), wide, kind), result)

    return lowering


def scanned_dim(node: fx.Node) -> int:
    return int(size_of(node.args[1]) % max(len(sizes_of(node)), 1))


LOWERINGS: dict[Any, Lowering] = {
    aten.cumsum.default: _scan("sum"),
    aten.cumprod.default: _scan("prod"),
    aten.logcumsumexp.default: _scan("logaddexp"),
    random_bits: _random_bits,
    aten.full.default: _full,
    aten.full_like.default: _full,
    aten.new_full.default: lambda scope, node, at: _filled(scope, node, node.args[2]),
    aten.scalar_tensor.default: lambda scope, node, at: _filled(scope, node, node.args[0]),
    **{getattr(aten, name).default: _constant(0) for name in ("zeros", "zeros_like", "new_zeros", "zero")},
    **{getattr(aten, name).default: _constant(1) for name in ("ones", "ones_like", "new_ones")},
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    aten.embedding.default: _embedding,
    aten.index_select.default: _index_select,
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.cat.default: _cat,
    aten.constant_pad_nd.default: _pad,
    aten.flip.default: _flip,
    aten.tril.default: _triangle(False),
    aten.triu.default: _triangle(True),
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.select_backward.default: _select_backward,
    aten.slice_backward.default: _slice_backward,
    aten.repeat.default: _repeat,
}

_SUPPORTED: dict[Any, Callable[[fx.Node], bool]] = {
    aten.index.Tensor: _index_supported,
    aten._unsafe_index.Tensor: _index_supported,
    **{op: _arange_supported for op, made in LOWERINGS.items() if made is _arange},
}
SCANS = frozenset((aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default))
FROM_NOTHING = frozenset(
    op for op, made in LOWERINGS.items() if made is _full or made is _arange or op._opname in
    ("new_full", "scalar_tensor", "zeros", "zeros_like", "new_zeros", "zero", "ones", "ones_like", "new_ones")
)  # fmt: skip


# ------------------------------------------------------------------------------------------------- reductions


@dataclass(frozen=True)
class Reduction:
    kind: str  # sum prod max min any all argmax argmin
    mean: bool = False


REDUCTIONS: dict[Any, Reduction] = {
    aten.sum.default: Reduction("sum"),
    aten.sum.dim_IntList: Reduction("sum"),
    aten.mean.default: Reduction("sum", mean=True),
    aten.mean.dim: Reduction("sum", mean=True),
    aten.prod.default: Reduction("prod"),
    aten.prod.dim_int: Reduction("prod"),
    aten.amax.default: Reduction("max"),
    aten.amin.default: Reduction("min"),
    aten.max.default: Reduction("max"),
    aten.min.default: Reduction("min"),
    aten.any.default: Reduction("any"),
    aten.any.dim: Reduction("any"),
    aten.any.dims: Reduction("any"),
    aten.all.default: Reduction("all"),
    aten.all.dim: Reduction("all"),
    aten.all.dims: Reduction("all"),
    aten.argmax.default: Reduction("argmax"),
    aten.argmin.default: Reduction("argmin"),
}


def reduced_dims(node: fx.Node) -> tuple[int, ...]:
    """The dimensions of its operand that a reduction folds."""
    operand: Any = node.args[0]
    rank = len(sizes_of(operand))
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    return tuple(sorted({size_of(d) % rank for d in dims})) if dims and rank else tuple(range(rank))


def reduce(scope: LoweringScope, node: fx.Node, inside: At) -> V:
    """The reduction, given the index of its operand: kept dimensions as they are wanted, folded ones as inner axes."""
    operand: Any = node.args[0]
    row = REDUCTIONS[node.target]
    dtype = computed_in(val(node).dtype)
    value = scope.at(operand, inside)
    if row.kind in ("any", "all", "argmax", "argmin"):
        value = scope.b.rounded(value, val(operand).dtype)
    sizes, dims = sizes_of(operand), reduced_dims(node)
    if all(sizes[d] == 1 for d in dims):
        return _of_one(scope, row, value).to(dtype)
    if row.kind in ("any", "all"):
        value = value if value.dtype is torch.bool else value.ne(0)
        return scope.b.add("reduce", (value.id,), torch.bool, row.kind).to(dtype)
    if row.kind in ("argmax", "argmin"):
        position = Index()
        for d in dims:
            position = position * sizes[d] + inside[d]
        at = scope.b.index(position)
        return scope.b.add("reduce", (value.id, at.id), torch.int64, row.kind)
    accumulated = value if row.kind in ("max", "min") else value.to(dtype)
    result = scope.b.add("reduce", (accumulated.id,), accumulated.dtype, row.kind)
    if row.mean:
        count = product([sizes[d] for d in dims])
        result = (
            result / scope.b.index(Index(count)).to(result.dtype)
            if not isinstance(count, int)
            else result / float(count or math.nan)
        )
    return result.to(dtype)


def _of_one(scope: LoweringScope, row: Reduction, value: V) -> V:
    """A reduction of one element: there is no loop."""
    if row.kind in ("any", "all"):
        return value if value.dtype is torch.bool else value.ne(0)
    return scope.b.const(0, torch.int64) if row.kind in ("argmax", "argmin") else value
