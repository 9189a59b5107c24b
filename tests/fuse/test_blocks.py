"""GEMMs and what follows them, block by block: eager's results, the same bits for any number of threads, and only where
the rows of one step are all that the next one needs of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native_check import Seen, by_evaluator, compare
from torch import Tensor

import stator
from stator.fuse import blocks
from stator.fuse.loops import Blocked, Gemm

SIZES = ("LEAST_BYTES", "LEAST_ROWS", "LEAST_COLUMNS")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks for small tensors, too."""
    for name in SIZES:
        monkeypatch.setattr(blocks, name, 1)
    monkeypatch.setattr(blocks, "MOST_BYTES", 1 << 13)
    monkeypatch.setattr(blocks, "MORE_BYTES", 1 << 30)
    monkeypatch.setattr(blocks, "ENTRY_BYTES", 1 << 10)


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed matrices may take more than blocks save."""
    monkeypatch.setattr(blocks, "MORE_BYTES", 1 << 30)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def blocked(seen: Seen) -> list[Blocked]:
    return [step for program in seen.programs for step in program.steps if isinstance(step, Blocked)]


def tensors(*shapes: Sequence[int]) -> Callable[[int], list[Tensor]]:
    def make(seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(*shape, generator=generator) for shape in shapes]

    return make


def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return x + F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w, b) + x, (x.shape[-1],))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v


def test_an_mlp_runs_in_blocks(roomy: None) -> None:
    seen = compare(mlp, tensors((1024, 128), (512, 128), (512,), (128, 512), (128,)), grads=False)
    first, *_ = blocked(seen)
    assert first.units % first.each == 0 and first.each < first.units and first.strips and first.packs
    (program,) = seen.programs
    assert seen.gemms == 2
    inputs = tensors((1024, 128), (512, 128), (512,), (128, 512), (128,))(7)
    (got,) = by_evaluator(program, [inputs[int(name.rsplit("_")[-1]) - 1] for name in program.inputs])
    torch.testing.assert_close(got, mlp(*inputs), rtol=1e-4, atol=1e-4)


def test_packed_matrices_take_no_more_than_blocks_save() -> None:
    """Of 1024 rows 2 MiB need not be stored, and packing asks for 8 MiB a matrix; of 16384 rows 32 MiB."""

    def long(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        return mlp(x, w1, b1, w2, b2)

    weights = [(512, 128), (512,), (128, 512), (128,)]
    assert not blocked(compare(mlp, tensors((1024, 128), *weights), grads=False))
    assert blocked(compare(long, tensors((16384, 128), *weights), grads=False))


def test_products_of_nothing_are_no_blocks(always: None) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ w) @ w

    assert not blocked(compare(fn, tensors((0, 16), (16, 16)), grads=False))


def test_attention_runs_matrix_by_matrix() -> None:
    seen = compare(attention, tensors(*[(2, 8, 128, 64)] * 3), grads=False)
    (block,) = blocked(seen)
    assert sum(isinstance(step, Gemm) for step in block.steps) == 2 and len(block.strips) >= 2 and not block.packs


def test_what_others_want_stays_in_memory() -> None:
    """The product is a result as well: a block may use it, but it is no strip."""

    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x @ w
        z = torch.relu(y) + 1
        return y, z, z.softmax(-1) @ w.t()

    seen = compare(both, tensors((2048, 64), (64, 256)), grads=False)
    assert all(not set(block.strips) & {out.name for out in seen.programs[0].outputs} for block in blocked(seen))


@pytest.mark.parametrize("function", [mlp, normed, attention])
def test_any_number_of_threads_gives_the_same_bits(function: Any, threads: Callable[[int], None], roomy: None) -> None:
    shapes: dict[Any, list[tuple[int, ...]]] = {
        mlp: [(1024, 128), (512, 128), (512,), (128, 512), (128,)],
        normed: [(2048, 256), (256, 256), (256,)],
        attention: [(2, 8, 128, 64)] * 3,
    }
    threads(2)
    seen = compare(function, tensors(*shapes[function]), grads=False)
    assert blocked(seen)
    compiled = stator.compile(function, backend="native")
    for seed in range(3):
        args, results = tensors(*shapes[function])(seed), []
        for count in (2, 1, 3, 2):
            threads(count)
            results.append(compiled(*args))
        assert all(torch.equal(result, results[0]) for result in results)
        torch.testing.assert_close(results[0], function(*args), rtol=1e-4, atol=1e-4)


def random_program(seed: int) -> tuple[Callable[..., Any], Callable[[int], list[Tensor]]]:
    """Products with something between them, on sizes that come out even or not."""
    r = random.Random(seed)
    rows, depth, columns = r.choice((16, 24, 60, 62, 97, 128)), r.choice((1, 5, 16, 33)), r.choice((1, 8, 17, 48))
    batch = r.choice((0, 0, 2, 6, 7))
    bias, residual, strided = r.random() < 0.7, r.random() < 0.5, r.random() < 0.3
    middle = r.choice((torch.relu, F.gelu, torch.tanh, lambda y: y.softmax(-1), lambda y: y - y.mean(-1, True)))
    turned, second, both = r.random() < 0.3, r.random() < 0.6, r.random() < 0.2
    front = (batch,) if batch else ()

    def fn(x: Tensor, w: Tensor, b: Tensor, z: Tensor, v: Tensor) -> Any:
        y = (x[..., ::2] if strided else x) @ (w.transpose(-1, -2) if turned else w)
        between = y
        if bias:
            y = y + b
        y = middle(y)
        if residual:
            y = y * z
        if second:
            y = torch.sigmoid(y @ v) * 2
        return (y, between) if both else y

    w = (columns, depth) if turned else (depth, columns)
    x = (*front, rows, depth * 2 if strided else depth)
    return fn, tensors(x, (*front, *w), (columns,), (*front, rows, columns), (*front, columns, 5))


@pytest.mark.usefixtures("always")
def test_random_programs() -> None:
    found = 0
    for seed in range(30):
        stator.reset()  # they share their code
        fn, make = random_program(seed)
        found += len(blocked(compare(fn, make, grads=seed % 3 == 0)))
    assert found > 5


@pytest.mark.usefixtures("always")
def test_rows_that_mix_are_no_blocks() -> None:
    """What follows wants all rows of the product at once."""

    def over_rows(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).softmax(0) * 2

    def moved(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return torch.relu(torch.cat([y[1:], y[:1]]))

    def other_operand(x: Tensor, w: Tensor) -> Tensor:
        return w @ (x @ w)

    for fn, shapes in ((over_rows, [(64, 16), (16, 8)]), (moved, [(64, 16), (16, 8)]), (other_operand, [(16, 16)] * 2)):
        assert not blocked(compare(fn, tensors(*shapes), grads=False))


def test_symbolic_sizes_run_whole() -> None:
    def make(seed: int) -> list[Tensor]:
        return tensors((1024 + 8 * seed, 128), (512, 128), (512,), (128, 512), (128,))(seed)

    assert not blocked(compare(mlp, make, grads=False, dynamic=True))


def test_weights_that_change_are_read_anew() -> None:
    """A block packs its matrix in each call: whatever way it was written to."""
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128))
    layer.requires_grad_(False)
    compiled = stator.compile(layer, backend="native")
    x = torch.randn(2048, 128)
    changes: list[Callable[[Tensor], Any]] = [
        lambda w: None,
        lambda w: w.mul_(2),
        lambda w: w.data.add_(1),
        lambda w: w.numpy().fill(0.25),
        lambda w: setattr(w, "data", torch.randn_like(w)),
        lambda w: w.set_(torch.randn_like(w)),
        lambda w: setattr(w, "data", torch.randn(w.shape[1], w.shape[0]).t()),
    ]
    for change in changes:
        for parameter in (layer[0].weight, layer[2].weight):
            change(parameter)
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-3)
