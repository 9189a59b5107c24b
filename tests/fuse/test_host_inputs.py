"""Host functions with other inputs than their graphs were compiled for, and with operators that pull memory away."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

import stator
from stator.backends import native

Made = tuple[Any, list[Any]]  # a host function, and the inputs of its last call


@contextmanager
def hosts() -> Iterator[list[Made]]:
    """The host functions that are made in here."""
    made, found = native._host_function, []

    def host_function(module: fx.GraphModule, program: Any, plain: Callable[..., Any], *rest: Any) -> Any:
        host, last = made(module, program, plain, *rest), []
        found.append((host, last))

        def run(inputs: list[Any]) -> Any:
            last[:] = inputs
            return host(inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    native._host_function = host_function
    try:
        yield found
    finally:
        native._host_function = made
    assert found, "nothing was compiled"


def host_of(fn: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    with hosts() as found:
        native.compile_graph(fx.symbolic_trace(fn), inputs)
    return found[0][0]


def chain(x: Tensor) -> Tensor:
    return (x * 2 + 1).abs() - x


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unaligned() -> Tensor:
    memory = torch.frombuffer(bytearray(64), dtype=torch.uint8)
    numpy = memory.numpy()[1:49].view("float32")
    return torch.from_numpy(numpy).view(3, 4)


OTHERS: dict[str, Callable[[], Tensor]] = {
    "negated": lambda: torch._neg_view(rand(3, 4)),
    "zeros without memory": lambda: torch._efficientzerotensor((3, 4)),
    "expanded": lambda: rand(1, 4).expand(3, 4),
    "other type": lambda: rand(3, 4).double(),
    "other size": lambda: rand(4, 4),
    "other rank": lambda: rand(12),
    "size 0": lambda: rand(0, 4),
    "other strides": lambda: rand(4, 3).t(),
    "unaligned": unaligned,
    "inside of memory": lambda: rand(5, 4)[1:4],
    "a subclass": lambda: torch.nn.Buffer(rand(3, 4)),
    "a parameter": lambda: torch.nn.Parameter(rand(3, 4), requires_grad=False),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_tensors(name: str) -> None:
    host = host_of(chain, [rand(3, 4)])
    for _ in range(3):
        given = [other := OTHERS[name]()]
        assert torch.equal(host(given)[0], chain(other)) and given == []
        assert torch.equal(host([x := rand(3, 4, seed=5)])[0], chain(x))


def test_under_a_transform() -> None:
    host = host_of(chain, [rand(3, 4)])
    x = rand(2, 3, 4)
    for _ in range(3):
        assert torch.equal(torch.func.vmap(lambda y: host([y])[0])(x), chain(x))


def test_what_is_no_tensor() -> None:
    host = host_of(chain, [rand(3, 4)])
    for wrong in ([None], ["x"], [[1.0]], [], [rand(3, 4)] * 2):
        for _ in range(3):
            with pytest.raises((TypeError, RuntimeError)):
                host(list(wrong))
    with pytest.raises(TypeError):
        host((rand(3, 4),))
    assert torch.equal(host([x := rand(3, 4)])[0], chain(x))


def test_tensors_of_inference() -> None:
    host = host_of(chain, [rand(3, 4)])
    for inference in (True, False, True):
        with torch.inference_mode(inference):
            x = rand(3, 4)
            assert torch.equal(host([x])[0], chain(x))
            assert host([x])[0].is_inference() == inference


def test_storage_that_was_resized() -> None:
    """ATen's kernels would crash on it."""
    host = host_of(chain, [rand(30, 40)])
    x = rand(30, 40)
    host([x])
    for size in (0, 30 * 40 * 4 - 1):
        x.untyped_storage().resize_(size)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="storage"):
                host([x])
    x.untyped_storage().resize_(30 * 40 * 4)
    x.fill_(2)
    assert torch.equal(host([x])[0], chain(x))


def test_constants_that_were_resized() -> None:
    module = torch.nn.Module()
    module.register_buffer("c", torch.ones(40))
    graph = fx.Graph()
    graph.output((graph.call_function(torch.add, (graph.placeholder("x"), graph.get_attr("c"))),))
    made = fx.GraphModule(module, graph)
    compiled = native.compile_graph(made, [rand(30, 40)])
    x = rand(30, 40)
    for _ in range(3):
        assert torch.equal(compiled(x)[0], x + 1)
    made.c.untyped_storage().resize_(0)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="storage"):
            compiled(x)
    made.c.untyped_storage().resize_(160)
    made.c.fill_(3)
    assert torch.equal(compiled(x)[0], x + 3)


# ---------------------------------------------------------------------------------------------------- symbols


def tables(x: Tensor, n: int) -> Tensor:
    return (torch.softmax(x, -1).sum(0) + torch.arange(n * 2)[: x.shape[1]].float().exp().sum() + n) * x


@pytest.mark.parametrize("wrong", [2.5, -3, 0, 2**40, 2**70, None, "n"])
def test_numbers_that_are_no_sizes(wrong: Any) -> None:
    with hosts() as found:
        compiled = stator.compile(tables, backend="native", dynamic=True)
        for n in (20, 21, 22):
            x = rand(n, 16)
            torch.testing.assert_close(compiled(x, n), tables(x, n))
        assert compiled.stator.recordings <= 2 and compiled.stator.plain == 0  # the first number may be taken as it is
    host, last = found[-1]
    places = [i for i, value in enumerate(last) if type(value) is int]
    assert places
    for place in places:
        for _ in range(3):
            given = list(last)
            given[place] = wrong
            try:
                (got,) = host(given)
            except Exception:
                continue
            assert got.shape == x.shape  # computed by other means, or the number is not a size
    torch.testing.assert_close(host(list(last))[0], tables(x, 22))


def test_sizes_of_nothing_in_a_graph_with_symbols() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x @ y, (x * 2).sum(0)

    with hosts() as found:
        compiled = stator.compile(f, backend="native", dynamic=True)
        for n in (20, 21, 22):
            compiled(rand(n, n + 3), rand(n + 3, 7))
        assert compiled.stator.recordings == 1
    host, last = found[-1]
    x, y = rand(4, 0), rand(0, 7)
    tensors = iter((x, y))
    given = [next(tensors) if isinstance(value, Tensor) else {22: 4, 25: 0}[value] for value in last]
    for _ in range(3):
        got = host(list(given))
        assert all(map(torch.equal, got[:2], f(x, y)))


def test_a_tangent_that_is_negated() -> None:
    compiled = stator.compile(lambda x: (x * x).sin(), backend="native")
    for seed in range(3):
        x, tangent = rand(3, 4, seed=seed).requires_grad_(), rand(3, 4, seed=seed + 9)
        (got,) = torch.autograd.grad(compiled(x), x, torch._neg_view(tangent))
        (wanted,) = torch.autograd.grad((x * x).sin(), x, -tangent)
        torch.testing.assert_close(got, wanted)
    assert compiled.stator.recordings == 1


# ------------------------------------------------------------------------------------------- operators in between

ACTIONS: list[Callable[[], None]] = []
NOTED: list[int] = []


@torch.library.custom_op("stator_test::between", mutates_args=())
def between(x: Tensor) -> Tensor:
    for action in ACTIONS:
        action()
    return x.clone()


@between.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("stator_test::note", mutates_args=())
def note(x: Tensor) -> None:
    NOTED.append(x.numel())


@note.register_fake
def _(x: Tensor) -> None: ...


def test_an_operator_that_takes_memory_away() -> None:
    """It resizes or replaces the memory of an input that a kernel behind it reads."""
    host = host_of(lambda x: torch.ops.stator_test.between(x * 2) + x, [rand(300, 400)])
    try:
        for _ in range(3):
            x = rand(300, 400)
            ACTIONS[:] = [lambda x=x: x.untyped_storage().resize_(0)]
            with pytest.raises(RuntimeError, match="storage"):
                host([x])
        for _ in range(3):
            x, other = rand(300, 400), rand(300, 400, seed=1)
            before = x.clone()
            ACTIONS[:] = [lambda x=x, other=other: x.set_(other)]
            assert torch.equal(host([x])[0], before * 2 + other)
    finally:
        ACTIONS.clear()


def test_random_numbers_before_an_index_that_lies_outside() -> None:
    """The graph runs anew by other means then, and leaves the generator as eager does."""

    def f(x: Tensor, w: Tensor, i: Tensor) -> list[Tensor]:
        dropped = torch.nn.functional.dropout(x, 0.5)
        return [dropped * 2 + torch.nn.functional.embedding(i, w) + torch.rand_like(x)]

    x, w = rand(6, 5), rand(10, 5)
    with hosts() as found:
        compiled = native.compile_graph(fx.symbolic_trace(f), [x, w, torch.arange(6)])
    for seed in range(4):
        states = []
        for fn in (f, compiled):
            torch.manual_seed(seed)
            (good,) = fn(x, w, torch.arange(6) + seed)
            with pytest.raises(IndexError):
                fn(x, w, torch.arange(6) + 8)
            states.append((good, torch.get_rng_state(), *fn(x, w, torch.arange(6))))
        assert all(map(torch.equal, *states))
    assert len(found) == 1


def test_effects_are_not_repeated() -> None:
    """An index that lies outside, in a graph with an operator that the world can see."""

    def f(x: Tensor, w: Tensor, i: Tensor) -> list[Tensor]:
        torch.ops.stator_test.note(x)
        return [x * 2 + torch.nn.functional.embedding(i, w) * 3]

    x, w = rand(6, 5), rand(10, 5)
    module = make_fx(f, tracing_mode="fake")(x, w, torch.arange(6))
    with hosts():
        compiled = native._generate_or_run(module, [x, w, torch.arange(6)], part="forward")
    for _ in range(3):
        NOTED.clear()
        torch.testing.assert_close(compiled([x, w, torch.arange(6)])[0], x * 2 + w[:6] * 3)
        assert NOTED == [30]
        with pytest.raises(IndexError):
            compiled([x, w, torch.arange(6) + 8])
        assert NOTED == [30, 30]


def test_another_thread_exchanges_memory_while_a_product_runs() -> None:
    """The product lets go of the GIL; the kernel behind it reads what lies there then, or the graph does not run on."""
    size = 1 << 24  # so much is given back to the system at once

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x * (y @ y)[0, 0]).sum()

    x, y = torch.ones(size), torch.eye(1024)
    compiled = stator.compile(f, backend="native")
    for factor in (1.0, 2.0, 3.0):
        assert compiled(x, y * factor).item() == size * factor**2
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # the other thread runs where this one lets it
    try:
        for length, value in ((size, 2.0), (3, 5.0)):
            others, begun = [torch.full((length,), value)], threading.Event()
            former, factor = x[0].item(), value + 1

            def exchange(others: list[Tensor] = others, begun: threading.Event = begun) -> None:
                begun.wait()
                x.set_(others.pop())

            thread = threading.Thread(target=exchange)
            thread.start()
            scaled = y * factor
            begun.set()
            result = compiled(x, scaled).item()
            thread.join()
            assert result in (size * former * factor**2, length * value * factor**2)
    finally:
        sys.setswitchinterval(interval)
    assert compiled.stator.recordings == 1
