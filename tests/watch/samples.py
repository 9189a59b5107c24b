"""Samples of arguments for torch's functions, from torch's own tests, and the same with other data."""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

if "expecttest" not in sys.modules:  # torch's tests want it, their samples do not
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stand_in

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

DTYPES = (torch.float32, torch.int64, torch.bool)
# Operators for which other numbers end the process, in torch itself.
CRASHES = frozenset({"torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward"})


def operations() -> dict[str, Any]:
    return {f"{op.name}{'.' * bool(op.variant_test_name)}{op.variant_test_name}": op for op in op_db}


def calls_of(op: Any, most: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments for a function, so many sets of them for each of some dtypes."""
    for dtype in DTYPES:
        if dtype in op.dtypes:
            try:
                samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
            except Exception:  # some want what is not installed
                continue
            for sample in samples[:: max(1, len(samples) // most)][:most]:
                yield (sample.input, *sample.args), sample.kwargs


def others(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """The same arguments with other data in the tensors: shapes, strides and numbers stay."""
    for name, change in CHANGES.items():
        changed = pytree.tree_map(lambda value, change=change: _changed(value, change), (args, kwargs))
        yield name, *changed


def copies(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = pytree.tree_map(lambda value: _changed(value, lambda tensor: tensor), (args, kwargs))
    return args, kwargs


def _changed(value: Any, change: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
    return made.copy_(change(value).to(value.dtype))


def _not_a_number(tensor: torch.Tensor) -> torch.Tensor:
    return (
        torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor.flip(tuple(range(tensor.dim())))
    )


CHANGES: dict[str, Any] = {
    "zeros": torch.zeros_like,
    "backwards": lambda tensor: tensor.flip(tuple(range(tensor.dim()))),
    "negated": lambda tensor: ~tensor if tensor.dtype is torch.bool else -tensor - 1,
    "large": lambda tensor: torch.full_like(tensor, True if tensor.dtype is torch.bool else 100),
    "not a number": _not_a_number,
}
