"""Checkpointed regions: computed again in the backward by the compiled graphs, with eager's gradients."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import as_it_is, check
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from stator.autograd import aot_function, saved_values


def x(*size: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*size, requires_grad=True)


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(torch.sin(x @ w) @ w)


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_region_is_computed_again(reentrant: bool) -> None:
    def fn(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = checkpoint(layer, x, w, use_reentrant=reentrant)
        return x.sum()

    check(fn, x(16, 16), x(16, 16), exact=False)
    counts = []

    def counting(gm: Any, inputs: Any) -> Any:
        counts.append(sum(n.target is torch.ops.aten.mm.default for n in gm.graph.nodes))
        return gm

    aot_function(fn, as_it_is, counting)(x(16, 16), x(16, 16))
    assert counts[0] > 12  # 4 products a layer for the gradients, and those of the forward again


def test_no_more_is_kept_than_eager_keeps(capsys: Any) -> None:
    def fn(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = checkpoint(layer, x, w, use_reentrant=False)
        return x.sum()

    def plain(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = layer(x, w)
        return x.sum()

    args = x(64, 16), x(16, 16)
    checkpointed, whole = saved_values(fn)(*args), saved_values(plain)(*args)
    entering = 4 * args[0].nbytes + args[1].nbytes  # what eager keeps: the inputs of each region
    assert checkpointed.bytes <= entering
    assert checkpointed.bytes < whole.bytes


def test_dropout_is_drawn_once() -> None:
    def fn(x: Any) -> Any:
        return checkpoint(lambda t: F.dropout(t.sin(), 0.5).cos(), x, use_reentrant=False)

    check(fn, x(8, 8), exact=False, calls=3)


def test_selective() -> None:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = op is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)

    def fn(x: Any, w: Any) -> Any:
        for _ in range(2):
            x = checkpoint(layer, x, w, use_reentrant=False, context_fn=contexts)
        return x.sum()

    counts = []

    def counting(gm: Any, inputs: Any) -> Any:
        counts.append(sum(n.target is torch.ops.aten.mm.default for n in gm.graph.nodes))
        return gm

    aot_function(fn, as_it_is, counting)(x(16, 16), x(16, 16))
    assert counts[0] == 8  # the products for the gradients, none of the forward
    check(fn, x(16, 16), x(16, 16), exact=False)


def test_other_threads_checkpoint_as_ever() -> None:
    """While one thread traces."""
    seen: list[Any] = []

    def other() -> None:
        a = x(4, 4)
        checkpoint(lambda t: t.sin() * 2, a, use_reentrant=False).sum().backward()
        seen.append(torch.equal(a.grad, a.cos() * 2))

    def fn(a: Any) -> Any:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return a * 2

    aot_function(fn, as_it_is)(x(4, 4))
    assert seen == [True]
