"""Rows for special functions: gamma, zeta, Bessel, orthogonal polynomials, by their series.

All of it is computed in float64 with the arithmetic that every target has, for results in float32 or narrower; results
in float64 are left to ATen. Where a series would need more terms than are written out, a check fails and eager runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch

from .builder import V
from .pointwise import row
from .views import NoMap

F32, F64 = torch.float32, torch.float64
EULER = 0.57721566490153286061


def _wide(x: V) -> V:
    if x.dtype is not F32:
        raise NoMap("a special function in float64")
    return x.to(F64)


def _narrow(x: V) -> V:
    return x.to(F32)


def _constant(x: V, number: float) -> V:
    return x.b.const(number, x.dtype)


def _polynomial(t: V, coefficients: Sequence[float]) -> V:
    """Coefficients from the constant one on."""
    result = _constant(t, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result * t + c
    return result


def _exp(y: V) -> V:
    """Beyond 170 as of 170."""
    return y.max(-170.0).min(170.0).exp()


def _log(x: V) -> V:
    return x.log()


def _sin_pi(r: V) -> V:
    """sin(pi r) for |r| up to 1/2."""
    terms = [(-1) ** n * math.pi ** (2 * n + 1) / math.factorial(2 * n + 1) for n in range(13)]
    return r * _polynomial(r * r, terms)


def _cos_pi(r: V) -> V:
    return _polynomial(r * r, [(-1) ** n * math.pi ** (2 * n) / math.factorial(2 * n) for n in range(14)])


def _bernoulli(count: int) -> list[Fraction]:
    """B0, B1, …"""
    found = [Fraction(1)]
    for n in range(1, count):
        found.append(-sum((math.comb(n + 1, k) * found[k] for k in range(n)), Fraction(0)) / (n + 1))
    return found


_B = _bernoulli(24)
_SHIFT = 10  # asymptotic series begin behind it


# ---------------------------------------------------------------------------------------------- gamma and its kin


def _lgamma_positive(x: V) -> V:
    factor = x
    for k in range(1, _SHIFT):
        factor = factor * (x + float(k))
    far = x > 1e3
    z = x.b.where(far, x, x + float(_SHIFT))
    inverse = 1.0 / z
    series = inverse * _polynomial(inverse * inverse, [float(_B[2 * n] / (2 * n * (2 * n - 1))) for n in range(1, 9)])
    stirling = (z - 0.5) * _log(z) - z + 0.5 * math.log(2 * math.pi) + series
    shift = x.b.where(far, _constant(x, 0.0), _log(x.b.where(far, _constant(x, 1.0), factor)))
    return stirling - shift


def _lgamma(x: V) -> V:
    wide = _wide(x)
    negative = wide < 0.5
    positive = wide.b.where(negative, 1.0 - wide, wide)
    plain = _lgamma_positive(positive)
    rest = wide - wide.round()
    mirrored = math.log(math.pi) - _log(_sin_pi(rest).abs()) - plain
    result = wide.b.where(negative, mirrored, plain)
    pole = (wide <= 0.0) & rest.eq(0.0)
    infinite = pole | wide.abs().eq(math.inf)
    result = wide.b.where(wide.eq(1.0) | wide.eq(2.0), _constant(wide, 0.0), result)
    return _narrow(wide.b.where(infinite, _constant(wide, math.inf), result))


def _digamma(x: V) -> V:
    wide = _wide(x)
    negative = wide < 0.0
    y = wide.b.where(negative, 1.0 - wide, wide)
    total = 1.0 / y
    for k in range(1, _SHIFT):
        total = total + 1.0 / (y + float(k))
    z = y + float(_SHIFT)
    inverse = 1.0 / z
    series = inverse * inverse * _polynomial(inverse * inverse, [float(_B[2 * n] / (2 * n)) for n in range(1, 9)])
    plain = _log(z) - 0.5 * inverse - series - total
    rest = wide - wide.round()
    mirrored = plain - math.pi * _cos_pi(rest) / _sin_pi(rest)
    result = wide.b.where(negative, mirrored, plain)
    nan = (negative & rest.eq(0.0)) | wide.eq(-math.inf)
    result = wide.b.where(nan, _constant(wide, math.nan), result)
    result = wide.b.where(wide.eq(math.inf), wide, result)
    none = wide.eq(0.0)
    return _narrow(wide.b.where(none, _constant(wide, -math.inf).copysign(-wide), result))


_TERMS = 22  # that are added up before the series of Euler and Maclaurin
_LEAST = -11.5  # of arguments that they bring behind `_SHIFT`


def _tail(z: V, s: Any, power: V) -> V:
    """Sum of (z + k)^-s over all k from 0 on, for large z; `power`: z^-s."""
    inverse = 1.0 / z
    total = power * z / (s - 1.0) + power * 0.5
    factor = power * inverse * s
    for n in range(1, 9):
        total = total + factor * float(_B[2 * n] / math.factorial(2 * n))
        factor = factor * (s + float(2 * n - 1)) * (s + float(2 * n)) * (inverse * inverse)
    return total


def _whole_power(x: V, n: int) -> V:
    result = x
    for _ in range(n - 1):
        result = result * x
    return result


def _polygamma(n: Any, x: V) -> V:
    if n == 0:
        return _digamma(x)
    if not isinstance(n, int) or n > 20:
        raise NoMap("a high derivative of digamma")
    wide, s = _wide(x), n + 1
    far = wide > 40.0
    x.b.check((wide > _LEAST) | wide.ne(wide))
    start = wide.b.where(far, wide, wide + float(_TERMS))
    total = _tail(start, float(s), 1.0 / _whole_power(start, s))
    near = _constant(wide, 0.0)
    for k in range(_TERMS):
        near = near + 1.0 / _whole_power(wide + float(k), s)
    total = wide.b.where(far, total, total + near)
    result = total * (math.factorial(n) * (1.0 if n % 2 else -1.0))
    pole = (wide <= 0.0) & wide.eq(wide.round())
    result = wide.b.where(pole, _constant(wide, math.inf if n % 2 else -math.inf), result)
    return _narrow(wide.b.where(wide.eq(math.inf), _constant(wide, 0.0 if n % 2 else -0.0), result))


def _zeta(s: V, q: V) -> V:
    s, q = _wide(s), _wide(q)
    inside = (q > 0.0) & (s > 1.0) & (s < 60.0) & (q < 1e6)
    s.b.check(inside | (s <= 1.0) | s.ne(s) | q.ne(q))
    total = _constant(s, 0.0)
    for k in range(_SHIFT):
        total = total + _exp(-s * _log(q + float(k)))
    z = q + float(_SHIFT)
    total = total + _tail(z, s, _exp(-s * _log(z)))
    total = s.b.where(s.eq(1.0), _constant(s, math.inf), total)
    return _narrow(s.b.where((s < 1.0) | s.ne(s) | q.ne(q), _constant(s, math.nan), total))


row("lgamma", _lgamma)
row("digamma special_digamma", _digamma)
row("polygamma special_polygamma", _polygamma)
row("special_zeta", _zeta, overloads="default")


# ------------------------------------------------------------------------------------------------ error functions

_BEND = 4.2  # of erfc: up to there by the series of erf, from there on by the asymptotic one


def _erf_series(a: V) -> V:
    """erf(a) exp(a^2), for a up to `_BEND`."""
    factors = [2.0**k / math.prod(range(1, 2 * k + 2, 2)) for k in range(70)]
    return a * _polynomial(a * a, factors) * (2 / math.sqrt(math.pi))


def _erfc_tail(a: V) -> V:
    """erfc(a) exp(a^2), for a from `_BEND` on."""
    inverse = 1.0 / a
    half = inverse * inverse * 0.5
    factors = [(-1) ** k * math.prod(range(1, 2 * k, 2)) for k in range(17)]
    return inverse * _polynomial(half, [float(f) for f in factors]) * (1 / math.sqrt(math.pi))


def _erfc_wide(x: V) -> V:
    a = x.abs()
    near, far = a.min(_BEND), a.max(_BEND)
    small = 1.0 - _erf_series(near) * _exp(-near * near)
    large = x.b.where(far > 12.0, _constant(x, 0.0), _erfc_tail(far) * _exp(-far * far))
    positive = x.b.where(a < _BEND, small, large)
    return x.b.where(x < 0.0, 2.0 - positive, positive)


def _erfcx(x: V) -> V:
    wide = _wide(x)
    a = wide.abs()
    near, far = a.min(_BEND), a.max(_BEND)
    positive = wide.b.where(a < _BEND, _exp(near * near) - _erf_series(near), _erfc_tail(far))
    result = wide.b.where(wide < 0.0, 2.0 * _exp(a.min(13.0) * a.min(13.0)) - positive, positive)
    return _narrow(wide.b.where(wide.ne(wide), wide, result))


def _erfinv(x: V) -> V:
    """A guess by Winitzki's formula, made exact by three steps of Halley's method."""
    wide = _wide(x)
    a = wide.abs().min(1 - 2.0**-26)
    log = _log((1.0 - a) * (1.0 + a))
    middle = log * 0.5 + 2 / (math.pi * 0.147)
    y = ((middle * middle - log * (1 / 0.147)).sqrt() - middle).max(0.0).sqrt()
    for _ in range(3):
        step = ((1.0 - a) - _erfc_wide(y)) * _exp(y * y) * (math.sqrt(math.pi) / 2)  # erf(y) = 1 - erfc(y)
        y = y + step / (1.0 + y * step) * -1.0
    y = wide.b.where(a < 1e-6, a * (math.sqrt(math.pi) / 2), y)  # there the guess is nothing
    result = y.copysign(wide)
    result = wide.b.where(wide.abs().eq(1.0), _constant(wide, math.inf).copysign(wide), result)
    return _narrow(wide.b.where(wide.abs() <= 1.0, result, _constant(wide, math.nan)))


def _ndtri(p: V) -> V:
    """The quantile of the normal distribution: Halley's method on the smaller tail."""
    wide = _wide(p)
    tail = wide.min(1.0 - wide)
    safe = wide.b.where(tail > 0.0, tail, _constant(wide, 0.25))
    double = _log(safe) * -2.0
    y = (double - math.log(2 * math.pi) - _log(double)).max(0.0).sqrt()
    for _ in range(5):
        rest = _erfc_wide(y * math.sqrt(0.5)) * 0.5 - safe
        step = rest * _exp(y * y * 0.5) * math.sqrt(2 * math.pi)
        y = y + step / (1.0 - y * step * 0.5)
    result = wide.b.where(wide < 0.5, -y, y)
    result = wide.b.where(wide.eq(0.0), _constant(wide, -math.inf), result)
    result = wide.b.where(wide.eq(1.0), _constant(wide, math.inf), result)
    return _narrow(wide.b.where((wide >= 0.0) & (wide <= 1.0), result, _constant(wide, math.nan)))


row("special_ndtri", _ndtri)
row("special_erfcx", _erfcx)
row("erfinv special_erfinv", _erfinv)


# ---------------------------------------------------------------------------------------------- Bessel functions

_NEAR = 18.0  # up to there by power series, from there on by asymptotic ones
_COUNT = 45


def _harmonic(n: int) -> float:
    return float(sum((Fraction(1, k) for k in range(1, n + 1)), Fraction(0)))


def _series(order: int, sign: int, weight: Callable[[int], float] = lambda k: 1.0) -> list[float]:
    """Coefficients of (x/2)^(2k) in J (sign -1) or I (1), weighted; without the leading (x/2)^order."""
    return [sign**k * weight(k) / (math.factorial(k) * math.factorial(k + order)) for k in range(_COUNT)]


def _amplitudes(order: int, count: int) -> list[float]:
    """a_k: the coefficients of 1/x^k in the asymptotic series."""
    found = [1.0]
    for k in range(1, count):
        found.append(found[-1] * (4 * order * order - (2 * k - 1) ** 2) / (8 * k))
    return found


def _waves(a: V, order: int) -> tuple[V, V]:
    """J and Y of a large argument."""
    inverse = 1.0 / a
    terms = _amplitudes(order, 20)
    p = _polynomial(inverse * inverse, [(-1) ** k * terms[2 * k] for k in range(8)])
    q = inverse * _polynomial(inverse * inverse, [(-1) ** k * terms[2 * k + 1] for k in range(8)])
    sine, cosine = _narrow(a).sin().to(F64), _narrow(a).cos().to(F64)
    if order == 0:
        c, s = (cosine + sine) * math.sqrt(0.5), (sine - cosine) * math.sqrt(0.5)
    else:
        c, s = (sine - cosine) * math.sqrt(0.5), (sine + cosine) * -math.sqrt(0.5)
    amplitude = (_constant(a, 2 / math.pi) * inverse).sqrt()
    return amplitude * (p * c - q * s), amplitude * (p * s + q * c)


def _near_and_far(x: V) -> tuple[V, V, V, V]:
    wide = _wide(x)
    a = wide.abs()
    return wide, a, a.min(_NEAR), a.max(_NEAR)


def _leading(near: V, order: int) -> V:
    return _constant(near, 1.0) if order == 0 else near * 0.5


def _bessel_j(order: int) -> Callable[[V], V]:
    def formula(x: V) -> V:
        wide, a, near, far = _near_and_far(x)
        small = _leading(near, order) * _polynomial(near * near * 0.25, _series(order, -1))
        result = wide.b.where(a < _NEAR, small, _waves(far, order)[0])
        if order:
            result = wide.b.where(wide < 0.0, -result, result)
        return _narrow(wide.b.where(a < math.inf, result, _constant(a, math.nan)))

    return formula


def _bessel_y(order: int) -> Callable[[V], V]:
    def formula(x: V) -> V:
        wide, a, near, far = _near_and_far(x)
        t = near * near * 0.25
        j = _leading(near, order) * _polynomial(t, _series(order, -1))
        log = _log(near * 0.5)
        if order == 0:
            rest = _polynomial(t, _series(0, -1, _harmonic))
            small = (2 / math.pi) * ((log + EULER) * j - rest)
        else:
            rest = _polynomial(t, _series(1, -1, lambda k: _harmonic(k) + _harmonic(k + 1) - 2 * EULER))
            small = (2 / math.pi) * (log * j - 1.0 / near) - near * 0.5 * rest * (1 / math.pi)
        result = wide.b.where(a < _NEAR, small, _waves(far, order)[1])
        result = wide.b.where(wide.eq(0.0), _constant(wide, -math.inf), result)
        return _narrow(wide.b.where((wide < 0.0) | wide.ne(wide), _constant(wide, math.nan), result))

    return formula


def _bessel_i(order: int, scaled: bool) -> Callable[[V], V]:
    def formula(x: V) -> V:
        wide, a, near, far = _near_and_far(x)
        inverse = 1.0 / far
        small = _leading(near, order) * _polynomial(near * near * 0.25, _series(order, 1))
        large = _polynomial(inverse, [(-1) ** k * c for k, c in enumerate(_amplitudes(order, 12))])
        large = large * (inverse * (0.5 / math.pi)).sqrt()
        if scaled:
            small = small * _exp(-near)
        else:
            large = large * _exp(far)
            large = wide.b.where(far > 100.0, _constant(far, math.inf), large)
        result = wide.b.where(a < _NEAR, small, large)
        if order:
            result = wide.b.where(wide < 0.0, -result, result)
        if not scaled:  # infinity times nothing, in eager
            result = wide.b.where(a.eq(math.inf), _constant(a, math.nan), result)
        return _narrow(wide.b.where(wide.ne(wide), wide, result))

    return formula


_TURN = 9.0  # of K: the power series loses digits, the asymptotic one gains them


def _bessel_k(order: int, scaled: bool) -> Callable[[V], V]:
    def formula(x: V) -> V:
        wide = _wide(x)
        near, far = wide.min(_TURN), wide.max(_TURN)
        t = near * near * 0.25
        i = _leading(near, order) * _polynomial(t, _series(order, 1))
        log = _log(near * 0.5)
        if order == 0:
            small = _polynomial(t, _series(0, 1, _harmonic)) - (log + EULER) * i
        else:
            rest = _polynomial(t, _series(1, 1, lambda k: _harmonic(k) + _harmonic(k + 1) - 2 * EULER))
            small = 1.0 / near + log * i - near * 0.25 * rest
        inverse = 1.0 / far
        large = _polynomial(inverse, _amplitudes(order, 18)) * (inverse * (math.pi / 2)).sqrt()
        if scaled:
            small = small * _exp(near)
        else:
            large = wide.b.where(far > 150.0, _constant(far, 0.0), large * _exp(-far))
        result = wide.b.where(wide <= _TURN, small, large)
        result = wide.b.where(wide.eq(0.0), _constant(wide, math.inf), result)
        return _narrow(wide.b.where((wide < 0.0) | wide.ne(wide), _constant(wide, math.nan), result))

    return formula


def _spherical_j0(x: V) -> V:
    wide = _wide(x)
    near = wide.abs().min(0.5)
    small = _polynomial(near * near, [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)])
    result = wide.b.where(wide.abs() < 0.5, small, x.sin().to(F64) / wide)
    result = wide.b.where(wide.abs().eq(math.inf), _constant(wide, 0.0), result)
    return _narrow(wide.b.where(wide.ne(wide), wide, result))


for _order in (0, 1):
    row(f"special_bessel_j{_order}", _bessel_j(_order))
    row(f"special_bessel_y{_order}", _bessel_y(_order))
    row(f"special_modified_bessel_i{_order} special_i{_order}", _bessel_i(_order, False))
    row(f"special_i{_order}e", _bessel_i(_order, True))
    row(f"special_modified_bessel_k{_order}", _bessel_k(_order, False))
    row(f"special_scaled_modified_bessel_k{_order}", _bessel_k(_order, True))
row("i0", _bessel_i(0, False))
row("special_spherical_bessel_j0", _spherical_j0)


# ------------------------------------------------------------------------------------- orthogonal polynomials

_DEGREES = 24


def _orthogonal(first: Callable[[V], V], step: Callable[[V, V, V, int], V], shifted: bool = False) -> Callable[..., V]:
    """Of degree 0: 1; of degree 1: `first`; of degree k + 1 by `step` from those of degrees k and k - 1."""

    def formula(x: Any, n: Any) -> V:
        wide = _wide(x if isinstance(x, V) else n.b.const(x, F32))
        degree = (_wide(n) if isinstance(n, V) else _constant(wide, float(n))).trunc()
        wide.b.check(degree < float(_DEGREES))
        wide = wide + wide - 1.0 if shifted else wide
        before, now = _constant(wide, 1.0), first(wide)
        result = wide.b.where(degree.eq(0.0), before, wide.b.where(degree < 0.0, _constant(wide, 0.0), now))
        for k in range(1, _DEGREES - 1):
            before, now = now, step(wide, now, before, k)
            result = wide.b.where(degree > float(k), now, result)
        return _narrow(result)

    return formula


def _chebyshev(x: V, now: V, before: V, k: int) -> V:
    return (x + x) * now - before


_FIRST: dict[str, Callable[[V], V]] = {
    "t": lambda x: x,
    "u": lambda x: x + x,
    "v": lambda x: x + x - 1.0,
    "w": lambda x: x + x + 1.0,
}
_POLYNOMIALS: dict[str, Callable[..., V]] = {
    **{f"chebyshev_polynomial_{kind}": _orthogonal(first, _chebyshev) for kind, first in _FIRST.items()},
    **{f"shifted_chebyshev_polynomial_{kind}": _orthogonal(first, _chebyshev, True) for kind, first in _FIRST.items()},
    "hermite_polynomial_h": _orthogonal(lambda x: x + x, lambda x, q, p, k: (x + x) * q - p * float(2 * k)),
    "hermite_polynomial_he": _orthogonal(lambda x: x, lambda x, q, p, k: x * q - p * float(k)),
    "laguerre_polynomial_l": _orthogonal(
        lambda x: 1.0 - x, lambda x, q, p, k: ((2.0 * k + 1.0 - x) * q - p * float(k)) / float(k + 1)
    ),
    "legendre_polynomial_p": _orthogonal(
        lambda x: x, lambda x, q, p, k: ((x * (2.0 * k + 1.0)) * q - p * float(k)) / float(k + 1)
    ),
}
for _name, _formula in _POLYNOMIALS.items():
    row(f"special_{_name}", _formula, overloads="default n_scalar x_scalar")
