"""What math functions should give: float64 references for float32, and the distance in ulp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

Array = np.ndarray[Any, Any]

REFERENCES: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "sigmoid": scipy.special.expit,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "pow": np.power,
    "atan2": np.arctan2,
}
TWO_ARGUMENTS = {"pow", "atan2"}


def ulps(got: Array, want: Array) -> Array:
    """Distance of float32 results from float64 references; infinite for a wrong NaN, infinity or sign of zero."""
    rounded = want.astype(np.float32)
    finite = np.where(np.isfinite(rounded), rounded, np.finfo(np.float32).max)
    distance = np.abs(got.astype(np.float64) - want) / np.spacing(np.abs(finite)).astype(np.float64)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    distance = np.where(same & ~np.isfinite(distance), 0.0, distance)
    wrong = np.isnan(distance) | ((want == 0) & (got == 0) & (np.signbit(got) != np.signbit(want)))
    result: Array = np.where(wrong, np.inf, distance)
    return result
