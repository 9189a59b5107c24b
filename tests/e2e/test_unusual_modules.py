"""Modules with registers, lookups, slots and weights of their own."""

from __future__ import annotations

import copy

import torch
from changing_worlds import leave, steps
from harness import World, check, rand
from torch import nn

import stator


class Scaled(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = scale

    def forward(self, x):
        return self.linear(x) * self.scale


def model_world(make):
    def world():
        torch.manual_seed(3)
        model = make()
        return World(fn=model, model=model)

    return world


def test_another_instance_of_the_compiled_class():
    """`type(model)(...)` makes a module of its own."""

    def run(w):
        torch.manual_seed(5)
        other = type(w.fn)(3.0)
        return w.fn(rand(1)), other(rand(1))

    check(model_world(Scaled), [run, run, run], expect=None)


def test_a_module_class_that_keeps_a_register_of_its_subclasses():
    """Compiling adds nothing to it."""

    def world():
        known = {}

        class Base(nn.Module):
            def __init_subclass__(cls, **kwargs):
                super().__init_subclass__(**kwargs)
                known[cls.__name__] = cls.__mro__[1].__name__

        class Model(Base):
            def forward(self, x):
                return x * 2

        return World(fn=Model(), known=known)

    steps(world, leave, leave, leave)


def test_a_module_class_whose_subclasses_need_an_argument():
    """Compiling does not give any."""

    def world():
        class Base(nn.Module):
            def __init_subclass__(cls, *, tag, **kwargs):
                super().__init_subclass__(**kwargs)
                cls.tag = tag

        class Model(Base, tag="a"):
            def forward(self, x):
                return x * 2

        return World(fn=Model())

    steps(world, leave, leave, leave)


def test_a_lookup_of_a_modules_own_that_asks_its_base():
    """`super().__getattr__` reads a parameter that is None."""

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_parameter("bias", None)

        def __getattr__(self, name):
            return super().__getattr__(name)

        def forward(self, x):
            return x * 2 if self.bias is None else x + self.bias

    def change(w):
        w.model.bias = nn.Parameter(torch.ones(4))

    steps(model_world(Wrapper), leave, leave, change, leave)


def test_a_lookup_of_a_modules_own_that_finds_nothing_in_its_base():
    """What is missing in the wrapper is asked of the wrapped."""

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Scaled()

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self._modules["inner"], name)

        def forward(self, x):
            return x * self.scale

    def change(w):
        w.model._buffers["scale"] = torch.full((4,), 3.0)

    steps(model_world(Wrapper), leave, leave, change, leave)


def test_weight_norm_of_a_compiled_module():
    """A parametrization changes the class of what it is given."""

    def change(w):
        torch.nn.utils.parametrizations.weight_norm(w.fn, "weight")

    def run(w):
        return w.fn(rand(1))

    def first(w):
        change(w)
        return w.fn(rand(2))

    def world():
        torch.manual_seed(3)
        return World(fn=nn.Linear(4, 4))

    check(world, [run, run, first, run], expect=None)


def test_running_statistics_are_updated_once():
    """`batch_norm` writes to its buffers without counting that, and then the index is out of range."""

    def world():
        mean, var = torch.zeros(4), torch.ones(4)

        def fn(x, index):
            return nn.functional.batch_norm(x, mean, var, training=True)[index]

        return World(fn=fn, mean=mean, var=var)

    def call(index):
        return lambda w: w.fn(rand(index, 3, 4), torch.tensor([index]))

    check(world, [call(0), call(1), call(9), call(2)], expect=None, raises=IndexError, tracebacks=False)


def test_a_module_class_with_slots():
    """They are shared as the attributes are."""

    class Model(nn.Module):
        __slots__ = ("extra",)

        def __init__(self):
            super().__init__()
            object.__setattr__(self, "extra", 3)

        def forward(self, x):
            return x * self.extra

    def change(w):
        object.__setattr__(w.fn, "extra", w.fn.extra + 1)
        return w.fn(rand(1))

    check(model_world(Model), [lambda w: w.fn(rand(1)), change, change, lambda w: w.fn(rand(2))], expect=None)


def test_a_pickle_of_a_compiled_module():
    """Is a pickle of the module."""
    import pickle

    def run(w):
        copied = pickle.loads(pickle.dumps(w.fn))
        return copied(rand(1)), w.fn(rand(2))

    check(model_world(Scaled), [run, run, run], expect=None)


def test_a_deep_copy_of_a_compiled_module_is_compiled():
    """With parameters and recordings of its own, also as a part of what is copied."""
    torch.manual_seed(0)
    fast = stator.compile(nn.Linear(3, 3), backend="eager")
    fast(rand(1, 2, 3))
    first, again = copy.deepcopy([fast, fast])
    inside = copy.deepcopy(nn.Sequential(fast, nn.ReLU()))
    assert first is again and first.weight is not fast.weight
    for copied in (first, inside[0], copy.deepcopy(first)):
        assert copied.stator.recordings == 0 and isinstance(copied, nn.Linear)
        with torch.no_grad():
            copied.weight.mul_(2)
        for seed in range(4):
            x = rand(seed, 2, 3)
            assert torch.equal(copied(x), nn.functional.linear(x, copied.weight, copied.bias))
        assert (copied.stator.recordings, copied.stator.hits) == (1, 3)
    assert torch.equal(inside(rand(5, 2, 3)), inside[0](rand(5, 2, 3)).relu())
    assert (fast.stator.recordings, fast.stator.hits) == (1, 0)
