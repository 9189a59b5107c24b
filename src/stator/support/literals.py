"""Values in Python source: the one place where text of the program's becomes text of code.

Enters: values, names and texts that nobody vouches for. Leaves: source that means that very value, in ASCII. What
holds: only values of the builtin types themselves are written, never by a method of theirs that a subclass could have
replaced; a name is written as one only if Python reads it as that name; what stands in comments and docstrings does
not end them. Whoever has another value passes it on by reference.
"""

from __future__ import annotations

import keyword
import math
import types
import unicodedata
from typing import Any

_NAME_OF_TYPE: Any = type.__dict__["__qualname__"]
_NAMED = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_WRITTEN = (int, float, complex, str, bytes)
_SINGLE = (bool, type(None), type(...), type(NotImplemented))
_CONSTANTS = {None: "None", True: "True", False: "False", ...: "...", NotImplemented: "NotImplemented"}


def is_literal(value: Any, depth: int = 50) -> bool:
    """Can `literal` write it? Tuples count, as deep as anybody writes them."""
    kind = type(value)
    if kind is tuple:
        return depth > 0 and all(is_literal(part, depth - 1) for part in value)
    return kind in _WRITTEN or kind in _SINGLE


def literal(value: Any) -> str:
    """Source of this value."""
    kind = type(value)
    if kind is int:
        return str(value) if abs(value) < 1 << 64 else f"{value:#x}"  # there is a limit to decimal digits
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if kind is complex:
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if kind is str:
        return ascii(value)
    if kind is bytes:
        return repr(value)
    if kind is tuple:
        return f"({''.join(literal(part) + ', ' for part in value).removesuffix(' ' if len(value) == 1 else ', ')})"
    if kind in _SINGLE:
        return _CONSTANTS[value]
    raise TypeError(f"not a value that can be written: an instance of {name_of(kind)}")


def plain_text(text: str) -> str:
    """A text as `str` itself, whatever subclass it is of."""
    return str.__str__(text)


def is_identifier(name: Any) -> bool:
    """Does Python read these characters as this very name?"""
    return (
        type(name) is str
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and unicodedata.normalize("NFKC", name) == name
        and name != "__debug__"
    )


def is_path(path: Any) -> bool:
    """Are these identifiers with dots between them?"""
    return type(path) is str and all(map(is_identifier, path.split(".")))


def name_of(value: Any) -> str:
    """What a class or a function calls itself, or the class of anything else; no code of the program's is run."""
    kind = type(value)
    if issubclass(kind, type):
        name = _NAME_OF_TYPE.__get__(value)
    elif kind in _NAMED:
        name = value.__qualname__
    else:
        name = _NAME_OF_TYPE.__get__(kind)
    return plain_text(name) if issubclass(type(name), str) else "object"


def one_line(text: str) -> str:
    """For comments, titles and names of code: nothing that ends a line, or that cannot be encoded."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in plain_text(text))


def in_docstring(text: str) -> str:
    """Lines that can stand between triple quotes."""
    lines = plain_text(text).replace("\\", "\\\\").replace('"', '\\"').split("\n")
    return "\n".join(map(one_line, lines))
