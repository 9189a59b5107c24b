"""Sizes and numbers that depend on what is in a tensor: a replay with other data has others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import World, check, rand
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

import stator


def numbers(*values: Any) -> torch.Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values)


def image(seed: int = 1) -> torch.Tensor:
    return rand(seed, 1, 2, 8, 8)


def _padded(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    y, found = pad_packed_sequence(packed, batch_first=True)
    return y * 2, y.shape, found


def _pad_by_operator(x: torch.Tensor, sizes: torch.Tensor) -> Any:
    y, found = torch._VF._pad_packed_sequence(x, sizes, True, 0.0, 0)
    return y, y.shape, found


def _new(x: torch.Tensor, t: torch.Tensor) -> Any:
    return tuple(x.new(t, 3).shape), x * 2


def _sparse(x: torch.Tensor, i: torch.Tensor) -> Any:
    return tuple(torch.sparse_coo_tensor(i, x).shape), x * 2


def _compressed(x: torch.Tensor, i: torch.Tensor) -> Any:
    return tuple(torch.sparse_csr_tensor(torch.tensor([0, 2, 4]), i, x).shape), x * 2


def _columns(x: torch.Tensor) -> Any:
    y = x.to_sparse_csr()
    return y.col_indices() + 1, y.col_indices().shape, x * 2


def _quantization(x: torch.Tensor) -> Any:
    scale, zero = torch._choose_qparams_per_tensor(x)
    return x * scale + zero, scale, zero


def _fractional(x: torch.Tensor, t: torch.Tensor) -> Any:
    samples = torch.full((1, 2, 2), 0.5)
    y = F.fractional_max_pool2d(x, 2, output_size=(t, t), _random_samples=samples)
    return y, y.shape


def _with_shape(function: Callable[..., Any]) -> Callable[..., Any]:
    def fn(*args: Any) -> Any:
        y = function(*args)
        return y * 2, y.shape

    return fn


Program = tuple[Callable[..., Any], list[tuple[Any, ...]]]
SMALL_TO_LARGE = [(image(n), numbers(size)) for n, size in enumerate((4, 4, 2, 3))]
PROGRAMS: dict[str, Program] = {
    "packed sequences": (
        _with_shape(lambda x, n: pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False).data),
        [(rand(1, 2, 4, 3), numbers(a, b)) for a, b in ((4, 2), (4, 2), (3, 1), (4, 4))],
    ),
    "packed and padded": (
        _padded,
        [(rand(1, 2, 4, 3), numbers(a, b)) for a, b in ((4, 2), (4, 2), (3, 1), (2, 2))],
    ),
    "padded by its operator": (
        _pad_by_operator,
        [(rand(1, 4, 3), numbers(s)) for s in ([2, 2], [2, 2], [3, 1], [1, 1, 1, 1])],
    ),
    "one_hot": (_with_shape(F.one_hot), [(numbers(0, 1, n),) for n in (2, 2, 4, 3)]),
    "one_hot with classes of a tensor": (
        _with_shape(lambda i: F.one_hot(i, i.max() + 1)),
        [(numbers(0, 1, n),) for n in (2, 2, 4, 3)],
    ),
    "repeat_interleave": (_with_shape(torch.repeat_interleave), [(numbers(0, 1, n),) for n in (2, 2, 4, 3)]),
    "a mask, by overload": (
        _with_shape(lambda x: torch.ops.aten.index(x, [x > 0])),
        [(rand(n, 9),) for n in (1, 1, 2, 3)],
    ),
    "a mask, by the overload itself": (
        _with_shape(lambda x: torch.ops.aten.index.Tensor(x, [x > 0])),
        [(rand(n, 9),) for n in (1, 1, 2, 3)],
    ),
    "sparse_coo_tensor": (_sparse, [(rand(1, 3), numbers([[0, 1, n]])) for n in (2, 2, 4, 3)]),
    "sparse_csr_tensor": (_compressed, [(rand(1, 4), numbers([0, 1, 0, n])) for n in (2, 2, 4, 3)]),
    "col_indices": (_columns, [(torch.eye(3) * n + (rand(k, 3, 3) > 0),) for k, n in enumerate((1, 1, 0, 1))]),
    "interpolate": (_with_shape(lambda x, t: F.interpolate(x, size=t)), SMALL_TO_LARGE),
    "interpolate, two sizes": (_with_shape(lambda x, t: F.interpolate(x, size=(t, t))), SMALL_TO_LARGE),
    "Upsample": (_with_shape(lambda x, t: nn.Upsample(size=(t, t))(x)), SMALL_TO_LARGE),
    "max_pool1d": (_with_shape(lambda x, t: F.max_pool1d(x[0], t)), SMALL_TO_LARGE),
    "max_pool2d": (_with_shape(lambda x, t: F.max_pool2d(x, t)), SMALL_TO_LARGE),
    "max_pool2d, two sizes": (_with_shape(lambda x, t: F.max_pool2d(x, (t, t))), SMALL_TO_LARGE),
    "max_pool3d": (_with_shape(lambda x, t: F.max_pool3d(x, (1, t, t))), SMALL_TO_LARGE),
    "lp_pool": (_with_shape(lambda x, t: F.lp_pool1d(x[0], 2.0, t)), SMALL_TO_LARGE),
    "adaptive_avg_pool2d": (_with_shape(lambda x, t: F.adaptive_avg_pool2d(x, (t, t))), SMALL_TO_LARGE),
    "adaptive_max_pool2d": (_with_shape(lambda x, t: F.adaptive_max_pool2d(x, (t, t))), SMALL_TO_LARGE),
    "fractional_max_pool2d": (_fractional, SMALL_TO_LARGE),
    "affine_grid": (
        _with_shape(lambda x, t: F.affine_grid(x, (1, 1, t, t))),
        [(rand(1, 1, 2, 3), numbers(size)) for size in (4, 4, 2, 3)],
    ),
    "tensordot": (
        _with_shape(lambda x, t: torch.tensordot(x, x, dims=t)),
        [(rand(1, 3, 3), numbers(dims)) for dims in (1, 1, 2, 0)],
    ),
    "full": (
        _with_shape(lambda x, t: torch.full((2,), fill_value=t) + x),
        [(rand(1, 2), numbers(f)) for f in (1.0, 1.0, 2.0, 3.0)],
    ),
    "full of a number of another kind": (
        _with_shape(lambda x, t: torch.full((2,), t) + x),
        [(rand(1, 2), numbers(f)) for f in (1.0, 1.0, 2, 3.0)],
    ),
    "new": (_new, [(rand(1), numbers(n)) for n in (2, 2, 4, 3)]),
    "size": (lambda x, t: (x * 2, x.size(t)), [(rand(1, 2, 3, 4), numbers(n)) for n in (0, 0, 1, 2)]),
    "stride": (lambda x, t: (x * 2, x.stride(t)), [(rand(1, 2, 3, 4), numbers(n)) for n in (0, 0, 1, 2)]),
    "_choose_qparams_per_tensor": (_quantization, [(rand(n, 9),) for n in (1, 1, 2, 3)]),
    "nonzero": (_with_shape(torch.nonzero), [((rand(n, 9) > 0).int(),) for n in (1, 1, 2, 3)]),
    "tensor_split": (
        lambda x, t: [(y * 2, y.shape) for y in torch.tensor_split(x, t)],
        [(rand(1, 9), numbers(n)) for n in (3, 3, 2, 4)],
    ),
    "bincount": (_with_shape(torch.bincount), [(numbers(0, 1, n),) for n in (2, 2, 4, 3)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_follow_the_data(name):
    fn, arguments = PROGRAMS[name]
    calls = [lambda w, args=args: w.fn(*args) for args in arguments]
    done = check(lambda: World(fn=fn), calls, expect=None)
    assert "plain" not in done.outcomes, done.outcomes
    assert done.graphs


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_ahead_of_time(name, backend):
    fn, arguments = PROGRAMS[name]
    compiled = stator.compile(fn, backend=backend)
    for args in arguments:
        wanted, found = pytree.tree_flatten(fn(*args)), pytree.tree_flatten(compiled(*args))
        torch.testing.assert_close(found[0], wanted[0])
        assert found[1] == wanted[1]
    assert compiled.stator.hits
