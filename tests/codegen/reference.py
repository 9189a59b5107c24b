"""What math functions should give: references in the next wider type, arguments to try, the distance in ulp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
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


def _by_mpmath(name: str) -> Callable[[Array], Array]:
    """In long double, for what numpy has no function of that."""

    def value(x: float) -> Any:
        if x == 0 or not np.isfinite(x):
            return np.longdouble(getattr(scipy.special, name)(float(x)))
        with mpmath.workprec(90):
            exact = getattr(mpmath, name)(mpmath.mpf(float(x)))
            high = float(exact)
            return np.longdouble(high) + np.longdouble(float(exact - high))

    return lambda x: np.array([value(number) for number in x], np.longdouble)


OF_LONG_DOUBLE = REFERENCES | {"erf": _by_mpmath("erf")}
SLOW = {"erf"}  # some thousand arguments a second


def doubles(seed: int, each: int) -> Array:
    """float64 arguments: every exponent with random fractions, ranges where functions have their shape, neighbours of
    1 and of multiples of π/2, specials; of both signs. `each`: how many of an exponent."""
    random = np.random.default_rng(seed)
    exponents = np.repeat(np.arange(2047, dtype=np.uint64), each) << np.uint64(52)
    spread = (exponents | random.integers(0, 1 << 52, len(exponents), dtype=np.uint64)).view(np.float64)
    shaped = [random.uniform(0, top, 500 * each) for top in (1e-3, 1, 2, 6, 20, 40, 105, 800, 2**24, 2**30)]
    near_one = [1 + random.uniform(-width, width, 200 * each) for width in (1e-9, 1e-3)]
    angles = np.pi / 2 * random.integers(1, 10**7, 200 * each)
    special = np.array(
        [0.0, 1, 0.5, 2, 3, np.inf, np.nan, 5e-324, 1e-310, 2.0**-1022, 1.7976931348623157e308, 709.78, 709.79, 710.4,
         710.5, 745.1, 745.2, 0.625, 19.1, 2.0**24, 1e15, 2.0**52 + 0.5, 2.0**53, 1023.5, 1024, 1074.5, 1075, 1e300],
    )  # fmt: skip
    with np.errstate(over="ignore"):
        near = np.concatenate([np.nextafter(special, 0), np.nextafter(special, np.inf)])
    positive = np.concatenate([spread, *shaped, *near_one, angles, special, near])
    return np.concatenate([positive, -positive])


def double_pairs(seed: int, each: int) -> tuple[Array, Array]:
    """For functions of two float64: any with any, with whole numbers, specials with specials, and powers in range."""
    random = np.random.default_rng(seed)
    x = doubles(seed, each)
    whole = random.integers(-20, 21, len(x)).astype(np.float64)
    special = np.concatenate([x[-60:], [4.0, 5.0, -4.0, -5.0, 0.25, -1 / 3]])
    one, other = np.meshgrid(special, special)
    bases = np.concatenate([np.exp(random.uniform(-700, 700, 4000 * each)), random.uniform(0.5, 2, 8000 * each)])
    powers = random.uniform(-745, 710, len(bases)) / np.log(bases)
    left = np.concatenate([x, x, one.ravel(), bases])
    return left, np.concatenate([random.permutation(x), whole, other.ravel(), powers])


def ulps(got: Array, want: Array) -> Array:
    """Distance of results from references in a wider type; infinite for a wrong NaN, infinity or sign of zero."""
    with np.errstate(over="ignore"):
        rounded = want.astype(got.dtype)
    finite = np.where(np.isfinite(rounded), rounded, np.finfo(got.dtype).max)
    distance = np.abs(got.astype(want.dtype) - want) / np.spacing(np.abs(finite)).astype(want.dtype)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    distance = np.where(same & ~np.isfinite(distance), 0.0, distance)
    wrong = np.isnan(distance) | ((want == 0) & (got == 0) & (np.signbit(got) != np.signbit(want)))
    result: Array = np.where(wrong, np.inf, distance)
    return result
