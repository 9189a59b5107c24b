"""Control flow that depends on the contents of tensors: a graph up to the decision, a graph per branch taken.

Both branches end up compiled, and nothing is recorded again when the branch alternates.
"""

from __future__ import annotations

import pytest
import torch
from harness import World, check, rand

import stator

UP, DOWN = [1.0, 2.0, 3.0, 4.0], [-1.0, -2.0, -3.0, -4.0]


def alternating(fn, *, expect, graphs, rounds=3):
    """Up and down in turn: the first of each is recorded, the rest is replayed."""
    steps = [lambda w, v=v: w.fn(torch.tensor(v)) for v in [UP, DOWN] * rounds]
    return check(lambda: World(fn=fn), steps, expect=expect, graphs=graphs)


def if_on_a_tensor(x):
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


def if_on_an_item(x):
    y = x * 2
    if y.sum().item() > 0:
        return y + 1
    return y - 1


def if_on_a_bool(x):
    y = x * 2
    if bool(y.sum() > 0):
        return y + 1
    return y - 1


def if_on_any(x):
    y = x * 2
    if (y > 0).any():
        return y + 1
    return y - 1


def conditional_expression(x):
    y = x * 2
    return y + 1 if y.sum() > 0 else y - 1


def not_a_tensor(x):
    y = x * 2
    if not y.sum() > 0:
        return y - 1
    return y + 1


def in_a_callee(x):
    y = x * 2
    return y + 1 if positive(y) else y - 1


def positive(y):
    return y.sum() > 0


def in_a_callee_s_condition(x):
    return chosen(x * 2)


def chosen(y):
    if y.sum() > 0:
        return y + 1
    return y - 1


def equal(x):
    y = x * 2
    if torch.equal(y, y.abs()):
        return y + 1
    return y - 1


def under_no_grad(x):
    with torch.no_grad():
        y = x * 2
        y = y + 1 if y.sum() > 0 else y - 1
    return y


BRANCHES = [
    if_on_a_tensor,
    if_on_an_item,
    if_on_a_bool,
    if_on_any,
    conditional_expression,
    not_a_tensor,
    in_a_callee,
    in_a_callee_s_condition,
    equal,
    under_no_grad,
]


@pytest.mark.parametrize("fn", BRANCHES, ids=lambda fn: fn.__name__)
def test_both_branches_are_compiled_once(fn):
    """One graph up to the condition, shared by both branches, and one for each of them."""
    seen = alternating(fn, expect="miss miss hit hit hit hit", graphs=3)
    assert seen.world.fn.stator.plain == 0


@pytest.mark.parametrize("fn", BRANCHES, ids=lambda fn: fn.__name__)
def test_explain_counts_the_branch_taken(fn):
    e = stator.explain(fn)(torch.tensor(UP))
    assert (e.graph_count, e.graph_break_count) == (2, 1)
    assert "data-dependent" in e.break_reasons[0].reason


def test_a_branch_with_nothing_in_it():
    def fn(x):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y

    alternating(fn, expect="miss miss hit hit hit hit", graphs=2)


def test_a_condition_on_an_input():
    def fn(x):
        if x[0]:
            return x + 1
        return x - 1

    steps = [lambda w, v=v: w.fn(torch.tensor([v, 2.0])) for v in (1.0, 0.0, 2.0, 0.0, 3.0)]
    check(lambda: World(fn=fn), steps, expect="miss miss hit hit hit", graphs=3)


def test_several_conditions():
    def fn(x):
        y = x * 2
        if y[0] > 0:
            y = y + 1
        else:
            y = y - 1
        if y[1] > 0:
            y = y * 3
        else:
            y = y / 3
        return y

    values = [[1.0, 1.0], [1.0, -9.0], [-9.0, 1.0], [-9.0, -9.0]]
    steps = [lambda w, v=v: w.fn(torch.tensor(v)) for v in values * 3]
    seen = check(lambda: World(fn=fn), steps, expect=None)
    assert seen.outcomes[4:] == ["hit"] * 8
    assert len(seen.graphs) <= 7


def test_elif_and_comparison_chains():
    def fn(x):
        mean = x.mean()
        if mean > 2:
            return x + 1
        elif 0 < mean < 2:
            return x + 2
        elif mean == 0:
            return x + 3
        return x + 4

    values = [[3.0, 3.0], [1.0, 1.0], [0.0, 0.0], [-1.0, -1.0]]
    steps = [lambda w, v=v: w.fn(torch.tensor(v)) for v in values * 3]
    seen = check(lambda: World(fn=fn), steps, expect=None)
    assert seen.outcomes[4:] == ["hit"] * 8


def test_and_or_in_a_condition():
    def fn(x):
        if (x[0] > 0 and x[1] > 0) or x[2] > 0:
            return x + 1
        return x - 1

    values = [[1.0, 1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]
    steps = [lambda w, v=v: w.fn(torch.tensor(v)) for v in values * 3]
    seen = check(lambda: World(fn=fn), steps, expect=None)
    assert seen.outcomes[4:] == ["hit"] * 8


def test_while_on_a_tensor():
    def fn(x):
        while x.sum() > 0:
            x = x - 1
        return x * 2

    lengths = [3.0, 3.0, 1.0, 5.0, 0.0, 20.0, 2.0]
    steps = [lambda w, n=n: w.fn(torch.full((4,), n)) for n in lengths]
    seen = check(lambda: World(fn=fn), steps, expect=None)
    assert len(seen.graphs) <= 4
    assert seen.outcomes[-3:] == ["hit"] * 3


def test_while_on_an_item_with_a_break():
    def fn(x):
        steps = 0
        while True:
            x = x / 2
            steps += 1
            if x.abs().max().item() < 1:
                break
        return x, steps

    values = [0.5, 4.0, 8.0, 4.0, 100.0, 8.0]
    steps = [lambda w, v=v: w.fn(torch.full((4,), v)) for v in values]
    seen = check(lambda: World(fn=fn), steps, expect=None)
    assert len(seen.graphs) <= 8


def test_range_of_an_item():
    def fn(x, n):
        for _ in range(n.item()):
            x = x * 2
        return x + 1

    steps = [lambda w, n=n: w.fn(rand(n), torch.tensor(n)) for n in (2, 2, 2, 0, 2, 0)]
    check(lambda: World(fn=fn), steps, expect=None)


@pytest.mark.parametrize("convert", [int, float, bool, complex, torch.Tensor.item, abs], ids=str)
def test_conversions(convert):
    def fn(x):
        y = x * 2
        number = convert(y[0])
        return y + 1, number if isinstance(number, torch.Tensor) else repr(number)

    steps = [lambda w, v=v: w.fn(torch.tensor([v, 2.0])) for v in (1.0, 1.0, 3.0, 0.0, 1.0)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_a_number_that_only_leaves_is_not_guarded():
    """The number is returned and decides nothing: no value of it is recorded twice."""

    def fn(x):
        y = x * 2
        return y + 1, y.sum().item()

    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(5)]
    check(lambda: World(fn=fn), steps, expect="miss hit hit hit hit", graphs=1, breaks=["tensor-item"])


def test_a_number_that_only_leaves_later_is_not_guarded():
    def fn(x):
        y = x * 2
        number = y.sum().item()
        return y + 1, number

    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(5)]
    check(lambda: World(fn=fn), steps, expect="miss hit hit hit hit", graphs=2, breaks=["tensor-item"])


def test_a_number_that_goes_into_an_operation():
    def fn(x):
        y = x * 2
        return y * y.sum().item()

    steps = [lambda w, v=v: w.fn(torch.tensor([v, 2.0])) for v in (1.0, 3.0, 1.0, 5.0, 3.0)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_a_number_compared_after_the_break():
    def fn(x):
        y = x * 2
        number = y.sum().item()
        y = y + 1
        if number > 0:
            return y * 3
        return y / 3

    steps = [lambda w, v=v: w.fn(torch.tensor(v)) for v in [UP, DOWN] * 3]
    check(lambda: World(fn=fn), steps, expect=None)


def test_tolist():
    def fn(x):
        y = x * 2
        values = y.tolist()
        return y + 1, [v for v in values if v > 0], sum(values)

    steps = [lambda w, v=v: w.fn(torch.tensor(v)) for v in (UP, DOWN, UP, [1.0, -1.0, 2.0, 0.0])]
    check(lambda: World(fn=fn), steps, expect=None)


def test_iterating_over_a_tensor_is_no_break():
    def fn(x):
        total = x[0] * 0
        for row in x:
            total = total + row * 2
        return total

    steps = [lambda w, seed=seed: w.fn(rand(seed, 3, 4)) for seed in range(3)]
    check(lambda: World(fn=fn), steps, expect="miss hit hit", graphs=1, breaks=[])


def test_iterating_over_a_tensor_and_deciding_by_each_row():
    def fn(x):
        kept = []
        for number, row in enumerate(x):
            if row.sum() > 0:
                kept.append(number)
                x = x + 1
        return x, kept

    steps = [lambda w, seed=seed: w.fn(rand(seed, 3, 4)) for seed in range(5)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_unpacking_a_tensor():
    def fn(x):
        a, b, *rest = x
        y = a + b
        if y > 0:
            return y, len(rest)
        return -y, len(rest)

    steps = [lambda w, v=v: w.fn(torch.tensor(v)) for v in [UP, DOWN] * 2]
    check(lambda: World(fn=fn), steps, expect=None)


def test_shapes_that_depend_on_data():
    def fn(x):
        y = x * 2
        kept = y[y > 0]
        where = y.nonzero()
        return kept * 3, where + 1, kept.shape[0]

    steps = [lambda w, v=v: w.fn(torch.tensor(v)) for v in (UP, DOWN, [1.0, -1.0, 1.0, -1.0], UP, DOWN)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_an_index_by_data():
    def fn(x, names):
        y = x * 2
        return y + 1, names[y.argmax()], names[int(y.argmin())]

    steps = [lambda w, v=v: w.fn(torch.tensor(v), list("abcd")) for v in [UP, DOWN] * 2]
    check(lambda: World(fn=fn), steps, expect=None)


def test_assert_on_a_tensor():
    """As text: pytest writes other code for the `assert` of a test file."""
    namespace = {}
    exec("def fn(x):\n    y = x * 2\n    assert y.sum() > 0, 'negative'\n    return y + 1\n", namespace)
    fn = namespace["fn"]

    steps = [lambda w, v=v: w.fn(torch.tensor(v)) for v in [UP, UP, DOWN, UP, DOWN, UP]]
    seen = check(lambda: World(fn=fn), steps, expect=None, raises=AssertionError)
    assert seen.outcomes[1] == seen.outcomes[-1] == "hit"


def test_a_loop_with_early_exit():
    def fn(x):
        for step in range(10):
            x = x - 1
            if x.max() < 0:
                return x, step
        return x, -1

    steps = [lambda w, v=v: w.fn(torch.full((4,), v)) for v in (2.5, 2.5, 5.5, 0.5, 20.0, 5.5)]
    seen = check(lambda: World(fn=fn), steps, expect=None)
    assert len(seen.graphs) <= 6


def test_gradients_flow_through_the_branch_taken():
    def fn(x, weight):
        y = x * weight
        if y.sum() > 0:
            return (y * 2).sum()
        return (y * 3).sum()

    def step(w, value):
        weight = torch.full((4,), value, requires_grad=True)
        w.fn(torch.tensor(UP), weight).backward()
        return weight.grad

    steps = [lambda w, v=v: step(w, v) for v in (1.0, -1.0, 2.0, -2.0)]
    check(lambda: World(fn=fn), steps, expect="miss miss hit hit", graphs=3)
