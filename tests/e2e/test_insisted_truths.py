"""Truths on which a program insists: it raises unless they come out so. They do not break the graph, which is run only
if they hold; whatever the data, the program gets eager's result, or eager's exception."""

from __future__ import annotations

import insisting as programs
import pytest
import torch
from harness import World, check, rand

import stator

ONE = "miss hit hit hit"


def of(fn):
    return lambda: World(fn=fn)


def positive(seed):
    return lambda w: w.fn(rand(seed).abs() + 0.1)


def negative(seed):
    return lambda w: w.fn(-rand(seed).abs() - 0.1)


INSISTING = {
    name: getattr(programs, name)
    for name in (
        "asserts", "asserts_with_a_message", "raises", "raises_unless_all", "asserts_a_number",
        "asserts_a_constant_comparison", "insists", "insists_with_a_message", "asserts_an_argument",
        "in_a_function_deeper",
    )
}  # fmt: skip
EXPECTED_ERRORS = (AssertionError, ValueError, RuntimeError, KeyError)


@pytest.mark.parametrize("name", INSISTING)
def test_the_graph_is_whole(name):
    calls = [positive(1), positive(2), positive(3), positive(4)]
    check(of(INSISTING[name]), calls, expect=ONE, breaks=[])


@pytest.mark.parametrize("name", INSISTING)
def test_a_program_that_raises_raises(name):
    calls = [positive(1), negative(2), positive(3), negative(4), negative(5), positive(6)]
    seen = check(of(INSISTING[name]), calls, expect=None, breaks=[], raises=EXPECTED_ERRORS)
    assert seen.outcomes[0] == "miss" and seen.outcomes[2] == seen.outcomes[5] == "hit"
    assert len(seen.graphs) == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_with_other_backends(backend):
    calls = [positive(1), negative(2), positive(3), positive(4)]
    compile_with = stator.backends.look_up(backend)[1]
    check(
        of(programs.asserts_with_a_message), calls, expect=None, breaks=[], raises=AssertionError, backend=compile_with
    )


def test_gradients():
    def step(seed, sign):
        def run(w: World):
            x = (sign * (rand(seed).abs() + 0.1)).requires_grad_()
            w.fn(x).sum().backward()
            return x.grad

        return run

    calls = [step(1, 1), step(2, 1), step(3, -1), step(4, 1)]
    check(of(programs.asserts_with_a_message), calls, expect=None, breaks=[], raises=AssertionError)


def test_nothing_is_done_before_a_check_fails():
    """Effects, writes to inputs and random numbers come after the checks, wherever the checks stand."""

    def watched(seed, sign):
        def run(w: World):
            return w.fn(sign * (rand(seed).abs() + 0.1))

        return run

    calls = [watched(1, 1), watched(2, 1), watched(3, -1), watched(4, 1), watched(5, -1), watched(6, 1)]
    seen = check(programs.effects_around, calls, expect=None, breaks=[], raises=AssertionError)
    assert seen.outcomes[1] == seen.outcomes[3] == seen.outcomes[5] == "hit"


def test_an_exception_that_the_program_handles():
    check(of(programs.caught), [positive(1), negative(2), positive(3), negative(4), positive(5)], expect=None)
    check(of(programs.caught), [negative(1), positive(2), negative(3), positive(4), negative(5)], expect=None)


@pytest.mark.parametrize("fn", [programs.shifted, programs.checked_before_it_is_written])
def test_what_was_made_inside_and_written_to(fn):
    calls = [positive(1), positive(2), negative(3), positive(4)]
    seen = check(of(fn), calls, expect=None, breaks=[], raises=AssertionError)
    assert seen.outcomes[1] == seen.outcomes[3] == "hit"


DEPENDING = {
    name: getattr(programs, name)
    for name in ("written_before", "drawn", "branches", "number_used_twice", "asked_by_c_code", "deep", "multiplied")
}


@pytest.mark.parametrize("name", DEPENDING)
def test_the_graph_breaks(name):
    calls = [positive(s) for s in range(5)]
    seen = check(of(DEPENDING[name]), calls, expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} <= {"tensor-bool", "tensor-item"}
    assert seen.world.fn.stator.break_reasons


@pytest.mark.parametrize("fn", [programs.only_some_raise, programs.written_before, programs.deep, programs.drawn])
def test_what_breaks_raises_too(fn):
    calls = [positive(1), negative(2), positive(3), negative(4), positive(5)]
    check(of(fn), calls, expect=None, raises=EXPECTED_ERRORS)


def test_under_autocast():
    calls = [lambda w, s=s: w.fn(rand(s, 4, 4).abs() + 0.1) for s in range(4)]
    check(of(programs.under_autocast), calls, expect=None, unreplayed="tensor-bool")


def test_behind_a_break():
    calls = [positive(1), positive(2), negative(3), positive(4), negative(5)]
    check(of(programs.behind_a_break), calls, expect=None, breaks=["call-print"], raises=AssertionError)


def test_sizes_that_change():
    def sized(n, sign=1):
        return lambda w: w.fn(sign * (rand(n, n).abs() + 0.1))

    calls = [sized(2), sized(3), sized(5), sized(4, -1), sized(6), sized(7, -1), sized(8)]
    for fn in (programs.asserts_with_a_message, programs.raises, programs.insists):
        check(of(fn), calls, expect=None, raises=EXPECTED_ERRORS)


def span(x, table):
    reach = torch.tensor(min(x.shape[0], 3))
    part = table[3 - reach : 3 + reach]
    length = torch.div(x.shape[0] * 4, 2, rounding_mode="trunc")
    return part.sum() + x.repeat(length, 1).sum() + (x if reach > 2 else -x) * reach.item()


def test_tensors_made_of_constants():
    calls = [lambda w, s=s: w.fn(rand(s), rand(s, 8)) for s in range(4)]
    check(of(span), calls, expect=ONE, breaks=[])
    calls = [lambda w, n=n: w.fn(rand(n, n), rand(n, 8)) for n in (4, 2, 5, 3, 2, 1, 4)]
    check(of(span), calls, expect=None)


def test_tensors_made_of_constants_and_data():
    def fn(x):
        reach = torch.tensor(2)
        reach += (x[0] > 0).long()
        bound = torch.zeros((), dtype=torch.long)
        bound.view(1)[0] = (x[1] > 0).long()
        return x[:reach].sum() + x[bound:].sum()

    calls = [lambda w, s=s: w.fn(rand(s)) for s in range(8)]
    seen = check(of(fn), calls, expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"dynamic-shape-op"}


@torch.jit.script
def reach_of(x: torch.Tensor, most: int):
    return torch.tensor(min(x.size(0), most))


@torch.jit.script
def largest_of(x: torch.Tensor, most: int):
    return torch.tensor(min(int(x.max().item()), most))


def test_a_scripted_function_that_asks_for_sizes():
    def fn(x, table):
        reach = reach_of(x, 3)
        return table[3 - reach : 3 + reach].sum() + x * reach

    calls = [lambda w, s=s: w.fn(rand(s), rand(s, 8)) for s in range(4)]
    check(of(fn), calls, expect=ONE, breaks=[])
    calls = [lambda w, n=n: w.fn(rand(n, n), rand(n, 8)) for n in (4, 2, 5, 3, 2, 1, 4)]
    with stator.options.patch(dynamic_shapes=False):
        check(of(fn), calls, expect="miss miss miss miss hit miss hit", breaks=[])


def test_a_scripted_function_that_asks_for_data():
    def fn(x, table):
        return table[: largest_of(x, 3)].sum() + x

    calls = [lambda w, s=s: w.fn(rand(s).abs() + 1, rand(s, 8)) for s in range(6)]
    seen = check(of(fn), calls, expect=None)
    assert seen.world.fn.stator.break_reasons


def test_sizes_of_what_is_computed_by_many_operations():
    """A check asks for no tensor of which it wants only the size."""

    def fn(x, mask):
        y = x
        for _ in range(30):
            y = y.sin() + 1
        y = torch.cat([y, y])
        torch._check_tensor_all(mask.sum() * 2 == y.shape[0])
        return y * 2

    def masked(n, more=0):
        return lambda w: w.fn(rand(n, n), torch.ones(n + more))

    calls = [masked(2), masked(3), masked(5), masked(4), masked(6, 1), masked(7), masked(2, 1)]
    check(of(fn), calls, expect=None, breaks=[], raises=RuntimeError)


class Padded(torch.nn.Module):
    """Keeps its settings in buffers, and goes by them."""

    def __init__(self):
        super().__init__()
        self.left = torch.nn.Buffer(torch.tensor(2))
        self.right = torch.nn.Buffer(torch.tensor(1))
        self.limits = torch.nn.Buffer(torch.tensor([1.0, 2.0]))

    def forward(self, x):
        most = max(self.left, self.right)
        x = torch.nn.functional.pad(x, (self.left, self.right + 1))
        if most * 2 > 3:
            x = x + most.item()
        return x * 2 if x.shape[0] > self.left else x * 3


def padded():
    module = Padded()
    return World(fn=module, module=module)


def with_settings(seed, left, right):
    def run(w: World):
        with torch.no_grad():
            w.module.left.fill_(left)
            w.module.right.fill_(right)
        return w.fn(rand(seed))

    return run


def test_settings_in_buffers():
    check(padded, [lambda w, s=s: w.fn(rand(s)) for s in range(4)], expect=ONE, breaks=[])


def test_settings_in_buffers_that_change():
    calls = [with_settings(s, *p) for s, p in enumerate([(2, 1), (2, 1), (1, 3), (1, 3), (2, 1), (0, 0), (0, 0)])]
    seen = check(padded, calls, expect=None)
    assert seen.outcomes[1] == seen.outcomes[3] == "hit"


def test_settings_in_buffers_that_change_all_the_time():
    calls = [with_settings(s, s % 3, s % 4) for s in range(12)]
    seen = check(padded, calls, expect=None)
    assert seen.world.fn.stator.break_reasons  # in the end


def test_other_buffers_are_replaced():
    def other(seed, left):
        def run(w: World):
            w.module.left = torch.tensor(left)
            return w.fn(rand(seed))

        return run

    check(padded, [other(1, 2), other(2, 2), other(3, 0), other(4, 0), other(5, 2)], expect=None)


def test_a_counter_in_a_buffer():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.count = torch.nn.Buffer(torch.tensor(0))

        def forward(self, x):
            early = self.count < 3
            y = x * 2 if early else x * 3
            self.count += 1
            return y + 1 if self.count > 5 else y

    def world():
        module = Counting()
        return World(fn=module, module=module)

    check(world, [lambda w, s=s: w.fn(rand(s)) for s in range(10)], expect=None)


def test_settings_behind_a_break():
    class Printing(Padded):
        def forward(self, x):
            y = x * 2
            print("here")
            return super().forward(y)

    def world():
        module = Printing()
        return World(fn=module, module=module)

    calls = [with_settings(s, *p) for s, p in enumerate([(2, 1), (2, 1), (1, 3), (1, 3), (2, 1), (2, 1)])]
    check(world, calls, expect=None)


def test_a_vector_in_a_buffer_is_data():
    class Limited(Padded):
        def forward(self, x):
            return x * 2 if self.limits.sum() > 2 else x

    def world():
        module = Limited()
        return World(fn=module, module=module)

    seen = check(world, [lambda w, s=s: w.fn(rand(s)) for s in range(4)], expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"tensor-bool"}
