"""Kernels that write over what they read last: where that is sound, and that results are eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from native_check import compare
from torch import Tensor

import stator
from stator.fuse.loops import Buffer, Call, Gemm, Index, Kernel, Launch, Value
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

    def make(seed: int) -> list[Tensor]:
        drawn = torch.Generator().manual_seed(seed)
        return [torch.randn(16, 64, generator=drawn), torch.randn(64, 64, generator=drawn)]

    seen = compare(fn, make, dynamic=False)
    (program,) = seen.programs
    product, launch = program.steps
    assert isinstance(product, Gemm) and isinstance(launch, Launch)
    assert product.out.buffer == launch.writes[0] == program.outputs[0].name


@pytest.mark.parametrize("rows", [64, 67])
def test_short_rows_lie_where_a_product_did(rows: int) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(torch.softmax(x @ w, -1), (6,))

    seen = compare(fn, lambda seed: [rand(seed, rows, 24), rand(seed + 9, 24, 6)], dynamic=False)
    product, launch = seen.programs[0].steps
    assert isinstance(product, Gemm) and product.out.buffer == launch.writes[0]


def rand(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def images(seed: int) -> list[Tensor]:
    return [rand(seed, 2, 8, 9, 10), rand(1, 8, 8, 3, 3), rand(2, 8, 8, 3, 3), rand(3, 8), rand(4, 8).abs() + 0.5]


def residual(x: Tensor, w: Tensor, v: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Two convolutions with batch norms in evaluation, and what they began with added."""
    y = F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var, mean, var))
    return F.relu(F.batch_norm(F.conv2d(y, v, mean, padding=1), mean, var) + x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_epilogues_lie_where_convolutions_did(dynamic: bool) -> None:
    seen = compare(residual, images, dynamic=dynamic)
    for program in seen.programs:
        made = {name for step in program.steps if isinstance(step, Call) for name in step.writes}
        large = {n for s in program.steps for n in s.writes if n in program.places and len(program.places[n].sizes) > 1}
        assert len(made) == 2 and large == made


def test_convolutions_that_others_want_stay_as_they_are() -> None:
    def returned(x: Tensor, w: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        y = F.conv2d(x, w)
        return y, y.relu()

    def seen_later(x: Tensor, w: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        y = F.conv2d(x, w)
        flat = y.flatten(1)
        return y.relu() + 1, flat @ flat.t()

    def turned(x: Tensor, w: Tensor, *rest: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=1).transpose(2, 3).contiguous().relu()

    def twice(x: Tensor, w: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        y = F.conv2d(x, w, padding=1)
        return y.sigmoid() * F.conv2d(y, v, padding=1).tanh() + y

    def sorted_later(x: Tensor, w: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        y = F.conv2d(x, w).relu()
        return torch.sort(y, -1)[0], y * 2

    for fn in (returned, seen_later, turned, twice, sorted_later):
        compare(fn, images)


def test_results_of_convolutions_of_earlier_calls_stay() -> None:
    """What a call gave is the caller's: the next call writes elsewhere."""
    compiled = stator.compile(residual, backend="native")
    results = [(compiled(*images(seed)), residual(*images(seed))) for seed in range(4)]
    for found, wanted in results:
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert compiled.stator.hits == 3


def test_convolutions_in_training() -> None:
    def make(seed: int) -> list[Tensor]:
        return [t.requires_grad_(number < 3) for number, t in enumerate(images(seed))]

    compare(residual, make, grads=True)
