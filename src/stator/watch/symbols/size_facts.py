"""What is assumed of sizes and numbers while operations run on tensors without data.

Enters: symbols, with the terms that guards know them by, and what torch's `ShapeEnv`, which does the algebra, assumes
of them. Leaves: relations between sizes and numbers that must hold for a graph to compute the same, as plain data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._guards import SLoc, Source
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy import functions

from ...recording import Place
from ...support.symbolic_exprs import TERMS, Expression, Relation

SMALLEST = 2  # 0 and 1 are special: they broadcast, or there is nothing to compute
LARGEST = 2**62


class _Named(Source):
    """Where a symbol comes from, as far as torch asks: by name."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_text", name)

    @property
    def _name_template(self) -> str:
        return self._text  # type: ignore[attr-defined, no-any-return]


class _Algebra(ShapeEnv):
    def _get_stack_summary(self, is_debug: bool = False, framework_loc: str | None = None) -> tuple[SLoc, str]:
        """The line that a fact is due to, which `Place` tells here: torch would import its tracer to find it."""
        return SLoc(framework_loc, None), ""


class SizeFacts:
    def __init__(self, place: Callable[[], Place | None]) -> None:
        """`place`: where the program is."""
        self.env = _Algebra(duck_shape=False)
        self._terms: dict[sympy.Symbol, Expression] = {}
        self._reals: dict[sympy.Symbol, int | float] = {}  # of numbers: their values
        self._bounds: list[Relation] = []
        self._places: list[Place | None] = []  # of the assumptions made so far
        self._place = place

    def symbol(self, value: int, term: Expression, low: int, high: int) -> torch.SymInt:
        source = _Named("_".join(map(str, term)))
        symbol = self.env.create_symbol(
            value, source, DimDynamic.DYNAMIC, positive=True, do_not_specialize_zero_one=low < SMALLEST
        )
        self._terms[symbol] = term
        self.bound(("<=", low, term))
        if high < LARGEST:
            self.bound(("<=", term, high))
        return self.env.create_symintnode(symbol, hint=value, source=source)  # type: ignore[return-value]

    def number(self, value: int | float, term: Expression) -> torch.SymInt | torch.SymFloat:
        """A number that the program was given, or a float that it has computed."""
        source = _Named(f"number_{len(self._terms)}")
        symbol = self.env.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
        self._terms[symbol] = term
        self._reals[symbol] = value
        make = self.env.create_symintnode if type(value) is int else self.env.create_symfloatnode
        return make(symbol, hint=value, source=source)  # type: ignore[return-value]

    def bound(self, expression: Expression) -> None:
        """This has to hold, whatever torch assumes."""
        self._bounds.append(Relation(expression, self._place()))

    @contextmanager
    def noting(self) -> Iterator[None]:
        """What is assumed in here is due to the line at which the program is."""
        yield
        self.note()

    def note(self) -> None:
        new = self.env.guards[len(self._places) :]
        if new:
            self._places += [self._place()] * len(new)
            if not all(self._is_exact(guard.expr) for guard in new):
                raise NotImplementedError("a number that is infinite, or a negative zero")

    def _is_exact(self, fact: sympy.Basic) -> bool:
        """Algebra knows no infinite number, and but one zero: what it takes them for may not be true."""
        if fact == sympy.false:
            return False
        return not (isinstance(fact, sympy.Eq) and any(self._is_negative_zero(symbol) for symbol in fact.free_symbols))

    def _is_negative_zero(self, symbol: sympy.Basic) -> bool:
        value = self._reals.get(symbol)
        return isinstance(value, float) and value == 0 and math.copysign(1.0, value) < 0

    def constant(self, number: Any) -> int | None:
        """The value of a symbolic int of which nothing but that value is possible any more."""
        expression = self.env.simplify(number.node.expr)
        return int(expression) if expression.is_number else None

    @property
    def symbolic(self) -> bool:
        return bool(self._terms)

    def free_terms(self) -> list[Expression]:
        """The terms that may have other values."""
        free = [(symbol, term) for symbol, term in self._terms.items() if not self.env.simplify(symbol).is_number]
        return [term for _, term in free if term[0] in TERMS]

    def pin(self) -> None:
        """Nothing but the numbers at hand is possible any more."""
        self._bounds += [Relation(self._pinned(symbol), self._place()) for symbol in self._terms]

    def relations(self) -> list[Relation]:
        """All that was assumed of the inputs, as far as it does not follow from what is written before it."""
        places = [*self._places, *[None] * (len(self.env.guards) - len(self._places))]
        found = list(self._bounds)
        for guard, place in zip(self.env.guards, places, strict=True):
            found += [Relation(e, place) for e in self._facts(guard.expr)]
        return list({relation.expression: relation for relation in reversed(found)}.values())[::-1]

    def _facts(self, fact: sympy.Basic) -> list[Expression]:
        if fact == sympy.false:  # of an infinite number
            return [self._pinned(symbol) for symbol in self._terms]
        try:
            return [self._of_floats(fact) or translate(fact, self._terms)]
        except NotImplementedError:  # then it holds for these very numbers, as far as we can tell
            return [self._pinned(symbol) for symbol in fact.free_symbols]

    def _pinned(self, symbol: sympy.Symbol) -> Expression:
        value = self._reals.get(symbol)
        if isinstance(value, float):
            return ("is", self._terms[symbol], value)
        return ("==", self._terms[symbol], int(self.env.backed_var_to_val[symbol]))

    def _of_floats(self, fact: sympy.Basic) -> Expression | None:
        """A comparison of a float with a constant is exact; torch's algebra with floats is not that of the machine."""
        if not isinstance(fact, sympy.core.relational.Relational):
            return None
        if not any(isinstance(self._reals.get(side), float) for side in fact.args):
            return None
        if isinstance(fact, sympy.Eq):  # torch has taken the number for the one at hand; zeros of either sign are equal
            raise NotImplementedError(str(fact))
        return (_FUNCTIONS_OF_FLOATS[fact.func], *map(self._float, fact.args))

    def _float(self, side: sympy.Basic) -> Expression:
        if isinstance(self._reals.get(side), float):
            return self._terms[side]
        if not isinstance(side, (sympy.Float, sympy.Integer)):
            raise NotImplementedError(str(side))
        return float(side)

    def expression(self, number: Any) -> Expression:
        return translate(number.node.expr, self._terms)


_FUNCTIONS_OF_FLOATS: dict[Any, str] = {
    sympy.Ne: "!=",
    sympy.Lt: "<",
    sympy.Le: "<=",
    sympy.Gt: ">",
    sympy.Ge: ">=",
}
_FUNCTIONS: dict[Any, str] = {
    sympy.Add: "+",
    sympy.Mul: "*",
    sympy.Pow: "**",
    functions.PowByNatural: "**",
    functions.FloorDiv: "//",
    functions.CleanDiv: "//",
    functions.Mod: "%",
    functions.PythonMod: "%",
    functions.Max: "max",
    functions.Min: "min",
    sympy.Eq: "==",
    sympy.Ne: "!=",
    sympy.Lt: "<",
    sympy.Le: "<=",
    sympy.And: "and",
    sympy.Or: "or",
    sympy.Not: "not",
}


def translate(expression: sympy.Basic, terms: dict[sympy.Symbol, Expression]) -> Expression:
    """Torch's algebra as ours. NotImplementedError where ours has no word for it."""
    if expression in terms:
        return terms[expression]
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if expression in (sympy.true, sympy.false):
        return int(expression is sympy.true)
    if isinstance(expression, (sympy.Gt, sympy.Ge)):
        return translate(expression.reversed, terms)
    if isinstance(expression, functions.ModularIndexing):
        base, divisor, modulus = (translate(arg, terms) for arg in expression.args)
        return ("%", ("//", base, divisor), modulus)
    name = _FUNCTIONS.get(expression.func)
    if name is None or (name == "**" and not (expression.args[1].is_Integer and expression.args[1] >= 0)):
        raise NotImplementedError(str(expression))
    return (name, *(translate(arg, terms) for arg in expression.args))
