"""Strides of dimensions of size 1, which say nothing about memory, and which programs can read.

Enters: an operator, its arguments, and what its meta kernel gave. Leaves: the same result with the strides that eager's
kernel gives. The two go by different rules where an operand has a dimension of size 1 whose stride is not the one that
a new tensor would have: there the kernel is asked, on real tensors that hold nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .operators import facts
from .symbols import is_symbolic, surely_equal

_SIZED_BY_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}


def may_differ(op: OpOverload, args: Any) -> bool:
    """Whether the operator's kernel may give other strides than its meta kernel says. (Random numbers are not drawn
    to find out.)"""
    if not any(isinstance(value, Tensor) and _is_odd(value) for value in tree_leaves(args)):
        return False
    known = facts(op)
    if known.view_of is not None or known.writes or known.in_place_view or known.random:
        return False
    return _SIZED_BY_DATA.isdisjoint(op.tags)


def _is_odd(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    sizes, strides = tensor.shape, tensor.stride()
    if not any(type(size) is int and size == 1 for size in sizes):
        return False
    if is_in_order(tensor):
        return False
    plain = _dense(sizes, range(len(sizes)))
    in_order = surely_equal(_wide(sizes, strides), _wide(sizes, plain))
    order = _CHANNELS_LAST.get(len(sizes))
    return in_order or order is None or not surely_equal(strides, _dense(sizes, order))


def is_in_order(tensor: Tensor) -> bool:
    """Whether its strides are those of a new tensor, whatever the symbols in its sizes stand for."""
    return surely_equal(tensor.stride(), _dense(tensor.shape, range(tensor.dim())))


def _dense(sizes: Any, order: Any) -> tuple[Any, ...]:
    """The strides of a new tensor with its dimensions in this order."""
    strides = [1] * len(sizes)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step = step * sizes[dim]
    return tuple(strides)


def _wide(sizes: Any, strides: Any) -> tuple[Any, ...]:
    """The strides that say something."""
    return tuple([stride for size, stride in zip(sizes, strides, strict=True) if not _is_one(size)])


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1


class _Unknown(Exception):
    """A size that depends on data."""


def restrided(tensor: Tensor, strides: tuple[Any, ...]) -> Tensor:
    with torch.no_grad():
        return tensor.new_empty_strided(tensor.shape, strides)


def differ_there(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one size have different strides, but not where these say something."""
    if not surely_equal(one.shape, other.shape) or surely_equal(one.stride(), other.stride()):
        return False
    return surely_equal(_wide(one.shape, one.stride()), _wide(other.shape, other.stride()))


def settled(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """`result`, of tensors without data, with the strides of the operator's kernel in dimensions of size 1."""
    if not may_differ(op, (args, kwargs)):
        return result
    leaves, form = tree_flatten(result)
    for number in (0, 1):  # if zeros are not allowed (integers are divided by them), ones
        try:
            real_args, real_kwargs = tree_map(lambda value, number=number: _real(value, number), (args, kwargs))
            found = tree_leaves(op(*real_args, **real_kwargs))
            break
        except _Unknown:
            return result
        except (RuntimeError, IndexError, ValueError):  # the kernel wants other data: the meta kernel is believed
            continue
    else:
        return result
    if len(leaves) != len(found):
        return result
    operands = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    return tree_unflatten([_settled(one, other, operands) for one, other in zip(leaves, found, strict=True)], form)


def _settled(made: Any, real: Any, operands: list[Tensor]) -> Any:
    if not isinstance(made, Tensor) or not isinstance(real, Tensor) or made.dim() != real.dim():
        return made
    if any(is_symbolic(n) and n.node.hint is None for n in (*made.shape, *made.stride())):
        return made
    if tuple(map(_hint, made.shape)) != tuple(real.shape):
        return made
    strides = list(made.stride())
    for dim, (size, wanted) in enumerate(zip(made.shape, real.stride(), strict=True)):
        if _is_one(size) and _hint(strides[dim]) != wanted:
            strides[dim] = _expression(made, dim, wanted, operands)
    return made if surely_equal(tuple(strides), made.stride()) else restrided(made, tuple(strides))


def _expression(made: Tensor, dim: int, wanted: int, operands: list[Tensor]) -> Any:
    """The number in terms of sizes: kernels take the stride of an operand, or that of the next dimension inside."""
    given = [t.stride()[dim] for t in operands if t.dim() == made.dim()]
    inside = [size * stride for size, stride in zip(made.shape, made.stride(), strict=True)]
    return next((number for number in (*inside, 1, *given) if _hint(number) == wanted), wanted)


def _hint(number: Any) -> int:
    if not is_symbolic(number):
        return int(number)
    hint = number.node.hint
    if hint is None:
        raise _Unknown
    return int(hint)


def _real(value: Any, number: int) -> Any:
    if isinstance(value, Tensor):
        sizes, strides = [tuple(map(_hint, numbers)) for numbers in (value.shape, value.stride())]
        if 0 in sizes:
            return torch.empty_strided(sizes, strides, dtype=value.dtype, device="cpu")
        reach = 1 + sum([(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)])
        return torch.full((reach,), number, dtype=value.dtype, device="cpu").as_strided(sizes, strides)
    if is_symbolic(value):
        hint = value.node.hint
        if hint is None:
            raise _Unknown
        return hint
    return torch.device("cpu") if isinstance(value, torch.device) else value
