"""Gradients that take a way of their own, and tensors that come from somewhere else than an operation.

Whether such a program is replayed or stays plain is not the point here; that it is right on every call is.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from harness import World, check, rand
from torch import nn
from torch.utils.checkpoint import checkpoint

import stator


def check_right(fn, **how):
    """Right for three tensors that require gradients: results, gradients, effects."""

    def call(seed):
        def run(w):
            w.x = rand(seed, requires_grad=True)
            out = w.fn(w.x)
            loss = out[0] if isinstance(out, tuple) else out
            if isinstance(loss, torch.Tensor) and loss.requires_grad:
                loss.sum().backward()
            return out

        return run

    return check(lambda: World(fn=fn, x=None), [call(seed) for seed in (1, 2, 3)], expect=None, **how)


# ---- autograd -----------------------------------------------------------------------------------


class DoubleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale * 2, None


def test_a_custom_gradient():
    check_right(lambda x: DoubleGradient.apply(x + 1, 3.0) * 2)


def test_a_hook_on_an_intermediate_tensor():
    def fn(x):
        y = x * 2
        y.register_hook(lambda grad: grad * 10)
        return y * 3

    check_right(fn)


def test_a_hook_on_an_input():
    def fn(x):
        x.register_hook(lambda grad: grad * 10)
        return x * 3

    check_right(fn)


def test_retained_gradients():
    def fn(x):
        y = x * 2
        y.retain_grad()
        return y * 3, y

    check_right(fn)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant):
    check_right(lambda x: checkpoint(lambda t: t.sin() * 2, x, use_reentrant=reentrant) + 1)


def test_saved_tensors_hooks():
    def fn(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
            return x * x

    check_right(fn, unreplayed=["foreign-frame", "unknown-callable"])


def test_full_backward_hook_on_a_module():
    def world():
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        model.register_full_backward_hook(lambda module, given, out: (given[0] * 5,))
        return World(fn=model, model=model, x=None)

    def call(seed):
        def run(w):
            w.x = rand(seed, 2, 4, requires_grad=True)
            w.model.zero_grad()
            w.fn(w.x).sum().backward()

        return run

    check(world, [call(1), call(2), call(3)], expect=None)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_backward_hooks_on_modules_find_their_nodes(backend):
    """Torch looks for the node that it has made among those of the graph's results."""
    torch.manual_seed(0)
    model, log = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), []
    for part in model:
        part.register_full_backward_hook(lambda module, given, out: log.append(type(module).__name__))
    model[0].register_full_backward_pre_hook(lambda module, out: (out[0] * 2,))

    def train(fn, seed):
        x = rand(seed, 3, 4, requires_grad=True)
        log.clear()
        model.zero_grad()
        fn(x).sum().backward()
        return [x.grad, *[p.grad.clone() for p in model.parameters()]], list(log)

    compiled = stator.compile(model, backend=backend)
    for seed in range(4):
        (wanted, logged), (found, told) = train(model, seed), train(compiled, seed)
        torch.testing.assert_close(found, wanted)
        assert logged == told == ["Linear", "Tanh", "Linear"]
    assert compiled.stator.hits == 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_names_of_nodes(backend):
    weight = rand(9, requires_grad=True)

    def fn(x):
        y = (x * weight).sin()
        return y + 1, y.grad_fn.name(), y.grad_fn.next_functions[0][0].name()

    compiled = stator.compile(fn, backend=backend)
    for seed in range(4):
        assert compiled(rand(seed))[1:] == ("SinBackward0", "MulBackward0")
    assert compiled.stator.hits == 3


def test_gradients_inside():
    def fn(x):
        (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return grad * 2

    check_right(fn)


def test_functional_transforms():
    def fn(x):
        grad = torch.func.grad(lambda t: (t**2).sum())(x)
        mapped = torch.func.vmap(lambda t: t.sin() * 2)(x)
        return x + grad.detach() + mapped

    check_right(fn)


def test_detach_and_data():
    check_right(lambda x: (x * x.detach() + x.data, x.detach(), x.data.clone()))


def test_grad_attribute_is_read_and_cleared():
    def fn(x):
        before = torch.zeros(4) if x.grad is None else x.grad * 2
        x.grad = None
        return before + x.detach()

    def call(seed, with_grad):
        def run(w):
            w.x = rand(seed, requires_grad=True)
            if with_grad:
                w.x.grad = rand(seed + 1)
            return w.fn(w.x)

        return run

    check(
        lambda: World(fn=fn, x=None),
        [call(1, False), call(2, False), call(3, True), call(4, True), call(5, False)],
        expect=None,
    )


# ---- tensors that appear from nowhere -----------------------------------------------------------


def test_parameters_and_subclasses_made_inside():
    def fn(x):
        p = nn.Parameter(x.detach() * 2)
        return p * 3, torch.Tensor([1.0, 2.0]), torch.FloatTensor(2).fill_(1), p

    check_right(fn)


def test_tensors_from_numpy_and_back():
    array = np.arange(4, dtype=np.float32)

    def fn(x):
        y = x + torch.from_numpy(array)
        return y, torch.as_tensor(np.float32(2.0)), float(np.sum(y.detach().numpy()))

    check_right(fn, unreplayed=["numpy", "tensor-numpy", "unknown-callable"])


def test_a_numpy_array_changes_under_a_tensor():
    array = np.zeros(4, dtype=np.float32)

    def fn(x):
        return x + torch.from_numpy(array)

    def call(seed):
        def run(w):
            array[:] = seed
            return w.fn(rand(seed))

        return run

    check(lambda: World(fn=fn), [call(1), call(2), call(3)], expect=None)


def test_storage_and_pointers():
    check_right(lambda x: (x * 2, (x * 2).untyped_storage().nbytes(), x.data_ptr() == x.detach().data_ptr()))


def test_scripted_function():
    @torch.jit.script
    def scripted(x):
        return x * 2 + 1

    check_right(lambda x: scripted(x) - 1)


def test_a_tensor_subclass_with_its_own_torch_function():
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            result = super().__torch_function__(func, types, args, kwargs or {})
            return result + 100 if func is torch.Tensor.mul else result

    check(
        lambda: World(fn=lambda x: x.mul(2)),
        [lambda w, s=s: w.fn(rand(s).as_subclass(Loud)) for s in (1, 2)] + [lambda w: w.fn(rand(3))],
        expect=None,
    )


def test_a_tensor_with_attributes():
    def fn(x):
        x.tag = "seen"
        y = x * 2
        y.origin = x
        return y

    def call(seed):
        def run(w):
            w.x = rand(seed)
            return w.fn(w.x)

        return run

    check(lambda: World(fn=fn, x=None), [call(1), call(2), call(3)], expect=None, unreplayed="rebuild")


def test_in_place_change_behind_our_back():
    def fn(x):
        y = x * 2
        y.detach().numpy()[0] = 100
        return y + 1

    check_right(fn)
