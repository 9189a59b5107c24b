"""Operators that a library or a program registers, and functions compiled by TorchScript: one node each."""

from __future__ import annotations

import torch
from harness import World, check, check_stateless, rand

LIBRARY = "stator_tests"
SCALE = {"value": 2.0}


@torch.library.custom_op(f"{LIBRARY}::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    rows = [row * SCALE["value"] for row in x.tolist()]  # data as Python values: nothing that a graph could hold
    assert any(row is not None for row in rows)  # a generator that is closed inside
    return torch.tensor(rows)


@scaled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op(f"{LIBRARY}::add_to", mutates_args=("x",))
def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


@torch.library.custom_op(f"{LIBRARY}::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@torch.library.custom_op(f"{LIBRARY}::positive_told", mutates_args=())
def positive_told(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@positive_told.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


def test_an_operator_is_a_node_and_its_body_reads_anew():
    def fn(x):
        return torch.ops.stator_tests.scaled(x + 1) * 3

    def call(seed, scale):
        def run(w):
            SCALE["value"] = scale
            return w.fn(rand(seed))

        return run

    check(lambda: World(fn=fn), [call(1, 2.0), call(2, 2.0), call(3, 5.0)], expect="miss hit hit", graphs=1, breaks=[])


def test_an_operator_by_its_overload_and_by_its_definition():
    check_stateless(lambda x: torch.ops.stator_tests.scaled.default(x) + 1)
    check_stateless(lambda x: scaled(x) + 1)
    check_stateless(lambda x: torch.ops.aten.mul.Tensor(x, x) + torch.ops.aten.sin(x))


def test_an_operator_that_writes_to_its_argument():
    def world():
        total = torch.zeros(4)

        def fn(x):
            before = total * 2
            torch.ops.stator_tests.add_to(total, x)
            return before, total + 1

        return World(fn=fn, total=total)

    check(world, [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect="miss hit hit", breaks=[])


def test_an_operator_whose_sizes_depend_on_data_breaks():
    def fn(x):
        return torch.ops.stator_tests.positive_told(x * 2).shape[0], x + 1

    def untold(x):
        return torch.ops.stator_tests.positive(x * 2).shape[0], x + 1

    calls = [lambda w, s=s: w.fn(rand(s, 8)) for s in (1, 2, 3, 4)]
    check(lambda: World(fn=fn), calls, expect=None, breaks=["dynamic-shape-op"])
    check(lambda: World(fn=untold), calls, expect=None, breaks=["unknown-callable"])


@torch.jit.script
def scripted(x: torch.Tensor, n: int) -> torch.Tensor:
    if x.size(0) > n:
        return x.relu() * n
    return x - n


@torch.jit.script
def scripted_pair(x: torch.Tensor):
    return x.sin(), [x.cos(), x]


@torch.jit.script
def scripted_count(x: torch.Tensor):
    return int((x > 0).sum().item())


@torch.jit.script
def scripted_write(x: torch.Tensor):
    x.mul_(2)
    return x


def test_a_scripted_function_is_a_node():
    def fn(x):
        a, (b, c) = scripted_pair(scripted(x, 3))
        return a + b, c

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect="miss hit hit", breaks=[])
    sizes = [lambda w, n=n: w.fn(rand(n, n)) for n in (4, 5, 3, 6, 2, 3)]
    check(lambda: World(fn=fn), sizes, expect=None, breaks=[])


def test_a_scripted_function_by_keyword_and_in_an_attribute():
    def world():
        state = World(fn=None, function=scripted)
        state.fn = lambda x: state.function(x, n=2) + 1
        return state

    calls = [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)]
    check(world, calls, expect="miss hit hit", breaks=[])

    def replaced():
        table = {"f": scripted}

        def fn(x):
            return table["f"](x, 2) + 1

        return World(fn=fn, table=table)

    @torch.jit.script
    def another(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    def replace(w):
        w.table["f"] = another
        return w.fn(rand(4))

    check(replaced, [*calls, replace], expect="miss hit hit miss")


def test_a_scripted_function_that_writes_to_its_argument():
    def world():
        state = torch.ones(4)

        def fn(x):
            y = scripted_write(state)
            return y + x, state * 2

        return World(fn=fn, state=state)

    check(world, [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect="miss hit hit", breaks=[])


def test_a_scripted_function_that_counts_breaks():
    def fn(x):
        return x * scripted_count(x + 1)

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s, 8)) for s in (1, 2, 3, 4)], expect=None)


def test_gradients_through_operators_and_scripted_functions():
    def world():
        weight = torch.nn.Parameter(rand(9))

        def fn(x):
            return scripted(torch.ops.aten.mul.Tensor(x, weight), 1).sum()

        return World(fn=fn, weight=weight)

    def step(seed):
        def run(w):
            w.weight.grad = None
            w.fn(rand(seed)).backward()
            return w.weight.grad

        return run

    check(world, [step(1), step(2), step(3)], expect="miss hit hit")
