"""Facts about one ATen overload: what torch says of it, and rows for what torch does not say.

Enters: an overload, and the arguments that it is called with. Leaves: whether the sizes of its results follow from the
shapes of its arguments, whether it draws random numbers, whether it can fail for other data. What holds: everything
fails closed. Sizes depend on the data unless torch has a meta kernel for the overload (which computes them without any
data) or a row says so; an overload may fail unless it is pointwise in floats, a view, or stands in `TOTAL`. A test runs
all rows on OpInfo's samples with other data.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch._decomp

Overload = torch._ops.OpOverload
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_BY_DATA = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
_TENSORS = frozenset({"Tensor", "List[Tensor]", "Optional[Tensor]"})

# No meta kernel in torch; the sizes follow from those of the arguments all the same.
_SIZED = frozenset(
    "_conj_physical _linalg_check_errors empty_permuted full_like put randint_like randn_like rand_like squeeze_ "
    "_trilinear geqrf histogram linalg_pinv copy clone _assert_async _functional_assert_async _assert_scalar "
    "native_norm _mkldnn_transpose mkldnn_linear mkldnn_max_pool2d mkldnn_max_pool3d _masked_softmax "
    "_slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose3d "
    "_conv_depthwise2d conv_depthwise3d cudnn_convolution cudnn_convolution_transpose _standard_gamma binomial poisson "
    "_sample_dirichlet _cudnn_init_dropout_state _fused_sgd_ _fused_adagrad_ _fused_adam_ _fused_adamw_ "
    "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask "
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams quantize_per_channel _transform_bias_rescale_qkv "
    "embedding_renorm_ lift_fresh_copy select_copy slice_copy split_copy view_as_real_copy view_as_complex_copy "
    "detach_copy _neg_view_copy _conj_copy _is_all_true _is_any_true".split()
)
# They read what a layout other than strided keeps: of how many elements that is depends on the data.
_OF_SPARSE = frozenset(
    "_values values _indices indices crow_indices col_indices ccol_indices row_indices _nnz _coalesce "
    "_coalesced is_coalesced _is_coalesced".split()
)
# Their numbers follow from the kinds and shapes of their arguments.
_NUMBERS_BY_SHAPE = frozenset(
    "_fused_sdp_choice is_same_size size stride numel dim is_contiguous "
    "storage_offset _has_same_storage_numel _has_compatible_shallow_copy_type "
    "_use_cudnn_ctc_loss _use_miopen_ctc_loss _use_cudnn_rnn_flatten_weight sym_size sym_stride sym_numel "
    "sym_storage_offset sym_is_contiguous _efficient_attention_forward _flash_attention_forward "
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _version is_complex is_floating_point is_signed _is_zerotensor "
    "is_inference result_type can_cast promote_types _nnpack_available qscheme".split()
)
# Integers that are divided by zero raise; floats do not.
_DIVISIONS = frozenset(
    "floor_divide floor_divide_ remainder remainder_ fmod fmod_ _foreach_div _foreach_div_ div div_ "
    "divide divide_".split()
)
_NAMES_OF_TOTAL = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d avg_pool3d avg_pool1d
    max_pool2d_with_indices max_pool3d_with_indices max_pool1d mkldnn_max_pool2d mkldnn_max_pool3d
    _batch_norm_with_update _batch_norm_no_update _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training native_batch_norm cudnn_batch_norm native_group_norm native_layer_norm
    _fused_rms_norm batch_norm_stats batch_norm_elemt
    _cdist_forward _pdist_forward _euclidean_dist _fft_c2c _fft_c2r _fft_r2c
    _log_softmax _softmax _safe_softmax _masked_softmax log_sigmoid_forward glu _prelu_kernel rrelu_with_noise hardswish
    _efficient_attention_forward _flash_attention_forward _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
    _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math
    _scaled_dot_product_fused_attention_overrideable
    _fused_sdp_choice _transform_bias_rescale_qkv _transformer_encoder_layer_fwd _native_multi_head_attention
    mm bmm addmm addmv addr addbmm baddbmm mv dot vdot _addmm_activation _trilinear _int_mm _scaled_mm _grouped_mm
    mkldnn_linear _weight_norm_interface linear
    convolution _convolution cudnn_convolution cudnn_convolution_transpose mkldnn_convolution _slow_conv2d_forward
    slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d
    _conv_depthwise2d conv_depthwise3d thnn_conv2d im2col col2im unfold_backward
    mkldnn_rnn_layer _cudnn_rnn _cudnn_rnn_flatten_weight _thnn_fused_lstm_cell _thnn_fused_gru_cell
    _is_all_true _is_any_true
    sum nansum mean prod amax amin aminmax max min all any argmax argmin var std var_mean std_mean norm
    linalg_vector_norm logsumexp count_nonzero median nanmedian mode kthvalue dist trace cumsum cumprod cummax cummin
    _cummax_helper _cummin_helper logcumsumexp _logcumsumexp _aminmax hash_tensor linalg_cross renorm
    sort topk isin bucketize flip roll rot90 tril triu tril_indices triu_indices
    cat _chunk_cat stack block_diag constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d repeat pixel_shuffle pixel_unshuffle channel_shuffle
    native_channel_shuffle diag_embed diagonal_scatter select_scatter slice_scatter as_strided_scatter
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided new_full new_ones new_zeros
    full full_like ones ones_like zeros zeros_like zero zero_ fill fill_ eye arange linspace logspace range
    scalar_tensor lift lift_fresh lift_fresh_copy complex polar
    bartlett_window blackman_window hamming_window hann_window kaiser_window fft_fftfreq fft_rfftfreq floor_divide
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d softmax log_softmax conv_tbc
    rand rand_like randn randn_like randint randint_like randperm native_dropout _fused_dropout
    _cudnn_init_dropout_state bernoulli_.float uniform_ normal_ exponential_ cauchy_ log_normal_ geometric_
    random_ normal.float_float
    clone copy copy_ _to_copy _copy_from _copy_from_and_resize _unsafe_view _reshape_copy contiguous detach_ set_data
    masked_fill masked_fill_ where
    binary_cross_entropy_with_logits mse_loss huber_loss smooth_l1_loss soft_margin_loss
    grid_sampler_2d grid_sampler_3d affine_grid_generator upsample_bicubic2d upsample_bilinear2d upsample_linear1d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
    _fused_sgd_ _fused_adagrad_ _fused_adam_ _fused_adamw_ _amp_foreach_non_finite_check_and_unscale_
    _amp_update_scale_ rsub squeeze_ unsqueeze_ t_ transpose_ as_strided_ swapaxes_ swapdims_
    fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _conj_physical _assert_tensor_metadata
    _softmax_backward_data _log_softmax_backward_data unsafe_split unsafe_split_with_sizes special_zeta
"""
TOTAL = frozenset(_NAMES_OF_TOTAL.split())


class OverloadFacts(NamedTuple):
    """About an overload, whatever its arguments."""

    sized: bool  # do the sizes of its results follow from shapes and numbers alone?
    random: bool
    total: bool  # can it not fail, unless it divides integers?
    divides: bool
    composite: bool  # is it made of other operators, which say more?


def base_name(op: Overload) -> str:
    return op._schema.name.split("::")[1]


def _full_name(op: Overload) -> str:
    """`aten::add.Tensor`"""
    return str(op.name())  # type: ignore[no-untyped-call]


@functools.cache
def facts_of(op: Overload) -> OverloadFacts:
    base = base_name(op)
    return OverloadFacts(
        sized=_is_sized(op, base),
        random=torch.Tag.nondeterministic_seeded in op.tags,
        total=_is_total(op, base),
        divides=base in _DIVISIONS,
        composite=_has_kernel(_full_name(op), "CompositeImplicitAutograd"),
    )


def reads_by_tag(op: Overload) -> bool:
    """Does torch say that sizes or numbers that it gives depend on data?"""
    return not _BY_DATA.isdisjoint(op.tags)


def _is_sized(op: Overload, base: str) -> bool:
    if reads_by_tag(op) or base in _OF_SPARSE or not op._schema.name.startswith(("aten::", "prims::")):
        return False
    if not all(str(result.type) in _TENSORS for result in op._schema.returns) and base not in _NUMBERS_BY_SHAPE:
        return not _takes_tensors(op)
    if is_view(op) or base in _SIZED or base in _NUMBERS_BY_SHAPE or not op._schema.returns:
        return True
    if base.startswith("_foreach_"):
        return True  # one result for each tensor, of its sizes or of none
    if op._schema.is_mutable and base.endswith("_"):
        return True  # what it writes to has its sizes already
    return has_meta_kernel(op)


def has_meta_kernel(op: Overload) -> bool:
    """Does torch compute the sizes of the results without any data?"""
    name = _full_name(op)
    if _has_kernel(name, "Meta") or op in torch._decomp.meta_table or torch._C.DispatchKey.Meta in op.py_kernels:
        return True
    return op in torch._decomp.decomposition_table


def _takes_tensors(op: Overload) -> bool:
    return any("Tensor" in str(argument.type) for argument in op._schema.arguments)


def is_view(op: Overload) -> bool:
    returns = [result.alias_info for result in op._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returns)


def _is_total(op: Overload, base: str) -> bool:
    if is_view(op) or f"{base}.{op._overloadname}" in TOTAL or base.startswith("_foreach_"):
        return True
    plain = base.removesuffix("_")
    return base in TOTAL or plain in TOTAL or _is_pointwise(plain) or _copies_view(base)


@functools.cache
def _is_pointwise(base: str) -> bool:
    """By the tag, which not every overload has."""
    return any(torch.Tag.pointwise in overload.tags for overload in overloads_of(base))


def _copies_view(base: str) -> bool:
    return base.endswith("_copy") and any(map(is_view, overloads_of(base.removesuffix("_copy"))))


def overloads_of(base: str) -> list[Overload]:
    """All overloads of the operator of this name; none if there is no such operator."""
    packet = None if base.startswith("__") and base not in _DUNDERS else getattr(torch.ops.aten, base, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return []
    found = [getattr(packet, name) for name in packet.overloads()]  # type: ignore[no-untyped-call]
    return [overload for overload in found if _full_name(overload) in _names()]  # others are TorchScript's


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


_DUNDERS = frozenset("__and__ __or__ __xor__ __iand__ __ior__ __ixor__ __lshift__ __rshift__ __ilshift__".split())
_INDEXED = frozenset({"index"})
_MASKS = (torch.bool, torch.uint8)


def sizes_by_data(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """May the sizes or numbers that this call gives be others for other data?"""
    if facts_of(op).sized:
        return False
    base = base_name(op)
    if base in _INDEXED and len(args) > 1:
        return any(index is not None and index.dtype in _MASKS for index in args[1])
    if base == "repeat_interleave":
        return kwargs.get("output_size") is None
    return True


def may_fail(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Can this call raise for other data of the same shapes?"""
    facts = facts_of(op)
    if not facts.total:
        return True
    return facts.divides and divides_integers(args, kwargs)


def divides_integers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if len(args) > 1 and type(args[1]) in (int, float) and args[1] != 0:
        return False
    values = _flat((args, kwargs))
    if any(isinstance(value, float) for value in values):
        return False
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]
