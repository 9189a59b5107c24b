"""Scalar operations on NVIDIA GPUs: the common table, with the forms that the hardware has.

Enters: what `scalar` takes. Leaves: IR for nvptx64. An instruction that every target has may be spelled otherwise here
(`GpuFunction.emit`): division in float32 is `div.full` (at most 2 ulp), the remainder is exact (LLVM's own loses digits
of large quotients). What holds: at most 2 ulp per function in float32, NaN as eager, denormals kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch

from . import math_exp, math_trig, scalar
from .ir import Function, Module
from .lanes import DOUBLE, FLOAT, Lanes

_FDIV = re.compile(r"fdiv float (\S+), (\S+)$")
_FREM = re.compile(r"frem (float|double) (\S+), (\S+)$")
_MAGIC = 1.5 * 2.0**23  # see `Lanes.nearest`
_LOG2_E = (1.4426950216293335, 1.9259629911266175e-08)


class GpuFunction(Function):
    """A function of one thread: all values are scalars."""

    def __init__(self, module: Module, name: str, parameters: str, attributes: str = "") -> None:
        super().__init__(module, name, parameters, 1, attributes, "ptx_kernel")

    def emit(self, text: str) -> str:
        if (found := _FDIV.match(text)) is not None:
            self.declare("declare float @llvm.nvvm.div.full(float, float)")
            text = f"call float @llvm.nvvm.div.full(float {found[1]}, float {found[2]})"
        elif (found := _FREM.match(text)) is not None:
            _declare_remainder(self, found[1])
            text = f"call {found[1]} @stator.fmod.{found[1]}({found[1]} {found[2]}, {found[1]} {found[3]})"
        return super().emit(text)

    def slow_path(self, v: Lanes, name: str, mask: str, x: str, value: str) -> str:
        """sin, cos and tan of large arguments: see `math_trig`."""
        if v.element == DOUBLE:
            return value
        symbol = f"stator.exact.{name}"
        _declare_large(self, name, symbol)
        helper = f"@stator.large.{name}.{v.suffix}"
        math_trig.declare_slow_path(v, symbol, helper)
        return self.emit(f"call float {helper}(i1 {mask}, float {x}, float {value})")


def emit(
    f: Function,
    op: str,
    dtype: torch.dtype,
    kinds: Sequence[torch.dtype],
    args: Sequence[str],
    *,
    rough: bool = False,
) -> str:
    """An operation on scalars. `rough`: its result will be rounded to bfloat16 or float16."""
    own = _SINGLE.get(op) if kinds and kinds[0] is torch.float32 else None
    if rough and own is not None:
        own = _ROUGH.get(op, own)
    return own(f, *args) if own is not None else scalar.emit(f, op, dtype, kinds, args)


def supported(op: str, kinds: Sequence[torch.dtype]) -> bool:
    if op in ("sin", "cos", "tan") and kinds[0] is torch.float64:
        return False  # `slow_path` has no code for large ones
    if op == "scan":
        return False  # one thread would do it all
    return scalar.supported(op, kinds)


# ------------------------------------------------------------------------------------------------- own forms


def _hardware(f: Function, name: str, x: str) -> str:
    """One instruction of the special function unit, in float32; denormals become 0."""
    return f.call(f"llvm.nvvm.{name}.approx.ftz.f", "float", ("float", x))


def _exp(f: Function, x: str) -> str:
    """2**n · 2**t with x = (n + t) ln(2), |t| <= ½; n is bounded, so that 2**n is a normal number: beyond, t grows.

    The same instruction as in CUDA's own: at most 2 ulp from the nearest float."""
    v = Lanes(f, FLOAT)
    shifted = v.fma(x, v.const(_LOG2_E[0]), v.const(_MAGIC))
    # NaN becomes a bound here, and goes on in t
    shifted = v.intrinsic("minnum", v.intrinsic("maxnum", shifted, v.const(_MAGIC - 126)), v.const(_MAGIC + 127))
    n = v.sub(shifted, v.const(_MAGIC))
    # of an infinite argument both products are infinite, and their sum is not NaN: n is finite
    t = v.fma(x, v.const(_LOG2_E[1]), v.fma(x, v.const(_LOG2_E[0]), v.neg(n)))
    power = v.int_op("add", v.int_op("shl", v.to_bits(shifted), v.int_const(23)), v.int_const(127 << 23))
    return v.mul(_hardware(f, "ex2", t), v.from_bits(power))


class _Inverting(Lanes):
    """Whose only division is 1 / x, of a number that is neither large nor small: the hardware's, and one step of
    Newton's method, which leaves no error but the last rounding."""

    def div(self, a: str, b: str) -> str:
        assert a == self.one and isinstance(self.emitter, Function)
        guess = _hardware(self.emitter, "rcp", b)
        return self.fma(guess, self.fma(self.neg(b), guess, self.one), guess)


def _sigmoid(f: Function, x: str) -> str:
    return math_exp.sigmoid(_Inverting(f, FLOAT), x)


def _rough_sigmoid(f: Function, x: str) -> str:
    """Good to 16 bits or more."""
    v = Lanes(f, FLOAT)
    return _hardware(f, "rcp", v.add(v.one, _hardware(f, "ex2", v.mul(x, v.const(-_LOG2_E[0])))))


def _tanh(f: Function, x: str) -> str:
    """Near 0 a polynomial, beyond 1 - 2 / (exp(2 |x|) + 1), where an error of the exponential counts little."""
    v = Lanes(f, FLOAT)
    a, square = v.abs(x), v.mul(x, x)
    near = v.fma(v.mul(v.polynomial(square, math_exp.TANH[FLOAT]), square), a, a)
    e = _hardware(f, "ex2", v.mul(a, v.const(2 * _LOG2_E[0])))  # infinite where the result is 1
    far = v.fma(v.const(-2.0), _hardware(f, "rcp", v.add(e, v.one)), v.one)
    return v.copysign(v.select(v.compare("olt", a, v.const(0.625)), near, far), x)


def _rsqrt(f: Function, x: str) -> str:
    return f.call("llvm.nvvm.rsqrt.approx.f", "float", ("float", x))


def _extreme(name: str) -> Callable[..., str]:
    """NaN wins."""
    return lambda f, a, b: f.call(f"llvm.{name}.f32", "float", ("float", a), ("float", b))


def to_bf16(f: Function, x: str) -> str:
    """The bits of a float32, rounded to bfloat16, as i16."""
    return f.emit(f"bitcast bfloat {f.emit(f'fptrunc float {x} to bfloat')} to i16")


def _round_bf16(f: Function, x: str) -> str:
    return scalar.from_bf16(f, to_bf16(f, x))


_SINGLE: dict[str, Callable[..., str]] = {
    "exp": _exp,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "rsqrt": _rsqrt,
    "max": _extreme("maximum"),
    "min": _extreme("minimum"),
    "round_bf16": _round_bf16,
}
_ROUGH: dict[str, Callable[..., str]] = {"sigmoid": _rough_sigmoid}


# ------------------------------------------------------------------------------------------------ remainders


def _declare_remainder(f: Function, kind: str) -> None:
    """fmod by doubling and halving the divisor: every difference is exact."""
    suffix = {"float": "f32", "double": "f64"}[kind]
    zero, half, infinity, nan = "0x0000000000000000", "0x3FE0000000000000", "0x7FF0000000000000", "0x7FF8000000000000"
    f.declare(f"declare {kind} @llvm.fabs.{suffix}({kind})")
    f.declare(f"declare {kind} @llvm.copysign.{suffix}({kind}, {kind})")
    text = f"""define internal {kind} @stator.fmod.{kind}({kind} %x, {kind} %y) noinline nounwind {{
entry:
  %a = call {kind} @llvm.fabs.{suffix}({kind} %x)
  %b = call {kind} @llvm.fabs.{suffix}({kind} %y)
  %finite = fcmp olt {kind} %a, {infinity}
  %some = fcmp ogt {kind} %b, {zero}
  %both = and i1 %finite, %some
  br i1 %both, label %grow, label %none
grow:
  %t = phi {kind} [%b, %entry], [%twice, %grow]
  %twice = fadd {kind} %t, %t
  %more = fcmp ole {kind} %twice, %a
  br i1 %more, label %grow, label %shrink
shrink:
  %rest = phi {kind} [%a, %grow], [%next, %shrink]
  %by = phi {kind} [%t, %grow], [%less, %shrink]
  %fits = fcmp oge {kind} %rest, %by
  %difference = fsub {kind} %rest, %by
  %next = select i1 %fits, {kind} %difference, {kind} %rest
  %less = fmul {kind} %by, {half}
  %last = fcmp ole {kind} %by, %b
  br i1 %last, label %done, label %shrink
done:
  %signed = call {kind} @llvm.copysign.{suffix}({kind} %next, {kind} %x)
  ret {kind} %signed
none:
  ret {kind} {nan}
}}"""
    f.declare(text)


# ------------------------------------------------------------------------------------------ large arguments

_TURN_BITS = 192


def _turns() -> int:
    """2**192 / (2π): more digits than any float32 needs. By Machin's formula."""
    one = 1 << (_TURN_BITS + 64)

    def arc(n: int) -> int:  # atan(1 / n)
        total, power, k, sign = 0, one // n, 1, 1
        while power:
            total += sign * (power // k)
            power, k, sign = power // (n * n), k + 2, -sign
        return total

    pi = 4 * (4 * arc(5) - arc(239))
    return (one << _TURN_BITS) // (2 * pi)


class _Body(GpuFunction):
    """The inside of a helper function."""

    def __init__(self, module: Module) -> None:
        super().__init__(module, "helper", "")

    def lines(self) -> str:
        return "\n".join(self._lines)


def _declare_large(f: Function, name: str, symbol: str) -> None:
    """The function of a float32 of any size: the part of a turn that is left, to 64 bits, then in double."""
    body = _Body(f.module)
    bits = body.emit("bitcast float %x to i32")
    exponent = body.emit(f"and i32 {body.emit(f'lshr i32 {bits}, 23')}, 255")
    fraction = body.emit(f"or i32 {body.emit(f'and i32 {bits}, 8388607')}, 8388608")
    product = body.emit(f"mul i256 {body.emit(f'zext i32 {fraction} to i256')}, {_turns()}")
    # x = fraction · 2**(exponent - 150), and 2**17 <= x: its exponent is 144 or more
    up = body.emit(f"zext i32 {body.emit(f'sub i32 {exponent}, 144')} to i256")
    left = body.emit(f"lshr i256 {body.emit(f'shl i256 {product}, {up}')}, {_TURN_BITS + 6 - 64}")
    part = body.emit(f"sitofp i64 {body.emit(f'trunc i256 {left} to i64')} to double")
    wide = Lanes(body, DOUBLE)
    angle = wide.mul(part, wide.const(6.283185307179586 * 2.0**-64))
    negative = body.emit(f"icmp slt i32 {bits}, 0")
    angle = wide.select(negative, wide.neg(angle), angle)
    value = {"sin": math_trig.sin, "cos": math_trig.cos, "tan": math_trig.tan}[name](wide, angle)
    result = body.emit(f"fptrunc double {value} to float")
    infinite = body.emit(f"icmp eq i32 {exponent}, 255")
    result = body.emit(f"select i1 {infinite}, float 0x7FF8000000000000, float {result}")
    head = f"define internal float @{symbol}(float %x) noinline nounwind"
    f.declare(f"{head} {{\nentry:\n{body.lines()}\n  ret float {result}\n}}")
