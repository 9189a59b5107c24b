"""How a torch function that reached the tensor mode is written as a graph node.

The mode receives descriptors, wrappers and Python functions; a graph wants `operator.sub`, a method name or a function
that prints. `OpInfo` is all that is known of a function whatever its arguments are; it is found once per function.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ... import _native
from ..models import torch_functions
from ..models.treatments import SIZE_FACTS, Treatment, name_of, places_of_data, treatment_of, writes_in_place
from .operators import SCRIPTED, as_function, is_opaque, writes_by_schema

_OPERATORS = {
    "+": (operator.add, operator.iadd, "add __add__ __radd__"),
    "-": (operator.sub, operator.isub, "sub __sub__ __rsub__"),
    "*": (operator.mul, operator.imul, "mul __mul__ __rmul__"),
    "/": (operator.truediv, operator.itruediv, "div __truediv__ __rtruediv__ __div__ __rdiv__"),
    "//": (operator.floordiv, operator.ifloordiv, "floor_divide __floordiv__ __rfloordiv__"),
    "%": (operator.mod, operator.imod, "remainder __mod__ __rmod__"),
    "**": (operator.pow, operator.ipow, "pow __pow__ __rpow__"),
    "@": (operator.matmul, operator.imatmul, "matmul __matmul__ __rmatmul__"),
    "&": (operator.and_, operator.iand, "__and__ __rand__ bitwise_and"),
    "|": (operator.or_, operator.ior, "__or__ __ror__ bitwise_or"),
    "^": (operator.xor, operator.ixor, "__xor__ __rxor__ bitwise_xor"),
}
# (symbol, name of the torch function) -> (operator, are the operands swapped?)
_BINARY: dict[tuple[str, str], tuple[Callable[..., Any], bool]] = {}
for _symbol, (_plain, _in_place, _names) in _OPERATORS.items():
    for _name in _names.split():
        _swapped = _name.startswith("__r")
        _BINARY[_symbol, _name] = (_plain, _swapped)
        _BINARY[_symbol + "=", _name] = (_plain, _swapped)  # `x += t` where x is a number
        _BINARY[_symbol + "=", f"__i{_name[2:]}" if _name.startswith("__") else f"{_name}_"] = (_in_place, False)
_COMMUTATIVE = frozenset({"add", "mul"})
_COMPARE = {
    "gt": operator.gt, "lt": operator.lt, "ge": operator.ge, "le": operator.le,
    "__eq__": operator.eq, "eq": operator.eq, "__ne__": operator.ne, "ne": operator.ne,
}  # fmt: skip
_UNARY: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "__invert__": operator.invert,
    "bitwise_not": operator.invert,
    "positive": operator.pos,
}
# Python functions that go by a name under which nobody finds them.
_POWERS: dict[Any, Callable[..., Any]] = {torch.Tensor.__pow__: operator.pow, torch.Tensor.__ipow__: operator.ipow}
_ITEMS = {"__getitem__": operator.getitem, "__setitem__": operator.setitem}
_SPELLED_OTHERWISE = frozenset({*_ITEMS, *_COMPARE, *_UNARY, *(name for _, name in _BINARY)})


class OpInfo(NamedTuple):
    """All about a torch function that does not depend on its arguments; found once per function. C code reads it, by
    position: `_native/tracer.c`."""

    kind: Treatment
    name: str
    label: str
    writes: bool
    method: bool
    spelled: bool  # Is it written in the same way wherever it stands, and no operator's function?
    random: bool
    data: int  # bits: where among the arguments a tensor makes `needs_data` say yes; 0: nowhere, nor by keyword
    usual: bool  # is it handled as most are, and `data` all that `needs_data` knows of it?
    fails: bool  # are there arguments for which it may fail?
    sizes: bool  # does it tell sizes?
    reason: str
    opaque: bool  # does it run code that is not torch's?
    known: torch_functions.KnownByName  # what the operators of its name say


def op_info_of(func: Any) -> OpInfo:
    name, opaque = name_of(func), is_opaque(func)
    kind, reason = treatment_of(func) if not opaque else (Treatment.OPERATION, "")
    known = torch_functions.known_by_name(func, name)
    writes = writes_by_schema(func) if opaque else writes_in_place(name, {})
    usual = known.simple and not (writes and known.fails and name != "__setitem__")
    return OpInfo(
        kind=kind,
        name=name,
        label=name.strip("_"),
        writes=writes,
        method=_is_tensor_method(func),
        spelled=not isinstance(func, (types.MethodWrapperType, *SCRIPTED)) and name not in _SPELLED_OTHERWISE,
        random=torch_functions.draws_numbers(name),
        data=places_of_data(func, name, kind, opaque),
        usual=(kind is Treatment.FACT or (kind is Treatment.OPERATION and usual))
        and name not in _UNUSUAL
        and not opaque,
        fails=known.fails,
        sizes=kind is Treatment.FACT and name in SIZE_FACTS,
        reason=reason,
        opaque=opaque,
        known=known,
    )


_UNUSUAL = frozenset({"where", "one_hot", "requires_grad_", "type", "sparse_dim", "dense_dim"})


def spell(
    func: Any, name: str, args: tuple[Any, ...], plain: bool, probe: _native.Probe | None
) -> tuple[str, Any, tuple[Any, ...], str]:
    """(node kind, target, arguments, name) for a function; the last probe tells whether it was an operator.

    `plain`: it has no keyword arguments.
    """
    if isinstance(func, types.MethodWrapperType):
        return "call_function", getattr, (args[0], name), name
    if isinstance(func, SCRIPTED):
        return "call_function", as_function(func), args, name
    if name in _ITEMS:
        return "call_function", _ITEMS[name], args, name.strip("_")
    if probe is not None and probe.kind == _native.BINARY and plain and len(args) == 2:
        found = _BINARY.get((str(probe.arg), name))
        if found is not None:
            target, swapped = found
            if not swapped and not isinstance(args[1], torch.Tensor) and name in _COMMUTATIVE:
                watcher = _native.current()  # torch was asked for `y * 3`, perhaps
                swapped = watcher is not None and watcher.stack(0, probe.depth)[-1] is args[0]
            return "call_function", target, (args[1], args[0]) if swapped else args, _short(target)
    if probe is not None and probe.kind == _native.COMPARE and name in _COMPARE and len(args) == 2:
        return "call_function", _COMPARE[name], args, _short(_COMPARE[name])
    if probe is not None and probe.kind == _native.UNARY and name in _UNARY and len(args) == 1:
        return "call_function", _UNARY[name], args, _short(_UNARY[name])
    if plain and len(args) == 2 and func in _POWERS:
        return "call_function", _POWERS[func], args, "pow"
    if _is_tensor_method(func) and args and isinstance(args[0], torch.Tensor):
        return "call_method", name, args, name.strip("_")
    return "call_function", func, args, name.strip("_")


def _short(target: Callable[..., Any]) -> str:
    return str(getattr(target, "__name__", "operation")).strip("_")


def _is_tensor_method(func: Any) -> bool:
    if isinstance(func, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return issubclass(func.__objclass__, torch._C.TensorBase)
    if isinstance(func, types.FunctionType):
        return getattr(torch.Tensor, func.__name__, None) is func
    return False
