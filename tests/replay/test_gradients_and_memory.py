"""Gradients and shared memory as guards in C: whatever way tensors are read, no other answer than Python's."""

from __future__ import annotations

import warnings

import pytest
import torch
from harness import World, check
from torch import nn

from stator import _native
from stator.replay import engine, layout

WAYS = {"layout": layout.places, "abi": layout.stable_interface}


@pytest.fixture(params=WAYS)
def way(request):
    assert layout.learn(WAYS[request.param])
    yield request.param
    assert layout.learn(layout.places)


@pytest.fixture
def asked(monkeypatch):
    """How often Python was asked."""
    calls = []
    plain = engine._Asking.__call__

    def counting(self, values, in_doubt):
        calls.append(in_doubt)
        return plain(self, values, in_doubt)

    monkeypatch.setattr(engine._Asking, "__call__", counting)
    return calls


def ones(*shape):
    return torch.ones(*shape) + torch.rand(*shape)


def test_a_gradient_is_read_in_c(way, asked):
    def world():
        p = nn.Parameter(torch.arange(3.0))
        p.grad = torch.ones(3)
        return World(p=p, fn=lambda x: x * 2 + (0 if p.grad is None else p.grad))

    def with_grad(grad):
        def call(w):
            w.p.grad = grad()
            return w.fn(torch.ones(3))

        return call

    def kept(w):
        w.p.grad.mul_(3)
        return w.fn(torch.ones(3))

    def of_backward(w):
        w.p.grad = None
        (w.p * 5).sum().backward()  # an object that Python has not seen
        return w.fn(torch.ones(3))

    plain = lambda w: w.fn(torch.ones(3))  # noqa: E731
    calls = [plain, kept, with_grad(lambda: ones(3)), of_backward, with_grad(lambda: None), kept_none, of_backward]
    check(world, calls, expect="miss hit hit hit miss hit hit", breaks=[])
    assert asked == []
    others = [plain, with_grad(lambda: ones(6)[::2]), with_grad(lambda: ones(3).requires_grad_()), of_backward]
    check(world, others, expect=None)


def kept_none(w):
    assert w.p.grad is None
    return w.fn(torch.ones(3))


def test_of_a_tensor_that_is_no_leaf_torch_warns_as_ever(way):
    def world():
        leaf = torch.ones(3, requires_grad=True)
        w = World(t=leaf, leaf=leaf)
        w.fn = lambda x: x * 2 if w.t.grad is None else x * 3
        return w

    def changed(w):
        w.t = w.leaf * 2
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = w.fn(torch.ones(3))
        return result, [str(c.message)[:40] for c in caught if "leaf" in str(c.message)]

    plain = lambda w: w.fn(torch.ones(3))  # noqa: E731
    check(world, [plain, plain, plain, changed, changed, plain], expect=None)


def test_many_gradients(way, asked):
    """More objects than the walk has room for at first."""

    def world():
        parameters = [nn.Parameter(torch.full((2,), float(i))) for i in range(40)]
        w = World(parameters=parameters)
        w.fn = lambda x: sum(p.grad for p in parameters) * x
        return w

    def derive(w):
        for p in w.parameters:
            p.grad = None
        sum((p * (i + 1)).sum() for i, p in enumerate(w.parameters)).backward()

    def call(w):
        derive(w)
        return w.fn(ones(2))

    def one_is_another(w):
        derive(w)
        w.parameters[30].grad = torch.ones(2).requires_grad_()
        return w.fn(torch.ones(2))

    check(world, [call, call, call, one_is_another, call], expect="miss hit hit miss hit", breaks=[])


def memory_world():
    def fn(a, b, c):
        a.add_(1)
        b.mul_(2)
        return a + b, c * 2

    return World(fn=fn)


def apart(w):
    a, b, c = ones(4), ones(4), ones(4)
    return w.fn(a, b, c), a, b, c


def sharing(w):
    a, c = torch.arange(8.0), ones(4)
    return w.fn(a[:4], a[4:], c), a, c


def overlapping(w):
    a, c = torch.arange(8.0), ones(4)
    return w.fn(a[:4], a[2:6], c), a, c


def others_sharing(w):
    a, b = torch.arange(8.0), ones(4)
    return w.fn(a[:4], b, a[4:]), a, b


def test_shared_memory_is_compared_in_c(way, asked):
    calls = [apart, apart, sharing, sharing, overlapping, apart, others_sharing, others_sharing, apart, sharing]
    check(memory_world, calls, expect="miss hit miss hit hit hit miss hit hit hit", breaks=[])
    assert (asked == []) == (way == "layout")


def test_what_c_code_reads_is_the_storage(way):
    base = torch.arange(8.0)
    found = [_native.tensor_storage(t) for t in (base, base[2:], base.view(2, 4).t(), base.clone())]
    if way == "layout":
        assert found[0] == found[1] == found[2] == base.untyped_storage()._cdata != found[3]
    else:
        assert found == [None] * 4
    for other in (1, "text", None, object(), torch.Tensor, nn.Linear(1, 1)):
        assert _native.tensor_storage(other) is None


def test_memory_that_is_exchanged(way):
    """`set_` and `data` give a tensor other memory, while it stays the same object."""

    def world():
        w = memory_world()
        w.a, w.b = torch.arange(4.0), torch.arange(4.0) + 1
        return w

    def call(w):
        return w.fn(w.a, w.b, torch.ones(4))

    def joined(w):
        w.b.set_(w.a)
        return call(w)

    def parted(w):
        w.b.data = torch.arange(4.0)
        return call(w)

    check(world, [call, call, joined, call, parted, call], expect="miss hit miss hit hit hit", breaks=[])
