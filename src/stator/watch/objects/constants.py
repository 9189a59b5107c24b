"""Which values are constants, and how a guard compares them.

A constant has no identity of its own that a program could rely on (numbers, strings, dtypes) or is nothing but its
identity (classes, modules, C functions). All other values are objects: they get an origin and are guarded by what is
read of them.
"""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

from ... import _native
from ...recording import Fact
from ...support.builtin_types import TYPE_MODELS, Comparison, types_where
from ...support.literals import name_of
from ..graph_break import BreakGraph

# Numbers and texts of numpy's own, which torch loads. Others are objects: `numpy.void` is a view of memory that may
# change, an instance of a subclass has attributes.
_NUMPY_SCALARS: frozenset[type] = frozenset(
    cls
    for cls in (vars(sys.modules["numpy"]).values() if "numpy" in sys.modules else ())
    if isinstance(cls, type)
    and issubclass(cls, sys.modules["numpy"].generic)
    and not issubclass(cls, (sys.modules["numpy"].void, sys.modules["numpy"].object_))
)
_BY_VALUE = types_where(lambda model: model.compared is Comparison.BY_CONTENT)
_FIXED_TYPES: dict[type, Fact | None] = {
    model.type: model.compared if isinstance(model.compared, Fact) else None
    for model in TYPE_MODELS
    if model.compared is not None and model.compared is not Comparison.BY_CONTENT
}
# The same for the ledger, which asks `constant_fact` for types that are not in here: about every value of some types.
KINDS: dict[type, Any] = {**_FIXED_TYPES, **dict.fromkeys(_BY_VALUE, NotImplemented)}


_BY_IDENTITY = (object.__eq__, object.__hash__)  # as `type` tells classes apart


# Values that are nested deeper are objects: what looks at them calls itself, here and in C, and the program may have
# set the limit to that as it likes.
DEEPEST = 100


def constant_fact(value: Any, depth: int = 0) -> Fact | None:
    """How a constant is guarded; None for an object."""
    cls = type(value)
    if type(cls) is not type:
        _check_comparison(cls)
    if cls in _FIXED_TYPES:
        return _FIXED_TYPES[cls]
    if cls in _BY_VALUE:
        return _fact_by_value(value, depth)
    if issubclass(cls, (type, types.ModuleType, enum.Enum)):
        if issubclass(cls, type):
            _check_comparison(value)
        return Fact.IS
    return Fact.EQUAL if cls in _NUMPY_SCALARS else None


def _check_comparison(cls: type) -> None:
    """Tables of classes, here and elsewhere, would ask a metaclass which classes are equal; it may say anything."""
    found = tuple(_native.mro_lookup(type(cls), name) for name in ("__eq__", "__hash__"))
    if found != _BY_IDENTITY:
        raise BreakGraph("unguardable", f"{name_of(cls)}, which its metaclass compares by code of its own")


def _fact_by_value(value: Any, depth: int) -> Fact | None:
    """Tuples and slices of constants are constants; so are C functions that are not bound to an object."""
    if issubclass(type(value), types.BuiltinFunctionType):
        owner = value.__self__
        if owner is None or issubclass(type(owner), (types.ModuleType, type)):
            return Fact.IS
        return Fact.IS if type(owner).__module__ == "pybind11_builtins" else None
    parts = value if issubclass(type(value), tuple) else (value.start, value.stop, value.step)
    if depth == DEEPEST:
        return None
    return Fact.EQUAL if all(constant_fact(part, depth + 1) is not None for part in parts) else None


def is_constant(value: Any) -> bool:
    return constant_fact(value) is not None
