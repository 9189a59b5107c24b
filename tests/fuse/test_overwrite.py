"""Kernels that write over what they read last: where that is sound, and that results are eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from native_check import compare
from torch import Tensor

from stator.fuse.loops import Buffer, Gemm, Index, Kernel, Launch, Value
from stator.fuse.overwrite import reads_before_it_writes

I0, I1 = Index.axis(0), Index.axis(1)
FLOAT = torch.float32


def kernel(values: Sequence[Value], inner: Sequence[int] = ()) -> Kernel:
    """Axes 0 and 1 of 8 points, three buffers."""
    outer = [axis for axis in (0, 1) if axis not in inner]
    return Kernel("k", [8, 8], outer, [*inner], [Buffer(f"b{n}", FLOAT) for n in range(3)], [*values])


def load(buffer: int, index: Index, *condition: int) -> Value:
    return Value("load", condition, FLOAT, (buffer, index))


def store(value: int, buffer: int, index: Index) -> Value:
    return Value("store", (value,), FLOAT, (buffer, index))


ROW_MAJOR = I0 * 8 + I1
READ = load(0, ROW_MAJOR)


def test_each_element_where_it_is_written() -> None:
    assert reads_before_it_writes(kernel([READ, store(0, 1, ROW_MAJOR)]), 0, 1)


def test_not_where_others_are_read() -> None:
    for index in (I1 * 8 + I0, ROW_MAJOR + 1, I0 * 8):
        values = [load(0, index), store(0, 1, ROW_MAJOR)]
        assert not reads_before_it_writes(kernel(values), 0, 1)


def test_not_where_a_condition_guards_the_read() -> None:
    condition = Value("const", (), torch.bool, True)
    assert not reads_before_it_writes(kernel([condition, load(0, ROW_MAJOR, 0), store(1, 1, ROW_MAJOR)]), 0, 2)


def test_not_where_a_later_result_reads_it_first() -> None:
    """It is loaded where it is first wanted: behind the first store."""
    values = [load(1, ROW_MAJOR), store(0, 2, ROW_MAJOR), READ, store(2, 1, ROW_MAJOR)]
    assert not reads_before_it_writes(kernel(values), 0, 1)
    assert reads_before_it_writes(kernel(values), 0, 3)


def test_a_later_result_may_use_what_was_loaded_before() -> None:
    values = [READ, store(0, 2, ROW_MAJOR), Value("neg", (0,), FLOAT), store(2, 1, ROW_MAJOR)]
    assert reads_before_it_writes(kernel(values), 0, 1)


def test_not_in_a_loop_that_a_later_one_follows() -> None:
    """x is stored in the first loop, and read again in the one behind the reduction."""
    total = Value("reduce", (0,), FLOAT, "sum")
    values = [READ, store(0, 1, ROW_MAJOR), total, Value("sub", (0, 2), FLOAT), store(3, 2, ROW_MAJOR)]
    rows = kernel(values, inner=[1])
    assert not reads_before_it_writes(rows, 0, 1)
    assert reads_before_it_writes(rows, 0, 4)


def test_not_where_the_text_reads_it_later() -> None:
    """The second result needs no reduction, so its loop is the first; the evaluator goes by the text."""
    total = Value("reduce", (0,), FLOAT, "sum")
    first = [load(2, ROW_MAJOR), total, Value("sub", (0, 1), FLOAT), store(2, 1, ROW_MAJOR)]
    rows = kernel([*first, READ, store(4, 2, ROW_MAJOR)], inner=[1])
    assert not reads_before_it_writes(rows, 0, 3)


def gemm_then(fn: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda x, w, b: fn(x @ w + b)


@pytest.mark.parametrize(
    "fn",
    [
        gemm_then(F.gelu),
        gemm_then(lambda y: torch.softmax(y, -1)),
        gemm_then(lambda y: torch.log_softmax(y, 0)),
        gemm_then(lambda y: F.layer_norm(y, y.shape[-1:])),
        gemm_then(lambda y: F.layer_norm(y, y.shape[-1:]) @ y.T.softmax(-1)),
        gemm_then(lambda y: (y.T.exp() @ y).tanh() + y.T.sum(1)),
        gemm_then(lambda y: y.view(3, 5, -1).transpose(0, 1).exp()),
    ],
)
def test_results_are_eager_s(fn: Callable[..., Tensor]) -> None:
    def make(seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(n, generator=generator, requires_grad=True) for n in ((15, 24), (24, 40), (40,))]

    compare(fn, make)


def test_a_product_lies_where_its_result_does() -> None:
    """A linear layer with an activation takes no memory but its result's."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.gelu(x @ w)

    seen = compare(fn, lambda seed: [torch.randn(16, 64), torch.randn(64, 64)], dynamic=False)
    (program,) = seen.programs
    product, launch = program.steps
    assert isinstance(product, Gemm) and isinstance(launch, Launch)
    assert product.out.buffer == launch.writes[0] == program.outputs[0].name
