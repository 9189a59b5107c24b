"""Values whose death a program can notice: by a weak reference, a finalizer, a generator that is closed, a bytearray
that could not be resized as long as a `memoryview` of it was there.

A continuation need not be given variables that are not read any more. The plain function's frame holds them all the
same, until it returns: a temporary folder, say, of which only the name is used. Such a variable is handed on.

Enters: the value of a variable that nobody reads. Leaves: whether it must be held. Nothing here runs code of the
program's. What is not looked at: tensors, which a graph would have to give back for nothing, classes and modules.
"""

from __future__ import annotations

import gc
import weakref
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FunctionType,
    GeneratorType,
    ModuleType,
)
from typing import Any

import torch

from ... import _native
from ...support.builtin_types import ITERATOR_TYPES, types_where
from ...support.guard_readers import container_kind, is_open
from .constants import is_constant

_MOST = 500  # objects that are looked at; behind that anything is possible
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})
_PLAIN |= {_native.Int, _native.Float}  # symbolic numbers
_SUSPENDED = (GeneratorType, CoroutineType, AsyncGeneratorType)  # to close one runs its `finally`
_NOT_ENTERED = (torch.Tensor, type, ModuleType, CodeType, BuiltinFunctionType)
# What these hold is what the collector is told of, and holding it is all that they do. An object of any other C type
# may keep a buffer, a lock or a register of something.
_TRANSPARENT = frozenset({*types_where(lambda model: model.transparent), _native.Compiled, *ITERATOR_TYPES})


def may_be_noticed(value: Any) -> bool:
    """Could somebody come to notice it?"""
    return type(value) not in _PLAIN and not issubclass(type(value), _NOT_ENTERED)


def is_noticed(value: Any) -> bool:
    """Would somebody notice if nobody held the value any more?"""
    pending, seen = [value], set[int]()
    while pending:
        one = pending.pop()
        kind = type(one)
        if id(one) in seen or not may_be_noticed(one):
            continue
        if len(seen) == _MOST or issubclass(kind, _SUSPENDED) or weakref.getweakrefcount(one):
            return True
        if _native.mro_lookup(kind, "__del__") is not _native.MISSING or not _is_transparent(one):
            return True
        seen.add(id(one))
        if kind is FunctionType:  # not its globals
            pending += [one.__closure__, one.__defaults__, one.__kwdefaults__]
        else:
            pending += gc.get_referents(one)
    return False


def _is_transparent(value: Any) -> bool:
    if type(value) in _TRANSPARENT:
        return True
    base = next(base for base in type(value).__mro__ if not is_open(base))
    if base is weakref.ReferenceType:
        return value.__callback__ is None
    known = base in _TRANSPARENT or issubclass(base, BaseException) or container_kind(base) is not None
    return known or is_constant(value) or base.__module__.partition(".")[0] == "torch"
