"""Arithmetic over sizes and numbers as data: what guards on symbolic numbers are made of.

An expression is a number, a *term* (a number that a call brings along) or a tuple of an operator and expressions. Terms
are `("size", origin, dim)`, `("stride", origin, dim)` of a tensor, `("number", origin)` for an int and `("real",
origin)` for a float, by the origin's index. Ints have 64 bits, as in C: a relation in which one has more does not hold.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from ..interrupts import let_through
from ..recording import TERMS as TERMS
from ..recording import Origin, Place, Recording, describe, render_place
from .number_functions import FUNCTIONS, LARGEST, SMALLEST

Expression = Any
HIGHEST_POWER = 64


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and not 0 <= exponent <= HIGHEST_POWER:
        raise OverflowError(f"{base} ** {exponent}")
    return base**exponent


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
    "min": min,
    "max": max,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": lambda a, b: type(a) is type(b) and repr(a) == repr(b),  # tells -0.0 from 0.0, and finds nan to be itself
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
}
UNARY: dict[str, Callable[[Any], Any]] = {"not": operator.not_, "neg": operator.neg}


_MIRRORED = {"<": ">", "<=": ">=", "==": "==", "!=": "!="}


class Relation(NamedTuple):
    """An expression that must be true, and the user's line that made it so."""

    expression: Expression
    place: Place | None


def evaluate(expression: Expression, values: Any) -> Any:
    """The value of an expression; `values[origin]` are those of a call. OverflowError for more than 64 bits."""
    if type(expression) is not tuple:
        return expression
    head, *rest = expression
    if head in TERMS:
        return _within_64_bits(term_value(expression, values))
    parts = [evaluate(part, values) for part in rest]
    if head in UNARY:
        return UNARY[head](parts[0])
    if head in FUNCTIONS:
        return FUNCTIONS[head](*parts)
    return functools.reduce(lambda a, b: _within_64_bits(BINARY[head](a, b)), parts)


def _within_64_bits(number: Any) -> Any:
    if type(number) is int and not SMALLEST <= number <= LARGEST:
        raise OverflowError(str(number))
    return number


def term_value(term: tuple[Any, ...], values: Any) -> Any:
    value = values[term[1]]
    if term[0] == "size":
        return value.shape[term[2]]
    return value.stride()[term[2]] if term[0] == "stride" else value


def holds(relation: Relation, values: Any) -> bool:
    """Is it true of these values? Not if that cannot be computed."""
    try:
        return bool(evaluate(relation.expression, values))
    except Exception as error:
        let_through(error)
        return False


MOST_BITS = 2_000  # CPython refuses to write much longer numbers


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
        return _constant(expression)
    head, *rest = expression
    if head in TERMS:
        name = describe(origins[rest[0]])
        return {"size": "{}.shape[{}]", "stride": "{}.stride()[{}]"}.get(head, "{}").format(name, *rest[1:])
    if head in _MIRRORED and type(rest[0]) is not tuple:  # a constant is written on the right
        head, rest = _MIRRORED[head], [rest[1], rest[0]]
    parts = [render(part, origins) for part in rest]
    if head in FUNCTIONS and head not in BINARY:
        return f"{head.rpartition('.')[2]}({', '.join(parts)})"
    if head in ("min", "max"):
        return f"{head}({', '.join(parts)})"
    grouped = [f"({text})" if _is_compound(part) else text for part, text in zip(rest, parts, strict=True)]
    if head in UNARY:
        return f"not {grouped[0]}" if head == "not" else f"-{grouped[0]}"
    return f" {head} ".join(grouped)


def _constant(value: Any) -> str:
    if type(value) is int and value.bit_length() > MOST_BITS:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


def _is_compound(expression: Expression) -> bool:
    return type(expression) is tuple and expression[0] not in (*TERMS, *FUNCTIONS)


def symbols_in_words(recording: Recording) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of a recording: the sizes and numbers that may be others; and those that may not, with the line that says so."""
    origins = recording.origins
    free = tuple(render(term, origins) for term in recording.symbolic)
    fixed: dict[str, str] = {}
    for relation in recording.relations:
        expression = relation.expression
        if type(expression) is tuple and expression[0] in ("==", "is") and type(expression[2]) is not tuple:
            text = f"{render(expression[1], origins)} can only be {_constant(expression[2])}"
            fixed.setdefault(text, render_place(relation.place))
    for what, value, place in recording.specialised:
        if what == ():
            fixed.setdefault(f"all sizes are constants: {value}", render_place(place))
        elif terms_of(what):
            fixed.setdefault(f"{render(what, origins)} can only be {_constant(value)}", render_place(place))
    return free, tuple(f"{text}, due to {place}" if place else text for text, place in fixed.items())
