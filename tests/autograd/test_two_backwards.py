"""Several backwards over one compiled forward: allowed where eager allows them, refused where eager does."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from harness import rand

import stator

BACKENDS = ["native", "aot_eager"]


def separate(x, w):
    """Two losses whose paths have nothing with saved tensors in common."""
    y = x + w
    return (y * w).sum(), (x.sin() * w).sum()


def shared(x, w):
    y = (x * w).exp()
    return y.sin().sum(), y.cos().sum()


def chain(x, w):
    """The first and the last share nothing, the one in the middle something with each."""
    a, b = x.sin(), w.cos()
    return a.exp().sum(), (a * b).sum(), b.exp().sum()


def stateless(x, w):
    return (x + w).sum(), (x - w).sum() * 1


def outcome(fn, x, w, order, retain=()):
    """The gradients, or what was raised, after a backward of each loss in this order."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    losses = fn(x, w)
    told = []
    for step, position in enumerate(order):
        try:
            losses[position].backward(retain_graph=step in retain)
        except RuntimeError as error:
            assert "second time" in str(error)
            told.append("refused")
        else:
            told.append("done")
    return told, x.grad, w.grad


def same(fn, order, backend="native", retain=()):
    stator.reset()
    fast = stator.compile(fn, backend=backend)
    for seed in range(4):
        x, w = rand(seed, 5), rand(seed + 50, 5)
        expected, found = outcome(fn, x, w, order, retain), outcome(fast, x, w, order, retain)
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1:], expected[1:])
    assert len(fast.stator.entries) == 1
    assert fast.stator.entries[0].hits == 3
    return expected[0]


def apart(x, w):
    return x.sin().sum(), w.cos().sum()


@pytest.mark.parametrize("backend", [*BACKENDS, "inductor"])
def test_inputs_that_a_loss_does_not_depend_on(backend):
    """They get no gradient, rather than zeros."""
    assert same(apart, (1,), backend) == ["done"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_losses_on_separate_paths(backend):
    assert same(separate, (0, 1), backend) == ["done", "done"]
    assert same(separate, (1, 0), backend) == ["done", "done"]
    assert same(separate, (0, 0), backend) == ["done", "refused"]
    assert same(separate, (0, 1, 0, 1), backend) == ["done", "done", "refused", "refused"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_losses_that_share_saved_values(backend):
    assert same(shared, (0, 1), backend) == ["done", "refused"]
    assert same(shared, (0, 1), backend, retain=(0,)) == ["done", "done"]
    assert same(shared, (0, 1, 0), backend, retain=(0,)) == ["done", "done", "refused"]


def test_some_share_and_some_do_not():
    assert same(chain, (0, 2)) == ["done", "done"]
    assert same(chain, (0, 2, 1)) == ["done", "done", "refused"]
    assert same(chain, (1, 0)) == ["done", "refused"]
    assert same(chain, (0, 1, 2), retain=(0,)) == ["done", "done", "refused"]


def test_what_saves_nothing_may_be_called_again_and_again():
    assert same(stateless, (0, 0, 0)) == ["done"] * 3
    assert same(lambda x, w: [(x + w).sum()], (0, 0)) == ["done", "done"]


def test_both_at_once_and_then_one():
    fast = stator.compile(separate)

    def run(fn):
        x, w = rand(1, 5).requires_grad_(), rand(2, 5).requires_grad_()
        first, second = fn(x, w)
        torch.autograd.backward([first, second])
        with pytest.raises(RuntimeError, match="second time"):
            second.backward()
        return x.grad

    for _ in range(3):
        torch.testing.assert_close(run(fast), run(separate))


def test_twice_differentiated_behind_a_backward():
    fast = stator.compile(separate)
    for fn in (separate, fast, fast):
        x, w = rand(1, 5).requires_grad_(), rand(2, 5).requires_grad_()
        first, second = fn(x, w)
        first.backward()
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(first, x, create_graph=True)
        (grad,) = torch.autograd.grad(second, x, create_graph=True)
        grad.sum().backward()
        assert x.grad is not None


def test_a_write_between_the_backwards_is_noticed():
    fast = stator.compile(separate)
    for fn in (separate, fast, fast):
        x, w = rand(1, 5).requires_grad_(), rand(2, 5).requires_grad_()
        first, second = fn(x, w)
        first.backward()
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.backward()


def test_the_hooks_of_the_program_pack_and_unpack():
    fast = stator.compile(separate)
    for fn in (separate, fast, fast):
        packed, unpacked = [], []

        def pack(tensor, packed=packed):
            packed.append(tensor)
            return tensor * 1

        def unpack(tensor, unpacked=unpacked):
            unpacked.append(tensor)
            return tensor

        x, w = rand(1, 5).requires_grad_(), rand(2, 5).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            first, second = fn(x, w)
        first.backward()
        second.backward()
        assert packed and unpacked


def test_nothing_is_kept_behind_the_last_backward():
    def fn(x, w):
        y = x.sin()
        return (y.exp() * w).sum(), (w.cos() * 2).sum(), y

    fast = stator.compile(fn, backend="aot_eager")
    for _ in range(3):
        x, w = rand(1, 5).requires_grad_(), rand(2, 5).requires_grad_()
        first, second, y = fast(x, w)
        first.backward()
        second.backward()
        gone = weakref.ref(y)
        del y, first, second
        gc.collect()
        assert gone() is None
