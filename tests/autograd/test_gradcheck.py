"""Gradients by way of graphs against differences: `torch.autograd.gradcheck`, in float64, on torch's own database.

Eager is not asked here. Of each operator the smallest sample among torch's own; every entry of the Jacobian is
compared, or of large inputs a random combination of them (`fast_mode`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from comparing import as_it_is
from test_operators import CHOSEN, WRITING, run, tensors
from torch import Tensor
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.utils import _pytree as pytree

from stator.autograd import aot_function

SAMPLES = 12  # looked at for the smallest
ALL_ENTRIES = 40  # numbers to differentiate for

# Operators whose gradient is not the limit of differences, in eager neither (a test below sees to that).
NOT_A_DERIVATIVE = {
    "as_strided_scatter": "its sample writes twice to one element",
    "nn.functional.max_unpool1d": "its sample writes twice to one element",
    "__rpow__": "powers of negative numbers",
    **dict.fromkeys(["bfloat16", "float", "half", "cfloat", "chalf"], "differences vanish in fewer bits"),
}
DIFFERENTIABLE = {name: op for name, op in CHOSEN.items() if op.supports_autograd and name not in NOT_A_DERIVATIVE}


def numbers(sample: Any) -> int:
    """How many numbers there are to differentiate for."""
    return sum(t.numel() for t in tensors((sample.input, sample.args, sample.kwargs)) if t.requires_grad)


def smallest(op: Any) -> Any:
    """The smallest sample with something to differentiate for; of one or two numbers only if there is no other."""
    torch.manual_seed(0)
    made = itertools.islice(op.sample_inputs_func(op, "cpu", torch.float64, True), SAMPLES)
    fitting = [sample for sample in made if numbers(sample)]
    return min(fitting, key=lambda sample: (numbers(sample) < 3, numbers(sample)), default=None)


def check(op: Any, call: Any, sample: Any, compiler: Any = lambda fn: aot_function(fn, as_it_is)) -> None:
    """Check the gradients of `call`, compiled, as a function of all the sample's tensors."""
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def fn(*given: Tensor) -> Sequence[Tensor]:
        values = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            values[place] = tensor
        args, kwargs = pytree.tree_unflatten(values, spec)
        result = op.gradcheck_wrapper(call, *args, **kwargs)
        if sample.output_process_fn_grad is not None:
            result = sample.output_process_fn_grad(result)
        return [tensor for tensor in tensors(result) if tensor.requires_grad]

    compiled = compiler(fn)
    inputs = [leaves[place].detach().clone().requires_grad_(leaves[place].requires_grad) for place in places]
    fast = numbers(sample) > ALL_ENTRIES
    assert gradcheck(lambda *given: tuple(compiled(*given)), inputs, fast_mode=fast, nondet_tol=op.gradcheck_nondet_tol)


def test_there_are_enough() -> None:
    assert len(DIFFERENTIABLE) > 400
    kinds = "sin sum index_select linalg.inv nn.functional.conv2d nn.functional.layer_norm nn.functional.mse_loss view"
    assert set(kinds.split()) <= set(DIFFERENTIABLE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_an_operator(name: str) -> None:
    op = DIFFERENTIABLE[name]
    sample = smallest(op)
    if sample is None:
        pytest.skip("no sample with something to differentiate for")
    check(op, op.op, sample)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in WRITING if name not in NOT_A_DERIVATIVE])
def test_an_operator_in_place(name: str) -> None:
    op = WRITING[name]
    sample = smallest(op)

    def write(value: Tensor, /, *args: Any, **kwargs: Any) -> Any:
        return op.inplace_variant(value * 1, *args, **kwargs)

    if sample is None or sample.broadcasts_input or not isinstance(sample.input, Tensor):
        pytest.skip("no sample that can be written to")
    try:
        run(write, (sample.input, *sample.args), sample.kwargs)
    except RuntimeError as error:
        pytest.skip(f"eager cannot: {error}")
    check(op, write, sample)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NOT_A_DERIVATIVE)
def test_what_is_left_out_fails_in_eager_too(name: str) -> None:
    op = CHOSEN[name]
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        check(op, op.op, smallest(op), compiler=lambda fn: fn)
