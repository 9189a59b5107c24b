"""Operations that raise in a replay although they did not when they were recorded: the program gets eager's exception,
may catch it, and finds everything as eager leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import World, check, rand

from stator.backends.registry import look_up
from stator.watch.tensors import failing_ops

ERRORS = (IndexError, RuntimeError, ValueError, AssertionError, torch.linalg.LinAlgError)


def whole(*values: int) -> torch.Tensor:
    return torch.tensor(values)


SPD = torch.eye(3) * 2
SINGULAR = torch.zeros(3, 3)
NAN = torch.full((3, 3), float("nan"))

# The operation, arguments that are fine, and such for which it raises.
OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "//": (lambda a, b: a // b, (whole(4), whole(2)), (whole(4), whole(0))),
    "%": (lambda a, b: a % b, (whole(4), whole(2)), (whole(4), whole(0))),
    "fmod": (torch.fmod, (whole(4), whole(2)), (whole(4), whole(0))),
    "div": (
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        (whole(4), whole(2)),
        (whole(4), whole(0)),
    ),
    "index": (lambda x, i: x[i], (rand(1), whole(1)), (rand(1), whole(9))),
    "index by overload": (
        lambda x, i: torch.ops.aten.index(x, [i]),
        (rand(1), whole(1)),
        (rand(1), whole(9)),
    ),
    "index_select": (lambda x, i: x.index_select(0, i), (rand(1), whole(1)), (rand(1), whole(9))),
    "index_reduce_": (
        lambda x, i: x.clone().index_reduce_(0, i, torch.ones(1), "prod"),
        (rand(1), whole(1)),
        (rand(1), whole(9)),
    ),
    "embedding": (F.embedding, (whole(1), rand(1, 3, 2)), (whole(9), rand(1, 3, 2))),
    "normal": (
        lambda m, s: torch.normal(m, s) * 0,
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2), -torch.ones(2)),
    ),
    "poisson": (lambda r: torch.poisson(r) * 0, (torch.ones(2),), (-torch.ones(2),)),
    "bernoulli_": (
        lambda p: torch.empty(2).bernoulli_(p) * 0,
        (torch.full((2,), 0.5),),
        (torch.full((2,), 2.0),),
    ),
    "multinomial": (lambda p: torch.multinomial(p, 1) * 0, (torch.ones(2),), (-torch.ones(2),)),
    "histc": (torch.histc, (rand(1),), (torch.full((4,), float("nan")),)),
    "quantile": (torch.quantile, (rand(1), torch.tensor(0.5)), (rand(1), torch.tensor(2.0))),
    "svd": (torch.linalg.svdvals, (SPD,), (NAN,)),
    "eigh": (torch.linalg.eigvalsh, (SPD,), (NAN,)),
    "inverse": (torch.inverse, (SPD,), (SINGULAR,)),
    "pinverse": (torch.pinverse, (SPD,), (NAN,)),
    "cholesky": (torch.linalg.cholesky, (SPD,), (SINGULAR,)),
    "cholesky_inverse": (torch.cholesky_inverse, (SPD,), (SINGULAR,)),
    "max_unpool1d": (
        lambda x, i: F.max_unpool1d(x, i, 2),
        (rand(1, 1, 1, 2), torch.tensor([[[0, 2]]])),
        (rand(1, 1, 1, 2), torch.tensor([[[0, 99]]])),
    ),
    "segment_reduce": (
        lambda x, n: torch.segment_reduce(x, "sum", lengths=n),
        (rand(1), whole(1, 3)),
        (rand(1), whole(1, 9)),
    ),
    "nll_loss": (
        lambda x, i: F.nll_loss(F.log_softmax(x, 1), i),
        (rand(1, 2, 3), whole(0, 1)),
        (rand(1, 2, 3), whole(0, 7)),
    ),
    "cross_entropy": (F.cross_entropy, (rand(1, 2, 3), whole(0, 1)), (rand(1, 2, 3), whole(0, 7))),
    "multi_margin_loss": (F.multi_margin_loss, (rand(1, 2, 3), whole(0, 1)), (rand(1, 2, 3), whole(0, 7))),
    "binary_cross_entropy": (
        F.binary_cross_entropy,
        (torch.full((2,), 0.5), torch.ones(2)),
        (torch.full((2,), 2.0), torch.ones(2)),
    ),
    "gaussian_nll_loss": (
        F.gaussian_nll_loss,
        (rand(1), rand(2), torch.ones(4)),
        (rand(1), rand(2), -torch.ones(4)),
    ),
    "_assert_async": (
        lambda t: (torch._assert_async(t), t * 2)[1],
        (torch.tensor(1.0),),
        (torch.tensor(0.0),),
    ),
    "one_hot": (lambda i: F.one_hot(i, 3), (whole(0, 2),), (whole(0, 7),)),
}


def writes_first(op: Callable[..., Any]) -> Callable[[], World]:
    """The program has written to a tensor of the caller's, and to a list, before the operation raises."""

    def world() -> World:
        x, log = torch.zeros(2), []

        def fn(*args: Any) -> Any:
            x.add_(1)
            log.append("begun")
            y = op(*args)
            log.append("done")
            return y, x * 2

        return World(fn=fn, x=x, log=log)

    return world


def catches(op: Callable[..., Any]) -> Callable[[], World]:
    """The program goes on behind the exception."""

    def world() -> World:
        x, log = torch.zeros(2), []

        def fn(*args: Any) -> Any:
            x.mul_(2).add_(1)
            try:
                y = op(*args)
            except ERRORS as error:
                log.append(type(error).__name__)
                return x * 3
            x.add_(y.sum() * 0)
            return y, x * 2

        return World(fn=fn, x=x, log=log)

    return world


@pytest.mark.parametrize("program", [writes_first, catches])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_raises_in_a_replay(name, program):
    op, good, bad = OPERATIONS[name]
    calls = [lambda w, args=args: w.fn(*args) for args in (good, good, bad, good, bad, good)]
    done = check(program(op), calls, expect=None, raises=ERRORS, tracebacks=False)
    assert done.graphs
    assert done.outcomes[1] == "hit"


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_ahead_of_time(name, backend):
    op, good, bad = OPERATIONS[name]
    calls = [lambda w, args=args: w.fn(*args) for args in (good, good, bad, good)]
    compiler = look_up(backend)[1]

    def rounded(*args: Any) -> Any:  # kernels may differ in the last digit
        return op(*args).double().round(decimals=4)

    check(catches(rounded), calls, expect=None, raises=ERRORS, tracebacks=False, backend=compiler)


def test_a_write_that_fails_is_caught():
    def world() -> World:
        y = torch.zeros(4)

        def fn(x: torch.Tensor, i: torch.Tensor) -> Any:
            try:
                y[i] = 9.0
            except IndexError:
                return x * 3, y + 1
            return x * 2

        return World(fn=fn, y=y)

    def call(i: int) -> Callable[[World], Any]:
        return lambda w: w.fn(rand(i), torch.tensor([1, i]))

    check(world, [call(1), call(2), call(7), call(3), call(8)], expect="miss hit hit hit hit", graphs=1)


@pytest.mark.parametrize("method", ["index_add_", "index_copy_", "scatter_add_"])
def test_a_write_by_an_index_out_of_range(method):
    def world() -> World:
        y = torch.zeros(4)

        def fn(x: torch.Tensor, i: torch.Tensor) -> Any:
            try:
                getattr(y, method)(0, i, x)
            except (IndexError, RuntimeError):
                return y + 1
            return y * 2

        return World(fn=fn, y=y)

    def call(i: int) -> Callable[[World], Any]:
        return lambda w: w.fn(rand(i, 2), torch.tensor([1, i]))

    check(world, [call(1), call(2), call(7), call(3), call(8)], expect="miss hit hit hit hit", graphs=1)


def test_division_behind_a_write():
    def world() -> World:
        log: list[int] = []

        def fn(x: torch.Tensor, d: torch.Tensor) -> Any:
            x += 1
            log.append(1)
            return x // d

        return World(fn=fn, log=log, x=torch.tensor([4, 5]))

    calls = [lambda w, d=d: w.fn(w.x, torch.tensor(d)) for d in (2, 3, 0, 2, 0)]
    check(world, calls, expect="miss hit hit hit hit", graphs=1, raises=RuntimeError)


def _cache_world(size: int) -> Callable[[], World]:
    def world() -> World:
        caches = [torch.zeros(2, size), torch.zeros(2, size)]

        def fn(x: torch.Tensor, position: torch.Tensor) -> Any:
            for cache in caches:
                cache.index_copy_(1, position + 1, x[:, None])
            caches[0][:, position] = 5.0
            return x + caches[1].sum()

        return World(fn=fn, caches=caches)

    return world


def test_an_index_is_looked_at_before_anything_is_written():
    """Nothing of a large tensor is kept for that."""
    calls = [lambda w, p=p: w.fn(rand(p, 2), torch.tensor([p])) for p in (0, 1, 2, 7, 1, 8, -1)]
    done = check(
        _cache_world(8), calls, expect="miss hit hit hit hit hit hit", graphs=1, raises=(IndexError, RuntimeError)
    )
    assert [entry.restores for entry in done.world.fn.stator.entries] == [()]


@pytest.mark.parametrize("moves", [False, True])
def test_an_index_that_several_writes_take(moves):
    """They do not write to it, and it is looked at once for all of them; unless the program moves it on."""

    def world() -> World:
        caches = [torch.zeros(2, 4), torch.zeros(2, 4)]

        def fn(x: torch.Tensor, position: torch.Tensor) -> Any:
            for cache in caches:
                cache.index_copy_(1, position, x[:, None])
                if moves:
                    position.add_(1)
            return x + caches[1].sum(), position * 1

        return World(fn=fn, caches=caches)

    calls = [lambda w, p=p: w.fn(rand(p, 2), torch.tensor([p])) for p in (0, 1, 2, 3, 4, 1, -9, 2)]
    done = check(world, calls, expect=None, graphs=1, raises=(IndexError, RuntimeError))
    assert done.outcomes[:4] == ["miss", "hit", "hit", "hit"]
    assert [bool(entry.restores) for entry in done.world.fn.stator.entries] == [moves]


@pytest.mark.parametrize("writes", [0, 2])
def test_a_write_that_the_version_counter_does_not_show(writes):
    """`.data` has a counter of its own, which may stand at the same number as the tensor's or at another."""

    def world() -> World:
        y = torch.ones(8)
        for _ in range(writes):
            y.add_(1)

        def fn(place: torch.Tensor) -> Any:
            part = y.data[1:]
            part[1:].mul_(2)
            try:
                return torch.take(y, place) + y.sum()
            except IndexError:
                return y * 2

        return World(fn=fn, y=y)

    calls = [lambda w, p=p: w.fn(torch.tensor([p])) for p in (0, 1, 99, 2, 99, 7)]
    done = check(world, calls, expect=" ".join(["miss", *["hit"] * 5]), graphs=1)
    assert [len(entry.restores) for entry in done.world.fn.stator.entries] == [1]


def test_an_index_is_moved_where_its_version_counter_does_not_show_it():
    def world() -> World:
        cache = torch.zeros(2, 4)

        def fn(x: torch.Tensor, position: torch.Tensor) -> Any:
            position.data.add_(1)
            cache.index_copy_(1, position, x[:, None])
            return x + cache.sum(), position * 1

        return World(fn=fn, cache=cache)

    calls = [lambda w, p=p: w.fn(rand(p, 2), torch.tensor([p])) for p in (0, 1, 2, 3, -2, 1)]
    done = check(world, calls, expect=None, graphs=1, raises=(IndexError, RuntimeError))
    assert done.outcomes[:3] == ["miss", "hit", "hit"]


def test_large_tensors_are_not_kept(monkeypatch):
    """Where an index cannot be looked at before, the graph ends."""
    monkeypatch.setattr(failing_ops, "_MOST_BYTES", 15)

    def world() -> World:
        x = torch.tensor([4, 5])

        def fn(d: torch.Tensor) -> Any:
            x.add_(1)
            y = (x // d) * 2
            return y + 1

        return World(fn=fn, x=x)

    calls = [lambda w, d=d: w.fn(torch.tensor(d)) for d in (2, 3, 0, 2, 0)]
    done = check(world, calls, expect="miss hit hit hit hit", graphs=2, raises=RuntimeError, breaks=["may-fail"])
    assert [entry.restores for entry in done.world.fn.stator.entries] == [(), ()]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_nothing_is_kept_where_writes_come_last(backend):
    def world() -> World:
        x = torch.tensor([4, 5])

        def fn(d: torch.Tensor) -> Any:
            x.add_(1)
            return (x // d) * 2

        return World(fn=fn, x=x)

    calls = [lambda w, d=d: w.fn(torch.tensor(d)) for d in (2, 3, 0, 2, 0)]
    compiler = look_up(backend)[1]
    done = check(
        world, calls, expect="miss hit hit hit hit", graphs=1, raises=RuntimeError, tracebacks=False, backend=compiler
    )
    assert [entry.restores for entry in done.world.fn.stator.entries] == [()]


@pytest.mark.parametrize("name", ["gaussian_nll_loss", "inverse", "embedding", "binary_cross_entropy"])
def test_nothing_is_written_and_the_exception_is_caught(name):
    op, good, bad = OPERATIONS[name]

    def fn(*args: Any) -> Any:
        try:
            return op(*args) * 2
        except ERRORS as error:
            return type(error).__name__

    calls = [lambda w, args=args: w.fn(*args) for args in (good, good, bad, good, bad)]
    check(lambda: World(fn=fn), calls, expect="miss hit hit hit hit", graphs=1)


@pytest.mark.parametrize("op", [torch.linalg.svdvals, torch.linalg.eigvalsh, torch.linalg.cond])
def test_nobody_looks_on_where_that_changes_roundings(op):
    """Torch asks in these whether a dispatch mode is on."""
    calls = [lambda w, s=s: w.fn(rand(s, 5, 5) * 10) for s in range(4)]
    check(lambda: World(fn=lambda x: op(x) * 2), calls, expect="miss hit hit hit", graphs=1)


def test_a_part_of_a_transform_fails_behind_a_write():
    def pick(row: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return row[i]

    def world() -> World:
        x = torch.zeros(2)

        def fn(y: torch.Tensor, i: torch.Tensor) -> Any:
            x.add_(1)
            return torch.vmap(pick)(y, i) * x

        return World(fn=fn, x=x)

    calls = [lambda w, i=i: w.fn(rand(1, 2, 4), torch.tensor([[0, i], [1, i]])) for i in (1, 2, 9, 3, 9)]
    check(world, calls, expect="miss hit hit hit hit", graphs=1, raises=(IndexError, RuntimeError))
