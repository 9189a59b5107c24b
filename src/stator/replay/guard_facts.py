"""Every fact that a guard can ask for in one row: how Python checks it, how C code does, in words, as source.

A new fact is a member of `Fact` (in `guard_codes.py`) and a row here: docs/contributing.md goes through one.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .. import _native as n
from ..interrupts import let_through
from ..recording import Check, Edge, Fact, Origin, TensorFacts, describe
from ..support.guard_readers import (
    class_dict,
    fits,
    fits_numbers,
    has_own_hash,
    is_open,
    is_unhooked,
    keeps_class,
    plain_value,
    same_constant,
    tensor_facts,
)
from ..support.literals import literal, name_of
from ..support.python_source import SourceValues, home
from . import layout
from .guard_edges import is_key
from .guard_text import dims, short, sizes
from .reference import (
    MISSING,
    has,
    has_entry,
    is_unset,
    keys,
    length,
    no_slot,
    same_keys,
    same_tensor,
    specials_unchanged,
)

CheckInC = tuple[int, int, Any]  # check, how long it lasts, what is expected
Found = tuple[str, str, str]  # guard, expected, found


class FactRow(NamedTuple):
    """One fact."""

    about: str  # what its guards are about, for reports
    # (value, expected, the values of all earlier origins) -> does it hold?
    holds: Callable[[Any, Any, Any], bool]
    # (name of the value, expected) -> what must hold
    words: Callable[[str, Any], str]
    # (name of the value, expected, value) -> what was found instead
    found: Callable[[str, Any, Any], Found]
    # (check, the value's exact type) -> what C code does; None: Python checks, in every call
    in_c: Callable[[Check, type | None], CheckInC | None]
    # may C code say that it cannot tell? Then Python is asked
    doubtful: Callable[[Any], bool] = lambda expected: False
    # (source of the value, expected) -> its source; None: it needs an object of the program
    source: Callable[[str, Any], str | None] = lambda value, expected: None
    same: bool | None = None  # set: it is about two values, which are (not) one object; `related.c` checks it
    of_namespace: bool = False  # C code checks it on the instance dict


def holds(check: Check, value: Any, values: Any) -> bool:
    return bool(FACTS[check.fact].holds(value, check.expected, values))


def surely_holds(check: Check, value: Any, values: Any = ()) -> bool:
    """Does it hold? If asking fails, it does not."""
    try:
        return holds(check, value, values)
    except Exception as error:
        let_through(error)
        return False


def say(check: Check, origin: Origin, value: Any) -> Found:
    """(guard, expected, found) in words."""
    return FACTS[check.fact].found(describe(origin), check.expected, value)


def assertion(check: Check, origin: Origin) -> str:
    """What must hold, in words."""
    return FACTS[check.fact].words(describe(origin), check.expected)


def differences(check: Check, value: Any) -> list[tuple[tuple[Any, ...], set[int | None]]]:
    """In which sizes or numbers a value differs from what is expected; none if that is not all."""
    expected = check.expected
    if check.fact is Fact.EQUAL and type(value) is type(expected):
        return [(steps, {None}) for steps in _differing_numbers(value, expected) or ()]
    if check.fact is Fact.TENSOR and type(value) is expected.type and value.layout is torch.strided:
        found = tensor_facts(value)
        alike = found._replace(size=expected.size, stride=expected.stride)
        if len(found.size) == len(expected.size) and fits(alike, expected):
            differing = _differing(found.size, expected.size)
            strides = _differing(found.stride, expected.stride)
            return [((), differing or {~dim for dim in strides})]  # type: ignore[operator]
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


# -- how C code checks

# Values that cannot change while they are the same object, and that C code compares by itself.
_SIMPLE = (int, float, complex, bool, str, bytes, type(None))


def _is_simple(value: Any) -> bool:
    return type(value) in _SIMPLE or (type(value) is tuple and all(map(_is_simple, value)))


def _tensor_in_c(check: Check, cls: type | None) -> CheckInC | None:
    facts = layout.native_facts(check.expected)
    return None if facts is None else (n.CHECK_TENSOR, n.LIVE, facts)


def _equal_in_c(check: Check, cls: type | None) -> CheckInC | None:
    lasting = n.FIXED if _is_simple(check.expected) or type(check.expected) is torch.device else n.LIVE
    return n.CHECK_EQUAL, lasting, check.expected


def _size_in_c(code: int) -> Callable[[Check, type | None], CheckInC | None]:
    """Of containers: a dict has a version of its own (for its order, only if it is a plain one), a tuple is fixed."""

    def in_c(check: Check, cls: type | None) -> CheckInC | None:
        if cls is None:
            return None
        few = code == n.CHECK_KEYS and cls is OrderedDict and len(check.expected) <= 1  # in whatever order
        if issubclass(cls, dict) and (code == n.CHECK_LEN or cls is dict or few):
            return code, n.OWN, check.expected
        fixed = cls is frozenset or (issubclass(cls, tuple) and not is_open(cls))
        listed = cls is set or (code == n.CHECK_LEN and issubclass(cls, (list, tuple, set)))
        return (code, n.FIXED if fixed else n.LIVE, check.expected) if fixed or listed else None

    return in_c


def _entry_in_c(code: int) -> Callable[[Check, type | None], CheckInC | None]:
    def in_c(check: Check, cls: type | None) -> CheckInC | None:
        quiet = cls is not None and issubclass(cls, dict) and is_key(check.expected)
        return (code, n.OWN, check.expected) if quiet else None

    return in_c


def _never(check: Check, cls: type | None) -> CheckInC | None:
    return None


# -- in words


def _tensor_words(name: str, e: TensorFacts) -> str:
    grad = " requires_grad" if e.requires_grad else ""
    return f"{name}: {e.type.__name__} {e.dtype} [{sizes(e.size)}] stride [{sizes(e.stride)}] {e.device}{grad}"


def _tensor_found(name: str, expected: TensorFacts, value: Any) -> Found:
    if not isinstance(value, torch.Tensor):
        return f"type({name})", name_of(expected.type), name_of(type(value))
    for field, wanted, got in zip(TensorFacts._fields, expected, tensor_facts(value), strict=True):
        if not (fits_numbers(got, wanted) if field in ("size", "stride") else wanted == got):
            return f"{name}.{field}", dims(wanted), dims(got)
    return _value_found(name, expected, value)


def _value_found(name: str, expected: Any, value: Any) -> Found:
    return name, short(expected), short(value)


def _presence(guard: Callable[[str, Any], str], wanted: str, got: str) -> Callable[[str, Any, Any], Found]:
    return lambda name, expected, value: (guard(name, expected), wanted, got)


def _membership(name: str, expected: Any) -> str:
    return f"{expected!r} in {name}"


def _keyed_membership(name: str, expected: Any) -> str:
    return f"{describe(expected[1])} in {describe(expected[0])}"


# -- as source


def _written(value: Any) -> str | None:
    values = SourceValues()
    text = values.expression(value)
    return None if "Thing(" in text or values.lines else text


def _with(form: str, expected: Any, value: str) -> str | None:
    """A comparison with what is expected, if that can be written."""
    text = _written(expected)
    return None if text is None else form.format(value, text)


def _looks(value: str, e: TensorFacts) -> str:
    size, stride = [list(part) for part in (e.size, e.stride)]
    return f"looks({value}, {e.dtype}, {size}, {stride}, {literal(str(e.device))}, {e.requires_grad})"


def _called(value: Any) -> str:
    is_named = issubclass(type(value), (type, types.FunctionType))
    return name_of(value) if is_named else str(home(value)[1] or short(value))


FACTS: dict[Fact, FactRow] = {
    Fact.TYPE: FactRow(
        about="types",
        holds=lambda v, e, _: type(v) is e,
        words=lambda name, e: f"type({name}) is {name_of(e)}",
        found=lambda name, e, v: (f"type({name})", name_of(e), name_of(type(v))),
        in_c=lambda c, t: (n.CHECK_TYPE, n.FIXED if keeps_class(c.expected) else n.LIVE, c.expected),
        source=lambda v, e: _with("type({}) is {}", e, v),
    ),
    Fact.EQUAL: FactRow(
        about="values",
        holds=lambda v, e, _: same_constant(v, e),
        words=lambda name, e: f"{name} == {short(e)}",
        found=_value_found,
        in_c=_equal_in_c,
        doubtful=lambda e: not _is_simple(e),
        source=lambda v, e: _with("{} == {}", e, v),
    ),
    Fact.IS: FactRow(
        about="values",
        holds=lambda v, e, _: v is e,
        words=lambda name, e: f"{name} is {_called(e)}",
        found=_value_found,
        in_c=lambda c, t: (n.CHECK_IS, n.FIXED, c.expected),
    ),
    Fact.TENSOR: FactRow(
        about="tensors",
        holds=lambda v, e, _: same_tensor(v, e),
        words=_tensor_words,
        found=_tensor_found,
        in_c=_tensor_in_c,
        source=_looks,
    ),
    Fact.LEN: FactRow(
        about="containers",
        holds=lambda v, e, _: length(v) == e,
        words=lambda name, e: f"len({name}) == {e}",
        found=lambda name, e, v: (f"len({name})", str(e), str(length(v))),
        in_c=_size_in_c(n.CHECK_LEN),
        source=lambda v, e: f"len({v}) == {e}",
    ),
    Fact.KEYS: FactRow(
        about="containers",
        holds=lambda v, e, _: same_keys(v, e),
        words=lambda name, e: f"tuple({name}) == {short(e)}",
        found=lambda name, e, v: (f"keys of {name}", repr(e), repr(keys(v))),
        in_c=_size_in_c(n.CHECK_KEYS),
        source=lambda v, e: _with("tuple({}) == {}", tuple(e), v),
    ),
    Fact.HAS: FactRow(
        about="names",
        holds=lambda v, e, _: has(v, e),
        words=lambda name, e: f"{e!r} in {name}",
        found=_presence(_membership, "present", "absent"),
        in_c=_entry_in_c(n.CHECK_HAS),
    ),
    Fact.LACKS: FactRow(
        about="names",
        holds=lambda v, e, _: not has(v, e),
        words=lambda name, e: f"{e!r} not in {name}",
        found=_presence(_membership, "absent", "present"),
        in_c=_entry_in_c(n.CHECK_LACKS),
        source=lambda v, e: _with("{1} not in {0}", e, v),
    ),
    Fact.CODE: FactRow(
        about="code",
        holds=lambda v, e, _: v.__code__ is e[0] and v.__globals__ is e[1],
        words=lambda name, e: f"{name}.__code__ is {e[0].co_qualname}",
        found=lambda name, e, v: (f"code of {name}", e[0].co_qualname, str(home(v)[1] or name_of(v))),
        in_c=lambda c, t: (n.CHECK_CODE, n.LIVE, tuple(c.expected)),
    ),
    Fact.SAME: FactRow(
        about="identities",
        holds=lambda v, e, values: v is values[e],
        words=lambda name, e: f"{name} is the same object as before",
        found=lambda name, e, v: (f"identity of {name}", "the same object", "not so"),
        in_c=_never,
        same=True,
    ),
    Fact.OTHER: FactRow(
        about="identities",
        holds=lambda v, e, values: v is not values[e],
        words=lambda name, e: f"{name} is another object than before",
        found=lambda name, e, v: (f"identity of {name}", "another object", "not so"),
        in_c=_never,
        same=False,
    ),
    Fact.SPECIALS: FactRow(
        about="classes",
        holds=lambda v, e, _: specials_unchanged(v, [0, e[1]]),
        words=lambda name, e: f"special methods of {name} unchanged",
        found=lambda name, e, v: (f"special methods of {name}", "unchanged", "changed"),
        in_c=lambda c, t: (n.CHECK_SPECIALS, n.OWN, c.expected[0] or 0),
        doubtful=lambda e: True,
    ),
    Fact.NO_ENTRY: FactRow(
        about="classes",
        holds=lambda v, e, _: n.mro_lookup(v, e) is MISSING,
        words=lambda name, e: f"{name} has no {e!r}",
        found=lambda name, e, v: (f"{name}.{e}", "absent", "present"),
        in_c=lambda c, t: (n.CHECK_NO_ENTRY, n.OWN, c.expected) if type(c.expected) is str else None,
    ),
    Fact.OWN_ENTRY: FactRow(
        about="classes",
        holds=lambda v, e, _: (e[0] in class_dict(v)) is e[1],
        words=lambda name, e: f"{e[0]!r} {'in' if e[1] else 'not in'} {name}.__dict__",
        found=lambda name, e, v: (f"{e[0]!r} in {name}.__dict__", str(e[1]), str(not e[1])),
        in_c=_never,
    ),
    Fact.UNSET: FactRow(
        about="names",
        holds=lambda v, e, _: is_unset(v),
        words=lambda name, e: f"{name} is unset",
        found=_value_found,
        in_c=lambda c, t: (n.CHECK_UNSET, n.LIVE, None),
    ),
    Fact.NO_SLOT: FactRow(
        about="names",
        holds=lambda v, e, _: no_slot(v, e),
        words=lambda name, e: f"{name} has no {e.__name__!r}",
        found=_value_found,
        in_c=lambda c, t: (n.CHECK_NO_SLOT, n.LIVE, c.expected) if n.is_object_member(c.expected) else None,
    ),
    Fact.UNHOOKED: FactRow(
        about="modules",
        holds=lambda v, e, _: is_unhooked(v),
        words=lambda name, e: f"{name} has no hooks",
        found=lambda name, e, v: (f"hooks of {name}", "none", "some"),
        in_c=lambda c, t: (n.CHECK_UNHOOKED, n.LIVE, None),
        of_namespace=True,
    ),
    Fact.VALUE: FactRow(
        about="values",
        holds=lambda v, e, _: same_constant(plain_value(e[0], v), e[1]),
        words=lambda name, e: f"{name} == {short(e[1])}",
        found=lambda name, e, v: (name, short(e[1]), short(v)),
        in_c=lambda c, t: (n.CHECK_ASK, n.FIXED, None),
        doubtful=lambda e: True,
    ),
    Fact.HAS_KEYED: FactRow(
        about="names",
        holds=lambda v, e, values: has_entry(values[e[0].index], values[e[1].index]),
        words=lambda name, e: f"{describe(e[1])} in {describe(e[0])}",
        found=_presence(_keyed_membership, "present", "absent"),
        in_c=_never,
    ),
    Fact.LACKS_KEYED: FactRow(
        about="names",
        holds=lambda v, e, values: (
            has_own_hash(values[e[1].index]) and not has_entry(values[e[0].index], values[e[1].index])
        ),
        words=lambda name, e: f"{describe(e[1])} not in {describe(e[0])}",
        found=_presence(_keyed_membership, "absent", "present"),
        in_c=_never,
    ),
}
