"""What is compiled is compiled once more: by stator twice, or by torch.compile first."""

from __future__ import annotations

import pytest
import torch

import stator
from stator import events
from stator.errors import GraphBreakError


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


# ---- by torch.compile first


class Counter:
    """A backend of torch's, and how many graphs it got."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, gm, example_inputs):
        self.graphs += 1
        return gm.forward


def double(x):
    return x.sin() * 2


OF_TORCH = {
    "a function": lambda counter: torch.compile(double, backend=counter),
    "a method": lambda counter: torch.compile(Net().forward, backend=counter),
    "a function for one graph": lambda counter: torch.compile(double, backend=counter, fullgraph=True),
    "a module": lambda counter: torch.compile(Net(), backend=counter),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", OF_TORCH)
def test_what_torch_has_compiled_is_left_to_it(name, backend):
    """It runs as it is: what it does is not recorded, in no call."""
    counter = Counter()
    theirs = OF_TORCH[name](counter)
    seen = []
    leave = events.subscribe(seen.append, events.GraphBreak)
    try:
        compiled = stator.compile(theirs, backend=backend)
        for _ in range(5):
            x = torch.randn(3)
            assert torch.equal(compiled(x), theirs(x))
    finally:
        leave()
    handle = compiled.stator
    assert handle.hits == 0 and handle.graphs == [] and handle.plain == 5 - handle.recordings
    assert handle.recordings == (1 if name == "a module" else 0)  # whose call is Python, up to theirs
    assert [event.reason.id for event in seen] == ["other-compiler"]
    assert counter.graphs == 1


@pytest.mark.parametrize("name", OF_TORCH)
def test_what_torch_has_compiled_is_no_graph(name):
    compiled = stator.compile(OF_TORCH[name](Counter()), backend="eager", fullgraph=True)
    for _ in range(3):
        with pytest.raises(GraphBreakError, match=r"torch\.compile"):
            compiled(torch.ones(3))


def test_a_call_of_what_torch_has_compiled_breaks_once():
    counter = Counter()
    theirs = torch.compile(double, backend=counter)
    compiled = stator.compile(lambda x: theirs(x + 1) - 1, backend="eager")
    compiled.stator.reset()
    for _ in range(5):
        x = torch.randn(3)
        assert torch.equal(compiled(x), double(x + 1) - 1)
    handle = compiled.stator
    assert (handle.recordings, handle.hits, len(handle.graphs)) == (1, 4, 2)
    assert [why.id for why in handle.break_reasons] == ["other-compiler"] and counter.graphs == 1
