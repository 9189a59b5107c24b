"""Decompositions: ATen operators said in terms of a small set, before forward and backward are cut apart.

Enters: an operator's arguments, on tensors without data. Leaves: its results, computed by operators that kernels
compute (`lower`) or that are claimed by a library call. What has no row here and none there is one call through the
dispatcher.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import random_numbers, windows

aten = torch.ops.aten
Decomposition = Callable[..., Any]
RULES: dict[Any, Decomposition] = {}


def rule(*ops: Any) -> Callable[[Decomposition], Decomposition]:
    def add(function: Decomposition) -> Decomposition:
        for op in ops:
            RULES[op] = function
        return function

    return add


def _wide(x: Tensor) -> Tensor:
    """Narrow floats are computed with in float32."""
    return x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x


def _fused(*tensors: Any) -> bool:
    """Whether kernels can compute with these."""
    return all(
        not isinstance(t, Tensor) or (t.dtype in _TYPES and t.layout is torch.strided and t.device.type != "mkldnn")
        for t in tensors
    )


_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


# ---------------------------------------------------------------------------------------------------- matrices


@rule(aten.addmm.default)
def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if a.dtype not in (torch.float32, torch.float64) or beta != 1 or alpha != 1:
        return NotImplemented
    return aten.mm.default(a, b) + bias


@rule(aten.baddbmm.default)
def _baddbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if a.dtype not in (torch.float32, torch.float64) or beta == 0:
        return NotImplemented
    made = aten.bmm.default(a, b)
    made = made if alpha == 1 else made * alpha
    return made + (x if beta == 1 else x * beta)


# ------------------------------------------------------------------------------------------------- normalising


def _softmax_parts(x: Tensor, dim: int, half_to_float: bool) -> tuple[Tensor, torch.dtype]:
    return _wide(x).contiguous() if not x.is_contiguous() else _wide(x), torch.float32 if half_to_float else x.dtype


@rule(aten._softmax.default)
def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    if not _fused(x) or x.dim() == 0 or x.numel() == 0:
        return NotImplemented
    wide, dtype = _softmax_parts(x, dim, half_to_float)
    powers = torch.exp(wide - aten.amax.default(wide, [dim], True))
    return (powers / aten.sum.dim_IntList(powers, [dim], True)).to(dtype)


@rule(aten._safe_softmax.default)
def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    if not _fused(x) or x.dim() == 0 or x.numel() == 0 or dtype not in (None, x.dtype):
        return NotImplemented
    made = _softmax(x, dim, False)
    nothing = aten.all.dim(x == -math.inf, dim, True)
    return torch.where(nothing, torch.zeros_like(made), made)


@rule(aten._log_softmax.default)
def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    if not _fused(x) or x.dim() == 0 or x.numel() == 0:
        return NotImplemented
    wide, dtype = _softmax_parts(x, dim, half_to_float)
    shifted = wide - aten.amax.default(wide, [dim], True)
    return (shifted - torch.log(aten.sum.dim_IntList(torch.exp(shifted), [dim], True))).to(dtype)


@rule(aten._softmax_backward_data.default)
def _softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    if not _fused(grad, output) or output.dim() == 0 or output.numel() == 0:
        return NotImplemented
    g, y = _wide(grad).contiguous(), _wide(output).contiguous()
    product = g * y
    return (product - y * aten.sum.dim_IntList(product, [dim], True)).to(input_dtype)


@rule(aten._log_softmax_backward_data.default)
def _log_softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    if not _fused(grad, output) or output.dim() == 0 or output.numel() == 0:
        return NotImplemented
    g, y = _wide(grad).contiguous(), _wide(output).contiguous()
    return (g - torch.exp(y) * aten.sum.dim_IntList(g, [dim], True)).to(input_dtype)


def _moments(x: Tensor, dims: list[int], correction: float = 0) -> tuple[Tensor, Tensor]:
    """Mean and variance in two passes: no cancellation."""
    count = math.prod([x.shape[d] for d in dims])
    mean = aten.mean.dim(x, dims, True)
    centred = x - mean
    return aten.sum.dim_IntList(centred * centred, dims, True) / (count - correction), mean


@rule(aten.native_layer_norm.default)
def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    if not _fused(x, weight, bias) or x.numel() == 0:
        return NotImplemented
    dims = list(range(x.dim() - len(shape), x.dim()))
    wide = _wide(x).contiguous() if not x.is_contiguous() else _wide(x)
    variance, mean = _moments(wide, dims)
    rstd = torch.rsqrt(variance + eps)
    made = (wide - mean) * rstd
    if weight is not None:
        made = made * _wide(weight)
    if bias is not None:
        made = made + _wide(bias)
    kept = weight.dtype if weight is not None and x.dtype != weight.dtype else x.dtype
    return made.to(x.dtype), mean.to(kept), rstd.to(kept)


@rule(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor,
    weight: Tensor | None, bias: Tensor | None, mask: Sequence[bool],
) -> Any:  # fmt: skip
    if not _fused(grad, x, mean, rstd, weight) or x.numel() == 0 or x.dim() == len(shape):
        return NotImplemented
    dims = list(range(x.dim() - len(shape), x.dim()))
    rows = list(range(x.dim() - len(shape)))
    count = math.prod(x.shape[d] for d in dims)
    g, wide, mean, rstd = _wide(grad).contiguous(), _wide(x).contiguous(), _wide(mean), _wide(rstd)
    hat = (wide - mean) * rstd
    results: list[Tensor | None] = [None, None, None]
    if mask[0]:
        gw = g if weight is None else g * _wide(weight)
        a = aten.sum.dim_IntList(gw, dims, True)
        b = aten.sum.dim_IntList(gw * hat, dims, True)
        results[0] = (rstd / count * (gw * count - a - hat * b)).to(x.dtype)
    if mask[1] and weight is not None:
        results[1] = aten.sum.dim_IntList(g * hat, rows).to(weight.dtype)
    if mask[2] and bias is not None:
        results[2] = aten.sum.dim_IntList(g, rows).to(bias.dtype)
    return tuple(results)


@rule(aten._fused_rms_norm.default)
def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Any:
    if not _fused(x, weight) or x.numel() == 0:
        return NotImplemented
    dims = list(range(x.dim() - len(shape), x.dim()))
    wide = _wide(x).contiguous()
    small = torch.finfo(wide.dtype).eps if eps is None else eps
    rstd = torch.rsqrt(aten.mean.dim(wide * wide, dims, True) + small)
    made = wide * rstd
    return (made if weight is None else made * _wide(weight)).to(x.dtype), rstd


def _channels(x: Tensor, t: Tensor) -> Tensor:
    return t.view([1, -1, *[1] * (x.dim() - 2)])


@rule(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_inference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> Any:
    if not _fused(x, weight, bias, mean, var) or x.numel() == 0 or x.dim() < 2:
        return NotImplemented
    invstd = torch.rsqrt(_wide(var) + eps)
    scale = invstd if weight is None else invstd * _wide(weight)
    shift = -_wide(mean) * scale if bias is None else _wide(bias) - _wide(mean) * scale
    made = _wide(x) * _channels(x, scale) + _channels(x, shift)
    return made.to(x.dtype), x.new_empty([0]), x.new_empty([0])


def _batch_norm_parts(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    """Result, mean and 1/deviation of the batch, new running mean and variance."""
    given = [t for t in (weight, bias, mean, var) if t is not None]
    kinds = {t.dtype for t in given}
    count = math.prod(size for d, size in enumerate(x.shape) if d != 1)
    if not training or not _fused(x, *given) or (mean is None) != (var is None) or x.dim() < 2 or x.numel() == 0:
        return NotImplemented
    if kinds not in (set(), {x.dtype}, {_wide(x).dtype}) or not _dense(x) or count == 1:
        return NotImplemented
    kept = next(iter(kinds), x.dtype)
    wide = _wide(x)
    variance, centre = _moments(wide, [d for d in range(x.dim()) if d != 1])
    invstd = torch.rsqrt(variance + eps)
    made = (wide - centre) * invstd
    made = made if weight is None else made * _channels(x, _wide(weight))
    made = made if bias is None else made + _channels(x, _wide(bias))
    flat, spread = centre.view([-1]), variance.view([-1]) * (count / (count - 1))
    new_mean = None if mean is None else (mean * (1 - momentum) + flat * momentum).to(mean.dtype)
    new_var = None if var is None else (var * (1 - momentum) + spread * momentum).to(var.dtype)
    return made.to(x.dtype), flat.to(kept), invstd.view([-1]).to(kept), new_mean, new_var


@rule(aten.native_batch_norm.default)
def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    if not training and mean is not None and var is not None and _dense(x):
        return _batch_norm_inference(x, weight, bias, mean, var, momentum, eps)
    parts = _batch_norm_parts(x, weight, bias, mean, var, training, momentum, eps)
    if parts is NotImplemented:
        return NotImplemented
    for old, new in ((mean, parts[3]), (var, parts[4])):
        if old is not None:
            old.copy_(new)
    return parts[:3]


@rule(aten._native_batch_norm_legit_functional.default)
def _batch_norm_with_new_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    if training or not _dense(x):
        return _batch_norm_parts(x, weight, bias, mean, var, training, momentum, eps)
    made = _batch_norm_inference(x, weight, bias, mean, var, momentum, eps)
    return made if made is NotImplemented else (*made, mean.clone(), var.clone())


@rule(aten._native_batch_norm_legit.no_stats)
def _batch_norm_without_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    parts = _batch_norm_parts(x, weight, bias, None, None, training, momentum, eps)
    return parts if parts is NotImplemented else parts[:3]


def _dense(x: Tensor) -> bool:
    """In order, or with the channels last: results have the same strides."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return x.is_contiguous() or (last is not None and x.is_contiguous(memory_format=last))


@rule(aten.var.correction)
def _var(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if not _fused(x) or x.numel() == 0 or x.dim() == 0:
        return NotImplemented
    dims = _dims(x, dim)
    variance, _ = _moments(_wide(x), dims, 1 if correction is None else correction)
    return (variance if keepdim else aten.squeeze.dims(variance, dims)).to(x.dtype)


@rule(aten.var_mean.correction)
def _var_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if not _fused(x) or x.numel() == 0 or x.dim() == 0:
        return NotImplemented
    dims = _dims(x, dim)
    variance, mean = _moments(_wide(x), dims, 1 if correction is None else correction)
    if not keepdim:
        variance, mean = aten.squeeze.dims(variance, dims), aten.squeeze.dims(mean, dims)
    return variance.to(x.dtype), mean.to(x.dtype)


def _dims(x: Tensor, dim: Any) -> list[int]:
    given = list(range(x.dim())) if dim is None or dim == [] else dim if isinstance(dim, (list, tuple)) else [dim]
    return sorted({d % x.dim() for d in given})


# -------------------------------------------------------------------------------------------------------- losses


@rule(aten.mse_loss.default)
def _mse(x: Tensor, y: Tensor, reduction: int = 1) -> Any:
    if not _fused(x, y) or x.dtype != y.dtype:
        return NotImplemented
    return _folded((x - y) * (x - y), reduction)


@rule(aten.mse_loss_backward.default)
def _mse_backward(grad: Tensor, x: Tensor, y: Tensor, reduction: int) -> Any:
    if not _fused(grad, x, y) or x.dtype != y.dtype:
        return NotImplemented
    return (x - y) * (2.0 / x.numel() if reduction == 1 else 2.0) * grad


def _folded(x: Tensor, reduction: int) -> Tensor:
    if reduction == 0:
        return x
    return aten.mean.default(x) if reduction == 1 else aten.sum.default(x)


@rule(aten.nll_loss_forward.default)
def _nll_loss(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore: int) -> Any:
    if not _fused(x) or weight is not None or x.dim() != 2 or x.numel() == 0:
        return NotImplemented
    kept = target != ignore
    safe = torch.where(kept, target, torch.zeros_like(target))
    picked = -aten.gather.default(x, 1, safe.unsqueeze(1)).squeeze(1)
    losses = torch.where(kept, picked, torch.zeros_like(picked))
    if reduction == 0:
        return losses, x.new_zeros([])
    count = aten.sum.default(kept).to(x.dtype)
    total = aten.sum.default(losses)
    return (total / count if reduction == 1 else total), count


@rule(aten.nll_loss_backward.default)
def _nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore: int, total: Tensor
) -> Any:
    if not _fused(grad, x) or weight is not None or x.dim() != 2 or x.numel() == 0:
        return NotImplemented
    kept = (target != ignore).unsqueeze(1)
    classes = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
    g = grad / total if reduction == 1 else grad
    g = g.unsqueeze(1) if reduction == 0 else g
    return torch.where((classes == target.unsqueeze(1)) & kept, -g, torch.zeros([], dtype=x.dtype, device=x.device)).to(
        x.dtype
    )


# ------------------------------------------------------------------------------------------------------- others


@rule(aten.native_dropout_backward.default)
def _dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Any:
    return grad * mask.to(grad.dtype) * scale


@rule(aten.split.Tensor)
def _split(x: Tensor, size: int, dim: int = 0) -> Any:
    total = x.shape[dim]
    if not isinstance(total, int) or not isinstance(size, int) or size == 0:
        return NotImplemented
    return [aten.slice.Tensor(x, dim, start, min(start + size, total)) for start in range(0, max(total, 1), size)]


@rule(aten.split_with_sizes.default)
def _split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> Any:
    if not all(isinstance(s, int) for s in sizes):
        return NotImplemented
    parts, start = [], 0
    for size in sizes:
        parts.append(aten.slice.Tensor(x, dim, start, start + size))
        start += size
    return parts


@rule(aten.unbind.int)
def _unbind(x: Tensor, dim: int = 0) -> Any:
    if not isinstance(x.shape[dim], int):
        return NotImplemented
    return [aten.select.int(x, dim, i) for i in range(x.shape[dim])]


@rule(aten.stack.default)
def _stack(parts: Sequence[Tensor], dim: int = 0) -> Any:
    rank = parts[0].dim() + 1
    return aten.cat.default([p.unsqueeze(dim % rank) for p in parts], dim % rank)


@rule(aten.max.dim)
def _max_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return _best(aten.amax.default, aten.argmax.default, x, dim, keepdim)


@rule(aten.min.dim)
def _min_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return _best(aten.amin.default, aten.argmin.default, x, dim, keepdim)


def _best(value: Any, position: Any, x: Tensor, dim: int, keepdim: bool) -> Any:
    if x.dim() == 0 or x.numel() == 0 or x.dtype is torch.bool:
        return NotImplemented
    return value(x, [dim], keepdim), position(x, dim, keepdim)


@rule(aten.count_nonzero.dim_IntList)
def _count_nonzero(x: Tensor, dim: Sequence[int]) -> Any:
    if x.is_complex() or x.dim() == 0 or x.numel() == 0 or not dim:
        return NotImplemented
    return aten.sum.dim_IntList(x != 0, dim)


@rule(aten.count_nonzero.default)
def _count_all_nonzero(x: Tensor, dim: int | None = None) -> Any:
    if x.is_complex() or x.dim() == 0 or x.numel() == 0:
        return NotImplemented
    return aten.sum.default(x != 0) if dim is None else aten.sum.dim_IntList(x != 0, [dim])


@rule(aten.linalg_vector_norm.default)
def _vector_norm(
    x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if not _fused(x) or x.numel() == 0 or dtype not in (None, *_TYPES):
        return NotImplemented
    x = x if dtype is None else x.to(dtype)
    if x.dim() == 0:
        return (x != 0).to(x.dtype) if order == 0 else x.abs()
    dims, wide = _dims(x, dim), _wide(x)
    if order in (math.inf, -math.inf):
        fold = aten.amax.default if order > 0 else aten.amin.default
        return fold(wide.abs(), dims, keepdim).to(x.dtype)
    if order == 0:
        return aten.sum.dim_IntList((wide != 0).to(wide.dtype), dims, keepdim).to(x.dtype)
    powers = wide.abs() if order == 1 else wide * wide if order == 2 else torch.pow(wide.abs(), order)
    total = aten.sum.dim_IntList(powers, dims, keepdim)
    return (total if order == 1 else torch.sqrt(total) if order == 2 else torch.pow(total, 1 / order)).to(x.dtype)


@rule(aten.ldexp.Tensor)
def _ldexp(x: Tensor, y: Tensor) -> Any:
    return x * aten.pow.Scalar(2.0, y)


@rule(aten.mvlgamma.default)
def _mvlgamma(x: Tensor, p: int) -> Any:
    if not _fused(x) or not 1 <= p <= 20 or not x.is_contiguous():
        return NotImplemented
    total = torch.lgamma(x)
    for k in range(1, p):
        total = total + torch.lgamma(x - k / 2)
    return total + p * (p - 1) / 4 * math.log(math.pi)


def _foreach(single: Any, lists: int) -> Decomposition:
    """`_foreach_…`: the same, tensor by tensor."""

    def run(first: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        results = []
        for i, x in enumerate(first):
            rest = [a[i] if k < lists and isinstance(a, (list, tuple)) else a for k, a in enumerate(args)]
            results.append(single(x, *rest, **kwargs))
        return results

    return run


for _name, _single in {
    **{name: getattr(aten, name).Tensor for name in "add sub mul div".split()},
    **{name: getattr(aten, name).default for name in "maximum minimum".split()},
}.items():
    _packet = getattr(aten, f"_foreach_{_name}")
    for _overload in set(_packet.overloads()) & {"List", "Scalar", "ScalarList", "Tensor"}:
        if _overload in ("List", "Tensor") or _single._overloadname == "Tensor":
            RULES[getattr(_packet, _overload)] = _foreach(_single, _overload in ("List", "ScalarList"))
for _name in "clamp_min clamp_max".split():
    _packet, _single = getattr(aten, f"_foreach_{_name}"), getattr(aten, _name)
    RULES[_packet.List] = _foreach(_single.Tensor, 1)
    RULES[_packet.Scalar] = _foreach(_single.default, 0)
    RULES[_packet.ScalarList] = _foreach(_single.default, 1)
    _packet, _other = getattr(aten, f"_foreach_{'maximum' if _name == 'clamp_min' else 'minimum'}"), _single.default
    RULES[_packet.Scalar], RULES[_packet.ScalarList] = _foreach(_other, 0), _foreach(_other, 1)
for _name in (
    "sqrt neg reciprocal exp abs rsqrt sign log log2 log10 log1p expm1 sin cos tan tanh sinh cosh asin acos atan erf "
    "erfc floor ceil round trunc frac sigmoid"
).split():
    RULES[getattr(aten, f"_foreach_{_name}").default] = _foreach(getattr(aten, _name).default, 0)
RULES[aten._foreach_pow.Scalar] = _foreach(aten.pow.Tensor_Scalar, 0)
RULES[aten._foreach_pow.ScalarList] = _foreach(aten.pow.Tensor_Scalar, 1)
RULES[aten._foreach_pow.List] = _foreach(aten.pow.Tensor_Tensor, 1)
RULES[aten._foreach_lerp.List] = _foreach(aten.lerp.Tensor, 2)
for _name in "addcmul addcdiv".split():
    _packet = getattr(aten, f"_foreach_{_name}")
    _single = getattr(aten, _name).default

    def _scaled(x: Tensor, y: Tensor, z: Tensor, value: Any = 1, _single: Any = _single) -> Tensor:
        return _single(x, y, z, value=value)

    RULES[_packet.Scalar] = _foreach(_scaled, 2)
    RULES[_packet.ScalarList] = _foreach(_scaled, 3)
RULES[aten._foreach_lerp.Scalar] = _foreach(aten.lerp.Scalar, 1)
RULES[aten._foreach_pow.ScalarAndTensor] = lambda base, xs: [aten.pow.Scalar(base, x) for x in xs]


# ---------------------------------------------------------------------------------------- torch's own for the rest

_BORROWED = """
addcdiv_ binary_cross_entropy_backward elu_backward glu glu_backward hardsigmoid_backward
hardswish_backward huber_loss huber_loss_backward log_sigmoid_backward log_sigmoid_forward logsumexp mish_backward
native_group_norm native_group_norm_backward rrelu_with_noise smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
softshrink softshrink_backward hardshrink hardshrink_backward celu selu prelu _prelu_kernel _prelu_kernel_backward
addr addmv mv dot native_batch_norm_backward _euclidean_dist heaviside linspace logspace special_entr special_log_ndtr
special_xlog1py norm nansum dist trace masked_scatter_backward unsafe_split diag_embed logaddexp2 nan_to_num renorm
std std_mean
""".split()


def _of_floats(torchs: Decomposition) -> Decomposition:
    """Of whole numbers ATen rounds the ends first, and computes in double."""

    def run(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        if dtype is not None and not dtype.is_floating_point:
            return NotImplemented
        return torchs(*args, dtype=dtype, **kwargs)

    return run


@functools.cache
def decompositions(native_random: bool = False) -> dict[Any, Decomposition]:
    """All rules, ours first; torch's reference decompositions take a moment to import. `native_random`: random numbers
    are computed by kernels, too."""
    from torch._decomp import get_decompositions

    packets = [getattr(aten, name) for name in _BORROWED if hasattr(aten, name)]
    torchs = get_decompositions(packets)
    for op in (aten.linspace.default, aten.logspace.default):
        torchs[op] = _of_floats(torchs[op])
    return {**torchs, **RULES, **windows.RULES, **(random_numbers.RULES if native_random else {})}
