"""`mode=`: what inductor is told, by itself and for native; and CUDA graphs, whose results nobody writes to again."""

from __future__ import annotations

import contextlib
import ctypes

import pytest
import torch
import torch.nn.functional as F
from harness import rand
from torch import nn
from torch._inductor import config
from torch._subclasses import FakeTensorMode

import stator
from stator import events
from stator.backends import cuda_graphs, inductor, native
from stator.backends.registry import look_up

MODES = ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
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
    assert told == [(False, False, False)] * 3 + [(True, True, False)] * 2
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


def test_native_keeps_graphs_on_a_gpu_and_says_what_it_lacks():
    told = []
    end = events.subscribe(told.append, events.NotGenerated)
    with FakeTensorMode():
        x = torch.empty(2, device="cuda")
    gm = torch.fx.symbolic_trace(lambda x: (x + 1,))
    try:
        for compile_graph in (native.compile_graph, native.in_mode("reduce-overhead")):
            compiled = compile_graph(gm, [x])
            if not torch.cuda.is_available():
                assert torch.equal(compiled(rand(0))[0], rand(0) + 1), "the plain graph"
    finally:
        end()
    if not torch.cuda.is_available():
        assert [(event.part, "CUDA" in event.why) for event in told] == [("forward", True)] * 2


# -- CUDA graphs, on tensors of the CPU: what a capture would do is done by calling the function again


def at_its_address(value):
    """The same memory, which this does not keep alive."""
    reach = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    raw = (ctypes.c_uint8 * (reach * value.element_size())).from_address(value.data_ptr())
    return torch.frombuffer(raw, dtype=value.dtype).as_strided(value.shape, value.stride())


class Again:
    """Like a capture: `replay` reads and writes the memory that the first run read and wrote."""

    made = replays = setting = 0

    def __init__(self, run, inputs):
        type(self).made += 1
        self._run, self._inputs = run, list(map(at_its_address, inputs))
        self.outputs = run(list(inputs))
        self._written = list(self.outputs)

    def keep(self, *memory):
        self.outputs = ()

    def inside(self):
        return contextlib.nullcontext()

    def replay(self):
        type(self).replays += 1
        for memory, value in zip(self._written, self._run(list(self._inputs)), strict=True):
            if memory is not value:
                memory.copy_(value)

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


def test_results_that_die_soon_are_given_away_as_they_are(again):
    weight = rand(0)
    replayed = cuda_graphs.Replayed(boxed(lambda x, w: (x * w, x + w)), again, kept=[1])
    places = []
    for seed in range(6):
        x = rand(seed)
        copy, kept = replayed([x, weight])
        assert torch.equal(copy, x * weight) and torch.equal(kept, x + weight)
        places.append(kept.data_ptr())
        del copy, kept
    assert len(set(places[1:])) == 1, "the same memory, from the capture on"
    assert (again.made, again.replays) == (1, 5)


@pytest.mark.parametrize("holder", ["itself", "a view", "an alias"])
def test_a_result_that_is_alive_is_not_written_to(again, holder):
    weight, held, wanted = rand(0), [], []
    replayed = cuda_graphs.Replayed(boxed(lambda x, w: (x + w,)), again, kept=[0])
    for seed in range(6):
        x = rand(seed)
        (kept,) = replayed([x, weight])
        assert torch.equal(kept, x + weight)
        held.append({"itself": kept, "a view": kept[1:], "an alias": kept.detach()}[holder])
        wanted.append((x + weight)[1:] if holder == "a view" else x + weight)
        del kept
    assert all(map(torch.equal, held, wanted))
    assert again.replays == 1, "the first that was given away lives, so the others ran as they are"
    held.clear()
    x = rand(9)
    assert torch.equal(replayed([x, weight])[0], x + weight)
    assert again.replays == 2


def test_where_results_live_long_they_become_copies(again):
    weight, held = rand(0), []
    replayed = cuda_graphs.Replayed(boxed(lambda x, w: (x + w,)), again, kept=[0])
    inputs = [rand(seed) for seed in range(20)]
    for x in inputs:
        held.append(replayed([x, weight])[0])
    assert all(torch.equal(got, x + weight) for got, x in zip(held, inputs, strict=True))
    assert again.replays > 5 and again.made == 2


def test_a_backward_reads_what_its_forward_keeps_where_it_lies(again):
    weight = torch.nn.Parameter(rand(0))
    forward = cuda_graphs.Replayed(boxed(lambda x, w: (x * w, x + w)), again, kept=[1])
    backward = cuda_graphs.Replayed(boxed(lambda kept, w, g: (g * kept, g * w)), again, kept=[0, 1])
    with torch.no_grad():
        for seed in range(6):
            x, tangent = rand(seed), rand(seed + 50)
            result, kept = forward([x, weight])
            assert torch.equal(result, x * weight)
            one, other = backward([kept, weight, tangent])
            assert torch.equal(one, tangent * (x + weight)) and torch.equal(other, tangent * weight)
            del kept, one, other
        assert again.made == 2 and again.replays == 10
        assert backward._copied == (2,), "the tangent alone is copied"
        first = forward([rand(1), weight])  # two forwards before their backwards
        second = forward([rand(2), weight])
        for seed, (_, kept) in ((1, first), (2, second)):
            tangent = rand(seed + 70)
            one, other = backward([kept, weight, tangent])
            assert torch.equal(one, tangent * (rand(seed) + weight)) and torch.equal(other, tangent * weight)
            del kept, one, other
        assert again.made == 2, "the second one ran as it is"


def test_a_parameter_that_moves_is_read_at_its_new_place(again):
    weight = torch.nn.Parameter(rand(0))
    replayed = cuda_graphs.Replayed(boxed(lambda x, w: (x * w,)), again)
    x = rand(1)
    with torch.no_grad():
        for step in range(8):
            if step in (3, 6):
                weight.data = rand(20 + step)
            (got,) = replayed([x, weight])
            assert torch.equal(got, x * weight)
    assert again.made == 3 and replayed._copied == ()


def test_graphs_that_are_not_captured():
    seen = []

    def look(module, example_inputs):
        seen.append(cuda_graphs.why_not_capturable(module, example_inputs))
        return module

    stator.autograd.aot_function(lambda x: x.sin(), look)(rand(0))
    assert seen == ["it is not on one GPU alone"]


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

    monkeypatch.setattr(cuda_graphs.Replayed.__init__, "__defaults__", (Counted, (), "graph"))
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
