"""`mode=`: what inductor is told, by itself and for native; and CUDA graphs, whose results nobody writes to again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import rand
from torch import nn
from torch._inductor import config
from torch._subclasses import FakeTensorMode

import stator
from stator.backends import cuda_graphs, inductor, native
from stator.backends.registry import look_up

MODES = ["default", "reduce-overhead", "max-autotune"]
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def counts(compiled):
    handle = compiled.stator
    return handle.recordings, handle.hits, handle.plain


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.seen = []

    def forward(self, x):
        self.calls += 1
        self.seen.append("forward")
        hidden = F.gelu(self.first(x))
        return self.second(hidden), hidden


def twins(device="cpu"):
    torch.manual_seed(0)
    plain, model = Model().to(device), Model().to(device)
    model.load_state_dict(plain.state_dict())
    return plain, model


@pytest.mark.parametrize("backend", ["native", "inductor"])
@pytest.mark.parametrize("mode", MODES)
def test_training_on_the_cpu(mode, backend):
    plain, model = twins()
    compiled = stator.compile(model, backend=backend, mode=mode)
    kept = []
    for seed in range(4):
        results = []
        for each in (plain, compiled):
            out, hidden = each(rand(seed, 3, 8))
            (out.square().sum() + hidden.sum()).backward()
            results.append((out, hidden))
        kept.append([(value, value.detach().clone()) for value in results[1]])
        torch.testing.assert_close(results[0], results[1])
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
            with torch.no_grad():
                one -= 0.1 * one.grad
                other -= 0.1 * other.grad
    assert all(torch.equal(value, copy) for call in kept for value, copy in call)
    assert plain.calls == model.calls == 4
    assert plain.seen == model.seen == ["forward"] * 4
    assert counts(compiled) == (1, 3, 0)


def test_inductor_is_told(monkeypatch):
    told = []

    def look(*args, **kwargs):
        told.append((config.max_autotune, config.coordinate_descent_tuning, config.triton.cudagraphs))
        return generate(*args, **kwargs)

    generate = inductor._generate
    monkeypatch.setattr(inductor, "_generate", look)
    for mode in (None, *MODES):
        compiled = stator.compile(lambda x: x.sin() + 1, backend="inductor", mode=mode)
        for seed in range(3):
            torch.testing.assert_close(compiled(rand(seed)), rand(seed).sin() + 1)
        assert counts(compiled) == (1, 2, 0)
        stator.reset()  # None and "default" are the same
    assert told == [(False, False, False)] * 3 + [(True, True, False)]
    assert (config.max_autotune, config.coordinate_descent_tuning) == (False, False)


@pytest.mark.parametrize("backend", ["native", "inductor"])
def test_functions_of_one_mode_share_recordings(backend):
    def make(mode):
        def fn(x):
            return x * 2

        return stator.compile(fn, backend=backend, mode=mode)

    first, second, other = make("reduce-overhead"), make("reduce-overhead"), make("max-autotune")
    for compiled in (first, second, other):
        assert torch.equal(compiled(rand(0)), rand(0) * 2)
    assert [compiled.stator.recordings for compiled in (first, second, other)] == [1, 0, 1]
    assert second.stator.hits == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", lambda gm, example_inputs: gm.forward])
def test_other_backends_have_nothing_to_choose(backend, mode):
    assert look_up(backend, mode) == look_up(backend)
    compiled = stator.compile(lambda x: x + 1, backend=backend, mode=mode)
    for seed in range(3):
        assert torch.equal(compiled(rand(seed)), rand(seed) + 1)
    assert counts(compiled) == (1, 2, 0)


def test_benchmarks_are_not_run_in_the_background():
    """They draw random numbers, which are the process's."""
    compiled = stator.compile(
        lambda x: x - 1, backend="inductor", mode="max-autotune", options={"background_compile": True}
    )
    for seed in range(3):
        assert torch.equal(compiled(rand(seed)), rand(seed) - 1)
    assert counts(compiled) == (1, 2, 0)


def test_native_hands_graphs_on_a_gpu_to_inductor(monkeypatch):
    told = []

    def look_up(name, mode):
        return name, lambda gm, example_inputs: told.append((name, mode)) or gm.forward

    monkeypatch.setattr(native, "look_up", look_up)
    with FakeTensorMode():
        x = torch.empty(2, device="cuda")
    gm = torch.fx.symbolic_trace(lambda x: (x + 1,))
    native.compile_graph(gm, [x])
    native.in_mode("reduce-overhead")(gm, [x])
    native.compile_graph(gm, [rand(0)])
    assert told == [("inductor", None), ("inductor", "reduce-overhead")]


# -- CUDA graphs, on tensors of the CPU: what a capture would do is done by calling the function again


class Again:
    """Like a capture: `replay` reads and writes the memory that the first run read and wrote."""

    made = replays = setting = 0

    def __init__(self, run, inputs):
        type(self).made += 1
        self._run, self._inputs = run, list(inputs)
        self.outputs = run(list(inputs))
        self._written = list(self.outputs)

    def keep(self, *memory):
        self.outputs = ()

    def begin(self):
        pass

    def replay(self):
        type(self).replays += 1
        for memory, value in zip(self._written, self._run(list(self._inputs)), strict=True):
            if memory is not value:
                memory.copy_(value)

    def end(self):
        pass

    @staticmethod
    def is_possible():
        return True

    @classmethod
    def settings(cls):
        return (cls.setting,)


@pytest.fixture
def again():
    class Capture(Again):
        pass

    return Capture


def boxed(function):
    calls = []

    def run(args):
        given = list(args)
        args.clear()
        calls.append(len(given))
        return function(*given)

    run.calls = calls
    return run


def test_results_are_nobodys_memory(again):
    weight = rand(0)
    replayed = cuda_graphs.Replayed(boxed(lambda x, w: (x * w, x + w)), again)
    results, wanted = [], []
    for seed in range(6):
        x = rand(seed)
        results.append(replayed([x, weight]))
        wanted.append((x * weight, x + weight))
    for got, right in zip(results, wanted, strict=True):
        assert all(map(torch.equal, got, right))
    assert len({value.data_ptr() for got in results for value in got}) == 12
    assert again.made >= 1


def test_captured_once_where_inputs_stay(again):
    x, weight = rand(0), rand(1)
    run = boxed(lambda x, w: (x * w,))
    replayed = cuda_graphs.Replayed(run, again)
    for step in range(5):
        x.fill_(step)
        weight.add_(1)
        (got,) = replayed([x, weight])
        assert torch.equal(got, x * weight)
    assert (again.made, again.replays) == (1, 4)


def test_an_input_that_moves_is_copied(again):
    weight = rand(1)
    replayed = cuda_graphs.Replayed(boxed(lambda x, w: (x * w,)), again)
    kept = [rand(seed) for seed in range(8)]  # all alive: none lies where another did
    for x in kept:
        (got,) = replayed([x, weight])
        assert torch.equal(got, x * weight)
    assert again.made == 1
    moved = [weight + n for n in range(6)]
    for x, w in zip(kept, moved, strict=False):
        (got,) = replayed([x, w])
        assert torch.equal(got, x * w)
    assert again.made == 2
    assert torch.equal(kept[0], rand(0)) and torch.equal(moved[0], weight)


def test_results_that_are_inputs(again):
    replayed = cuda_graphs.Replayed(boxed(lambda x, w: (x, w[1:], x * w, None)), again)
    weight = rand(9)
    for seed in range(5):
        x = rand(seed)
        itself, part, product, nothing = replayed([x, weight])
        assert itself is x
        assert part.data_ptr() == weight[1:].data_ptr() and torch.equal(part, weight[1:])
        assert torch.equal(product, x * weight) and nothing is None


def test_a_part_of_a_copied_input(again):
    replayed = cuda_graphs.Replayed(boxed(lambda x: (x[1:], x.sum())), again)
    for whole in [rand(seed, 3, 4) for seed in range(5)]:
        x = whole[1]  # it does not begin where its memory does
        part, total = replayed([x])
        assert part.data_ptr() == x[1:].data_ptr() and torch.equal(part, x[1:]) and torch.equal(total, x.sum())


def test_with_other_settings_it_runs_as_it_is(again):
    replayed = cuda_graphs.Replayed(boxed(lambda x: (x * 2,)), again)
    x = rand(0)
    for replays in (0, 1, 2):
        assert torch.equal(replayed([x])[0], x * 2)
        assert again.replays == replays
    again.setting = 1
    assert torch.equal(replayed([x])[0], x * 2)
    assert again.replays == 2
    again.setting = 0
    assert torch.equal(replayed([x])[0], x * 2)
    assert (again.made, again.replays) == (1, 3)


@pytest.mark.parametrize("odd", ["strides", "a number", "an overlapping result", "a failure"])
def test_what_cannot_be_captured_runs_as_it_is(again, odd):
    if odd == "a failure":
        again.__init__ = lambda self, run, inputs: 1 / 0
    functions = {
        "a number": lambda x: (x * 2, 3),
        "an overlapping result": lambda x: (x.new_ones(1).expand(4), x * 2),
    }
    run = boxed(functions.get(odd, lambda x: (x * 2,)))
    replayed = cuda_graphs.Replayed(run, again)
    for seed in range(5):
        x = rand(seed, 4, 4)
        x = x.t() if odd == "strides" and seed == 2 else x
        got, right = replayed([x]), functions.get(odd, lambda x: (x * 2,))(x)
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(got, right, strict=True))
    assert again.replays == (odd == "strides")  # the second call was captured, the third looks otherwise


def test_graphs_that_are_not_captured():
    seen = []

    def look(module, example_inputs):
        seen.append(cuda_graphs.is_capturable(module, example_inputs))
        return module

    stator.autograd.aot_function(lambda x: x.sin(), look)(rand(0))
    assert seen == [False]  # not on a GPU


# -- on a GPU


@on_a_gpu
@pytest.mark.parametrize("mode", MODES[1:])
def test_training_on_a_gpu(mode):
    plain, model = twins("cuda")
    compiled = stator.compile(model, mode=mode)
    kept = []
    for seed in range(8):
        results = []
        for each in (plain, compiled):
            out, hidden = each(rand(seed, 3, 8).cuda())
            (out.square().sum() + hidden.sum()).backward()
            results.append((out, hidden))
        kept.append([(value, value.detach().clone()) for value in results[1]])
        torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-3)
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3)
            with torch.no_grad():
                one -= 0.1 * one.grad
                other -= 0.1 * other.grad
    assert all(torch.equal(value, copy) for call in kept for value, copy in call)
    assert plain.calls == model.calls == 8
    assert counts(compiled) == (1, 7, 0)


@on_a_gpu
def test_a_graph_is_captured_and_two_forwards_come_before_their_backwards(monkeypatch):
    made = []

    class Counted(cuda_graphs.Capture):
        def __init__(self, run, inputs):
            super().__init__(run, inputs)
            made.append(self)

    monkeypatch.setattr(cuda_graphs.Replayed.__init__, "__defaults__", (Counted,))
    fn = lambda x, w: torch.tanh(x @ w)  # noqa: E731
    compiled = stator.compile(fn, mode="reduce-overhead")
    weight = rand(0, 8, 8).cuda().requires_grad_()
    for seed in range(6):
        inputs = [rand(10 * seed + n, 4, 8).cuda() for n in range(2)]
        found = []
        for call in (fn, compiled):
            outs = [call(x, weight) for x in inputs]
            found.append([torch.autograd.grad(out.sum(), weight)[0] for out in outs] + outs)
        torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)
    assert 2 <= len(made) <= 8
    assert counts(compiled) == (1, 11, 0)


@on_a_gpu
def test_streams():
    fn = lambda x: (x * 2 + 1).sum(0)  # noqa: E731
    compiled = stator.compile(fn, mode="reduce-overhead")
    streams = [torch.cuda.Stream() for _ in range(3)]
    inputs = [torch.randn(1 << 12, 256, device="cuda") for _ in range(12)]
    torch.cuda.synchronize()
    results = []
    for index, x in enumerate(inputs):
        with torch.cuda.stream(streams[index % 3]):
            results.append(compiled(x))
    torch.cuda.synchronize()
    for x, got in zip(inputs, results, strict=True):
        torch.testing.assert_close(got, fn(x))


@on_a_gpu
def test_random_numbers_and_sizes_that_change_on_a_gpu():
    def fn(x):
        return F.dropout(x, 0.5) * x.shape[0]

    compiled = stator.compile(fn, mode="reduce-overhead")
    for size in (4, 4, 5, 6, 7, 4):
        x = torch.ones(size, 8, device="cuda")
        found = []
        for call in (fn, compiled):
            torch.manual_seed(size)
            found.append((call(x), torch.rand(2, device="cuda")))
        torch.testing.assert_close(found[0], found[1])


@on_a_gpu
def test_precision_is_set_later_on_a_gpu():
    compiled = stator.compile(lambda x, y: x @ y, mode="reduce-overhead")
    x, y = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    for _ in range(3):
        assert torch.equal(compiled(x, y), x @ y)
    torch.set_float32_matmul_precision("high")
    try:
        assert torch.equal(compiled(x, y), x @ y)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(compiled(x, y), x @ y)
