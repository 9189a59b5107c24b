"""Values that may be others in the next call: symbolic numbers, numbers and texts behind a break, numbers of the graph.

Enters: an instruction or a call that is about to use one. Leaves: it stays what it is, or it is guarded by its value.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from ... import _native
from ...support.builtin_types import BASES
from ...support.guard_readers import container_kind, is_open
from ...support.number_functions import FUNCTIONS, name_of_function, operands_of
from ..bytecode.break_step import begins_loop
from ..graph_break import BreakGraph
from ..models import logging_calls
from ..models.calls import reads_arguments_only
from ..models.reads import bound_parts
from ..objects.containers import expose
from ..objects.fingerprints import is_tensor
from ..objects.ledger import give_back_contents
from ..objects.own_objects import UNGUARDED_TYPES
from ..objects.reach import in_reach, put_originals
from ..segment import Segment
from ..symbols import symbolic_uses
from ..symbols.symbol_table import plain_number

_LOOKED_UP = {"dict", "set"}
_MOST_KEYS = 32  # that are compared one by one


def use_symbol(s: Segment, probe: Any, value: Any) -> None:
    """A symbolic number, or a container of some, is an operand."""
    assert s.symbols is not None
    operands = s.watcher.stack(0, probe.depth)[probe.depth - probe.span :]
    if probe.kind == _native.IS and all(issubclass(type(operand), (int, float)) for operand in operands):
        _compare_identities(s, operands)
    elif symbolic_uses.left_looks_at_right(probe, operands):
        place = len(s.watcher.frames()[0][-1][5]) + probe.depth - probe.span
        s.watcher.put(0, place, s.symbols.stand_in(operands[0]))
        s.symbols.keep(value)
    elif probe.kind == _native.CONTAINS and _is_lacking(s, *operands):
        place = len(s.watcher.frames()[0][-1][5]) + probe.depth - probe.span
        s.watcher.put(0, place, plain_number(value))
    elif symbolic_uses.reads(s.watcher, probe, operands, value):
        s.symbols.specialise_in(value)
    else:
        s.symbols.keep(value)


_SHOWING = (str, repr, format, str.format)


def is_left_to_python(s: Segment, probe: Any, value: Any) -> bool:
    """Does an instruction make a text of symbolic numbers, or a loop over a range? Then Python can make the step, and
    go on with the text, or into the loop."""
    if s.symbols is not None and any(symbol.data for symbol in s.symbols.symbols_in(value)):
        return False
    if probe.kind == _native.FORMAT:
        return True
    operands = s.watcher.stack(0, probe.depth)[probe.depth - probe.span :]
    if probe.kind == _native.BINARY:
        return bool(probe.arg == "%" and type(operands[0]) is str)
    if probe.kind != _native.CALL:
        return False
    func = _called(operands)
    return _makes_text(func) or (func is range and begins_loop(probe.code, probe.offset))


def _called(operands: list[Any]) -> Any:
    return operands[1 if operands[0] is _native.MISSING else 0]


def _makes_text(func: Any) -> bool:
    return any(func is known for known in _SHOWING)


def is_ignored(s: Segment, probe: Any) -> bool:
    """Does the instruction call what reads nothing at all?"""
    return is_call_of(s, probe, logging_calls.no_message)


def is_call_of(s: Segment, probe: Any, function: Any) -> bool:
    if probe.kind != _native.CALL:
        return False
    return _called(s.watcher.stack(0, probe.depth)[probe.depth - probe.span :]) is function


def _is_lacking(s: Segment, number: Any, container: Any) -> bool:
    """Is a symbolic number looked for among a few whole ones, as a key or a set's member, and not found? Then it is
    guarded to be none of them."""
    assert s.symbols is not None
    kind = container_kind(type(container))
    if s.symbols.find(number) is None or kind not in _LOOKED_UP or s.ledger.changed(container) is not None:
        return False
    base = frozenset if issubclass(type(container), frozenset) else BASES[kind]
    if _native.mro_lookup(type(container), "__contains__") is not base.__dict__["__contains__"]:
        return False
    keys = list(base.__iter__(container)) if base.__len__(container) <= _MOST_KEYS else [None]
    if any(type(key) is not int or key == plain_number(number) for key in keys):
        return False
    origin = s.ledger.find(container)
    if origin is not None:
        expose(s.ledger, origin, container)
    return all(s.symbols.operate("!=", number, key) is True for key in keys)


def _compare_identities(s: Segment, operands: list[Any]) -> None:
    """`is` tells one small int from another by its value: the program must find the objects that it would have."""
    assert s.symbols is not None
    for operand in operands:
        if id(operand) in s.symbols.chosen:
            raise BreakGraph("unguardable", "identity of a number that min() or max() has chosen")
        if s.symbols.find(operand) is not None:
            s.symbols.specialise_in(operand)
            s.own.stands_for(operand, operand + 0)
        elif s.ledger.find_unguarded(operand) is not None:
            s.ledger.specialize(operand)
    give_back(s)


def replacement_for_numbers(s: Segment, probe: Any, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> Any:
    if s.symbols is None:
        return None
    symbolic_uses.refuse_unheard_calls(func, args)
    found = symbolic_uses.replacement(func, args) if probe is not None and not kwnames else None
    if found in ("root", "smaller", "larger") and not s.symbols.computes(found, args):
        found = None
    if found is None and probe is not None and not kwnames:
        name = name_of_function(func)
        if name is not None and s.symbols.is_computable(name, operands_of(name, args)):
            return functools.partial(_compute, s, name)
    if found is None and not symbolic_uses.passes(func, args):
        later = probe is not None and (func is range or _makes_text(func))  # the operands themselves are looked at next
        looked = [value for value in (func, *args) if not (later and s.symbols.find(value) is not None)]
        s.symbols.specialise_in([number for value in looked for number in symbolic_uses.hidden_numbers(value)])
        s.symbols.specialise_in(args if probe is None else ())
    if found == "length":
        return functools.partial(_length, s)
    return functools.partial(_in_place_of, s, func, getattr(s.symbols, found)) if isinstance(found, str) else found


def _in_place_of(s: Segment, func: Any, method: Any, *numbers: Any) -> Any:
    if s.tracer.active:
        try:
            return method(*numbers)
        except Exception as error:  # the program has called us: it must not see that
            s.fail(error)
    return func(*map(plain_number, numbers))


def _length(s: Segment, tensor: torch.Tensor) -> Any:
    """`len(tensor)`."""
    with torch._C.DisableTorchFunction():
        if s.tracer.active:
            try:
                return s.tracer.size_of(tensor, 0)
            except Exception as error:  # as above
                s.fail(error)
        return len(tensor)


def _compute(s: Segment, name: str, *args: Any) -> Any:
    """`math.cos(n)`. (The recording may have ended since it was to be called, by what else was found of the call.)"""
    numbers = operands_of(name, args)
    if s.tracer.active:
        assert s.symbols is not None
        try:
            return s.symbols.function(name, *numbers)
        except Exception as error:  # as above
            s.fail(error)
    return FUNCTIONS[name](*map(plain_number, numbers))


def give_back(s: Segment, *, unguarded: bool = False, inside: bool = False) -> None:
    """The frames get back the numbers and texts that were theirs; with `unguarded`, those too that nothing depends on
    yet. (`inside`: what lies on the stack is in use.)
    """
    if not s.own.originals:
        return
    if unguarded:
        give_back_contents(s.ledger, s.own.originals)
    entries, _ = s.watcher.frames()
    for calls, entry in enumerate(reversed(entries)):
        values, probe = list(entry[5]), entry[-1]
        if calls == 0 and not inside and probe is not None:
            values += s.watcher.stack(0, probe.depth)
        for place, value in enumerate(values):
            specialized = type(value) in UNGUARDED_TYPES and s.ledger.find_unguarded(value) is None
            if id(value) in s.own.originals and (unguarded or specialized):
                s.watcher.put(calls, place, s.own.original(value))
        if calls == 0 and not inside and unguarded and probe is not None:
            put_originals(in_reach(s.watcher.stack(0, probe.depth)[probe.depth - probe.span :]), s.own.originals)


def is_specialised(s: Segment, value: Any) -> bool:
    """A number or text that is guarded by its value already, and lies where the program would have its own."""
    if type(value) not in UNGUARDED_TYPES:
        return False
    if s.symbols is not None and s.symbols.was_symbol(value):
        return id(value) not in s.symbols.chosen
    return not s.tracer.is_scalar(value) and s.ledger.find_unguarded(value) is None


def give_to_callbacks(s: Segment, func: Any, operands: tuple[Any, ...]) -> None:
    """C code is about to be called. Where it may call back what tells a number from an equal one, it gets the
    program's own numbers."""
    originals, called = s.own.originals, _called_at_last(func)
    if not originals or issubclass(type(called), types.FunctionType) or reads_arguments_only(called):
        return
    reached = list(in_reach((func, *operands)))
    numbers = [value for value in reached if id(value) in originals]
    if not numbers or not any(
        _may_tell_identities(value) for value in reached if value is not func and value is not called
    ):
        return
    for number in numbers:
        if s.symbols is not None:
            s.symbols.specialise_in(number)
        if s.ledger.find_unguarded(number) is not None:
            s.ledger.specialize(number)
    if not put_originals(reached, originals):
        raise BreakGraph("unguardable", "identity of a number that C code has got hold of")


def _may_tell_identities(value: Any) -> bool:
    """As a callback. (Frames of Python functions are watched.)"""
    if not callable(value) or issubclass(type(value), types.FunctionType) or is_tensor(value):
        return False
    python = is_open(value) if issubclass(type(value), type) else is_open(type(value))
    return not (python or reads_arguments_only(_called_at_last(value)))


def _called_at_last(func: Any) -> Any:
    """By a bound method: the method."""
    if issubclass(type(func), types.MethodType):
        return func.__func__
    parts = bound_parts(func)
    return func if parts is None else parts[0]


def use_scalar(s: Segment, probe: Any, value: Any) -> None:
    """A number that a node of the graph computes: tensor operations take it as such, Python has to wait for it."""
    if _is_tensor_operation(s, probe):
        s.watcher.leave_unguarded(value)
    else:
        s.stop(BreakGraph("tensor-item", "tensor.item()"))


def works_on_tensors(s: Segment, probe: Any) -> bool:
    """A tensor operation makes a graph, if the value is guarded."""
    return any(map(is_tensor, s.watcher.stack(0, probe.depth)[probe.depth - probe.span :]))


def _is_tensor_operation(s: Segment, probe: Any) -> bool:
    """Does the instruction do nothing but what the tensor mode sees?"""
    operands = s.watcher.stack(0, probe.depth)[probe.depth - probe.span :]
    if probe.kind in (_native.BINARY, _native.COMPARE):
        return any(map(is_tensor, operands))
    if probe.kind in (_native.SUBSCR, _native.STORE_SUBSCR):
        return is_tensor(operands[probe.kind == _native.STORE_SUBSCR])
    if probe.kind != _native.CALL or not any(map(is_tensor, operands)):
        return False
    func = operands[0] if operands[0] is not _native.MISSING else operands[1]
    if issubclass(type(func), types.MethodDescriptorType):
        return issubclass(torch.Tensor, func.__objclass__) and func.__objclass__ is not object
    if not issubclass(type(func), types.BuiltinFunctionType):
        return False
    return is_tensor(func.__self__) or func.__self__ is torch._C._nn or getattr(torch, func.__name__, None) is func
