"""Arithmetic on the lanes of a vector, as lines of LLVM IR.

What enters: an `Emitter`, which takes instructions one by one, and a type of float. What leaves: names of values.
What holds: only what every target of LLVM has (no intrinsic of one machine), no fast-math flag, and the same text for a
vector and for a scalar, up to the types.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

FLOAT, DOUBLE = "float", "double"


class Emitter(Protocol):
    """Where instructions go; it says how many lanes a value has."""

    @property
    def width(self) -> int:
        """Lanes of a vector; 1 is a scalar."""

    def emit(self, text: str) -> str:
        """Append an instruction to the current block; the name of its result."""

    def declare(self, declaration: str) -> None:
        """Put a declaration or a function into the module, once."""


class Lanes:
    """Values of one type of float, in as many lanes as the emitter has."""

    def __init__(self, emitter: Emitter, type_name: str) -> None:
        self.emitter = emitter
        self.element = type_name
        self.bits = {FLOAT: 32, DOUBLE: 64}[type_name]
        self.fraction = {FLOAT: 23, DOUBLE: 52}[type_name]  # bits of it
        self.bias = {FLOAT: 127, DOUBLE: 1023}[type_name]
        self.width = emitter.width
        self.type = self._lanes(type_name)
        self.int_type = self._lanes(f"i{self.bits}")
        self.mask_type = self._lanes("i1")
        self.suffix = f"f{self.bits}" if self.width == 1 else f"v{self.width}f{self.bits}"
        self.one = self.const(1.0)
        self.zero = self.const(0.0)
        self.inf = self.const(float("inf"))
        self.nan = self.const(float("nan"))

    def _lanes(self, element: str) -> str:
        return element if self.width == 1 else f"<{self.width} x {element}>"

    def pick(self, single: float, double: float) -> str:
        """A constant that differs between the two types."""
        return self.const(single if self.element == FLOAT else double)

    def const(self, value: float) -> str:
        """A constant in all lanes, rounded to the type."""
        if self.element == FLOAT and value == value and abs(value) != float("inf"):
            value = struct.unpack("f", struct.pack("f", value))[0]
        text = "0x" + struct.pack(">d", value).hex().upper()
        return text if self.width == 1 else f"splat ({self.element} {text})"

    def int_const(self, value: int) -> str:
        return str(value) if self.width == 1 else f"splat (i{self.bits} {value})"

    # ----------------------------------------------------------------------------------------------- floats

    def add(self, a: str, b: str) -> str:
        return self.emitter.emit(f"fadd {self.type} {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        return self.emitter.emit(f"fsub {self.type} {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        return self.emitter.emit(f"fmul {self.type} {a}, {b}")

    def div(self, a: str, b: str) -> str:
        return self.emitter.emit(f"fdiv {self.type} {a}, {b}")

    def neg(self, a: str) -> str:
        return self.emitter.emit(f"fneg {self.type} {a}")

    def intrinsic(self, name: str, *operands: str) -> str:
        name = f"@llvm.{name}.{self.suffix}"
        self.emitter.declare(f"declare {self.type} {name}({', '.join([self.type] * len(operands))})")
        return self.emitter.emit(f"call {self.type} {name}({', '.join(f'{self.type} {a}' for a in operands)})")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.intrinsic("fma", a, b, c)

    def rint(self, a: str) -> str:
        return self.intrinsic("rint", a)

    def abs(self, a: str) -> str:
        return self.intrinsic("fabs", a)

    def sqrt(self, a: str) -> str:
        return self.intrinsic("sqrt", a)

    def copysign(self, magnitude: str, sign: str) -> str:
        return self.intrinsic("copysign", magnitude, sign)

    def copysign_zero(self, x: str, value: str) -> str:
        """The value of an odd function; it is x itself where that is a zero, of either sign."""
        return self.select(self.compare("oeq", x, self.zero), x, value)

    def at_least(self, low: float, a: str) -> str:
        """The larger one; NaN stays. In this order of operands it is one instruction on x86."""
        bound = self.const(low)
        return self.select(self.compare("ogt", bound, a), bound, a)

    def at_most(self, high: float, a: str) -> str:
        bound = self.const(high)
        return self.select(self.compare("olt", bound, a), bound, a)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """The lowest power's coefficient comes first."""
        value = self.const(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = self.fma(value, x, self.const(coefficient))
        return value

    # ---------------------------------------------------------------------------------------------- choices

    def compare(self, how: str, a: str, b: str) -> str:
        return self.emitter.emit(f"fcmp {how} {self.type} {a}, {b}")

    def select(self, mask: str, a: str, b: str) -> str:
        return self.emitter.emit(f"select {self.mask_type} {mask}, {self.type} {a}, {self.type} {b}")

    def both(self, a: str, b: str) -> str:
        return self.emitter.emit(f"and {self.mask_type} {a}, {b}")

    def either(self, a: str, b: str) -> str:
        return self.emitter.emit(f"or {self.mask_type} {a}, {b}")

    # ------------------------------------------------------------------------------------------------- bits

    def to_bits(self, a: str) -> str:
        return self.emitter.emit(f"bitcast {self.type} {a} to {self.int_type}")

    def from_bits(self, a: str) -> str:
        return self.emitter.emit(f"bitcast {self.int_type} {a} to {self.type}")

    def int_op(self, name: str, a: str, b: str) -> str:
        return self.emitter.emit(f"{name} {self.int_type} {a}, {b}")

    def power_of_two(self, n: str) -> str:
        """2 to a whole number given as bits, where that is a normal number or (at the lowest exponent) zero."""
        return self.from_bits(
            self.int_op("shl", self.int_op("add", n, self.int_const(self.bias)), self.int_const(self.fraction))
        )

    def nearest(self, x: str, factor: float) -> tuple[str, str]:
        """The whole number nearest to x times a factor, as a float and (in the low bits) as an integer.

        Adding 1.5 times 2 to the fraction's length shifts the digits behind the point out, and leaves the number in
        the lowest bits; it holds while it has two bits fewer than the fraction."""
        magic = self.const(1.5 * 2.0**self.fraction)
        shifted = self.fma(x, self.const(factor), magic)
        return self.sub(shifted, magic), self.to_bits(shifted)

    # ------------------------------------------------------------------------------------------- other types

    def widened(self, a: str) -> tuple[Lanes, str]:
        """The value in double."""
        wide = Lanes(self.emitter, DOUBLE)
        if self.element == DOUBLE:
            return wide, a
        return wide, self.emitter.emit(f"fpext {self.type} {a} to {wide.type}")

    def narrowed(self, wide: Lanes, a: str) -> str:
        if self.element == DOUBLE:
            return a
        return self.emitter.emit(f"fptrunc {wide.type} {a} to {self.type}")
