"""Writes, views, aliases, modes and random numbers: a pure graph and what is done around it, compared with eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import check
from torch import nn

import stator


def x(*size: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(size))
    return torch.randn(size or (3, 4), dtype=dtype, requires_grad=grad)


def computed(*size: int) -> torch.Tensor:
    """Requires gradients and is no leaf: may be written to."""
    return x(*size, grad=True) * 1


# ------------------------------------------------------------------------------------- writes to intermediates


def test_a_write_to_an_intermediate():
    check(lambda a, b: (a * 2).add_(b).mul_(a), x(grad=True), x(grad=True))


def test_a_write_through_a_view_is_seen_in_the_whole():
    def fn(a, b):
        y = a * 2
        y[0].mul_(b)
        y[:, 1:3].add_(1)
        return y * 3

    check(fn, x(grad=True), x(4, grad=True))


def test_a_write_to_the_whole_is_seen_through_views():
    def fn(a):
        y = a * 2
        row, column = y[1], y.t()[0]
        y.mul_(a)
        return row + 1, column + 1

    check(fn, x(grad=True))


VIEWS = {
    "select": lambda t: t[1],
    "slice": lambda t: t[:, ::2],
    "transposed": lambda t: t.t(),
    "permuted": lambda t: t.view(2, 3, 4).permute(2, 0, 1),
    "viewed": lambda t: t.view(-1),
    "diagonal": lambda t: t.diagonal(),
    "unsqueezed": lambda t: t.unsqueeze(1),
    "squeezed": lambda t: t[:1].squeeze(0),
    "split": lambda t: t.split(2, 1)[1],
    "chunk": lambda t: t.chunk(2)[0],
    "unbound": lambda t: t.unbind(1)[2],
    "split with sizes": lambda t: t.split([1, 3], 1)[1],
    "narrow": lambda t: t.narrow(0, 1, 2),
    "detached": lambda t: t.detach(),
    "slice of transposed": lambda t: t.t()[1:3, 0],
    "strided": lambda t: t.as_strided((2, 2), (4, 2), 1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_writes_through_every_kind_of_view(view):
    def fn(a):
        y = a * 2
        seen = view(y)
        seen.mul_(3)
        seen.add_(1)
        return y + 1, seen * 2

    check(fn, x(6, 4))


@pytest.mark.parametrize(
    "view", [v for k, v in VIEWS.items() if k not in ("detached", "split", "unbound", "chunk", "split with sizes")]
)
def test_gradients_through_writes_to_views(view):
    def fn(a, b):
        y = a * 2
        view(y).mul_(b)
        return y * a

    check(fn, x(6, 4, grad=True), x(1, grad=True))


def test_setitem_with_masks_and_indices():
    def fn(a, mask, index):
        y = a * 1
        y[mask] = 0
        y[index, 0] = a[0, 0] * 2
        y[..., -1] += 5
        return y

    check(fn, x(grad=True), x() > 0, torch.tensor([0, 2]))


def test_a_write_of_another_dtype():
    check(lambda a, b: (a * 2).add_(b), x(), x(dtype=torch.float64))
    check(lambda a: torch.zeros(3, 4, dtype=torch.int64).add_(a.long()), x())


def test_a_write_keeps_odd_strides():
    def fn(a):
        y = (a * 2).t()
        y.copy_(a.t().contiguous() + 1)
        return y.t().view(-1)

    check(fn, x(grad=True))


def test_out_arguments():
    def fn(a, b):
        y = torch.empty(3, 4)
        torch.add(a, b, out=y)
        return y * 2

    check(fn, x(), x())


def test_shapes_changed_in_place():
    check(lambda a: (a * 2).t_() + 1, x(grad=True))
    check(lambda a: (a * 2).unsqueeze_(0).squeeze_(0).mul_(2), x(grad=True))


# ------------------------------------------------------------------------------------------- writes to inputs


def test_an_input_that_needs_no_gradient_is_written_to():
    def fn(a, b):
        a.mul_(2)
        return a + b

    check(fn, x(), x(grad=True))


def test_a_written_input_comes_to_need_gradients():
    def fn(a, b):
        a.mul_(b)
        return a * 2

    check(fn, x(), x(grad=True))


def test_a_computed_input_is_written_to():
    def fn(a, b):
        a.mul_(b).add_(1)
        return (a * 3).sum()

    check(fn, computed(), x(grad=True))


def test_part_of_an_input_is_written_to():
    def fn(a, b):
        a[0] = b
        a[:, 1].zero_()
        return a.sum()

    check(fn, x(), x(4))


def test_an_input_that_is_a_view_or_not_contiguous_is_written_to():
    check(lambda a: a.add_(1).sum(), x(4, 3).t())
    check(lambda a: a.add_(1).sum(), x(4, 6)[:, ::2])


def test_a_leaf_is_written_to_without_gradients():
    def fn(a, b):
        y = a + b
        with torch.no_grad():
            b.add_(1)
        return y.sin() + b

    check(fn, x(grad=True), x(grad=True))


def test_a_counter_and_a_running_mean():
    def fn(a, count, mean):
        count += 1
        mean.mul_(0.9).add_(a.mean(0), alpha=0.1)
        return a - mean

    check(fn, x(), torch.tensor(0), x(4))


def test_batch_norm_counts():
    torch.manual_seed(0)
    modules = [nn.BatchNorm1d(4) for _ in range(2)]
    from stator.autograd import aot_module

    compiled = aot_module(modules[1], lambda gm, _: gm)
    for seed in range(3):
        torch.manual_seed(seed)
        batch = torch.randn(5, 4)
        outs = [m(batch.clone()) for m in (modules[0], compiled)]
        for out in outs:
            out.pow(2).sum().backward()
        assert torch.equal(outs[0], outs[1])
    for one, other in zip(modules[0].state_dict().values(), modules[1].state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(modules[0].weight.grad, modules[1].weight.grad)


def test_a_written_input_is_kept_as_it_was():
    """The backward needs what the input was; eager keeps the result of exp, the cut may keep the input."""

    def fn(a):
        y = a.exp()
        z = (y * y.sin()).cos()
        with torch.no_grad():
            a.add_(1)
        return z

    check(fn, computed(), exact=False)


# ------------------------------------------------------------------------------------------------- aliasing


def test_outputs_that_are_inputs():
    check(lambda a, b: (b, a, a * 2, a), x(grad=True), x())


def test_outputs_that_are_views_of_inputs():
    check(lambda a, b: (a.view(-1), b[0], a.t() + 1, a.detach()), x(grad=True), x())


def test_outputs_that_share_memory():
    def fn(a):
        y = a * 2
        return y, y.view(-1), y[0], y.detach()

    check(fn, x(grad=True))


def test_outputs_that_share_memory_with_something_not_returned():
    def fn(a):
        y = a * 2
        return y[0], y[1:]

    check(fn, x(grad=True))


def test_writing_to_an_output_that_shares_memory():
    """Autograd must know that the outputs are views of each other."""

    def fn(a):
        y = a * 2
        return y, y[0]

    def writes(f):
        def run(a):
            whole, part = f(a)
            part.mul_(3)
            return whole * a

        return run

    from comparing import as_it_is, copied

    from stator.autograd import aot_function

    grads = []
    for f in (fn, aot_function(fn, as_it_is)):
        (a,) = copied([x(grad=True)])
        writes(f)(a).sum().backward()
        grads.append(a.grad)
    assert torch.equal(*grads)


def test_the_same_tensor_twice():
    a = x(grad=True)
    check(lambda p, q, r: p * q + r, a, a, x())
    b = x()
    check(lambda p, q: p.add_(1) + q, b, b)


def test_the_same_output_twice():
    def fn(a):
        y = a * 2
        return y, y

    check(fn, x(grad=True))


def test_outputs_that_are_no_tensors():
    check(lambda a: {"a": a * 2, "n": 3, "rest": [None, "text", (a.argmax(), a > 0)]}, x(grad=True))


def test_detach_and_no_grad():
    def fn(a, b):
        with torch.no_grad():
            scale = (a * b).sum()
        return a * b.detach() * scale, scale

    check(fn, x(grad=True), x(grad=True))


def test_integers_and_inputs_without_gradients():
    check(lambda a, i: (a[i], i + 1, a.long()), x(grad=True), torch.tensor([0, 2, 1]))


def test_an_unused_input_and_an_output_that_depends_on_nothing():
    check(lambda a, b: (a * 2, torch.ones(2), torch.tensor([1.0, 2.0]), torch.tensor(3)), x(grad=True), x(grad=True))


def test_no_gradients_at_all():
    check(lambda a, b: (a @ b.t()).relu_(), x(), x())
    with torch.no_grad():
        check(lambda a: a * 2, x(grad=True))


# ------------------------------------------------------------------------------------------ modes and numbers


def test_autocast_regions():
    def fn(a, b):
        with torch.autocast("cpu", torch.bfloat16):
            y = a @ b.t()
            with torch.autocast("cpu", enabled=False):
                z = y.float() @ a
        return y, z

    check(fn, x(grad=True), x(3, 4, grad=True))


def test_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        check(lambda a, b: (F.linear(a, b).softmax(-1), a + b[:3]), x(grad=True), x(5, 4, grad=True))


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_dropout_masks_are_eagers(p):
    check(lambda a: F.dropout(F.dropout(a.sin(), p) * 2, p).cos(), x(8, 8, grad=True), exact=False, calls=4)


def test_dropout_of_what_is_not_contiguous():
    check(lambda a: F.dropout(a.transpose(0, 1), 0.5) * 2, x(3, 8, 5, grad=True), calls=3)


def test_random_numbers_nobody_reads():
    """Later numbers depend on them."""

    def fn(a):
        torch.rand(3)
        return a + torch.rand(3, 4) + torch.empty(3, 4).uniform_() + torch.randn_like(a) + torch.normal(a, 1.0)

    check(fn, x())


def test_inference_mode():
    with torch.inference_mode():
        check(lambda a, b: F.linear(a, b).view(-1), x(), x(5, 4))


def test_complex_numbers():
    check(lambda a: torch.view_as_real(torch.view_as_complex(a) * 2).sum(), x(3, 2, grad=True))
    check(lambda a: (a * a.conj()).real, x(3, grad=True, dtype=torch.complex64))


LISTS: dict[str, Any] = {
    "a tensor and its view": lambda t: torch._foreach_add_([t, t[:2]], 1.0),
    "a tensor twice": lambda t: torch._foreach_mul_([t, t], 2.0),
    "another is read later": lambda t: torch._foreach_add_([t[:2], t[2:]], [t[2:], t[:2]]),
    "apart": lambda t: torch._foreach_add_([t[:2], t[2:]], [t[:2], t[2:] * 2]),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", LISTS)
def test_writes_to_lists_of_tensors_that_share_memory(name, backend):
    """In order: each sees what was written before."""

    def fn(t, step):
        step(t)
        return t * 2

    compiled = stator.compile(fn, backend=backend)
    plain, fast = torch.arange(2.0, 6.0), torch.arange(2.0, 6.0)
    for _ in range(4):
        wanted, found = fn(plain, LISTS[name]), compiled(fast, LISTS[name])
        assert torch.equal(wanted, found) and torch.equal(plain, fast)
    assert compiled.stator.hits == 3
