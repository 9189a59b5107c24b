"""Breaks at `tensor.item()`: the replay reads the value without a frame of the function.

That must not be seen: not by modes, subclasses or patches that come later, not in tracebacks, not in torch's state.
"""

from __future__ import annotations

import sys

import pytest
import torch

from tests.harness import World, check, rand


def frames_of(fn, *args):
    """How many frames with the name of `fn` start in a call, and its result."""
    names = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        result = fn(*args)
    finally:
        sys.setprofile(None)
    return names.count(fn.__name__), result


def shift(x):
    y = x * 2
    return y + y.sum().item()


def store(x):
    y = x * 2
    total = y.sum().item()
    return y + total


def counted(x):
    y = x * 2
    return y + (y.sum().item() is None)


@pytest.mark.parametrize(("fn", "needs_none"), [(shift, True), (store, True), (counted, False)])
def test_a_read_needs_no_frame_if_the_rest_is_moving_values(fn, needs_none):
    calls = [lambda w: w.fn(torch.ones(4)) for _ in range(4)]
    seen = check(lambda: World(fn=fn), calls, expect="miss hit hit hit", graphs=2, breaks=["tensor-item"])
    assert (frames_of(seen.world.fn, torch.ones(4))[0] == 0) == needs_none


def test_values_that_change():
    calls = [lambda w, i=i: w.fn(rand(i)) for i in range(6)]
    check(lambda: World(fn=shift), calls, expect="miss miss hit hit hit hit", graphs=3, breaks=["tensor-item"])


def test_values_of_all_kinds():
    def fn(x):
        y = x.reshape(-1)
        return (y[0].item(), y[1].item()), y + 1

    inputs = [torch.tensor(pair) for pair in ([1, 2], [True, False], [1.5, float("nan")], [1j, 2])]
    calls = [lambda w, x=x: w.fn(x) for x in inputs for _ in range(3)]
    check(lambda: World(fn=fn), calls, expect=None)


def test_a_tensor_that_refuses():
    def fn(x):
        y = x * 2
        return 3 * y.item()

    calls = [lambda w, n=n: w.fn(torch.ones(n)) for n in (1, 1, 2, 2, 2, 1, 3, 3)]
    check(lambda: World(fn=fn), calls, expect=None, raises=RuntimeError)


def test_a_refusal_that_is_caught():
    def fn(x):
        y = x * 2
        try:
            return 3 * y.item()
        except RuntimeError as error:
            return y + 1, str(error), sys.exc_info()[0]

    calls = [lambda w, n=n: w.fn(torch.ones(n)) for n in (1, 1, 2, 2, 2, 1, 3, 3)]
    check(lambda: World(fn=fn), calls, expect=None)


@pytest.mark.parametrize("inner", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_torch_state_around_the_read(inner):
    def fn(x):
        with inner():
            y = x * 2
            z = y + (y.sum().item() > 0)
        return z, x * y.sum().item(), torch.is_grad_enabled()

    def in_mode(mode):
        def call(w):
            with mode():
                return w.fn(torch.ones(4, requires_grad=True))

        return call

    calls = [in_mode(mode) for mode in (torch.enable_grad, torch.no_grad) * 2 for _ in "12"]
    check(lambda: World(fn=fn), calls, expect=None, unreplayed="tensor-item")


def test_the_default_type_changes_between_calls():
    def fn(x):
        return x + (x.sum().item() + torch.ones(2).sum().item())

    def call(dtype):
        def run(w):
            former = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            try:
                return w.fn(torch.ones(4, dtype=torch.float32)), torch.get_default_dtype()
            finally:
                torch.set_default_dtype(former)

        return run

    check(lambda: World(fn=fn), [call(d) for d in (torch.float32, torch.float64) * 3 for _ in "12"], expect=None)


def test_a_mode_that_comes_later_sees_the_read():
    class Seen(torch.overrides.TorchFunctionMode):
        def __init__(self, names):
            super().__init__()
            self.names = names

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.names.append(getattr(func, "__name__", "?"))
            return func(*args, **(kwargs or {}))

    def with_mode(w):
        with Seen(w.names):
            return w.fn(torch.ones(4))

    plain = [lambda w: w.fn(torch.ones(4))] * 3
    seen = check(lambda: World(fn=shift, names=[]), [*plain, with_mode, with_mode, *plain], expect=None)
    assert seen.world.names.count("item") == 2


def test_a_subclass_that_comes_later():
    class Mine(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            told.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    told = []
    plain = [lambda w: w.fn(torch.ones(4))] * 3
    mine = [lambda w: w.fn(torch.ones(4).as_subclass(Mine))] * 3
    check(lambda: World(fn=shift), [*plain, *mine, *plain], expect=None)
    assert told.count("item") == 6  # three calls in either world


def test_another_item_that_comes_later(monkeypatch):
    plain = [lambda w: w.fn(torch.ones(4))] * 3

    def patched(w):
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "item", lambda self: 100.0, raising=False)
            return w.fn(torch.ones(4))

    check(lambda: World(fn=shift), [*plain, patched, patched, *plain], expect=None)


def test_in_a_loop_and_in_a_callee():
    def inner(x):
        return x * 2 + x.max().item()

    def fn(x, n):
        for _ in range(n):
            x = inner(x) - x[0].item()
        return x

    calls = [lambda w, n=n: w.fn(torch.ones(4), n) for n in (1, 1, 2, 3, 3, 2, 1)]
    check(lambda: World(fn=fn), calls, expect=None)


def test_a_closure_goes_on_being_used():
    def make():
        count = [0]
        scale = 2.0

        def fn(x):
            nonlocal scale
            count[0] += 1
            y = x * scale
            z = y + y.sum().item() * count[0]
            scale = scale + 1
            return z + scale

        return World(fn=fn, count=count)

    check(make, [lambda w: w.fn(torch.ones(4))] * 6, expect=None)
