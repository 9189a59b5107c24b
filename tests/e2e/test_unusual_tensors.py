"""Tensors without a version, shapes that depend on data, compiled functions under transforms."""

from __future__ import annotations

import torch
from changing_worlds import check_calls
from harness import PLAIN, RECORDED, World, check, rand


def test_writes_to_tensors_without_a_version():
    """In inference mode tensors do not count their writes."""

    def fn(x):
        y = x * 2
        y.add_(1)
        y.relu_()
        return y

    def call(seed):
        def run(w):
            with torch.inference_mode():
                return w.fn(rand(seed)).clone()

        return run

    check(lambda: World(fn=fn), [call(1), call(2), call(3)], expect=None)


def test_writes_to_inference_tensors_from_outside():
    """Their effect is seen outside."""

    def fn(x):
        x.add_(1)
        return x * 2

    def world():
        with torch.inference_mode():
            return World(fn=fn, x=rand(1))

    def run(w):
        with torch.inference_mode():
            return w.fn(w.x)

    check(world, [run, run, run], expect=None)


def test_writes_in_an_inference_mode_of_the_programs_own():
    """The same with the mode entered inside."""

    def fn(x):
        with torch.inference_mode():
            y = x * 2
            y.mul_(3)
            return y

    check(
        lambda: World(fn=fn), [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3))], expect=None
    )


def test_shapes_that_depend_on_data():
    """`argwhere` has as many rows as there are hits."""

    def fn(x, y):
        return x * torch.argwhere(y > 0).shape[0]

    one, two = torch.tensor([1.0, -1.0]), torch.tensor([1.0, 1.0])
    check_calls(fn, (one,), (one,), (two,), (one,))


def test_a_compiled_function_under_vmap():
    """The tensors are wrappers without memory."""

    def run(w):
        return torch.vmap(w.fn)(rand(1, 3, 4))

    def fn(x):
        return x.sin() * x.shape[0]

    check(
        lambda: World(fn=fn), [run, run, run, lambda w: w.fn(rand(1)), run], expect=None, unreplayed=[PLAIN, RECORDED]
    )


def test_a_compiled_function_under_grad():
    """Likewise."""

    def run(w):
        return torch.func.grad(w.fn)(rand(1)), torch.func.jvp(w.fn, (rand(1),), (rand(2),))

    def fn(x):
        return (x.sin() * x).sum()

    check(
        lambda: World(fn=fn), [run, run, run, lambda w: w.fn(rand(1)), run], expect=None, unreplayed=[PLAIN, RECORDED]
    )
