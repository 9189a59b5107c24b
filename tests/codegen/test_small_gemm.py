"""Products with few rows: as exact as the BLAS, for every layout, and the same for any split of the work."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import pytest
import torch

from stator.codegen import jit, small_gemm
from stator.codegen.kernels import vector_width


def run(a: torch.Tensor, b: torch.Tensor, splits: int) -> torch.Tensor:
    """a @ b by machine code, the units in several ranges; gaps between the result's rows stay as they are."""
    rows, k = a.shape
    columns = b.shape[1]
    by_rows = b.stride(1) == 1
    shape = small_gemm.shape_for(rows, columns, k, by_rows=by_rows, width=vector_width())
    assert shape is not None
    code = jit.compile_ir(small_gemm.write(shape, "kernel"), ["kernel"])
    out = torch.full((rows, columns + 5), 7.0)
    pointers = (ctypes.c_void_p * 3)(out.data_ptr(), a.data_ptr(), b.data_ptr())
    numbers = [k, columns + 5, a.stride(0), b.stride(0) if by_rows else b.stride(1), 0, 0, 0, columns]
    sizes = (ctypes.c_int64 * 8)(*numbers)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 2)
    count = small_gemm.units(shape, columns)
    edges = [count * i // splits for i in range(splits + 1)]
    for lo, hi in pairwise(edges):
        function(code.address("kernel"))(ctypes.addressof(pointers), ctypes.addressof(sizes), lo, hi, None, None)
    assert bool((out[:, columns:] == 7).all())
    return out[:, :columns]


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(("k", "columns"), [(1, 16), (16, 24), (37, 40), (256, 66), (300, 17)])
def test_it_is_as_exact_as_the_blas(rows: int, k: int, columns: int, by_rows: bool) -> None:
    torch.manual_seed(rows * k + columns)
    a = torch.randn(rows, k + 3)[:, :k]
    b = torch.randn(k, columns) if by_rows else torch.randn(columns, k).t()
    got, again = run(a, b, 1), run(a, b, 3)
    assert torch.equal(got, again)
    exact = a.double() @ b.double()
    mine, eager = ((t.double() - exact).abs().max() for t in (got, a @ b))
    assert mine <= 3 * eager + 1e-6 * exact.abs().max()


@pytest.mark.parametrize("rows", [9, 10, 16, 31])
@pytest.mark.parametrize(("k", "columns"), [(2, 8), (37, 12), (300, 40)])
def test_more_rows_are_taken_in_groups(rows: int, k: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_gemm, "MORE_ROWS", ((0, 32),))
    if vector_width() < 16:  # left to the BLAS
        assert small_gemm.shape_for(rows, columns, k, by_rows=False, width=vector_width()) is None
        return
    test_it_is_as_exact_as_the_blas(rows, k, columns, False)


def test_what_is_left_to_the_blas() -> None:
    assert small_gemm.shape_for(9, 64, 64, by_rows=True, width=16) is None
    assert small_gemm.shape_for(9, 64, 64, by_rows=False, width=8) is None
    assert small_gemm.shape_for(9, 62, 64, by_rows=False, width=16) is None
    assert small_gemm.shape_for(2, 8, 64, by_rows=True, width=16) is None
    for rows, k, ours in ((9, 64, False), (16, 1 << 12, True), (17, 1 << 12, False), (24, 1 << 14, True)):
        assert (small_gemm.shape_for(rows, 64, k, by_rows=False, width=16) is not None) == ours
