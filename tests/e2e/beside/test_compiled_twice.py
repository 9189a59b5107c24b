"""A compiled module is compiled once more."""

from __future__ import annotations

import pytest
import torch

import stator


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x).relu()


def calls(compiled, expected):
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(compiled(x), expected(x))
    handle = compiled.stator
    assert handle.hits == 3 and len(handle.graphs) == 1 and not handle.break_reasons


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_of_a_compiled_module(backend):
    net = Net()
    first = stator.compile(net, backend="eager")
    second = stator.compile(first, backend=backend)
    third = stator.compile(second, backend=backend)
    assert second is not first and second.linear is net.linear
    for compiled in (first, second, third):
        calls(compiled, net)
    second.linear = torch.nn.Linear(3, 3)
    assert net.linear is third.linear
    assert isinstance(third, Net)


def test_an_instance_of_the_class_of_a_compiled_module():
    net = Net()
    compiled = stator.compile(net, backend="eager")
    other = type(compiled)()
    assert other.linear is not net.linear
    calls(stator.compile(other, backend="eager"), other.forward)


def test_a_module_whose_call_is_no_function():
    class Own(Net):
        __call__ = stator.compile(torch.nn.Module.__call__, backend="eager")

    own = Own()
    calls(stator.compile(own, backend="eager"), own.forward)


def test_in_place_and_again():
    net = Net()
    stator.compile_(net, backend="eager")
    stator.compile_(net, backend="eager")
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(net(x), net.forward(x))
    assert net._compiled_call_impl.stator.hits == 3
    calls(stator.compile(net, backend="eager"), net.forward)
