"""What a graph keeps where eager's backward may be called for its results one after another.

In eager each node keeps its own tensors, and lets go of them when a backward has passed it: results whose backwards
meet in no such node (two losses on separate paths) may be differentiated in two calls, others may not. One node stands
for all of them here. Enters: the autograd graph of a trace. Leaves: by result, which groups of eager's nodes its
backward empties; and how the node keeps the tensors: until no backward can want them any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Specify retain_graph=True where backward or autograd.grad is called for the first time."
)


def emptied_by(outputs: Sequence[Tensor]) -> tuple[int, ...]:
    """By output: the nodes with saved tensors that its backward passes, as bits; nodes that the same outputs lead to
    are one bit."""
    order: list[Any] = []  # every node behind those that lead to it, backwards
    seen: set[Any] = {None}
    for output in outputs:
        _append_after_inputs(output.grad_fn, order, seen)
    reached: dict[Any, int] = dict.fromkeys(order, 0)  # by which outputs, as bits
    for position, output in enumerate(outputs):
        if output.grad_fn is not None:
            reached[output.grad_fn] |= 1 << position
    groups: dict[int, int] = {}
    for node in reversed(order):
        by = reached[node]
        for former, _ in node.next_functions:
            if former is not None:
                reached[former] |= by
        if by not in groups and _saves(node):
            groups[by] = 1 << len(groups)
    return tuple([sum(bit for by, bit in groups.items() if by >> position & 1) for position in range(len(outputs))])


def _append_after_inputs(start: Any, order: list[Any], seen: set[Any]) -> None:
    pending = [(start, False)]
    while pending:
        node, done = pending.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            pending.append((node, True))
            pending += [(former, False) for former, _ in node.next_functions]


_names: dict[type, list[str]] = {}


def names_of_saved(kind: type) -> list[str]:
    """The attributes of a kind of nodes that read what it has saved."""
    if kind not in _names:
        raw = [name for name in dir(kind) if name.startswith("_raw_saved_")]
        _names[kind] = ["saved_tensors" if name == "_raw_saved_tensors" else name.removeprefix("_raw") for name in raw]
    return _names[kind]


def _saves(node: Any) -> bool:
    kind: Any = type(node)
    for name in names_of_saved(kind):
        try:
            saved = getattr(node, name)
        except RuntimeError:  # it was written to since: that is for the backward to tell
            return True
        if saved is not None and saved != ():
            return True
    return False


def _is_spent(node: Any) -> bool:
    """Has it let go of what it saved?"""
    for name in names_of_saved(type(node)):
        try:
            getattr(node, name)
        except RuntimeError as error:
            if "after they have already been freed" in str(error):
                return True
    return False


def leaves_behind_spent(results: Sequence[Tensor]) -> list[Tensor] | None:
    """Results whose graph a backward has passed already: for each a leaf that it leads to. None: there is a way from
    one of them to a leaf, or to another one, which eager's backward might still go."""
    heads = {result.grad_fn for result in results}
    leaves: list[Tensor] = []
    for result in results:
        pending, seen, spent = list[Any]([result.grad_fn]), set[Any]([None]), list[Any]()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.name() == _LEAF or (node in heads and node is not result.grad_fn):
                return None
            if _is_spent(node):
                spent.append(node)
            else:
                pending += [former for former, _ in node.next_functions]
        leaf = _first_leaf(spent)
        if leaf is None:
            return None
        leaves.append(leaf)
    return leaves


_LEAF = "torch::autograd::AccumulateGrad"


def _first_leaf(nodes: list[Any]) -> Tensor | None:
    pending, seen = [*nodes], set[Any]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == _LEAF:
            leaf: Tensor = node.variable
            return leaf
        pending += [former for former, _ in node.next_functions]
    return None


class _Spent(torch.autograd.Function):
    """A result whose graph a backward has passed: another one raises, as in eager."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, boxed: list[Tensor]) -> Tensor:
        return boxed[0]  # in a box: a tensor given and returned would count as a view

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(_TWICE)


spend: Callable[[Tensor, list[Tensor]], Tensor] = _Spent.apply


class AtOnce:
    """Any backward is the last one: autograd keeps the tensors, and lets go of them as it does for any node."""

    def hold(self, ctx: Any, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        ctx.save_for_backward(*tensors)

    def refuse_spent(self, ctx: Any, given: Sequence[Any]) -> None:
        ctx._raw_saved_tensors  # noqa: B018  # raises if they are gone

    def take(self, ctx: Any, given: Sequence[Any]) -> list[Any]:
        """The tensors, for a backward that these tangents are given to."""
        tensors = list(ctx.saved_tensors)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.maybe_clear_saved_tensors()
        return tensors


class OneByOne:
    """Backwards may follow each other. Tensors are packed as the program wants it, checked for writes, and let go of
    when nothing that is left to be called would get them in eager."""

    def __init__(self, positions: Sequence[int], emptied: Sequence[int]) -> None:
        """`positions`: of the differentiable results; `emptied`: what their backwards pass."""
        self._bits = list(zip(positions, emptied, strict=True))

    def hold(self, ctx: Any, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        own = {id(result) for result in results}  # they lead to the node, so the node must not hold them
        held = [tensor.detach() if id(tensor) in own else tensor for tensor in tensors]
        ctx.versions = [tensor._version for tensor in held] if hooks is None else []
        ctx.packed = held if hooks is None else [hooks[0](tensor) for tensor in held]
        ctx.unpack = None if hooks is None else hooks[1]
        ctx.spent = 0

    def refuse_spent(self, ctx: Any, given: Sequence[Any]) -> int:
        """What a backward with these tangents passes."""
        wanted = 0
        for position, bits in self._bits:
            if given[position] is not None:
                wanted |= bits
        if wanted & ctx.spent:
            raise RuntimeError(_TWICE)
        return wanted

    def take(self, ctx: Any, given: Sequence[Any]) -> list[Any]:
        wanted = self.refuse_spent(ctx, given)
        for tensor, version in zip(ctx.packed, ctx.versions, strict=bool(ctx.versions)):
            if tensor._version != version:
                raise modified(tensor, version, "was kept for the backward")
        tensors = ctx.packed[:] if ctx.unpack is None else [ctx.unpack(packed) for packed in ctx.packed]
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.spent |= wanted
            if all(bits & ctx.spent for _, bits in self._bits):
                ctx.packed, ctx.versions = [], []
        return tensors


def keeping(positions: Sequence[int], emptied: Sequence[int]) -> AtOnce | OneByOne:
    """How a graph keeps tensors. May a second backward follow a first one?"""
    if any(one & other == 0 for at, one in enumerate(emptied) for other in emptied[at:]):
        return OneByOne(positions, emptied)
    return AtOnce()


def modified(tensor: Tensor, version: int, what: str) -> RuntimeError:
    """What eager's backward raises of a tensor that was written to."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()}], which {what}, is at version {tensor._version}; expected version {version} instead."
    )
