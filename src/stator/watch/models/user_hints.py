"""Functions with which a program steers its own compilation."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ...support.by_identity import Alive, WeakNotes
from ..graph_break import BreakGraph
from . import side_effect_calls
from .transforms import BREAKING

_DISABLED_FILE = "<stator disabled>"
_reasons: WeakNotes[types.CodeType, str] = WeakNotes()
_alone: Alive[types.CodeType] = Alive()  # disabled, but not what they call


def disabled(fn: Any, reason: str = "", recursive: bool = True) -> Any:
    """A function that breaks the graph and runs unwatched, callees included if `recursive`. `reason` is told with the
    break."""
    if not callable(fn):
        raise TypeError(f"stator.disable takes a function, not {fn!r}")

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    # A code object of its own, so that the frame hook can tell this wrapper from any other.
    call.__code__ = call.__code__.replace(co_name=getattr(fn, "__name__", "call"), co_filename=_DISABLED_FILE)
    functools.update_wrapper(call, fn)
    _reasons.put(call.__code__, reason)
    if not recursive:
        _alone.add(call.__code__)
        leave_alone(fn)
    return call


def leave_alone(fn: Any) -> None:
    """This function is disabled, but not what it calls."""
    if isinstance(fn, torch.nn.Module):
        fn = type(fn).forward
    for each in (fn, getattr(fn, "__func__", None), vars(type(fn)).get("__call__")):
        if isinstance(each, types.FunctionType):
            _alone.add(each.__code__)


def is_left_alone(code: types.CodeType) -> bool:
    """Of a function that is disabled, but not what it calls."""
    return code in _alone


def is_disabled(code: types.CodeType) -> bool:
    """Of a frame below which nothing is compiled."""
    return code.co_filename == _DISABLED_FILE and code not in _alone


def graph_break(reason: str = "") -> None:
    """Break the graph here. Outside of a recording nothing happens."""


def breaks_at(code: types.CodeType) -> bool:
    """Does a frame of this code mean a break?"""
    return code is graph_break.__code__ or code.co_filename == _DISABLED_FILE or code in BREAKING


def break_of(code: types.CodeType) -> BreakGraph | None:
    """The break that a frame of this code means: the program asked for one, or it reaches the world outside."""
    if code is graph_break.__code__:
        return BreakGraph("user-graph-break")
    if code.co_filename == _DISABLED_FILE:
        reason = _reasons.get(code)
        kind = "disabled-frame" if code in _alone else "disabled-function"
        return BreakGraph(kind, f"{code.co_name}: {reason}" if reason else code.co_name)
    if code in BREAKING:
        return BreakGraph("functorch", BREAKING[code])
    found = side_effect_calls.break_in(code)
    return BreakGraph(*found) if found is not None else None


# -- sizes

Bounds = tuple[int, int]
_marks: Any = WeakIdKeyDictionary()  # of tensors: ({dimension: bounds}, dimensions that are constants)


def _check_tensor(tensor: Any, name: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"stator.{name} takes a tensor, not {tensor!r}")


def _marks_for(tensor: Any, dim: int, name: str) -> tuple[int, tuple[dict[int, Bounds], set[int]]]:
    _check_tensor(tensor, name)
    if not isinstance(dim, int) or not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(f"stator.{name}: a tensor of {tensor.dim()} dimensions has no dimension {dim!r}")
    return dim % tensor.dim(), _marks.setdefault(tensor, ({}, set()))


def mark_dynamic(tensor: torch.Tensor, dim: int, *, min: int | None = None, max: int | None = None) -> None:
    """This size differs from call to call: a recording that takes the tensor must hold for others, too."""
    low, high = 0 if min is None else min, 2**62 if max is None else max
    dim, (dynamic, static) = _marks_for(tensor, dim, "mark_dynamic")
    if not low <= tensor.shape[dim] <= high:
        raise ValueError(f"stator.mark_dynamic: size {tensor.shape[dim]} is not between {min} and {max}")
    dynamic[dim] = (low, high)
    static.discard(dim)


def mark_static(tensor: torch.Tensor, dim: int | None = None) -> None:
    """This size (all sizes, without `dim`) is a constant: another one is another recording."""
    _check_tensor(tensor, "mark_static")
    for each in range(tensor.dim()) if dim is None else (dim,):
        number, (dynamic, static) = _marks_for(tensor, each, "mark_static")
        static.add(number)
        dynamic.pop(number, None)


def marks_of(tensor: torch.Tensor) -> tuple[dict[int, Bounds], set[int]]:
    """The dimensions of a tensor that are marked: as symbols, with their bounds; and as constants."""
    found: tuple[dict[int, Bounds], set[int]] = _marks.get(tensor, ({}, set())) if _marks else ({}, set())
    return found


def has_marks() -> bool:
    """Is there any tensor with a dimension that is marked as a symbol?"""
    return any(dynamic for dynamic, _ in list(_marks.values())) or len(_wishes) > 0


# -- the marks of torch's own compiler, which it keeps on the tensors

_wishes: Any = WeakIdKeyDictionary()  # of tensors: dimensions that had better be symbols, and need not
_DEEPEST = 4


def wishes_of(tensor: torch.Tensor) -> frozenset[int]:
    """The dimensions of a tensor that are symbols where possible."""
    found: frozenset[int] = _wishes.get(tensor, frozenset()) if _wishes else frozenset()
    return found


def adopt_marks(value: Any, depth: int = 0) -> None:
    """Tensors among the arguments of a call may be marked for torch's own compiler: that means the same to us."""
    if "torch._dynamo.decorators" not in sys.modules or depth > _DEEPEST:
        return
    if isinstance(value, torch.Tensor):
        marks = vars(value)
        if "_has_dynamo_dim_marking" in marks:
            _adopt(value, marks)
    elif type(value) in (tuple, list):
        for item in value:
            adopt_marks(item, depth + 1)
    elif type(value) is dict:
        for item in value.values():
            adopt_marks(item, depth + 1)


def _adopt(tensor: torch.Tensor, marks: dict[str, Any]) -> None:
    bounds = {each.dim: each for each in marks.get("_dynamo_dynamic_range", ())}
    sizes = tensor.shape
    for dim in marks.get("_dynamo_static_indices", ()):
        if -len(sizes) <= dim < len(sizes):
            mark_static(tensor, dim)
    for dim in marks.get("_dynamo_dynamic_indices", ()):
        if -len(sizes) <= dim < len(sizes):
            low, high = (bounds[dim].min, bounds[dim].max) if dim in bounds else (None, None)
            if (low is None or low <= sizes[dim]) and (high is None or sizes[dim] <= high):
                mark_dynamic(tensor, dim, min=low, max=high)
    names = ("_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices")
    wishes = {dim % len(sizes) for name in names for dim in marks.get(name, ()) if -len(sizes) <= dim < len(sizes)}
    if wishes:
        _wishes[tensor] = frozenset(wishes)
