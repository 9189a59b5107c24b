"""Programs that insist on truths of tensors. They stand apart since pytest rewrites the asserts of tests."""

from __future__ import annotations

import torch
from harness import World


def asserts(x):
    assert x.sum() > 0
    return x * 2


def asserts_with_a_message(x):
    y = x.sin() + x
    assert (y > -1).all() and x.min() > 0, f"too small: {x.min()}"
    return y * 2


def raises(x):
    if x.min() <= 0:
        raise ValueError(f"not positive: {x.shape}")
    return x * 2


def raises_unless_all(x):
    if not (x > 0).all():
        raise ValueError("not positive")
    return x * 2


def asserts_a_number(x):
    limit = x.shape[0] * 10
    assert x.max().item() <= limit
    assert x.min().item() > 0, "from the left"
    assert (x > 0).all().item()
    return x * 2


def asserts_a_constant_comparison(x):
    assert x.min().item() > 0
    return x * 2


def insists(x):
    torch._check_tensor_all(x > 0)
    return x * 2


def insists_with_a_message(x):
    torch._check_tensor_all_with(KeyError, x > 0, lambda: "not positive")
    return x * 2


def asserts_an_argument(x):
    flag = (x > 0).all()
    return _checked(flag, x)


def _checked(flag, x):
    assert flag
    return x * 2


def in_a_function_deeper(x):
    return sum([asserts(part) for part in (x, x + 1, x * 3)])


def caught(x):
    try:
        assert x.sum() > 0
    except AssertionError:
        return x - 1
    return x + 1


def shifted(x):
    y = x.new_zeros(x.shape)
    y[1:] = x[:-1].clone()
    y[0] = 1
    assert (y > 0).all()  # of what was written
    y.view(2, 2)[0, 0] = -5
    return y * 2


def checked_before_it_is_written(x):
    y = x * 2
    assert y.min() > 0
    y.neg_()
    assert y.max() < 0
    y[:2].abs_()
    assert y[0] > 0 and y[3] < 0
    return y


def written_before(x):
    x.add_(1)
    assert x.min() > 0
    return x * 2


def drawn(x):
    assert torch.rand(4).min() < 0.9
    return x * 2


def only_some_raise(x):
    if x.sum() > 0:
        return x * 2
    x = x + 3
    raise ValueError(x.shape)


def branches(x):
    return x + 1 if x.sum() > 0 else x - 1


def number_used_twice(x):
    largest = x.max().item()
    assert largest > 0
    return x * largest


def asked_by_c_code(x):
    assert sum(map(torch.Tensor.item, x.abs().unbind())) <= 100
    assert max([x[0], x[1]], key=torch.Tensor.item) is not None
    return x * 2


def deep(x):
    for _ in range(60):
        x = x.sin() + 1
    assert x.min() > 0
    return x


def multiplied(x):
    y = x @ x
    assert y > 0
    return y + 1


def effects_around():
    """A world with effects, writes and random numbers on both sides of an assert."""
    state = World(seen=[], total=torch.zeros(4), last=torch.zeros(4))

    def fn(x):
        state.seen.append(x.shape)
        y = torch.nn.functional.dropout(x, 0.5) * torch.rand(4)
        assert x.min() > 0
        state.total.add_(y)
        state.last = y
        return y

    state.fn = fn
    return state


def under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    assert x.min() > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ x
        assert z.min() > 0
    return y + z


def behind_a_break(x):
    y = x * 2
    print("here")
    assert y.min() > 0
    return y + 1
