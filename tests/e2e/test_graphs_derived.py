"""Forward and backward graphs derived ahead of time: what autograd and memory look like around them, as in eager."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import World, check, rand

import stator
from stator.backends.registry import look_up

BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])


def check_with(backend, fn, *calls, raises=()):
    inner = look_up(backend)[1]
    done = check(lambda: World(fn=fn), calls, expect=None, raises=raises, tracebacks=False, backend=inner)
    assert done.graphs and done.outcomes[1:] == ["hit"] * (len(calls) - 1), done.outcomes
    return done


# ---- leaves made inside


def made_and_given_back(x):
    leaf = torch.ones(4, requires_grad=True)
    return leaf, leaf * x


def made_and_kept(x):
    return torch.full((4,), 2.0, requires_grad=True) * x


def switched_on(x):
    leaf = (x * 2).requires_grad_()
    return leaf, leaf * x


def beside_an_input(x):
    leaf = torch.ones(4, requires_grad=True)
    return leaf, leaf * x * x


@BACKENDS
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("program", [made_and_given_back, made_and_kept, switched_on, beside_an_input])
def test_a_leaf_made_inside(program, needs_grad, backend):
    if program is switched_on and needs_grad:
        return  # torch refuses

    def call(seed):
        def one(w):
            x = rand(seed, requires_grad=needs_grad)
            results = w.fn(x)
            results = results if isinstance(results, tuple) else (results,)
            results[-1].sum().backward()
            return results, x, [result.grad if result.is_leaf else None for result in results]

        return one

    check_with(backend, program, call(1), call(2), call(3), call(4))


# ---- memory beside the elements of an input


def between_the_elements(x):
    x.as_strided((3,), (2,)).add_(1)
    return x * 2


def behind_the_rows(x):
    x.t().as_strided((2, 3), (1, 2)).add_(1)
    return x * 2


@BACKENDS
@pytest.mark.parametrize("program", [between_the_elements, behind_the_rows])
def test_a_write_by_strides_reaches_what_lies_between_the_elements(program, backend):
    def call(seed):
        def one(w):
            base = rand(seed, 4, 3)
            part = base[:2, :2] if program is behind_the_rows else base.view(-1)[::4]
            return w.fn(part), base

        return one

    check_with(backend, program, call(1), call(2), call(3), call(4))


@BACKENDS
def test_a_write_by_strides_to_a_dense_input(backend):
    def fn(x):
        x.as_strided((2, 2), (1, 2)).mul_(2)
        return x + 1

    def call(seed):
        def one(w):
            x = rand(seed)
            return w.fn(x), x

        return one

    check_with(backend, fn, call(1), call(2), call(3))


def before_the_view(y):
    y[1:].as_strided((2,), (1,), 0).mul_(3)
    return y


def behind_a_write(y):
    part = y[1:]
    part.add_(1)
    return part.as_strided((2,), (1,), 0) * 3, y


def between_the_elements_of_a_view(y):
    part = y[::2]
    part.as_strided((3,), (1,), 0).add_(5)
    return part * 2, y


def twice_by_strides(y):
    y.as_strided((3,), (1,), 1).as_strided((1,), (1,), 0).add_(9)
    return y


def of_what_is_detached(y):
    y.detach()[1:].as_strided((2,), (1,), 0).mul_(3)
    return y


def given_back(y):
    return y[1:].add_(1).as_strided((2,), (1,), 0)


def copied_by_strides(y):
    y.add_(1)
    return torch.as_strided_copy(y[1:], (2,), (1,), 0), y


def put_by_strides(y):
    y.add_(1)
    return torch.as_strided_scatter(y[1:], torch.zeros(1), (1,), (1,), 1), y


BY_STRIDES = [
    before_the_view,
    behind_a_write,
    between_the_elements_of_a_view,
    twice_by_strides,
    of_what_is_detached,
    given_back,
    copied_by_strides,
    put_by_strides,
]


@BACKENDS
@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("program", BY_STRIDES)
def test_strides_of_a_view_reach_all_of_the_memory(program, made, backend):
    """Of a tensor that was made inside, and of an input that begins in the middle of its memory."""

    def fn(x):
        return program(x * 2 if made else x)

    def call(seed):
        def one(w):
            base = rand(seed, 8)
            return w.fn(base[2:6]), base

        return one

    check_with(backend, fn, call(1), call(2), call(3), call(4))


@BACKENDS
def test_gradients_of_a_write_by_strides(backend):
    def fn(x):
        y = x * 2
        y[1:].as_strided((2,), (1,), 0).mul_(3)
        return y

    def call(seed):
        def one(w):
            x = rand(seed, requires_grad=True)
            y = w.fn(x)
            (y * y).sum().backward()
            return y, x

        return one

    check_with(backend, fn, call(1), call(2), call(3), call(4))


# ---- inputs that begin in the middle of their memory


def a_row(x):
    x.add_(1)
    return x[0] * 2


def a_row_of_what_is_detached(x):
    x.detach().mul_(2)
    return x.detach()[1] + 1


def rows(x):
    x.copy_(x * 3)
    first, second = x.unbind()
    return x.unsqueeze(0) * 2, first - second


def written_twice(x):
    x.detach()[1:].add_(1)
    x.detach()[:1].mul_(2)
    return x[:, 1] * 2


def written_by_data(x):
    x.data[1].mul_(2)
    x.data[:, :1].add_(1)
    return x.t()[0] * 1


@BACKENDS
@pytest.mark.parametrize("program", [a_row, a_row_of_what_is_detached, rows, written_twice, written_by_data])
def test_views_of_what_begins_in_the_middle_of_its_memory(program, backend):
    """Behind a write its contents are in a memory of their own, or where they were: views are counted from there."""

    def call(seed, begin):
        def one(w):
            base = rand(seed, 8, 2)
            return w.fn(base[begin : begin + 2]), base

        return one

    check_with(backend, program, call(1, 3), call(2, 3), call(3, 0), call(4, 6))
    check_with(backend, program, call(1, 0), call(2, 0), call(3, 3))


# ---- results that are written to before the backward


def exponential(x):
    return x.exp()


def exponential_and_more(x):
    y = x.exp()
    return y, y * 2


def squared(x):
    y = x * 2
    return y, y * y


def seen_by_a_view(x):
    y = x.exp()
    return y.view(2, 2), y * 2


def beside_it(x):
    return x.exp(), x * 3


@BACKENDS
@pytest.mark.parametrize("write", ["direct", "detached"])
@pytest.mark.parametrize("program", [exponential, exponential_and_more, squared, seen_by_a_view, beside_it])
def test_a_result_is_written_to_before_the_backward(program, write, backend):
    """Autograd has kept some of these, and refuses to go by them; others it does not need."""

    def call(seed, writes=True):
        def one(w):
            x = rand(seed, requires_grad=True)
            results = w.fn(x)
            results = results if isinstance(results, tuple) else (results,)
            with torch.no_grad():
                if writes:
                    (results[0] if write == "direct" else results[0].detach()).add_(1)
            try:
                results[-1].sum().backward()
            except RuntimeError as error:
                return str(error).partition(":")[0]
            return x.grad

        return one

    check_with(backend, program, call(1), call(2), call(3), call(4, writes=False))


def factor(x, state):
    state.add_(1)
    return x * state


def factor_seen_by_a_view(x, state):
    state.view(2, 2)[0].add_(1)
    return x * state.view(4)


def summand(x, state):
    state.mul_(0.9).add_(x.detach())
    return (x - state).exp()


def statistics(x, state):
    rows = x.expand(3, 4) * torch.arange(3.0)[:, None]
    return F.batch_norm(rows, state, torch.ones(4), training=True).square() * x


@BACKENDS
@pytest.mark.parametrize("program", [factor, factor_seen_by_a_view, summand, statistics])
def test_an_input_is_written_to_inside_and_again_before_the_backward(program, backend):
    """By the program, or by another call: autograd refuses if it has kept the input."""
    compiled = stator.compile(program, backend=backend)

    def called(fn, state, seed, how):
        x = rand(seed, requires_grad=True)
        results = [fn(x, state) for _ in range(2 if how == "called twice" else 1)]
        if how == "written to":
            state.add_(1)
        try:
            sum(result.sum() for result in results).backward()
        except RuntimeError as error:
            return str(error).partition(":")[0]
        return [*results, x.grad, state.clone()]

    states = torch.zeros(4), torch.zeros(4)
    hows = ["", "", "called twice" if program is statistics else "written to", "called twice", ""]
    for seed, how in enumerate(hows):
        wanted, found = called(program, states[0], seed, how), called(compiled, states[1], seed, how)
        assert type(wanted) is type(found), (wanted, found)
        torch.testing.assert_close(found, wanted) if isinstance(wanted, list) else None
        assert isinstance(wanted, list) or wanted == found
    assert (compiled.stator.recordings, compiled.stator.hits) == (1, 4 + hows.count("called twice"))


@BACKENDS
def test_statistics_that_two_calls_write_to_before_a_backward(backend):
    """As of a discriminator. Eager keeps running statistics for the backward, and counts no write to them."""

    def made():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))

    models = [made(), made()]
    compiled = stator.compile(models[1], backend=backend)
    for seed in range(4):
        x, found = rand(seed, 4, 3), []
        for model, call in zip(models, (models[0], compiled), strict=True):
            (call(x).square().sum() + call(x * 2).exp().sum()).backward()
            found.append([*model.state_dict().values(), *[p.grad for p in model.parameters()]])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    versions = [[buffer._version for buffer in model.buffers()][:2] for model in models]
    assert versions[0] == versions[1]
    assert (compiled.stator.recordings, compiled.stator.hits) == (1, 7)


# ---- second derivatives


def adds_to(x, w):
    x.add_(1)
    return (x * w * w * w).sum()


def writes_what_is_not_read(x, w):
    y = (w * w * w).sum()
    x.copy_(w.detach())
    return y


def writes_what_has_gradients(x, w):
    x.copy_(w * w)
    return (x * w).sum()


@BACKENDS
@pytest.mark.parametrize("program", [adds_to, writes_what_is_not_read, writes_what_has_gradients])
def test_a_graph_that_writes_to_its_inputs_is_differentiated_twice(program, backend):
    def call(seed):
        def one(w):
            x, weight = rand(seed), rand(seed + 10, requires_grad=True)
            (first,) = torch.autograd.grad(w.fn(x, weight), weight, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), weight)
            return first.detach(), second, x.detach(), x.requires_grad

        return one

    check_with(backend, program, call(1), call(2), call(3), call(4))


# ---- memory that two storages share


def writes_to_the_first(a, b):
    a.add_(1)
    return b * 2


def apart(array):
    return torch.from_numpy(array), torch.from_numpy(array.copy())


def same(array):
    return torch.from_numpy(array), torch.from_numpy(array)


def overlapping(array):
    return torch.from_numpy(array[:4]), torch.from_numpy(array[1:5])


def handed_over(array):
    tensor = torch.from_numpy(array)
    return tensor, torch.from_dlpack(tensor)


def owned_by_torch(array):
    tensor = torch.from_numpy(array).clone()
    return tensor, torch.from_numpy(tensor.numpy())


@BACKENDS
@pytest.mark.parametrize("first", [apart, same])
@pytest.mark.parametrize("pair", [same, overlapping, handed_over, owned_by_torch])
def test_two_tensors_of_one_array(pair, first, backend):
    def call(number, pair):
        def one(w):
            array = np.arange(6, dtype=np.float32) + number
            a, b = pair(array[:4] if pair is not overlapping else array)
            return w.fn(a, b), a, b, array.tolist()

        return one

    calls = [call(1, first), call(2, first), call(3, pair), call(4, pair), call(5, first), call(6, pair)]
    inner = look_up(backend)[1]
    done = check(lambda: World(fn=writes_to_the_first), calls, expect=None, backend=inner, unreplayed="unguardable")
    assert done.graphs or first is same
    assert done.outcomes[1] == ("hit" if first is apart else "plain")
