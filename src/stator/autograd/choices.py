"""What torch does by the device, done for the real device while stand-ins are on none.

Python code that asks a stand-in for its device is told the real one; numbers that it makes tensors of keep their
values.

`scaled_dot_product_attention` is written in C++ in terms of one of several kernels, chosen by what the device has.
On stand-ins it would always take the slow one. Here the choice is asked for with tensors on the real device.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .standins import CPU, MetaStandIns
from .symbols import is_symbolic
from .traced_graph import TracedGraph

aten = torch.ops.aten
_choose: Any = torch._fused_sdp_choice
_leave_autocast = torch.amp.autocast_mode._exit_autocast
_FLASH = 1  # SDPBackend::flash_attention
_OWN_FOLDERS = (torch.__path__[0], __file__.rsplit("autograd", 1)[0])


class DeviceWanted(Exception):
    """Autocast goes by the device, or an operator compares devices; the stand-ins have none."""


class Choices(TorchFunctionMode):
    """Stands on torch's stack of function modes while a function is traced."""

    def __init__(self, traced: TracedGraph, *, lines: bool) -> None:
        super().__init__()
        self._traced = traced
        self._deviceless = isinstance(traced.stand_ins, MetaStandIns)
        self._lines = lines  # find the user's line here; a graph knows it already

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._deviceless and torch._C._is_any_autocast_enabled() and func is not _leave_autocast:
            raise DeviceWanted
        if self._lines:
            self._traced.at_line(_user_line())
        answer = self._ANSWERS.get(func)
        if answer is None and self._deviceless:
            answer = self._FOR_THE_DEVICE.get(func)
        if answer is not None:
            return answer(self, func, *args, **(kwargs or {}))
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if self._deviceless and "meta device" in str(error).lower():
                raise DeviceWanted from error
            raise

    def _device(self, func: Any, tensor: Tensor) -> torch.device:
        return CPU

    def _indexed(self, func: Any, tensor: Tensor, index: Any, *value: Any) -> Any:
        """Lists of numbers would become tensors without data."""
        items = index if isinstance(index, tuple) else (index,)
        items = tuple([torch.tensor(_positions(item)) if _all_numbers(item) else item for item in items])
        return func(tensor, items if isinstance(index, tuple) else items[0], *value)

    def _tensor(self, func: Any, data: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
        """Symbolic numbers would become known ones, and the graph good for these alone."""
        numbers = _numbers_in(data)
        if options or not any(map(is_symbolic, numbers)):
            return func(data, dtype=dtype, device=device, **options)
        if dtype is None:
            dtype = functools.reduce(torch.promote_types, map(_dtype_of, numbers))

        def made(part: Any) -> Tensor:
            if isinstance(part, (list, tuple)):
                return torch.stack([made(item) for item in part])
            return torch.scalar_tensor(part, dtype=dtype, device=device)

        return made(data)

    def _attention(
        self,
        func: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        tensors: Any = (query, key, value, attn_mask)
        with torch._C._DisableTorchDispatch():
            real: Any = [None if t is None else self._real(t) for t in tensors]
            chosen = _choose(*real, dropout_p, is_causal, **options)
        if chosen != _FLASH:
            return func(*tensors, dropout_p, is_causal, **options)
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            nothing = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = nothing.masked_fill_(attn_mask.logical_not(), -torch.inf)
        flash = aten._scaled_dot_product_flash_attention_for_cpu.default
        return flash(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]

    def _one_hot(self, func: Any, tensor: Tensor, num_classes: int = -1) -> Any:
        """On tensors without data it compares, with other strides, and takes any number for a class."""
        if num_classes <= 0 or tensor.dtype is not torch.int64:
            return func(tensor, num_classes)
        nothing = torch.zeros([*tensor.shape, num_classes], dtype=torch.int64, device=tensor.device)
        return nothing.scatter(-1, tensor.unsqueeze(-1), 1)

    def _interpolate(
        self,
        func: Any,
        input: Tensor,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
        antialias: bool = False,
    ) -> Any:
        """Its operators are written in C++ in terms of others, which take sizes, and ask the input for known ones."""
        dims = input.dim() - 2
        op = _UPSAMPLE.get((mode, dims))
        wanted, scales = _spatial(input.shape[2:], size, scale_factor, bool(recompute_scale_factor))
        if not any(map(is_symbolic, input.shape)) or op is None or wanted is None or antialias:
            more = (align_corners, recompute_scale_factor, antialias)
            return func(input, size, scale_factor, mode, *more)
        corners = [] if mode == "nearest" else [bool(align_corners)]
        return op(input, wanted, *corners, *scales)

    _FOR_THE_DEVICE: ClassVar[dict[Any, Any]] = {
        torch.nn.functional.scaled_dot_product_attention: _attention,
        torch.Tensor.device.__get__: _device,
    }
    _ANSWERS: ClassVar[dict[Any, Any]] = {
        torch.Tensor.__getitem__: _indexed,
        torch.Tensor.__setitem__: _indexed,
        torch.tensor: _tensor,
        torch.nn.functional.one_hot: _one_hot,
        torch.nn.functional.interpolate: _interpolate,
    }

    def _real(self, tensor: Tensor) -> Tensor:
        return self._traced.stand_ins.real(tensor).requires_grad_(tensor.requires_grad)


def _numbers_in(data: Any) -> list[Any]:
    return [n for item in data for n in _numbers_in(item)] if isinstance(data, (list, tuple)) else [data]


_UPSAMPLE = {
    ("nearest", 1): aten.upsample_nearest1d.default,
    ("nearest", 2): aten.upsample_nearest2d.default,
    ("nearest", 3): aten.upsample_nearest3d.default,
    ("linear", 1): aten.upsample_linear1d.default,
    ("bilinear", 2): aten.upsample_bilinear2d.default,
    ("trilinear", 3): aten.upsample_trilinear3d.default,
    ("bicubic", 2): aten.upsample_bicubic2d.default,
}


def _spatial(shape: Sequence[Any], size: Any, scale: Any, anew: bool) -> tuple[list[Any] | None, list[Any]]:
    """The sizes that `interpolate` makes, and the scales that its operators get. None: torch says, or raises."""
    dims = len(shape)
    sizes = size if isinstance(size, (list, tuple)) else [size] * dims
    scales = scale if isinstance(scale, (list, tuple)) else [scale] * dims
    if (size is None) == (scale is None) or len(sizes) != dims or len(scales) != dims or anew:
        return None, []
    if scale is None:
        return [*sizes], [None] * dims
    if not all(type(factor) in (int, float) and factor > 0 and factor == int(factor) for factor in scales):
        return None, []
    return [n * int(factor) for n, factor in zip(shape, scales, strict=True)], [float(factor) for factor in scales]


def _dtype_of(number: Any) -> torch.dtype:
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    return torch.int64 if isinstance(number, (int, torch.SymInt)) else torch.get_default_dtype()


def _all_numbers(item: Any) -> bool:
    return isinstance(item, list) and all(
        _all_numbers(part) if isinstance(part, list) else isinstance(part, (int, bool)) for part in item
    )


def _positions(item: list[Any]) -> list[Any]:
    """A list of flags says which positions; how many there are must be known without data."""
    flags = item and all(isinstance(part, bool) for part in item)
    return [position for position, flag in enumerate(item) if flag] if flags else item


def _user_line() -> str:
    """Where in the user's program the operation stands: the innermost frame outside of torch and of stator."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN_FOLDERS):
            return f'File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}'
        frame = frame.f_back
    return ""
