"""How a torch function is treated at all, by its name: a fact, a break, a change of state, or an operation.

Names stand here for what torch says nowhere: which functions answer from what tensor guards fix, which hand out a
tensor's memory or its numbers. Every other function is an operation, and `torch_functions.py` has its model. Where the
signature of an operator wants a number, a tensor is read for its value: that is a break, too.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import Any

import torch


class Treatment(enum.IntEnum):
    OPERATION = 0  # a node of the graph
    FACT = 1  # answers from what tensor guards fix: no node
    STATE = 2  # changes torch's global state: a node, and a new state to expect
    BREAK = 3  # needs the tensor's data, or hands out its memory
    SCALAR = 5  # gives a number that stays a node
    GRAD = 6  # sets a tensor's gradient: an effect
    ATTRIBUTE = 4  # state of a tensor that no fact covers (`grad`, hooks): an attribute like any other


_FACT_ATTRIBUTES = frozenset(
    "shape dtype device ndim layout requires_grad is_leaf itemsize nbytes is_cuda is_cpu is_sparse is_sparse_csr "
    "is_meta is_quantized is_nested is_mkldnn is_xpu is_mps is_xla is_hpu is_ipu is_vulkan is_maia is_mtia".split()
)
_TENSOR_ATTRIBUTES = frozenset("T mT H mH real imag data".split())
_FACTS = frozenset(
    "size dim stride numel nelement is_contiguous is_floating_point is_complex element_size get_device "
    "type __len__ ndimension is_inference result_type promote_types can_cast is_signed is_same_size is_conj is_neg "
    "_is_zerotensor has_names dense_dim sparse_dim device dim_order _has_compatible_shallow_copy_type".split()
)
SIZE_FACTS = frozenset(
    "shape size numel nelement stride __len__ nbytes dim ndim ndimension is_contiguous is_same_size dim_order".split()
)
# Facts about several tensors; the others take one, and numbers.
_FACTS_OF_SEVERAL = frozenset("result_type can_cast is_same_size _has_compatible_shallow_copy_type".split())
_BREAKS = {
    "item": "tensor-item",
    "tolist": "tensor-tolist",
    "__bool__": "tensor-bool",
    "is_nonzero": "tensor-bool",
    "__contains__": "tensor-bool",
    "__int__": "tensor-scalar",
    "__float__": "tensor-scalar",
    "__index__": "tensor-scalar",
    "__complex__": "tensor-scalar",
    "equal": "tensor-bool",
    "allclose": "tensor-bool",
    "numpy": "tensor-numpy",
    "__array__": "tensor-numpy",
    "__array_wrap__": "tensor-numpy",
    "data_ptr": "tensor-data-ptr",
    "indices": "dynamic-shape-op",
    "values": "dynamic-shape-op",
    "_indices": "dynamic-shape-op",
    "_values": "dynamic-shape-op",
    "is_coalesced": "tensor-scalar",
    "coalesce": "dynamic-shape-op",  # it may be so already, and then it is the same tensor
    "_nnz": "tensor-scalar",
    "untyped_storage": "tensor-data-ptr",
    "storage": "tensor-data-ptr",
    "__dlpack__": "tensor-data-ptr",
    "__dlpack_device__": "tensor-data-ptr",
    "is_set_to": "tensor-data-ptr",
    "is_shared": "tensor-data-ptr",
    "share_memory_": "tensor-data-ptr",
    "is_pinned": "tensor-data-ptr",
    "set_": "tensor-data-ptr",
    "resize_": "tensor-data-ptr",
    "resize_as_": "tensor-data-ptr",
    "__repr__": "tensor-text",
    "__str__": "tensor-text",
    "__format__": "tensor-text",
    "backward": "backward",
    "grad": "backward",
    "register_hook": "backward-hooks",
    "register_post_accumulate_grad_hook": "backward-hooks",
    "retain_grad": "backward-hooks",
    "__deepcopy__": "unknown-callable",
    "__reduce_ex__": "unknown-callable",
    "apply_": "unknown-callable",
    "map_": "unknown-callable",
    "map2_": "unknown-callable",
    "unique": "dynamic-shape-op",
    "unique_consecutive": "dynamic-shape-op",
    "combinations": "dynamic-shape-op",
}
# Functions which read the shape of their result from tensor arguments besides the tensor they work on, if given any.
_FACTORIES = frozenset("zeros ones empty full arange linspace logspace rand randn randint randperm eye range".split())
_SIZED_BY_DATA = _FACTORIES | frozenset(
    "view reshape expand repeat narrow new_zeros new_ones new_full new_empty split chunk tensor_split unflatten "
    "as_strided repeat_interleave tile roll pad".split()
)
_STATE_SETTERS = frozenset({"_set_grad_enabled"})


def name_of(func: Any) -> str:
    """The bare name of a torch function, of the attribute for a getter."""
    if isinstance(func, types.MethodWrapperType):
        return str(getattr(func.__self__, "__name__", "attribute"))
    name = getattr(func, "__name__", None) or type(func).__name__
    return str(name).split(".")[0]


def treatment_of(func: Any) -> tuple[Treatment, str]:
    """What to do with a function, and why if it breaks the graph."""
    name = name_of(func)
    if isinstance(func, types.MethodWrapperType):
        return _treatment_of_attribute(func.__name__, name)
    if name == "storage_offset":
        return Treatment.ATTRIBUTE, ""
    if name in _STATE_SETTERS:
        return Treatment.STATE, ""
    if name in _FACTS:
        return Treatment.FACT, ""
    if name in _BREAKS:
        return Treatment.BREAK, _BREAKS[name]
    if isinstance(func, torch._ops.HigherOrderOperator):
        return Treatment.BREAK, "functorch"
    if _depends_on_data(name) or "nested_tensor" in name:  # the sizes inside of a nested tensor
        return Treatment.BREAK, "dynamic-shape-op"
    return Treatment.OPERATION, ""


def _treatment_of_attribute(access: str, name: str) -> tuple[Treatment, str]:
    if access == "__set__" and name == "grad":
        return Treatment.GRAD, ""
    if access != "__get__":
        return Treatment.BREAK, "attribute-set-on-tensor"
    if name in _FACT_ATTRIBUTES:
        return Treatment.FACT, ""
    if name in _TENSOR_ATTRIBUTES:
        return Treatment.OPERATION, ""
    if name in ("grad", "_grad", "grad_fn", "_backward_hooks", "_post_accumulate_grad_hooks", "retains_grad"):
        return Treatment.ATTRIBUTE, ""
    return Treatment.BREAK, "tensor-data-ptr"


def _depends_on_data(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None) if not name.startswith("__") else None
    if packet is None:
        return False
    wanted = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    # `where` and `repeat_interleave` have such overloads only for some arguments: `needs_data` looks at those.
    if name in ("where", "repeat_interleave", "index", "item", "one_hot"):
        return False
    return any(wanted & set(getattr(packet, overload).tags) for overload in packet.overloads())


_MOST_ARGUMENTS = 60  # those behind count as one
_EVERYWHERE = (2 << _MOST_ARGUMENTS) - 1


def places_of_data(func: Any, name: str, kind: Treatment, opaque: bool) -> int:
    if kind is Treatment.FACT:
        return 0 if name in _FACTS_OF_SEVERAL else _EVERYWHERE - 1
    return _by_signature(name) if kind is Treatment.OPERATION and not opaque and _may_need_data(func, name) else 0


def _by_signature(name: str) -> int:
    if name in _FACTORIES:
        return _EVERYWHERE
    if name in _SIZED_BY_DATA or name in ("__getitem__", "__setitem__"):
        return _EVERYWHERE - 1
    wanted = sum(1 << index for index in range(_MOST_ARGUMENTS) if _wants_number(name, index, None))
    return wanted | 1 << _MOST_ARGUMENTS


def _may_need_data(func: Any, name: str) -> bool:
    """Are there arguments for which `needs_data` says yes?"""
    if name in ("__getitem__", "__setitem__", "where", "one_hot") or name in _SIZED_BY_DATA:
        return True
    packet = getattr(torch.ops.aten, name, None) if not name.startswith("__") else None
    if packet is None or isinstance(func, types.FunctionType):
        return False
    kinds: dict[int | str, list[str]] = {}  # by position and by name
    for overload in packet.overloads():
        for position, argument in enumerate(getattr(packet, overload)._schema.arguments):
            for place in (position, argument.name):
                kinds.setdefault(place, []).append(str(argument.type))
    return any(map(_is_number, kinds.values()))


def needs_data(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Does the shape of the result depend on the contents of a tensor, for these arguments?"""
    if name == "__getitem__" or name == "__setitem__":
        return name == "__getitem__" and _index_needs_data(args[1])
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "one_hot":
        return bool((args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) == -1)
    if name in _SIZED_BY_DATA:
        rest = (*args[0 if name in _FACTORIES else 1 :], *kwargs.values())
        if name in ("full", "new_full"):
            rest = rest[:1]
        return any(_has_tensor(arg) for arg in rest)
    if isinstance(func, types.FunctionType):
        return False
    return any(_has_tensor(arg) and _wants_number(name, index, None) for index, arg in enumerate(args)) or any(
        _has_tensor(arg) and _wants_number(name, -1, key) for key, arg in kwargs.items()
    )


@functools.cache
def _wants_number(name: str, index: int, keyword: str | None) -> bool:
    """Would a tensor given here be read for its value, as a dimension or a size?"""
    packet = getattr(torch.ops.aten, name, None) if not name.startswith("__") else None
    if packet is None:
        return False
    found = []
    for overload in packet.overloads():
        arguments = getattr(packet, overload)._schema.arguments
        for position, argument in enumerate(arguments):
            if position == index or (keyword is not None and argument.name == keyword):
                found.append(str(argument.type))
    return bool(found) and _is_number(found)


def _is_number(kinds: list[str]) -> bool:
    """Can an argument of these types be no tensor?"""
    return not any("Tensor" in kind or "number" in kind for kind in kinds)


_NORMALISATIONS = frozenset({"batch_norm", "instance_norm", "native_batch_norm", "_native_batch_norm_legit"})


def writes_in_place(name: str, kwargs: dict[str, Any]) -> bool:
    """Does a function write to an operand, by its name and arguments?"""
    if name.endswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in ("__index__", "__invert__", "__int__"))
    # Normalisations write to their running statistics, and not every one of them counts up the version.
    return name.endswith("_") or bool(kwargs.get("inplace")) or kwargs.get("out") is not None or name in _NORMALISATIONS


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor)


def _index_needs_data(index: Any) -> bool:
    if isinstance(index, (tuple, list)):
        return any(map(_index_needs_data, index))
    if isinstance(index, slice):
        return any(isinstance(part, torch.Tensor) for part in (index.start, index.stop, index.step))
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
