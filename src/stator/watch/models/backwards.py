"""Backwards of autograd functions that may be derived ahead of time: those of which is known all that they read.

A backward runs long after its forward was recorded, and may read anything then. Enters: the Python function. Leaves:
the variables and attributes that its code reads besides its arguments and `ctx`, to be compared when it would run; or
None, if there may be more: its code changes something, calls what is in no table here, or reads what changes inside.

What holds: in such a function every value is a tensor, a constant, a container that it made, or `ctx`; so
calls of methods can do nothing that torch's functions cannot, and these are looked at when the function is traced.
"""

from __future__ import annotations

import builtins
import dis
import itertools
import math
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules._functions import BackwardHookFunction

from ...support.graph_leaves import AttributeRead, GlobalRead, OutsideRead
from ..objects.constants import is_constant
from .torch_functions import draws_numbers
from .treatments import Treatment, name_of, treatment_of

# Instructions that read and compute. What changes a variable or an attribute from outside is not here.
_PLAIN = frozenset(
    "RESUME NOP CACHE POP_TOP COPY SWAP PUSH_NULL PRECALL CALL KW_NAMES CALL_KW CALL_FUNCTION_EX LOAD_FAST "
    "LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST STORE_FAST STORE_FAST_STORE_FAST STORE_FAST_LOAD_FAST "
    "DELETE_FAST LOAD_CONST RETURN_VALUE RETURN_CONST COPY_FREE_VARS BINARY_OP UNARY_NEGATIVE UNARY_NOT UNARY_INVERT "
    "UNARY_POSITIVE COMPARE_OP IS_OP CONTAINS_OP BINARY_SUBSCR BINARY_SLICE STORE_SUBSCR BUILD_TUPLE BUILD_LIST "
    "BUILD_SLICE BUILD_MAP BUILD_CONST_KEY_MAP LIST_EXTEND LIST_APPEND LIST_TO_TUPLE DICT_MERGE DICT_UPDATE MAP_ADD "
    "UNPACK_SEQUENCE UNPACK_EX GET_ITER FOR_ITER END_FOR POP_ITER POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE "
    "POP_JUMP_IF_NOT_NONE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE TO_BOOL "
    "POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_NONE "
    "POP_JUMP_BACKWARD_IF_NOT_NONE JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_IF_TRUE_OR_POP "
    "JUMP_IF_FALSE_OR_POP EXTENDED_ARG MAKE_FUNCTION LOAD_ASSERTION_ERROR RAISE_VARARGS".split()
)
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_CELLS = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
# Of `ctx`: what belongs to the node, which is another one here; of a tensor: what reaches other objects.
_OTHERS = frozenset(
    "next_functions metadata name register_hook register_prehook backward apply vjp to_save dirty_tensors "
    "saved_variables saved_for_forward maybe_clear_saved_tensors save_for_backward mark_dirty grad_fn data".split()
)
_BUILTINS: tuple[Any, ...] = (
    *(len, range, isinstance, min, max, sum, abs, tuple, list, dict, int, float, bool, zip, enumerate, any, all, slice),
    *(round, builtins.pow, reversed, sorted, builtins.divmod, torch.Tensor, torch.Size),
    *[value for value in vars(math).values() if isinstance(value, types.BuiltinFunctionType)],
)
_ALLOWED = frozenset(map(id, _BUILTINS))
_MODULES_OF_TORCH = frozenset({"torch", "torch.nn", "torch.nn.functional", "torch.functional", "torch.special", "math"})
_OF_TORCH: tuple[Any, ...] = (torch._C._VariableFunctions, torch._C._nn, torch._C._special)  # type: ignore[attr-defined]
_FUNCTIONS_IN_PYTHON = frozenset({"torch.nn.functional", "torch.functional"})


# What tensors without data, on which it is traced, answer as real ones do (`device`: by `autograd.choices`).
_FACTS = frozenset(
    "shape size dim ndim ndimension numel nelement dtype is_floating_point is_complex is_signed element_size itemsize "
    "is_contiguous is_same_size __len__ requires_grad promote_types can_cast result_type layout device".split()
)
_HOOKED = frozenset({BackwardHookFunction})  # whose nodes are looked for by name, and given hooks


@once_differentiable
def _once(ctx: Any) -> None:
    """Its wrapper is the one that all have."""


class _Unknown(Exception):
    """There may be more that the function reads."""


def reads_of(cls: Any) -> tuple[OutsideRead, ...] | None:
    """What the backward of an autograd function reads; None if that cannot be told."""
    function = cls.backward
    if cls in _HOOKED or cls.vjp is not torch.autograd.Function.vjp or not isinstance(function, types.FunctionType):
        return None
    reads: list[OutsideRead] = [AttributeRead(cls, "backward", function), AttributeRead(cls, "vjp", cls.vjp)]
    if function.__code__ is _once.__code__:
        function = function.__wrapped__  # type: ignore[attr-defined]  # by `functools.wraps`
    try:
        _look_into(function, reads, set())
    except _Unknown:
        return None
    return tuple(reads)


def materializes(cls: Any) -> bool | None:
    """Does its backward get zeros for gradients that are not there? None: nobody knows."""
    apart = cls.setup_context is not torch.autograd.Function.setup_context  # then the forward gets no `ctx`
    for function in (cls.setup_context,) if apart else (cls.forward,):
        if not isinstance(function, types.FunctionType):
            return None
        code = function.__code__
        if _hands_on(code) or "materialize_grads" in (*code.co_names, *code.co_consts):
            return None
        if "set_materialize_grads" in code.co_names:
            return (
                None if any("JUMP" in instruction.opname for instruction in dis.get_instructions(code)) else _set(code)
            )
    return True


def _set(code: types.CodeType) -> bool | None:
    """What a function without branches sets it to."""
    values: set[bool | None] = set()
    for instruction, following in itertools.pairwise(dis.get_instructions(code)):
        if instruction.argval == "set_materialize_grads":
            known = following.opname == "LOAD_CONST" and type(following.argval) is bool
            values.add(following.argval if known else None)
    return values.pop() if len(values) == 1 else None


def _hands_on(code: types.CodeType) -> bool:
    """Does a function do more with `ctx`, its first argument, than use its attributes?"""
    if not code.co_argcount:
        return True
    context = code.co_varnames[0]
    instructions = list(dis.get_instructions(code))
    for instruction, following in itertools.pairwise(instructions):
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if instruction.opname.startswith("LOAD_FAST") and context in names:
            if following.opname not in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR") or len(names) > 1:
                return True
        elif context in names and instruction.opname in ("LOAD_DEREF", "LOAD_CLOSURE", "MAKE_CELL"):
            return True
    return False


def is_allowed(func: Any) -> bool:
    """May it call this function of torch, or read this attribute, in a trace?"""
    if func is torch._C._set_grad_enabled:  # `once_differentiable` does
        return True
    name, kind = name_of(func), treatment_of(func)[0]
    if kind is Treatment.FACT:
        return name in _FACTS
    return kind is Treatment.OPERATION and not draws_numbers(name) and not name.startswith("requires_")


def _look_into(function: types.FunctionType, reads: list[OutsideRead], seen: set[int]) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not all(map(is_constant, defaults)):
        raise _Unknown
    reads += [AttributeRead(function, name, getattr(function, name)) for name in ("__code__", "__defaults__")]
    _look_at(function, function.__code__, reads, seen)


def _look_at(function: types.FunctionType, code: types.CodeType, reads: list[OutsideRead], seen: set[int]) -> None:
    if code.co_flags & 0x2A0:  # generators, coroutines
        raise _Unknown
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_freevars:
                raise _Unknown
            _look_at(function, constant, reads, seen)
    instructions = iter(dis.get_instructions(code))
    for instruction in instructions:
        name = instruction.opname
        if name in _GLOBALS:
            _look_at_value(_read_global(function, instruction.argval, reads), instructions, reads, seen)
        elif name in _CELLS:
            _look_at_value(_read_cell(function, instruction.argval, reads), instructions, reads, seen)
        elif name in _ATTRIBUTES:
            if instruction.argval.startswith("_") or instruction.argval in _OTHERS:
                raise _Unknown
        elif name not in _PLAIN:
            raise _Unknown


def _read_global(function: types.FunctionType, name: str, reads: list[OutsideRead]) -> Any:
    read = GlobalRead(function.__globals__, vars(builtins), name, None)
    read = read._replace(value=read.now())
    reads.append(read)
    return read.value


def _read_cell(function: types.FunctionType, name: str, reads: list[OutsideRead]) -> Any:
    if name not in function.__code__.co_freevars:
        raise _Unknown
    cell: Any = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
    read = AttributeRead(cell, "cell_contents", getattr(cell, "cell_contents", None))
    reads.append(read)
    return read.value


def _look_at_value(
    value: Any, instructions: Iterator[dis.Instruction], reads: list[OutsideRead], seen: set[int]
) -> None:
    """A value from outside; of a module, what is read of it next."""
    while isinstance(value, types.ModuleType):
        following = next(instructions)
        if value.__name__ not in _MODULES_OF_TORCH or following.opname not in _ATTRIBUTES:
            raise _Unknown
        read = AttributeRead(value, following.argval, getattr(value, following.argval, None))
        reads.append(read)
        value = read.value
    if id(value) in _ALLOWED or _is_operation(value):
        return
    if isinstance(value, types.FunctionType) and not (value.__module__ or "").startswith("torch"):
        _look_into(value, reads, seen)
    elif not is_constant(value) or callable(value):
        raise _Unknown


def _is_operation(value: Any) -> bool:
    """Is it a function of torch that the trace is told of?"""
    if isinstance(value, types.FunctionType):
        return value.__module__ in _FUNCTIONS_IN_PYTHON and is_allowed(value)
    name = getattr(value, "__name__", "")
    return any(getattr(owner, name, None) is value for owner in _OF_TORCH) and is_allowed(value)
