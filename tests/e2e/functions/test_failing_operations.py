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

import stator
from stator.backends.registry import look_up
from stator.errors import GraphBreakError
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


def _divides_a_tensor(**how: Any) -> Callable[[], World]:
    def world() -> World:
        x = torch.tensor([4, 5])

        def fn(d: torch.Tensor) -> Any:
            x.add_(1)
            y = (x // d) * 2
            return y + 1

        return World(fn=fn, x=x)

    return world


def _by(*numbers: int) -> list[Callable[[World], Any]]:
    return [lambda w, d=d: w.fn(torch.tensor(d)) for d in numbers]


@pytest.mark.parametrize("most", [15, 16])
def test_large_tensors_are_not_kept(monkeypatch, most):
    """Of 16 bytes: where an index cannot be looked at before, the graph ends."""
    monkeypatch.setattr(failing_ops, "MOST_BYTES_ELSE", most)
    kept = most == 16
    breaks = {} if kept else {"breaks": ["may-fail"]}
    calls = _by(2, 3, 0, 2, 0)
    done = check(
        _divides_a_tensor(),
        calls,
        expect="miss hit hit hit hit",
        graphs=1 if kept else 2,
        raises=RuntimeError,
        **breaks,
    )
    entries = done.world.fn.stator.entries
    assert [len(entry.restores) for entry in entries] == ([1] if kept else [0, 0])
    assert not any(entry.partly for entry in entries)


@pytest.mark.parametrize("most", [15, 16])
def test_what_may_be_kept_for_one_graph(monkeypatch, most):
    """Where a break is an error, or the backend's graphs write when all else is done, more may be kept."""
    monkeypatch.setattr(failing_ops, "MOST_BYTES_ELSE", 0)
    monkeypatch.setattr(failing_ops, "MOST_BYTES", most)
    for how in ({"backend": "eager", "fullgraph": True}, {"backend": "aot_eager"}, {"backend": "native"}):
        plain, world = _divides_a_tensor()(), _divides_a_tensor()()
        compiled = stator.compile(world.fn, **how)
        compiled.stator.reset()
        if most == 15 and "fullgraph" in how:
            with pytest.raises(GraphBreakError):
                compiled(torch.tensor(2))
            continue
        for d in (2, 3, 0, 2, 0, 5):
            if d:
                assert torch.equal(compiled(torch.tensor(d)), plain.fn(torch.tensor(d)))
            else:
                for fn in (compiled, plain.fn):
                    with pytest.raises(RuntimeError):
                        fn(torch.tensor(d))
            assert torch.equal(world.x, plain.x)
        assert compiled.stator.hits == 5
        assert [why.id for why in compiled.stator.break_reasons] == (["may-fail"] if most == 15 else [])


def _set_item(y: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    y[1] = value
    return y


BEFORE_WRITES: dict[str, Callable[[World, torch.Tensor], Any]] = {
    "nothing": lambda w, i: torch.take(w.t, i),
    "a write to a tensor of its own": lambda w, i: torch.take(w.t.clone().add_(1), i),
    "an item set": lambda w, i: _set_item(torch.zeros(8), torch.take(w.t, i)),
    "a Python effect": lambda w, i: (w.log.append(1), torch.take(w.t, i))[1],
}


@pytest.mark.parametrize("before", BEFORE_WRITES)
@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize("as_tape", [True, False])
def test_it_fails_before_anything_is_written(before, caught, as_tape):
    """The function runs from its start. Nothing is kept for that where it is known when the graph writes."""

    def world() -> World:
        w = World(x=torch.zeros(4), t=torch.arange(8.0), log=[])

        def fn(i: torch.Tensor) -> Any:
            if not caught:
                y = BEFORE_WRITES[before](w, i) * 2
                w.x.add_(1)
                return y
            try:
                y = BEFORE_WRITES[before](w, i) * 2
                w.x.add_(1)
                return y
            except (IndexError, RuntimeError):
                return w.x * 2

        w.fn = fn
        return w

    calls = [lambda w, i=i: w.fn(torch.tensor(i)) for i in (1, 2, 99, 3, 99, 4)]
    backend = look_up("eager")[1] if as_tape else None
    done = check(
        world, calls, expect="miss hit hit hit hit hit", graphs=1, raises=(IndexError, RuntimeError), backend=backend
    )
    assert [len(entry.restores) for entry in done.world.fn.stator.entries] == [0 if as_tape else 1]


def _written_later(w: World, i: torch.Tensor, j: torch.Tensor) -> Any:
    w.small.add_(1)
    y = torch.take(w.t, i)
    w.large.mul_(2)
    return y + torch.take(w.t, j) if w.again else y + 1


def _worlds_written_later(again: bool) -> Callable[[], World]:
    def world() -> World:
        w = World(small=torch.ones(2), large=torch.ones(100), t=torch.arange(8.0), again=again)

        def fn(i: torch.Tensor, j: torch.Tensor) -> Any:
            try:
                return _written_later(w, i, j)
            except IndexError:
                return w.small.sum() + w.large.sum()

        w.fn = fn
        return w

    return world


def test_what_is_written_behind_it_is_not_kept(monkeypatch):
    monkeypatch.setattr(failing_ops, "MOST_BYTES_ELSE", 8)
    calls = [lambda w, i=i: w.fn(torch.tensor(i), torch.tensor(0)) for i in (1, 2, 99, 3, 99, 4)]
    made, eager = _worlds_written_later(False), look_up("eager")[1]
    done = check(made, calls, expect="miss hit hit hit hit hit", graphs=1, backend=eager)
    (entry,) = done.world.fn.stator.entries
    assert len(entry.restores) == 1 and entry.partly


def test_what_is_written_before_the_last_that_may_fail_is_kept():
    calls = [
        lambda w, i=i, j=j: w.fn(torch.tensor(i), torch.tensor(j))
        for i, j in ((1, 2), (2, 3), (99, 1), (1, 99), (99, 99), (4, 5))
    ]
    done = check(_worlds_written_later(True), calls, expect="miss hit hit hit hit hit", graphs=1)
    (entry,) = done.world.fn.stator.entries
    assert len(entry.restores) == 2 and not entry.partly


def test_nothing_is_repeated_where_not_all_is_kept(monkeypatch):
    """An operation of which nobody knows that it may fail, behind a write of which nothing is kept."""
    made = _worlds_written_later(True)
    plain, world = made(), made()
    compiled = stator.compile(lambda i, j: _written_later(world, i, j), backend="eager")
    compiled.stator.reset()
    known = failing_ops.prepare_late
    seen: list[str] = []

    def once(tracer: Any, name: str, *rest: Any) -> None:
        seen.append(name)
        if len(seen) == 1:
            known(tracer, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(failing_ops, "prepare_late", once)
        compiled(torch.tensor(1), torch.tensor(1))
    _written_later(plain, torch.tensor(1), torch.tensor(1))
    assert seen == ["take", "take"]
    (entry,) = compiled.stator.entries
    assert len(entry.restores) == 1 and entry.partly
    for i, j in ((2, 2), (99, 2), (2, 99), (3, 3)):
        outcomes = []
        for fn in (compiled, lambda i, j: _written_later(plain, i, j)):
            try:
                outcomes.append(fn(torch.tensor(i), torch.tensor(j)).item())
            except IndexError as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]
        assert torch.equal(world.small, plain.small) and torch.equal(world.large, plain.large), (i, j)
    assert compiled.stator.hits == 4


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
