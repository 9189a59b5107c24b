"""Views of which an operator gives several, and writes: to what they show, and through one of them, before reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from native_check import compare
from torch import Tensor

import stator

VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "chunk": lambda t: torch.chunk(t, 2),
    "chunk of columns": lambda t: t.chunk(2, 1),
    "split": lambda t: t.split(2),
    "split with sizes": lambda t: t.split([1, 3], 1),
    "unbind": lambda t: t.unbind(1),
    "tensor_split": lambda t: t.tensor_split(2),
}


def inputs(seed: int) -> list[Tensor]:
    rows = (4, 8, 6)[seed]
    return [torch.arange(rows * 4.0).view(-1) + seed]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", VIEWS)
def test_an_input_is_written_to_behind_them(name: str, dynamic: bool | None) -> None:
    def fn(x: Tensor) -> Any:
        parts = VIEWS[name](x.view(-1, 4))
        x.view(-1, 4)[0].add_(1)
        return [*(p * 2 for p in parts), x.clone()]

    assert compare(fn, inputs, dynamic=dynamic, grads=False).kernels > 0


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", VIEWS)
def test_they_are_returned_and_one_is_written_to(name: str, dynamic: bool | None) -> None:
    """The other views of the same memory, and the input itself, show what was written."""

    def fn(x: Tensor) -> Any:
        parts = VIEWS[name](x.view(-1, 4))
        again = VIEWS[name](x.view(-1, 4))
        parts[0].mul_(3)
        parts[1].add_(parts[1])
        return [*parts, *again, x]

    assert compare(fn, inputs, dynamic=dynamic, grads=False).kernels > 0


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", VIEWS)
def test_what_the_function_made_is_written_to(name: str, dynamic: bool | None) -> None:
    """Without gradients: eager refuses to differentiate through a write to what several views show."""

    def fn(x: Tensor) -> Any:
        y = x.view(-1, 4).sin()
        parts = VIEWS[name](y)
        y.mul_(x.view(-1, 4))
        return [parts[0].exp(), parts[-1] + 1, y * 1]

    assert compare(fn, inputs, dynamic=dynamic, grads=False).kernels > 0


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_a_view_of_all_of_an_input_is_another_tensor(backend: str, grad: bool, written: bool) -> None:
    """The input itself was given back, a leaf, or a tensor that no longer was a view of it."""

    def fn(x: Tensor) -> Any:
        y = x * 2
        return y, x[...], y[()], x[()].detach()

    compiled = stator.compile(fn, backend=backend)
    for seed in range(3):
        x = torch.rand(3, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)
        other = x.detach().clone().requires_grad_(grad)
        told = []
        for f, given in ((compiled, x), (fn, other)):
            y, all_of_it, all_of_y, detached = f(given)
            if written:
                with torch.no_grad():
                    all_of_it.add_(1)
                    all_of_y.mul_(3)
            kinds = [(t is given, t is y, t.is_leaf, t.requires_grad) for t in (all_of_it, all_of_y, detached)]
            told.append((kinds, all_of_it._base is given, given.tolist(), y.tolist(), detached.tolist()))
        assert told[0] == told[1]
    assert compiled.stator.entries[0].count.value == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_view_of_all_of_a_tensor_is_written_to(dynamic: bool | None) -> None:
    def fn(x: Tensor) -> Any:
        y = x.sin()
        y[...].mul_(3)
        y[()][1:].add_(x[1:])
        x[...].add_(y)
        return y * 2, x[...] + 1, x

    assert compare(fn, inputs, dynamic=dynamic, grads=False).kernels > 0
