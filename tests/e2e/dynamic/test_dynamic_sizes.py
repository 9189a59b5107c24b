"""Sizes and strides that change: what programs learn of them, inputs that share memory, sizes of nothing and of one."""

from __future__ import annotations

import pytest
import torch
from harness import World, check, rand

import stator

SIZES = ((5, 3), (7, 3), (9, 3), (5, 3), (12, 3))
SYMBOLIC = "miss miss hit hit hit"
SPECIAL = "miss miss miss hit miss"


def check_sizes(fn, expect, sizes=SIZES, **options):
    calls = [lambda w, size=size, seed=seed: w.fn(rand(seed, *size)) for seed, size in enumerate(sizes)]
    return check(lambda: World(fn=fn), calls, expect=expect, **options)


STAYS_SYMBOLIC = {
    "shape": lambda x: (x * 2, x.shape, x.size(), x.shape[:1], x.shape[-1]),
    "parts": lambda x: (x * x.shape[0], list(x.shape), {"n": x.shape[0]}, (x.size(0), [x.shape[0] + 1])),
    "size by keyword": lambda x: (x * x.size(dim=0), x.size(-2)),
    "stride by keyword": lambda x: (
        x.t().contiguous() * 2,
        x.t().contiguous().stride(dim=0),
        x.t().contiguous().stride(),
    ),
    "length": lambda x: (x * len(x), x.__len__(), len(x.t())),
    "numel": lambda x: (x * x.numel(), x.nelement(), torch.numel(x), x.nbytes, x.shape.numel()),
    "unpacked": lambda x: (lambda n, m: x.view(n, m, 1) + n * m)(*x.shape),
    "view": lambda x: x.view(-1) * 2,
    "view of parts": lambda x: x.view(x.shape[0], 3, 1).view(-1, 1).squeeze(-1),
    "reshape": lambda x: x.t().reshape(-1).reshape(3, -1),
    "flatten": lambda x: x.flatten().unflatten(0, (3, x.shape[0])),
    "expand": lambda x: x[:1].expand(x.shape[0], -1) + x,
    "cat": lambda x: torch.cat([x, x[1:], x.new_zeros(x.shape[0], 3)]),
    "stack": lambda x: torch.stack([x, x]).transpose(0, 1).sum(-1),
    "slices": lambda x: (x[1:-1], x[: x.shape[0] - 2], x[x.shape[0] - 2 :], x[::2].sum(0)),
    "last": lambda x: (x[-1], x[x.shape[0] - 1], x[len(x) - 2]),
    "arange": lambda x: x + torch.arange(x.shape[0]).unsqueeze(1),
    "masks": lambda x: (x @ x.t()).masked_fill(torch.ones(len(x), len(x)).tril() == 0, 0.0),
    "softmax": lambda x: (x @ x.t()).softmax(-1) / x.shape[0] ** 0.5,
    "contiguous": lambda x: (x.contiguous() is x, x.t().contiguous() + 1, x.is_contiguous(), x.t().is_contiguous()),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 1)),
    "mean": lambda x: x.sum() / x.numel() + x.mean(),
    "einsum": lambda x: torch.einsum("ij,ik->jk", x, x),
    "in place": lambda x: x.clone().add_(x.shape[0]).mul_(2).t_(),
    "setitem": lambda x: torch.zeros(len(x) + 1, 3).index_put_((torch.arange(len(x)),), x),
    "isinstance": lambda x: x * 2 if isinstance(x.shape, tuple) and isinstance(x.shape[0], int) else x,
    "tuple of sizes": lambda x: x.new_ones(tuple(x.shape)) + x.new_zeros(x.shape) + torch.ones(*x.shape),
    "compared with constants": lambda x: x * 2 if x.shape[0] > 4 and len(x) != 3 else x,
}


@pytest.mark.parametrize("fn", STAYS_SYMBOLIC.values(), ids=list(STAYS_SYMBOLIC))
def test_it_stays_symbolic(fn):
    check_sizes(fn, SYMBOLIC)


NEEDS_THE_NUMBER = {
    "loops": lambda x: sum([x[i] for i in range(x.shape[0])]),
    "iteration": lambda x: [row * 2 for row in x],
    "unbind": lambda x: torch.stack(x.unbind(0)[::-1]),
    "keys": lambda x: (x * 2, {x.shape: 1}),
    "order of dimensions": lambda x: (x * 2, x.dim_order()),
}


@pytest.mark.parametrize("fn", NEEDS_THE_NUMBER.values(), ids=list(NEEDS_THE_NUMBER))
def test_it_needs_the_number(fn):
    check_sizes(fn, SPECIAL)


def test_sizes_of_nothing_and_of_one_are_recordings_of_their_own():
    sizes = ((5, 3), (7, 3), (1, 3), (0, 3), (2, 3), (1, 3), (0, 3), (6, 3))
    check_sizes(lambda x: (x * 2).sum(0) + x.shape[0], "miss miss miss miss hit hit hit hit", sizes)


def test_sizes_of_nothing_and_of_one_first():
    sizes = ((1, 3), (0, 3), (2, 3), (5, 3), (6, 3), (1, 3), (0, 3))
    check_sizes(lambda x: (x * 2).sum(0) + x.shape[0], "miss miss miss hit hit hit hit", sizes)


def test_broadcasting_is_noticed():
    sizes = ((5, 3), (7, 3), (1, 3), (5, 1), (9, 3), (8, 1))
    check_sizes(lambda x: x + torch.ones(x.shape[0], 3), "miss miss miss miss hit hit", sizes)


def test_comparisons_of_sizes_are_relations():
    sizes = ((3, 4), (4, 3), (5, 6), (7, 2), (3, 3), (9, 10), (8, 1))
    seen = check_sizes(lambda x: x * 2 if x.shape[0] > x.shape[1] else x * 3, None, sizes)
    assert seen.world.fn.stator.recordings <= 4
    check_sizes(lambda x: x + x.t(), "miss miss hit hit miss", ((3, 3), (4, 4), (5, 5), (2, 2), (1, 1)))


def test_both_sizes_change():
    sizes = ((2, 3), (4, 5), (6, 7), (3, 9), (8, 2))
    check_sizes(lambda x: (x @ x.t()).sum(0) + x.shape[0] * x.shape[1], SYMBOLIC, sizes)


def check_tensors(fn, tensors, **options):
    calls = [lambda w, make=make, seed=seed: w.fn(*make(seed)) for seed, make in enumerate(tensors)]
    return check(lambda: World(fn=fn), calls, expect=None, **options)


LAYOUTS = [
    lambda s: (rand(s, 4, 6),),
    lambda s: (rand(s, 6, 4).t(),),
    lambda s: (rand(s, 8, 6)[::2],),
    lambda s: (rand(s, 5, 6),),
    lambda s: (rand(s, 6, 5).t(),),
    lambda s: (rand(s, 10, 6)[::2],),
    lambda s: (rand(s, 7, 6),),
    lambda s: (rand(s, 6, 9).t(),),
    lambda s: (rand(s, 28, 6)[::4],),
]
PROGRAMS_OF_STRIDES = {
    "facts": lambda x: (x * 2, x.stride(), x.contiguous(), x.is_contiguous(), x.contiguous() is x),
    "reshape": lambda x: x.reshape(-1) * 2,
    "in place": lambda x: x.add_(1).mul_(x.shape[0]),
    "view": lambda x: x.t().t().flatten(),
    "rows": lambda x: x[1] + x[:, 2].sum(),
}


@pytest.mark.parametrize("fn", PROGRAMS_OF_STRIDES.values(), ids=list(PROGRAMS_OF_STRIDES))
def test_strides_that_change(fn):
    seen = check_tensors(fn, LAYOUTS)
    assert seen.world.fn.stator.recordings <= 7


def test_views_of_what_cannot_be_viewed_raise():
    seen = check_tensors(lambda x: x.view(-1) * 2, LAYOUTS, raises=RuntimeError)
    assert seen.outcomes[0] == "miss" and seen.outcomes[6] == "hit"


def test_writing_to_expanded_inputs_raises():
    expanded = [
        *(lambda s, n=n: (rand(s, 2 * n, 6)[::2],) for n in (4, 5, 6)),
        lambda s: (rand(s, 24, 6)[::3],),
        lambda s: (rand(s, 1, 6).expand(4, 6),),
        lambda s: (rand(s, 1, 6).expand(7, 6),),
        lambda s: (rand(s, 27, 6)[::3],),
    ]
    seen = check_tensors(lambda x: x.add_(1), expanded, raises=RuntimeError)
    assert seen.outcomes[4:] == ["plain", "plain", "hit"]


def test_memory_formats():
    def fn(x):
        return x * 2 if x.is_contiguous(memory_format=torch.channels_last) else x * 3

    def plain(n, h):
        return lambda s: (rand(s, n, 3, h, 5),)

    def last(n, h):
        return lambda s: (rand(s, n, 3, h, 5).contiguous(memory_format=torch.channels_last),)

    seen = check_tensors(fn, [plain(2, 4), last(2, 4), plain(3, 4), last(3, 4), plain(4, 7), last(4, 7), last(5, 9)])
    assert seen.world.fn.stator.recordings <= 7


PAIRS = [(4, 4), (5, 5), (6, 5), (6, 6), (7, 8), (9, 9), (3, 2)]
PROGRAMS_OF_TWO = {
    "is_same_size": (lambda x, y: x * 2 if x.is_same_size(y) else x * 3, 3),
    "equal shapes": (lambda x, y: x * 2 if x.shape == y.shape else y * 3, 3),
    "cat": (lambda x, y: torch.cat([x, y]) * x.shape[0], 2),
    "larger": (lambda x, y: x * 2 if len(x) > len(y) else y * 3, 3),
    "largest": (lambda x, y: torch.zeros(max(len(x), len(y))) + min(len(x), len(y)), 4),
}


@pytest.mark.parametrize(("fn", "most"), PROGRAMS_OF_TWO.values(), ids=list(PROGRAMS_OF_TWO))
def test_two_sizes(fn, most):
    seen = check_tensors(fn, [lambda s, p=p: (rand(s, p[0]), rand(s + 1, p[1])) for p in PAIRS])
    assert seen.world.fn.stator.recordings <= most


def test_two_sizes_that_do_not_fit():
    pairs = [lambda s, p=p: (rand(s, p[0]), rand(s + 1, p[1])) for p in PAIRS]
    seen = check_tensors(lambda x, y: x + y, pairs, raises=RuntimeError)
    assert seen.outcomes == "miss miss plain hit plain hit plain".split()


def one_twice(s, n):
    base = rand(s, n, 4)
    return base, base


def two_of_one(s, n):
    base = rand(s, 2 * n, 4)
    return base[:n], base[n:]


def two(s, n):
    return rand(s, n, 4), rand(s + 1, n, 4)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: (x.add_(1), y * 2, x is y),
        lambda x, y: (x.mul_(2), y + x, y.add_(x.shape[0])),
        lambda x, y: (x[:-1].add_(1), y.sum(0)),
    ],
)
def test_inputs_that_share_memory(fn, dynamic):
    kinds = [one_twice, two, one_twice, two, two_of_one, two_of_one, two, one_twice, two_of_one]
    calls = [lambda s, kind=kind: kind(s, s + 3) for kind in kinds]
    if dynamic is None:
        seen = check_tensors(fn, calls)
        assert seen.world.fn.stator.recordings <= 6 and seen.outcomes[-3:] == ["hit"] * 3
    for backend in ("eager", "aot_eager"):
        compiled = stator.compile(fn, backend=backend, dynamic=dynamic)
        for seed, make in enumerate(calls):
            plain, given = make(seed), make(seed)
            expected, found = fn(*plain), compiled(*given)
            torch.testing.assert_close((found, given), (expected, plain), rtol=0, atol=0)
        assert compiled.stator.recordings <= 6 and compiled.stator.hits >= 3


def test_views_of_inputs_are_handed_out():
    def fn(x):
        top = x[: x.shape[0] // 2]
        top.add_(1)
        return top, x.view(-1), x.t()

    check_sizes(fn, SYMBOLIC, ((4, 3), (6, 3), (8, 3), (4, 3), (10, 3)))


def test_gradients_of_symbolic_sizes():
    def fn(x, w):
        y = (x @ w).relu().sum() / x.shape[0]
        y.backward()
        return y.detach(), w.grad

    check(
        lambda: World(fn=fn, w=rand(1, 3, 2, requires_grad=True)),
        [lambda w, n=n: w.fn(rand(n, n, 3), w.w) for n in (4, 6, 9, 4, 7)],
        expect=None,
    )


def test_modes_of_torch():
    def fn(x):
        with torch.no_grad():
            y = x * x.shape[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ x.t()
        return y, z, z.dtype

    check_sizes(fn, SYMBOLIC)


def test_random_numbers_of_symbolic_sizes():
    def fn(x):
        return torch.rand(x.shape[0]) + torch.randn_like(x).sum(1), torch.nn.functional.dropout(x, 0.5)

    check_sizes(fn, SYMBOLIC)


def test_parameters_are_static():
    linear = torch.nn.Linear(3, 2)

    def fn(x, module):
        return module(x)

    other = torch.nn.Linear(3, 5)
    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1, 4, 3), linear),
            lambda w: w.fn(rand(2, 5, 3), linear),
            lambda w: w.fn(rand(3, 6, 3), linear),
            lambda w: w.fn(rand(4, 6, 3), other),
            lambda w: w.fn(rand(5, 7, 3), other),
        ],
        expect="miss miss hit miss hit",
    )
