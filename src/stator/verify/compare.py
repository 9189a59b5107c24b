"""What differs between two runs of a graph, in words.

Enters: what each run left (`After`). Leaves: one line per difference; none if a program could not tell them apart, but
for the rounding of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# By how much numbers may differ, relative to their own size plus the typical size in their tensor plus `FLOOR`. A
# compiled graph adds up in another order, and rounds less often, than eager does.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 5e-3,
    torch.bfloat16: 3e-2,
}
LOOSE = 0.25  # for formats with still fewer digits
FLOOR = 0.1  # added to the size of numbers: what cancels to zero leaves the rounding of larger ones


@dataclass(slots=True)
class After:
    """What a run has left."""

    outputs: Sequence[Any]
    inputs: Sequence[Any]  # as they are after it
    state: tuple[Any, ...]  # torch's modes, by name and value
    numbers: list[Tensor]  # the states of torch's random number generators
    gradients: list[Tensor | None] | None = None  # None: there are none, or eager has none
    error: Exception | None = None  # raised by the backward


def differences(wanted: After, found: After) -> list[str]:
    """Everything in which `found` is not what eager `wanted`."""
    lines = list(_of_values("output", wanted.outputs, found.outputs))
    lines += _of_values("input", wanted.inputs, found.inputs, verb="is left as")
    if not lines:
        lines += _of_sharing(wanted, found)
    if wanted.state != found.state:
        lines.append(f"torch's state is {found.state}, eager leaves {wanted.state}")
    if not all(map(torch.equal, wanted.numbers, found.numbers)):
        lines.append("random numbers: eager draws another count of them")
    return [*lines, *_of_gradients(wanted, found)]


def _of_values(what: str, wanted: Sequence[Any], found: Any, verb: str = "is") -> Iterator[str]:
    if not isinstance(found, (tuple, list)) or len(found) != len(wanted):
        yield f"{what}s: {_kind(found)}, eager gives {len(wanted)} of them"
        return
    for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
        why = difference(one, other)
        if why is not None:
            yield f"{what} {number} {verb} {why}"


def _kind(value: Any) -> str:
    return f"{len(value)} of them" if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"


def difference(wanted: Any, found: Any) -> str | None:
    """How one value differs from another; None if it does not."""
    if isinstance(wanted, (tuple, list)):
        same = isinstance(found, (tuple, list)) and len(wanted) == len(found)
        inner = map(difference, wanted, found) if same else iter(["another container"])
        return next((why for why in inner if why is not None), None)
    if not isinstance(wanted, Tensor) or not isinstance(found, Tensor):
        if isinstance(wanted, float) and isinstance(found, float):
            wanted, found = torch.tensor(wanted), torch.tensor(found)
            return _of_numbers(wanted, found)
        same = type(wanted) is type(found) and (isinstance(wanted, Tensor) or wanted == found)
        return None if same else f"{_short(found)}, eager gives {_short(wanted)}"
    for name, fact in _FACTS.items():
        if fact(wanted) != fact(found):
            return f"of {name} {fact(found)}, eager gives {fact(wanted)}"
    return _of_numbers(wanted.detach(), found.detach())


def _short(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else repr(value)[:80]


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Of dimensions in which there is a next element."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return ()
    return tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)


_FACTS: dict[str, Any] = {
    "dtype": lambda t: t.dtype,
    "shape": lambda t: tuple(t.shape),
    "device": lambda t: t.device,
    "layout": lambda t: t.layout,
    "strides": _strides,
    "requires_grad": lambda t: t.requires_grad,
}


def _of_numbers(wanted: Tensor, found: Tensor, looser: float = 1.0) -> str | None:
    if wanted.numel() == 0:
        return None
    if wanted.layout is not torch.strided:
        wanted, found = wanted.to_dense(), found.to_dense()
    if not (wanted.is_floating_point() or wanted.is_complex()):
        if torch.equal(wanted, found):
            return None
        count = int((wanted != found).sum())
        return f"wrong in {count} of {wanted.numel()} elements"
    relative = TOLERANCE.get(wanted.dtype, LOOSE) * looser
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    one, other = wanted.to(wide), found.to(wide)
    finite = torch.isfinite(one)
    typical = one[finite].abs().square().mean().sqrt() if bool(finite.any()) else torch.zeros(())
    wrong = ~((one == other) | (one.isnan() & other.isnan()))
    wrong &= ~((one - other).abs() <= relative * (one.abs() + typical + FLOOR))
    if not bool(wrong.any()):
        return None
    place = tuple(int(index) for index in wrong.nonzero()[0])
    return (
        f"wrong in {int(wrong.sum())} of {one.numel()} elements; at {place} {found[place].item()!r}, "
        f"eager gives {wanted[place].item()!r}"
    )


def _of_sharing(wanted: After, found: After) -> list[str]:
    """Which outputs are inputs, and which lie in one storage: a later write would tell."""
    one, other = _sharing(wanted), _sharing(found)
    return [
        f"output {number} {_shares(mine)}; in eager it {_shares(eager)}"
        for number, (eager, mine) in enumerate(zip(one, other, strict=True))
        if eager != mine
    ]


def _shares(names: tuple[str, ...]) -> str:
    return f"shares memory: {', '.join(names)}" if names else "has memory of its own"


def _sharing(after: After) -> list[tuple[str, ...]]:
    """For each output, all that it is the same as, or shares memory with, before it."""
    named = [(f"input {number}", value) for number, value in enumerate(after.inputs)]
    found: list[tuple[str, ...]] = []
    for number, output in enumerate(after.outputs):
        names = [f"is {name}" for name, value in named if isinstance(output, Tensor) and value is output]
        names += [f"with {name}" for name, value in named if _one_storage(output, value)]
        found.append(tuple(names))
        named.append((f"output {number}", output))
    return found


def _one_storage(one: Any, other: Any) -> bool:
    both = (one, other)
    if not all(isinstance(t, Tensor) and t.layout is torch.strided and t.numel() for t in both):
        return False
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _of_gradients(wanted: After, found: After) -> Iterator[str]:
    if wanted.gradients is None:
        return
    if found.error is not None:
        yield f"the backward raises {type(found.error).__name__}: {found.error}; in eager it does not"
        return
    if found.gradients is None:
        yield "there is no backward; in eager there is"
        return
    for number, (one, other) in enumerate(zip(wanted.gradients, found.gradients, strict=True)):
        if one is None and other is None:
            continue
        one = torch.zeros_like(other) if one is None and other is not None else one
        other = torch.zeros_like(one) if other is None and one is not None else other
        assert one is not None and other is not None
        if one.dtype != other.dtype or one.shape != other.shape:
            yield f"gradient {number} is {other.dtype} {tuple(other.shape)}, eager gives {one.dtype} {tuple(one.shape)}"
        else:
            why = _of_numbers(one.detach(), other.detach(), looser=10.0)
            if why is not None:
                yield f"gradient {number} is {why}"
