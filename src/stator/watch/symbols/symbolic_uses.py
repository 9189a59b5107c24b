"""What instructions and C callables do with symbolic numbers: pass them on, or read the number itself.

A symbolic number hears of arithmetic, comparisons, hashing and printing (`_native/symbol.c`), if it is asked: of two
operands the left one is asked first, and C types, `float` and `bool` among them, answer from the other's value. What
reads a value past these is found here, before it happens. Whatever is not known to pass numbers on counts as reading
them.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ... import _native
from ...support.builtin_types import types_where
from ...support.guard_readers import container_kind, is_open
from ..graph_break import BreakGraph
from ..models.call_model import NumberUse
from ..models.calls import RULES, rule_for
from ..models.number_uses import called_at_last, number_use
from ..models.numbers import SYMBOLS, TEXTS
from ..models.rules import calls_back
from ..models.side_effect_calls import name_of
from ..objects.fingerprints import is_tensor

_PASSING_KINDS = frozenset(
    {
        *(_native.PACK, _native.INSERT, _native.EXTEND, _native.ITER, _native.NEXT, _native.UNPACK, _native.HASH),
        *(_native.TRUTH, _native.IS, _native.RETURN, _native.STORE_ATTR, _native.WITH, _native.RAISE),
        *(_native.MATCH, _native.MATCH_CLASS, _native.EXC_MATCH),
    }
)
_OPERATORS = frozenset({_native.UNARY, _native.BINARY, _native.COMPARE, _native.CONTAINS})
_ITEM_KINDS = frozenset(
    {_native.SUBSCR, _native.SLICE, _native.STORE_SUBSCR, _native.STORE_SLICE, _native.DELETE_SUBSCR}
)
_STORING_KINDS = frozenset({_native.STORE_SUBSCR, _native.STORE_SLICE})
_ASKING_KINDS = frozenset({_native.ATTR, _native.SUPER_ATTR, _native.INSERT, _native.DELETE_ATTR})
_LOOK_AT_INTS = (float, bool)  # what is no subclass of theirs is not asked first
_PLAIN = (int, float, bool, str, type(None), range, *SYMBOLS)  # a range compares one by one what is no plain int
_SEARCHED = types_where(lambda model: model.kind is not None and not model.hides)
_CONVERSIONS = frozenset(
    "__len__ __index__ __int__ __float__ __complex__ __bool__ __hash__ __length_hint__ __trunc__ __sizeof__".split()
)
_METHODS = frozenset({"is_integer"})  # of numbers: the call is computed, or reads the number
_DEEPEST = 20


def reads(watcher: _native.Watcher, probe: Any, operands: list[Any], value: Any) -> bool:
    """Does the instruction at `probe` read the number that `value` is, or the numbers in it?"""
    kind = probe.kind
    if kind == _native.ESCAPE:
        return _is_read_outside(watcher, probe.code)
    if kind in _PASSING_KINDS:
        return False
    if kind == _native.CONTAINS and type(operands[1]) is dict and value is operands[1]:
        return False  # its keys are hashed already, and its values are not asked
    if kind in _OPERATORS:
        texts = kind == _native.BINARY and any(issubclass(type(operand), TEXTS) for operand in operands)
        return texts or not _ask_each_other([operand for operand in operands if type(operand) not in _LOOK_AT_INTS])
    if kind in _ITEM_KINDS:
        stores = kind in _STORING_KINDS
        container = operands[1 if stores else 0]
        if is_tensor(container):
            return False
        held = (container, operands[0]) if stores and _keeps_objects(container) else (container,)
        return not any(value is part for part in held)
    if kind == _native.ATTR:
        return type(value) in SYMBOLS and not (type(value) is _native.Float and probe.arg in _METHODS)
    if kind in (_native.CALL, _native.CALL_EX):
        return not passes(*_call_of(probe, operands))
    return True


def _is_read_outside(watcher: _native.Watcher, code: types.CodeType) -> bool:
    """A frame of `code` gives something away to C code: does that, or who has called it, read numbers?"""
    entries, _ = watcher.frames()
    *_, intact, held, held_at, probe = entries[-2] if len(entries) > 1 else (False, None, -1, None)
    if probe is None or not intact or code.co_name in _CONVERSIONS:
        return True
    operands = watcher.stack(1, probe.depth)[probe.depth - probe.span :]
    if held_at >= 0:  # while the call is at work another object lies there
        operands[held_at] = held
    if probe.kind in (_native.CALL, _native.CALL_EX):
        func, args = _call_of(probe, operands)
        if number_use(func) is NumberUse.HANDED_ON:
            return not isinstance(args[0], types.FunctionType)
        return _compares(func) or not passes(func, args)
    return not (probe.kind in _PASSING_KINDS or probe.kind in _ASKING_KINDS or probe.kind in _OPERATORS | _ITEM_KINDS)


def _call_of(probe: Any, operands: list[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The callable, and its arguments in a row."""
    bare = operands[0] is _native.MISSING
    func, args = operands[1 if bare else 0], operands[2 if bare else 1 :]
    if probe.kind == _native.CALL_EX:
        func, args = operands[1], operands[2:]
        positional = args[0] if isinstance(args[0], (tuple, list)) else (args[0],)
        named = args[1].values() if len(args) > 1 and isinstance(args[1], dict) else ()
        return func, (*positional, *named)
    return func, tuple(args)


def left_looks_at_right(probe: Any, operands: list[Any]) -> bool:
    """Would a float or a bool look into the number at its right, rather than leave the operation to it?"""
    asked = probe.kind in (_native.BINARY, _native.COMPARE) and type(operands[0]) in _LOOK_AT_INTS
    return asked and type(operands[1]) is _native.Int


def _ask_each_other(operands: Iterable[Any]) -> bool:
    """Does each of them, and of what is in them, ask its partner in an operation rather than look at its value?"""
    kinds = {cls for operand in operands for cls in _kinds_in(operand, _DEEPEST)}
    if _native.Int in kinds and not kinds.isdisjoint(_LOOK_AT_INTS):
        return False
    return all(cls in _PLAIN or issubclass(cls, torch.Tensor) or _is_python(cls) for cls in kinds)


def _is_python(cls: type) -> bool:
    """Are all its operators functions of Python's?"""
    return all(base is object or is_open(base) for base in cls.__mro__)


def _kinds_in(value: Any, depth: int) -> Iterator[type]:
    cls = type(value)
    if is_open(cls) or not issubclass(cls, _SEARCHED) or depth == 0:
        yield cls
        return
    for part in (*value, *value.values()) if issubclass(cls, dict) else value:
        yield from _kinds_in(part, depth - 1)


def _keeps_objects(container: Any) -> bool:
    return container_kind(type(container)) is not None or is_open(type(container))


def passes(func: Any, args: tuple[Any, ...] = ()) -> bool:
    """Does a callable do nothing with a number among its arguments that the number would not hear of?"""
    func, args = called_at_last(func, args)
    return _PASSES[number_use(func)](args)


def _callables_pass(args: tuple[Any, ...]) -> bool:
    """C code may call what it is given with what it is given."""
    given = tuple(arg for arg in args if not _is_called(arg))
    return all(_may_be_called(arg, given) for arg in args if _is_called(arg))


def _may_be_called(func: Any, given: tuple[Any, ...]) -> bool:
    """With something out of `given`: nobody knows which of it, and at which place."""
    if issubclass(type(func), types.MethodType):
        return _may_be_called(func.__func__, (func.__self__, *given))
    row = RULES.get(id(func))
    if row is None or row.heard:
        return row is not None or passes(func)
    if row.numbers in _COMPARING:
        return not _compares(func) and _ask_each_other(given)
    return row.numbers is not NumberUse.FIRST and passes(func)


def _compares(func: Any) -> bool:
    """Does it compare what it is given, as `max` does?"""
    row = RULES.get(id(func))
    return row is not None and row.rule is calls_back and row.numbers in _COMPARING


def _is_called(arg: Any) -> bool:
    return callable(arg) and not is_tensor(arg)


def _first_is_no_number(args: tuple[Any, ...]) -> bool:
    return not (args and type(args[0]) in SYMBOLS)


def _only_first_holds_some(args: tuple[Any, ...]) -> bool:
    return _callables_pass(args) and len(args) <= 1 and not any(type(arg) in SYMBOLS for arg in args)


def _are_asked(args: tuple[Any, ...]) -> bool:
    return _callables_pass(args) and _ask_each_other([arg for arg in args if not _is_called(arg)])


def _are_handed_on(args: tuple[Any, ...]) -> bool:
    return _are_asked(args) or bool(args and isinstance(args[0], types.FunctionType))


_PASSES: dict[NumberUse, Callable[[tuple[Any, ...]], bool]] = {
    NumberUse.READ: lambda args: False,
    NumberUse.HELD: lambda args: True,
    NumberUse.BEHIND_FIRST: _first_is_no_number,
    NumberUse.KEPT: _callables_pass,
    NumberUse.FIRST: _only_first_holds_some,
    NumberUse.ASKED: _are_asked,
    NumberUse.HANDED_ON: _are_handed_on,
}
_COMPARING = (NumberUse.ASKED, NumberUse.HANDED_ON)


def hidden_numbers(value: Any, depth: int = _DEEPEST) -> Iterator[Any]:
    """Symbolic numbers in what holds them for C code alone: iterators, views of dicts, bound methods of C's. (What
    generators give away is looked at when they do.)"""
    if type(value) in SYMBOLS:
        yield value
    elif depth and (_hides(value) or (depth < _DEEPEST and isinstance(value, _SEARCHED))):
        for part in gc.get_referents(value):
            yield from hidden_numbers(part, depth - 1)


def _hides(value: Any) -> bool:
    cls = type(value)
    if is_open(cls) or cls is types.GeneratorType or is_tensor(value):
        return False
    if issubclass(cls, types.BuiltinFunctionType):
        return not isinstance(value.__self__, types.ModuleType)
    return hasattr(cls, "__next__") or issubclass(cls, _HOLDERS)


_HOLDERS = types_where(lambda model: model.hides)


def refuse_unheard_calls(func: Any, args: tuple[Any, ...]) -> None:
    """C code which calls C code later on, with numbers that nobody has seen, cannot be recorded."""
    if rule_for(func) is not calls_back or _callables_pass(args):
        return
    row = RULES.get(id(func))
    if (row is not None and row.later) or not all(
        _is_called(arg) or isinstance(arg, (*_PLAIN, *_SEARCHED)) for arg in args
    ):
        given = tuple(arg for arg in args if not _is_called(arg))
        unheard = next(arg for arg in args if _is_called(arg) and not _may_be_called(arg, given))
        raise BreakGraph("unknown-callable", f"{name_of(unheard)}, called by C code with numbers that may be others")


def replacement(func: Any, args: tuple[Any, ...]) -> Any:
    """What to call instead of a callable that would lose what a number stands for; None: the callable itself."""
    row = RULES.get(id(func))
    return None if row is None or row.instead is None else row.instead(args)
