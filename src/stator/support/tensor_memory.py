"""Is the memory of a tensor there? A program can take it away (`untyped_storage().resize_`), and ATen does not look."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..errors import StorageError
from .op_namespaces import is_torchs_own

_PLAIN = (Tensor, torch.nn.Parameter)


def is_short(value: Any) -> bool:
    """Whether it is a plain tensor whose storage is smaller than itself. What has no memory of its own is none."""
    if type(value) not in _PLAIN or value.layout is not torch.strided or value.device.type == "meta":
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(value) or value._is_zerotensor() or not value.numel():
        return False
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
    try:
        storage = value.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    if int(value.storage_offset() + reach) * value.element_size() > storage.nbytes():
        return True
    return bool(value.device.type == "cpu" and value.data_ptr() == 0)


def refuse_short(*values: Any) -> None:
    """What follows touches their memory."""
    if any(map(is_short, values)):
        raise StorageError


@functools.cache
def reads_memory(target: Any) -> bool:
    """Does this operator of torch's own touch what lies in its operands? Of others their authors say what they take."""
    if not isinstance(target, torch._ops.OpOverload) or not is_torchs_own(target):
        return False
    if any(result.alias_info is not None and not result.alias_info.is_write for result in target._schema.returns):
        return False  # a view
    name = target._opname
    return not (name.endswith("_like") or name.startswith(("new_", "sym_")))
