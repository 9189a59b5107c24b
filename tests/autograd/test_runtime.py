"""The node of autograd: what the engine, the user's hooks and odd tangents make of it, compared with eager."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from comparing import as_it_is, check, copied
from torch import nn

import stator
from stator.autograd import aot_function, aot_module, default_partition, make_boxed_compiler


def x(*size: int, grad: bool = True, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(size or (3, 4), requires_grad=grad)


def both(fn, use, *args, **options):
    """What `use` makes of the plain function and of the compiled one, each on copies of the arguments."""
    found = []
    for f in (fn, aot_function(fn, as_it_is, **options)):
        torch.manual_seed(7)
        found.append(use(f, *copied(args)))
    return found


def equal(found):
    for one, other in zip(*map(list, found), strict=True):
        assert torch.equal(one, other)


def chain(a, b):
    return (a @ b).sin() * a.sum()


def test_both_graphs_are_compiled_before_the_first_result():
    order = []

    def compiler(name):
        return lambda gm, inputs: order.append(name) or gm

    fn = aot_function(chain, compiler("forward"), compiler("backward"))
    assert order == []
    fn(x(3, 3), x(3, 3))
    assert order == ["forward", "backward"]
    fn(x(3, 3), x(3, 3))
    assert order == ["forward", "backward"]
    fn(x(3, 3, grad=False), x(3, 3, grad=False))
    assert order == ["forward", "backward", "forward"]  # nothing to differentiate


def test_retain_graph():
    def use(f, a, b):
        out = f(a, b).sum()
        out.backward(retain_graph=True)
        out.backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.backward()
        return a.grad, b.grad

    equal(both(chain, use, x(3, 3), x(3, 3)))


def test_autograd_grad_of_some_inputs():
    def use(f, a, b):
        out = f(a, b)
        return torch.autograd.grad(out.sum(), b, retain_graph=True) + torch.autograd.grad(out.mean(), [a, b])

    equal(both(chain, use, x(3, 3), x(3, 3)))


def test_gradients_accumulate_and_are_set_to_none():
    def use(f, a, b):
        seen = []
        for step in range(3):
            f(a, b).sum().backward()
            seen += [a.grad.clone(), b.grad.clone()]
            if step == 1:
                a.grad = None
        return seen

    equal(both(chain, use, x(3, 3), x(3, 3)))


def test_hooks_on_inputs_and_outputs_and_accumulation():
    def use(f, a, b):
        seen = []
        a.register_hook(lambda g: g * 2)
        b.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        out = f(a, b)
        out.register_hook(lambda g: g + 1)
        out.sum().backward()
        return [a.grad, b.grad, *seen]

    equal(both(chain, use, x(3, 3), x(3, 3)))


def test_hooks_on_saved_tensors():
    def use(f, a, b):
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t.clone(), lambda t: t):
            out = f(a, b)
        out.sum().backward()
        assert packed
        return a.grad, b.grad

    equal(both(chain, use, x(3, 3), x(3, 3)))


def test_outputs_without_tangents():
    def fn(a, b):
        return a * b, a.sin(), (a + b).detach(), a.argmax()

    def use(f, a, b):
        f(a, b)[1].sum().backward()
        return [a.grad]

    equal(both(fn, use, x(), x(seed=1)))


@pytest.mark.parametrize(
    "tangent",
    [
        lambda: torch.ones(1).expand(3, 4),
        lambda: torch.arange(12.0).view(4, 3).t(),
        lambda: torch.arange(24.0).view(3, 8)[:, ::2],
    ],
)
def test_tangents_with_other_strides(tangent):
    def use(f, a):
        f(a).backward(tangent())
        return [a.grad]

    equal(both(lambda a: a.sin().view(-1).cos().view(3, 4), use, x()))


def test_double_backward():
    def use(f, a, b):
        out = f(a, b)
        first = torch.autograd.grad(out.pow(2).sum(), [a, b], create_graph=True)
        (first[0].sin().sum() + first[1].sum()).backward()
        return [*first, a.grad, b.grad]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = both(chain, use, x(3, 3), x(3, 3))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert ["eager" in str(w.message) for w in caught] == [True]


def test_double_backward_respects_detach_and_draws_the_same_numbers():
    def fn(a):
        return F.dropout(a * a.detach() * a.sin(), 0.5)

    def use(f, a):
        (first,) = torch.autograd.grad(f(a).sum(), a, create_graph=True)
        first.pow(2).sum().backward()
        return first, a.grad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one, other in zip(*both(fn, use, x()), strict=True):
            torch.testing.assert_close(one, other)


def test_double_backward_of_a_gradient_penalty():
    def run(model, call):
        batch = x(5, 4)
        out = call(batch)
        (grad,) = torch.autograd.grad(out.sum(), batch, create_graph=True)
        ((grad.norm(dim=1) - 1) ** 2).mean().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    found = []
    for wrap in (lambda m: m, lambda m: aot_module(m, as_it_is)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(run(model, wrap(model)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_double_backward_with_an_input_gone_says_so():
    fn = aot_function(lambda a: (a * 2).sin(), as_it_is, partition_fn=default_partition)
    leaf = x()
    out = fn(leaf * 2)
    with pytest.raises(RuntimeError, match="keep a reference to the inputs"):
        torch.autograd.grad(out.sum(), leaf, create_graph=True)


def test_double_backward_of_what_keeps_nothing_needs_no_inputs():
    def use(f, a):
        (first,) = torch.autograd.grad(f(a * 3).pow(2).sum(), a, create_graph=True)
        first.pow(3).sum().backward()
        return first, a.grad

    equal(both(lambda a: (a + 1) * 2, use, x()))


def test_no_node_where_nothing_needs_gradients():
    fn = aot_function(chain, as_it_is)
    assert fn(x(3, 3, grad=False), x(3, 3, grad=False)).grad_fn is None
    with torch.no_grad():
        assert fn(x(3, 3), x(3, 3)).grad_fn is None


def test_a_write_after_the_forward_is_noticed():
    def use(f, a):
        b = a * 1
        out = f(b)
        b.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
        return []

    both(lambda b: b.sin(), use, x())


def test_inputs_and_saved_values_are_freed():
    fn = aot_function(lambda a, w: ((a @ w).sin() @ w).sum(), as_it_is)
    w = x(4, 4)
    a = x(3, 4) * 1
    gone = weakref.ref(a)
    out = fn(a, w)
    del a
    out.backward()
    gc.collect()
    assert gone() is None
    assert out.grad_fn is not None


def test_saved_values_are_freed_during_the_backward():
    """Each is gone after its last use: the compiled backward owns what it is given."""
    left = []

    def watching(gm, inputs):
        def run(args):
            references = [weakref.ref(a) for a in args]
            count = len(args)
            args.clear()
            left.append((count, sum(r() is not None for r in references)))
            return [torch.zeros(3, 4), None]

        run._boxed_call = True
        return run

    fn = aot_function(lambda a, b: (a * b).sin() * b, as_it_is, watching)
    fn(x() * 1, (x() * 1).detach()).sum().backward()
    ((count, alive),) = left
    assert (count, alive) == (3, 0)


def test_make_boxed_compiler():
    @make_boxed_compiler
    def compiler(gm, inputs):
        return lambda *args: gm(*args)

    fn = aot_function(chain, compiler)
    a, b = x(3, 3), x(3, 3)
    fn(a, b).sum().backward()
    assert a.grad is not None


def test_example_inputs_know_device_and_strides():
    seen = []

    def compiler(gm, inputs):
        seen.append([(tuple(t.shape), t.stride(), t.device.type) for t in inputs])
        assert all(n.meta["val"].device.type == "cpu" for n in gm.graph.nodes if n.op == "placeholder")
        return gm

    aot_function(lambda a: a.t() @ a, compiler)(x(4, 3).t())
    assert seen[0] == [((3, 4), (1, 3), "cpu")]


def test_nodes_know_the_users_line():
    lines = []

    def compiler(gm, inputs):
        lines.extend((n.name, n.meta["stack_trace"]) for n in gm.graph.nodes if n.op == "call_function")
        return gm

    def fn(a):
        b = a.sin()
        return b.exp()

    aot_function(fn, compiler)(x())
    first = fn.__code__.co_firstlineno
    assert {name: int(line.split("line ")[1].split(",")[0]) - first for name, line in lines} == {
        "sin": 1, "exp": 2, "cos": 1, "mul": 2, "mul_1": 1,
    }  # fmt: skip


def test_hooks_of_distributed_data_parallel(tmp_path):
    """Gradients are handed over bucket by bucket as they are ready."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        found = []
        for wrap in (lambda m: m, lambda m: aot_module(m, as_it_is)):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
            parallel = nn.parallel.DistributedDataParallel(wrap(model))
            buckets = []

            def hook(state, bucket, buckets=buckets):
                buckets.append(bucket.buffer().numel())
                done = torch.futures.Future()
                done.set_result(bucket.buffer() * 2)
                return done

            parallel.register_comm_hook(None, hook)
            for _ in range(2):
                parallel(x(3, 4, grad=False)).pow(2).sum().backward()
            found.append([*(p.grad for p in model.parameters()), torch.tensor(sum(buckets))])
        equal(found)
    finally:
        distributed.destroy_process_group()


def test_threads_and_many_nodes():
    check(lambda a, b: [t.sin() for t in (a, b, a * b, a + b)], x(), x(seed=1), calls=3)


@pytest.mark.parametrize("backend", ["aot_eager", "native", "inductor"])
def test_many_writes_are_made_as_single_ones_are(backend: str) -> None:
    """To views, to numbers of other types, to leaves that require gradients, to what is written twice."""

    def write(a, b, c, d, e, x):
        with torch.no_grad():
            a.add_(x)
            b.mul_(2)
            c[1:].copy_(x)
            d += 1
            e.add_(a).add_(b)
        return x + 1

    def make() -> list[torch.Tensor]:
        base = torch.arange(6.0)
        leaf, whole = torch.ones(3, requires_grad=True), torch.zeros(3, dtype=torch.int64)
        return [leaf, base[1:4], torch.zeros(4), whole, torch.zeros(3, dtype=torch.float64)]

    fn = stator.compile(write, backend=backend)
    ours, plain = make(), make()
    for _ in range(4):
        x = torch.randn(3)
        torch.testing.assert_close(fn(*ours, x), write(*plain, x))
        for found, expected in zip(ours, plain, strict=True):
            torch.testing.assert_close(found, expected)
        torch.testing.assert_close(ours[1]._base, plain[1]._base)
    before = [t._version for t in ours]
    fn(*ours, torch.randn(3))
    assert all(t._version > version for t, version in zip(ours, before, strict=True))
    assert fn.stator.hits == 4
