"""Tensors: changed in place, viewed, aliased, returned as they came; random numbers, shapes and factories."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from harness import World, check, check_stateless, rand


def keep(seed, *shape):
    """A call whose argument stays in the world, so that what happens to it is compared."""

    def run(w):
        w.x = rand(seed, *shape)
        return w.fn(w.x)

    return run


def check_in_place(fn, *shape, expect="miss hit hit"):
    return check(lambda: World(fn=fn, x=None), [keep(1, *shape), keep(2, *shape), keep(3, *shape)], expect=expect)


# ---- changes in place ---------------------------------------------------------------------------


def test_an_input_is_changed_in_place():
    def fn(x):
        x.add_(1).mul_(2)
        x += 3
        x[0] = 7
        x[1:3] *= 2
        return x.sum()

    check_in_place(fn)


def test_an_input_is_changed_through_a_view():
    def fn(x):
        view = x.view(2, 2)
        view[0] += 1
        row = view[1]
        row.zero_()
        x.t_() if x.dim() == 2 else None
        return x * 2, view

    check_in_place(fn)


def test_out_arguments():
    def fn(x):
        torch.mul(x, 2, out=x)
        fresh = torch.empty(4)
        torch.add(x, 1, out=fresh)
        return fresh

    check_in_place(fn)


def test_an_intermediate_is_changed_in_place():
    def fn(x):
        y = x * 2
        before = y.clone()
        y[y > 0] = 0
        y.index_fill_(0, torch.tensor([1]), 9.0)
        return before, y

    check_in_place(fn)


def test_the_data_of_an_input_is_exchanged():
    def fn(x):
        x.data = x.data * 2
        return x + 1

    check(lambda: World(fn=fn, x=None), [keep(1), keep(2), keep(3)], expect=None)


def test_in_place_with_gradients():
    def fn(x):
        y = x * 2
        y.exp_()
        y = y + x
        y.add_(x).mul_(2)
        return y.sum()

    def step(w, seed):
        w.x = rand(seed, requires_grad=True)
        loss = w.fn(w.x)
        loss.backward()
        return loss

    check(lambda: World(fn=fn, x=None), [lambda w, s=s: step(w, s) for s in (1, 2, 3)], expect="miss hit hit")


def test_gradients_flow_through_a_replay():
    def fn(x, w):
        return (F.softmax(x @ w, dim=-1) * torch.arange(3)).sum()

    def step(world, seed):
        world.x, world.w = rand(seed, 2, 4, requires_grad=True), rand(seed + 1, 4, 3, requires_grad=True)
        loss = world.fn(world.x, world.w)
        loss.backward()
        return loss

    check(
        lambda: World(fn=fn, x=None, w=None),
        [lambda w, s=s: step(w, s) for s in (1, 3, 5)],
        expect="miss hit hit",
    )


def test_requires_grad_is_switched_on_inside():
    def fn(x):
        y = (x * 2).detach().requires_grad_()
        return y, y * 3

    check_in_place(fn)


# ---- views and aliases --------------------------------------------------------------------------


def test_outputs_that_are_inputs():
    def fn(x, y):
        return x, [y, x], {"x": x, "sum": x + y}

    def call(seed):
        def run(w):
            w.x, w.y = rand(seed), rand(seed + 1)
            return w.fn(w.x, w.y)

        return run

    check(lambda: World(fn=fn, x=None, y=None), [call(1), call(3), call(5)], expect="miss hit hit")


def test_outputs_that_are_views_of_inputs():
    check_in_place(
        lambda x: (x.view(2, 2), x[1:], x.t() if x.dim() == 2 else x.unsqueeze(0), x.detach(), x.expand(3, 4))
    )


def test_outputs_that_are_views_of_each_other():
    def fn(x):
        y = x * 2
        return y, y.view(2, 2), y[::2], y.reshape(4, 1), y.contiguous(), y.clone()

    check_stateless(fn)


def test_operations_that_return_their_input():
    def fn(x):
        return (
            x.contiguous(),
            x.to(torch.float32),
            x.float(),
            x.cpu(),
            F.dropout(x, 0.5, training=False),
            x + 0,
        )

    check_in_place(fn)


def test_identity_of_tensors_decides():
    def fn(x):
        y = x.contiguous()
        z = x.float()
        if y is x and z is x:
            return x * 2
        return x * 3

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1, 2, 3)),
            lambda w: w.fn(rand(2, 2, 3)),
            lambda w: w.fn(rand(3, 3, 2).t()),
            lambda w: w.fn(rand(4, 2, 3, dtype=torch.float64)),
        ],
        expect="miss hit miss miss",
    )


def test_the_same_tensor_passed_twice():
    def fn(x, y):
        x.add_(1)
        return x * y, x is y

    def twice(seed):
        def run(w):
            x = rand(seed)
            return w.fn(x, x), x

        return run

    def apart(seed):
        return lambda w: w.fn(rand(seed), rand(seed + 1))

    check(
        lambda: World(fn=fn),
        [apart(1), apart(3), twice(5), twice(6), apart(7)],
        expect="miss hit miss hit hit",
    )


def test_overlapping_views_passed_as_arguments():
    def fn(x, y):
        x.add_(1)
        return y * 2

    def overlapping(seed):
        def run(w):
            w.base = rand(seed, 6)
            return w.fn(w.base[:4], w.base[2:])

        return run

    check(
        lambda: World(fn=fn, base=None),
        [lambda w: w.fn(rand(1), rand(2)), overlapping(3), overlapping(4), lambda w: w.fn(rand(5), rand(6))],
        expect=None,
    )


def test_a_strided_input():
    def fn(x):
        return x * 2, x.stride(), x.flatten()

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1, 2, 6)[:, ::2]),
            lambda w: w.fn(rand(2, 2, 6)[:, ::2]),
            lambda w: w.fn(rand(3, 2, 3)),
            lambda w: w.fn(rand(4, 3, 2).t()),
        ],
        expect="miss hit miss miss",
    )


# ---- random numbers -----------------------------------------------------------------------------


def test_random_operations_give_the_numbers_of_the_plain_program():
    def fn(x):
        noise = torch.rand_like(x) + torch.randn(4) + torch.randint(0, 9, (4,))
        return (
            F.dropout(x + noise, 0.5),
            torch.bernoulli(torch.full((4,), 0.5)),
            torch.randperm(5),
            x.normal_(),
        )

    check_in_place(fn)


def test_random_numbers_follow_the_seed():
    def fn(x):
        return x + torch.rand(4)

    def seeded(seed):
        def run(w):
            torch.manual_seed(seed)
            return w.fn(rand(1))

        return run

    check(lambda: World(fn=fn), [seeded(1), seeded(2), seeded(1), seeded(2)], expect="miss hit hit hit")


def test_an_explicit_generator():
    def fn(x, generator):
        return x + torch.rand(4, generator=generator)

    check(
        lambda: World(fn=fn, generator=torch.Generator().manual_seed(5)),
        [lambda w, s=s: w.fn(rand(s), w.generator) for s in (1, 2, 3)],
        expect=None,
        observe=lambda w: w.generator.get_state(),
    )


def test_seeding_inside():
    def fn(x):
        torch.manual_seed(3)
        return x + torch.rand(4)

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)


# ---- shapes, factories, dtypes ------------------------------------------------------------------


def test_shape_arithmetic():
    def fn(x):
        batch, length, width = x.shape
        heads = width // 2
        y = x.view(batch, length, heads, width // heads).transpose(1, 2)
        scale = 1.0 / math.sqrt(y.size(-1))
        return (
            y.reshape(batch * heads, -1) * scale,
            y.shape[:-1] + x.shape[:1],
            x.shape[-1] % 3,
            list(x.shape[::-1]),
        )

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s, 2, 3, 4)) for s in (1, 2)] + [lambda w: w.fn(rand(3, 1, 5, 6))],
        expect="miss hit miss",
    )


def test_torch_size():
    def fn(x):
        size = x.shape
        other = torch.Size([*size, 2])
        return (
            torch.zeros(other) + x.unsqueeze(-1),
            other.numel(),
            size == (2, 3),
            size + size,
            size[0],
            tuple(size),
        )

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1, 2, 3)), lambda w: w.fn(rand(2, 2, 3)), lambda w: w.fn(rand(3, 3, 3))],
        expect="miss hit miss",
    )


def test_factory_functions():
    def fn(x):
        n = x.shape[0]
        made = [torch.zeros(n), torch.ones(2, n), torch.full((n,), 3), torch.arange(n), torch.eye(n)]
        made += [
            torch.empty(n).fill_(2),
            torch.tensor([1.5, n]),
            torch.linspace(0, 1, n),
            torch.zeros_like(x),
        ]
        made += [x.new_ones(2), x.new_tensor([1, 2]), torch.as_tensor([n]), torch.scalar_tensor(2.0)]
        made += [
            torch.arange(1, n, 2, dtype=torch.float16),
            torch.full_like(x, 2),
            torch.tril(torch.ones(n, n)),
        ]
        return x + 1, made

    check_stateless(fn)


def test_a_constant_tensor_is_new_on_every_call():
    def fn(x):
        bias = torch.tensor([1.0, 2.0, 3.0, 4.0])
        bias += x
        return bias

    check_stateless(fn)


def test_dtypes_and_devices():
    def fn(x, like):
        return (
            x.to(like),
            x.to(like.dtype),
            x.type_as(like),
            x.to("cpu", torch.int32),
            x.double().half(),
            x.bool(),
        )

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), rand(2, dtype=torch.float64)),
            lambda w: w.fn(rand(3), rand(4, dtype=torch.float64)),
            lambda w: w.fn(rand(5), torch.arange(4)),
        ],
        expect="miss hit miss",
    )


def test_finfo_and_promotion():
    def fn(x, mask):
        low = torch.finfo(x.dtype).min
        masked = x.masked_fill(mask, low)
        kind = torch.promote_types(x.dtype, torch.float64)
        return masked.softmax(-1), low, kind, torch.iinfo(torch.int8).max, torch.result_type(x, 1.0)

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s), rand(s + 1) > 0) for s in (1, 3)] + [lambda w: w.fn(rand(5).half(), rand(6) > 0)],
        expect="miss hit miss",
    )


def test_python_numbers_as_arguments():
    def fn(x, n, p):
        return x.repeat(n) * p + n**p

    check(
        lambda: World(fn=fn),
        [lambda w, n=n, p=p: w.fn(rand(1), n, p) for n, p in ((2, 0.5), (2, 0.5), (3, 0.5), (3, 2.0), (2, 0.5))],
        expect="miss hit miss miss hit",
    )


def test_indexing_in_every_way():
    def fn(x, index, mask):
        return (
            *(x[0], x[-1, 1], x[:, 1:], x[..., None], x[None, ::2], x[1:2, [0, 2]]),
            *(x[index], x[:, index[:1]], torch.where(mask, x, 0), x.gather(1, index[None, :].expand(2, 2))),
        )

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s, 2, 3), torch.tensor([s % 2, 1]), rand(s, 2, 3) > 0) for s in (1, 2, 3)],
        expect="miss hit hit",
    )


def test_operators_with_python_numbers_on_either_side():
    def fn(x):
        made = [2 - x, 1 / (x.abs() + 1), 2 ** x.abs(), -x, +x, abs(x), x // 2, x % 3, 7 % (x.abs() + 1)]
        made += [
            x == 0,
            x > 0.5,
            1 - x >= 0,
            ~(x > 0),
            (x > 0) & (x < 1),
            (x > 0) | True,
            (x > 0) ^ (x > 1),
        ]
        made += [x @ x, x**2, x**0.5 if x.dim() == 2 else x, torch.round(x), pow(x, 2)]
        return made

    check_stateless(fn)


def test_complex_and_integer_tensors():
    def fn(x):
        z = torch.complex(x, x + 1)
        bits = (x * 8).to(torch.int32)
        return z.conj() * z, z.real, z.imag, z.abs(), bits & 3, bits << 1, bits // 3, torch.view_as_real(z)

    check_stateless(fn)


def test_functions_of_torch_nn_functional():
    def fn(x, w):
        y = F.linear(x, w)
        y = F.layer_norm(F.gelu(y), y.shape[-1:])
        attended = F.scaled_dot_product_attention(y[None], y[None], y[None], is_causal=True)
        return (
            F.cross_entropy(y, torch.tensor([0, 2])),
            F.pad(y, (1, 1)),
            F.one_hot(torch.arange(3), 4),
            attended,
        )

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s, 2, 4), rand(s + 1, 3, 4)) for s in (1, 3, 5)],
        expect="miss hit hit",
    )


def test_einsum_and_other_functions_with_lists():
    def fn(x, y):
        both = torch.cat([x, y]), torch.stack((x, y), dim=1), torch.einsum("ij,kj->ik", x, y)
        return (
            both,
            torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"),
            torch.broadcast_tensors(x, y[:1]),
        )

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s, 2, 3), rand(s + 1, 2, 3)) for s in (1, 3, 5)],
        expect="miss hit hit",
    )


def test_zero_dimensional_and_empty_tensors():
    def fn(x, s):
        return x.sum() * s, torch.cat([x, x[:0]]), x[:0].sum(), torch.zeros(0), s.reshape(1)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), torch.tensor(2.0)),
            lambda w: w.fn(rand(2), torch.tensor(3.0)),
            lambda w: w.fn(rand(3)[:0], torch.tensor(4.0)),
        ],
        expect="miss hit miss",
    )


def test_values_that_are_not_a_number():
    def fn(x):
        return x.log(), x / 0, torch.where(x.isnan(), 1.0, x), x.nan_to_num()

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(torch.tensor([float("nan"), s, -s, float("inf")])) for s in (1.0, 2.0, 3.0)],
        expect="miss hit hit",
    )
