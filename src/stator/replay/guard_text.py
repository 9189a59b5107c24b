"""Why a recording was not used, and values in words. The words of each fact are in its row in `guard_facts.py`."""

from __future__ import annotations

import dis
import inspect
import re
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from ..recording import Origin, describe, render_places


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


def dims(found: Any) -> str:
    """Sizes in words; what may be any is left open."""
    if not isinstance(found, tuple):
        return str(found)
    return f"({sizes(found)}{',' * (len(found) == 1)})"


def sizes(found: tuple[Any, ...]) -> str:
    return ", ".join("_" if size is None else str(size) for size in found)


def short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__qualname__}"
    return text if len(text) <= 80 else text[:77] + "..."
