"""C functions of torch that report a setting: a row for each.

What a row says of a function: it takes nothing or constants, gives back a constant, changes nothing, and answers the
same until somebody sets what it reads. Recordings guard the answer (`rules.read_again`). One that has no row is C code
like any other, whatever its name: a version of torch that brings more of them gets breaks.
"""

from __future__ import annotations

from typing import Any

import torch

# By what they read. Names are those in `torch._C`; a build of torch may lack some.
SETTINGS: dict[str, tuple[str, ...]] = {
    "how this torch was built": (
        "_has_distributed",
        "_is_flash_attention_available",
        "_is_ck_sdpa_available",
        "_itt.is_available",
    ),
    "what this machine has": ("_get_cpu_capability", "_get_accelerator"),
    "how many threads there are": ("get_num_threads", "get_num_interop_threads"),
    "which algorithms are taken": (
        "_get_cudnn_enabled",
        "_get_cudnn_benchmark",
        "_get_cudnn_deterministic",
        "_get_cudnn_depthwise_kernel",
        "_get_miopen_immediate",
        "_get_mkldnn_enabled",
        "_get_mkldnn_deterministic",
        "_get_nnpack_enabled",
        "_is_xnnpack_enabled",
        "_get_qengine",
        "_get_deterministic_algorithms",
        "_get_deterministic_algorithms_warn_only",
        "_get_deterministic_fill_uninitialized_memory",
        "_get_sm_carveout_experimental",
    ),
    "which kinds of attention are allowed": (
        "_get_flash_sdp_enabled",
        "_get_fa3_sdp_enabled",
        "_get_mem_efficient_sdp_enabled",
        "_get_math_sdp_enabled",
        "_get_cudnn_sdp_enabled",
        "_get_overrideable_sdp_enabled",
    ),
    "how precisely is computed": (
        "_get_float32_matmul_precision",
        "_get_fp32_precision_getter",
        "_get_cudnn_allow_tf32",
        "_get_cublas_allow_tf32",
        "_get_onednn_allow_tf32",
        "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cublas_allow_bf16_reduced_precision_reduction",
        "_get_cublas_allow_fp16_accumulation",
        "_get_cpu_allow_fp16_reduced_precision_reduction",
        "_get_math_sdp_allow_fp16_bf16_reduction",
    ),
    "names of devices": ("_get_default_device", "_get_privateuse1_backend_name", "_is_autocast_available"),
    "modes of autograd": (
        "is_anomaly_enabled",
        "is_anomaly_check_nan_enabled",
        "_is_fwd_grad_enabled",
        "_is_multithreading_enabled",
        "_is_view_replay_enabled",
        "_is_grad_layout_enforcement_enabled",
        "_get_autograd_fallback_mode",
    ),
    "are functions and modes of the program asked": ("_is_torch_function_enabled", "_is_torch_function_all_disabled"),
    "transforms of functions that are at work, and what they allow": (
        "_are_functorch_transforms_active",
        "_functorch.get_dynamic_layer_stack_depth",
        "_functorch.get_inplace_requires_grad_allowed",
        "_functorch.get_single_level_autograd_function_allowed",
        "_functorch._is_vmap_fallback_enabled",
    ),
    "what is warned of": ("_get_warnAlways", "_get_backcompat_broadcast_warn", "_get_backcompat_keepdim_warn"),
    "what is thought of tensors that are no `DTensor`": ("_get_dtensor_allow_implicit_replication",),
}


def find(name: str) -> Any:
    """What has this name in `torch._C`; None: nothing has."""
    found: Any = torch._C
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def there(names: tuple[str, ...]) -> list[Any]:
    """Those that this build of torch has."""
    return [found for found in map(find, names) if found is not None]
