"""What backends see of symbolic recordings, and threads that record at the same time."""

from __future__ import annotations

import math
import threading
import types
import warnings

import pytest
import torch
from harness import rand
from torch.fx.experimental.proxy_tensor import py_sym_types

import stator
from stator import _native, events
from stator.errors import BackendError


class Looking:
    """A backend that keeps what it is given."""

    def __init__(self):
        self.graphs, self.examples = [], []

    def __call__(self, graph, examples):
        graph.graph.lint()
        self.graphs.append(graph)
        self.examples.append(list(examples))
        return graph.forward


def compiled_with(fn, calls):
    looking = Looking()
    compiled = stator.compile(fn, backend=looking)
    for args in calls:
        torch.testing.assert_close(compiled(*args), fn(*args), rtol=0, atol=0)
    return looking, compiled


def test_examples_are_symbolic():
    def fn(x, n, f):
        return x.view(-1, 1) * n + f, x.shape[0] + n

    looking, compiled = compiled_with(fn, [(rand(n, n), n, n / 2) for n in (4, 6, 9, 5)])
    static, symbolic = looking.examples
    assert len(looking.graphs) == compiled.stator.recordings == 2
    assert [type(e) for e in static] == [torch.Tensor] and static[0].shape == (4,)
    x, n, f = symbolic
    assert isinstance(x.shape[0], torch.SymInt) and isinstance(n, torch.SymInt) and isinstance(f, torch.SymFloat)
    assert x.shape[0].node.hint == 6 and n.node.hint == 6 and f.node.hint == 3.0


def test_every_node_knows_what_it_gives():
    def fn(x, n):
        y = torch.cat([x, x[: n - 2]]) * 2
        return y.unsqueeze(0), y.shape[0] * 3

    looking, _ = compiled_with(fn, [(rand(n, n), n) for n in (4, 6, 9)])
    for node in looking.graphs[1].graph.nodes:
        if node.op == "output":
            continue
        value = node.meta["example_value"]
        assert isinstance(value, (torch.Tensor, *py_sym_types)), node
        if node.op == "placeholder":
            assert node.type in (torch.Tensor, torch.SymInt)
    last = [node for node in looking.graphs[1].graph.nodes if node.op == "call_method" and node.target == "unsqueeze"]
    assert [size if isinstance(size, int) else size.node.hint for size in last[0].meta["example_value"].shape] == [
        1,
        10,
    ]


def test_numbers_come_behind_tensors():
    def fn(n, x, m, y):
        return x * n + y * m

    looking, _ = compiled_with(fn, [(n, rand(n), n + 1, rand(n + 1)) for n in (2, 3, 4)])
    names = [node.target for node in looking.graphs[1].graph.nodes if node.op == "placeholder"]
    assert names == ["l_x_", "l_y_", "l_n_", "l_m_"]


def test_numbers_that_the_graph_does_not_need_are_no_inputs():
    def fn(x, n):
        return x * 2, n + 1 if n > 3 else n

    looking, _ = compiled_with(fn, [(rand(n), n) for n in (4, 5, 6)])
    assert all(node.target != "l_unused_" for node in looking.graphs[1].graph.nodes)
    inputs = [node.target for node in looking.graphs[1].graph.nodes if node.op == "placeholder"]
    assert inputs == ["l_x_", "l_n_"]


def test_what_a_backend_assumes_is_guarded():
    def backend(graph, examples):
        sizes = [e.shape[0] for e in examples if isinstance(e, torch.Tensor) and isinstance(e.shape[0], torch.SymInt)]
        if sizes and sizes[0] > 7:
            return lambda *args: tuple(out + 0 for out in graph.forward(*args))
        return graph.forward

    def fn(x):
        return x * 2

    compiled = stator.compile(fn, backend=backend)
    for n in (4, 6, 5, 9, 12, 7, 8):
        torch.testing.assert_close(compiled(rand(n, n)), fn(rand(n, n)), rtol=0, atol=0)
    assert compiled.stator.recordings == 3
    lines = [line for entry in compiled.stator.entries for line in entry.guards.lines()]
    assert any(line.startswith("x.shape[0] <= 7") for line in lines)
    assert any(line.startswith(("x.shape[0] > 7", "x.shape[0] >= 8")) for line in lines)


def test_a_backend_that_fails():
    def backend(graph, examples):
        if any(isinstance(e, torch.SymInt) for e in examples):
            raise ValueError("no symbols")
        return graph.forward

    compiled = stator.compile(lambda x, n: x * n, backend=backend, options={"suppress_errors": False})
    box = [5]
    assert compiled(rand(1), box[0]).shape == (4,)
    with pytest.raises(BackendError, match="no symbols"):
        compiled(rand(1), 7)
    assert type(box[0]) is int


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_gradients_through_symbolic_graphs(backend):
    def fn(x, w, n):
        return ((x @ w).relu() * n).sum() / x.shape[0]

    compiled = stator.compile(fn, backend=backend)
    for n in (3, 5, 8, 2, 9):
        x = rand(n, n, 4)
        one, other = rand(1, 4, 2, requires_grad=True), rand(1, 4, 2, requires_grad=True)
        fn(x, one, n).backward()
        compiled(x, other, n).backward()
        torch.testing.assert_close(other.grad, one.grad)
    assert compiled.stator.recordings <= 3


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.sizes = 0, (0, 0)

    def forward(self, x):
        return x * self.step + self.sizes[0], self.step


def in_threads(count, work):
    failures = []

    def run(number):
        try:
            work(number)
        except BaseException as error:  # pytest would not hear of it
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_threads_record_one_module():
    module = Counter()
    ready = threading.Barrier(2)
    programs = [stator.compile(lambda m, x, k=k: m(x)[0] + k, backend="eager") for k in range(2)]

    def work(number):
        for step in range(6):
            if number == 0:
                module.step, module.sizes = step + 3, (step, 1)
            ready.wait()
            x = rand(step, step + 2)
            expected = x * module.step + module.sizes[0] + number
            found = programs[number](module, x)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
            ready.wait()

    in_threads(2, work)
    assert type(module.step) is int and type(module.sizes[0]) is int


def test_a_number_that_another_recording_has_made_a_symbol_is_its_value():
    def fn(x, box):
        return x * box.n + box.items[0], box.n + 1

    box = types.SimpleNamespace(n=5, items=(1, 2))
    compiled = stator.compile(fn, backend="eager")
    for n in (5, 7, 9, 5, 7, 11):
        foreign = [_native.symbol(n), _native.symbol(1)]
        box.n, box.items = foreign[0], (foreign[1], 2)
        first = compiled(rand(n), box)
        for number in foreign:
            _native.turn_plain(number)
        torch.testing.assert_close(first, fn(rand(n), box), rtol=0, atol=0)
        box.n = n + 1
        torch.testing.assert_close(compiled(rand(n), box), fn(rand(n), box), rtol=0, atol=0)


def test_threads_share_a_program():
    def fn(x, n):
        return x.view(-1, 1) * n, x.shape[0] * n

    compiled = stator.compile(fn, backend="eager")

    def work(number):
        for step in range(12):
            n = 3 + (number + step) % 5
            x = rand(n, 2 * n)
            found = compiled(x, n)
            assert type(found[1]) is int
            torch.testing.assert_close(found, fn(x, n), rtol=0, atol=0)

    in_threads(3, work)
    assert compiled.stator.recordings <= 4


@pytest.mark.parametrize(
    "compute", [lambda f: (f + 1e16) - 1e16, lambda f: f * 0.0 + f, lambda f: f * 0.0], ids=["sum", "product", "zero"]
)
def test_floats_are_computed_in_the_order_of_the_program(compute):
    def plain(x, f):
        return x * 2, x * compute(f), torch.tensor(compute(f))

    compiled = stator.compile(plain, backend="aot_eager")
    for f in (1.5, 2.5, 3.5, float("inf"), 4.5):
        for got, wanted in zip(compiled(torch.ones(2), f), plain(torch.ones(2), f), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "compute",
    [
        lambda f: f - f,
        lambda f: f % f,
        lambda f: f * -0.0,
        lambda f: f + math.inf,
        lambda f: -math.inf - f,
        lambda f: f // 1.0,
        lambda f: f * 2.5,
    ],
    ids=["difference", "remainder", "zero", "infinity", "minus infinity", "floor", "product"],
)
def test_a_graph_of_which_only_a_number_remains(compute):
    def plain(f):
        return compute(f)

    compiled = stator.compile(plain, backend="aot_eager", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for f in (1.5, 2.5, 3.5, 4.5, math.inf, -0.0, 5.5):
            try:
                wanted = compute(f)
            except ArithmeticError as error:
                with pytest.raises(type(error)):
                    compiled(f)
            else:
                assert repr(compiled(f)) == repr(wanted)
    assert compiled.stator.hits >= 2 and compiled.stator.recordings <= 4


@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_recurrent_layers_are_left_to_the_library(backend, kind):
    """Derived, they would be some operators for each step of the sequence: recorded for each length, and slower."""
    torch.manual_seed(0)
    layer = kind(4, 8, batch_first=True)
    compiled = stator.compile(lambda x: layer(x * 2)[0].relu(), backend=backend)
    refused: list[events.NotDerived] = []
    unsubscribe = events.subscribe(refused.append, events.NotDerived)
    for length in (3, 5, 9, 4, 7):
        x = rand(length, 2, length, 4)
        found = []
        for result in (layer(x * 2)[0].relu(), compiled(x)):
            layer.zero_grad()
            result.square().sum().backward()
            found.append([result, *[parameter.grad for parameter in layer.parameters()]])
        assert all(map(torch.equal, *found))
    unsubscribe()
    assert (compiled.stator.recordings, compiled.stator.hits, compiled.stator.plain) == (2, 3, 0)
    assert ["recurrent layer" in str(event.why) for event in refused] == [True, True]
