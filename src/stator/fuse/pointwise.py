"""The table of pointwise operators: what each computes, in scalar operations.

A row is a formula over `V`s. `promote` says in which type its operands are given to it: `result` (that of the result),
`common` (that to which the operands promote), `own` (as they are).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .builder import V

aten, prims = torch.ops.aten, torch.ops.prims


@dataclass(frozen=True)
class PointwiseRow:
    formula: Callable[..., V]
    promote: str = "result"
    compares: bool = False  # narrow floats are rounded first, as eager's were


POINTWISE: dict[Any, PointwiseRow] = {}


def _overloads(name: str, wanted: str) -> list[Any]:
    packet = getattr(aten, name, None)
    return [] if packet is None else [getattr(packet, o) for o in wanted.split() if o in packet.overloads()]


def row(
    names: str,
    formula: Callable[..., V],
    *,
    overloads: str = "default Tensor Scalar Tensor_Tensor Tensor_Scalar Scalar_Tensor",
    **how: Any,
) -> None:
    for name in names.split():
        for op in _overloads(name, overloads):
            POINTWISE[op] = PointwiseRow(formula, **how)


def _minimum(x: V, y: V) -> V:
    return x.min(y)


def _maximum(x: V, y: V) -> V:
    return x.max(y)


# ------------------------------------------------------------------------------------------------- arithmetic


def _add(x: V, y: Any, *, alpha: Any = 1) -> V:
    x, y = _pair(x, y)
    if x.dtype is torch.bool:
        return x | (y & (alpha.ne(0) if isinstance(alpha, V) else x.b.const(alpha != 0, torch.bool)))
    return x + (y if alpha == 1 else y * alpha)


def _sub(x: Any, y: Any, *, alpha: Any = 1) -> V:
    x, y = _pair(x, y)
    return x - (y if alpha == 1 else y * alpha)


def _pair(x: Any, y: Any) -> tuple[V, V]:
    if not isinstance(x, V):
        return y.b.like(x, y), y
    return x, x.b.like(y, x)


def _rsub(x: V, y: Any, alpha: Any = 1) -> V:
    return x.b.like(y, x) - (x if alpha == 1 else x * alpha)


def _mul(x: Any, y: Any) -> V:
    x, y = _pair(x, y)
    return x & y if x.dtype is torch.bool else x * y


def _div(x: Any, y: Any, *, rounding_mode: str | None = None) -> V:
    x, y = _pair(x, y)
    if rounding_mode is None:
        return x / y
    if rounding_mode == "trunc":
        return (x / y).trunc() if x.dtype.is_floating_point else x.trunc_div(_divisor(y))
    return x.floor_div(_divisor(y))


def _divisor(y: V) -> V:
    """Integers: the call fails where it is 0, as eager's does."""
    if not y.dtype.is_floating_point:
        known = y.b.values[y.id]
        if known.op != "const" or known.attr == 0:
            y.b.check(y.ne(0))
    return y


def _divided(name: str) -> Callable[..., V]:
    def formula(x: Any, y: Any) -> V:
        x, y = _pair(x, y)
        return getattr(x, name)(_divisor(y))

    return formula


row("add", _add)
row("sub", _sub)
row("rsub", _rsub)
row("mul", _mul)
row("div true_divide", _div, overloads="Tensor Scalar")
row("div", _div, overloads="Tensor_mode Scalar_mode", compares=True)
row("floor_divide", _divided("floor_div"), compares=True)
row("remainder", _divided("remainder"), compares=True)
row("fmod", _divided("fmod"), compares=True)
row("neg", lambda x: -x)
row("abs", lambda x: x if x.dtype is torch.uint8 else x.abs())
row("sign sgn", lambda x: x.sign(), compares=True)
row("square", lambda x: x * x)
row("reciprocal", lambda x: 1.0 / x)
row("minimum", _minimum)
row("maximum", _maximum)
row(
    "fmin",
    lambda x, y: x.b.where(x.ne(x), y, x.b.where(y.ne(y), x, x.min(y))) if x.dtype.is_floating_point else x.min(y),
)
row(
    "fmax",
    lambda x, y: x.b.where(x.ne(x), y, x.b.where(y.ne(y), x, x.max(y))) if x.dtype.is_floating_point else x.max(y),
)
row("addcmul", lambda x, y, z, *, value=1: x + (y * z if value == 1 else y * value * z))
row("addcdiv", lambda x, y, z, *, value=1: x + (y / z if value == 1 else y * value / z))
row("lerp", lambda x, y, w: _lerp(x, y, w))


def _lerp(x: V, y: V, w: Any) -> V:
    w = x.b.like(w, x)
    return x.b.where(w.abs() < 0.5, x + w * (y - x), y - (y - x) * (1.0 - w))


# ------------------------------------------------------------------------------------------- functions of one number

for _name in (
    "exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc"
).split():
    row(_name, lambda x, _name=_name: getattr(x, _name)())
row("special_erf", lambda x: x.erf())
row("rsqrt", lambda x: x.rsqrt())
row("sigmoid", lambda x: x.sigmoid())
for _name in "floor ceil trunc round".split():
    row(
        _name,
        lambda x, _name=_name: getattr(x, _name)() if x.dtype.is_floating_point else x,
        overloads="default",
        compares=True,
    )
row("frac", lambda x: x - x.trunc(), compares=True)
row("deg2rad", lambda x: x * (math.pi / 180))
row("rad2deg", lambda x: x * (180 / math.pi))


def _logit(x: V, eps: Any = None) -> V:
    if eps is not None:
        x = _clamp(x, eps, 1 - eps)
    return (x / (1.0 - x)).log()


row("logit", _logit)


# ------------------------------------------------------------------------------------------------------- powers


def _pow(x: Any, y: Any) -> V:
    if isinstance(x, V) and not isinstance(y, V):
        if x.dtype.is_floating_point and y in _POWERS:
            return _POWERS[y](x)
        if not x.dtype.is_floating_point and isinstance(y, int) and 0 <= y <= 3:
            return [x.b.const(1, x.dtype), x, x * x, x * x * x][y]
    x, y = _pair(x, y)
    return x.pow(y)


_POWERS: dict[Any, Callable[[V], V]] = {
    0: lambda x: x.b.const(1, x.dtype),
    0.5: lambda x: x.sqrt(),
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    -1: lambda x: 1.0 / x,
    -2: lambda x: 1.0 / (x * x),
    -0.5: lambda x: x.rsqrt(),
}
row("pow", _pow, compares=True)
row("atan2", lambda x, y: x.atan2(y))
row("copysign", lambda x, y: x.copysign(y))
row("angle", lambda x: x.b.where(x.ne(x), x, x.b.where(x < 0, x.b.const(math.pi, x.dtype), x.b.const(0, x.dtype))))
row("hypot", lambda x, y: _hypot(x, y))
row("logaddexp", lambda x, y: _logaddexp(x, y))
row("xlogy", lambda x, y: _xlogy(*_pair(x, y)))


def _hypot(x: V, y: V) -> V:
    a, b = x.abs(), y.abs()
    big, small = a.max(b), a.min(b)
    ratio = small / big
    plain = big * (ratio * ratio + 1.0).sqrt()
    plain = x.b.where(big.eq(0.0), big, plain)
    infinite = a.eq(math.inf) | b.eq(math.inf)
    return x.b.where(infinite, x.b.const(math.inf, x.dtype), plain)


def _logaddexp(x: V, y: V) -> V:
    big = x.max(y)
    result = big + (-(x - y).abs()).exp().log1p()
    return x.b.where(x.eq(y) & x.abs().eq(math.inf), x, result)


def _xlogy(x: V, y: V) -> V:
    result = x.b.where(x.eq(0.0), x.b.const(0, x.dtype), x * y.log())
    return x.b.where(y.ne(y), y, result)


# ------------------------------------------------------------------------------------- comparisons and logic

for _name in "eq ne lt le gt ge".split():
    row(
        _name,
        lambda x, y, _name=_name: getattr(x, _name if _name in ("eq", "ne") else f"__{_name}__")(y),
        promote="common",
        compares=True,
    )
_logic: dict[str, Callable[..., V]] = {
    "logical_and": lambda x, y: _truth(x) & _truth(y),
    "logical_or": lambda x, y: _truth(x) | _truth(y),
    "logical_xor": lambda x, y: _truth(x) ^ _truth(y),
    "logical_not": lambda x: ~_truth(x),
}
for _name, _formula in _logic.items():
    row(_name, _formula, promote="own", compares=True)


def _truth(x: V) -> V:
    return x if x.dtype is torch.bool else x.ne(0)


row("bitwise_and __and__", lambda x, y: _pair(x, y)[0] & _pair(x, y)[1])
row("bitwise_or __or__", lambda x, y: _pair(x, y)[0] | _pair(x, y)[1])
row("bitwise_xor __xor__", lambda x, y: _pair(x, y)[0] ^ _pair(x, y)[1])
row("bitwise_not", lambda x: ~x)
row("bitwise_left_shift __lshift__", lambda x, y: _pair(x, y)[0].shl(_pair(x, y)[1]))
row("bitwise_right_shift __rshift__", lambda x, y: _pair(x, y)[0].shr(_pair(x, y)[1]))
row("isnan", lambda x: x.ne(x) if x.dtype.is_floating_point else x.b.const(False, torch.bool), promote="own")
row(
    "isinf",
    lambda x: x.abs().eq(math.inf) if x.dtype.is_floating_point else x.b.const(False, torch.bool),
    promote="own",
)
row(
    "isfinite",
    lambda x: x.abs() < math.inf if x.dtype.is_floating_point else x.b.const(True, torch.bool),
    promote="own",
)
row("isposinf", lambda x: x.eq(math.inf) if x.dtype.is_floating_point else x.b.const(False, torch.bool), promote="own")
row("isneginf", lambda x: x.eq(-math.inf) if x.dtype.is_floating_point else x.b.const(False, torch.bool), promote="own")
row(
    "signbit",
    lambda x: (
        x.b.op("signbit", x, dtype=torch.bool)
        if x.dtype.is_floating_point
        else (x < 0 if x.dtype is not torch.bool else x.b.const(False, torch.bool))
    ),
    promote="own",
)


# --------------------------------------------------------------------------------------------------- selecting


def _where(condition: V, x: Any, y: Any) -> V:
    x, y = _pair(x, y)
    return x.b.where(_truth(condition), x, y)


def _clamp(x: V, low: Any = None, high: Any = None) -> V:
    """NaN stays; a limit that is NaN gives NaN; the upper limit wins."""
    if low is not None:
        x = x.max(low)
    return x if high is None else x.min(high)


row("where", _where, overloads="self ScalarSelf ScalarOther", promote="where")
row("masked_fill", lambda x, mask, value: x.b.where(_truth(mask), x.b.like(value, x), x), promote="masked")
row("clamp", _clamp)
row("clamp_min", lambda x, low: _clamp(x, low))
row("clamp_max", lambda x, high: _clamp(x, None, high))
row("nan_to_num", lambda x, nan=None, posinf=None, neginf=None: _nan_to_num(x, nan, posinf, neginf))


def _nan_to_num(x: V, nan: Any, posinf: Any, neginf: Any) -> V:
    if not x.dtype.is_floating_point:
        return x
    info = torch.finfo(x.dtype)
    x = x.b.where(x.ne(x), x.b.const(nan or 0.0, x.dtype), x)
    x = x.b.where(x.eq(math.inf), x.b.const(info.max if posinf is None else posinf, x.dtype), x)
    return x.b.where(x.eq(-math.inf), x.b.const(info.min if neginf is None else neginf, x.dtype), x)


# ------------------------------------------------------------------------------------------------- activations

SQRT_HALF, ROOT_2_OVER_PI = math.sqrt(0.5), math.sqrt(2 / math.pi)


def _gelu(x: V, *, approximate: str = "none") -> V:
    if approximate == "tanh":
        inner = ROOT_2_OVER_PI * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1.0 + inner.tanh())
    return x * 0.5 * (1.0 + (x * SQRT_HALF).erf())


def _gelu_backward(grad: V, x: V, *, approximate: str = "none") -> V:
    if approximate == "tanh":
        square = x * x
        inner = ROOT_2_OVER_PI * (x + 0.044715 * (square * x))
        t = inner.tanh()
        left = 0.5 * (1.0 + t)
        right = 0.5 * x * (1.0 - t * t) * (ROOT_2_OVER_PI * (1.0 + 3 * 0.044715 * square))
        return grad * (left + right)
    cdf = 0.5 * (1.0 + (x * SQRT_HALF).erf())
    pdf = (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
    return grad * (cdf + x * pdf)


def _elu(x: V, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> V:
    negative = (x * input_scale).expm1() * (alpha * scale)
    return x.b.where(x > 0, x * scale, negative)


def _silu_backward(grad: V, x: V) -> V:
    s = x.sigmoid()
    return grad * (s * (1.0 + x * (1.0 - s)))


def _hardtanh_backward(grad: V, x: V, low: Any, high: Any) -> V:
    return x.b.where((x <= low) | (x >= high), x.b.const(0, x.dtype), grad)


def _softplus(x: V, beta: Any = 1, threshold: Any = 20) -> V:
    scaled = x * beta
    return x.b.where(scaled > threshold, x, scaled.exp().log1p() / beta)


def _softplus_backward(grad: V, x: V, beta: Any, threshold: Any) -> V:
    scaled = x * beta
    z = scaled.exp()
    return x.b.where(scaled > threshold, grad, grad * z / (z + 1.0))


row("relu", lambda x: x.max(0))
row("relu6", lambda x: _clamp(x, 0, 6))
row("hardtanh", lambda x, low=-1, high=1: _clamp(x, low, high))
row("hardtanh_backward", _hardtanh_backward, compares=True)
row("hardsigmoid", lambda x: _clamp(x + 3.0, 0, 6) / 6.0)
row("hardswish", lambda x: x * _clamp(x + 3.0, 0, 6) / 6.0)
row("leaky_relu", lambda x, slope=0.01: x.b.where(x > 0, x, x * slope))
row("leaky_relu_backward", lambda g, x, slope, of_result: x.b.where(x > 0, g, g * slope))
row("threshold", lambda x, limit, value: x.b.where(x <= limit, x.b.like(value, x), x))
row("threshold_backward", lambda g, x, limit: x.b.where(x <= limit, x.b.const(0, x.dtype), g), compares=True)
row("gelu", _gelu)
row("gelu_backward", _gelu_backward)
row("silu", lambda x: x / (1.0 + (-x).exp()))
row("silu_backward", _silu_backward)
row("elu", _elu)
row("sigmoid_backward", lambda g, y: g * (1.0 - y) * y)
row("tanh_backward", lambda g, y: g * (1.0 - y * y))
row("softplus", _softplus)
row("softplus_backward", _softplus_backward)
row("mish", lambda x: x * _softplus(x).tanh())
row("log_sigmoid", lambda x: x.min(0) - (-x.abs()).exp().log1p())
row("sinc", lambda x: x.b.where(x.eq(0.0), x.b.const(1, x.dtype), (x * math.pi).sin() / (x * math.pi)))


# ------------------------------------------------------------------------------------------------------ copies


def _copied(x: V, **how: Any) -> V:
    return x


row("clone", _copied)
row("contiguous", _copied)
row("_to_copy", _copied)
row("lift_fresh_copy", _copied)
row("positive", _copied)
row("copy", lambda x, source, non_blocking=False: source)
row("fill", lambda x, value: x.b.like(value, x))
POINTWISE[prims.convert_element_type.default] = PointwiseRow(lambda x, dtype: x)
