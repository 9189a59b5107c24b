"""Programs with the native backend on a GPU: as `test_native.py`, and what is particular to the device."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native_check import compare
from test_native import PROGRAMS, rand
from torch import Tensor, nn

import stator
from stator import events
from stator.backends import cuda_graphs, native

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu(make: Callable[[int], Sequence[Any]], dtype: torch.dtype | None = None) -> Callable[[int], Sequence[Any]]:
    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        moved = value.detach().cuda()
        moved = moved.to(dtype) if dtype is not None and moved.is_floating_point() else moved
        return moved.requires_grad_(value.requires_grad)

    return lambda seed: [move(value) for value in make(seed)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    fn, make = PROGRAMS[name]
    seen = compare(fn, on_gpu(make), backend="native")
    assert seen.kernels > 0 and seen.gemms == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["chain", "softmax", "layer norm", "mlp", "sums", "transposed"])
def test_narrow_floats(name: str, dtype: torch.dtype) -> None:
    fn, make = PROGRAMS[name]
    assert compare(fn, on_gpu(make, dtype), grads=False, backend="native").kernels > 0


def test_dynamic_sizes() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.softmax(x * 2, -1), x.sum(0)

    made = on_gpu(lambda seed: [rand(seed, 3 + 5 * seed, 16 * (seed + 1))])
    assert compare(fn, made, dynamic=True, backend="native").kernels > 0


class Generated:
    """Counts graphs that became code, and those that did not."""

    def __enter__(self) -> Generated:
        self.made, self.refused = 0, list[str]()
        self._ends = [
            events.subscribe(self._note, events.CodeGenerated),
            events.subscribe(self._refuse, events.NotGenerated),
        ]
        return self

    def _note(self, event: Any) -> None:
        self.made += 1

    def _refuse(self, event: Any) -> None:
        self.refused.append(event.why)

    def __exit__(self, *error: object) -> None:
        for end in self._ends:
            end()


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm(x)
        x = x + self.attention(n, n, n, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 3, stride=2)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.norm(self.first(x)))).mean((2, 3))


@pytest.mark.parametrize(("module", "shape"), [(Block, (2, 10, 64)), (Convolutions, (2, 3, 16, 16))])
def test_modules_train_as_eager(module: type[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain, other = module().cuda(), module().cuda()
    other.load_state_dict(plain.state_dict())
    with Generated() as seen:
        compiled = stator.compile(other, backend="native")
        for seed in range(4):
            x = rand(seed, *shape, grad=False).cuda()
            losses = []
            for m, call in ((plain, plain), (other, compiled)):
                m.zero_grad()
                loss = call(x).square().mean()
                loss.backward()
                with torch.no_grad():
                    for p in m.parameters():
                        p -= 0.1 * p.grad
                losses.append(loss.detach())
            torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-5)
    for (name, p), q in zip(plain.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=5e-3, atol=5e-4, msg=lambda m, name=name: f"{name}: {m}")
    assert seen.made >= 2 and not seen.refused, seen.refused


def test_streams_threads_and_earlier_results() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.softmax(x @ w, -1).cumsum(0) * 2

    w = rand(0, 64, 64, grad=False).cuda()
    with Generated() as seen:
        compiled = stator.compile(fn, backend="native")
        first = compiled(rand(1, 32, 64, grad=False).cuda(), w)
        kept = first.clone()
        wrong: list[str] = []

        def work(number: int) -> None:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for seed in range(10):
                    x = rand(10 * number + seed, 32, 64, grad=False).cuda()
                    if not torch.allclose(compiled(x, w), fn(x, w), rtol=1e-4, atol=1e-6):
                        wrong.append(f"{number} {seed}")
            stream.synchronize()

        torch.cuda.synchronize()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong and torch.equal(first, kept)
    assert seen.made >= 1 and not seen.refused


def test_an_index_out_of_range_is_an_error_at_the_next_synchronisation() -> None:
    script = """
import torch, stator
compiled = stator.compile(lambda w, i: torch.nn.functional.embedding(i, w) * 2, backend="native")
w, good = torch.randn(10, 6, device="cuda"), torch.tensor([1, 2, 9], device="cuda")
for _ in range(3):
    assert torch.equal(compiled(w, good), w[good] * 2)
bad = torch.tensor([1, 2, 10], device="cuda")
try:
    compiled(w, bad)
    torch.cuda.synchronize()
except RuntimeError as error:
    print("raised")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "raised" in done.stdout, (done.stdout, done.stderr[-2000:])


def test_tensors_of_the_cpu_in_a_graph_on_the_gpu() -> None:
    scale = torch.tensor(3.0)
    compiled = stator.compile(lambda x: x * scale + 1, backend="native")
    for seed in range(3):
        x = rand(seed, 5, grad=False).cuda()
        torch.testing.assert_close(compiled(x), x * 3 + 1)


# -- what the host function does in each call


def test_numbers_of_the_cpu_are_read_in_each_call() -> None:
    scale = torch.tensor(3.0)
    with Generated() as seen:
        compiled = stator.compile(lambda x, s: torch.sin(x) * s + 1)
        for value in (3.0, 0.5, -2.0):
            scale.fill_(value)
            x = rand(abs(int(value)), 500, grad=False).cuda()
            got = compiled(x, scale)
            scale.fill_(77.0)  # behind the launch, maybe before the kernel runs
            torch.testing.assert_close(got, torch.sin(x) * value + 1)
    assert seen.made >= 1 and not seen.refused, seen.refused


def test_no_memory_is_an_error_and_the_next_call_is_right() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.softmax(x * 2, -1).cumsum(0) + 1

    compiled = stator.compile(fn, dynamic=False)
    x = rand(0, 1 << 16, 1024, grad=False).cuda()
    torch.testing.assert_close(compiled(x), fn(x))
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64 * 2**20) / total)
    try:
        for _ in range(3):
            with pytest.raises(torch.OutOfMemoryError):
                compiled(x)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(compiled(x), fn(x))


def test_inputs_that_begin_anywhere() -> None:
    compiled = stator.compile(lambda x, y: torch.exp(x) * y + x)
    for off in (0, 1, 2, 3, 0):
        x, y = (rand(n, 5003, grad=False).cuda()[off : off + 4099] for n in range(2))
        torch.testing.assert_close(compiled(x, y), torch.exp(x) * y + x)


def test_calls_follow_the_stream_that_is_current() -> None:
    compiled = stator.compile(lambda x: (x * 2 + 1).sum(0))
    x = torch.ones(4096, 4096, device="cuda")
    compiled(x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)
        got = compiled(x)
    side.synchronize()
    assert bool((got == 7 * 4096).all()), "the kernel ran before the work that its stream had"


def test_a_step_of_training_never_leaves_the_host_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds that attention keeps for its backward lie on the CPU, whatever its meta kernel says."""
    left: list[str] = []
    make = native.make_boxed

    def noting(module: Any) -> Any:
        plain = make(module)
        return lambda args: left.append(str(module.graph)) or plain(args)

    monkeypatch.setattr(native, "make_boxed", noting)
    model = Block().cuda()
    plain = Block().cuda()
    plain.load_state_dict(model.state_dict())
    compiled = stator.compile(model)
    for seed in range(4):
        x = rand(seed, 2, 10, 64, grad=False).cuda()
        for m, call in ((plain, plain), (model, compiled)):
            m.zero_grad()
            call(x).square().mean().backward()
        for p, q in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=5e-3, atol=5e-4)
    assert not left


# -- as CUDA graphs


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Captures that were made, and how often each was replayed."""
    made: list[Any] = []

    class Counted(cuda_graphs.Capture):
        replays = 0

        def __init__(self, run: Any, inputs: Any) -> None:
            super().__init__(run, inputs)
            made.append(self)

        def replay(self) -> None:
            self.replays += 1
            super().replay()

    monkeypatch.setattr(cuda_graphs.Replayed.__init__, "__defaults__", (Counted, (), "graph"))
    return made


def _train(model: nn.Module, call: Any, x: Tensor, *, keep: bool) -> Tensor:
    loss = call(x).square().mean()
    if not keep:
        model.zero_grad(set_to_none=True)
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            p -= 0.05 * p.grad
    return loss.detach()


@pytest.mark.parametrize("keep", [False, True], ids=["new gradients", "gradients are added up"])
def test_training_as_cuda_graphs(captures: list[Any], keep: bool) -> None:
    torch.manual_seed(0)
    plain, other = Block().cuda(), Block().cuda()
    other.load_state_dict(plain.state_dict())
    with Generated() as seen:
        compiled = stator.compile(other, mode="reduce-overhead")
        losses: list[tuple[Tensor, Tensor]] = []
        for seed in range(12):
            x = rand(seed, 2, 10, 64, grad=False).cuda()
            one, two = _train(plain, plain, x, keep=keep), _train(other, compiled, x, keep=keep)
            losses.append((two, one))
            torch.testing.assert_close(two, one, rtol=2e-3, atol=1e-5)
    for two, one in losses:
        torch.testing.assert_close(two, one, rtol=2e-3, atol=1e-5)
    for (name, p), q in zip(plain.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=5e-3, atol=1e-3, msg=lambda m, name=name: f"{name}: {m}")
    assert not seen.refused, seen.refused
    assert len(captures) >= 2 and sum(c.replays for c in captures) >= 17


def test_results_stay_and_forwards_come_before_backwards(captures: list[Any]) -> None:
    w = rand(0, 64, 64).cuda().requires_grad_()
    fn = lambda x, w: torch.tanh(x @ w).softmax(-1)  # noqa: E731
    compiled = stator.compile(fn, mode="reduce-overhead")
    kept = []
    for seed in range(6):
        inputs = [rand(10 * seed + n, 16, 64, grad=False).cuda() for n in range(3)]
        outs = [compiled(x, w) for x in inputs]
        for x, out in zip(inputs, outs, strict=True):
            want = fn(x, w)
            torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
            (got,) = torch.autograd.grad(out.square().sum(), w)
            (right,) = torch.autograd.grad(want.square().sum(), w)
            torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-4)
            kept += [(out, out.detach().clone()), (got, got.clone())]
    assert all(torch.equal(value, copy) for value, copy in kept), "a result of an earlier call was written to"
    assert captures


def test_random_numbers_as_without_a_cuda_graph(captures: list[Any]) -> None:
    def draws(mode: str) -> list[Tensor]:
        compiled = stator.compile(lambda x: F.dropout(torch.sin(x), 0.5) * 2, mode=mode)
        torch.manual_seed(7)
        found = []
        for seed in range(6):
            found.append(compiled(rand(seed, 200, 300, grad=False).cuda()))
            found.append(torch.rand(5, device="cuda"))
        return found

    one = draws("max-autotune-no-cudagraphs")
    assert not captures
    other = draws("reduce-overhead")
    assert all(map(torch.equal, one, other))
    assert len({float(t.sum()) for t in one[::2]}) == 6
    assert captures and captures[0].replays >= 3


def test_a_parameter_that_moves(captures: list[Any]) -> None:
    model = nn.Linear(64, 32).cuda()
    compiled = stator.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for seed in range(9):
            if seed in (3, 6):
                model.weight.data = rand(seed, 32, 64, grad=False).cuda()
            x = rand(seed, 8, 64, grad=False).cuda()
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert 3 <= len(captures) <= 5


def test_streams_of_cuda_graphs(captures: list[Any]) -> None:
    fn = lambda x: torch.softmax(x * 2 + 1, -1).sum(0)  # noqa: E731
    compiled = stator.compile(fn, mode="reduce-overhead")
    streams = [torch.cuda.Stream() for _ in range(3)]
    inputs = [torch.randn(1 << 12, 256, device="cuda") for _ in range(15)]
    torch.cuda.synchronize()
    results = []
    for index, x in enumerate(inputs):
        with torch.cuda.stream(streams[index % 3]):
            results.append(compiled(x))
    torch.cuda.synchronize()
    for x, got in zip(inputs, results, strict=True):
        torch.testing.assert_close(got, fn(x))
    assert sum(c.replays for c in captures) >= 10
