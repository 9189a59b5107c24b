"""Backwards in which some results have no gradient: eager's values, None where eager has None, no graph twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import stator
from stator.autograd.tangents import without_missing
from stator.backends import native


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[fx.GraphModule]]:
    """Backward graphs that were compiled."""
    seen: list[fx.GraphModule] = []
    inner = native._generate

    def noting(module: fx.GraphModule, examples: Any, *, part: str, **options: Any) -> Any:
        if part == "backward":
            seen.append(module)
        return inner(module, examples, part=part, **options)

    monkeypatch.setattr(native, "_generate", noting)
    with stator.options.patch(suppress_errors=False):
        yield seen


class Heads(nn.Module):
    """A loss, and more results, each with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.one, self.other = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.gelu(self.body(x))
        one = self.one(h)
        return F.cross_entropy(one, torch.arange(len(x)) % 5), one, torch.softmax(self.other(h), -1)


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "the loss": lambda loss, one, other: loss,
    "another result": lambda loss, one, other: (other * torch.arange(3.0)).sum(),
    "two of three": lambda loss, one, other: loss + one.sin().sum(),
    "all": lambda loss, one, other: loss + one.sin().sum() + other.cos().sum(),
}


def gradients(model: nn.Module, call: Any, loss: Loss, seed: int) -> list[Tensor | None]:
    model.zero_grad()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    loss(*call(x)).backward()
    return [x.grad, *[parameter.grad for parameter in model.parameters()]]


def same(got: list[Tensor | None], wanted: list[Tensor | None]) -> None:
    for a, b in zip(got, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_and_their_absence_are_eager_s(name: str, backwards: list[fx.GraphModule]) -> None:
    model, loss = Heads(), LOSSES[name]
    compiled = stator.compile(model, backend="native", dynamic=False)
    for seed in range(3):
        same(gradients(model, compiled, loss, seed), gradients(model, model, loss, seed))
    assert len(backwards) == (1 if name == "the loss" else 2)  # that one is expected


def test_losses_in_turn_compile_each_backward_once(backwards: list[fx.GraphModule]) -> None:
    model = Heads()
    compiled = stator.compile(model, backend="native", dynamic=False)
    for seed in range(3):
        for loss in LOSSES.values():
            same(gradients(model, compiled, loss, seed), gradients(model, model, loss, seed))
    assert len(backwards) == 4


def test_without_a_loss_all_results_are_expected_to_have_gradients(backwards: list[fx.GraphModule]) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos()

    compiled = stator.compile(fn, backend="native", dynamic=False)
    for seed in range(3):
        x, y = (torch.full((4,), float(seed), requires_grad=True) for _ in range(2))
        sum(r.sum() for r in compiled(x)).backward()
        sum(r.sum() for r in fn(y)).backward()
        same([x.grad], [y.grad])
    assert len(backwards) == 1


def test_sizes_that_change_between_calls(backwards: list[fx.GraphModule]) -> None:
    model = Heads()
    compiled = stator.compile(model, backend="native", dynamic=True)
    for batch in (4, 7, 9):
        for loss in LOSSES.values():
            results = []
            for call in (compiled, model):
                model.zero_grad()
                x = torch.linspace(-1, 1, batch * 6).view(batch, 6).requires_grad_()
                loss(*call(x)).backward()
                results.append([x.grad, *[parameter.grad for parameter in model.parameters()]])
            same(*results)
    assert backwards


def backward_of(fn: Callable[..., Any], there: tuple[bool, ...]) -> fx.GraphModule:
    module = fx.symbolic_trace(fn)
    for node in module.graph.nodes:
        if node.op != "output":
            node.meta["val"] = torch.empty(4, device="meta")
    kept = without_missing(module, there)
    assert kept is not None
    return kept


def test_operators_that_are_not_linear_get_zeros() -> None:
    def fn(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        aten: Any = torch.ops.aten
        return aten.add.Tensor(one, aten.exp.default(other)), aten.div.Tensor(one, other)

    one = torch.randn(4)
    sums, quotients = backward_of(fn, (True, False))(one)
    assert torch.equal(sums, one + 1) and torch.equal(quotients, one / 0)


def test_what_only_missing_tangents_want_is_gone() -> None:
    def fn(saved: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        aten: Any = torch.ops.aten
        mixed = aten.add.Tensor(aten.mul.Tensor(one, saved), aten.mul.Tensor(other, saved))
        return mixed, aten.sum.dim_IntList(aten.neg.default(other), [0])

    kept = backward_of(fn, (True, False))
    assert [str(node.target) for node in kept.graph.nodes] == ["saved", "one", "aten.mul.Tensor", "output"]
    (saved, one) = (torch.randn(4) for _ in range(2))
    value, nothing = kept(saved, one)
    assert torch.equal(value, one * saved) and nothing is None
