"""Bodies of operators in Python: can one run again without anybody's noticing?

A body that touches nothing but its arguments, torch's own functions in C and a few builtins has no effect besides its
result: a replay that has run it may be repeated. All others happen once (`failing_ops.py`). Decided by the body's code,
and closed: what is not known here may do anything.
"""

from __future__ import annotations

import builtins
import dis
import types
from typing import Any

import torch

_BUILTINS = frozenset(
    "enumerate range len zip min max sum int float bool tuple list dict abs reversed sorted isinstance all any slice "
    "ValueError RuntimeError IndexError TypeError AssertionError".split()
)
_CONSTANTS = (int, float, str, bool, type(None), torch.dtype)
_WRITES = frozenset(
    "STORE_GLOBAL DELETE_GLOBAL STORE_ATTR DELETE_ATTR IMPORT_NAME LOAD_BUILD_CLASS YIELD_VALUE".split()
)
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_MISSING = object()


def can_run_again(function: Any, seen: frozenset[Any] = frozenset()) -> bool:
    if type(function) is not types.FunctionType or function.__closure__ or function in seen:
        return False
    if any(map(_is_mutable, (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))):
        return False
    return _is_harmless(function.__code__, function.__globals__, seen | {function})


def _is_mutable(value: Any) -> bool:
    return not isinstance(value, _CONSTANTS)


def _is_harmless(code: types.CodeType, names: dict[str, Any], seen: frozenset[Any]) -> bool:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    if not all(_is_harmless(part, names, seen) for part in inner):
        return False
    module: Any = None  # torch, if that was just loaded
    for instruction in dis.get_instructions(code):
        if module is not None:
            if instruction.opname not in _ATTRIBUTES or not _is_simple(getattr(module, instruction.argval, None)):
                return False
            module = None
        elif instruction.opname in _WRITES:
            return False
        elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = names.get(instruction.argval, getattr(builtins, instruction.argval, _MISSING))
            if value is torch or value is torch.nn.functional:
                module = value
            elif instruction.argval in _BUILTINS and instruction.argval not in names:
                continue
            elif not isinstance(value, _CONSTANTS) and not can_run_again(value, seen):
                return False
    return module is None


def _is_simple(value: Any) -> bool:
    """A function of torch in C, or a constant."""
    return type(value) is types.BuiltinFunctionType or isinstance(value, (torch.dtype, float))
