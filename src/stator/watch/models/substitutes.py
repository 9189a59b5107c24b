"""Functions of torch that are watched by another text than their own, whose frames have the same shape.

Where a function of another shape is found than a text was written for, it is watched by its own.
"""

from __future__ import annotations

import types
from typing import Any

from ..bytecode.instrument import SUBSTITUTES

_KNOWN_SHAPE = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_freevars")


def substitute(function: Any, source: str) -> None:
    """Watch `function` by this text: of a function `outer`, or of the function in it. `{rest}` stands where variables
    are made up for that the original has and the text has not."""
    text = _text(source, function.__code__)
    if text is not None:
        SUBSTITUTES[function.__code__] = text


def _slots(code: types.CodeType) -> int:
    return len({*code.co_varnames, *code.co_cellvars}) + len(code.co_freevars)


def _text(source: str, original: types.CodeType) -> types.CodeType | None:
    """The text as a code object whose frames have the shape of the original's."""
    missing = _slots(original) - _slots(_compiled(source, 0))
    if missing < 0:
        return None
    code = _compiled(source, missing)
    takes_rest = 0x0C  # *args, **kwargs
    arguments = code.co_argcount + (code.co_flags & takes_rest).bit_count()
    same = all(getattr(code, name) == getattr(original, name) for name in _KNOWN_SHAPE)
    same = same and code.co_varnames[:arguments] == original.co_varnames[:arguments]
    if not same or code.co_flags & 0xFF != original.co_flags & 0xFF or _slots(code) != _slots(original):
        return None
    return code.replace(
        co_filename=original.co_filename,
        co_name=original.co_name,
        co_qualname=original.co_qualname,
        co_firstlineno=original.co_firstlineno,
        co_flags=original.co_flags,
    )


def _compiled(source: str, rest: int) -> types.CodeType:
    made: dict[str, Any] = {}
    variables = "".join(f"rest_{number} = " for number in range(rest))
    exec(source.format(rest=f"{variables}None" if rest else "pass"), made)
    code: types.CodeType = made["outer"].__code__
    return next((c for c in code.co_consts if isinstance(c, types.CodeType)), code)
