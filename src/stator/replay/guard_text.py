"""Guards in words: what must hold, and why a recording was not used."""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from ..recording import Check, Fact, Origin, TensorFacts, describe, render_places
from ..support.guard_readers import fits_numbers, tensor_facts
from .reference import keys, length


class Miss(NamedTuple):
    """Why a recording was not used for a call."""

    guard: str
    expected: str
    found: str
    place: str  # the line that made the guard necessary, `file:line`; empty: none
    caller: str = ""  # the user's line that led there, if that is another

    def __str__(self) -> str:
        way = f" from {self.caller}" if self.caller else ""
        where = f" (needed by {self.place}{way})" if self.place else ""
        return f"{self.guard}: expected {self.expected}, found {self.found}{where}"


class Told(NamedTuple):
    """One guard in words."""

    kind: str
    text: str
    origin: str  # how its value is reached; empty: it is about several values
    place: str  # the line that made it necessary, `file:line`; empty: none
    caller: str = ""  # the user's line that led there, if that is another

    def __str__(self) -> str:
        way = f" from {self.caller}" if self.caller else ""
        return f"{self.text}  # {self.place}{way}" if self.place else self.text


# What guards of each fact are about.
KINDS: dict[Fact, str] = {
    Fact.TYPE: "types",
    Fact.EQUAL: "values",
    Fact.IS: "values",
    Fact.TENSOR: "tensors",
    Fact.LEN: "containers",
    Fact.KEYS: "containers",
    Fact.HAS: "names",
    Fact.LACKS: "names",
    Fact.CODE: "code",
    Fact.SAME: "identities",
    Fact.OTHER: "identities",
    Fact.SPECIALS: "classes",
    Fact.NO_ENTRY: "classes",
    Fact.UNSET: "names",
    Fact.VALUE: "values",
    Fact.UNHOOKED: "modules",
    Fact.NO_SLOT: "names",
    Fact.HAS_KEYED: "names",
    Fact.LACKS_KEYED: "names",
}


def first_read(code: CodeType, name: str) -> str:
    """The line where a function first reads one of its variables."""
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        if instruction.argval == name and instruction.opname.startswith("LOAD_"):
            return f"{code.co_filename}:{line}"
    return ""


def first_read_in_forward(module: Any, guard: str) -> str:
    """The line where the `forward` of a module first reads the argument that a guard is about; empty: none."""
    forward = inspect.getattr_static(type(module), "forward", None)
    given = re.match(r"args\[(\d+)\]|kwargs\['(\w+)'\]", guard)
    if given is None or not isinstance(forward, FunctionType):
        return ""
    code = forward.__code__
    names = code.co_varnames[1 : code.co_argcount] if given[1] else (given[2],)
    return "".join(first_read(code, name) for name in names[int(given[1] or 0) :][:1])


def absent(origin: Origin, error: Exception) -> Miss:
    return Miss(describe(origin), "present", f"{type(error).__name__}: {error}", *render_places(origin.place))


def say(check: Check, origin: Origin, value: Any) -> tuple[str, str, str]:
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
    if check.fact in (Fact.HAS_KEYED, Fact.LACKS_KEYED):
        wanted, got = ("present", "absent") if check.fact is Fact.HAS_KEYED else ("absent", "present")
        name, key = map(describe, expected)
        return f"{key} in {name}", wanted, got
    if check.fact is Fact.UNHOOKED:
        return f"hooks of {name}", "none", "some"
    return name, _short(expected), _short(value)


def _dims(found: Any) -> str:
    """Sizes in words; what may be any is left open."""
    if not isinstance(found, tuple):
        return str(found)
    return f"({_sizes(found)}{',' * (len(found) == 1)})"


def _sizes(found: tuple[Any, ...]) -> str:
    return ", ".join("_" if size is None else str(size) for size in found)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__qualname__}"
    return text if len(text) <= 80 else text[:77] + "..."


def assertion(check: Check, origin: Origin) -> str:
    name, e = describe(origin), check.expected
    words: dict[Fact, Callable[[], str]] = {
        Fact.TYPE: lambda: f"type({name}) is {e.__qualname__}",
        Fact.EQUAL: lambda: f"{name} == {_short(e)}",
        Fact.IS: lambda: f"{name} is {getattr(e, '__qualname__', None) or _short(e)}",
        Fact.TENSOR: lambda: (
            f"{name}: {e.type.__name__} {e.dtype} [{_sizes(e.size)}] stride [{_sizes(e.stride)}] {e.device}"
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
        Fact.HAS_KEYED: lambda: f"{describe(e[1])} in {describe(e[0])}",
        Fact.LACKS_KEYED: lambda: f"{describe(e[1])} not in {describe(e[0])}",
    }
    return words[check.fact]()
