"""The trace: both kinds of stand-ins give one graph, and example values look as the real ones will."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import stator
from stator import events
from stator.autograd import aot_function
from stator.autograd.joint import optimise
from stator.autograd.standins import FakeStandIns, MetaStandIns
from stator.autograd.trace import trace
from stator.errors import CannotDerive

GENERATOR = torch.Generator()


def x(*size: int, grad: bool = True) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*size, requires_grad=grad)


def written(a: Any, b: Any) -> Any:
    y = a * 2
    y[0].add_(b[0])
    b.add_(1)
    return [y.t(), b]


FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "chain": (lambda a, b: [(a @ b).sin().softmax(-1).sum()], (x(3, 4), x(4, 5))),
    "attention": (lambda q: [F.scaled_dot_product_attention(q, q, q, is_causal=True)], (x(1, 2, 8, 4),)),
    "writes": (written, (x(3, 4), x(3, 4, grad=False))),
    "convolution": (lambda a, w: [F.max_pool2d(F.conv2d(a, w, padding=1), 2)], (x(2, 3, 8, 8), x(4, 3, 3, 3))),
    "dropout": (lambda a: [F.dropout(F.layer_norm(a, (4,)), 0.5)], (x(3, 4),)),
    "indices": (lambda a, i: [a[[0, 2]], a[i], a[:, [True, False, True, False]]], (x(3, 4), torch.tensor([1, 0]))),
    "made inside": (lambda a: [a + torch.ones(4) * torch.tensor([1.0, 2, 3, 4]) + torch.arange(4)], (x(3, 4),)),
    "embedding": (lambda w, i: [F.cross_entropy(F.embedding(i, w), i)], (x(5, 5), torch.tensor([1, 0, 4]))),
}


# For writes through views, autograd's formula takes the views again for fake tensors and `as_strided` for meta tensors.
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "writes"])
def test_both_kinds_of_stand_ins_give_the_same_graph(name: str) -> None:
    fn, args = FUNCTIONS[name]
    joints = [trace(fn, args, stand_ins=kind()) for kind in (MetaStandIns, FakeStandIns)]
    for joint in joints:
        optimise(joint.module, joint.plan.results)
    graphs = [joint.module for joint in joints]
    texts = [g.code.replace("device = device(type='cpu')", "").replace(", pin_memory = False", "") for g in graphs]
    assert texts[0] == texts[1]


class Looking(fx.Interpreter):
    """Runs a graph on real tensors and compares each with the example value of its node."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            value = n.meta["val"]
            assert (result.shape, result.dtype) == (value.shape, value.dtype), n
            strides = zip(result.stride(), value.stride(), result.shape, strict=True)
            assert all(one == other for one, other, size in strides if size > 1), n
        return result


@pytest.mark.parametrize("name", FUNCTIONS)
def test_example_values_look_as_the_real_ones(name: str) -> None:
    fn, args = FUNCTIONS[name]
    joint = trace(fn, args)
    tangents = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).normal_() for t in joint.tangents]
    Looking(joint.module).run(*args, *tangents)


def test_a_trace_draws_no_numbers() -> None:
    a = x(3, 4)
    before = torch.get_rng_state()
    trace(lambda a: [F.dropout(a, 0.5) + torch.randn(4)], [a])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("op", [torch.binomial, torch._sample_dirichlet])
def test_operators_without_a_kernel_for_stand_ins_draw_no_numbers(op: Any) -> None:
    """They run on zeros, to see what they give."""
    graph = fx.Graph()
    a = graph.placeholder("a")
    graph.output([graph.call_function(op, (a, a) if op is torch.binomial else (a,))])
    before = torch.get_rng_state()
    trace(fx.GraphModule({}, graph), [torch.ones(4)])
    assert torch.equal(before, torch.get_rng_state())


REFUSED: dict[str, tuple[Any, Any]] = {
    "a value that depends on data": (lambda a: a * a.sum().item(), "needs the data"),
    "a shape that depends on data": (lambda a: a[a > 0], "depends on data"),
    "a generator": (lambda a: a + torch.rand(4, generator=torch.Generator()), "generator"),
    "the shape of an input": (lambda a: a.t_(), "shape of an input"),
}


def test_what_the_backward_needs_is_written_over() -> None:
    """Eager says so when the backward is called; if it never is, all is well."""

    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = a * b
        b.add_(1)
        return y

    with pytest.raises(CannotDerive, match="modified by an inplace operation"):
        aot_function(fn, lambda gm, _: gm)(x(3, 4), x(3, 4, grad=False))
    compiled = stator.compile(fn, backend="aot_eager")
    for _ in range(3):
        assert torch.equal(compiled(x(3, 4), x(3, 4, grad=False)), x(3, 4) * x(3, 4))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    fn, message = REFUSED[name]
    with pytest.raises(CannotDerive, match=message):
        aot_function(fn, lambda gm, _: gm)(x(3, 4, grad=False))


def test_a_graph_that_is_refused_runs_as_it_was_captured() -> None:
    """Two inputs share memory and one is written to."""

    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    refused: list[Any] = []
    end = events.subscribe(refused.append, events.NotDerived)
    compiled = stator.compile(fn, backend="aot_eager")
    for _ in range(3):
        one, other = (torch.arange(6.0) for _ in range(2))
        assert torch.equal(compiled(one[:4], one[2:]), fn(other[:4], other[2:]))
        assert torch.equal(one, other)
    end()
    assert len(refused) == 1


def test_an_operator_that_compares_devices() -> None:
    """It is given a tensor that the function reached by itself, which is real."""
    index = torch.tensor([[0, 1], [1, 0]])

    def fn(a: torch.Tensor) -> torch.Tensor:
        return torch.take_along_dim(a, index, 1) * 2

    compiled = aot_function(fn, lambda gm, _: gm)
    for scale in (1, 2, 3):
        one, other = ((x(2, 3, grad=False) * scale).requires_grad_() for _ in range(2))
        found, expected = compiled(one), fn(other)
        assert torch.equal(found, expected)
        found.sum().backward()
        expected.sum().backward()
        assert torch.equal(one.grad, other.grad)


def state() -> tuple[Any, ...]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()


def test_modes_of_captured_graphs() -> None:
    """A trace that is given up inside a mode leaves it."""

    def cast(a: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = a @ a
        return y.float() * a

    def refused(a: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return (a @ a).float() + torch.rand(4, generator=GENERATOR)

    compiled = stator.compile(cast, backend="aot_eager")
    for _ in range(3):
        one, other = x(4, 4), x(4, 4)
        found, expected = compiled(one), cast(other)
        assert torch.equal(found, expected)
        found.sum().backward()
        expected.sum().backward()
        assert torch.equal(one.grad, other.grad)
        assert state() == (True, False, False)
    compiled = stator.compile(refused, backend="aot_eager")
    for _ in range(3):
        compiled(x(4, 4))
        assert state() == (True, False, False)
    with torch.autocast("cpu", torch.bfloat16):
        compiled = stator.compile(lambda a: a @ a, backend="aot_eager")
        assert [compiled(x(4, 4)).dtype for _ in range(3)] == [torch.bfloat16] * 3


def test_printed_graphs_are_programs() -> None:
    derived: list[Any] = []
    end = events.subscribe(derived.append, events.BackwardDerived)
    w = x(4, 4, grad=False)
    aot_function(lambda a: (a @ w).sin().sum(), lambda gm, _: gm)(x(3, 4))
    end()
    (event,) = derived
    for text in (event.joint(), event.forward(), event.backward()):
        names: dict[str, Any] = {"torch": torch, "device": torch.device}
        exec(text, names)
        assert any(isinstance(made, type) and issubclass(made, torch.nn.Module) for made in names.values())
    assert event.steps[0].startswith("trace: ")
    assert event.steps[-1].startswith("cut: ")
