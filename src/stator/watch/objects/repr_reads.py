"""What the text of a value shows. That of an object without a text of its own is its address, which no replay can
give again: neither of an object made inside nor of another one that passes the same guards.
"""

from __future__ import annotations

import collections
import re
import types
from collections.abc import Iterable
from typing import Any

import torch

from ... import _native
from ...support.guard_readers import VALUE_TYPES, container_kind
from .constants import is_constant

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_PLAIN = (*VALUE_TYPES, bytearray, torch.Tensor, torch.finfo, torch.iinfo)
_AS_REPR = re.compile(r"%[^%a-zA-Z]*[ra]|![ra]")
# What a method of `object` does by calling another one.
_NEXT = {"__format__": "__str__", "__str__": "__repr__"}


def asks_for_repr(template: Any) -> bool:
    """Does a template of `%` or `format` ask for the `repr` of what is put in?"""
    return not issubclass(type(template), str) or _AS_REPR.search(template) is not None


def shows_address(value: Any, method: str) -> bool:
    """Would the text that this method gives hold the address of an object? (Methods in Python are watched.)"""
    pending = [(value, method)]
    seen: set[int] = set()
    while pending:
        value, method = pending.pop()
        if id(value) in seen or is_constant(value):
            continue
        found = _native.mro_lookup(type(value), method)
        while method in _NEXT and found is vars(object)[method]:
            method = _NEXT[method]
            found = _native.mro_lookup(type(value), method)
        if issubclass(type(found), types.FunctionType):
            continue
        seen.add(id(value))
        parts = _shown_parts(value)
        if parts is None:
            return True
        pending.extend((part, "__repr__") for part in parts)
    return False


def _shown_parts(value: Any) -> Iterable[Any] | None:
    """The objects whose texts make up that of a value; None: there is more to it."""
    cls = type(value)
    kind = container_kind(cls)
    if kind == "dict":
        made_by = [value.default_factory] if issubclass(cls, collections.defaultdict) else []
        return [*made_by, *dict.keys(value), *dict.values(value)]
    if kind is not None:
        return list(value)
    if issubclass(cls, _VIEWS):
        return list(value)
    if issubclass(cls, BaseException):
        return list(value.args)
    if issubclass(cls, slice):
        return [value.start, value.stop, value.step]
    if cls is types.SimpleNamespace:
        return list(vars(value).values())
    return () if issubclass(cls, _PLAIN) else None
