"""Python that depends on the values inside tensors, or on facts about tensors that are rarely asked for.

Such a program may stay plain, but it must never be replayed with the answer of an earlier call.
"""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
import torch
from harness import World, check, rand

FLOATS = [[1.0, -2.0, 3.0, 0.0], [1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 0.0, -4.0], [5.0, 6.0, 7.0, 8.0]]

SCALARS = {
    "item": lambda x: x * x.sum().item(),
    "float": lambda x: x * float(x[0]),
    "int": lambda x: x * int(x[0]),
    "bool": lambda x: x + 1 if bool(x[0] > 0) else x - 1,
    "if": lambda x: x + 1 if x.sum() > 0 else x - 1,
    "not": lambda x: x * (2 if not x[1] else 3),
    "or": lambda x: (x[1] or x[0]) * x,
    "and": lambda x: (x[1] and x[0]) * x,
    "conditional": lambda x: (x[0] if x[1] > 0 else x[2]) * x,
    "while": lambda x: halved(x),
    "comparison chain": lambda x: x * (2 if 0 < x[0] < 3 else 3),
    "in": lambda x: x * (2 if 2.0 in x else 3),
    "tolist": lambda x: x * sum(x.tolist()),
    "numpy": lambda x: x * float(x.numpy().sum()),
    "np.array": lambda x: x * float(np.array(x).sum()),
    "np.sum": lambda x: x * float(np.sum(x.numpy())),
    "math": lambda x: x * math.floor(x[0]) + math.sqrt(x[2].abs()),
    "format": lambda x: (x * 2, f"{x[0]:.2f} {x[1]}"),
    "str": lambda x: (x * 2, str(x), repr(x)),
    "percent": lambda x: (x * 2, PERCENT % (x[0], x[1])),
    "range": lambda x: [x * n for n in range(x[2].int().abs())],
    "index of a list": lambda x: x * [5, 6, 7, 8, 9, 10, 11, 12][x[2].int().abs()],
    "operator index": lambda x: x * operator.index(x[2].int()),
    "slice of a list": lambda x: (x * 2, [1, 2, 3, 4][: x[0].int().abs()]),
    "times a list": lambda x: (x * 2, [1] * x[2].int().abs()),
    "max of tensors": lambda x: max(x[0], x[1], x[2]) * x,
    "sorted tensors": lambda x: torch.stack(sorted(x)) * 2,
    "sorted by tensor": lambda x: (x * 2, sorted(range(4), key=lambda i: x[i])),
    "any and all": lambda x: x * (2 if any(x > 0) else 3) * (5 if all(x > 0) else 7),
    "filter": lambda x: torch.stack(list(filter(lambda t: t > 0, [*x, torch.tensor(1.0)]))),
    "equal": lambda x: x * (2 if torch.equal(x, x.abs()) else 3),
    "allclose": lambda x: x * (2 if torch.allclose(x, x.abs()) else 3),
    "is_nonzero": lambda x: x * (2 if x[1].is_nonzero() else 3),
    "list index": lambda x: (x * 2, [1.0, 2.0, 3.0].index(abs(x[0]) % 3 + 1)),
    "dict key": lambda x: (x * 2, {1.0: "one", 5.0: "five"}.get(abs(x[0]).item())),
    "sum to int": lambda x: x * sum(int(v > 0) for v in x),
    "assert": lambda x: asserted(x) * 2,
    "zip strict": lambda x: x * len([1 for v, n in zip(x, range(4), strict=True) if v > n]),
    "complex": lambda x: x * abs(complex(x[0])),
    "round": lambda x: x * round(x[0].item() * 1.4),
    "divmod": lambda x: x * divmod(int(x[2]), 2)[1],
    "power": lambda x: x * 2 ** int(x[0]),
    "enumerate": lambda x: [n for n, v in enumerate(x) if v > 0] and x * 2,
    "match": lambda x: matched(x),
    "try": lambda x: tried(x),
}
PERCENT = "%.1f %s"

SHAPES = {
    "nonzero": lambda x: x * x.nonzero().shape[0],
    "where": lambda x: x * len(torch.where(x > 0)[0]),
    "mask": lambda x: x * x[x > 0].numel(),
    "masked select": lambda x: x * torch.masked_select(x, x > 0).size(0),
    "unique": lambda x: x * torch.unique(x).shape[0],
    "unique consecutive": lambda x: x * torch.unique_consecutive(x).shape[0],
    "bincount": lambda x: x * torch.bincount(x.int().abs()).shape[0],
    "repeat interleave": lambda x: x * torch.repeat_interleave(torch.arange(4), x.int().abs()).shape[0],
    "arange": lambda x: x * torch.arange(x[2].abs()).shape[0],
    "zeros": lambda x: x * torch.zeros(int(x[2].abs())).shape[0],
    "slice": lambda x: x * x[x[0].int().abs() % 4 :].shape[0],
    "narrow": lambda x: x * x.narrow(0, 0, int(x[0].abs()) % 4).shape[0],
    "one hot": lambda x: x * torch.nn.functional.one_hot(x.long().abs()).shape[1],
    "split": lambda x: x * len(torch.split(x, int(x[0].abs()))),
    "expand": lambda x: x * x[:1].expand(int(x[2].abs())).shape[0],
    "view": lambda x: (x * 2).view(-1, 1 if x[3] > 0 else 2).shape[1] * x,
    "loop over a mask": lambda x: sum([v for v in x[x > 0]], start=x),
    "returned": lambda x: (x[x > 0] * 2, x.nonzero()),
    "empty or not": lambda x: x * 2 if len(x[x < 0]) else x * 3,
    "narrow by tensors": lambda x: x * x.narrow(0, torch.tensor(0), x[0].int().abs() % 4).shape[0],
    "topk by a tensor": lambda x: x * x.topk(x[0].int().abs() % 4).values.shape[0],
    "repeat by a tensor": lambda x: x * x.repeat(x[0].int().abs()).shape[0],
    "view by a tensor": lambda x: x * (x * 2).view(1 + (x[1] == 0).int(), -1).shape[0],
    "slice by a tensor": lambda x: x * x[: x[0].int().abs() % 4].shape[0],
    "sum over a tensor's dimension": lambda x: x * x.expand(2, 4).sum((x[1] == 0).int()).shape[0],
    "unsqueeze by a tensor": lambda x: x * x.unsqueeze((x[1] == 0).int()).shape[0],
    "randint by a tensor": lambda x: x * torch.randint(0, 9, (x[0].int().abs(),)).shape[0],
    "full by a tensor": lambda x: x * torch.full((x[0].int().abs(),), 1.0).shape[0],
    "linspace by tensors": lambda x: torch.linspace(x[0], x[1], 4) * x,
    "eye by a tensor": lambda x: x * torch.eye(x[0].int().abs()).shape[0],
    "tensor split": lambda x: x * len(x.tensor_split(x[:2].long().abs())[0]),
    "argwhere": lambda x: x * torch.argwhere(x).shape[0],
    "sparse": lambda x: x * x.to_sparse().indices().shape[1],
    "chunk by a tensor": lambda x: x * len(x.chunk(x[0].int().abs())),
    "one element by a tensor": lambda x: x * x.select(0, x[0].int().abs() % 4),
    "tensor of tensors": lambda x: torch.tensor([x[0], x[1], 2.0, x[3]]) * x,
    "as_tensor of tensors": lambda x: torch.as_tensor([x[0], x[1], 2.0, x[3]]) * x,
    "new_tensor of tensors": lambda x: x.new_tensor([x[0], 1.0, 2.0, x[3]]) * x,
    "full of a tensor": lambda x: torch.full((4,), x[0]) * x,
    "fill by a tensor": lambda x: torch.zeros(4).fill_(x[0]) * x,
    "clamp by tensors": lambda x: x.clamp(x[1], x[2]),
    "alpha by a tensor": lambda x: torch.add(x, x, alpha=x[0].item()),
    "setitem of a list": lambda x: written(x),
    "tensor as size": lambda x: torch.ones(torch.tensor(2), x[2].int().abs()).sum() * x,
}


def written(x):
    y = torch.zeros(4)
    y[0] = x[1]
    y[[1, 2]] = x[:2]
    y[x > 0] = 7
    return y * x


def halved(x):
    while x.abs().max() > 1:
        x = x / 2
    return x


def asserted(x):
    if not (x[2] != 0 or x[3] < 0):
        raise AssertionError
    return x


def matched(x):
    match x[0].item():
        case 1.0:
            return x * 2
        case 5.0:
            return x * 3
        case _:
            return x * 5


def tried(x):
    try:
        return x * (1 / x[1].item())
    except ZeroDivisionError:
        return x - 1


@pytest.mark.parametrize("name", [*SCALARS, *SHAPES])
def test_a_decision_by_value(name):
    fn = SCALARS.get(name) or SHAPES[name]
    why = "tensor-scalar" if name == "sum to int" else "numpy"
    check(lambda: World(fn=fn), [lambda w, v=v: w.fn(torch.tensor(v)) for v in FLOATS], expect=None, unreplayed=why)


FACTS = {
    "storage offset": lambda x: x.storage_offset(),
    "is a view": lambda x: x._is_view(),
    "has a base": lambda x: x._base is None,
    "version": lambda x: x._version,
    "grad_fn": lambda x: x.grad_fn is None,
    "name of grad_fn": lambda x: type(x.grad_fn).__name__,
    "leaf": lambda x: x.is_leaf,
    "grad": lambda x: x.grad is None,
    "retains grad": lambda x: x.retains_grad,
    "requires grad": lambda x: x.requires_grad,
    "inference": lambda x: x.is_inference(),
    "conjugate": lambda x: x.is_conj(),
    "negative": lambda x: x.is_neg(),
    "contiguous": lambda x: x.is_contiguous(),
    "strides": lambda x: x.stride(),
    "one stride": lambda x: x.stride(0),
    "storage size": lambda x: x.untyped_storage().size(),
    "type string": lambda x: x.type(),
    "attributes": lambda x: vars(x),
    "a python attribute": lambda x: getattr(x, "tag", None),
    "class": lambda x: type(x),
    "overlap": lambda x: x.is_set_to(x),
    "length": lambda x: len(x),
    "bytes": lambda x: x.nbytes,
    "numel": lambda x: torch.numel(x),
    "is parameter": lambda x: isinstance(x, torch.nn.Parameter),
    "hooks": lambda x: x._backward_hooks is None,
}


def with_version(x, count):
    for _ in range(count):
        x.add_(0)
    return x


def with_attribute(x):
    x.tag = "tagged"
    return x


def with_grad(x):
    x = x.requires_grad_()
    x.grad = torch.ones(4)
    return x


def with_hook(x):
    x = x.requires_grad_()
    x.register_hook(lambda grad: grad)
    return x


VARIANTS = {
    "plain": lambda: rand(1),
    "view at 0": lambda: rand(1, 8)[:4],
    "view at 4": lambda: rand(1, 8)[4:],
    "step 2": lambda: rand(1, 8)[::2],
    "changed": lambda: with_version(rand(1), 3),
    "leaf": lambda: rand(1, requires_grad=True),
    "leaf with grad": lambda: with_grad(rand(1)),
    "leaf with hook": lambda: with_hook(rand(1)),
    "result": lambda: rand(1, requires_grad=True) * 2,
    "other result": lambda: rand(1, requires_grad=True) + 2,
    "parameter": lambda: torch.nn.Parameter(rand(1)),
    "tagged": lambda: with_attribute(rand(1)),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_about_a_tensor(name):
    """The variants go in one after the other, so that each fact changes against the recordings before."""

    def fn(x):
        return x.detach() * 2, FACTS[name](x)

    calls = [lambda w, make=make: w.fn(make()) for make in VARIANTS.values()]
    check(lambda: World(fn=fn), calls[:7], expect=None)
    check(lambda: World(fn=fn), calls[6:] + calls[:2], expect=None)


def test_two_tensors_on_one_storage():
    def fn(x, y):
        return x * 2, x.is_set_to(y), x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()

    def shared(w):
        base = rand(1, 8)
        return w.fn(base[:4], base[4:])

    def same(w):
        base = rand(1)
        return w.fn(base, base.detach())

    apart = (rand(1), rand(2))  # kept: an address is what is guarded
    calls = [lambda w: w.fn(*apart), lambda w: w.fn(*apart), shared, same, shared]
    check(lambda: World(fn=fn), calls, expect=None)
