"""`torch.utils.checkpoint` in compiled programs: no graph break, eager's results, no more kept than eager keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as T
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import stator
from stator import events
from stator.autograd.compile import derive

W = nn.Parameter(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))


def layer(x: Tensor) -> Tensor:
    return torch.sigmoid(torch.sin(x @ W) @ W)


def keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)


def plain(x: Tensor) -> Tensor:
    for _ in range(3):
        x = checkpoint(layer, x, use_reentrant=False)
    return x


def selective(x: Tensor) -> Tensor:
    for _ in range(3):
        x = checkpoint(layer, x, use_reentrant=False, context_fn=contexts)
    return x


def selective_made_inside(x: Tensor) -> Tensor:
    made = functools.partial(create_selective_checkpoint_contexts, keep_products)
    return checkpoint(layer, x, use_reentrant=False, context_fn=made) * 2


def nested(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return checkpoint(layer, y.cos(), use_reentrant=False) * 2

    return checkpoint(inner, x, use_reentrant=False) + x


def dropped(x: Tensor) -> Tensor:
    return checkpoint(lambda y: F.dropout(layer(y), 0.5), x, use_reentrant=False) + F.dropout(x, 0.5)


def with_keywords(x: Tensor) -> Any:
    def fn(y: Tensor, scale: float, *, shift: Tensor) -> Any:
        return (y * scale).sin() + shift, y.cos()

    one, other = checkpoint(fn, x, 2.0, shift=x * 2, use_reentrant=False, preserve_rng_state=False)
    return one @ other.t()


def in_sequence(x: Tensor) -> Tensor:
    return checkpoint_sequential([layer, torch.sin, layer, torch.cos], 2, x, use_reentrant=False)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    f.__name__: f for f in (plain, selective, selective_made_inside, nested, dropped, with_keywords, in_sequence)
}


def gradients(fn: Callable[[Tensor], Tensor], x: Tensor, seed: int) -> list[Any]:
    """Result, gradients, and how many numbers were drawn."""
    x = x.clone().requires_grad_()
    W.grad = None
    torch.manual_seed(seed)
    out = fn(x)
    out.square().sum().backward()
    return [out.detach(), x.grad, W.grad, torch.rand(())]


def same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


@pytest.fixture
def broken() -> Any:
    seen: list[Any] = []
    kinds = (events.GraphBreak, events.NotDerived, events.InternalFailure)
    end = events.subscribe(seen.append, *kinds)
    yield seen
    end()


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_a_break(name: str, backend: str, broken: Any) -> None:
    fn = FUNCTIONS[name]
    compiled = stator.compile(fn, backend=backend, fullgraph=True)
    for seed in range(4):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(seed))
        same(gradients(compiled, x, seed), gradients(fn, x, seed))
    assert broken == []


def test_training_a_model() -> None:
    config = T.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    ends = []
    for compile_it in (False, True):
        torch.manual_seed(0)
        model = T.BertForMaskedLM(config).train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        call = stator.compile(model, backend="aot_eager") if compile_it else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            torch.manual_seed(step)
            ids = torch.randint(0, 50, (2, 8))
            optimizer.zero_grad()
            call(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
        ends.append(model.state_dict())
    for name, expected in ends[0].items():
        torch.testing.assert_close(ends[1][name], expected, msg=lambda m, name=name: f"{name}: {m}")


def kept(fn: Callable[[Tensor], Tensor], x: Tensor) -> list[Any]:
    """Shapes of what the forward of the captured graph keeps, parameters left out."""
    found: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs = derive(gm, inputs)
        saved = graphs.forward.graph.output_node().args[0][graphs.joint.plan.results :]
        found.extend(tuple(node.meta["val"].shape) for node in saved if not node.meta["parameter"])
        return gm.forward

    stator.compile(fn, backend=backend, fullgraph=True)(x)
    return found


def test_what_enters_a_region_is_kept() -> None:
    """As in eager: the inputs of the three regions."""
    x = torch.randn(5, 8, requires_grad=True)
    assert kept(plain, x) == [(5, 8)] * 3


def test_what_the_policy_says_is_kept() -> None:
    """Two products of each region, and the input of the first. Eager keeps the inputs of the others too, which are
    pointwise functions of products here."""
    x = torch.randn(5, 8, requires_grad=True)
    assert kept(selective, x) == [(5, 8)] * 7


def test_another_policy_is_another_recording() -> None:
    def fn(x: Tensor, choose: Any) -> Tensor:
        return checkpoint(layer, x, use_reentrant=False, context_fn=choose)

    everything = functools.partial(create_selective_checkpoint_contexts, [])
    graphs: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    compiled = stator.compile(fn, backend=backend)
    x = torch.randn(5, 8, requires_grad=True)
    for choose in (contexts, everything, contexts, everything):
        torch.testing.assert_close(compiled(x, choose), layer(x))
    assert len(graphs) == 2


def test_a_break_inside_of_a_region(broken: Any) -> None:
    def fn(x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            y = layer(y)
            stator.graph_break()
            return layer(y)

        return checkpoint(inner, x.sin(), use_reentrant=False) * 2

    compiled = stator.compile(fn, backend="aot_eager")
    for seed in range(4):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(seed))
        same(gradients(compiled, x, seed), gradients(fn, x, seed))
    assert broken


def test_an_exception_inside_of_a_region() -> None:
    def fn(x: Tensor, width: int) -> Tensor:
        try:
            return checkpoint(lambda y: y.sin().view(width, -1), x, use_reentrant=False)
        except RuntimeError:
            return x * 2

    compiled = stator.compile(fn, backend="aot_eager")
    for width in (3, 5, 3, 2):
        x = torch.randn(5, 8)
        torch.testing.assert_close(compiled(x, width), fn(x, width))


def test_outside_of_a_recording_torch_checkpoints() -> None:
    """After functions with checkpointed calls were compiled."""
    runs: list[int] = []

    def counted(x: Tensor) -> Tensor:
        runs.append(1)
        return x.sin()

    compiled = stator.compile(plain, backend="aot_eager")
    compiled(torch.randn(5, 8))
    x = torch.randn(5, 8, requires_grad=True)
    checkpoint(counted, x, use_reentrant=False).sum().backward()
    assert len(runs) == 2
