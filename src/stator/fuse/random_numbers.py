"""Random numbers that kernels compute: `options.native_random`.

Enters: ATen's operators that draw from the default generator. Leaves: the same distributions, made of one seed, which
ATen draws from that generator in each call, and of `stator::random_bits`, a pure function of the seed and of where a
number stands (Philox 4x32-10). So numbers repeat under `torch.manual_seed`, do not depend on threads or vectors, and a
backward computes a mask again from its seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_LIBRARY: Any = torch.library.Library("stator", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("random_bits(Tensor seed, SymInt[] size, bool more=False) -> Tensor", tags=(torch.Tag.pointwise,))


def philox(seed: torch.Tensor, position: torch.Tensor, more: bool) -> torch.Tensor:
    """64 of the 128 random bits of a position; `more`: the other 64. Words of 32 bits lie in int64."""
    mask = 0xFFFFFFFF
    words = [position & mask, position >> 32 & mask, torch.zeros_like(position), torch.zeros_like(position)]
    keys = [seed & mask, seed >> 32 & mask]
    for _ in range(10):
        one, other = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        first = other >> 32 & mask ^ words[1] ^ keys[0]
        words = [first, other & mask, one >> 32 & mask ^ words[3] ^ keys[1], one & mask]
        keys = [keys[0] + 0x9E3779B9 & mask, keys[1] + 0xBB67AE85 & mask]
    low, high = words[2:] if more else words[:2]
    return low | high << 32


def _run(seed: Tensor, size: Sequence[int], more: bool = False) -> Tensor:
    count = math.prod(size)
    return philox(seed, torch.arange(count, device=seed.device), more).view(size)


_LIBRARY.impl("random_bits", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("random_bits", lambda seed, size, more=False: seed.new_empty(size), "Meta")
random_bits = torch.ops.stator.random_bits.default


# ---------------------------------------------------------------------------------------------------- distributions

_KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_MANTISSA = {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}
MOST = 1 << 32  # different integers


class Drawn:
    """Bits for a tensor of this size, from one seed."""

    def __init__(self, size: Sequence[Any], device: Any) -> None:
        self._size = list(size)
        self._seed = aten.randint.low(-(2**63), 2**63 - 1, [], dtype=torch.int64, device=device)

    def bits(self, more: bool = False) -> Tensor:
        return random_bits(self._seed, self._size, more)

    def uniform(self, dtype: torch.dtype, more: bool = False) -> Tensor:
        """From 0 on, below 1, evenly spaced: as many digits as the type has for numbers from ½ to 1."""
        if dtype is torch.float64:
            return (self.bits(more) >> 11 & (1 << 53) - 1).to(dtype) * 2.0**-53
        digits = _MANTISSA[dtype]
        whole = self.bits(more).to(torch.int32) & (1 << digits) - 1
        return (whole.to(torch.float32) * 2.0**-digits).to(dtype)

    def above_zero(self, dtype: torch.dtype) -> Tensor:
        """As `uniform`, but above 0 and up to 1, and with more digits near 0."""
        if dtype is torch.float64:
            return 1.0 - self.uniform(dtype)
        word = (self.bits() & 0xFFFFFFFF) + 1
        return word.to(torch.float32) * 2.0**-32

    def normal(self, dtype: torch.dtype) -> Tensor:
        """By Box and Muller: a radius and an angle, of independent bits."""
        if dtype is torch.float64:
            angle = self.uniform(dtype, more=True)
        else:
            angle = (self.bits() >> 40 & (1 << 24) - 1).to(torch.int32).to(torch.float32) * 2.0**-24
        radius = torch.sqrt(torch.log(self.above_zero(dtype)) * -2.0)
        return (radius * torch.cos(angle * (2 * math.pi))).to(dtype)


RULES: dict[Any, Callable[..., Any]] = {}


def _rule(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(ops, function))
        return function

    return add


def _plain(dtype: torch.dtype, how: dict[str, Any]) -> bool:
    layout, generator = how.get("layout"), how.get("generator")
    return dtype in _KINDS and layout in (None, torch.strided) and generator is None and not how.get("pin_memory")


def _creating(make: Callable[[Drawn, torch.dtype], Tensor]) -> Callable[..., Any]:
    def run(size: Sequence[Any], *, dtype: Any = None, device: Any = None, **how: Any) -> Any:
        dtype = dtype or torch.get_default_dtype()
        return make(Drawn(size, device), dtype) if _plain(dtype, how) else NotImplemented

    return run


def _like(make: Callable[..., Tensor]) -> Callable[..., Any]:
    """Of a tensor whose elements are replaced; results lie in memory as that does."""

    def run(
        x: Tensor, *numbers: Any, dtype: Any = None, device: Any = None, memory_format: Any = None, **how: Any
    ) -> Any:
        kind = dtype or x.dtype
        if not _plain(kind, how) or memory_format not in (None, torch.preserve_format) or x.layout is not torch.strided:
            return NotImplemented
        made = make(Drawn(x.shape, device or x.device), kind, *numbers)
        return made if x.is_contiguous() else aten.copy.default(torch.empty_like(x, dtype=kind, device=device), made)

    return run


def _number_of(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Numbers that are given by name come behind the others."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Tensor, *numbers: Any, **how: Any) -> Any:
            given = [*numbers, *[how.pop(name) for name in names[len(numbers) :] if name in how]]
            return function(x, *given, **how)

        return run

    return wrap


RULES[aten.rand.default] = _creating(lambda drawn, dtype: drawn.uniform(dtype))
RULES[aten.randn.default] = _creating(lambda drawn, dtype: drawn.normal(dtype))
RULES[aten.rand_like.default] = _like(lambda drawn, dtype: drawn.uniform(dtype))
RULES[aten.randn_like.default] = _like(lambda drawn, dtype: drawn.normal(dtype))


def _uniform(drawn: Drawn, dtype: torch.dtype, low: float = 0.0, high: float = 1.0) -> Tensor:
    return drawn.uniform(dtype) * (high - low) + low


def _normal(drawn: Drawn, dtype: torch.dtype, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return drawn.normal(dtype) * std + mean


def _exponential(drawn: Drawn, dtype: torch.dtype, rate: float = 1.0) -> Tensor:
    return (torch.log(drawn.above_zero(dtype)) * (-1.0 / rate)).to(dtype)


def _kept(drawn: Drawn, dtype: torch.dtype, p: float = 0.5) -> Tensor:
    return (drawn.uniform(torch.float32) < p).to(dtype)


RULES[aten.uniform.default] = _number_of("from", "to")(_like(_uniform))
RULES[aten.normal_functional.default] = _number_of("mean", "std")(_like(_normal))
RULES[aten.exponential.default] = _number_of("lambd")(_like(_exponential))
RULES[aten.bernoulli.p] = _number_of("p")(_like(_kept))


@_rule(aten.bernoulli.default)
def _bernoulli(p: Tensor, *, generator: Any = None) -> Any:
    if not _plain(p.dtype, {"generator": generator, "layout": p.layout}):
        return NotImplemented
    kind = torch.float64 if p.dtype is torch.float64 else torch.float32
    return (Drawn(p.shape, p.device).uniform(kind) < p.to(kind)).to(p.dtype)


@_rule(aten.native_dropout.default)
def _dropout(x: Tensor, p: float, train: bool | None) -> Any:
    if not _plain(x.dtype, {"layout": x.layout}) or train is False or p >= 1:
        return NotImplemented
    mask = Drawn(x.shape, x.device).uniform(torch.float32) < 1 - p
    return x * mask.to(x.dtype) * (1 / (1 - p)), mask


def _integers(low: Any, high: Any, size: Sequence[Any], dtype: Any, device: Any, how: dict[str, Any]) -> Any:
    if not (isinstance(low, int) and isinstance(high, int) and 0 < high - low <= MOST and _plain(torch.float64, how)):
        return NotImplemented
    whole = torch.floor(Drawn(size, device).uniform(torch.float64) * float(high - low))
    return (whole.to(torch.int64) + low).to(dtype or torch.int64)


@_rule(aten.randint.default)
def _randint(high: Any, size: Sequence[Any], *, dtype: Any = None, device: Any = None, **how: Any) -> Any:
    return _integers(0, high, size, dtype, device, how)


@_rule(aten.randint.low)
def _randint_from(
    low: Any, high: Any, size: Sequence[Any], *, dtype: Any = None, device: Any = None, **how: Any
) -> Any:
    return _integers(low, high, size, dtype, device, how)  # of a seed there are more than `MOST`


@_rule(aten.randint_like.default)
def _randint_like(x: Tensor, high: Any, *, dtype: Any = None, memory_format: Any = None, **how: Any) -> Any:
    device = how.pop("device", None) or x.device
    return _integers(0, high, x.shape, dtype or x.dtype, device, how) if x.is_contiguous() else NotImplemented


@_rule(aten.randint_like.low_dtype)
def _randint_like_from(
    x: Tensor, low: Any, high: Any, *, dtype: Any = None, memory_format: Any = None, **how: Any
) -> Any:
    device = how.pop("device", None) or x.device
    return _integers(low, high, x.shape, dtype or x.dtype, device, how) if x.is_contiguous() else NotImplemented
