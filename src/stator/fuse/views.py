"""Views as index maps: which element of its operand a view shows at an index.

Enters: a view node and an index, one `Index` per dimension of its result. Leaves: the operand's index. A map that
needs a division which no axis allows raises `NeedsSplit` (the axis can be split) or `NoMap` (the operand must lie in
memory).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]  # torch's own for symbolic sizes
import torch
from torch import fx

from .loops import Index, Size

aten = torch.ops.aten
At = tuple[Index, ...]


class NoMap(Exception):
    """The view has no affine index map here."""


class NeedsSplit(Exception):
    """It would have one if this axis were split: axis = outer * factor + inner."""

    def __init__(self, axis: int, factor: Size) -> None:
        super().__init__(axis, factor)
        self.axis, self.factor = axis, factor


def sizes_of(node: fx.Node) -> tuple[Size, ...]:
    return tuple([size_of(s) for s in node.meta["val"].shape])


def size_of(number: Any) -> Size:
    if isinstance(number, fx.Node):
        number = number.meta["val"]
    if isinstance(number, torch.SymInt):
        known = number.node.maybe_as_int()
        return number.node.expr if known is None else known
    if not isinstance(number, int):
        raise NoMap(f"a size that is {number!r}")
    return number


def _dim(dim: Any, rank: int) -> int:
    return dim % rank if rank else 0


def _operand(node: fx.Node) -> fx.Node:
    operand: Any = node.args[0]
    return operand


# ---------------------------------------------------------------------------------------------- reshaping


def _least_and_largest(index: Index, extents: Sequence[Size]) -> tuple[Size, Size]:
    least = largest = index.offset
    for axis, c in index.terms:
        last = c * (extents[axis] - 1)
        if c < 0 if isinstance(c, int) else c.is_negative:
            least = least + last
        elif isinstance(c, int) or c.is_nonnegative:
            largest = largest + last
        else:
            raise NoMap(f"{c} is of unknown sign")
    return least, largest


def divide(index: Index, by: Size, extents: Sequence[Size]) -> tuple[Index, Index]:
    """Quotient and remainder, where the axes allow that."""
    if index.gathered:
        raise NoMap("a gathered index is divided")
    quotient, rest = Index(), Index()
    for axis, c in index.terms:
        if _divides(by, c):
            quotient = quotient + Index(0, ((axis, over(c, by)),))
        else:
            rest = rest + Index(0, ((axis, c),))
    least, largest = _least_and_largest(rest + index.offset, extents)
    whole = over(index.offset, by) if _divides(by, index.offset) else 0
    if isinstance(least, int) and isinstance(by, int) and by > 0:
        whole = least // by  # of the offset: as much as leaves no rest below 0
    least, largest = least - whole * by, largest - whole * by
    if _surely_below(largest, by) and _surely_below(-1, least):
        return quotient + whole, rest + (index.offset - whole * by)
    for axis, c in rest.terms:
        step = abs(c) if isinstance(c, int) else c
        if _divides(step, by) and _divides(over(by, step), extents[axis]):
            raise NeedsSplit(axis, over(by, step))
    raise NoMap(f"{index} over {by}")


def _divides(by: Size, number: Size) -> bool:
    if isinstance(by, int) and isinstance(number, int):
        return by != 0 and number % by == 0
    if by == 1 or number == 0:
        return True
    ratio = sympy.cancel(sympy.sympify(number) / by)
    return (
        bool(ratio.is_polynomial() and all(c.is_integer for c in sympy.Poly(ratio).coeffs()))
        if ratio.free_symbols
        else bool(ratio.is_integer)
    )


def over(number: Size, by: Size) -> Size:
    if isinstance(by, int) and isinstance(number, int):
        return number // by
    ratio = sympy.cancel(sympy.sympify(number) / by)
    return int(ratio) if ratio.is_Integer else ratio


def _surely_below(number: Size, limit: Size) -> bool:
    if isinstance(number, int) and isinstance(limit, int):
        return number < limit
    return bool(sympy.expand(sympy.sympify(limit) - number).is_positive)


def _reshape(node: fx.Node, at: At, extents: Sequence[Size]) -> At:
    return reshaped(at, sizes_of(node), sizes_of(_operand(node)), extents)


def reshaped(at: At, shown: Sequence[Size], inside: Sequence[Size], extents: Sequence[Size]) -> At:
    """The index into `inside` for one into `shown`: the same elements in row-major order."""
    result: list[Index] = []
    i = j = len(shown)
    i, j = len(shown), len(inside)
    while j > 0:
        have, want = 1, 1  # sizes of the dimensions taken together so far
        linear = Index()
        first_j = j
        first = True
        while first or have != want:
            first = False
            if _smaller(have, want) or (have == want == 1 and j == 0):
                if i == 0:
                    raise NoMap("sizes do not match")
                i -= 1
                linear = linear + at[i] * have
                have = have * shown[i]
            else:
                if j == 0:
                    raise NoMap("sizes do not match")
                j -= 1
                want = want * inside[j]
        for k in range(first_j - 1, j, -1):
            if inside[k] == 1:
                result.append(Index())
                continue
            linear, low = divide(linear, inside[k], extents)
            result.append(low)
        result.append(linear if inside[j] != 1 else Index())
    return tuple(reversed(result))


def _smaller(a: Size, b: Size) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    if a == b:
        return False
    if _divides(a, b):
        return True
    if _divides(b, a):
        return False
    raise NoMap(f"{a} and {b} cannot be compared")


# ------------------------------------------------------------------------------------------------- the others


def _permute(node: fx.Node, at: At, extents: Sequence[Size]) -> At:
    dims: Any = node.args[1]
    result = [Index()] * len(at)
    for out, dim in enumerate(dims):
        result[_dim(dim, len(at))] = at[out]
    return tuple(result)


def _transpose(node: fx.Node, at: At, extents: Sequence[Size]) -> At:
    result = list(at)
    a, b = (_dim(d, len(at)) for d in (node.args[1:3] if len(node.args) == 3 else (0, 1)))
    if len(at) > 1:
        result[a], result[b] = result[b], result[a]
    return tuple(result)


def _expand(node: fx.Node, at: At, extents: Sequence[Size]) -> At:
    return broadcast(at, sizes_of(node), sizes_of(_operand(node)))


def broadcast(at: At, shown: Sequence[Size], inside: Sequence[Size]) -> At:
    """An operand's index where it is broadcast to `shown`."""
    added = len(shown) - len(inside)
    return tuple([Index() if size == 1 and shown[added + k] != 1 else at[added + k] for k, size in enumerate(inside)])


def _unsqueeze(node: fx.Node, at: At, extents: Sequence[Size]) -> At:
    dim = _dim(node.args[1], len(at))
    return at[:dim] + at[dim + 1 :]


def _squeeze(node: fx.Node, at: At, extents: Sequence[Size]) -> At:
    inside = sizes_of(_operand(node))
    which: Any = node.args[1] if len(node.args) > 1 else list(range(len(inside)))
    dims = {_dim(d, len(inside)) for d in (which if isinstance(which, (list, tuple)) else [which])}
    left = iter(at)
    return tuple([Index() if k in dims and size == 1 else next(left) for k, size in enumerate(inside)])


def _slice(node: fx.Node, at: At, extents: Sequence[Size]) -> At:
    inside = sizes_of(_operand(node))
    given = [*node.args[1:], *[None] * 4][:4]
    dim = _dim(given[0] or 0, len(inside))
    start, step = size_of(given[1] or 0), size_of(given[3] or 1)
    if not isinstance(start, int) or not isinstance(inside[dim], int):
        if start != 0:
            raise NoMap("a slice that begins at a symbol")
    elif start < 0:
        start = max(start + inside[dim], 0)
    return (*at[:dim], at[dim] * step + start, *at[dim + 1 :])


def _select(node: fx.Node, at: At, extents: Sequence[Size]) -> At:
    inside = sizes_of(_operand(node))
    dim, position = _dim(node.args[1], len(inside)), size_of(node.args[2])
    if not isinstance(position, int):
        raise NoMap("a symbolic position")
    if position < 0:
        position = position + inside[dim]
    return (*at[:dim], Index(position), *at[dim:])


def _same(node: fx.Node, at: At, extents: Sequence[Size]) -> At:
    return at


def _diagonal(node: fx.Node, at: At, extents: Sequence[Size]) -> At:
    rank = len(at) + 1
    given = [*node.args[1:], *[None] * 3][:3]
    offset = size_of(given[0] or 0)
    a, b = _dim(0 if given[1] is None else given[1], rank), _dim(1 if given[2] is None else given[2], rank)
    rest = iter(at[:-1])
    last = at[-1]
    if not isinstance(offset, int):
        raise NoMap("a symbolic diagonal")
    rows, columns = last + max(-offset, 0), last + max(offset, 0)
    return tuple([rows if k == a else columns if k == b else next(rest) for k in range(rank)])


VIEWS: dict[Any, Callable[[fx.Node, At, Sequence[Size]], At]] = {
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.reshape.default: _reshape,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _transpose,
    aten.expand.default: _expand,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.squeeze.default: _squeeze,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.diagonal.default: _diagonal,
    aten.alias.default: _same,
    aten.detach.default: _same,
}
