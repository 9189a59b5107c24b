"""Every edge of an origin in one row: how Python fetches a value, how C code does, how it is written as source.

In words an origin is what `recording.describe` says: `watch` speaks of origins too. A new edge is a member of `Edge`
(in `guard_codes.py`), a row here, and a case there.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from .. import _native as n
from ..guard_codes import PARTS
from ..recording import Edge, Fact, Origin
from ..support.guard_readers import is_open
from ..support.literals import literal
from ..support.python_source import importable
from . import layout
from .reference import attribute, behind, entry_of, item

FetchInC = tuple[int, Any, int]  # fetch, key, number


class EdgeRow(NamedTuple):
    """One way to a value from its parent's."""

    # (origin, the values of all earlier ones, argument slots) -> its value; raises if there is none
    fetch: Callable[[Origin, Any, Sequence[Any]], Any]
    # (origin, its parent's exact type) -> what C code does; None: Python fetches
    in_c: Callable[[Origin, type | None], FetchInC | None]
    # (origin, its parent's source, names of the slots) -> its source; None: it needs an object of the program
    source: Callable[[Origin, str | None, Sequence[str]], str | None] = lambda o, parent, slots: None


def fetch(origin: Origin, values: Any, slots: Sequence[Any]) -> Any:
    """The value of an origin, those of all earlier ones being known."""
    return EDGES[origin.edge].fetch(origin, values, slots)


_TYPES_OF_PARTS: dict[str, type] = {"__dict__": dict, "__closure__": tuple, "__defaults__": tuple}


def known_type(origin: Origin) -> type | None:
    """The exact type that an origin's value has once its checks hold (or None has, in parts of functions)."""
    for fact, expected, _ in origin.checks:
        if fact is Fact.TYPE:
            return expected  # type: ignore[no-any-return]
        if fact is Fact.IS or fact is Fact.EQUAL:
            return type(expected)
        if fact is Fact.CODE:
            return types.FunctionType
    if origin.edge is Edge.CONST:
        return type(origin.key)
    if origin.edge is Edge.ATTR:
        return _TYPES_OF_PARTS.get(origin.key)
    parent = origin.parent
    in_closure = origin.edge is Edge.ITEM and parent is not None and parent.edge is Edge.ATTR
    return types.CellType if in_closure and parent is not None and parent.key == "__closure__" else None


def is_key(value: Any) -> bool:
    """Can C code look this up in a dict by itself?"""
    return type(value) is str or type(value) is int


# -- how C code fetches

_PARTS = {f"__{name.lower()}__": getattr(n, f"PART_{name}") for name in PARTS}
_QUIET_CALLS = (_abc.get_cache_token, sys.exc_info, sys.getrecursionlimit, torch.is_anomaly_enabled)


def _item_in_c(origin: Origin, parent: type | None) -> FetchInC | None:
    if parent is None or not is_key(origin.key):
        return None
    if issubclass(parent, dict):
        return n.FETCH_KEY, origin.key, 0
    if issubclass(parent, (list, tuple)) and type(origin.key) is int and origin.key >= 0:
        return n.FETCH_INDEX, None, origin.key
    return None


def _attribute_in_c(origin: Origin, parent: type | None) -> FetchInC | None:
    name = origin.key
    if parent is None or issubclass(parent, type):
        return None
    if name == "__dict__":
        plain = type(n.mro_lookup(parent, name)) in (types.GetSetDescriptorType, types.MemberDescriptorType)
        return (n.FETCH_NAMESPACE, None, 0) if plain else None
    if parent is types.FunctionType and name in _PARTS:
        return n.FETCH_FUNCTION, None, _PARTS[name]
    if parent is types.CellType and name == "cell_contents":
        return n.FETCH_CELL, None, 0
    if name == "grad" and _is_readable_leaf(origin.parent) and n.mro_lookup(parent, name) is _GRAD:
        return n.FETCH_GRAD, None, 0
    if parent is types.BuiltinFunctionType and name == "__self__":
        return n.FETCH_SELF, None, 0
    member = n.mro_lookup(parent, name)
    return (n.FETCH_MEMBER, member, 0) if not is_open(parent) and n.is_object_member(member) else None


_GRAD = vars(torch._C.TensorBase).get("grad")


def _is_readable_leaf(origin: Origin | None) -> bool:
    """Is this a leaf tensor, in facts that C code checks? Of others torch may warn, in Python, when they are asked."""
    checks = () if origin is None else origin.checks
    return any(c.fact is Fact.TENSOR and c.expected.is_leaf and layout.native_facts(c.expected) for c in checks)


def _call_in_c(origin: Origin, parent: type | None) -> FetchInC | None:
    assert origin.parent is not None
    known = [c.expected for c in origin.parent.checks if c.fact is Fact.IS]
    known += [origin.parent.key] if origin.parent.edge is Edge.CONST else []
    quiet = any(function is f for function in known for f in _QUIET_CALLS)
    return (n.FETCH_CALL, None, 0) if quiet and origin.key == () else None


# -- how it is written


def _slot_source(origin: Origin, parent: str | None, slots: Sequence[str]) -> str | None:
    index = origin.key[0]
    return slots[index] if index < len(slots) and can_be_made(origin) else None


def _module_source(origin: Origin, parent: str | None, slots: Sequence[str]) -> str | None:
    path = importable(origin.key) if issubclass(type(origin.key), types.ModuleType) else None
    return None if path is None else f"importlib.import_module({literal(path)})"


def _item_source(origin: Origin, parent: str | None, slots: Sequence[str]) -> str | None:
    plain = parent is not None and type(origin.key) in (int, str)
    return f"{parent}[{literal(origin.key)}]" if plain and can_be_made(origin) else None


def can_be_made(origin: Origin) -> bool:
    """Do the checks of an origin say enough for another value that passes them?"""
    facts = {check.fact: check.expected for check in origin.checks}
    plain = facts.get(Fact.TYPE) in (int, float, str, list, tuple, dict, torch.Tensor, torch.nn.Parameter)
    return Fact.TENSOR in facts or Fact.EQUAL in facts or plain


def _of_parent(read: Callable[[Any, Any], Any]) -> Callable[[Origin, Any, Sequence[Any]], Any]:
    """For edges whose value comes from the parent's and the key."""
    return lambda origin, values, slots: read(values[origin.parent.index], origin.key)  # type: ignore[union-attr]


EDGES: dict[Edge, EdgeRow] = {
    Edge.LOCAL: EdgeRow(
        fetch=lambda origin, values, slots: slots[origin.key[0]],
        in_c=lambda origin, parent: (n.FETCH_LOCAL, None, origin.key[0]),
        source=_slot_source,
    ),
    Edge.CONST: EdgeRow(
        fetch=lambda origin, values, slots: origin.key,
        in_c=lambda origin, parent: (n.FETCH_CONST, origin.key, 0),
        source=_module_source,
    ),
    Edge.ATTR: EdgeRow(fetch=_of_parent(attribute), in_c=_attribute_in_c),
    Edge.ITEM: EdgeRow(fetch=_of_parent(item), in_c=_item_in_c, source=_item_source),
    Edge.MRO: EdgeRow(
        fetch=_of_parent(n.mro_lookup),
        in_c=lambda origin, parent: (n.FETCH_MRO, origin.key, 0) if type(origin.key) is str else None,
    ),
    Edge.SUPER: EdgeRow(
        fetch=_of_parent(behind),
        in_c=lambda origin, parent: (
            (n.FETCH_SUPER, origin.key, 0) if type(origin.key) is tuple and type(origin.key[1]) is str else None
        ),
    ),
    Edge.SLOT: EdgeRow(
        fetch=_of_parent(lambda value, slot: slot.__get__(value)),
        in_c=lambda origin, parent: (n.FETCH_MEMBER, origin.key, 0) if n.is_object_member(origin.key) else None,
    ),
    Edge.CALL: EdgeRow(fetch=_of_parent(lambda value, args: value(*args)), in_c=_call_in_c),
    Edge.KEYED: EdgeRow(
        fetch=lambda origin, values, slots: entry_of(
            values[origin.parent.index],  # type: ignore[union-attr]
            values[origin.key.index],
        ),
        in_c=lambda origin, parent: (
            (n.FETCH_KEYED, None, 0) if parent is not None and issubclass(parent, dict) else None
        ),
    ),
    Edge.COMPUTED: EdgeRow(
        fetch=lambda origin, values, slots: origin.key(values),
        in_c=lambda origin, parent: None,
    ),
}
