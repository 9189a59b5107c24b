"""Sizes of the results of the usual operations, told from the sizes of their operands alone.

Most operations of a model say nothing new about sizes: the result is like the operand, or one dimension is that of
another. Such rules are a hundred times quicker than running the operation on tensors without data. A rule gives the
sizes, or None where anything is out of the ordinary: then the operation is run. Rules assume nothing about symbols: two
sizes are the same if they are the same expression. Where other sizes could make the operation fail, there is no rule:
running it notes what has to hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx

Size = Any  # an int or a torch.SymInt
Sizes = tuple[Size, ...]


class Outline(NamedTuple):
    """A tensor without data of which only the sizes are known for certain."""

    sizes: Sizes
    dtype: torch.dtype
    device: torch.device
    contiguous: bool  # it is known to lie in memory without gaps, in order, whatever its sizes


def same(a: Size, b: Size) -> bool:
    """The same number, whatever the symbols stand for?"""
    if type(a) is int or type(b) is int:
        return type(a) is type(b) and a == b
    return bool(a.node.expr == b.node.expr)


def value_of(size: Size) -> int:
    """The number that a size is in this run."""
    return size if type(size) is int else int(size.node.hint)


def all_same(a: Sizes, b: Sizes) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def broadcast(*operands: Sizes) -> Sizes | None:
    """The sizes of a result, where dimensions are the same, or 1, or missing."""
    result: list[Size] = []
    rank = max(map(len, operands))
    for dim in range(-rank, 0):
        found: Size = 1
        for sizes in operands:
            size = sizes[dim] if -dim <= len(sizes) else 1
            if type(size) is int and size == 1:
                continue
            if not (type(found) is int and found == 1) and not same(found, size):
                return None
            found = size
        result.append(found)
    return tuple(result)


def lies_in_order(tensor: torch.Tensor) -> bool:
    """Contiguous, whatever the symbols stand for?"""
    expected: Size = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not same(stride, expected) and not (type(size) is int and size == 1):
            return False
        expected = expected * size
    return True


# -- rules: (operands, arguments by name) -> sizes


def _numbers(args: tuple[Any, ...]) -> Sizes | None:
    """Sizes that are given one by one, or as a tuple."""
    given = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
    return tuple(given) if all(type(size) is int or isinstance(size, torch.SymInt) for size in given) else None


def _like_first(x: Outline, *rest: Any, **named: Any) -> Sizes | None:
    return None if any(isinstance(arg, Outline) for arg in (*rest, *named.values())) else x.sizes


def _layer_norm(x: Outline, normalized_shape: Any, *rest: Any, **named: Any) -> Sizes | None:
    shape = tuple(normalized_shape)
    parts = [x.sizes[len(x.sizes) - len(shape) :]]
    parts += [arg.sizes for arg in (*rest, *named.values()) if isinstance(arg, Outline)]
    return x.sizes if all(all_same(part, shape) for part in parts) else None


def _by_channel(x: Outline, *rest: Any, **named: Any) -> Sizes | None:
    return x.sizes if type(x.sizes[1]) is int else None


def _broadcast(*args: Any, **named: Any) -> Sizes | None:
    return broadcast(*(arg.sizes for arg in (*args, *named.values()) if isinstance(arg, Outline)))


def _linear(x: Outline, weight: Outline, bias: Any = None) -> Sizes | None:
    if len(weight.sizes) != 2 or not same(x.sizes[-1], weight.sizes[1]):
        return None
    if bias is not None and not all_same(bias.sizes, weight.sizes[:1]):
        return None
    return (*x.sizes[:-1], weight.sizes[0])


def _matmul(a: Outline, b: Outline) -> Sizes | None:
    if len(a.sizes) < 2 or len(b.sizes) < 2 or not same(a.sizes[-1], b.sizes[-2]):
        return None
    batch = broadcast(a.sizes[:-2], b.sizes[:-2]) if len(a.sizes) > 2 or len(b.sizes) > 2 else ()
    return None if batch is None else (*batch, a.sizes[-2], b.sizes[-1])


def _attention(query: Outline, key: Outline, value: Outline, *rest: Any, **named: Any) -> Sizes | None:
    if not same(query.sizes[-1], key.sizes[-1]):
        return None
    scores = (*query.sizes[:-1], key.sizes[-2])
    for mask in (arg for arg in (*rest, *named.values()) if isinstance(arg, Outline)):
        if not all_same(broadcast(mask.sizes, scores) or (), scores):
            return None
    alike = all_same(query.sizes[:-2], key.sizes[:-2]) and all_same(key.sizes[:-1], value.sizes[:-1])
    return (*query.sizes[:-1], value.sizes[-1]) if alike and not named.get("enable_gqa") else None


def _embedding(indices: Outline, weight: Outline, *rest: Any, **named: Any) -> Sizes | None:
    return (*indices.sizes, weight.sizes[1])


def _transpose(x: Outline, a: int, b: int) -> Sizes | None:
    sizes = list(x.sizes)
    sizes[a], sizes[b] = sizes[b], sizes[a]
    return tuple(sizes)


def _permute(x: Outline, *dims: Any) -> Sizes | None:
    order = _numbers(dims)
    return None if order is None else tuple(x.sizes[dim] for dim in order)


def _unsqueeze(x: Outline, dim: int) -> Sizes | None:
    place = dim % (len(x.sizes) + 1)
    return (*x.sizes[:place], 1, *x.sizes[place:])


def _view(x: Outline, *shape: Any) -> Sizes | None:
    wanted = _numbers(shape)
    if wanted is None:
        return None
    unknown = [place for place, size in enumerate(wanted) if type(size) is int and size == -1]
    if not unknown:
        return wanted if same(math.prod(x.sizes), math.prod(wanted)) else None
    rest = _quotient(x.sizes, [size for place, size in enumerate(wanted) if place not in unknown])
    return None if rest is None else tuple(rest if place in unknown else size for place, size in enumerate(wanted))


def _quotient(sizes: Sizes, divisors: list[Size]) -> int | None:
    """What is left of a product when these are taken away, if that is a plain number."""
    left = list(sizes)
    number = 1
    for divisor in divisors:
        if type(divisor) is int:
            number *= divisor
            continue
        place = next((place for place, size in enumerate(left) if same(size, divisor)), None)
        if place is None:
            return None
        del left[place]
    product = 1
    for size in left:
        if type(size) is not int:
            return None
        product *= size
    return product // number if number and product % number == 0 else None


def _item(x: Outline, index: Any) -> Sizes | None:
    """`x[:, None, 0]`: whole dimensions, new ones, and numbers."""
    parts = index if isinstance(index, tuple) else (index,)
    used = sum(part is not None and part is not Ellipsis for part in parts)
    sizes: list[Size] = []
    left = list(x.sizes)
    for part in parts:
        if part is None:
            sizes.append(1)
        elif part is Ellipsis:
            kept = len(x.sizes) - used
            sizes += left[:kept]
            del left[:kept]
        elif part == slice(None):
            sizes.append(left.pop(0))
        elif type(part) is slice and type(left[0]) is int and all(type(p) in (int, type(None)) for p in _bounds(part)):
            sizes.append(len(range(*part.indices(left.pop(0)))))
        elif type(part) is int:
            left.pop(0)
        else:
            return None
    return (*sizes, *left)


def _bounds(part: slice) -> tuple[Any, Any, Any]:
    return part.start, part.stop, part.step


def _expand(x: Outline, *shape: Any) -> Sizes | None:
    wanted = _numbers(shape)
    if wanted is None or any(type(size) is int and size < 0 for size in wanted):
        return None
    added = len(wanted) - len(x.sizes)
    fits = (
        same(had, size) or (type(had) is int and had == 1) for had, size in zip(x.sizes, wanted[added:], strict=True)
    )
    return wanted if added >= 0 and all(fits) else None


def _given_numbers(data: Any, *rest: Any, **named: Any) -> Sizes | None:
    """`torch.tensor(n)`, `torch.tensor([n, 1])`: which numbers they are makes no difference."""
    if not isinstance(data, (tuple, list)):
        return () if isinstance(data, (int, float, torch.SymInt, torch.SymFloat)) else None
    inside = [_given_numbers(item) for item in data]
    return None if not inside or None in inside or len(set(inside)) > 1 else (len(data), *(inside[0] or ()))


_LIKE_FIRST = (
    "gelu relu relu_ silu sigmoid tanh softmax log_softmax layer_norm group_norm batch_norm rms_norm dropout neg exp "
    "log sqrt rsqrt sin cos abs erf square reciprocal float half bfloat16 double long int bool to type type_as "
    "contiguous clone detach cumsum triu tril clamp elu leaky_relu hardswish softplus zeros_like ones_like empty_like "
    "full_like logical_not"
)
_ELEMENT_BY_ELEMENT = (
    "add sub mul truediv div floordiv floor_divide mod remainder pow maximum minimum where eq ne lt le gt ge and_ or_ "
    "logical_and logical_or masked_fill"
)
_RULES: dict[str, Callable[..., Sizes | None]] = {
    **dict.fromkeys(_LIKE_FIRST.split(), _like_first),
    **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm),
    **dict.fromkeys(("group_norm", "batch_norm"), _by_channel),
    **dict.fromkeys(_ELEMENT_BY_ELEMENT.split(), _broadcast),
    "linear": _linear,
    **dict.fromkeys(("matmul", "bmm"), _matmul),
    **dict.fromkeys(("view", "reshape"), _view),
    **dict.fromkeys(("transpose", "swapaxes"), _transpose),
    "scaled_dot_product_attention": _attention,
    "embedding": _embedding,
    "permute": _permute,
    "unsqueeze": _unsqueeze,
    "getitem": _item,
    **dict.fromkeys(("tensor", "as_tensor"), _given_numbers),
    "expand": _expand,
}


_ALWAYS_CONTIGUOUS = frozenset({"linear", "layer_norm", "embedding", "contiguous", "tensor", "as_tensor"})
_CONTIGUOUS_LIKE_FIRST = frozenset({*_LIKE_FIRST.split(), "view", "reshape", "unsqueeze"})


def _is_contiguous(name: str, operands: list[Outline], sizes: Sizes) -> bool:
    """Is the result contiguous because the operands are?"""
    if name in _ALWAYS_CONTIGUOUS:
        return True
    if name in _CONTIGUOUS_LIKE_FIRST:
        return operands[0].contiguous
    if name in _ELEMENT_BY_ELEMENT.split():
        return all(x.contiguous for x in operands) and any(all_same(x.sizes, sizes) for x in operands)
    return name in ("matmul", "bmm") and len(operands[0].sizes) == len(operands[1].sizes) > 2


def told(node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Outline | None:
    """What a node gives, by rule; `args` and `kwargs` have outlines in the place of tensors."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    rule = _RULES.get(name)
    if rule is None or not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
        return None
    arguments = (*args, *kwargs.values())
    if (
        name in _CONTIGUOUS_LIKE_FIRST
        and rule is not _view
        and any(isinstance(arg, (torch.SymInt, torch.SymFloat)) for arg in arguments)
    ):
        return None  # what it does may depend on the number
    try:
        sizes = rule(*args, **kwargs)
    except (TypeError, IndexError, AttributeError, KeyError, ValueError):  # arguments that the rule does not know
        return None
    if sizes is None or tuple(map(value_of, sizes)) != tuple(result.shape):
        return None
    operands = [arg for arg in arguments if isinstance(arg, Outline)]
    contiguous = result.is_contiguous() and _is_contiguous(name, operands, sizes)
    return Outline(sizes, result.dtype, result.device, contiguous)


def told_recurrent(node: fx.Node, args: tuple[Any, ...], result: Any) -> tuple[bool, Sizes, Sizes] | None:
    """What a recurrent layer gives, whatever the length of the sequence: does the batch come first, and the sizes of
    the output and of the last state; None of others. (Torch would run it step by step.)"""
    if getattr(node.target, "__name__", "") not in ("gru", "rnn_tanh", "rnn_relu") or len(args) != 9:
        return None
    x, state, batch_first = args[0], args[1], args[8]
    if type(batch_first) is not bool or not isinstance(x, Outline) or not isinstance(state, Outline):
        return None
    if len(x.sizes) != 3 or len(state.sizes) != 3:
        return None
    output, last = result
    if not same(x.sizes[0 if batch_first else 1], state.sizes[1]):
        return None
    if not (output.transpose(0, 1) if batch_first else output).is_contiguous() or not last.is_contiguous():
        return None
    return batch_first, (*x.sizes[:2], output.shape[2]), state.sizes
