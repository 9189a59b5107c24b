"""Backward passes as operations of a graph, for its nodes to call: by torch's engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.autograd.graph

Tensors = Sequence[Any]
# What `torch.autograd.grad`, `torch.autograd.backward` and `Tensor.backward` all come to.
ENGINE: Any = torch.autograd.graph._engine_run_backward


class UnexpectedGradient(RuntimeError):
    """A backward pass has not reached the tensors that it reached when the graph was recorded."""


def gradients(
    outputs: Tensors, tangents: Tensors, inputs: Tensors, retain_graph: bool, create_graph: bool, allow_unused: bool
) -> tuple[Any, ...]:
    """`torch.autograd.grad`."""
    given: tuple[Any, ...] = ENGINE(
        tuple(outputs), tuple(tangents), retain_graph, create_graph, tuple(inputs), allow_unused, accumulate_grad=False
    )
    return given


def accumulate(
    outputs: Tensors,
    tangents: Tensors,
    leaves: Tensors,
    grads: Tensors,
    made: Sequence[int],
    own: Sequence[int],
    retain_graph: bool,
    create_graph: bool,
    only_these: bool,
) -> tuple[Any, ...]:
    """`backward`, where the leaves have these `grad`s (or None). They get back what they have had; what the engine has
    put in the place of a `grad` is given, of the leaves at the places `made`. To the others it has added.

    `own`: the places of leaves that the graph has made; these keep the new ones.
    `only_these`: the program names the leaves. Else they are all that the outputs lead to.
    """
    former = [leaf.grad for leaf in leaves]
    try:
        for leaf, grad, now in zip(leaves, grads, former, strict=True):
            if grad is not now:
                leaf.grad = grad
        inputs = tuple(leaves) if only_these else ()
        ENGINE(tuple(outputs), tuple(tangents), retain_graph, create_graph, inputs, True, accumulate_grad=True)
        found = [leaf.grad for leaf in leaves]
    finally:
        for place, (leaf, grad) in enumerate(zip(leaves, former, strict=True)):
            if place not in own:
                leaf.grad = grad
    new = [place for place, grad in enumerate(found) if grad is not grads[place]]
    if new != list(made):
        raise UnexpectedGradient(f"gradients of the leaves {new}, and not {list(made)}")
    return tuple([found[place] for place in new])


BACKWARD_PASSES = (gradients, accumulate)
