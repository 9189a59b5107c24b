"""Functions of floats as LLVM IR, for vectors of any width: at most 2 ulp off, with C's special values.

What enters: an emitter, the name of the element type ("float" or "double") and operands. What leaves: the name of the
result. What holds: the same instructions for every target (see `lanes`); a name that is in no table for a type must be
called from a library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stator.codegen import math_exp, math_trig
from stator.codegen.lanes import DOUBLE, FLOAT, Emitter, Lanes

__all__ = ["F32", "F64", "FUNCTIONS", "Emitter", "supported"]


def _sqrt(v: Lanes, x: str) -> str:
    return v.sqrt(x)


def _rsqrt(v: Lanes, x: str) -> str:
    return v.div(v.one, v.sqrt(x))


_BODIES: dict[str, Callable[..., str]] = {
    "exp": math_exp.exp,
    "exp2": math_exp.exp2,
    "expm1": math_exp.expm1,
    "log": math_exp.log,
    "log2": math_exp.log2,
    "log10": math_exp.log10,
    "log1p": math_exp.log1p,
    "tanh": math_exp.tanh,
    "sinh": math_exp.sinh,
    "cosh": math_exp.cosh,
    "asinh": math_exp.asinh,
    "acosh": math_exp.acosh,
    "atanh": math_exp.atanh,
    "sigmoid": math_exp.sigmoid,
    "pow": math_exp.pow_,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "sin": math_trig.sin,
    "cos": math_trig.cos,
    "tan": math_trig.tan,
    "asin": math_trig.asin,
    "acos": math_trig.acos,
    "atan": math_trig.atan,
    "atan2": math_trig.atan2,
    "erf": math_trig.erf,
    "erfc": math_trig.erfc,
}

F32 = frozenset(_BODIES)
F64 = F32 - {"erfc"}  # whose tail needs more digits than double has


def supported(name: str, type_name: str) -> bool:
    """Whether `FUNCTIONS` has this function within 2 ulp for this type."""
    return name in {FLOAT: F32, DOUBLE: F64}.get(type_name, ())


def _call(name: str, emitter: Emitter, type_name: str, *operands: str) -> str:
    assert supported(name, type_name), (name, type_name)
    return _BODIES[name](Lanes(emitter, type_name), *operands)


FUNCTIONS: dict[str, Callable[..., str]] = {name: partial(_call, name) for name in _BODIES}
