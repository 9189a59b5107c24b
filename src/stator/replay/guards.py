"""Guards: a recording's origins and checks, made into one function, and into words.

Enters: origins with checks, parents before children. Leaves: `Guards.check(slots)`, which resolves every origin once and
gives back the values that the replay needs, or None. What was checked is what is used. Any exception while checking is
a failed guard. `Guards.why(slots)` walks the same data slowly and says which check fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .. import _native
from ..facts import (
    STATE_NAMES,
    container_kind,
    keys_of,
    same_constant,
    shared_storages,
    special_methods,
    tensor_facts,
    torch_state,
)
from ..recording import Check, Edge, Fact, Origin, Recording, TensorFacts, describe

MISSING = _native.MISSING
Checker = Callable[[tuple[Any, ...]], "tuple[Any, ...] | None"]
_BASES: dict[str, type] = {"list": list, "dict": dict, "tuple": tuple, "set": set, "deque": deque}
_LITERALS = (str, int, bool, type(None), bytes)


class Miss(NamedTuple):
    """Why a recording was not used for a call."""

    guard: str
    expected: str
    found: str
    place: str

    def __str__(self) -> str:
        where = f" (needed by {self.place})" if self.place else ""
        return f"{self.guard}: expected {self.expected}, found {self.found}{where}"


# -- reading, slowly and in words: the reference


def fetch(origin: Origin, values: dict[int, Any], slots: tuple[Any, ...]) -> Any:
    """The value of an origin, its parent's being known."""
    if origin.edge is Edge.LOCAL:
        return slots[origin.key[0]]
    if origin.edge is Edge.CONST:
        return origin.key
    assert origin.parent is not None
    return _FETCH[origin.edge](values[origin.parent.index], origin.key)


def behind(cls: type, key: tuple[type, str]) -> Any:
    """The entry that `super(key[0], …)` finds in the MRO of a class."""
    start, name = key
    mro = cls.__mro__
    for base in mro[mro.index(start) + 1 :]:
        if name in vars(base):
            return vars(base)[name]
    raise AttributeError(name)


def item(container: Any, key: Any) -> Any:
    """An item of a builtin container or of the container that a subclass is."""
    kind = container_kind(type(container))
    return _BASES[kind].__getitem__(container, key) if kind is not None else container[key]


_FETCH: dict[Edge, Callable[[Any, Any], Any]] = {
    Edge.ATTR: getattr,
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
        cell.cell_contents
    except ValueError:
        return True
    return False


def no_slot(value: Any, slot: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return True
    return False


def holds(check: Check, value: Any, values: dict[int, Any]) -> bool:
    return bool(_HOLDS[check.fact](value, check.expected, values))


_HOLDS: dict[Fact, Callable[[Any, Any, dict[int, Any]], bool]] = {
    Fact.TYPE: lambda v, e, _: type(v) is e,
    Fact.EQUAL: lambda v, e, _: same_constant(v, e),
    Fact.IS: lambda v, e, _: v is e,
    Fact.TENSOR: lambda v, e, _: type(v) is e.type and tensor_facts(v) == e,
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
}


def _say(check: Check, origin: Origin, value: Any) -> tuple[str, str, str]:
    """(guard, expected, found) in words."""
    name, expected = describe(origin), check.expected
    if check.fact is Fact.TYPE:
        return f"type({name})", expected.__qualname__, type(value).__qualname__
    if check.fact is Fact.TENSOR:
        if not isinstance(value, torch.Tensor):
            return f"type({name})", expected.type.__qualname__, type(value).__qualname__
        for field, wanted, got in zip(TensorFacts._fields, expected, tensor_facts(value), strict=True):
            if wanted != got:
                return f"{name}.{field}", str(wanted), str(got)
    if check.fact is Fact.LEN:
        return f"len({name})", str(expected), str(length(value))
    if check.fact is Fact.KEYS:
        return f"keys of {name}", repr(expected), repr(keys(value))
    if check.fact in (Fact.HAS, Fact.LACKS):
        present, absent = "present", "absent"
        wanted, got = (present, absent) if check.fact is Fact.HAS else (absent, present)
        return f"{expected!r} in {name}", wanted, got
    if check.fact is Fact.CODE:
        return f"code of {name}", expected[0].co_qualname, getattr(value, "__qualname__", repr(type(value)))
    if check.fact in (Fact.SAME, Fact.OTHER):
        return f"identity of {name}", "the same object" if check.fact is Fact.SAME else "another object", "not so"
    if check.fact is Fact.SPECIALS:
        return f"special methods of {name}", "unchanged", "changed"
    if check.fact is Fact.NO_ENTRY:
        return f"{name}.{expected}", "absent", "present"
    return name, _short(expected), _short(value)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__qualname__}"
    return text if len(text) <= 80 else text[:77] + "..."


def render_place(place: Any) -> str:
    """The user's line that made a guard necessary."""
    if place is None:
        return ""
    code = place.code
    if code is None:
        return ""
    line = next((line for start, end, line in code.co_lines() if start <= place.offset < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno}"


# -- the checker, as Python source


class _Source:
    """Lines of a checking function and the constants they mention."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "mro_lookup": _native.mro_lookup,
            "type_version": _native.type_version,
            "MISSING": MISSING,
            "torch_state": torch_state,
            "dispatch_keys": torch._C._dispatch_keys,
            "shared_storages": shared_storages,
        }
        for helper in (behind, item, length, same_keys, has, specials_unchanged, is_unset, no_slot, same_constant):
            self.names[helper.__name__] = helper

    def constant(self, value: Any) -> str:
        if type(value) in _LITERALS:
            return repr(value)
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def require(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): return None")


def _known_type(origin: Origin) -> type | None:
    """The exact type an origin's value has when its children are fetched."""
    for check in origin.checks:
        if check.fact is Fact.TYPE:
            return check.expected  # type: ignore[no-any-return]
    if origin.edge is Edge.CONST:
        return type(origin.key)
    return {"__dict__": dict, "__closure__": tuple, "__defaults__": tuple}.get(str(origin.key))


def _fetch_source(source: _Source, origin: Origin) -> str:
    if origin.edge is Edge.LOCAL:
        return f"slots[{origin.key[0]}]"
    if origin.edge is Edge.CONST:
        return source.constant(origin.key)
    assert origin.parent is not None
    parent, key = f"v{origin.parent.index}", origin.key
    if origin.edge is Edge.ATTR:
        return f"{parent}.{key}"
    if origin.edge is Edge.ITEM:
        plain = _known_type(origin.parent) in (dict, list, tuple)
        return f"{parent}[{source.constant(key)}]" if plain else f"item({parent}, {source.constant(key)})"
    if origin.edge is Edge.MRO:
        return f"mro_lookup({parent}, {key!r})"
    if origin.edge is Edge.SUPER:
        return f"behind({parent}, {source.constant(key)})"
    if origin.edge is Edge.SLOT:
        return f"{source.constant(key)}.__get__({parent})"
    return f"{parent}(*{source.constant(key)})"


def _equal_source(source: _Source, v: str, expected: Any) -> str:
    if expected is None or type(expected) is bool:
        return f"{v} is {expected}"
    if type(expected) in (int, str, bytes):
        return f"type({v}) is {type(expected).__name__} and {v} == {expected!r}"
    return f"same_constant({v}, {source.constant(expected)})"


def _tensor_source(source: _Source, v: str, e: TensorFacts) -> str:
    conditions = [
        f"type({v}) is {source.constant(e.type)}",
        f"{v}.dtype is {source.constant(e.dtype)}",
        f"{v}.shape == {e.size!r}",
        f"{v}.requires_grad is {e.requires_grad}",
        f"dispatch_keys({v}).raw_repr() == {e.keys}",
        f"{v}.device == {source.constant(e.device)}",
        f"{v}.is_leaf is {e.is_leaf}",
    ]
    if e.stride or not e.size:
        conditions.insert(3, f"{v}.stride() == {e.stride!r}")
    return " and ".join(conditions)


def _keys_source(source: _Source, v: str, expected: tuple[Any, ...], cls: type | None) -> str:
    if cls is dict and all(type(key) is str for key in expected):
        return f"tuple({v}) == {source.constant(expected)}"
    return f"same_keys({v}, {source.constant(expected)})"


def _check_source(source: _Source, origin: Origin, check: Check) -> str:
    v, e = f"v{origin.index}", check.expected
    cls = _known_type(origin)
    if check.fact is Fact.EQUAL:
        return _equal_source(source, v, e)
    if check.fact is Fact.TENSOR:
        return _tensor_source(source, v, e)
    if check.fact is Fact.KEYS:
        return _keys_source(source, v, e, cls)
    if check.fact is Fact.LEN:
        return f"len({v}) == {e}" if cls in (dict, list, tuple) else f"length({v}) == {e}"
    if check.fact in (Fact.HAS, Fact.LACKS):
        inside = f"{source.constant(e)} in {v}" if cls is dict else f"has({v}, {source.constant(e)})"
        return inside if check.fact is Fact.HAS else f"not ({inside})"
    if check.fact is Fact.CODE:
        return f"{v}.__code__ is {source.constant(e[0])} and {v}.__globals__ is {source.constant(e[1])}"
    if check.fact is Fact.SAME:
        return f"{v} is v{e}"
    if check.fact is Fact.OTHER:
        return f"{v} is not v{e}"
    if check.fact is Fact.SPECIALS:
        name = source.constant([e[0] or -1, e[1]])
        return f"type_version({v}) == {name}[0] or specials_unchanged({v}, {name})"
    if check.fact is Fact.NO_ENTRY:
        return f"mro_lookup({v}, {e!r}) is MISSING"
    if check.fact is Fact.UNSET:
        return f"is_unset({v})"
    if check.fact is Fact.NO_SLOT:
        return f"no_slot({v}, {source.constant(e)})"
    relation = f"type({v}) is" if check.fact is Fact.TYPE else f"{v} is"
    return f"{relation} {source.constant(e)}"


class Guards:
    """All guards of one recording."""

    def __init__(self, recording: Recording, wanted: list[int]) -> None:
        """`wanted`: the origins whose values `check` gives back, in that order."""
        self._origins = recording.origins
        self._state = recording.state
        self._distinct = recording.distinct
        self._storages = recording.storages
        self._inputs = recording.inputs
        self._wanted = wanted
        self._checker: Checker | None = None

    def check(self, slots: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The wanted values if all guards hold."""
        checker = self._checker
        if checker is None:
            checker = self._checker = self._compile()
        return checker(slots)

    def source(self) -> str:
        """The checking function as Python."""
        return self._write()[0]

    def _write(self) -> tuple[str, dict[str, Any]]:
        source = _Source()
        source.require(f"torch_state() == {source.constant(self._state)}")
        for origin in self._origins:
            source.lines.append(f"v{origin.index} = {_fetch_source(source, origin)}  # {describe(origin)}".split("\n")[0])
            for check in origin.checks:
                source.require(_check_source(source, origin, check))
        for group in self._distinct:
            members = ", ".join(f"id(v{index})" for index in group)
            source.require(f"len({{{members}}}) == {len(group)}")
        if self._storages is not None:
            inputs = "".join(f"v{index}, " for index in self._inputs)
            source.require(f"shared_storages(({inputs})) == {self._storages!r}")
        source.lines.append(f"return ({''.join(f'v{index}, ' for index in self._wanted)})")
        body = "\n        ".join(source.lines)
        text = f"def check(slots):\n    try:\n        {body}\n    except Exception:\n        return None\n"
        return text, source.names

    def _compile(self) -> Checker:
        text, names = self._write()
        exec(compile(text, "<stator guards>", "exec"), names)
        return names["check"]  # type: ignore[no-any-return]

    def why(self, slots: tuple[Any, ...]) -> Miss | None:
        """The first guard that does not hold; None if all do."""
        for name, wanted, got in zip(STATE_NAMES, self._state, torch_state(), strict=True):
            if wanted != got:
                return Miss(f"torch's {name}", str(wanted), str(got), "")
        values: dict[int, Any] = {}
        for origin in self._origins:
            try:
                value = values[origin.index] = fetch(origin, values, slots)
            except Exception as error:
                return Miss(describe(origin), "present", f"{type(error).__name__}: {error}", render_place(origin.place))
            for check in origin.checks:
                try:
                    ok = holds(check, value, values)
                except Exception:
                    ok = False
                if not ok:
                    return Miss(*_say(check, origin, value), render_place(check.place))
        return self._why_together(values)

    def _why_together(self, values: dict[int, Any]) -> Miss | None:
        by_index = {origin.index: origin for origin in self._origins}
        for group in self._distinct:
            if len({id(values[index]) for index in group}) != len(group):
                names = ", ".join(describe(by_index[index]) for index in group)
                return Miss(f"identity of {names}", "different objects", "one object twice", "")
        if self._storages is not None:
            found = shared_storages(values[index] for index in self._inputs)
            if found != self._storages:
                return Miss("memory shared by inputs", str(self._storages), str(found), "")
        return None

    def lines(self) -> list[str]:
        """Every guard as one line of text."""
        text = [f"torch's {name} == {value}" for name, value in zip(STATE_NAMES, self._state, strict=True)]
        for origin in self._origins:
            for check in origin.checks:
                place = render_place(check.place)
                text.append(f"{_assertion(check, origin)}{'  # ' + place if place else ''}")
        return text


def _assertion(check: Check, origin: Origin) -> str:
    name, e = describe(origin), check.expected
    words: dict[Fact, Callable[[], str]] = {
        Fact.TYPE: lambda: f"type({name}) is {e.__qualname__}",
        Fact.EQUAL: lambda: f"{name} == {_short(e)}",
        Fact.IS: lambda: f"{name} is {getattr(e, '__qualname__', None) or _short(e)}",
        Fact.TENSOR: lambda: (
            f"{name}: {e.type.__name__} {e.dtype} {list(e.size)} stride {list(e.stride)} {e.device}"
            f"{' requires_grad' if e.requires_grad else ''}"
        ),
        Fact.LEN: lambda: f"len({name}) == {e}",
        Fact.KEYS: lambda: f"tuple({name}) == {_short(e)}",
        Fact.HAS: lambda: f"{e!r} in {name}",
        Fact.LACKS: lambda: f"{e!r} not in {name}",
        Fact.CODE: lambda: f"{name}.__code__ is {e[0].co_qualname}",
        Fact.SAME: lambda: f"{name} is the same object as before",
        Fact.OTHER: lambda: f"{name} is another object than before",
        Fact.SPECIALS: lambda: f"special methods of {name} unchanged",
        Fact.NO_ENTRY: lambda: f"{name} has no {e!r}",
        Fact.UNSET: lambda: f"{name} is unset",
        Fact.NO_SLOT: lambda: f"{name} has no {e.__name__!r}",
    }
    return words[check.fact]()
