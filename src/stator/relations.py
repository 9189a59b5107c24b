"""Arithmetic over sizes and numbers as data: what guards on symbolic numbers are made of.

An expression is a number, a *term* (a number that a call brings along) or a tuple of an operator and expressions. Terms
are `("size", origin, dim)`, `("stride", origin, dim)` of a tensor, and `("number", origin)`, by the origin's index.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from .recording import Origin, Place, describe

Expression = Any
TERMS = ("size", "stride", "number")
OPERATORS: dict[str, Callable[..., Any]] = {
    "+": lambda *values: sum(values),
    "*": lambda *values: math.prod(values),
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "min": min,
    "max": max,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    "and": lambda *values: all(values),
    "or": lambda *values: any(values),
    "not": operator.not_,
}


_MIRRORED = {"<": ">", "<=": ">=", "==": "==", "!=": "!="}


class Relation(NamedTuple):
    """An expression that must be true, and the user's line that made it so."""

    expression: Expression
    place: Place | None


def evaluate(expression: Expression, values: Any) -> Any:
    """The value of an expression; `values[origin]` are those of a call."""
    if type(expression) is not tuple:
        return expression
    head, *rest = expression
    if head == "size":
        return values[rest[0]].shape[rest[1]]
    if head == "stride":
        return values[rest[0]].stride()[rest[1]]
    if head == "number":
        return values[rest[0]]
    return OPERATORS[head](*[evaluate(part, values) for part in rest])


def terms_of(expression: Expression) -> set[tuple[Any, ...]]:
    """All terms that an expression mentions."""
    if type(expression) is not tuple:
        return set()
    if expression[0] in TERMS:
        return {expression}
    return set().union(*map(terms_of, expression[1:]))


def render(expression: Expression, origins: list[Origin]) -> str:
    """An expression as the user would write it."""
    if type(expression) is not tuple:
        return repr(expression)
    head, *rest = expression
    if head in TERMS:
        name = describe(origins[rest[0]])
        return {"size": "{}.shape[{}]", "stride": "{}.stride()[{}]", "number": "{}"}[head].format(name, *rest[1:])
    if head in _MIRRORED and type(rest[0]) is not tuple:  # a constant is written on the right
        head, rest = _MIRRORED[head], [rest[1], rest[0]]
    parts = [render(part, origins) for part in rest]
    if head in ("min", "max"):
        return f"{head}({', '.join(parts)})"
    grouped = [f"({text})" if _is_compound(part) else text for part, text in zip(rest, parts, strict=True)]
    return f"not {grouped[0]}" if head == "not" else f" {head} ".join(grouped)


def _is_compound(expression: Expression) -> bool:
    return type(expression) is tuple and expression[0] not in (*TERMS, "min", "max")
