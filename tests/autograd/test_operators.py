"""Torch's own database of operators: forward and backward by way of graphs, in float64, compared with eager.

An operator is in unless a table below says why not. Of each, one sample of the inputs that torch's tests use.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from comparing import as_it_is
from op_database import DATABASE, SEEDS_INSIDE, UNDEFINED
from torch import Tensor
from torch.utils import _pytree as pytree

from stator.autograd import aot_function
from stator.errors import CannotDerive

# Results whose value or shape needs data: the capture breaks there too. `CannotDerive`, or torch's own error.
NEEDS_DATA = set(
    "item allclose combinations corrcoef cov equal masked_select narrow tensor_split index_fill index_put unique "
    "unique_consecutive nonzero argwhere nn.functional.ctc_loss nn.functional.gaussian_nll_loss linalg.lstsq "
    "linalg.lstsq.grad_oriented resize_ resize_as_ sparse.sampled_addmm sparse.mm.reduce".split()
)
NOT_HERE = {"to_sparse", "linalg.eig"}  # eager fails on the sample
OTHERS = ("jiterator", "masked.", "signal.", "ops.")


OPERATORS = {name: op for name, op in DATABASE.items() if torch.float64 in op.dtypes}
OUT = NEEDS_DATA | SEEDS_INSIDE | NOT_HERE | UNDEFINED
CHOSEN = {name: op for name, op in OPERATORS.items() if name not in OUT and not name.startswith(OTHERS)}
WRITING = {name: op for name, op in CHOSEN.items() if op.inplace_variant and op.supports_autograd}
IN_PLACE = dict(itertools.islice(WRITING.items(), 0, None, 2))  # every other: they go by one rule


def samples(op: Any) -> list[Any]:
    torch.manual_seed(0)
    made = op.sample_inputs_func(op, "cpu", torch.float64, op.supports_autograd)  # past a tracker that walks the stack
    return list(itertools.islice(made, 2))


def tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def run(fn: Any, args: Any, kwargs: Any) -> tuple[list[Tensor], list[Tensor | None]]:
    """Results and gradients."""
    torch.manual_seed(0)
    outputs = tensors(fn(*args, **kwargs))
    wanted = [tensor for tensor in tensors((args, kwargs)) if tensor.requires_grad]
    given = [output for output in outputs if output.requires_grad]
    if not given or not wanted:
        return outputs, []
    torch.manual_seed(1)
    tangents = [torch.randn_like(output) for output in given]
    return outputs, list(torch.autograd.grad(given, wanted, tangents, allow_unused=True))


def compare(fn: Any, args: Any, kwargs: Any) -> None:
    expected = run(fn, args, kwargs)
    found = run(aot_function(fn, as_it_is), args, kwargs)
    assert len(found[0]) == len(expected[0])
    for one, other in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        if one is None or other is None:  # no gradient, or zeros
            assert all(t is None or not t.any() for t in (one, other))
        else:
            torch.testing.assert_close(one, other, equal_nan=True)


def test_there_are_enough() -> None:
    assert len(CHOSEN) > 500
    assert len(IN_PLACE) > 50


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHOSEN)
def test_an_operator(name: str) -> None:
    sample = samples(CHOSEN[name])[-1]
    compare(CHOSEN[name].op, (sample.input, *sample.args), sample.kwargs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IN_PLACE)
def test_an_operator_in_place(name: str) -> None:
    op = IN_PLACE[name]
    sample = next((s for s in samples(op) if not s.broadcasts_input and isinstance(s.input, Tensor)), None)
    if sample is None:
        pytest.skip("no sample that can be written to")

    def fn(value: Tensor, /, *args: Any, **kwargs: Any) -> Any:
        return op.inplace_variant(value * 1, *args, **kwargs)

    try:
        run(fn, (sample.input, *sample.args), sample.kwargs)
    except RuntimeError as error:
        pytest.skip(f"eager cannot: {error}")
    compare(fn, (sample.input, *sample.args), sample.kwargs)


@pytest.mark.parametrize("name", ["masked_select", "nonzero", "unique", "equal", "item"])
def test_what_needs_data_is_refused(name: str) -> None:
    sample = samples(OPERATORS[name])[0]
    with pytest.raises(CannotDerive):
        aot_function(OPERATORS[name].op, as_it_is)(sample.input, *sample.args, **sample.kwargs)
