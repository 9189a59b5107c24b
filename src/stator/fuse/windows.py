"""Decompositions of pooling over windows and of enlarging: ATen's loops over them take one number at a time.

Enters: an operator's arguments. Leaves: its results, of slices and views, which are index maps for kernels. Windows of
sizes that are known, with few numbers each; the rest is left to ATen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
MOST = 16  # numbers in a window: each is a load of the kernel
_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    return (sizes[0], sizes[-1])


def _is_image(x: Tensor) -> bool:
    """Height and width come last in memory, too: the results of others have other strides."""
    known = all(isinstance(size, int) for size in (*x.shape, *x.stride()))
    return known and x.dim() in (3, 4) and x.dtype in _TYPES and x.is_contiguous() and x.numel() > 0


def _windows(x: Tensor, size: Sequence[int], step: Sequence[int]) -> Iterator[tuple[int, int, Tensor]]:
    """For each place in a window: what lies there, of all windows."""
    (rows, columns), (down, right) = _pair(size), _pair(step or size)
    high, wide = ((n - k) // s + 1 for n, k, s in zip(x.shape[-2:], (rows, columns), (down, right), strict=True))
    for i, j in itertools.product(range(rows), range(columns)):
        part = aten.slice.Tensor(x, -2, i, i + (high - 1) * down + 1, down)
        yield i, j, aten.slice.Tensor(part, -1, j, j + (wide - 1) * right + 1, right)


def _fits(x: Tensor, size: Sequence[int], padding: Sequence[int], ceil: bool) -> bool:
    rows, columns = (k - 2 * p for k, p in zip(_pair(size), _pair(padding), strict=True))
    few = _is_image(x) and not ceil and size[0] * size[-1] <= MOST
    return few and rows <= x.shape[-2] and columns <= x.shape[-1]


def _avg_pool(
    x: Tensor, size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    if not _fits(x, size, padding, ceil_mode) or any(padding) or divisor_override == 0:
        return NotImplemented
    rows, columns = _pair(size)
    wide = x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x
    total: Tensor | None = None
    for _, _, part in _windows(wide, size, stride):
        total = part if total is None else total + part
    assert total is not None
    return (total / (divisor_override or rows * columns)).to(x.dtype)


def _max_pool(
    x: Tensor, size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """The largest, and where it is: of equal ones the first, of NaNs the last."""
    if not _fits(x, size, padding, ceil_mode) or any(n != 1 for n in dilation) or _pair(size) == (1, 1):
        return NotImplemented
    (down, right), (above, left), length = _pair(stride or size), _pair(padding), x.shape[-1]
    padded = aten.constant_pad_nd.default(x, [left, left, above, above], -math.inf) if any(padding) else x
    best: Any = None
    where: Any = None
    for i, j, part in _windows(padded, size, stride):
        if best is None:
            rows = torch.arange(part.shape[-2], device=x.device)[:, None] * down - above
            columns = torch.arange(part.shape[-1], device=x.device) * right - left
            best, where = part, rows.clamp(min=0) * length + columns.clamp(min=0)
            corner = rows * length + columns
            continue
        better = (part > best) | (part != part)
        best = torch.where(better, part, best)
        where = torch.where(better, corner + (i * length + j), where)
    return best, where


def _upsample(x: Tensor, size: Sequence[int], scales_h: float | None = None, scales_w: float | None = None) -> Any:
    """By whole numbers of which ATen's arithmetic is exact."""
    if not _is_image(x) or x.dim() != 4 or any(n % m for n, m in zip(size, x.shape[-2:], strict=True)):
        return NotImplemented
    down, right = (n // m for n, m in zip(size, x.shape[-2:], strict=True))
    given = ((down, scales_h), (right, scales_w))
    if any(n not in (1, 2, 4, 8) or scale not in (None, n) for n, scale in given):
        return NotImplemented
    batch, channels, high, wide = x.shape
    seen = x[:, :, :, None, :, None].expand(batch, channels, high, down, wide, right)
    return seen.reshape(batch, channels, high * down, wide * right)


RULES: dict[Any, Callable[..., Any]] = {
    aten.avg_pool2d.default: _avg_pool,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.upsample_nearest2d.default: _upsample,
}
