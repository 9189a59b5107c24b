"""Torch's global state: who is asked for it, by C code, in every call.

C code asks the readers in `_READERS` as Python would. Some of them have a C++ function behind them that can be asked
directly, which takes a fraction of the time. Those are used only if they agree with the readers, by default and while
each part of the state is another.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import _C
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _native as n
from ..interrupts import let_through
from ..support.guard_readers import PRECISION_ROWS, autocast_state, torch_settings, torch_state
from ..support.torch_builds import is_read_up

_READERS = (
    (_C.is_grad_enabled, None, n.STATE_NUMBER),
    (_C._get_tracing_state, None, n.STATE_IS_NONE),
    (_C.is_inference_mode_enabled, None, n.STATE_NUMBER),
    (_C.get_default_dtype, None, n.STATE_OBJECT),
    (_C._len_torch_function_stack, None, n.STATE_NUMBER),
    (_C._len_torch_dispatch_stack, None, n.STATE_NUMBER),
    (_C._functorch.maybe_current_level, None, n.STATE_NUMBER_OR_NONE),
    (_C._autograd._top_saved_tensors_default_hooks, False, n.STATE_IS_NONE),
    (torch_settings, None, n.STATE_NUMBER),
    (None, None, n.STATE_NUMBER),
)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@contextlib.contextmanager
def _functorch_level() -> Iterator[None]:
    _C._functorch._vmap_increment_nesting(1, "error")
    try:
        yield
    finally:
        _C._functorch._vmap_decrement_nesting()


@contextlib.contextmanager
def _autocast(device: str) -> Iterator[None]:
    """Without what `torch.autocast` does besides: it looks for the device."""
    former = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, not former)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, former)


@contextlib.contextmanager
def _deterministic(warn_only: bool, fill: bool) -> Iterator[None]:
    """Without what `torch.use_deterministic_algorithms` does besides: it tells TorchInductor."""
    former = _C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()
    former_fill = _C._get_deterministic_fill_uninitialized_memory()
    _C._set_deterministic_algorithms(not former[0], warn_only=warn_only)
    _C._set_deterministic_fill_uninitialized_memory(fill)
    try:
        yield
    finally:
        _C._set_deterministic_fill_uninitialized_memory(former_fill)
        _C._set_deterministic_algorithms(former[0], warn_only=former[1])


@contextlib.contextmanager
def _default_dtype() -> Iterator[None]:
    former = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if former is torch.float32 else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(former)


# Under each of these the answers must agree as well. (Tracing cannot be had for little, and a precision cannot be put
# back to what it is by default; tests see to these.)
_PROBES: tuple[Callable[[], contextlib.AbstractContextManager[Any]], ...] = (
    contextlib.nullcontext,
    torch.inference_mode,
    torch.enable_grad,
    torch.no_grad,
    TorchFunctionMode,
    TorchDispatchMode,
    _functorch_level,
    _default_dtype,
    lambda: torch.autograd.graph.saved_tensors_hooks(_same, _same),
    *(functools.partial(_deterministic, warn_only, fill) for warn_only in (False, True) for fill in (False, True)),
    lambda: _autocast("cpu"),
    lambda: _autocast("cuda"),
)


def _agrees(former: tuple[Any, ...], probe: Callable[[], contextlib.AbstractContextManager[Any]]) -> bool:
    with probe():
        now = torch_state()
        return n.state_is(now) and (now == former or not n.state_is(former))


def is_direct() -> bool:
    """Can C code ask torch's functions directly? It does so from now on."""
    if not is_read_up():
        return n.state_direct("", "", 0)
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    libraries = os.path.join(folder, "libtorch_cpu.so"), os.path.join(folder, "libc10.so")
    if not n.state_direct(*libraries, len(PRECISION_ROWS)):
        return False
    former = torch_state()
    try:
        if all(_agrees(former, probe) for probe in _PROBES) and n.state_is(former):
            return True
    except Exception as error:
        let_through(error)
    return n.state_direct("", "", 0)


def setup() -> None:
    n.state_learn(_READERS, vars(forward_ad), "_current_level", _C._is_any_autocast_enabled, autocast_state)
    is_direct()
