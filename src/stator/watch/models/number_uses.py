"""What becomes of symbolic numbers that a callable is given: by its row, by its rule, or by the kind of callable."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from ... import _native
from ...support.builtin_types import types_where
from ...support.guard_readers import VALUE_TYPES, is_open
from .call_model import Args, NumberUse, facts_of
from .calls import RULES, rule_for
from .methods import keeps_numbers
from .reads import C_DESCRIPTORS, bound_parts

_PLAIN_CONTAINERS = types_where(lambda model: model.kind is not None and not model.hides)


def number_use(func: Any) -> NumberUse:
    """Of a callable that calls no other one (`called_at_last`)."""
    row = RULES.get(id(func))
    if row is not None and row.numbers is not None:
        return row.numbers
    return next(use for kind, use in _KINDS.items() if issubclass(type(func), kind))(func)


def called_at_last(func: Any, args: Args) -> tuple[Any, Args]:
    """A bound method, or a `partial`, is a call of another callable, with more arguments."""
    while id(func) not in RULES:
        stands_for = next((found for kind, found in _STAND_FOR.items() if issubclass(type(func), kind)), None)
        if stands_for is None:
            break
        func, args = stands_for(func, args)
    return func, args


_STAND_FOR: dict[type, Callable[[Any, Args], tuple[Any, Args]]] = {
    types.MethodType: lambda func, args: (func.__func__, (func.__self__, *args)),
    functools.partial: lambda func, args: (func.func, (*func.args, *args, *func.keywords.values())),
}


def _of_class(cls: Any) -> NumberUse:
    plain = is_open(cls) and not issubclass(cls, VALUE_TYPES)
    made = [_native.mro_lookup(cls, name) for name in ("__new__", "__init__")]
    return NumberUse.HELD if plain and all(map(_keeps_arguments, made)) else NumberUse.READ


def _of_c_function(func: Any) -> NumberUse:
    if func.__name__ == "__new__":
        return NumberUse.HELD if _keeps_arguments(func) else NumberUse.READ
    return _of_rule(func)


def _of_rule(func: Any) -> NumberUse:
    parts = bound_parts(func)
    method = func if parts is None else parts[0]
    if issubclass(type(method), C_DESCRIPTORS):
        keeps = keeps_numbers(method)
        if keeps is not None:
            return NumberUse.HELD if keeps else NumberUse.READ
    rule = rule_for(method)
    if rule is not None:
        return facts_of(rule).numbers
    watched = isinstance(_native.mro_lookup(type(func), "__call__"), types.FunctionType)
    return NumberUse.HELD if watched else NumberUse.READ


def _keeps_arguments(method: Any) -> bool:
    """Is everything that it does with them to keep them?"""
    if isinstance(method, (types.FunctionType, staticmethod)):
        return True
    owner = getattr(method, "__objclass__", None) or getattr(method, "__self__", None)
    if not isinstance(owner, type):
        return False
    plain_exception = issubclass(owner, BaseException) and owner.__basicsize__ == BaseException.__basicsize__
    return owner is object or owner in _PLAIN_CONTAINERS or plain_exception


# What has no row: the first kind counts.
_KINDS: dict[type, Callable[[Any], NumberUse]] = {
    types.FunctionType: lambda func: NumberUse.HELD,  # its frame is watched, or it is an operation
    type: _of_class,
    types.BuiltinFunctionType: _of_c_function,
    object: _of_rule,
}
