"""Operators that give other strides on the CPU than torch's meta kernels say: views of what they give must fit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from comparing import check

import stator


def x(*size: int, grad: bool = True, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(size, requires_grad=grad)


STEPS = {
    "batch norm": lambda t: F.batch_norm(t, torch.zeros(5), torch.ones(5), training=True),
    "batch norm without statistics": lambda t: F.batch_norm(t, None, None, training=True),
    "log sigmoid": F.logsigmoid,
    "division that rounds": lambda t: torch.div(t * 3, t.detach().abs() + 1, rounding_mode="floor") + t,
    "a number to the power of": lambda t: torch.pow(2.0, t),
    "sign of another": lambda t: torch.copysign(t, t.detach().flip(0)),
    "log softmax": lambda t: F.log_softmax(t, dim=-1),
    "squared error": lambda t: F.mse_loss(t, t.detach() + 1, reduction="none"),
    "smooth error": lambda t: F.smooth_l1_loss(t, t.detach() + 1, reduction="none"),
    "huber's error": lambda t: F.huber_loss(t, t.detach() + 1, reduction="none"),
    "dropout": lambda t: F.dropout(t, 0.5, training=True),
}


CHANNELS_LAST = torch.channels_last
CONVOLUTIONS = {
    "input": (x(2, 4, 6, 6).to(memory_format=CHANNELS_LAST), x(8, 4, 3, 3, seed=1), 1),
    "weight": (x(2, 4, 6, 6), x(8, 4, 3, 3, seed=1).to(memory_format=CHANNELS_LAST), 1),
    "weight of one channel": (x(2, 4, 6, 6), x(4, 1, 3, 3, seed=1).detach().as_strided((4, 1, 3, 3), (9, 1, 3, 1)), 4),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions_with_channels_last(kind, backend, dynamic):
    a, weight, groups = CONVOLUTIONS[kind]

    def fn(a, weight):
        out = F.conv2d(a, weight, padding=1, groups=groups)
        return out, out.relu(), out + 1

    fast = stator.compile(fn, backend=backend, dynamic=dynamic)
    for _ in range(3):
        found = []
        for call in (fn, fast):
            given = [t.detach().requires_grad_() for t in (a, weight)]
            results = call(*given)
            found.append([*results, *torch.autograd.grad(sum(r.square().sum() for r in results), given)])
        for wanted, got in zip(*found, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
            assert got.stride() == wanted.stride()
    assert (fast.stator.recordings, fast.stator.plain) == (1, 0)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_tensor_that_does_not_lie_in_order(step):
    def fn(a, weight):
        given = a.transpose(1, 2)
        out = step(given)
        return F.linear(out.transpose(1, 2), weight), F.linear(out, weight[:, :4]), out

    check(fn, x(3, 4, 5), x(2, 5, seed=1))
