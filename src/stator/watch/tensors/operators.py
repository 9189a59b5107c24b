"""Operators that are not torch's own: registered by a library or a program, or compiled by TorchScript.

Each is one node. What it does really happens in every call, so whatever it reads besides its arguments it reads again,
and its body need not be watched. What the graph has to know is that the sizes of its results follow from those of its
arguments: the operator is asked, with tensors that have no data. One that cannot tell breaks the graph.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._library import custom_ops
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from ...interrupts import let_through
from ...support.torch_modes import ModesKept
from ..graph_break import BreakGraph
from .operator_bodies import can_run_again

_OWN = frozenset({"aten", "prim", "prims", "quantized", "inductor"})
_OVERLOADS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
SCRIPTED: tuple[type, ...] = (torch.jit.ScriptFunction,)


def is_opaque(func: Any) -> bool:
    """Is this an operator whose inside nobody here knows?"""
    if isinstance(func, _OVERLOADS):
        return _qualified(func).split("::")[0] not in _OWN
    return isinstance(func, SCRIPTED)


def _qualified(func: Any) -> str:
    """`library::name`"""
    return str(func._qualified_op_name if isinstance(func, torch._ops.OpOverloadPacket) else func.name())


def overloads(func: Any) -> list[Any]:
    if isinstance(func, torch._ops.OpOverloadPacket):
        return [getattr(func, name) for name in func.overloads()]  # type: ignore[no-untyped-call]
    return [func] if isinstance(func, torch._ops.OpOverload) else []


def has_python_body(func: Any) -> bool:
    """Is its body written in Python, with effects perhaps that nobody can undo?"""
    if isinstance(func, SCRIPTED):
        return False
    library, _, name = _qualified(func).partition("::")
    name = name.partition(".")[0]
    definition = custom_ops.OPDEFS.get(f"{library}::{name}")
    if definition is not None:
        return list(definition._backend_fns) != [None] or not can_run_again(definition._init_fn)
    starts = (f"{library}/{name}/", f"{library}/{name}.")
    return any(key.startswith(starts) and not key.endswith("/Meta") for key in torch.library._impls)


def is_collective(func: Any) -> bool:
    """Do other processes take part in it?"""
    return not isinstance(func, SCRIPTED) and "c10d" in _qualified(func).partition("::")[0]


def writes_by_schema(func: Any) -> bool:
    """Does an operator say that it writes to an argument?"""
    return any(overload._schema.is_mutable for overload in overloads(func))


@functools.cache
def as_function(func: Any) -> Any:
    """A scripted function as the text of a graph can name it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    call.__name__ = call.__qualname__ = func.__name__
    call.__wrapped__ = func  # type: ignore[attr-defined]
    return call


_SIZES = frozenset({"aten::size", "aten::dim", "aten::len"})
_OF_NUMBERS = frozenset(
    "prim::Constant prim::max prim::min prim::ListConstruct aten::tensor aten::add aten::sub aten::mul aten::div "
    "aten::floordiv aten::sqrt aten::__getitem__".split()
)


def asks_for_sizes_alone(target: Any) -> bool:
    """Is this a scripted function whose result depends on the sizes of the tensors that it is given, and on nothing
    else of them?"""
    func = getattr(target, "__wrapped__", None)
    return isinstance(func, SCRIPTED) and _text_asks_for_sizes_alone(func)


@functools.cache
def _text_asks_for_sizes_alone(func: Any) -> bool:
    graph = func.inlined_graph
    if not all(node.kind() in _SIZES | _OF_NUMBERS for node in graph.nodes()):
        return False
    tensors = [value for value in graph.inputs() if str(value.type()) == "Tensor"]
    return all(use.user.kind() in _SIZES for value in tensors for use in value.uses())


def require_sizes(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """BreakGraph, unless the sizes of the results can be told without any data."""
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def without_data(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)

    try:
        with ModesKept(), torch.no_grad(), mode:
            given, named = pytree.tree_map(without_data, (args, kwargs))
            results = pytree.tree_leaves(func(*given, **named))
    except Exception as error:
        let_through(error)
        raise BreakGraph("unknown-callable", f"{name}, which does not say what sizes its results have") from error
    for result in results:
        if result is None:
            continue
        if not isinstance(result, torch.Tensor):
            raise BreakGraph("tensor-scalar", f"result of type {type(result).__name__}")
        if not all(type(size) is int for size in result.shape):
            raise BreakGraph("dynamic-shape-op", name)
