"""Operations of torch on tensors whose first size changes: two recordings serve all sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import World, check, rand
from torch import nn

import stator

SIZES = (5, 7, 9, 5, 12)


def module(make):
    """A module in place of the function, with the same parameters in every run."""
    torch.manual_seed(0)
    return make().eval()


GRU = module(lambda: nn.GRU(3, 4, 2, batch_first=True, bidirectional=True))
LSTM = module(lambda: nn.LSTM(3, 4))
RNN = module(lambda: nn.RNN(3, 4, nonlinearity="relu"))
ATTENTION = module(lambda: nn.MultiheadAttention(3, 1, batch_first=True))
ENCODER = module(lambda: nn.TransformerEncoderLayer(3, 1, 8, batch_first=True))

SYMBOLIC = {
    "as_strided": lambda x: x.as_strided((x.shape[0] - 1, 3), (3, 1)) * 2,
    "attention": lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3, is_causal=True),
    "avg_pool1d": lambda x: F.avg_pool1d(x.t()[None], 2),
    "bmm": lambda x: torch.bmm(x[None], x.t()[None]),
    "cdist": lambda x: torch.cdist(x, x),
    "chunk": lambda x: x.chunk(2)[0] * 2,
    "complex": lambda x: torch.view_as_real(torch.complex(x, x)),
    "conv1d": lambda x: F.conv1d(x.t()[None], torch.ones(2, 3, 3)),
    "cumsum": lambda x: x.cumsum(0),
    "data": lambda x: x.data * 2 + x.detach().shape[0],
    "embedding": lambda x: F.embedding(torch.arange(x.shape[0]) % 4, torch.ones(4, 2)),
    "fft": lambda x: torch.fft.fft(x.flatten()).abs(),
    "gather": lambda x: x.gather(0, torch.zeros(x.shape[0], 3, dtype=torch.long)),
    "gru": lambda x: (GRU(x[None])[0].contiguous(), GRU(x[None])[0].stride(), GRU(x[:, None])[1]),
    "index by tensors": lambda x: x[torch.arange(x.shape[0] - 1)] + x[torch.tensor(-1)],
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2.0),
    "interpolate to a size": lambda x: F.interpolate(x[None, None], size=(x.shape[0] * 2, 4), mode="bilinear"),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "lstm": lambda x: LSTM(x[None])[0],
    "max": lambda x: x.max(0).values + x.argmax(0) + x.topk(2, 0).values[0],
    "meshgrid": lambda x: torch.meshgrid(torch.arange(x.shape[0]), torch.arange(3), indexing="ij")[0] + x,
    "multi-head attention": lambda x: ATTENTION(x[None], x[None], x[None])[0],
    "narrow": lambda x: x.narrow(0, 1, x.shape[0] - 2) * 2,
    "norm": lambda x: torch.linalg.norm(x) + x.var(0) + x.std(),
    "outer": lambda x: torch.outer(x[:, 0], x[:, 1]),
    "repeat_interleave": lambda x: x.repeat_interleave(x.shape[0], 0).sum(0),
    "rnn": lambda x: (RNN(x[:, None])[0].view(-1), RNN(x[:, None])[0].is_contiguous(), RNN(x[None])[1]),
    "roll": lambda x: x.roll(x.shape[0] // 2, 0),
    "scatter": lambda x: torch.zeros(len(x) + 1, 3).scatter_(0, torch.arange(len(x))[:, None].expand(-1, 3), x),
    "searchsorted": lambda x: torch.searchsorted(torch.arange(x.shape[0]).float(), x.flatten()),
    "sort": lambda x: x.sort(0).values,
    "split": lambda x: torch.split(x, [2, x.shape[0] - 2])[1] * 2,
    "the same tensor": lambda x: (x.to(torch.float32) is x, x.float() is x, x.contiguous() is x, x + 1),
    "transformer": lambda x: ENCODER(x[None]),
    "transposes": lambda x: (x.T + 1, x.mT * 2, x.flatten(0).shape, x.unsqueeze(0).squeeze().shape),
    "triu": lambda x: torch.triu(torch.full((x.shape[0], x.shape[0]), float("-inf")), 1),
    "unfold": lambda x: x.unfold(0, 3, 1) * 2,
    "view of another type": lambda x: x.view(dtype=torch.int32) + 1,
    "vstack": lambda x: torch.vstack([x, x]) + torch.hstack([x[0], x[1]])[:3],
    "where": lambda x: torch.where(x > 0, x, torch.zeros(x.shape)),
}


def check_operation(fn, expect, **options):
    calls = [lambda w, n=n, seed=seed: w.fn(rand(seed, n, 3)) for seed, n in enumerate(SIZES)]
    return check(lambda: World(fn=fn), calls, expect=expect, **options)


@pytest.mark.parametrize("fn", SYMBOLIC.values(), ids=list(SYMBOLIC))
def test_symbolic(fn):
    check_operation(fn, "miss miss hit hit hit")


STATIC = {
    "index by a list": lambda x: x[[0, x.shape[0] - 1]],
    "setting by a list": lambda x: (x.__setitem__([0, x.shape[0] - 1], 1.0), x + 1),
    "indices of a triangle": lambda x: torch.tril_indices(x.shape[0], x.shape[0]).float(),
}


@pytest.mark.parametrize("fn", STATIC.values(), ids=list(STATIC))
def test_those_for_which_torch_needs_the_number(fn):
    check_operation(fn, "miss miss miss hit miss")


DATA = {
    "nonzero": lambda x: x[x > 0].sum() * x,
    "unique": lambda x: torch.unique(x.int()).sum() + x,
    "resize": lambda x: x.clone().resize_(2, 3).zero_(),
}


@pytest.mark.parametrize("fn", DATA.values(), ids=list(DATA))
def test_sizes_that_depend_on_data_break(fn):
    seen = check_operation(fn, None)
    assert seen.world.fn.stator.recordings == 2 and seen.world.fn.stator.break_reasons


def test_a_failure_draws_no_random_numbers_twice():
    def fn(x, n, log):
        log.append(n)
        return torch.rand(2), x[n]

    check(
        lambda: World(fn=fn, log=[]),
        [lambda w, n=n: w.fn(rand(n), n, w.log) for n in (0, 1, 2, 9, 3, 1)],
        expect="miss miss hit hit hit hit",
        raises=IndexError,
    )


@pytest.mark.parametrize(
    "step", [lambda x: x.contiguous(), lambda x: x.to(x.dtype, memory_format=torch.contiguous_format)]
)
def test_an_operation_may_give_back_its_operand(step):
    def fn(x):
        y = step(x)
        return y is x, y * 2

    compiled = stator.compile(fn, backend="eager")
    turned, wide = rand(2, 3, 2).t(), rand(3, 2, 6)[:, ::2]
    for x in (rand(1, 2, 3), turned, wide, rand(4, 2, 3), rand(5, 2, 4), rand(6, 2, 8)[:, ::2], rand(7, 3, 4)):
        assert compiled(x)[0] is (step(x) is x)
        assert torch.equal(compiled(x)[1], x * 2)
    assert compiled.stator.hits
