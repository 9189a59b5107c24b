"""Calls: a callable is about to run. Python functions are watched; C callables go by the table.

Enters: the callable and its arguments. Leaves: what the call reads and changes, noted; perhaps another callable to be
called in its place.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from ... import _native
from ...recording import Edge
from ...support.builtin_types import ITERATOR_TYPES
from ..graph_break import BreakGraph
from ..models.calls import constructor_rule, may_be_approved, reads_arguments_only, rule_for
from ..models.reads import bound_parts, consult, note_arguments, touch
from ..models.side_effect_calls import break_for, name_of
from ..segment import CallTable, Segment
from .unguarded_values import give_to_callbacks, replacement_for_numbers


def spread(func: Any) -> types.FunctionType:
    """What to call with an iterator's items in place of `func`: it is watched, and calls `func` with a tuple."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    call.__code__ = SPREAD
    return call  # type: ignore[return-value]


SPREAD: types.CodeType = next(c for c in spread.__code__.co_consts if isinstance(c, types.CodeType)).replace(
    co_filename="<stator call>"  # frames of this package's files are not watched
)


def on_call(s: Segment, probe: Any, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> Any:
    s.ledger.place = probe
    give_to_callbacks(s, func, args)
    return s.table.call(s, probe, func, args, kwnames)


def on_call_ex(s: Segment, probe: Any, func: Any, args: Any, kwargs: Any) -> Any:
    s.ledger.place = probe
    consult(s, args)
    if kwargs is not None:
        consult(s, kwargs)
    if type(args) not in (tuple, list, torch.Size) or type(kwargs) not in (dict, type(None)):
        if issubclass(type(func), types.FunctionType):
            return None
        if s.ledger.find(args) is None and type(args) in ITERATOR_TYPES and type(kwargs) in (dict, type(None)):
            return spread(func)
        raise BreakGraph("unguardable", f"call with *{type(args).__name__}")
    names = tuple(kwargs) if kwargs else ()
    give_to_callbacks(s, func, (args, kwargs))
    return s.table.call(s, probe, func, (*args, *(kwargs.values() if kwargs else ())), names)


def call(s: Segment, probe: Any, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> Any:
    """A callable is about to be called. May give back another one to be called in its place. (No probe: C code that
    is called calls it.)"""
    replacement = _note_call(s, probe, func, args, kwnames)
    instead = replacement_for_numbers(s, probe, func, args, kwnames)
    return replacement if instead is None else instead


def _note_call(s: Segment, probe: Any, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> Any:
    rule = rule_for(func)
    if func is print and print_later(s, args, kwnames):
        return None
    if rule is not None:
        replacement = rule(s, func, args, kwnames)
        if replacement is None and probe is not None and s.approves and may_be_approved(func, rule):
            s.watcher.approve(func)
        return replacement
    if issubclass(type(func), types.FunctionType):
        note_arguments(s, func, len(args) - len(kwnames), kwnames)
        return None
    if issubclass(type(func), types.MethodType):
        owner = s.ledger.find(func)
        if owner is not None:
            s.ledger.touch(owner, func)
            for part in ("__func__", "__self__"):
                s.ledger.read(owner, Edge.ATTR, part, getattr(func, part))
        replacement = s.table.call(s, None, func.__func__, (func.__self__, *args), kwnames)
        return None if replacement is None else functools.partial(replacement, func.__self__)
    if issubclass(type(func), type):
        constructor_rule(s, func, args, kwnames)
        if probe is not None and s.approves:
            s.watcher.approve(func)
        return None
    parts = bound_parts(func)
    if parts is not None:
        owner = s.ledger.find(func)
        if owner is not None:
            s.ledger.touch(owner, func)
            s.ledger.read(owner, Edge.ATTR, "__self__", parts[1])
        rule = rule_for(parts[0])
        if rule is not None:
            return rule(s, parts[0], (parts[1], *args), kwnames)
    elif issubclass(type(_native.mro_lookup(type(func), "__call__")), (types.FunctionType, _native.Compiled)):
        touch(s, func)
        return None
    raise BreakGraph(break_for(func), name_of(func))


def print_later(s: Segment, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> bool:
    """With `reorder_print`, texts and numbers are printed where the segment ends; the order of lines stays."""
    count = len(args) - len(kwnames)
    keywords = dict(zip(kwnames, args[count:], strict=True))
    plain = {*map(type, args)} <= {str, int, float, bool, type(None)} and keywords.keys() <= {"sep", "end"}
    unguarded = any(s.ledger.find_unguarded(arg) is not None or s.tracer.is_scalar(arg) for arg in args)
    if plain and not unguarded and s.reorders_prints:
        s.prints.append((args[:count], keywords))
        return True
    return False


TABLE = CallTable(rule_for, reads_arguments_only, call)
