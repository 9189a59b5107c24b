"""What to do with a Python frame that starts during a recording, decided once per code object.

Nearly all frames run as instrumented copies. The exceptions are tabled here, each with its reason.
"""

from __future__ import annotations

import _weakrefset
import collections.abc
import copyreg
import importlib._bootstrap
import os
import re
import sys
import types
import weakref
from typing import Any

import torch
import torch.amp.autocast_mode
import torch.autograd.grad_mode
import torch.overrides
import torch.utils.weak

from ... import _native
from ...support.by_identity import ByIdentity
from ...support.graph_gradients import ENGINE
from ..models import checkpoints, other_compiler, side_effect_calls, transforms, user_hints
from ..models import data_parallel as data_parallel  # has its function watched by another text
from . import module_calls

_ABSTRACT = collections.abc.Sized.__subclasshook__.__func__.__code__.co_filename  # type: ignore[attr-defined]
_STATOR = os.path.dirname(os.path.abspath(_native.__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_SITE = os.path.join(_STDLIB, "site-packages") + os.sep

# Files of torch whose functions hand over to the tensor mode by themselves: what they do is one node of the graph.
OPERATION_FILES = tuple(
    _TORCH + name.replace("/", os.sep) for name in ("nn/functional.py", "functional.py", "_tensor.py", "nn/init.py")
)


# What such a function asks, or does: with the mode on it takes another way than without, so it runs as a whole.
_HANDING_OVER = frozenset(
    {"handle_torch_function", "has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"}
)


_BACKWARD: types.CodeType = torch.Tensor.backward.__code__
# Functions that come to a backward pass.
PASSES = (_BACKWARD, torch.autograd.backward.__code__, torch.autograd.grad.__code__)


def _codes(*functions: Any) -> ByIdentity[types.CodeType, None]:
    return ByIdentity((f.__code__, None) for f in functions)


def _wrapper_of_tensor_operators() -> types.CodeType:
    return torch.Tensor.__rsub__.__code__


# Run unwatched: what they read is noted elsewhere.
_SKIPPED = _codes(
    torch.overrides.handle_torch_function,  # pops the mode and calls it
    torch.Tensor.__hash__,  # the identity, which `reads.use_as_key` notes
    re._compiler.compile,  # type: ignore[attr-defined]  # its arguments, which have a rule
)
_SKIPPED[_wrapper_of_tensor_operators()] = None  # calls handle_torch_function
# Of an import statement: `handlers.on_import` notes what they read.
_bootstrap: Any = importlib._bootstrap
_IMPORTING = _codes(_bootstrap._handle_fromlist, _bootstrap.ModuleSpec.parent.fget)
_WEAK_FILES = (
    weakref.__file__,
    _weakrefset.__file__,
    torch.utils.weak.__file__,
)  # their `remove` callbacks run when something else dies


def is_compiling() -> bool:
    """True while stator records."""
    return False


def recording() -> bool:
    """As a watched frame sees it: True."""
    return False


_COMPILING = (recording, is_compiling, torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
_CONSTANTS: ByIdentity[types.CodeType, Any] = ByIdentity((asks.__code__, True) for asks in _COMPILING)

# Functions recorded as a node of their own because what they change is not a torch function's business.
_LEAVES: dict[types.CodeType, str] = {
    torch.inference_mode.__enter__.__code__: "enter_inference_mode",
    torch.inference_mode.__exit__.__code__: "exit_inference_mode",
    torch.amp.autocast_mode.autocast.__enter__.__code__: "enter_autocast",
    torch.amp.autocast_mode.autocast.__exit__.__code__: "exit_autocast",
    checkpoints.enter_region.__code__: "enter_region",
    checkpoints.leave_region.__code__: "leave_region",
    **dict.fromkeys(transforms.TRANSFORMS, "transform"),
    transforms.APPLY: "apply",
    ENGINE.__code__: "engine",
}
LEAVES: ByIdentity[types.CodeType, str] = ByIdentity(_LEAVES.items())


def is_trusted(filename: str) -> bool:
    """Code of torch, of the standard library or our own: may run inside an operation."""
    if filename.startswith((_TORCH, _STATOR, "<frozen")):
        return True
    return filename.startswith(_STDLIB) and not filename.startswith(_SITE)


def hands_over(code: types.CodeType) -> bool:
    """Is this code of torch's that hands over to the tensor mode? `backward` is watched up to the engine."""
    return code.co_filename in OPERATION_FILES and code is not _BACKWARD


def _is_generated(code: types.CodeType) -> bool:
    """Methods that `namedtuple` and `dataclass` write."""
    if code.co_filename != "<string>":
        return False
    return code.co_name.startswith("__") or code.co_varnames[:1] == ("_cls",)


def classify(code: types.CodeType) -> tuple[int, Any, bool]:
    """(kind, payload, trusted) of a code object, for the frame hook."""
    filename = code.co_filename
    trusted = is_trusted(filename) or _is_generated(code)
    if code in LEAVES:
        return _native.LEAF, LEAVES[code], trusted
    if user_hints.breaks_at(code):
        return _native.BLIND, None, code in transforms.BREAKING
    if side_effect_calls.break_in(code) is not None:
        return _native.BLIND, None, trusted
    if other_compiler.is_bookkeeping(code):
        return _native.CONSTANT, None, trusted
    if code in module_calls.FRAMES or code in PASSES or code is module_calls.GETATTR or other_compiler.is_mark(code):
        return _native.TRANSPARENT, None, trusted
    if code in _CONSTANTS:
        return _native.CONSTANT, _CONSTANTS[code], trusted
    if filename.startswith(_STATOR):
        return _native.OURS, None, True
    if code in _SKIPPED or (hands_over(code) and not _HANDING_OVER.isdisjoint(code.co_names)):
        return _native.SKIP, None, trusted
    if code.co_name == "__subclasshook__" and filename == _ABSTRACT:  # called by C code, reads the class only
        return _native.OURS, None, trusted
    if code in _IMPORTING:
        return _native.OURS, None, trusted
    if code is copyreg._slotnames.__code__:  # type: ignore[attr-defined]  # called by C code, reads the class only
        return _native.OURS, None, trusted
    if filename in _WEAK_FILES and code.co_name in ("remove", "_remove"):
        return _native.OURS, None, trusted
    return _native.COPY, None, trusted


def compiles_callee(code: types.CodeType) -> bool | None:
    """A function that starts below one which is disabled, but not what that calls: is it compiled? None: no, but what
    it calls may be. False: nor that."""
    if user_hints.is_left_alone(code):
        return None
    if user_hints.is_disabled(code) or other_compiler.takes_over(code):
        return False
    if code.co_filename.startswith(("<stator", _STATOR)):
        return False
    return None if is_trusted(code.co_filename) or _is_generated(code) else True


def tracer_active() -> bool:
    """Is a debugger or a coverage tool looking on?"""
    return sys.gettrace() is not None
