"""Functional form: which node holds the current contents of which tensor, while a program writes and takes views.

Enters: what a trace sees, in order: new tensors, views, writes. Leaves: for every tensor, at any time, the node
whose value it has. Nothing in the graph writes: a write gives its tensor a new node, is carried up to the tensor
whose memory it is, and the other views of that memory are taken anew when they are next read.

What holds: a node's example value has the size, strides and dtype of each tensor it stands for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from ..errors import CannotDerive
from .symbols import is_symbolic, surely_equal

aten = torch.ops.aten
Emit = Callable[..., fx.Node]


class TensorMemory:
    """A tensor's memory, shared with its views. Counts the writes."""

    __slots__ = ("counted", "maker", "version")

    def __init__(self, maker: fx.Node) -> None:
        self.counted = False  # was it written to so that eager's version counter shows it?
        self.maker = maker  # the node that it came with
        self.version = 0


class TensorView:
    """How one tensor is seen through another."""

    __slots__ = ("args", "index", "kwargs", "op", "position")

    def __init__(
        self, op: OpOverload, position: int, args: tuple[Any, ...], kwargs: dict[str, Any], index: int | None
    ) -> None:
        self.op = op
        self.position = position  # of the tensor looked at, among args
        self.args = args
        self.kwargs = kwargs
        self.index = index  # among the results; None if there is one

    def on(self, tensor: Any) -> tuple[Any, ...]:
        return (*self.args[: self.position], tensor, *self.args[self.position + 1 :])


class TracedTensor:
    """One tensor of the trace. Holding it keeps its identity from being given to another."""

    __slots__ = ("memory", "node", "parent", "tensor", "version", "view")

    def __init__(
        self, tensor: Tensor, node: fx.Node, memory: TensorMemory, parent: TracedTensor | None, view: TensorView | None
    ) -> None:
        self.tensor = tensor
        self.node = node  # has the tensor's contents, if `version` is the memory's
        self.memory = memory
        self.version = memory.version
        self.parent = parent  # seen through `view`; None: the tensor has the memory for itself
        self.view = view

    def root(self) -> TracedTensor:
        """The tensor whose memory it is."""
        return self if self.parent is None else self.parent.root()


class TracedTensors:
    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._values: dict[int, TracedTensor] = {}

    def find(self, tensor: Tensor) -> TracedTensor | None:
        return self._values.get(id(tensor))

    def new(self, tensor: Tensor, node: fx.Node) -> TracedTensor:
        """A tensor with memory of its own."""
        value = self._values[id(tensor)] = TracedTensor(tensor, node, TensorMemory(node), None, None)
        return value

    def same(self, tensor: Tensor, value: TracedTensor) -> None:
        """Another name for all of a known tensor (`detach`)."""
        node = self.node(value)
        self._values[id(tensor)] = TracedTensor(tensor, node, value.memory, value, None)

    def view(self, tensor: Tensor, node: fx.Node, of: TracedTensor, view: TensorView) -> None:
        self._values[id(tensor)] = TracedTensor(tensor, node, of.memory, of, view)

    def node(self, value: TracedTensor) -> fx.Node:
        """The node that has this tensor's contents now."""
        if value.version != value.memory.version:
            assert value.parent is not None
            value.node = self._look(value, self.node(value.parent))
            value.version = value.memory.version
        return value.node

    def _look(self, value: TracedTensor, parent: fx.Node) -> fx.Node:
        view = value.view
        if view is None:
            return parent
        if view.op in BY_STRIDES:
            assert value.parent is not None
            refuse_other_memory(value.parent, view)
        return self._emit(view.op, view.on(parent), view.kwargs, part=view.index)

    def write(self, value: TracedTensor, node: fx.Node) -> None:
        """The tensor's contents are now those of `node`; so are the memory's behind it."""
        above: list[tuple[TracedTensor, fx.Node]] = []
        parent = value.parent
        while parent is not None:
            above.append((parent, self.node(parent)))
            parent = parent.parent
        value.memory.version += 1
        value.memory.counted = True
        self._set(value, node)
        for parent, before in above:
            node = self._put(value, before, node)
            self._set(parent, node)
            value = parent

    def _set(self, value: TracedTensor, node: fx.Node) -> None:
        """A node of other strides is good for what is above, not for the tensor itself: that is then looked at anew."""
        if surely_equal(node.meta["val"].stride(), value.tensor.stride()):
            value.node, value.version = node, value.memory.version

    def _put(self, value: TracedTensor, parent: fx.Node, node: fx.Node) -> fx.Node:
        """`parent` with `node` written where it is seen through the value's view."""
        view = value.view
        if view is None:
            return node
        put = _PUT.get(view.op)
        if view.op in BY_STRIDES:
            assert value.parent is not None
            refuse_other_memory(value.parent, view)
        if put is None:
            raise CannotDerive(f"a write through a view made by {view.op}")
        return put(self._emit, view, parent, node)


# -------------------------------------------------------------------------------------- views of memory, by strides

BY_STRIDES = frozenset({aten.as_strided.default, aten.as_strided_scatter.default, aten.as_strided_copy.default})


def refuse_other_memory(of: TracedTensor, view: TensorView) -> None:
    """`as_strided` sees the memory of a tensor. Once somebody writes there, nodes have the contents of tensors, each in
    a memory of its own: that is the same for a tensor which has its memory for itself, without gaps, and from its
    beginning on."""
    while of.view is None and of.parent is not None:
        of = of.parent
    arguments = {a.name: value for a, value in zip(view.op._schema.arguments, view.args, strict=False)} | view.kwargs
    offset, maker = arguments.get("storage_offset"), of.memory.maker
    counted = offset is None or (maker.op == "call_function" and maker.target is not operator.getitem)
    reach = [(size - 1) * stride for size, stride in zip(arguments["size"], arguments["stride"], strict=True)]
    if (
        of.parent is not None
        or not counted
        or not lies_densely(of.tensor)
        or not all(type(number) is int for number in (*reach, offset or 0))
        or sum(reach) + (offset or 0) >= max(of.tensor.numel(), 1)
    ):
        raise CannotDerive(f"{view.op._schema.name} of a part of what is written to")


def lies_densely(tensor: Tensor) -> bool:
    """Do its elements fill a stretch of memory, each place once?"""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True), key=lambda pair: (pair[0], pair[1])):
        if is_symbolic(stride) or is_symbolic(size):
            return False
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


# ------------------------------------------------------------------------- the inverses of views, by operator
#
# Each takes the view, the node seen through it and the new contents; gives the node with these contents in place.


def _size(node: fx.Node) -> list[Any]:
    return list(node.meta["val"].shape)


def _argument(view: TensorView, position: int, name: str, default: Any) -> Any:
    return view.args[position] if len(view.args) > position else view.kwargs.get(name, default)


def _scatter(op: OpOverload) -> Any:
    return lambda emit, view, parent, node: emit(op, (parent, node, *view.args[1:]), view.kwargs)


def _reshaped(emit: Emit, view: TensorView, parent: fx.Node, node: fx.Node) -> fx.Node:
    if not node.meta["val"].is_contiguous():
        node = emit(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    flat = emit(aten.view.default, (node, _size(parent)), {})
    return restrided(emit, flat, parent)


def restrided(emit: Emit, node: fx.Node, like: fx.Node) -> fx.Node:
    """`node` with the strides of `like`, which has the same size."""
    if surely_equal(node.meta["val"].stride(), like.meta["val"].stride()):
        return node
    return emit(aten.copy.default, (like, node), {})


def _swapped(emit: Emit, view: TensorView, parent: fx.Node, node: fx.Node) -> fx.Node:
    return emit(view.op, (node, *view.args[1:]), view.kwargs)


def _permuted(emit: Emit, view: TensorView, parent: fx.Node, node: fx.Node) -> fx.Node:
    dims = [d % len(view.args[1]) for d in view.args[1]]
    return emit(aten.permute.default, (node, [dims.index(d) for d in range(len(dims))]), {})


def _unselected(emit: Emit, view: TensorView, parent: fx.Node, node: fx.Node) -> fx.Node:
    dim = _argument(view, 1, "dim", 0)
    return emit(aten.select_scatter.default, (parent, node, dim, view.index), {})


def _joined(emit: Emit, view: TensorView, parent: fx.Node, node: fx.Node) -> fx.Node:
    dim = _argument(view, 2, "dim", 0)
    sizes = view.args[1]
    length = _size(parent)[dim]
    assert view.index is not None
    if isinstance(sizes, (int, torch.SymInt)):
        smaller: Callable[..., Any] = torch.sym_min
        start, stop = view.index * sizes, smaller((view.index + 1) * sizes, length)
    else:
        start = sum(sizes[: view.index])
        stop = start + sizes[view.index]
    return emit(aten.slice_scatter.default, (parent, node, dim, start, stop), {})


def _strided(emit: Emit, view: TensorView, parent: fx.Node, node: fx.Node) -> fx.Node:
    offset = _argument(view, 3, "storage_offset", None)
    return emit(aten.as_strided_scatter.default, (parent, node, view.args[1], view.args[2], offset), {})


def _aliased(emit: Emit, view: TensorView, parent: fx.Node, node: fx.Node) -> fx.Node:
    return node


def _expanded(emit: Emit, view: TensorView, parent: fx.Node, node: fx.Node) -> fx.Node:
    if not surely_equal(_size(parent), _size(node)):
        raise CannotDerive("a write to an expanded tensor")
    return node


def _through(op: OpOverload) -> Any:
    return lambda emit, view, parent, node: restrided(emit, emit(op, (node,), {}), parent)


def _retyped(emit: Emit, view: TensorView, parent: fx.Node, node: fx.Node) -> fx.Node:
    return emit(aten.view.dtype, (node, parent.meta["val"].dtype), {})


_PUT: dict[Any, Callable[[Emit, TensorView, fx.Node, fx.Node], fx.Node]] = {
    aten.slice.Tensor: _scatter(aten.slice_scatter.default),
    aten.select.int: _scatter(aten.select_scatter.default),
    aten.diagonal.default: _scatter(aten.diagonal_scatter.default),
    aten.as_strided.default: _strided,
    aten.view.default: _reshaped,
    aten._reshape_alias.default: _reshaped,
    aten.view.dtype: _retyped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
    aten.unsqueeze.default: _reshaped,
    aten.alias.default: _aliased,
    aten.expand.default: _expanded,
    aten.t.default: _swapped,
    aten.transpose.int: _swapped,
    aten.permute.default: _permuted,
    aten.unbind.int: _unselected,
    aten.split.Tensor: _joined,
    aten.split_with_sizes.default: _joined,
    aten.view_as_real.default: _through(aten.view_as_complex.default),
    aten.view_as_complex.default: _through(aten.view_as_real.default),
    aten._conj.default: _swapped,
    aten._neg_view.default: _swapped,
}
