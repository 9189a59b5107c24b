"""`torch.autograd.Function` derived ahead of time: forward and backward are nodes of the joint graph.

Each program runs plain and compiled, four times with other data; results, gradients and what was written are compared.
`COMPILED` says that the program's backward was not called: the node of autograd is the graph's own.
"""

from __future__ import annotations

import pytest
import torch
from harness import rand
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

import stator

SLOPE = 0.5
COMPILED = "GraphBackward"
calls: list[str] = []  # of backwards that say so


def steep(x):
    return torch.sigmoid(x) * SLOPE


def run(fn, seed, wanted=None):
    """Results, what was written, gradients; and the name of the node."""
    x, w = rand(seed, 3, 4).requires_grad_(), rand(seed + 9, 3, 4).requires_grad_()
    results = fn(x, w)
    results = results if isinstance(results, tuple) else (results,)
    differentiable = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    chosen = differentiable if wanted is None else [differentiable[i] for i in wanted]
    torch.autograd.backward([(r * torch.arange(1.0, r.numel() + 1).reshape(r.shape)).sum() for r in chosen])
    name = type(differentiable[0].grad_fn).__name__
    return [r.detach() if isinstance(r, torch.Tensor) else r for r in results], x.grad, w.grad, name


def same(fn, backend="native", *, wanted=None, compiled=True):
    stator.reset()
    fast = stator.compile(fn, backend=backend, fullgraph=True)
    for seed in range(4):
        expected, found = run(fn, seed, wanted), run(fast, seed, wanted)
        torch.testing.assert_close(found[:3], expected[:3])
        if seed:
            assert (found[3] == COMPILED) is compiled, found[3]
    (entry,) = fast.stator.entries
    assert entry.hits == 3
    return fast


class Swish(torch.autograd.Function):
    """Saved tensors: an input, a value in between and a result; attributes; a helper and a variable of the module."""

    @staticmethod
    def forward(ctx, x, scale, name):
        gate = torch.sigmoid(x)
        y = x * gate * scale
        ctx.save_for_backward(x, gate, y)
        ctx.scale, ctx.shape, ctx.kind = scale, x.shape, name
        return y

    @staticmethod
    def backward(ctx, grad):
        x, gate, y = ctx.saved_tensors
        if ctx.needs_input_grad[0] and ctx.kind == "swish":
            grad = grad * (gate + x * gate * (1 - gate)) * ctx.scale + steep(y).reshape(ctx.shape) * 0
        return grad, None, None


class Pair(torch.autograd.Function):
    """Several results, one of them not differentiable, one no tensor; a context of its own."""

    @staticmethod
    def forward(x, y):
        return x * y, (x > y).to(x.dtype), 7

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx, product, _mask, _number):
        x, y = ctx.saved_tensors
        return product * y, product * x


class Doubled(torch.autograd.Function):
    """Writes to what it is given."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Reversed(torch.autograd.Function):
    """Gives back what it is given; the tensor is kept as an attribute."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.weight = w
        return x

    @staticmethod
    def backward(ctx, grad):
        return -grad * F.softplus(ctx.weight), None


class Apart(torch.autograd.Function):
    """Gradients that are not there stay None."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.set_materialize_grads(False)
        return x * 2, w * 3

    @staticmethod
    def backward(ctx, left, right):
        return (None if left is None else left * 2), (torch.ones(3, 4) if right is None else right * 3)


class Constant(torch.autograd.Function):
    """A backward that is not linear in its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return torch.ones_like(grad)


class Telling(torch.autograd.Function):
    """Its backward does more than compute."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        calls.append("backward")
        return grad * 2


PROGRAMS = {
    "saved, attributes, helper": lambda x, w: (Swish.apply(x * w, 2.0, "swish") + 1).sin(),
    "several results": lambda x, w: Pair.apply(x.exp(), w)[:2],
    "no tensor among them": lambda x, w: Pair.apply(x, w)[0] * Pair.apply(x, w)[2],
    "a write": lambda x, w: Doubled.apply(x.sin()) * w,
    "given back": lambda x, w: Reversed.apply(x, w) * w,
    "all gradients there": lambda x, w: Apart.apply(x, w)[0] * Apart.apply(x, w)[1],
    "twice in a row": lambda x, w: Swish.apply(Swish.apply(x, 1.0, "swish"), 3.0, "") * w,
    "a constant gradient": lambda x, w: Constant.apply(x * w),
}


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, backend):
    same(PROGRAMS[name], backend)


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("fn", [lambda x, w: Apart.apply(x.sin(), w), lambda x, w: tuple(map(Constant.apply, (x, w)))])
def test_gradients_that_are_missing(fn, wanted):
    """What is compiled takes all of them; for others the program's backward runs."""
    same(fn, wanted=wanted)


def test_a_loss_beside_other_results():
    def fn(x, w):
        y = Swish.apply(x, 2.0, "swish")
        return (y * w).sum(), y

    same(fn, wanted=(0,))
    same(fn, wanted=(0, 1))


def test_twice_differentiable():
    def fn(x, w):
        return Swish.apply(x, 2.0, "swish") * w

    def twice(call, seed):
        x, w = rand(seed, 3, 4).requires_grad_(), rand(seed + 9, 3, 4).requires_grad_()
        (first,) = torch.autograd.grad(call(x, w).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, w])

    fast = same(fn)
    for seed in range(3):
        torch.testing.assert_close(twice(fast, seed), twice(fn, seed))


@pytest.fixture
def slope():
    yield
    globals().update(SLOPE=0.5, steep=STEEP)
    Steep.backward = BACKWARD


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.slope = SLOPE
        return x * SLOPE

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.slope + steep(*ctx.saved_tensors)


STEEP, BACKWARD = steep, Steep.backward


def other(ctx, grad):
    return grad * 100 + ctx.saved_tensors[0]


@pytest.mark.parametrize(
    "change", [{"SLOPE": 3.0}, {"SLOPE": torch.ones(3, 4)}, {"steep": lambda x: x * 7}, {"Steep.backward": other}]
)
def test_what_the_backward_reads_is_compared_when_it_runs(change, slope):
    """What the forward has read stays what it was then."""

    def step(call, seed, changes):
        globals().update(SLOPE=0.5, steep=STEEP)
        Steep.backward = staticmethod(BACKWARD)
        x = rand(seed, 3, 4).requires_grad_()
        result = call(x).sum()
        if changes:
            Steep.backward = staticmethod(change.get("Steep.backward", BACKWARD))
            globals().update({name: value for name, value in change.items() if "." not in name})
        result.backward()
        return x.grad

    def fn(x):
        return Steep.apply(x.sin())

    stator.reset()
    fast = stator.compile(fn, fullgraph=True)
    for seed, changes in enumerate([False, False, True, False, True]):
        torch.testing.assert_close(step(fast, seed, changes), step(fn, seed, changes))
    assert sum(entry.hits for entry in fast.stator.entries) >= 3


def test_a_backward_under_autocast_runs_as_it_is():
    def step(call, seed):
        x = rand(seed, 4, 4).requires_grad_()
        result = call(x).sum()
        with torch.autocast("cpu", torch.bfloat16):
            result.backward()
        return x.grad

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad @ x.t() + x.t() @ grad

    stator.reset()
    fast = stator.compile(Product.apply)
    for seed in range(4):
        torch.testing.assert_close(step(fast, seed), step(Product.apply, seed), rtol=0, atol=0)


def test_a_backward_that_does_more_is_called():
    same(lambda x, w: Telling.apply(x * w), compiled=False)
    assert len(calls) == 8
    calls.clear()


def test_two_backwards():
    def fn(x, w):
        return Swish.apply(x, 2.0, "swish").sum(), Constant.apply(w).sum()

    stator.reset()
    fast = stator.compile(fn)
    for call in (fn, fast, fast, fast):
        x, w = rand(1, 3, 4).requires_grad_(), rand(2, 3, 4).requires_grad_()
        first, second = call(x, w)
        first.backward()
        assert w.grad is None
        second.backward()
        assert torch.equal(w.grad, torch.ones(3, 4))
        with pytest.raises(RuntimeError, match="second time"):
            first.backward()


def test_hooks_for_saved_tensors_leave_it_to_python():
    def fn(x):
        return Swish.apply(x, 2.0, "swish")

    stator.reset()
    fast = stator.compile(fn)
    for call in (fn, fast, fast):
        x = rand(1, 3).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            result = call(x)
        result.sum().backward()
        assert x.grad is not None


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
@pytest.mark.parametrize("hooked", [(1,), (0, 1, 2)])
def test_full_backward_hooks_on_modules(backend, hooked):
    def build():
        torch.manual_seed(0)
        inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), inner, torch.nn.Linear(4, 4))
        seen = []
        for place in hooked:
            model[place].register_full_backward_hook(
                lambda module, given, taken: seen.append((given[0].clone(), taken[0].clone()))
            )
        return model, seen

    (plain, expected), (model, seen) = build(), build()
    compiled = stator.compile(model, backend=backend)
    for seed in range(4):
        for each in (plain, compiled):
            each(rand(seed, 2, 4).requires_grad_()).square().sum().backward()
    torch.testing.assert_close(seen, expected)
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
    assert len(seen) == 4 * len(hooked) and compiled.stator.hits >= 2


class Placed(torch.autograd.Function):
    """Goes by where its tensors are, which those of a trace cannot tell."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (3 if grad.is_cpu and not x.is_meta and x.shape[0] == len(x) else 5)


def test_a_backward_that_asks_for_devices_is_called():
    same(lambda x, w: Placed.apply(x * w), compiled=False)
