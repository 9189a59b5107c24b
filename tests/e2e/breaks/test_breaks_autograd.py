"""Tensors that require gradients go across breaks, and the backward pass afterwards is eager's."""

from __future__ import annotations

import pytest
import torch
from harness import World, check, rand
from torch import nn

import stator


def gradients(fn, graphs=2, breaks=("call-print",)):
    """Call, run backward, and compare gradients of input and weight; three times and once more without gradients."""

    def step(w, seed):
        x, weight = rand(seed, requires_grad=True), rand(seed + 50, requires_grad=True)
        result = w.fn(x, weight)
        result.sum().backward()
        return result, x.grad, weight.grad, result.requires_grad, type(result.grad_fn).__name__

    steps = [lambda w, seed=seed: step(w, seed) for seed in range(4)]
    return check(lambda: World(fn=fn), steps, expect="miss hit hit hit", graphs=graphs, breaks=list(breaks))


def test_a_chain_across_a_break():
    def fn(x, weight):
        y = (x * weight).sin()
        print("between")
        return (y * weight).cos()

    gradients(fn)


def test_a_chain_across_many_breaks():
    def fn(x, weight):
        y = x * weight
        print("one")
        y = y.sin() + x
        print("two")
        y = y * y
        stator.graph_break()
        return y.exp() * weight

    gradients(fn, 4, ["call-print", "call-print", "user-graph-break"])


def test_two_tensors_of_one_graph_used_in_the_next():
    def fn(x, weight):
        a, b = x * weight, x + weight
        print("between")
        return a * b + a

    gradients(fn)


def test_a_tensor_used_on_both_sides_and_by_the_break():
    def fn(x, weight):
        y = x * weight
        factor = y.sum().item()
        return y * 2 if factor < 1e9 else y

    gradients(fn, breaks=["tensor-item"])


def test_a_detached_tensor():
    def fn(x, weight):
        y = x * weight
        stopped = y.detach()
        print("between", stopped.requires_grad)
        return y * stopped

    gradients(fn)


def test_no_grad_around_the_break():
    def fn(x, weight):
        y = x * weight
        with torch.no_grad():
            scale = y.abs()
            print("between", scale.requires_grad)
            scale = scale + 1
        return y * scale

    gradients(fn)


def test_in_place_on_what_requires_grad():
    def fn(x, weight):
        y = x * weight
        y += 1
        print("between")
        y.mul_(2)
        y[0] = x[1]
        return y * weight

    gradients(fn)


def test_a_view_of_what_requires_grad():
    def fn(x, weight):
        y = x * weight
        view = y[:2]
        print("between")
        view.mul_(3)
        return y * 2

    gradients(fn)


def test_backward_inside_and_outside():
    def fn(x, weight):
        inner = (x.detach() * weight.detach().clone().requires_grad_()).sum()
        inner.backward()
        return x * weight * 2

    gradients(fn, graphs=1, breaks=[])


def test_a_leaf_made_inside():
    def fn(x, weight):
        leaf = torch.ones(4, requires_grad=True)
        y = x * weight * leaf
        print("between", leaf.is_leaf)
        return y * leaf

    gradients(fn)


def test_double_backward():
    def fn(x):
        y = x.pow(3)
        print("between")
        return y.sin()

    def step(w, seed):
        x = rand(seed, requires_grad=True)
        (first,) = torch.autograd.grad(w.fn(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return first, second

    steps = [lambda w, seed=seed: step(w, seed) for seed in range(4)]
    check(lambda: World(fn=fn), steps, expect="miss hit hit hit", graphs=2)


def test_hooks_on_a_tensor_that_crosses():
    def fn(x, weight, log):
        y = x * weight
        y.register_hook(lambda grad: log.append(grad.clone()))
        return y * 2

    def step(w, seed):
        x = rand(seed, requires_grad=True)
        w.fn(x, rand(9), w.log).sum().backward()
        return x.grad

    steps = [lambda w, seed=seed: step(w, seed) for seed in range(4)]
    check(lambda: World(fn=fn, log=[]), steps, expect=None)


@pytest.mark.parametrize("train", [True, False])
def test_training_a_model_with_a_break(train):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
            self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)

        def forward(self, x):
            x = self.drop(self.norm(self.first(x)).relu())
            print("between", self.training)
            return self.second(x)

    def world():
        torch.manual_seed(0)
        model = Model().train(train)
        return World(fn=model, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    def step(w, seed):
        w.optimizer.zero_grad()
        loss = w.fn(rand(seed, 5, 4)).pow(2).mean()
        loss.backward()
        w.optimizer.step()
        return loss

    steps = [lambda w, seed=seed: step(w, seed) for seed in range(5)]
    check(world, steps, expect=None)


def test_with_and_without_gradients_are_two_recordings():
    def fn(x):
        y = x * 2
        print("between", y.requires_grad)
        return y + 1

    inputs = [False, True, False, True, False]
    steps = [lambda w, r=r: w.fn(rand(1, requires_grad=r)) for r in inputs]
    check(lambda: World(fn=fn), steps, expect="miss miss hit hit hit", graphs=4)


def test_called_under_no_grad():
    def fn(x):
        y = x * 2
        print("between", torch.is_grad_enabled())
        return y + 1

    def step(w, grad):
        with torch.set_grad_enabled(grad):
            return w.fn(rand(1, requires_grad=True))

    steps = [lambda w, g=g: step(w, g) for g in (True, False, True, False)]
    check(lambda: World(fn=fn), steps, expect="miss miss hit hit", graphs=4)
