"""Which values are constants, and how a guard compares them.

A constant has no identity of its own that a program could rely on (numbers, strings, dtypes) or is nothing but its
identity (classes, modules, C functions). All other values are objects: they get an origin and are guarded by what is
read of them.
"""

from __future__ import annotations

import enum
import re
import types
from typing import Any

import numpy
import torch

from ..recording import Fact

EQUAL_TYPES: frozenset[type] = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range, torch.device, re.Pattern}
)
IDENTITY_TYPES: frozenset[type] = frozenset(
    {
        torch.dtype,
        torch.layout,
        torch.memory_format,
        torch.qscheme,
        types.CodeType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.GetSetDescriptorType,
        types.MemberDescriptorType,
        types.ClassMethodDescriptorType,
        torch._ops.OpOverload,
        torch._ops.OpOverloadPacket,
    }
)
_NESTED = (tuple, torch.Size)


def constant_fact(value: Any) -> Fact | None:
    """How a constant is guarded; None for an object."""
    cls = type(value)
    if cls in EQUAL_TYPES:
        return Fact.EQUAL
    if cls in IDENTITY_TYPES or isinstance(value, (type, types.ModuleType, enum.Enum)):
        return Fact.IS
    if cls is types.BuiltinFunctionType:
        owner = value.__self__
        fixed = owner is None or isinstance(owner, (types.ModuleType, type)) or type(owner).__module__ == "pybind11_builtins"
        return Fact.IS if fixed else None
    if cls in _NESTED:
        return Fact.EQUAL if all(constant_fact(item) is not None for item in value) else None
    if cls is slice:
        parts = (value.start, value.stop, value.step)
        return Fact.EQUAL if all(constant_fact(part) is not None for part in parts) else None
    if issubclass(cls, numpy.generic):
        return Fact.EQUAL
    return None


def is_constant(value: Any) -> bool:
    return constant_fact(value) is not None
