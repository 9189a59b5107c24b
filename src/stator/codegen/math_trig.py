"""Sine, cosine, tangent, their inverses, and the error function, in lanes.

Polynomials are minimax fits, made as those of `math_exp`: of (sin(r) / r - 1) / r² on [-π/2, π/2], of
(atan(t) / t - 1) / t² on [0, 1], of (asin(t) / t - 1) / t² on [0, ½], all in the square; of erf(x) / x - 1 in the
square near 0, and of log(erfc(x)) beyond.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stator.codegen.lanes import DOUBLE, FLOAT, Lanes
from stator.codegen.math_exp import POWER_OF_TWO, exp, narrow_power

_SIN = {
    "float": (-0.166666672, 0.00833335053, -0.000198430978, 2.76277387e-06, -2.55248889e-08),
    "double": (
        -0.16666666666666666, 0.008333333333333219, -0.00019841269841220808, 2.7557319213758368e-06,
        -2.5052107197922446e-08, 1.6058963081543994e-10, -7.643963081193055e-13, 2.7428372414207313e-15,
        -2.0050974409879106e-18,
    ),
}  # fmt: skip
_ATAN = {
    "float": (
        -0.333333343, 0.199994698, -0.142730609, 0.109946318, -0.0851930305, 0.0598313622, -0.0329568349,
        0.0118307099, -0.00199111085,
    ),
    "double": (
        -0.3333333333333333, 0.19999999999996657, -0.14285714285357765, 0.11111111095334353, -0.0909090870001203,
        0.07692301487004705, -0.06666598447707991, 0.058818065994258734, -0.05259855908667768,
        0.04746450244150376, -0.0429070028943297, 0.03830617666282375, -0.032955012364360034,
        0.026388027145449924, -0.01887276256221103, 0.011536883427998953, -0.005753447301913556,
        0.0022181170921637414, -0.0006145738271261034, 0.00010823245186420204, -9.061941242631689e-06,
    ),
}  # fmt: skip
_ASIN = {
    "float": (0.166666672, 0.0750016645, 0.0445719436, 0.0314037427, 0.0158142932, 0.0357485488),
    "double": (
        0.16666666666666666, 0.07499999999990825, 0.044642857158709845, 0.03038194336891777, 0.022372198424704882,
        0.01735188134303746, 0.01397785888053943, 0.0114213686342888, 0.010662655727002009, 0.00412419925133815,
        0.020745999815541604, -0.019706105898055954, 0.03185714709667723,
    ),
}  # fmt: skip
_TAN = (  # of (tan(r) / r - 1) / r² in r², up to π/4
    0.3333333333333333, 0.13333333333333, 0.05396825396865669, 0.021869488517019683, 0.0088632360047476,
    0.0035921209631917536, 0.001455902893419782, 0.0005895746779049437, 0.00024123023201540384,
    8.99738173317227e-05, 5.5611243893475796e-05, -1.1046558640843717e-05, 3.654645976053761e-05,
    -1.833169905712586e-05, 8.487285594671859e-06,
)  # fmt: skip
_ERF_NEAR = {
    "float": (0.128379151, -0.376124442, 0.112799317, -0.0265956577, 0.00443598488),  # up to 0.6
    "double": (
        0.1283791670955126, -0.3761263890318407, 0.11283791670969191, -0.026866170647625323, 0.005223977648550782,
        -0.0008548328294512914, 0.00012055377437589401, -1.4926674482272726e-05, 1.6477816841983264e-06,
        -1.652374517166392e-07, 1.5795966536616442e-08, -1.5654639446140985e-09, 1.3024821820492966e-10,
    ),
}  # fmt: skip
_ERF_FAR = {
    "float": (  # to the base 2
        4.3621967e-05, -1.62834907, -0.916609704, -0.152447283, 0.0333639756, -0.00473875739, 0.000320537802,
    ),
    "double": (
        -2.2957932213254723e-08, -1.1283789649856897, -0.6366204998653886, -0.102771508438083,
        0.019129471501379083, 0.00020012969766972384, -0.0016724204217402944, 0.0005500221775052858,
        2.3720727998849036e-05, -0.00011179184685073032, 6.523999801418294e-05, -2.4463775645350008e-05,
        6.8406539243492975e-06, -1.4835622745183878e-06, 2.5080600629854875e-07, -3.2588417410292745e-08,
        3.151168630429738e-09, -2.137943240685567e-10, 9.08311454230044e-12, -1.817919795421772e-13,
    ),
}  # fmt: skip
_ERFC = (  # of log2(erfc(u + 5)) up to 10.1, where erfc vanishes
    -39.242588455615625, -14.704957812466528, -1.4168230870834293, -0.0031056447039915693, 0.00040606270398965477,
    -5.481810986107157e-05, 7.466390877447107e-06, -1.020066544001028e-06, 1.354611183527232e-07,
    -1.5607836548592754e-08, 1.9843458868779604e-09, -4.875773801871312e-10, 5.839463456572409e-11,
    1.3265634040309926e-11, -2.136763339019162e-12, -6.751081649147251e-13, 1.0578999614136154e-13,
    1.534561631720769e-14, -2.855617969938819e-15, -6.112521403217506e-17, 1.892326466044836e-17,
)  # fmt: skip
_PI = {
    "float": (3.14159274101257324, -8.74227765734758577e-08, -3.43025716e-15),
    "double": (3.141592653589793, 1.2246467991473532e-16, -2.9947698097183397e-33),
}
# Up to here n is right and every product with the first part of π exact; beyond, lanes call libm one by one.
_LARGE = {"float": 131072.0, "double": 2.0**24}


def libm_per_lane(v: Lanes, name: str, mask: str, x: str, value: str) -> str:
    """`value`, but libm's result in lanes that the mask names: the slow path for large arguments.

    A target without libm sets `slow_path` on its emitter to a function like this one."""
    symbol = f"{name}f" if v.element == FLOAT else name
    helper = f"@stator.large.{name}.{v.suffix}"
    v.emitter.declare(f"declare {v.element} @{symbol}({v.element})")
    declare_slow_path(v, symbol, helper)
    operands = f"{v.mask_type} {mask}, {v.type} {x}, {v.type} {value}"
    return v.emitter.emit(f"call {v.type} {helper}({operands})")


def declare_slow_path(v: Lanes, symbol: str, helper: str) -> None:
    """A function of the module: test whether any lane needs it, inlined; the loop over lanes stays out of line."""
    head = f"{v.mask_type} %mask, {v.type} %x, {v.type} %value"
    if v.width == 1:
        v.emitter.declare(
            f"define internal {v.type} {helper}({head}) alwaysinline nounwind {{\n"
            f"  br i1 %mask, label %large, label %done\nlarge:\n"
            f"  %exact = call {v.element} @{symbol}({v.element} %x)\n  br label %done\n"
            f"done:\n  %r = phi {v.type} [%value, %0], [%exact, %large]\n  ret {v.type} %r\n}}"
        )
        return
    reduce = f"@llvm.vector.reduce.or.v{v.width}i1"
    v.emitter.declare(f"declare i1 {reduce}({v.mask_type})")
    call = f"{v.mask_type} %mask, {v.type} %x, {v.type} %value"
    lanes = [
        "  br label %lane",
        "lane:",
        "  %n = phi i32 [0, %0], [%next, %after]",
        f"  %kept = phi {v.type} [%value, %0], [%merged, %after]",
        f"  %needs = extractelement {v.mask_type} %mask, i32 %n",
        "  br i1 %needs, label %large, label %after",
        "large:",
        f"  %argument = extractelement {v.type} %x, i32 %n",
        f"  %exact = call {v.element} @{symbol}({v.element} %argument)",
        f"  %put = insertelement {v.type} %kept, {v.element} %exact, i32 %n",
        "  br label %after",
        "after:",
        f"  %merged = phi {v.type} [%kept, %lane], [%put, %large]",
        "  %next = add i32 %n, 1",
        f"  %more = icmp ult i32 %next, {v.width}",
        "  br i1 %more, label %lane, label %end",
        f"end:\n  ret {v.type} %merged\n}}",
    ]
    out_of_line = f'{helper}.lanes({head}) noinline nounwind "min-legal-vector-width"="512"'
    v.emitter.declare(f"define internal {v.type} {out_of_line} {{\n" + "\n".join(lanes))
    v.emitter.declare(
        f"define internal {v.type} {helper}({head}) alwaysinline nounwind {{\n"
        f"  %any = call i1 {reduce}({v.mask_type} %mask)\n  br i1 %any, label %large, label %done\n"
        f"large:\n  %exact = call {v.type} {helper}.lanes({call})\n  br label %done\n"
        f"done:\n  %r = phi {v.type} [%value, %0], [%exact, %large]\n  ret {v.type} %r\n}}"
    )


def _with_slow_path(v: Lanes, name: str, x: str, value: str) -> str:
    mask = v.compare("ogt", v.abs(x), v.const(_LARGE[v.element]))
    slow: Callable[[Lanes, str, str, str, str], str] = getattr(v.emitter, "slow_path", libm_per_lane)
    return slow(v, name, mask, x, value)


def _sine(v: Lanes, r: str) -> str:
    square = v.mul(r, r)
    return v.fma(v.mul(v.polynomial(square, _SIN[v.element]), square), r, r)


def _minus_multiple(v: Lanes, x: str, n: str, unit: float) -> str:
    """x - n unit π, in three parts."""
    for part in _PI[v.element]:
        x = v.fma(n, v.const(-unit * part), x)
    return x


def _negated_if_odd(v: Lanes, value: str, bits: str) -> str:
    sign = v.int_op("shl", bits, v.int_const(v.bits - 1))
    return v.from_bits(v.int_op("xor", v.to_bits(value), sign))


def _sin_fast(v: Lanes, x: str) -> str:
    n, bits = v.nearest(x, 1 / math.pi)
    r = _minus_multiple(v, x, n, 1.0)
    return _negated_if_odd(v, _sine(v, r), bits)


def _cos_fast(v: Lanes, x: str) -> str:
    """cos(x) = sin(x + π/2); in multiples of π/2 the odd ones are taken off."""
    half = v.const(-0.5)
    magic = v.const(1.5 * 2.0**v.fraction)
    shifted = v.add(v.fma(x, v.const(1 / math.pi), half), magic)
    n = v.sub(shifted, magic)
    r = _minus_multiple(v, x, v.fma(n, v.const(2.0), v.one), 0.5)
    odd = v.int_op("add", v.to_bits(shifted), v.int_const(1))
    return _negated_if_odd(v, _sine(v, r), odd)


def _known_angle(v: Lanes, x: str) -> str:
    """The argument, or 0 where the slow path will decide: infinity becomes NaN there."""
    return v.select(v.compare("ogt", v.abs(x), v.const(_LARGE[v.element])), v.zero, x)


def sin(v: Lanes, x: str) -> str:
    return _with_slow_path(v, "sin", x, v.copysign_zero(x, _sin_fast(v, _known_angle(v, x))))


def cos(v: Lanes, x: str) -> str:
    return _with_slow_path(v, "cos", x, _cos_fast(v, _known_angle(v, x)))


def tan(v: Lanes, x: str) -> str:
    """sin(x) / cos(x) in double for float: each alone is off by an ulp of its own type."""
    angle = _known_angle(v, x)
    if v.element == DOUBLE:
        return _with_slow_path(v, "tan", x, v.copysign_zero(x, _tan_of_double(v, angle)))
    w, wide = v.widened(angle)
    value = v.narrowed(w, w.div(w.copysign_zero(wide, _sin_fast(w, wide)), _cos_fast(w, wide)))
    return _with_slow_path(v, "tan", x, value)


def _tan_of_double(v: Lanes, x: str) -> str:
    """Of r = x - n π/2, in two parts, as r + w, for odd n the inverse of that, with what it lost."""
    n, bits = v.nearest(x, 2 / math.pi)
    first, second, third = (v.const(-0.5 * part) for part in _PI[DOUBLE])
    exact = v.fma(n, first, x)
    less = v.mul(n, second)
    r = v.add(exact, less)
    back = v.sub(r, exact)
    low = v.add(v.sub(exact, v.sub(r, back)), v.sub(less, back))  # what the sum lost
    low = v.fma(n, third, v.add(low, v.fma(n, second, v.neg(less))))
    square = v.mul(r, r)
    tail = v.fma(v.mul(v.polynomial(square, _TAN), square), r, v.fma(low, square, low))
    near = v.add(r, tail)
    lost = v.sub(tail, v.sub(near, r))
    inverse = v.div(v.const(-1.0), near)
    error = v.fma(lost, inverse, v.fma(near, inverse, v.one))
    far = v.fma(inverse, error, inverse)
    odd = v.emitter.emit(f"trunc {v.int_type} {bits} to {v.mask_type}")
    return v.select(odd, far, near)


# -------------------------------------------------------------------------------------------------------- inverses


def _odd(v: Lanes, t: str, coefficients: dict[str, tuple[float, ...]]) -> str:
    square = v.mul(t, t)
    return v.fma(v.mul(v.polynomial(square, coefficients[v.element]), square), t, t)


def _two_parts(v: Lanes, value: float) -> tuple[str, str]:
    if v.element == DOUBLE:
        return v.const(value), v.const(value * 3.8981718325193755e-17)  # parts of π have this ratio
    return v.const(value), v.const(value * -2.7827534851429286e-08)


def atan(v: Lanes, x: str) -> str:
    a = v.abs(x)
    large = v.compare("ogt", a, v.one)
    t = v.select(large, v.div(v.one, a), a)
    value = _odd(v, t, _ATAN)
    high, low = _two_parts(v, math.pi / 2)
    value = v.select(large, v.add(v.sub(high, value), low), value)
    return v.copysign(value, x)


def atan2(v: Lanes, y: str, x: str) -> str:
    """In double for float: the quotient of two floats does not overflow there and has no error that counts."""
    w, wide_y = v.widened(y)
    _, wide_x = v.widened(x)
    up, along = w.abs(wide_y), w.abs(wide_x)
    steep = w.compare("ogt", up, along)
    numerator, denominator = w.select(steep, along, up), w.select(steep, up, along)
    ratio = w.div(numerator, denominator)
    ratio = w.select(w.compare("oeq", denominator, w.zero), w.zero, ratio)
    both_infinite = w.both(w.compare("oeq", up, w.inf), w.compare("oeq", along, w.inf))
    ratio = w.select(both_infinite, w.one, ratio)
    angle = _odd(w, ratio, _ATAN)
    angle = w.select(steep, w.sub(w.const(math.pi / 2), angle), angle)
    # the sign bit of x, also of -0
    left = w.compare("olt", w.copysign(w.one, wide_x), w.zero)
    angle = w.select(left, w.sub(w.const(math.pi), angle), angle)
    angle = w.select(w.compare("uno", wide_x, wide_y), w.nan, angle)
    return v.narrowed(w, w.copysign(angle, wide_y))


def asin(v: Lanes, x: str) -> str:
    """From its series up to ½, beyond as π/2 - 2 asin(√((1 - |x|) / 2))."""
    a = v.abs(x)
    large = v.compare("ogt", a, v.const(0.5))
    t = v.select(large, v.sqrt(v.fma(a, v.const(-0.5), v.const(0.5))), a)
    value = _odd(v, t, _ASIN)
    high, low = _two_parts(v, math.pi / 2)
    far = v.add(v.fma(value, v.const(-2.0), high), low)
    return v.copysign(v.select(large, far, value), x)


def acos(v: Lanes, x: str) -> str:
    a = v.abs(x)
    large = v.compare("ogt", a, v.const(0.5))
    t = v.select(large, v.sqrt(v.fma(a, v.const(-0.5), v.const(0.5))), x)
    value = _odd(v, t, _ASIN)
    high, low = _two_parts(v, math.pi / 2)
    near = v.add(v.sub(high, value), low)
    twice = v.add(value, value)
    whole, rest = _two_parts(v, math.pi)
    far = v.select(v.compare("olt", x, v.zero), v.add(v.sub(whole, twice), rest), twice)
    return v.select(large, far, near)


# --------------------------------------------------------------------------------------------------- error function


def erf(v: Lanes, x: str) -> str:
    """x + x p(x²) near 0; beyond, 1 - 2**g(|x|), where an error of the power hardly counts. A NaN takes the first."""
    a = v.abs(x)
    square = v.mul(x, x)
    if v.element == DOUBLE:
        near = v.fma(v.polynomial(square, _ERF_NEAR[DOUBLE]), x, x)
        far = v.sub(v.one, exp(v, v.polynomial(v.at_most(6.0, a), _ERF_FAR[DOUBLE])))
        return v.copysign(v.select(v.compare("ult", a, v.one), near, far), x)
    near = v.fma(v.polynomial(square, _ERF_NEAR[FLOAT]), x, x)
    power = v.polynomial(v.at_most(3.95, a), _ERF_FAR[FLOAT])
    n, bits = v.nearest(power, 1.0)
    fraction = v.polynomial(v.sub(power, n), POWER_OF_TWO)
    shifted = v.int_op("shl", bits, v.int_const(v.fraction))
    far = v.sub(v.one, v.from_bits(v.int_op("add", v.to_bits(fraction), shifted)))
    return v.copysign(v.select(v.compare("ult", a, v.const(0.6)), near, far), x)


def erfc(v: Lanes, x: str) -> str:
    """2 to the power of a polynomial in double, for floats; 2 minus that on the left."""
    w, a = v.widened(v.abs(x))
    value = narrow_power(v, w, w.polynomial(w.sub(w.at_most(10.1, a), w.const(5.0)), _ERFC))
    return v.select(v.compare("olt", x, v.zero), v.sub(v.const(2.0), value), value)
