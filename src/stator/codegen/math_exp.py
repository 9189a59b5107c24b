"""exp, log and what is made of them, in lanes.

Polynomials are minimax fits (Remez exchange in 50 digits, then the lowest coefficients rounded one by one and the
others fitted again): of (exp(r) - 1 - r) / r² for |r| <= ln(2) / 2, and of (log(1 + f) - f) / f² for 1 + f in [√½, √2).
"""

from __future__ import annotations

from stator.codegen.lanes import DOUBLE, FLOAT, Lanes

_LOG2_E = 1.4426950408889634
_LN2 = {  # the first part has trailing zeros: its product with an exponent is exact
    "float": (0.693145751953125, 1.428606765330187e-06),
    "double": (0.6931471803691238, 1.9082149292705877e-10),
}
_EXP = {
    "float": (0.5, 0.166666657, 0.0416664891, 0.00833356194, 0.00139326556, 0.000197474845),
    "double": (
        0.5, 0.16666666666666682, 0.04166666666666647, 0.008333333333317637, 0.0013888888889001508,
        0.000198412698951554, 2.4801587085766644e-05, 2.7557235909046625e-06, 2.7557477676080344e-07,
        2.5111717663248056e-08, 2.0852616367937526e-09,
    ),
}  # fmt: skip
_LOG = {
    "float": (
        -0.5, 0.333333135, -0.250000119, 0.200020686, -0.166678473, 0.142203823, -0.124085024, 0.118852198,
        -0.116580501, 0.0673205107,
    ),
    "double": (
        -0.5, 0.3333333333333335, -0.2500000000000036, 0.19999999999993198, -0.16666666666550012,
        0.14285714286675544, -0.1250000001436981, 0.1111111105168884, -0.0999999908154275, 0.09090910755749183,
        -0.08333367536356184, 0.07692298319545991, -0.07142083262166893, 0.06665999033816677,
        -0.06260513526499575, 0.059016258476475854, -0.05477580291974367, 0.05031736776574244,
        -0.05201427536796726, 0.06050375350364263, -0.053778466509723226, 0.022236190096565404,
    ),
}  # fmt: skip
TANH = {  # of (tanh(x) / x - 1) / x² in the square, up to 0.63
    "float": (-0.333333343, 0.133333102, -0.0539573357, 0.0217489768, -0.00827936549, 0.00222409517),
    "double": (
        -0.3333333333333333, 0.13333333333332986, -0.053968253968025584, 0.0218694885285454,
        -0.008863235379415607, 0.003592126111702205, -0.0014558176361167746, 0.000589925314574596,
        -0.00023868666420653425, 9.555132579012291e-05, -3.631991692800767e-05, 1.152245246582887e-05,
        -2.1646095708980097e-06,
    ),
}  # fmt: skip
POWER_OF_TWO = (1.0, 0.693147182, 0.240226477, 0.0555035956, 0.00961849932, 0.00133909693, 0.00015329264)  # of |r| <= ½
_LOG2_OF_FLOAT = (  # log2(1 + f) / f, to 2**-33
    1.4426950409582302, -0.7213475248945522, 0.4808983110824002, -0.360672845348936, 0.28854145553597715,
    -0.24050279825001172, 0.20607165109914127, -0.17905123203322462, 0.15931300522348446, -0.15722652971153048,
    0.15345286937454508, -0.0843352104580058,
)  # fmt: skip
_SINH = (  # of (sinh(x) / x - 1) / x² in the square, up to 1
    0.16666666666666666, 0.008333333333333333, 0.00019841269841269773, 2.755731922404034e-06,
    2.505210836405804e-08, 1.6059048396350562e-10, 7.646625361656657e-13, 2.8445264169895285e-15,
)  # fmt: skip
_LOG2_OF_DOUBLE = (  # ((atanh(s) / s - 1) / s² - 1/3) / s² 2 / ln(2) in s²
    0.5770780163555853, 0.4121985831111323, 0.3205988979754148, 0.26230818922133936, 0.22195308864900556,
    0.19235880767077787, 0.1697592388192915, 0.15085270320148653, 0.155270882398176,
)  # fmt: skip
_EXP_RANGE = {"float": (-104.0, 89.0), "double": (-746.0, 710.0)}  # beyond: 0 and infinity
# Twice the exponent that `power_of_two` gives as 0. Smaller ones are taken for it: a product with 0 is fast, one that
# loses its last bits takes a hundred times as long, and masked attention scores are rows of them.
_VANISHED = {"float": -254.0, "double": -2046.0}
_SQRT_HALF_BITS = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCD}
_SMALLEST_NORMAL = {"float": 2.0**-126, "double": 2.0**-1022}


# ------------------------------------------------------------------------------------------------------------- exp


def reduced(v: Lanes, x: str) -> tuple[str, str]:
    """exp(r) - 1 and n, in the low bits of an integer, with x = n ln(2) + r."""
    n, bits = v.nearest(x, _LOG2_E)
    high, low = _LN2[v.element]
    r = v.fma(n, v.const(-low), v.fma(n, v.const(-high), x))
    return v.fma(v.mul(r, r), v.polynomial(r, _EXP[v.element]), r), bits


def _scaled(v: Lanes, value: str, bits: str) -> str:
    """A value near 1 times 2 to n; in two steps, of which the second may round to a denormal or overflow."""
    # the number 1.5 * 2**fraction, that is added to n in its bits, is shifted out below, and so is half of it
    half = v.int_op("ashr", bits, v.int_const(1))
    return v.mul(v.mul(value, v.power_of_two(half)), v.power_of_two(v.int_op("sub", bits, half)))


def _scale(v: Lanes, bits: str) -> str:
    """2 to n, where that is normal."""
    one = 127 << 23 if v.element == FLOAT else 1023 << 52
    return v.from_bits(v.int_op("add", v.int_op("shl", bits, v.int_const(v.fraction)), v.int_const(one)))


def exp(v: Lanes, x: str) -> str:
    high = _EXP_RANGE[v.element][1]
    p, bits = reduced(v, v.at_most(high, v.at_least(_VANISHED[v.element] * 0.693, x)))
    return _scaled(v, v.add(p, v.one), bits)


def exp2(v: Lanes, x: str) -> str:
    high = 129.0 if v.element == FLOAT else 1025.0
    x = v.at_most(high, v.at_least(_VANISHED[v.element], x))
    return _power_of_two(v, x, None)


def _power_of_two(v: Lanes, x: str, low: str | None) -> str:
    """2 to x, or to x + low, where that is in the range."""
    n, bits = v.nearest(x, 1.0)
    rest = whole = v.sub(x, n)  # exact
    if low is not None:
        rest = v.add(whole, low)
        low = v.add(v.sub(whole, rest), low)
    r = v.mul(rest, v.const(0.6931471805599453))
    # what the constant and the product lost
    lost = v.fma(rest, v.const(0.6931471805599453), v.neg(r))
    lost = v.fma(rest, v.pick(-1.904654299957767e-09, 2.3190468138462996e-17), lost)
    if low is not None:
        lost = v.fma(low, v.const(0.6931471805599453), lost)
    p = v.fma(v.mul(r, r), v.polynomial(r, _EXP[v.element]), v.add(r, lost))
    return _scaled(v, v.add(p, v.one), bits)


def expm1(v: Lanes, x: str) -> str:
    low, high = (-18.0, 88.8) if v.element == FLOAT else (-38.0, 709.8)
    p, bits = reduced(v, v.at_most(high, v.at_least(low, x)))
    # half of it, doubled at the end: 2 to the highest n is no finite number
    half = _scale(v, v.int_op("sub", bits, v.int_const(1)))
    value = v.fma(half, p, v.sub(half, v.const(0.5)))
    return v.copysign(v.add(value, value), x)


def tanh(v: Lanes, x: str) -> str:
    """Near 0 a polynomial, beyond 1 - 2 / (exp(2 |x|) + 1), whose errors do not count there."""
    a = v.abs(x)
    square = v.mul(x, x)
    near = v.fma(v.mul(v.polynomial(square, TANH[v.element]), square), x, x)
    bounded = v.at_most(9.1 if v.element == FLOAT else 19.1, a)
    p, bits = reduced(v, v.add(bounded, bounded))
    scale = _scale(v, bits)
    e = v.fma(scale, p, scale)
    far = v.sub(v.one, v.div(v.const(2.0), v.add(e, v.one)))
    return v.copysign(v.select(v.compare("olt", a, v.const(0.625)), near, far), x)


def sigmoid(v: Lanes, x: str) -> str:
    """1 / (1 + exp(-x)), with one rounding in the sum: 2**n p + (2**n + 1), where p = exp(r) - 1.

    Where 2**n + 1 would be rounded, 1 is added to the smaller 2**n p instead.

    The sum is scaled down by a power of two, exactly, so that it is finite where the result is a denormal."""
    shift = 24 if v.element == FLOAT else 64
    y = v.at_least(-25.0, v.neg(x)) if v.element == FLOAT else v.at_least(-40.0, v.neg(x))
    p, bits = reduced(v, v.at_most(-_EXP_RANGE[v.element][0], y))
    scale = _scale(v, v.int_op("sub", bits, v.int_const(shift)))
    down = v.const(2.0**-shift)
    steep = v.compare("ogt", scale, v.const(2.0 ** (v.fraction - shift)))
    total = v.fma(scale, p, v.select(steep, down, v.add(scale, down)))
    total = v.add(total, v.select(steep, scale, v.zero))
    return v.mul(v.div(v.one, total), down)


def _quarter(v: Lanes, a: str) -> tuple[str, str, str]:
    """A quarter of exp(a), as 2**(n - 2) (1 + p): that factor, p and the whole. Finite a little beyond where
    exp(a) is."""
    p, bits = reduced(v, a)
    scale = _scale(v, v.int_op("sub", bits, v.int_const(2)))
    return scale, p, v.fma(scale, p, scale)


def sinh(v: Lanes, x: str) -> str:
    """(t + t / (t + 1)) / 2 with t = exp(|x|) - 1, in quarters; in double for float: one rounding."""
    w, wide = v.widened(x)
    scale, p, _ = _quarter(w, w.at_most(710.6, w.abs(wide)))
    t = w.fma(scale, p, w.sub(scale, w.const(0.25)))
    half = w.add(t, w.div(t, w.fma(t, w.const(4.0), w.one)))
    value = w.copysign(w.add(half, half), wide)
    if v.element == DOUBLE:  # near 0 that is too many roundings
        square = v.mul(x, x)
        near = v.fma(v.mul(v.polynomial(square, _SINH), square), x, x)
        value = v.select(v.compare("olt", v.abs(x), v.one), near, value)
    return v.narrowed(w, value)


def cosh(v: Lanes, x: str) -> str:
    """(e + 1 / e) / 2 with e = exp(|x|), in quarters; in double for float, as for sinh."""
    w, wide = v.widened(x)
    e = _quarter(w, w.at_most(710.6, w.abs(wide)))[2]
    half = w.add(e, w.div(w.const(0.0625), e))
    return v.narrowed(w, w.add(half, half))


# ------------------------------------------------------------------------------------------------------------- log


def _split(v: Lanes, x: str) -> tuple[str, str]:
    """Integer n and m in [√½, √2) with x = 2**n m, of a positive normal number."""
    one = v.bias << v.fraction
    offset = one - _SQRT_HALF_BITS[v.element]
    shifted = v.int_op("add", v.to_bits(x), v.int_const(offset))
    n = v.int_op("sub", v.int_op("lshr", shifted, v.int_const(v.fraction)), v.int_const(v.bias))
    fraction = v.int_op("and", shifted, v.int_const((1 << v.fraction) - 1))
    return n, v.from_bits(v.int_op("add", fraction, v.int_const(_SQRT_HALF_BITS[v.element])))


def _normal(v: Lanes, x: str) -> tuple[str, str]:
    """The number, or 2**fraction times it where it is denormal; and what its exponent has too much."""
    tiny = v.compare("olt", x, v.const(_SMALLEST_NORMAL[v.element]))
    scaled = v.mul(x, v.const(2.0**v.fraction))
    return v.select(tiny, scaled, x), v.select(tiny, v.const(float(v.fraction)), v.zero)


def _to_float(v: Lanes, n: str) -> str:
    return v.emitter.emit(f"sitofp {v.int_type} {n} to {v.type}")


def _log_parts(v: Lanes, x: str) -> tuple[str, str, str]:
    """n as a float, f, and log(1 + f) - f, with x = 2**n (1 + f)."""
    x, excess = _normal(v, x)
    n, m = _split(v, x)
    f = v.sub(m, v.one)
    return v.sub(_to_float(v, n), excess), f, v.mul(v.mul(f, f), v.polynomial(f, _LOG[v.element]))


def _log_special(v: Lanes, x: str, value: str) -> str:
    value = v.select(v.compare("oeq", x, v.inf), v.inf, value)
    value = v.select(v.compare("oeq", x, v.zero), v.const(float("-inf")), value)
    return v.select(v.compare("ult", x, v.zero), v.nan, value)  # also NaN


def log(v: Lanes, x: str) -> str:
    n, f, rest = _log_parts(v, x)
    high, low = _LN2[v.element]
    value = v.fma(n, v.const(high), v.add(f, v.fma(n, v.const(low), rest)))
    return _log_special(v, x, value)


def _log_in_base(v: Lanes, x: str, inverse: tuple[float, float], of_two: tuple[float, float]) -> str:
    """log(x) / log(base): 1 / log(base) and log(2) / log(base) come in two parts."""
    n, f, rest = _log_parts(v, x)
    low = v.fma(f, v.const(inverse[1]), v.mul(rest, v.const(inverse[0])))
    value = v.fma(f, v.const(inverse[0]), v.fma(n, v.const(of_two[1]), low))
    return _log_special(v, x, v.fma(n, v.const(of_two[0]), value))


def log2(v: Lanes, x: str) -> str:
    inverse = (1.44269502, 1.925963033500117e-08) if v.element == FLOAT else (_LOG2_E, 2.0355273740931033e-17)
    return _log_in_base(v, x, inverse, (1.0, 0.0))


def log10(v: Lanes, x: str) -> str:
    if v.element == FLOAT:
        return _log_in_base(v, x, (0.434294492, -1.010305e-08), (0.301025391, 4.6050390e-06))
    return _log_in_base(v, x, (0.4342944819032518, 1.098319650216765e-17), (0.3010299956640665, -8.5323443170571e-14))


def log1p(v: Lanes, x: str) -> str:
    """The log of u = 1 + x, with what that sum lost added to f."""
    u = v.add(v.one, x)
    large = v.compare("ogt", x, v.one)
    lost = v.select(large, v.sub(v.one, v.sub(u, x)), v.sub(x, v.sub(u, v.one)))
    n, m = _split(v, u)
    # what a large sum lost does not count, and the inverse of the largest power is no normal number
    inverse = v.power_of_two(v.int_op("sub", v.int_const(0), n))
    inverse = v.select(v.compare("ogt", x, v.const(2.0**64)), v.zero, inverse)
    f = v.fma(lost, inverse, v.sub(m, v.one))
    high, low = _LN2[v.element]
    exponent = _to_float(v, n)
    rest = v.fma(v.mul(f, f), v.polynomial(f, _LOG[v.element]), v.mul(exponent, v.const(low)))
    value = v.fma(exponent, v.const(high), v.add(f, rest))
    value = v.select(v.compare("oeq", x, v.zero), x, _log_special(v, u, value))
    return v.select(v.compare("oeq", x, v.inf), v.inf, value)


def asinh(v: Lanes, x: str) -> str:
    """log1p(a + a² / (1 + √(a² + 1))), in double, where no square of a float overflows."""
    w, wide = v.widened(x)
    a = w.abs(wide)
    square = w.mul(a, a)
    root = w.sqrt(w.add(square, w.one))
    value = _log1p_or_log_of_twice(v, w, a, w.add(a, w.div(square, w.add(w.one, root))))
    value = w.select(w.compare("oeq", a, w.inf), a, value)
    return v.narrowed(w, w.copysign(value, wide))


def _log1p_or_log_of_twice(v: Lanes, w: Lanes, x: str, near: str) -> str:
    """log(1 + near), but log(2 x) where x is so large that its square may overflow: no float is."""
    if v.element == FLOAT:
        return log1p(w, near)
    large = w.compare("ogt", x, w.const(2.0**60))
    value = log1p(w, w.select(large, x, near))
    return w.add(value, w.select(large, w.const(0.6931471805599453), w.zero))


def acosh(v: Lanes, x: str) -> str:
    w, wide = v.widened(x)
    t = w.sub(wide, w.one)
    value = _log1p_or_log_of_twice(v, w, wide, w.add(t, w.sqrt(w.mul(t, w.add(t, w.const(2.0))))))
    return v.narrowed(w, w.select(w.compare("olt", wide, w.one), w.nan, value))


def atanh(v: Lanes, x: str) -> str:
    w, wide = v.widened(x)
    a = w.abs(wide)
    value = log1p(w, w.div(w.add(a, a), w.sub(w.one, a)))
    return v.narrowed(w, w.copysign(w.mul(value, w.const(0.5)), wide))


# ------------------------------------------------------------------------------------------------------------- pow


def narrow_power(v: Lanes, w: Lanes, exponent: str) -> str:
    """2 to an exponent in double, as a float."""
    whole, bits = w.nearest(exponent, 1.0)
    rest = v.narrowed(w, w.sub(exponent, whole))
    bits = v.emitter.emit(f"trunc {w.int_type} {bits} to {v.int_type}")
    return _scaled(v, v.polynomial(rest, POWER_OF_TWO), bits)


def pow_(v: Lanes, x: str, y: str) -> str:
    """2**(y log2|x|), with the sign and the special values of C."""
    a = v.abs(x)
    value = (_pow_of_float if v.element == FLOAT else _pow_of_double)(v, a, y)
    whole = v.compare("oeq", v.rint(y), y)
    half = v.mul(y, v.const(0.5))
    odd = v.both(whole, v.compare("one", v.rint(half), half))
    value = v.select(odd, v.copysign(value, x), value)
    negative = v.both(v.compare("olt", x, v.zero), v.compare("one", a, v.inf))
    value = v.select(v.both(v.compare("one", v.rint(y), y), negative), v.nan, value)
    # 1 to any power, -1 to an infinite one, anything to the power 0
    infinite = v.both(v.compare("oeq", a, v.one), v.compare("oeq", v.abs(y), v.inf))
    certain = v.either(v.compare("oeq", x, v.one), v.compare("oeq", y, v.zero))
    return v.select(v.either(certain, infinite), v.one, value)


def _exponent(v: Lanes, a: str, n: str, excess: str) -> str:
    """The exponent of a number; of 0, infinity and NaN what leads to the power's special values."""
    high = v.sub(_to_float(v, n), excess)
    high = v.select(v.compare("oeq", a, v.zero), v.const(float("-inf")), high)
    return v.select(v.compare("olt", a, v.inf), high, a)


def _pow_of_float(v: Lanes, a: str, y: str) -> str:
    """The exponent is computed in double, to 2**-33 of itself: it is at most 150 before the result leaves the range;
    its fraction is enough in float."""
    normal, excess = _normal(v, a)
    n, m = _split(v, normal)
    w, f = v.widened(v.sub(m, v.one))
    high = v.widened(_exponent(v, a, n, excess))[1]
    product = w.mul(v.widened(y)[1], w.fma(f, w.polynomial(f, _LOG2_OF_FLOAT), high))
    return narrow_power(v, w, w.at_most(200.0, w.at_least(-200.0, product)))


def _pow_of_double(v: Lanes, a: str, y: str) -> str:
    """The logarithm and the exponent come in two parts each: together they have some 65 bits."""
    normal, excess = _normal(v, a)
    n, m = _split(v, normal)
    high, low = _log2_in_parts(v, m)
    whole = _exponent(v, a, n, excess)
    total = v.add(whole, high)
    low = v.add(v.add(v.sub(whole, total), high), low)
    y = v.at_most(2.0**65, v.at_least(-(2.0**65), y))  # beyond, every number but 1 leaves the range
    product = v.mul(y, total)
    rest = v.fma(y, low, v.fma(y, total, v.neg(product)))
    inside = v.compare("olt", v.abs(product), v.const(1100.0))
    rest = v.select(inside, rest, v.zero)  # of an infinite product it is no number
    return _power_of_two(v, v.at_most(1025.0, v.at_least(_VANISHED[DOUBLE], product)), rest)


def _log2_in_parts(v: Lanes, m: str) -> tuple[str, str]:
    """log2 of a number in [√½, √2): s (c₁ + s² (c₃ + s² q(s²))) with s = (m - 1) / (m + 1), all but q in two parts."""

    def fast(a: str, b: str) -> tuple[str, str]:
        """The sum of a larger and a smaller number, and what it lost."""
        total = v.add(a, b)
        return total, v.add(v.sub(a, total), b)

    def product(a: str, b: str) -> tuple[str, str]:
        high = v.mul(a, b)
        return high, v.fma(a, b, v.neg(high))

    f, d = v.sub(m, v.one), v.add(m, v.one)
    larger = v.compare("ogt", m, v.one)
    lost = v.select(larger, v.sub(v.one, v.sub(d, m)), v.sub(m, v.sub(d, v.one)))
    inverse = v.div(v.one, d)
    s = v.mul(f, inverse)
    s_low = v.mul(v.sub(v.fma(v.neg(s), d, f), v.mul(s, lost)), inverse)
    z, z_low = product(s, s)
    z_low = v.fma(v.add(s, s), s_low, z_low)
    u, u_low = fast(v.const(0.9617966939259756), v.mul(z, v.polynomial(z, _LOG2_OF_DOUBLE)))
    u_low = v.add(u_low, v.const(5.0577616648125907e-17))
    t, t_low = product(z, u)
    t_low = v.fma(z, u_low, v.fma(z_low, u, t_low))
    c, c_low = fast(v.const(2.8853900817779268), t)
    c_low = v.add(c_low, v.add(t_low, v.const(4.0710547481862066e-17)))
    high, low = product(s, c)
    return high, v.fma(s, c_low, v.fma(s_low, c, low))
