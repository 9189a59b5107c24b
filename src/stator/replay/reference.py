"""The reference: how a guard's value is reached and what its check means, slowly and one at a time.

`replay.guards` and the guards in C do the same quickly. `Guards.why` goes by this, and so do tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from .. import _native
from ..recording import Check, Edge, Fact, Origin
from ..support.guard_readers import (
    class_dict,
    container_kind,
    fits,
    has_own_hash,
    is_unhooked,
    keys_of,
    plain_value,
    same_constant,
    special_methods,
    tensor_facts,
)

MISSING = _native.MISSING
_BASES: dict[str, Any] = {"list": list, "dict": dict, "tuple": tuple, "set": set, "deque": deque}


def fetch(origin: Origin, values: list[Any], slots: tuple[Any, ...]) -> Any:
    """The value of an origin, its parent's being known."""
    if origin.edge is Edge.LOCAL:
        return slots[origin.key[0]]
    if origin.edge is Edge.CONST:
        return origin.key
    assert origin.parent is not None
    if origin.edge is Edge.KEYED:
        return entry_of(values[origin.parent.index], values[origin.key.index])
    return FETCH[origin.edge](values[origin.parent.index], origin.key)


def behind(cls: type, key: tuple[type, str]) -> Any:
    """The entry that `super(key[0], …)` finds in the MRO of a class."""
    start, name = key
    mro = cls.__mro__
    for base in mro[mro.index(start) + 1 :]:
        if name in class_dict(base):
            return class_dict(base)[name]
    raise AttributeError(name)


def attribute(value: Any, name: str) -> Any:
    """A part of an object; the instance dict is taken past a `__getattribute__` of the class."""
    return object.__getattribute__(value, name) if name == "__dict__" else getattr(value, name)


def item(container: Any, key: Any) -> Any:
    """An item of a builtin container or of the container that a subclass is."""
    kind = container_kind(type(container))
    if kind == "dict" and not dict.__contains__(container, key):
        raise KeyError(key)  # and `__missing__` is not asked
    return _BASES[kind].__getitem__(container, key) if kind is not None else container[key]


def has_entry(mapping: Any, key: Any) -> bool:
    """Is this very object a key of a dict?"""
    return isinstance(mapping, dict) and has_own_hash(key) and dict.__contains__(mapping, key)


def entry_of(mapping: Any, key: Any) -> Any:
    """What a dict has under this very object."""
    if not has_entry(mapping, key):
        raise KeyError("an object")
    return dict.__getitem__(mapping, key)


FETCH: dict[Edge, Callable[[Any, Any], Any]] = {
    Edge.ATTR: attribute,
    Edge.ITEM: item,
    Edge.MRO: _native.mro_lookup,
    Edge.SUPER: behind,
    Edge.SLOT: lambda value, slot: slot.__get__(value),
    Edge.CALL: lambda value, args: value(*args),
}


def length(container: Any) -> int:
    kind = container_kind(type(container))
    return int(_BASES[kind].__len__(container)) if kind is not None else len(container)


def keys(container: Any) -> tuple[Any, ...]:
    return tuple(keys_of(container)) if isinstance(container, dict) else tuple(container)


def same_keys(container: Any, expected: tuple[Any, ...]) -> bool:
    found = keys(container)
    return len(found) == len(expected) and all(map(same_constant, found, expected))


def has(container: Any, key: Any) -> bool:
    return dict.__contains__(container, key) if isinstance(container, dict) else key in container


def specials_unchanged(cls: type, expected: list[Any]) -> bool:
    """The version tag of a class moved: compare its special methods, and remember the new tag if they are the same."""
    version = _native.type_version(cls)
    found, wanted = special_methods(cls), expected[1]
    if len(found) != len(wanted) or any(found.get(name) is not value for name, value in wanted.items()):
        return False
    expected[0] = version or -1
    return True


def is_unset(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def no_slot(value: Any, slot: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return True
    return False


def holds(check: Check, value: Any, values: list[Any]) -> bool:
    return bool(HOLDS[check.fact](value, check.expected, values))


HOLDS: dict[Fact, Callable[[Any, Any, Any], bool]] = {
    Fact.TYPE: lambda v, e, _: type(v) is e,
    Fact.EQUAL: lambda v, e, _: same_constant(v, e),
    Fact.IS: lambda v, e, _: v is e,
    Fact.TENSOR: lambda v, e, _: type(v) is e.type and fits(tensor_facts(v), e),
    Fact.LEN: lambda v, e, _: length(v) == e,
    Fact.KEYS: lambda v, e, _: same_keys(v, e),
    Fact.HAS: lambda v, e, _: has(v, e),
    Fact.LACKS: lambda v, e, _: not has(v, e),
    Fact.CODE: lambda v, e, _: v.__code__ is e[0] and v.__globals__ is e[1],
    Fact.SAME: lambda v, e, values: v is values[e],
    Fact.OTHER: lambda v, e, values: v is not values[e],
    Fact.SPECIALS: lambda v, e, _: specials_unchanged(v, [0, e[1]]),
    Fact.NO_ENTRY: lambda v, e, _: _native.mro_lookup(v, e) is MISSING,
    Fact.UNSET: lambda v, e, _: is_unset(v),
    Fact.NO_SLOT: lambda v, e, _: no_slot(v, e),
    Fact.UNHOOKED: lambda v, e, _: is_unhooked(v),
    Fact.VALUE: lambda v, e, _: same_constant(plain_value(e[0], v), e[1]),
    Fact.HAS_KEYED: lambda v, e, values: has_entry(values[e[0].index], values[e[1].index]),
    Fact.LACKS_KEYED: lambda v, e, values: (
        has_own_hash(values[e[1].index]) and not has_entry(values[e[0].index], values[e[1].index])
    ),
}


def surely_holds(check: Check, value: Any, values: list[Any] | None = None) -> bool:
    try:
        return holds(check, value, values or [])
    except Exception:
        return False


def differences(check: Check, value: Any) -> list[tuple[tuple[Any, ...], set[int | None]]]:
    """In which sizes or numbers a value differs from what is expected; none if that is not all."""
    expected = check.expected
    if check.fact is Fact.EQUAL and type(value) is type(expected):
        return [(steps, {None}) for steps in _differing_numbers(value, expected) or ()]
    if check.fact is Fact.TENSOR and type(value) is expected.type and value.layout is torch.strided:
        found = tensor_facts(value)
        alike = found._replace(size=expected.size, stride=expected.stride)
        if len(found.size) == len(expected.size) and fits(alike, expected):
            dims = _differing(found.size, expected.size)
            return [((), dims or {~dim for dim in _differing(found.stride, expected.stride)})]  # type: ignore[operator]
    return []


def _differing_numbers(value: Any, expected: Any) -> list[tuple[Any, ...]] | None:
    """The steps from a number or a tuple to the numbers in which it differs; None if it differs otherwise."""
    if same_constant(value, expected):
        return []
    if type(value) is not type(expected):
        return None
    if type(value) in (int, float):
        return [()]
    if not isinstance(value, tuple) or len(value) != len(expected):
        return None
    found: list[tuple[Any, ...]] = []
    for index, pair in enumerate(zip(value, expected, strict=True)):
        inside = _differing_numbers(*pair)
        if inside is None:
            return None
        found += [((Edge.ITEM, index), *steps) for steps in inside]
    return found


def _differing(found: tuple[int, ...], expected: tuple[int | None, ...]) -> set[int | None]:
    pairs = zip(found, expected, strict=True)
    return {place for place, (a, b) in enumerate(pairs) if b is not None and a != b}
