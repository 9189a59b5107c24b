"""What instructions and C callables do with symbolic numbers: pass them on, or read the number itself.

A symbolic number hears of arithmetic, comparisons, hashing and printing (`_native/symbol.c`). What reads its value past
these is found here, before it happens. Whatever is not known to pass numbers on counts as reading them.
"""

from __future__ import annotations

import collections
import functools
import math
import operator
import types
from typing import Any

import torch

from .. import _native
from ..facts import VALUE_TYPES, container_kind, is_open
from .calls import bound_parts, rule_for
from .rules import (
    C_DESCRIPTORS,
    advance,
    answer_overrides,
    calls_back,
    compare_identity,
    get_attribute,
    get_attribute_plainly,
    no_mode,
    nothing,
    read_length,
    read_type,
    set_attribute,
    set_attribute_plainly,
    shallow,
    state,
)
from .tensors import is_tensor

_PASSING_KINDS = frozenset(
    {
        *(_native.PACK, _native.INSERT, _native.EXTEND, _native.ITER, _native.NEXT, _native.UNPACK, _native.ESCAPE),
        *(_native.UNARY, _native.TRUTH, _native.COMPARE, _native.CONTAINS, _native.IS, _native.RETURN),
        *(_native.STORE_ATTR, _native.WITH, _native.RAISE, _native.MATCH, _native.MATCH_CLASS, _native.EXC_MATCH),
    }
)
_ITEM_KINDS = frozenset(
    {_native.SUBSCR, _native.SLICE, _native.STORE_SUBSCR, _native.STORE_SLICE, _native.DELETE_SUBSCR}
)
_STORING_KINDS = frozenset({_native.STORE_SUBSCR, _native.STORE_SLICE})
_PASSING_RULES = frozenset(
    {
        *(advance, answer_overrides, calls_back, compare_identity, get_attribute, get_attribute_plainly, no_mode),
        *(nothing, read_length, read_type, set_attribute, set_attribute_plainly, shallow, state),
    }
)
_PASSING_METHODS = frozenset(
    "append appendleft extend add update setdefault get pop popitem items keys values copy clear __init__ __new__ "
    "__iter__ __len__ __contains__ __eq__ __ne__ __add__ __setitem__".split()
)
_NUMBER_PROTOCOL = "add sub mul floordiv mod truediv neg eq ne lt le gt ge".split()
_PASSING: tuple[Any, ...] = (
    *(tuple, list, dict, set, frozenset, slice, zip, enumerate, reversed, map, filter, super, torch.Size),
    *(collections.deque, collections.OrderedDict, collections.defaultdict, functools.partial, functools.reduce),
    *(math.prod, types.SimpleNamespace, *(getattr(operator, name) for name in _NUMBER_PROTOCOL)),
)
_PASSING_IDS = frozenset(map(id, _PASSING))
_TEXTS = (str, bytes, bytearray)


def reads(probe: Any, operands: list[Any], value: Any) -> bool:
    """Does the instruction at `probe` read the number that `value` is, or the numbers in it?"""
    kind = probe.kind
    if kind in _PASSING_KINDS:
        return False
    if kind == _native.BINARY:
        return any(issubclass(type(operand), _TEXTS) for operand in operands)
    if kind in _ITEM_KINDS:
        stores = kind in _STORING_KINDS
        container = operands[1 if stores else 0]
        held = (container, operands[0]) if stores else (container,)
        return not is_tensor(container) and not any(value is part for part in held)
    if kind == _native.ATTR:
        return type(value) in (_native.Int, _native.Float)
    if kind in (_native.CALL, _native.CALL_EX):
        return not passes(operands[0] if operands[0] is not _native.MISSING else operands[1])
    return True


def passes(func: Any) -> bool:
    """Does a callable do nothing with a number among its arguments that the number would not hear of?"""
    if id(func) in _PASSING_IDS:
        return True
    cls = type(func)
    if issubclass(cls, types.MethodType):
        return passes(func.__func__)
    if issubclass(cls, types.FunctionType):
        return True  # its frame is watched, or it is an operation
    if issubclass(cls, type):
        return is_open(func) and not issubclass(func, VALUE_TYPES)
    if issubclass(cls, functools.partial):
        return passes(func.func)
    parts = bound_parts(func)
    method = func if parts is None else parts[0]
    if issubclass(type(method), C_DESCRIPTORS):
        owner = method.__objclass__
        if issubclass(owner, VALUE_TYPES):
            return False
        if container_kind(owner) is not None:
            return method.__name__ in _PASSING_METHODS
    rule = rule_for(method)
    if rule is not None:
        return rule in _PASSING_RULES
    return isinstance(_native.mro_lookup(cls, "__call__"), types.FunctionType)


def replacement(func: Any, args: tuple[Any, ...]) -> Any:
    """What to call instead of a callable that would lose what a number stands for; None: the callable itself."""
    if len(args) != 1:
        return None
    if func is len and is_tensor(args[0]) and args[0].dim():
        return "length"
    if (func is int and type(args[0]) is _native.Int) or (func is float and type(args[0]) is _native.Float):
        return "itself"
    return None
