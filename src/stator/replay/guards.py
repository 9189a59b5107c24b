"""Guards: a recording's origins and checks, checked, and put into words.

Enters: origins with checks, parents before children. Leaves: `Guards.check(slots)`, which resolves every origin once
and gives back the values that the replay needs, or None. What was checked is what is used. Any exception while
checking is a failed guard. `Guards.why(slots)` walks the same data slowly and says which check fails.
"""

from __future__ import annotations

import contextlib
import enum
import operator
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .. import _native
from ..facts import (
    STATE_NAMES,
    container_kind,
    fits,
    fits_numbers,
    is_unhooked,
    keys_of,
    plain_value,
    same_constant,
    shared_storages,
    special_methods,
    tensor_facts,
    torch_state,
)
from ..options import options
from ..recording import Check, Edge, Fact, Origin, Recording, TensorFacts, describe, render_place
from ..relations import Relation, evaluate, render, terms_of

MISSING = _native.MISSING
_BASES: dict[str, Any] = {"list": list, "dict": dict, "tuple": tuple, "set": set, "deque": deque}


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


def fetch(origin: Origin, values: list[Any], slots: tuple[Any, ...]) -> Any:
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


def attribute(value: Any, name: str) -> Any:
    """A part of an object; the instance dict is taken past a `__getattribute__` of the class."""
    return object.__getattribute__(value, name) if name == "__dict__" else getattr(value, name)


def item(container: Any, key: Any) -> Any:
    """An item of a builtin container or of the container that a subclass is."""
    kind = container_kind(type(container))
    if kind == "dict" and not dict.__contains__(container, key):
        raise KeyError(key)  # and `__missing__` is not asked
    return _BASES[kind].__getitem__(container, key) if kind is not None else container[key]


_FETCH: dict[Edge, Callable[[Any, Any], Any]] = {
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
    return bool(_HOLDS[check.fact](value, check.expected, values))


_HOLDS: dict[Fact, Callable[[Any, Any, Any], bool]] = {
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
            if not (fits_numbers(got, wanted) if field in ("size", "stride") else wanted == got):
                return f"{name}.{field}", _dims(wanted), _dims(got)
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
        return (
            f"identity of {name}",
            "the same object" if check.fact is Fact.SAME else "another object",
            "not so",
        )
    if check.fact is Fact.SPECIALS:
        return f"special methods of {name}", "unchanged", "changed"
    if check.fact is Fact.NO_ENTRY:
        return f"{name}.{expected}", "absent", "present"
    if check.fact is Fact.VALUE:
        return name, _short(expected[1]), _short(value)
    if check.fact is Fact.UNHOOKED:
        return f"hooks of {name}", "none", "some"
    return name, _short(expected), _short(value)


def _dims(found: Any) -> str:
    """Sizes in words; what may be any is left open."""
    if not isinstance(found, tuple):
        return str(found)
    return f"({', '.join('_' if size is None else str(size) for size in found)}{',' * (len(found) == 1)})"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__qualname__}"
    return text if len(text) <= 80 else text[:77] + "..."


# -- checking, quickly


class _Quick(enum.IntEnum):
    """Checks that the loop in `Guards.check` makes by itself; the others go through the table."""

    TYPE = 0
    LACKS = 1
    LEN = 2
    EQUAL = 3
    TENSOR = 4
    SAME = 5
    OTHER = 6
    TABLE = 7


_PLAIN_CONTAINERS = (dict, list, tuple)
_SIMPLE_CONSTANTS = (int, str, bool, bytes, type(None))


def _known_type(origin: Origin) -> type | None:
    """The exact type that an origin's value has once its checks hold."""
    for check in origin.checks:
        if check.fact is Fact.TYPE:
            return check.expected  # type: ignore[no-any-return]
    if origin.edge is Edge.CONST:
        return type(origin.key)
    return {"__dict__": dict, "__closure__": tuple, "__defaults__": tuple}.get(str(origin.key))


def _needed(origin: Origin) -> list[Check]:
    """The checks of an origin that no other one implies."""
    if not {Fact.TENSOR, Fact.IS, Fact.EQUAL} & {check.fact for check in origin.checks}:
        return origin.checks
    return [check for check in origin.checks if check.fact is not Fact.TYPE]


def _quick_check(origin: Origin, check: Check) -> tuple[_Quick, Any, Any]:
    """(kind, expected, function for TABLE) of a check."""
    fact, expected = check.fact, check.expected
    plain = _known_type(origin) in _PLAIN_CONTAINERS
    if fact is Fact.EQUAL:
        simple = type(expected) in _SIMPLE_CONSTANTS
        return (_Quick.EQUAL, expected, type(expected)) if simple else (_Quick.TABLE, expected, _HOLDS[fact])
    if fact is Fact.SPECIALS:
        return _Quick.TABLE, [expected[0] or -1, expected[1]], _same_specials
    if (fact is Fact.LACKS or fact is Fact.LEN) and not plain:
        return _Quick.TABLE, expected, _HOLDS[fact]
    quick = _Quick.__members__.get(fact.name)
    return (quick, expected, None) if quick is not None else (_Quick.TABLE, expected, _HOLDS[fact])


def _same_specials(cls: type, expected: list[Any], _: Any) -> bool:
    return _native.type_version(cls) == expected[0] or specials_unchanged(cls, expected)


def _quick_fetch(origin: Origin) -> tuple[Callable[[Any, Any], Any], int, Any]:
    """(function, index of the parent's value, key) that give an origin's value."""
    assert origin.parent is not None
    if origin.edge is Edge.ITEM and _known_type(origin.parent) in _PLAIN_CONTAINERS:
        return operator.getitem, origin.parent.index, origin.key
    return _FETCH[origin.edge], origin.parent.index, origin.key


def _constant(slots: Any, value: Any) -> Any:
    return value


def same_tensor(value: Any, e: TensorFacts) -> bool:
    """Do the facts hold of this tensor? Asked in the order of what changes most often."""
    cls: Any = type(value)
    return bool(
        cls is e.type
        and fits_numbers(value.shape, e.size)
        and value.dtype is e.dtype
        and value.requires_grad is e.requires_grad
        and (fits_numbers(value.stride(), e.stride) if value.layout is torch.strided else not e.stride)
        and _dispatch_keys(value).raw_repr() == e.keys
        and value.device == e.device
        and value.is_leaf is e.is_leaf
    )


_dispatch_keys = torch._C._dispatch_keys


def _absent(origin: Origin, error: Exception) -> Miss:
    return Miss(describe(origin), "present", f"{type(error).__name__}: {error}", render_place(origin.place))


def _surely_holds(check: Check, value: Any, values: list[Any] | None = None) -> bool:
    try:
        return holds(check, value, values or [])
    except Exception:
        return False


def _differences(check: Check, value: Any) -> list[tuple[tuple[Any, ...], set[int | None]]]:
    """In which sizes or numbers a value differs from what is expected; none if that is not all."""
    expected = check.expected
    if check.fact is Fact.EQUAL and type(value) is type(expected):
        if type(value) in (int, float):
            return [((), {None})]
        if isinstance(value, tuple) and len(value) == len(expected):
            parts = [(i, v, e) for i, (v, e) in enumerate(zip(value, expected, strict=True)) if not same_constant(v, e)]
            if all(type(v) is type(e) and type(v) in (int, float) for _, v, e in parts):
                return [(((Edge.ITEM, i),), {None}) for i, _, _ in parts]
    if check.fact is Fact.TENSOR and type(value) is expected.type and value.layout is torch.strided:
        found = tensor_facts(value)
        alike = found._replace(size=expected.size, stride=expected.stride)
        if len(found.size) == len(expected.size) and fits(alike, expected):
            dims = _differing(found.size, expected.size)
            return [((), dims or {~dim for dim in _differing(found.stride, expected.stride)})]  # type: ignore[operator]
    return []


def _differing(found: tuple[int, ...], expected: tuple[int | None, ...]) -> set[int | None]:
    pairs = zip(found, expected, strict=True)
    return {place for place, (a, b) in enumerate(pairs) if b is not None and a != b}


Compiler = Callable[..., _native.Guards | None]


class Guards:
    """All guards of one recording."""

    def __init__(self, recording: Recording, wanted: list[int], compiler: Compiler | None = None) -> None:
        """`wanted`: the origins whose values `check` gives back, in that order. `compiler` makes guards in C."""
        self._origins = recording.origins
        self._state = recording.state
        self._distinct = recording.distinct
        self._storages = recording.storages
        self._inputs = recording.inputs
        self._relations: list[Relation] = recording.relations
        self._wanted = wanted
        self._steps: list[tuple[Any, int, Any, list[tuple[_Quick, Any, Any]]]] = []
        self._compiler = compiler
        self._engine: _native.Guards | None = None

    @property
    def engine(self) -> _native.Guards | None:
        """These guards in C, made when they are first needed."""
        if self._compiler is not None:
            compiler, self._compiler = self._compiler, None
            with contextlib.suppress(ValueError, TypeError, OverflowError):  # what C code does not take, Python checks
                shared = (self._inputs, self._storages)
                self._engine = compiler(
                    self._origins, self._state, self._distinct, shared, self._relations, self._wanted
                )
        return self._engine

    def check(self, slots: tuple[Any, ...], state: tuple[Any, ...] | None = None) -> tuple[Any, ...] | None:
        """The wanted values if all guards hold; `state` is torch's, if it is not to be asked."""
        if (state or torch_state()) != self._state:
            return None
        engine = self.engine
        if engine is None:
            return self.check_in_python(slots)
        values = engine.check(slots)
        if options.check_guards:
            expected = self.check_in_python(slots)
            self._compare(values, expected)
            for _ in range(3):  # what C code notes in one walk, and digests in the next, it uses in the third
                self._compare(engine.check(slots), expected)
        return self.check_in_python(slots) if values is NotImplemented else values

    def check_in_python(self, slots: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The reference: the same, torch's state aside."""
        try:
            return self._check(slots)
        except Exception:
            return None

    def _compare(self, found: Any, expected: tuple[Any, ...] | None) -> None:
        """Guards in C and in Python must agree, to the very objects."""
        if found is NotImplemented:
            return
        agree = (found is None) == (expected is None)
        if agree and expected is not None:
            agree = len(found) == len(expected) and all(map(operator.is_, found, expected))
        if not agree:
            failed = self._engine.failed if self._engine is not None else None
            raise AssertionError(f"guards disagree: C {found!r} (failed at {failed}), Python {expected!r}")

    def _prepare(self) -> None:
        for origin in self._origins:
            checks = [_quick_check(origin, check) for check in _needed(origin)]
            if origin.edge is Edge.LOCAL:
                self._steps.append((operator.getitem, -1, origin.key[0], checks))
            elif origin.edge is Edge.CONST:
                self._steps.append((_constant, -1, origin.key, checks))
            else:
                self._steps.append((*_quick_fetch(origin), checks))

    def _check(self, slots: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not self._steps:
            self._prepare()
        values: list[Any] = []
        for fetch, parent, key, checks in self._steps:
            value = fetch(values[parent], key) if parent >= 0 else fetch(slots, key)
            values.append(value)
            for kind, expected, function in checks:
                if kind == 0:
                    if type(value) is not expected:
                        return None
                elif kind == 1:
                    if expected in value:
                        return None
                elif kind == 2:
                    if len(value) != expected:
                        return None
                elif kind == 3:
                    if type(value) is not function or value != expected:
                        return None
                elif kind == 4:
                    if not same_tensor(value, expected):
                        return None
                elif kind == 5:
                    if value is not values[expected]:
                        return None
                elif kind == 6:
                    if value is values[expected]:
                        return None
                elif not function(value, expected, values):
                    return None
        if not self._hold_together(values):
            return None
        return tuple([values[index] for index in self._wanted])

    def _hold_together(self, values: list[Any]) -> bool:
        """Guards on several values at once."""
        for group in self._distinct:
            if len({id(values[index]) for index in group}) != len(group):
                return False
        if not all(evaluate(relation.expression, values) for relation in self._relations):
            return False
        return self._storages is None or shared_storages(values[i] for i in self._inputs) == self._storages

    def why(self, slots: tuple[Any, ...]) -> Miss | None:
        """A guard that does not hold, in words; None if all do."""
        for name, wanted, got in zip(STATE_NAMES, self._state, torch_state(), strict=True):
            if wanted != got:
                return Miss(f"torch's {name}", str(wanted), str(got), "")
        engine = self.engine
        if engine is not None and engine.check(slots) is None:
            origin, check = engine.failed
            if 0 <= origin < len(self._origins):
                miss = self.why_here(self._origins[origin], check, slots)
                if miss is not None:
                    return miss
        return self.why_in_python(slots)

    def why_here(self, origin: Origin, check: int, slots: tuple[Any, ...]) -> Miss | None:
        """This check of this origin in words (out of range: it cannot be reached); None if it holds after all."""
        path = [origin]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        values: Any = {}
        for step in reversed(path):
            try:
                values[step.index] = fetch(step, values, slots)
            except Exception as error:
                return _absent(step, error)
        if not 0 <= check < len(origin.checks):
            return None
        failed = origin.checks[check]
        if failed.fact not in (Fact.SAME, Fact.OTHER) and _surely_holds(failed, values[origin.index]):
            return None
        return Miss(*_say(failed, origin, values[origin.index]), render_place(failed.place))

    def why_in_python(self, slots: tuple[Any, ...]) -> Miss | None:
        """The reference: the first guard in the order of the recording that does not hold, torch's state aside."""
        values: list[Any] = []
        for origin in self._origins:
            try:
                value = fetch(origin, values, slots)
            except Exception as error:
                return _absent(origin, error)
            values.append(value)
            for check in origin.checks:
                try:
                    ok = holds(check, value, values)
                except Exception:
                    ok = False
                if not ok:
                    return Miss(*_say(check, origin, value), render_place(check.place))
        return self._why_together(values)

    def changed_slot(self, slots: tuple[Any, ...]) -> int | None:
        """The first argument slot that holds another number or text than the guards expect."""
        for origin in self._origins:
            value = slots[origin.key[0]] if origin.edge is Edge.LOCAL else None
            if type(value) in (int, float, str) and not all(holds(check, value, []) for check in origin.checks):
                return int(origin.key[0])
        return None

    def changes(self, slots: tuple[Any, ...]) -> list[tuple[Origin, tuple[Any, ...], set[int | None]]]:
        """The sizes and numbers that differ from those expected, if nothing else does: origin, steps from there on, and
        which of them (None: a number; a dimension; the complement of one whose stride differs)."""
        values: list[Any] = []
        found: list[tuple[Origin, tuple[Any, ...], set[int | None]]] = []
        for origin in self._origins:
            try:
                value = fetch(origin, values, slots)
            except Exception:
                return []
            values.append(value)
            for check in origin.checks:
                if not _surely_holds(check, value, values):
                    differing = _differences(check, value)
                    if not differing:
                        return []
                    found += [(origin, steps, dims) for steps, dims in differing]
        return found

    def _why_together(self, values: list[Any]) -> Miss | None:
        for group in self._distinct:
            if len({id(values[index]) for index in group}) != len(group):
                names = ", ".join(describe(self._origins[index]) for index in group)
                return Miss(f"identity of {names}", "different objects", "one object twice", "")
        for relation in self._relations:
            if not evaluate(relation.expression, values):
                terms = sorted(terms_of(relation.expression), key=str)
                words = ", ".join(f"{render(term, self._origins)} = {evaluate(term, values)}" for term in terms)
                return Miss(render(relation.expression, self._origins), "to hold", words, render_place(relation.place))
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
        for relation in self._relations:
            place = render_place(relation.place)
            text.append(f"{render(relation.expression, self._origins)}{'  # ' + place if place else ''}")
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
        Fact.VALUE: lambda: f"{name} == {_short(e[1])}",
        Fact.UNHOOKED: lambda: f"{name} has no hooks",
        Fact.NO_SLOT: lambda: f"{name} has no {e.__name__!r}",
    }
    return words[check.fact]()
