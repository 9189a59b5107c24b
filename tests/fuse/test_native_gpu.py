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
from stator.backends import native
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
