"""Operators that give other strides on the CPU than torch's meta kernels say: views of what they give must fit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from comparing import check


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


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_tensor_that_does_not_lie_in_order(step):
    def fn(a, weight):
        given = a.transpose(1, 2)
        out = step(given)
        return F.linear(out.transpose(1, 2), weight), F.linear(out, weight[:, :4]), out

    check(fn, x(3, 4, 5), x(2, 5, seed=1))
