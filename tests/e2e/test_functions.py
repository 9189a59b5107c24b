"""Functions that call functions: nested, recursive, decorated, partial, anonymous."""

from __future__ import annotations

import functools
import inspect
import operator

import torch
from harness import CountingBackend, World, check, check_stateless, rand

import stator


def add_one(x):
    return x + 1


def add_ten(x):
    return x + 10


def test_a_helper_of_the_same_module():
    check_stateless(lambda x: add_one(add_ten(x)) * 2)


def test_a_nested_function():
    def fn(x):
        def shift(y, by=1.0):
            return y + by

        def twice(f, y):
            return f(f(y))

        return twice(shift, x) * shift(x, by=2.0)

    check_stateless(fn)


def test_a_nested_function_reads_the_variables_around_it():
    def fn(x):
        scale = x.shape[0]
        total = x.sum()

        def centred(y):
            return (y - total) / scale

        return centred(x), centred(x * 2)

    check_stateless(fn)


def test_a_nested_function_sees_a_variable_that_is_bound_later():
    def fn(x):
        def late():
            return bias + 1

        bias = x * 2
        first = late()
        bias = x * 3
        return first, late()

    check_stateless(fn)


def test_nonlocal_inside_the_function():
    def fn(x):
        count, total = 0, torch.zeros(4)

        def step(y):
            nonlocal count, total
            count += 1
            total = total + y
            return total

        step(x)
        step(x * 2)
        return total, count

    check_stateless(fn)


def test_lambdas():
    def fn(x):
        steps = [lambda y: y + 1, lambda y, k=3: y * k, lambda *ys: sum(ys)]
        return steps[2](steps[0](x), steps[1](x), steps[1](x, 5))

    check_stateless(fn)


def test_lambdas_capture_the_variable_and_not_its_value():
    def fn(x):
        late = [lambda y: y * n for n in range(3)]  # noqa: B023  the pitfall is the point
        early = [lambda y, n=n: y * n for n in range(3)]
        return [f(x) for f in late] + [f(x) for f in early]

    check_stateless(fn)


def test_recursion_with_a_fixed_depth():
    def world():
        def power(x, n):
            return x if n == 1 else x * power(x, n - 1)

        return World(fn=power)

    check(
        world,
        [
            lambda w: w.fn(rand(1), 4),
            lambda w: w.fn(rand(2), 4),
            lambda w: w.fn(rand(3), 2),
            lambda w: w.fn(rand(4), 4),
        ],
        expect="miss hit miss hit",
    )


def test_recursion_over_a_nested_structure():
    def total(tree):
        if isinstance(tree, torch.Tensor):
            return tree.sum()
        children = tree.values() if isinstance(tree, dict) else tree
        return sum(total(child) for child in children)

    def tree(seed):
        return {"a": rand(seed), "b": [rand(seed + 1), (rand(seed + 2), {"c": rand(seed + 3)})]}

    check(
        lambda: World(fn=total),
        [
            lambda w: w.fn(tree(1)),
            lambda w: w.fn(tree(5)),
            lambda w: w.fn([tree(9), rand(13)]),
            lambda w: w.fn(tree(2)),
        ],
        expect="miss hit miss hit",
    )


def test_mutual_recursion():
    def even(x, n):
        return x if n == 0 else odd(x + 1, n - 1)

    def odd(x, n):
        return x * 2 if n == 0 else even(x * 3, n - 1)

    check(
        lambda: World(fn=even),
        [lambda w: w.fn(rand(1), 5), lambda w: w.fn(rand(2), 5), lambda w: w.fn(rand(3), 4)],
        expect="miss hit miss",
    )


def test_a_decorated_function():
    def doubled(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            return f(*args, **kwargs) * 2

        return wrapper

    def scaled(by):
        def decorate(f):
            @functools.wraps(f)
            def wrapper(x, *rest):
                return f(x * by, *rest)

            return wrapper

        return decorate

    @doubled
    @scaled(0.5)
    def inner(x, y):
        return x - y

    def fn(x, y):
        return inner(x, y) + inner(y, x)

    calls = [lambda w, s=s: w.fn(rand(s), rand(s + 1)) for s in (1, 3, 5)]
    check(lambda: World(fn=fn), calls, expect="miss hit hit")
    check(lambda: World(fn=inner), calls, expect="miss hit hit")


def test_partial():
    def affine(x, scale, *, shift):
        return x * scale + shift

    def world():
        return World(fn=lambda x, f: f(x), two=functools.partial(affine, scale=2.0, shift=1.0))

    other = functools.partial(functools.partial(affine, shift=5.0), scale=3.0)
    check(
        world,
        [
            lambda w: w.fn(rand(1), w.two),
            lambda w: w.fn(rand(2), w.two),
            lambda w: w.fn(rand(3), other),
            lambda w: w.fn(rand(4), functools.partial(affine, scale=2.0, shift=7.0)),
        ],
        expect="miss hit miss miss",
    )


def test_partial_made_inside():
    def affine(shift, x, scale=1.0):
        return x * scale + shift

    def fn(x):
        by_two = functools.partial(affine, 1.0, scale=2.0)
        with_tensor = functools.partial(operator.mul, x)
        return by_two(x) + by_two(x, scale=3.0) + with_tensor(x)

    check_stateless(fn)


def test_partial_with_a_tensor_inside():
    def world():
        bias = rand(9)
        return World(fn=lambda x, f: f(x) * 2, bias=bias, shift=functools.partial(torch.add, bias))

    def change_bias(w):
        w.bias.mul_(3)
        return w.fn(rand(2), w.shift)

    check(
        world,
        [lambda w: w.fn(rand(1), w.shift), change_bias, lambda w: w.fn(rand(3), w.shift)],
        expect="miss hit hit",
    )


def test_a_cached_helper():
    def world():
        @functools.lru_cache
        def frequencies(n):
            return torch.arange(n) / n

        return World(fn=lambda x: x * frequencies(x.shape[0]), frequencies=frequencies)

    def clear(w):
        w.frequencies.cache_clear()
        return w.fn(rand(4))

    check(
        world,
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3)), clear],
        expect=None,
        observe=lambda w: w.frequencies.cache_info().currsize,
    )


def test_operator_functions():
    def fn(x):
        pick = operator.itemgetter(1)
        return pick((x, x + 1)), operator.attrgetter("shape")(x), operator.methodcaller("mul", 3)(x)

    check_stateless(fn)


def test_a_function_from_a_table():
    def world():
        table = {"one": add_one, "ten": add_ten}
        return World(fn=lambda x, name: table[name](x) * 2, table=table)

    def exchange(w):
        w.table["one"] = add_ten
        return w.fn(rand(4), "one")

    check(
        world,
        [
            lambda w: w.fn(rand(1), "one"),
            lambda w: w.fn(rand(2), "one"),
            lambda w: w.fn(rand(3), "ten"),
            exchange,
        ],
        expect="miss hit miss miss",
    )


def test_function_attributes_are_read_and_written():
    def world():
        def helper(x):
            helper.last = x * 2
            return x * helper.scale

        helper.scale = 2.0
        return World(fn=lambda x: helper(x) + 1, helper=helper)

    def rescale(w):
        w.helper.scale = 4.0
        return w.fn(rand(3))

    check(
        world,
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), rescale, lambda w: w.fn(rand(4))],
        expect="miss hit miss hit",
    )


def test_a_function_that_returns_nothing():
    def fn(x, out):
        out.copy_(x * 2)

    check(
        lambda: World(fn=fn, out=torch.zeros(4)),
        [lambda w, s=s: w.fn(rand(s), w.out) for s in (1, 2, 3)],
        expect="miss hit hit",
    )


def test_a_compiled_function_inside_another():
    inner = stator.compile(lambda x: x * 2 + 1, backend="eager")

    def fn(x):
        return inner(x) - inner(x + 1)

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)


def test_two_functions_of_one_code_keep_their_entries_apart():
    def make(scale):
        return lambda x: x * scale

    first, second = CountingBackend(), CountingBackend()
    double, triple = stator.compile(make(2.0), backend=first), stator.compile(make(3.0), backend=second)
    for seed in (1, 2, 3):
        x = rand(seed)
        assert torch.equal(double(x), x * 2.0)
        assert torch.equal(triple(x), x * 3.0)
    assert (len(first.graphs), len(second.graphs)) == (1, 1)
    assert (double.stator.hits, triple.stator.hits) == (2, 2)


def test_a_compiled_function_looks_like_the_plain_one():
    def scale(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        """Scale a tensor."""
        return x * by

    fast = stator.compile(scale, backend="eager")
    assert fast.__wrapped__ is scale
    assert (fast.__name__, fast.__doc__) == ("scale", "Scale a tensor.")
    assert inspect.signature(fast) == inspect.signature(scale)


def test_compile_as_a_decorator():
    @stator.compile(backend="eager")
    def scale(x, by=2.0):
        return x * by

    @stator.compile
    def unused(x):
        return x

    assert unused.__name__ == "unused"
    for seed in (1, 2, 3):
        assert torch.equal(scale(rand(seed)), rand(seed) * 2.0)
    assert (scale.stator.recordings, scale.stator.hits) == (1, 2)


def test_reset_forgets_the_recordings():
    fn = stator.compile(lambda x: x + 1, backend="eager")
    fn(rand(1))
    fn(rand(2))
    assert len(fn.stator.entries) == 1
    fn.stator.reset()
    assert len(fn.stator.entries) == 0
    assert torch.equal(fn(rand(3)), rand(3) + 1)
    stator.reset()
    assert len(fn.stator.entries) == 0
    assert torch.equal(fn(rand(4)), rand(4) + 1)
