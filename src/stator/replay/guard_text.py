"""Why a recording was not used, and values in words. The words of each fact are in its row in `guard_facts.py`."""

from __future__ import annotations

import dis
import inspect
import os
import re
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from ..interrupts import let_through
from ..recording import Origin, describe, is_module_call, render_places

_IN_TORCH = os.path.join(os.path.dirname(torch.__file__), "")


class Miss(NamedTuple):
    """Why a recording was not used for a call."""

    guard: str
    expected: str
    found: str
    place: str  # the line that made the guard necessary, `file:line`; empty: none
    caller: str = ""  # the user's line that led there, if that is another

    def __str__(self) -> str:
        where = f" (needed by {', in '.join(self.places)})" if self.place else ""
        return f"{self.guard}: expected {self.expected}, found {self.found}{where}"

    @property
    def places(self) -> list[str]:
        """The user's line, and, if another needs it, where that is."""
        return [self.caller, self.place] if self.caller else [self.place]


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


_GIVEN = re.compile(r"args\[(\d+)\]|kwargs\['(\w+)'\]")


def of_module(miss: Miss, module: Any) -> Miss:
    """Of a call of a module, which takes `*args`: in terms of the arguments of its `forward`, with the line where that
    first reads the one that the guard is about."""
    forward = inspect.getattr_static(type(module), "forward", None)
    given = _GIVEN.match(miss.guard)
    if given is None or not isinstance(forward, FunctionType):
        return miss
    code = forward.__code__
    names = code.co_varnames[1 : code.co_argcount]

    def named(found: re.Match[str]) -> str:
        position = int(found[1] or 0)
        return found[2] or (names[position] if position < len(names) else found[0])

    miss = miss._replace(guard=_GIVEN.sub(named, miss.guard))
    if miss.caller or not (_IN_TORCH in miss.place or is_module_call(miss.place)):
        return miss
    line = first_read(code, named(given))
    return miss._replace(place=line) if is_module_call(miss.place) and line else miss._replace(caller=line)


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
    except Exception as error:
        let_through(error)
        text = f"a {type(value).__qualname__}"
    return text if len(text) <= 80 else text[:77] + "..."
