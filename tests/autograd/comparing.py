"""The check behind most tests here: a function by way of graphs does what the function does.

Values, gradients, what was written to which input, which outputs are which inputs, and which share memory: all
compared with eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stator.autograd import aot_function, min_cut_partition


def as_it_is(gm: Any, example_inputs: Any) -> Any:
    """The compiler that changes nothing."""
    return gm


def copied(args: Sequence[Any]) -> list[Any]:
    """The same arguments anew: leaves stay leaves, what was computed is computed, the same object stays the same."""
    made: dict[int, Any] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in made:
            fresh = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype).copy_(leaf.detach())
            if leaf.requires_grad:
                root = fresh.requires_grad_()
                fresh = root if leaf.is_leaf else root * 1
                fresh.root = root
            made[id(leaf)] = fresh
        return made[id(leaf)]

    return [pytree.tree_map(copy, arg) for arg in args]


def observed(fn: Callable[..., Any], args: Sequence[Any], seed: int) -> dict[str, Any]:
    """All that a call did."""
    torch.manual_seed(seed)
    out = fn(*args)
    leaves = pytree.tree_leaves(out)
    tensors = [t for t in leaves if isinstance(t, Tensor)]
    inputs = [t for t in pytree.tree_leaves(list(args)) if isinstance(t, Tensor)]
    memory = [t.untyped_storage().data_ptr() for t in (*inputs, *tensors)]
    seen: dict[str, Any] = {
        "outputs": [t.detach().clone() if isinstance(t, Tensor) else t for t in leaves],
        "requires": [t.requires_grad for t in tensors],
        "identity": [next((i for i, x in enumerate(inputs) if x is t), None) for t in tensors],
        "sharing": [memory.index(m) for m in memory],
        "strides": [t.stride() for t in tensors],
    }
    wanted = [t for t in (*tensors, *inputs) if t.requires_grad and t.grad_fn is not None]
    if wanted:
        torch.manual_seed(seed + 1)
        torch.autograd.backward(wanted, [torch.randn(t.shape, dtype=t.dtype) for t in wanted])
    seen["gradients"] = [getattr(t, "root", t).grad for t in inputs if t.requires_grad and hasattr(t, "root")]
    seen["inputs"] = [t.detach().clone() for t in inputs]
    return seen


def check(
    fn: Callable[..., Any], *args: Any, exact: bool = True, calls: int = 2, partition_fn: Any = min_cut_partition
) -> None:
    """Eager and compiled, call by call, on copies of the same arguments."""
    compiled = aot_function(fn, as_it_is, partition_fn=partition_fn)
    for seed in range(calls):
        expected = observed(fn, copied(args), seed)
        found = observed(compiled, copied(args), seed)
        for what in ("requires", "identity", "sharing", "strides"):
            assert found[what] == expected[what], what
        for what in ("outputs", "gradients", "inputs"):
            assert len(found[what]) == len(expected[what]), what
            for one, other in zip(found[what], expected[what], strict=True):
                same(one, other, exact, what)


def same(found: Any, expected: Any, exact: bool, what: str) -> None:
    if not isinstance(expected, Tensor):
        assert found == expected, what
    elif exact:
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{what}: {m}")
    else:
        torch.testing.assert_close(found, expected, equal_nan=True, msg=lambda m: f"{what}: {m}")
