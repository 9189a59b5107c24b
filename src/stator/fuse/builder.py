"""Writing kernels: values as Python objects with operators, so that the tables of operations read like formulas.

Enters: what the rows of `pointwise` do with a `V`. Leaves: `Value`s of a kernel, each made once (equal operations on
equal operands are one value).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .loops import STORED_AS_FLOAT32, Index, Value, computed_in

Number = int | float | bool


class V:
    """A value of the kernel that is being written."""

    __slots__ = ("b", "dtype", "id")

    def __init__(self, b: KernelBuilder, number: int, dtype: torch.dtype) -> None:
        self.b, self.id, self.dtype = b, number, dtype

    def _with(self, name: str, *others: V | Number) -> V:
        return self.b.op(name, self, *[self.b.like(o, self) for o in others])

    def _compared(self, name: str, other: V | Number) -> V:
        return self.b.op(name, self, self.b.like(other, self), dtype=torch.bool)

    def __add__(self, other: V | Number) -> V:
        return self._with("add", other)

    def __radd__(self, other: Number) -> V:
        return self.b.like(other, self) + self

    def __sub__(self, other: V | Number) -> V:
        return self._with("sub", other)

    def __rsub__(self, other: Number) -> V:
        return self.b.like(other, self) - self

    def __mul__(self, other: V | Number) -> V:
        return self._with("mul", other)

    def __rmul__(self, other: Number) -> V:
        return self.b.like(other, self) * self

    def __truediv__(self, other: V | Number) -> V:
        return self._with("div", other)

    def __rtruediv__(self, other: Number) -> V:
        return self.b.like(other, self) / self

    def __neg__(self) -> V:
        return self.b.op("neg", self)

    def __and__(self, other: V) -> V:
        return self._with("and", other)

    def __or__(self, other: V) -> V:
        return self._with("or", other)

    def __xor__(self, other: V) -> V:
        return self._with("xor", other)

    def __invert__(self) -> V:
        return self.b.op("not", self)

    def eq(self, other: V | Number) -> V:
        return self._compared("eq", other)

    def ne(self, other: V | Number) -> V:
        return self._compared("ne", other)

    def __lt__(self, other: V | Number) -> V:
        return self._compared("lt", other)

    def __le__(self, other: V | Number) -> V:
        return self._compared("le", other)

    def __gt__(self, other: V | Number) -> V:
        return self._compared("gt", other)

    def __ge__(self, other: V | Number) -> V:
        return self._compared("ge", other)

    def to(self, dtype: torch.dtype) -> V:
        return self.b.cast(self, dtype)

    def __getattr__(self, name: str) -> Any:
        """`x.exp()`: the operation of that name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *others: self._with(name, *others)


class KernelBuilder:
    """The values of one kernel, made one after the other."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._made: dict[Any, int] = {}

    def add(self, op: str, args: tuple[int, ...], dtype: torch.dtype, attr: Any = None) -> V:
        # -0.0 and 0.0, 1 and True are equal keys, but not equal constants
        exact = (attr, type(attr), math.copysign(1, attr)) if isinstance(attr, (int, float)) else attr
        key = (op, args, dtype, exact)
        number = self._made.get(key)
        if number is None:
            number = self._made[key] = len(self.values)
            self.values.append(Value(op, args, dtype, attr))
        return V(self, number, dtype)

    def op(self, name: str, *operands: V, dtype: torch.dtype | None = None) -> V:
        return self.add(name, tuple([o.id for o in operands]), dtype or operands[0].dtype)

    def const(self, number: Number, dtype: torch.dtype) -> V:
        dtype = computed_in(dtype)
        if dtype is torch.bool:
            number = bool(number)
        elif dtype.is_floating_point:
            number = float(number)
            if number != number:
                number = math.nan  # one object, so that equal constants are one value
        else:
            number = _wrapped(int(number), dtype)
        return self.add("const", (), dtype, number)

    def like(self, value: V | Number, other: V) -> V:
        return value if isinstance(value, V) else self.const(value, other.dtype)

    def where(self, condition: V, yes: V, no: V) -> V:
        return self.add("where", (condition.id, yes.id, no.id), yes.dtype)

    def check(self, condition: V) -> V:
        """What must hold at every point; where it does not, the call is run by eager, which raises."""
        return self.add("check", (condition.id,), torch.bool)

    def index(self, index: Index) -> V:
        return self.add("index", (), torch.int64, index)

    def load(self, buffer: int, index: Index, dtype: torch.dtype, condition: V | None = None) -> V:
        args = () if condition is None else (condition.id,)
        return self.add("load", args, computed_in(dtype), (buffer, index))

    def cast(self, value: V, dtype: torch.dtype) -> V:
        """As `Tensor.to` converts; a narrow float is a float32 that was rounded."""
        to = computed_in(dtype)
        result = value if value.dtype is to else self.op("cast", value, dtype=to)
        return self.rounded(result, dtype) if dtype in STORED_AS_FLOAT32 else result

    def rounded(self, value: V, dtype: torch.dtype) -> V:
        """A float32 as it would come back from memory of a narrow type."""
        made = self.values[value.id]
        name = "round_bf16" if dtype is torch.bfloat16 else "round_f16"
        if dtype not in STORED_AS_FLOAT32 or made.op == name:
            return value
        return self.op(name, value)

    def all(self, conditions: Sequence[V]) -> V | None:
        result: V | None = None
        for condition in conditions:
            result = condition if result is None else result & condition
        return result


def _wrapped(number: int, dtype: torch.dtype) -> int:
    info = torch.iinfo(dtype)
    span = 1 << info.bits
    return (number - info.min) % span + info.min
