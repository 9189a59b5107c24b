"""Programs with the native backend: results, gradients and strides as eager's, and what was fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native_check import compare
from torch import Tensor, nn

import stator
from stator.fuse.loops import Launch


def rand(seed: int, *shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[int], Sequence[Tensor]]:
    return lambda seed: [rand(100 * seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


def progression(x: Tensor, start: float, stop: float, step: float, dtype: torch.dtype | None = None) -> Tensor:
    return torch.arange(start, stop, step, dtype=dtype, device=x.device)


def mlp(x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
    return x + F.linear(F.gelu(F.linear(x, w, b)), v, c)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / 4.0
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, correction=0)
    return (x - mean) / torch.sqrt(var + 1e-5) * w.view(1, -1, 1, 1) + b.view(1, -1, 1, 1)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Sequence[Any]]]] = {
    "chain": (lambda x, y: torch.tanh(x * y + 1).exp() / (x * x + 2), tensors((5, 7), (5, 7))),
    "broadcast": (lambda x, y: x * y + y, tensors((5, 1, 7), (3, 1))),
    "transposed": (lambda x, y: x.t() + y, tensors((33, 17), (17, 33))),
    "softmax": (lambda x: torch.softmax(x, -1), tensors((4, 33))),
    "softmax of columns": (lambda x: torch.softmax(x, 0), tensors((33, 5))),
    "log softmax": (lambda x: torch.log_softmax(x * 3, -1), tensors((4, 100))),
    "layer norm": (lambda x, y, w, b: F.layer_norm(x + y, (64,), w, b), tensors((2, 9, 64), (2, 9, 64), (64,), (64,))),
    "rms norm": (lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, tensors((6, 48), (48,))),
    "batch norm": (batch_norm, tensors((4, 3, 5, 6), (3,), (3,))),
    "mlp": (mlp, tensors((2, 9, 16), (40, 16), (40,), (16, 40), (16,))),
    "attention": (attention, tensors((2, 3, 8, 16), (2, 3, 8, 16), (2, 3, 8, 16))),
    "sums": (lambda x: (x.sum(), x.sum(0), x.mean(1), x.amax(-1)), tensors((6, 10, 20))),
    "cat and pad": (lambda x, y: F.pad(torch.cat([x, y * 2], 1), (1, 2)), tensors((3, 4), (3, 5))),
    "slices": (lambda x: x[:, 1:4] * x[:, 2:5] + x[:, :3], tensors((6, 8))),
    "embedding": (
        lambda w, i: F.embedding(i, w) * 2,
        lambda s: [rand(s, 10, 6), torch.randint(0, 10, (4, 3), generator=torch.Generator().manual_seed(s))],
    ),
    "cross entropy": (
        lambda x, t: F.cross_entropy(x, t),
        lambda s: [rand(s, 12, 9), torch.randint(0, 9, (12,), generator=torch.Generator().manual_seed(s))],
    ),
    "bfloat16": (lambda x, y: F.silu(x) * y, tensors((5, 40), (5, 40), dtype=torch.bfloat16)),
    "bfloat16 norm": (lambda x, w: F.layer_norm(x, (40,), w), tensors((5, 40), (40,), dtype=torch.bfloat16)),
    "integers": (lambda i: (i * 3 + 1, i // 4, (i > 2).sum()), lambda s: [torch.arange(-20, 20) + s]),
    "shifted": (lambda x: (h := torch.tanh(x) * 2) * 3 + F.pad(h, (0, 0, 1, -1)), tensors((3, 6, 4))),
    "progression": (
        lambda x: (
            (x * progression(x, 0, 8, 2.0, torch.int64).float() + progression(x, 0, 2, 0.5)) * progression(x, 0, 4, 1)
        ),
        tensors((3, 4)),
    ),
    "scans": (lambda x: (x.cumsum(0) * 2, (x + 1).logcumsumexp(1)), tensors((5, 9))),
    "conv": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        tensors((2, 3, 8, 8), (4, 3, 3, 3), (4,)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_are_eagers(name: str) -> None:
    fn, make = PROGRAMS[name]
    seen = compare(fn, make)
    assert seen.kernels > 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_symbolic_sizes(name: str) -> None:
    fn, make = PROGRAMS[name]
    compare(fn, make, dynamic=True)


def test_functions_of_float64_are_fused() -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        a = x.sigmoid()
        powers = (a + 0.5) ** 2.7, torch.exp(a), torch.expm1(a), torch.log1p(a), torch.sinh(a), torch.tanh(y)
        return *powers, y.sin(), torch.tan(a), torch.erf(y), torch.atan2(x, y), torch.acos(a * 0.9)

    seen = compare(fn, tensors((9, 33), (9, 33), dtype=torch.float64))
    assert seen.calls == [] and seen.kernels == 3


@pytest.mark.parametrize("dynamic", [None, True])
def test_nothing_with_strides_of_nothing(dynamic: bool | None) -> None:
    """As `nonzero` gives it: all positions are the same one, and there is none."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.float() + 1, x.float().sum() + y, x.t() * 2

    def make(seed: int) -> list[Tensor]:
        columns = 3 + seed if dynamic else 3
        return [torch.empty_strided((0, columns), (1, 0), dtype=torch.int64), torch.arange(columns) / 7]

    assert compare(f, make, grads=False, dynamic=dynamic).kernels > 0


def test_batch_norm_in_training_keeps_its_statistics() -> None:
    """The norm, the residual and the relu are one kernel; running averages are written as eager writes them."""
    mine, eager = nn.BatchNorm2d(6), nn.BatchNorm2d(6)
    compiled = stator.compile(lambda x: F.relu(mine(x) + x), backend="native")
    for seed in range(3):
        x, y = rand(seed, 4, 6, 5, 5), rand(seed, 4, 6, 5, 5)
        got, want = compiled(x), F.relu(eager(y) + y)
        got.square().sum().backward()
        want.square().sum().backward()
        pairs = [(got, want), (x.grad, y.grad), (mine.running_mean, eager.running_mean)]
        pairs += [(mine.running_var, eager.running_var), (mine.weight.grad, eager.weight.grad)]
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert int(mine.num_batches_tracked) == 3
    assert len(compiled.stator.entries) == 1


def test_a_block_is_few_kernels() -> None:
    """Bias and gelu are one kernel, bias, residual and norm another, and nothing goes through the dispatcher."""

    def block(x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor, g: Tensor) -> Tensor:
        return F.layer_norm(mlp(x, w, b, v, c), (16,), g)

    shapes = ((9, 16), (40, 16), (40,), (16, 40), (16,), (16,))
    seen = compare(block, lambda s: [t.detach() for t in tensors(*shapes)(s)])
    assert (seen.kernels, seen.gemms, seen.calls) == (2, 2, [])


def test_axes_run_as_one_around_another_loop() -> None:
    """Height and width of an image, with the channels between them in the order of the loops."""
    seen = compare(lambda x: x.contiguous(memory_format=torch.channels_last), tensors((3, 5, 6, 7)))
    kernels = [step.kernel for step in seen.programs[0].steps if isinstance(step, Launch)]
    assert [kernel.extents for kernel in kernels] == [[3, 5, 42]]


def test_the_gradient_of_a_loss_stays_with_its_rows() -> None:
    """The gradient of cross entropy is one kernel along rows, also with a reshape behind it."""

    def loss(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, w, b).view(-1, 30), t)

    def make(seed: int) -> list[Tensor]:
        return [*tensors((2, 6, 8), (30, 8), (30,))(seed), torch.arange(12) % 30]

    seen = compare(loss, make)
    kernels = [step.kernel for step in seen.programs[1].steps if isinstance(step, Launch)]
    along = [k.extents[k.inner[0]] for k in kernels if any(name.startswith("where") for name in k.origins)]
    assert along == [30]


def test_index_errors_are_eagers() -> None:
    def pick(w: Tensor, i: Tensor) -> Tensor:
        return F.embedding(i, w) + 1

    compiled = stator.compile(pick, backend="native")
    w = rand(0, 10, 6, grad=False)
    for _ in range(3):
        assert torch.equal(compiled(w, torch.tensor([1, 9])), pick(w, torch.tensor([1, 9])))
    with pytest.raises(IndexError) as mine:
        compiled(w, torch.tensor([1, 10]))
    with pytest.raises(IndexError) as eager:
        pick(w, torch.tensor([1, 10]))
    assert str(mine.value) == str(eager.value)
    assert torch.equal(compiled(w, torch.tensor([1, 9])), pick(w, torch.tensor([1, 9])))


def test_inputs_that_begin_elsewhere() -> None:
    """Offsets, and rows with gaps between them, are seen in each call."""

    def f(x: Tensor) -> Tensor:
        return torch.relu(x) * 2 + 1

    compiled = stator.compile(f, backend="native")
    base = rand(0, 101, grad=False)
    for view in (base[1:33], base[2:34], base[5:37], base[:64:2], base[32:64]):
        assert torch.equal(compiled(view), f(view))


def test_floats_that_are_computed_from_sizes() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        filled = torch.full_like(x, y.shape[0] ** 0.75)
        return torch.tanh(x * y.shape[0] ** 0.5) + x / (x.shape[0] ** 0.25) * filled

    def make(seed: int) -> Sequence[Tensor]:
        return [rand(seed, 4 + seed, 3), rand(seed, 5 + seed, grad=False)]

    seen = compare(fn, make, dynamic=True)
    assert seen.kernels >= 1
