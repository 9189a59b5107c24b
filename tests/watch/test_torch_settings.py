"""C functions of torch that report settings: all of them stand in a table, and each row's claim is tried."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._functorch.vmap import vmap_increment_nesting

import stator
from stator.watch.models import calls, rules
from stator.watch.models import torch_settings as settings
from stator.watch.objects.constants import is_constant

C: Any = torch._C


def by_setter(name: str, *values: Any) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """The setting has another value; afterwards the one that it had."""

    @contextlib.contextmanager
    def changed() -> Iterator[None]:
        reader, setter = settings.find(READ_BY.get(name, name.replace("set_", "get_", 1))), settings.find(name)
        args = READ_WITH.get(reader.__name__, ())
        before = reader(*args)
        setter(*args, *values)
        try:
            yield
        finally:
            setter(*args, *(before if isinstance(before, tuple) else (before,)))

    return changed


def deterministic(warn_only: bool) -> Callable[[], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def changed() -> Iterator[None]:
        C._set_deterministic_algorithms(True, warn_only=warn_only)
        try:
            yield
        finally:
            C._set_deterministic_algorithms(False)

    return changed


READ_WITH: dict[str, tuple[Any, ...]] = {
    "_is_autocast_available": ("cpu",),
    "_get_fp32_precision_getter": ("mkldnn", "matmul"),
}
READ_BY = {
    **{f"_set_sdp_use_{kind}": f"_get_{kind}_sdp_enabled" for kind in "flash fa3 math cudnn overrideable".split()},
    "_set_sdp_use_mem_efficient": "_get_mem_efficient_sdp_enabled",
    "_set_fp32_precision_setter": "_get_fp32_precision_getter",
    "_set_fwd_grad_enabled": "_is_fwd_grad_enabled",
    "_set_multithreading_enabled": "_is_multithreading_enabled",
    "_set_view_replay_enabled": "_is_view_replay_enabled",
    "_set_grad_layout_enforcement_enabled": "_is_grad_layout_enforcement_enabled",
    "_functorch._set_vmap_fallback_enabled": "_functorch._is_vmap_fallback_enabled",
}
# Of a reader: something in which it gives another answer.
CHANGED: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "get_num_threads": by_setter("set_num_threads", 7),
    "_get_cudnn_enabled": by_setter("_set_cudnn_enabled", False),
    "_get_cudnn_benchmark": by_setter("_set_cudnn_benchmark", True),
    "_get_cudnn_deterministic": by_setter("_set_cudnn_deterministic", True),
    "_get_cudnn_depthwise_kernel": by_setter("_set_cudnn_depthwise_kernel", "native"),
    "_get_miopen_immediate": by_setter("_set_miopen_immediate", True),
    "_get_mkldnn_enabled": by_setter("_set_mkldnn_enabled", False),
    "_get_mkldnn_deterministic": by_setter("_set_mkldnn_deterministic", True),
    "_get_nnpack_enabled": by_setter("_set_nnpack_enabled", False),
    "_get_qengine": by_setter("_set_qengine", min(C._supported_qengines())),
    "_get_deterministic_algorithms": deterministic(warn_only=False),
    "_get_deterministic_algorithms_warn_only": deterministic(warn_only=True),
    "_get_deterministic_fill_uninitialized_memory": by_setter("_set_deterministic_fill_uninitialized_memory", False),
    "_get_sm_carveout_experimental": by_setter("_set_sm_carveout_experimental", 2),
    "_get_flash_sdp_enabled": by_setter("_set_sdp_use_flash", False),
    "_get_fa3_sdp_enabled": by_setter("_set_sdp_use_fa3", True),
    "_get_mem_efficient_sdp_enabled": by_setter("_set_sdp_use_mem_efficient", False),
    "_get_math_sdp_enabled": by_setter("_set_sdp_use_math", False),
    "_get_cudnn_sdp_enabled": by_setter("_set_sdp_use_cudnn", False),
    "_get_overrideable_sdp_enabled": by_setter("_set_sdp_use_overrideable", False),
    "_get_math_sdp_allow_fp16_bf16_reduction": by_setter("_set_math_sdp_allow_fp16_bf16_reduction", True),
    "_get_float32_matmul_precision": by_setter("_set_float32_matmul_precision", "high"),
    "_get_fp32_precision_getter": by_setter("_set_fp32_precision_setter", "bf16"),
    "_get_cudnn_allow_tf32": by_setter("_set_cudnn_allow_tf32", False),
    "_get_cublas_allow_tf32": by_setter("_set_cublas_allow_tf32", True),
    "_get_cublas_allow_fp16_reduced_precision_reduction": by_setter(
        "_set_cublas_allow_fp16_reduced_precision_reduction", False, False
    ),
    "_get_cublas_allow_bf16_reduced_precision_reduction": by_setter(
        "_set_cublas_allow_bf16_reduced_precision_reduction", False, False
    ),
    "_get_cublas_allow_fp16_accumulation": by_setter("_set_cublas_allow_fp16_accumulation", True),
    "is_anomaly_enabled": lambda: torch.autograd.set_detect_anomaly(True, check_nan=True),
    "is_anomaly_check_nan_enabled": lambda: torch.autograd.set_detect_anomaly(False, check_nan=False),
    "_is_fwd_grad_enabled": by_setter("_set_fwd_grad_enabled", False),
    "_is_multithreading_enabled": by_setter("_set_multithreading_enabled", False),
    "_is_view_replay_enabled": by_setter("_set_view_replay_enabled", True),
    "_is_grad_layout_enforcement_enabled": by_setter("_set_grad_layout_enforcement_enabled", False),
    "_get_autograd_fallback_mode": by_setter("_set_autograd_fallback_mode", "nothing"),
    "_is_torch_function_enabled": C.DisableTorchFunctionSubclass,
    "_is_torch_function_all_disabled": C.DisableTorchFunction,
    "_are_functorch_transforms_active": lambda: vmap_increment_nesting(2, "error"),
    "_functorch.get_dynamic_layer_stack_depth": lambda: vmap_increment_nesting(2, "error"),
    "_functorch.get_inplace_requires_grad_allowed": by_setter("_functorch.set_inplace_requires_grad_allowed", True),
    "_functorch.get_single_level_autograd_function_allowed": by_setter(
        "_functorch.set_single_level_autograd_function_allowed", True
    ),
    "_functorch._is_vmap_fallback_enabled": by_setter("_functorch._set_vmap_fallback_enabled", False),
    "_get_warnAlways": by_setter("_set_warnAlways", True),
    "_get_backcompat_broadcast_warn": by_setter("_set_backcompat_broadcast_warn", True),
    "_get_backcompat_keepdim_warn": by_setter("_set_backcompat_keepdim_warn", True),
    "_get_dtensor_allow_implicit_replication": by_setter("_set_dtensor_allow_implicit_replication", True),
}
# Nothing changes these within a process, or not on this machine.
FIXED = {
    "_has_distributed _is_flash_attention_available _is_ck_sdpa_available _itt.is_available": "how torch was built",
    "_is_xnnpack_enabled _get_cpu_capability _get_accelerator": "how torch was built, and for what it is run on",
    "get_num_interop_threads _get_privateuse1_backend_name _is_autocast_available": "set once in a process",
    "_get_onednn_allow_tf32": "set once, and never unset",
    "_get_cpu_allow_fp16_reduced_precision_reduction": "raises where the CPU cannot do that",
    "_get_default_device": "another one needs a GPU",
}
NAMES = [name for names in settings.SETTINGS.values() for name in names]


def test_every_row_is_tried_or_says_why_not() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert set(NAMES) == {*CHANGED, *" ".join(FIXED).split()}
    assert not CHANGED.keys() & set(" ".join(FIXED).split())


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_a_constant_that_stays(name: str) -> None:
    reader, args = settings.find(name), READ_WITH.get(name, ())
    if reader is None:
        return  # this torch has no such function: a call of it raises
    assert is_constant(reader(*args))
    assert reader(*args) == reader(*args)
    assert calls.rule_for(reader) is rules.read_again or id(reader) in calls.RULES


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.filterwarnings("ignore")
def test_a_setting_that_changes_is_noticed(name: str) -> None:
    reader, args = settings.find(name), READ_WITH.get(name, ())
    if reader is None:
        return
    first = reader(*args)
    compiled = stator.compile(lambda x: [x * 2, reader(*args) == first], backend="eager")
    compiled.stator.reset()  # functions of one code share their recordings
    x = torch.ones(2)
    for _ in range(3):
        assert compiled(x)[1]
    assert compiled.stator.hits == 2 and not compiled.stator.break_reasons
    with CHANGED[name]():
        assert reader(*args) != first
        for _ in range(3):
            assert not compiled(x)[1]
    assert reader(*args) == first
    hits = compiled.stator.hits
    assert compiled(x)[1] and compiled(x)[1]
    assert compiled.stator.hits > hits  # (setting it back may set more than there was)


def c_functions() -> Iterator[Any]:
    """All C functions that modules of torch have."""
    seen: set[int] = set()
    pending = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "torch"]
    while pending:
        module = pending.pop()
        if id(module) in seen or not isinstance(module, types.ModuleType):
            continue
        seen.add(id(module))
        for value in list(vars(module).values()):
            if isinstance(value, types.ModuleType) and value.__name__.startswith("torch._C"):
                pending.append(value)
            elif isinstance(value, types.BuiltinFunctionType) and id(value) not in seen:
                seen.add(id(value))
                yield value


@pytest.mark.filterwarnings("ignore")
def test_no_function_of_torch_is_known_by_its_name() -> None:
    rows = {id(settings.find(name)) for name in NAMES}
    functions = [func for func in c_functions() if str(func.__module__).split(".")[0] == "torch"]
    assert len(functions) > 1500
    known = [func for func in functions if calls.rule_for(func) is not None]
    assert len(known) > 500
    assert not [func for func in known if id(func) not in calls.RULES]
    again = [func for func in known if calls.rule_for(func) is rules.read_again and id(func) not in rows]
    assert {func.__name__ for func in again} <= {"_accelerator_getAccelerator", "_profiler_enabled"} | {
        func.__name__ for func in functions if func.__name__.startswith("_cuda_")
    }


# What is named like a setting and is none: fresh objects, clocks, counters.
UNKNOWN: dict[str, Callable[[Any], int]] = {
    "_get_sdp_priority_order": lambda order: order[0],
    "_get_all_dtypes": len,
    "_get_thread_name": lambda name: int(len(name) > 0),
    "_profiler._get_approximate_time": lambda time: int(time > 0),
    "_autograd._get_sequence_nr": lambda number: int(number >= 0),
    "_get_linalg_preferred_backend": lambda backend: int(str(backend) != ""),
    "_get_torch_function_state": lambda state: int(str(state) != ""),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_only_has_such_a_name_breaks(name: str) -> None:
    reader, number = settings.find(name), UNKNOWN[name]
    compiled = stator.compile(lambda x: (x + 1) * number(reader()), backend="eager")
    compiled.stator.reset()
    for value in (1.0, 2.0, 3.0, 4.0):
        x = torch.full((2,), value)
        assert torch.equal(compiled(x), (x + 1) * number(reader()))
    assert compiled.stator.hits and "unknown-callable" in [why.id for why in compiled.stator.break_reasons]


@pytest.mark.parametrize("row", [True, False])
def test_a_list_that_is_made_in_each_call(monkeypatch: pytest.MonkeyPatch, row: bool) -> None:
    """A mistake in the table costs a break: an answer that is no constant cannot be guarded."""
    reader = C._get_sdp_priority_order
    if row:
        monkeypatch.setitem(calls.RULES, id(reader), calls.CallModel(rules.read_again, [reader], "a mistake"))
    before = reader()
    compiled = stator.compile(lambda x: (x + 1) * (reader()[0] + 1), backend="eager")
    compiled.stator.reset()
    x = torch.ones(2)
    try:
        for order in (before, before, [2, 1, 0, 3, 4], [2, 1, 0, 3, 4], before):
            C._set_sdp_priority_order(order)
            assert torch.equal(compiled(x), (x + 1) * (order[0] + 1))
    finally:
        C._set_sdp_priority_order(before)
    assert compiled.stator.hits
    assert ("unguardable" if row else "unknown-callable") in [why.id for why in compiled.stator.break_reasons]
