"""A class's dict is touched by others, and nothing that a recording relies on has changed; and where something has."""

from __future__ import annotations

import collections
import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from harness import World, check, rand
from torch import nn

import stator


class Plain:
    def __init__(self):
        self.k = 2.0

    def scale(self, x):
        return x * self.k


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu()


@pytest.mark.parametrize(
    "touch",
    [
        lambda o, net: pickle.dumps((o, net)),
        lambda o, net: torch.save({"net": net, "state": net.state_dict(), "o": o}, io.BytesIO()),
        lambda o, net: copy.deepcopy((o, net)),
        lambda o, net: copy.copy(o),
    ],
    ids=["pickle", "save", "deepcopy", "copy"],
)
def test_the_first_pickle_of_a_class(touch):
    class Own(Plain):
        pass

    Own.__qualname__, Own.__module__ = "Own", __name__
    globals()["Own"] = Own
    o, net = Own(), Net()
    compiled = stator.compile(lambda x: o.scale(net(x)), backend="eager")
    for seed in range(4):
        if seed == 2:
            assert "__slotnames__" not in vars(Own)
            touch(o, net)
            assert "__slotnames__" in vars(Own)
        assert torch.equal(compiled(rand(seed)), net(rand(seed)) * 2.0)
    assert compiled.stator.hits == 3 and len(compiled.stator.graphs) == 1


BOTH = """
import torch
from torch import nn
import stator

class Act(nn.Module):
    def forward(self, x):
        return x.relu() * 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), Act()

    def forward(self, x):
        return self.act(self.linear(x))

net = Net()
ours = stator.compile(net, backend="eager")
for _ in range(2):
    ours(torch.randn(4))
theirs = torch.compile(net, backend="eager")  # patches nn.Module when it comes to be used
for _ in range(2):
    x = torch.randn(4)
    assert torch.equal(theirs(x), ours(x))
assert ours.stator.hits == 3 and len(ours.stator.graphs) == 1, (ours.stator, ours.stator.last_miss)
print("right")
"""


def test_both_compilers_on_one_class():
    done = subprocess.run([sys.executable, "-c", BOTH], capture_output=True, text=True, timeout=300)
    assert done.stdout == "right\n", done.stdout + done.stderr


def other_init(self, *args):
    self.k = 5.0


@pytest.mark.parametrize(
    "use",
    [
        lambda cls, x: x * cls().k,
        lambda cls, x: x * sum(made.k for made in map(lambda n: cls(), [1, 2])),
        lambda cls, x: x * sum(made.k for made in map(cls, [1, 2])),
        lambda cls, x: x * collections.defaultdict(cls)["a"].k,
        lambda cls, x: x * sorted([3, 1], key=lambda n: cls(n).k)[0],
    ],
)
def test_another_init_is_noticed(use):
    def world():
        class Made:
            def __init__(self, *args):
                self.k = 2.0

        def fn(x):
            return use(Made, x)

        return World(fn=fn, edit=lambda: setattr(Made, "__init__", other_init))

    def edited(w):
        w.edit()
        return w.fn(rand(3))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), edited, lambda w: w.fn(rand(4))], expect=None)


def test_another_init_of_an_outside_factory_is_noticed():
    def world():
        class Made:
            k = 1.0

        table = collections.defaultdict(Made)

        def fn(x):
            return x * table["a"].k

        return World(fn=fn, table=table, edit=lambda: (setattr(Made, "__init__", other_init), table.clear()))

    def edited(w):
        w.edit()
        return w.fn(rand(3))

    def cleared(w):
        w.table.clear()
        return w.fn(rand(2))

    check(world, [lambda w: w.fn(rand(1)), cleared, cleared, edited, cleared], expect=None)


def test_another_init_of_an_exception_is_noticed():
    def world():
        class Own(Exception):
            k = 1.0

        def fn(x):
            try:
                raise Own
            except Own as error:
                return x * error.k

        return World(fn=fn, edit=lambda: setattr(Own, "__init__", other_init))

    def edited(w):
        w.edit()
        return w.fn(rand(3))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), edited, lambda w: w.fn(rand(4))], expect=None)
