"""Backward passes of the program's in a trace: `torch.autograd.grad` and `backward`, as a recording has them.

Enters: the arguments of such a node, on stand-ins. Torch's engine runs on them under the trace's mode, so the operators
of the pass become nodes like any other, in the order in which eager runs them. Leaves: gradients. `backward` puts them
into leaves by the rules of torch's `AccumulateGrad`, written out here: a `grad` that is there is added to in place; a
new one has the strides of the leaf, and memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import CannotDerive
from ..support.graph_gradients import Tensors, accumulate, gradients
from .functional import lies_densely
from .symbols import is_symbolic
from .traced_graph import TracedGraph


def _accumulate(
    traced: TracedGraph,
    outputs: Tensors,
    tangents: Tensors,
    leaves: Tensors,
    grads: Tensors,
    made: Tensors,
    own: Tensors,
    retain_graph: bool,
    create_graph: bool,
    only_these: bool,
) -> tuple[Any, ...]:
    if not all(leaf.is_leaf and leaf.requires_grad for leaf in leaves):
        raise CannotDerive("a backward pass to a tensor that is no leaf")
    if any(map(is_symbolic, [number for leaf in leaves for number in (*leaf.shape, *leaf.stride())])):
        raise CannotDerive("a backward pass to a leaf of symbolic size")
    found = gradients(outputs, tangents, leaves, retain_graph, create_graph, True)
    new = []
    _refuse_shared(traced, found)
    for place, (leaf, grad, gradient) in enumerate(zip(leaves, grads, found, strict=True)):
        if (gradient is not None and (grad is None or create_graph)) is not (place in made):
            raise CannotDerive("a backward pass that reaches other leaves than it did")
        if gradient is None:
            continue
        if grad is None:
            given = sum(other is gradient for other in found) > 1 or _is_one_of(gradient, (*outputs, *tangents))
            new.append(_as_grad(leaf, gradient, not given, create_graph))
        elif create_graph:
            with torch.enable_grad():
                new.append(grad + gradient)
        else:
            with torch.no_grad():
                grad.add_(gradient)
    return tuple(new)


def _refuse_shared(traced: TracedGraph, found: Tensors) -> None:
    """Two gradients may be parts of one piece of memory; whether eager keeps them so depends on who holds them."""
    distinct = {id(gradient): gradient for gradient in found if gradient is not None}
    values = [traced.values.find(gradient) for gradient in distinct.values()]
    memories = [id(value.memory) for value in values if value is not None]
    if len({*memories}) != len(distinct):
        raise CannotDerive("gradients that share memory")


def _is_one_of(gradient: Tensor, tensors: Tensors) -> bool:
    return any(gradient is tensor for tensor in tensors)


def _as_grad(leaf: Tensor, gradient: Tensor, free: bool, create_graph: bool) -> Tensor:
    """What becomes the `grad` of a leaf that has none."""
    dense = lies_densely(leaf)
    obeys = _has_strides_of(leaf, gradient) if dense else gradient.is_contiguous()
    if create_graph:
        with torch.enable_grad():
            return gradient if obeys else gradient.clone(memory_format=torch.contiguous_format)
    with torch.no_grad():
        if free and obeys:
            return gradient.detach()
        if not dense:
            return gradient.clone(memory_format=torch.contiguous_format)
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(gradient)


def _has_strides_of(leaf: Tensor, gradient: Tensor) -> bool:
    """In all dimensions but those of one element."""
    pairs = zip(leaf.shape, leaf.stride(), gradient.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in pairs)


def _gradients(traced: TracedGraph, *args: Any) -> tuple[Any, ...]:
    return gradients(*args)


_TRACED: dict[Any, Callable[..., tuple[Any, ...]]] = {accumulate: _accumulate, gradients: _gradients}


def is_pass(target: Any) -> bool:
    return callable(target) and target in _TRACED


def trace(target: Any, args: tuple[Any, ...], traced: TracedGraph) -> tuple[Any, ...]:
    """Run the pass on stand-ins."""
    traced.passes += 1
    return _TRACED[target](traced, *args)
