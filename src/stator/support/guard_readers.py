"""How the facts that guards speak of are read: by `watch` when it records them, by `replay` when it checks them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import torch
from torch.autograd import forward_ad

from ..recording import TensorFacts
from .builtin_types import TYPE_MODELS

_C: Any = torch._C
_AUTOCAST_DEVICES = ("cpu", "cuda")

# -- torch's global state


def torch_state() -> tuple[Any, ...]:
    """Everything that changes what an operation does and is not among its arguments."""
    return (
        _C.is_grad_enabled(),
        _C._get_tracing_state() is None,
        _C.is_inference_mode_enabled(),
        _C.get_default_dtype(),
        _C._len_torch_function_stack(),
        _C._len_torch_dispatch_stack(),
        _C._functorch.maybe_current_level(),
        _C._autograd._top_saved_tensors_default_hooks(False) is None,
        torch_settings(),
        forward_ad._current_level,
        autocast_state() if _C._is_any_autocast_enabled() else None,
    )


# Settings that operations look at when they run, and compilers when they compile. C code reads the same, in this order.
PRECISIONS = ("none", "ieee", "tf32", "bf16")
PRECISION_ROWS = (
    ("mkldnn", "matmul"),
    *([("cuda", "matmul"), ("cuda", "conv")] if hasattr(_C, "_cuda_getDeviceCount") else ()),
)


def torch_settings() -> int:
    """Deterministic algorithms and precisions of float32, as the digits of one number."""
    number = (
        _C._get_deterministic_algorithms()
        + 2 * _C._get_deterministic_algorithms_warn_only()
        + 4 * _C._get_deterministic_fill_uninitialized_memory()
    )
    for place, row in enumerate(PRECISION_ROWS, start=1):
        number += PRECISIONS.index(_C._get_fp32_precision_getter(*row)) << 4 * place
    return int(number)


def autocast_state() -> tuple[Any, ...]:
    devices = tuple((_C.is_autocast_enabled(d), _C.get_autocast_dtype(d)) for d in _AUTOCAST_DEVICES)
    return (*devices, _C.is_autocast_cache_enabled())


def autocast_part(state: tuple[Any, ...], reader: str, args: tuple[Any, ...]) -> Any:
    """What a reader of torch's says of a setting of autocast in this state; None if the state does not tell."""
    if "cache" in reader:
        return state[-1]
    device = args[0] if args else "cpu" if "cpu" in reader else "cuda"
    if device not in _AUTOCAST_DEVICES:
        return None
    return state[_AUTOCAST_DEVICES.index(device)]["dtype" in reader]


STATE_NAMES = (
    "grad mode",
    "absence of tracing",
    "inference mode",
    "default dtype",
    "number of torch function modes",
    "number of torch dispatch modes",
    "functorch level",
    "absence of saved tensor hooks",
    "deterministic algorithms and precisions",
    "forward AD level",
    "autocast",
)

MODE_COUNT = STATE_NAMES.index("number of torch function modes")
FORWARD_LEVEL = STATE_NAMES.index("forward AD level")

# -- tensors


def tensor_facts(tensor: Any, keys: int | None = None) -> TensorFacts:
    """Read with no torch function mode on (as it is inside of one). `keys`: the raw dispatch key set, if known."""
    return TensorFacts._make(
        (
            type(tensor),
            tensor.dtype,
            tensor.device,
            tensor.shape,
            tensor.stride() if tensor.layout is torch.strided else (),
            tensor.requires_grad,
            tensor.is_leaf,
            _C._dispatch_keys(tensor).raw_repr() if keys is None else keys,
        )
    )


def fits(found: TensorFacts, expected: TensorFacts) -> bool:
    """Are these the facts that are expected? What is expected to be None may be anything."""
    return (
        found._replace(size=(), stride=()) == expected._replace(size=(), stride=())
        and fits_numbers(found.size, expected.size)
        and fits_numbers(found.stride, expected.stride)
    )


def fits_numbers(found: Any, expected: Any) -> bool:
    if found == expected:
        return True
    return len(found) == len(expected) and all(a == b or b is None for a, b in zip(found, expected, strict=True))


def shared_storages(tensors: Iterable[Any]) -> tuple[tuple[int, ...], ...]:
    """Groups of positions whose tensors lie in one storage."""
    groups: dict[int, list[int]] = {}
    storages: dict[int, Any] = {}
    for index, tensor in enumerate(tensors):
        if type(tensor) not in (int, float) and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            groups.setdefault(storage._cdata, []).append(index)
            storages[storage._cdata] = storage
    for one, other in _overlapping(storages.values()):
        groups[one._cdata] = groups[other._cdata] = sorted({*groups[one._cdata], *groups[other._cdata]})
    return tuple(dict.fromkeys(tuple(group) for group in groups.values() if len(group) > 1))


def share_foreign_memory(tensors: Iterable[Any]) -> bool:
    """Do two of these lie in one piece of memory, each in a storage of its own? (Two tensors made of one array do.)"""
    strided = (tensor for tensor in tensors if tensor.layout is torch.strided)
    return bool(_overlapping({t.untyped_storage()._cdata: t.untyped_storage() for t in strided}.values()))


def _overlapping(storages: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Pairs of storages that share memory: one of them at least is not torch's own, which could be resized."""
    known = [(storage, storage.data_ptr(), storage.nbytes()) for storage in storages]
    return [
        (storage, other)
        for storage, start, size in known
        if not storage.resizable()
        for other, begin, length in known
        if other is not storage and start < begin + length and begin < start + size
    ]


def memory_of(tensor: Any) -> int:
    """The storage that a tensor lies in, or that the one lies in for which it stands."""
    memory: int | None = getattr(tensor, "stator_memory", None)
    return tensor.untyped_storage()._cdata if memory is None else memory


def stand_for(fake: Any, tensor: Any) -> None:
    """A tensor without data has a storage of its own; this says which other ones it shares it with."""
    fake.stator_memory = memory_of(tensor)


# In the `meta` of a node: it draws random numbers; the program has asked for the sizes of its result, which were these;
# it may write to an input of which nobody keeps what it was.
RANDOM, SIZES, WRITES = "random", "sizes", "writes"


def draws_numbers(graph: torch.fx.Graph) -> bool:
    """Does the graph draw random numbers, or one that is a part of it?"""
    owner = graph.owning_module
    for node in graph.nodes:
        if node.meta.get(RANDOM):
            return True
        part = owner.get_submodule(str(node.target)) if node.op == "call_module" and owner is not None else None
        if part is not None and any(
            draws_numbers(m.graph) for m in part.modules() if isinstance(m, torch.fx.GraphModule)
        ):
            return True
    return False


# -- classes

_HEAP = 1 << 9
_IMMUTABLE = 1 << 8
_NOT_SPECIAL = frozenset(
    {"__doc__", "__module__", "__dict__", "__wrapped__", "__weakref__", "__qualname__", "__annotations__", "__slots__"}
    | {"__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__"}
    | {"__dataclass_fields__", "__dataclass_params__", "__match_args__", "__constants__", "__annotate__"}
    | {"__slotnames__"}  # where `copyreg` keeps what it has found out about the class, from the first pickle on
    | {"__setstate__"}  # looked up by Python code, and by what reads pickles. TorchDynamo puts one of its own there
    | {"__init__"}  # looked up where the class is called, which is noted. TorchDynamo puts one of its own there
)


# The dict of a class itself: `vars` would run code of a metaclass that has a `__dict__` of its own.
class_dict: Callable[[type], MappingProxyType[str, Any]] = type.__dict__["__dict__"].__get__


def is_open(cls: type) -> bool:
    """Can the class dict change (was it made by a class statement)?"""
    return cls.__flags__ & (_HEAP | _IMMUTABLE) == _HEAP


def keeps_class(cls: type) -> bool:
    """Does an instance stay one? `__class__` can be assigned where both classes are open, and on modules."""
    return not is_open(cls) and not issubclass(cls, ModuleType)


def special_methods(cls: type) -> dict[str, Any]:
    """All special methods of a class, as its MRO resolves them, where it is open."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if is_open(base):
            for name, value in class_dict(base).items():
                if name.startswith("__") and name.endswith("__") and name not in _NOT_SPECIAL:
                    found[name] = value
    return found


# -- modules

GLOBAL_HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


def is_unhooked(module: Any) -> bool:
    """Has this module no hooks, and nothing of its own in place of the methods that lead to `forward`?"""
    d = module.__dict__
    return not (
        d["_backward_hooks"]
        or d["_backward_pre_hooks"]
        or d["_forward_hooks"]
        or d["_forward_pre_hooks"]
        or "forward" in d
        or "_call_impl" in d
        or d.get("_compiled_call_impl") is not None
    )


# -- containers

_KINDS = tuple((model.type, model.kind) for model in TYPE_MODELS if model.kind is not None)


_EXACT_KINDS: dict[type, str | None] = {
    **dict(_KINDS),
    **dict.fromkeys((int, float, bool, str, bytes, type, type(None), FunctionType, torch.Tensor, torch.nn.Parameter)),
}


def container_kind(cls: type) -> str | None:
    """Which builtin container's layout a class has."""
    if cls in _EXACT_KINDS:
        return _EXACT_KINDS[cls]
    for base, kind in _KINDS:
        if issubclass(cls, base):
            return kind
    return None


def keys_of(mapping: dict[Any, Any]) -> Iterable[Any]:
    """Keys in iteration order; an OrderedDict keeps its own."""
    base: Any = OrderedDict if issubclass(type(mapping), OrderedDict) else dict
    keys: Iterable[Any] = base.keys(mapping)
    return keys


_IDENTITY_HASHES = (object.__hash__, torch.Tensor.__hash__)
_IDENTITY_COMPARISONS = (object.__eq__, torch.Tensor.__eq__)  # a dict compares identities before it asks a tensor


def has_own_hash(key: Any) -> bool:
    """Is an object, used as a key of a dict, found by nothing but its identity?"""
    cls: Any = type(key)
    return cls.__hash__ in _IDENTITY_HASHES and cls.__eq__ in _IDENTITY_COMPARISONS


VALUE_TYPES = (int, float, complex, str, bytes)  # a subclass of these has a value beside its attributes


def plain_value(base: Any, value: Any) -> Any:
    """The number or text that an instance of a subclass is, whatever the subclass says of itself."""
    if base is str:
        return str.__str__(value)
    if base is bytes:
        return bytes.__getitem__(value, slice(None))
    return base.__pos__(value)


def same_constant(found: Any, expected: Any) -> bool:
    """Equal in type and value, all the way down; tells -0.0 from 0.0, and a NaN from any other.

    (In a container a NaN is found by identity.)
    """
    cls = type(expected)
    if type(found) is not cls:
        return False
    if cls is float or cls is complex:
        return found is expected or (found == expected and repr(found) == repr(expected))
    if issubclass(cls, tuple):
        return len(found) == len(expected) and all(map(same_constant, found, expected))
    if hasattr(cls, "tobytes"):  # a number of numpy's
        return bool(found.dtype == expected.dtype and found.tobytes() == expected.tobytes())
    if cls is range:
        return (found.start, found.stop, found.step) == (expected.start, expected.stop, expected.step)
    if cls is slice:
        parts = zip((found.start, found.stop, found.step), (expected.start, expected.stop, expected.step), strict=True)
        return all(same_constant(a, b) for a, b in parts)
    return bool(found == expected)
