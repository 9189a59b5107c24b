"""Where a tensor keeps what guards ask of it: found at import in tensors whose facts are known, and verified.

torch has no stable C interface for dispatch keys and `requires_grad`, and a call per fact costs more than reading it.
So the places of these fields in torch's `TensorImpl` are looked for: a place counts only if it is the single one that
reads right in every probe tensor. C code is then given the places, and has to find each probe's facts, and to deny
wrong ones. If anything disagrees, tensors are read through torch's stable C interface; if that does too, by Python.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import _native
from ..recording import TensorFacts
from ..support.guard_readers import tensor_facts

_LEAST_BYTES, _MOST_BYTES = 176, 256  # of a TensorImpl: it is not smaller in any torch that is supported
_META_BYTES = 160  # of an AutogradMeta: it holds a name, three tensors or nodes, two lists before its flags
_INLINE_RANK = 5  # up to this many sizes lie in the TensorImpl itself
_DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64, torch.uint8)

TYPES = (torch.Tensor, torch.nn.Parameter)
_KINDS = "Dense AutogradFunctionality ADInplaceOrView Conjugate Negative CPUBit CUDABit MetaBit"
_KINDS += " AutocastCPU AutocastCUDA AutogradCPU AutogradCUDA AutogradMeta"


class _Unknown(Exception):
    """A field was not found, or in two places."""


def _only(places: Iterable[int]) -> int:
    found = list(places)
    if len(found) != 1:
        raise _Unknown
    return found[0]


def _allocated(addresses: Iterable[int], otherwise: int) -> int:
    """How much was allocated for the smallest of these, in whole words, where one can ask for that."""
    try:
        ask = ctypes.CDLL(None).malloc_usable_size
    except (AttributeError, OSError):
        return otherwise
    ask.restype, ask.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    return min(int(ask(address)) for address in addresses) // 8 * 8


@functools.cache
def _impl_bytes() -> int:
    """How much of a TensorImpl can be looked at."""
    allocated = _allocated((tensor._cdata for tensor in probes()), _LEAST_BYTES)
    return max(_LEAST_BYTES, min(allocated, _MOST_BYTES))


def _words() -> range:
    return range(0, _impl_bytes(), 8)


def _bytes(tensor: Any) -> bytes:
    return ctypes.string_at(tensor._cdata, _impl_bytes())


def _word(data: bytes, place: int) -> int:
    return int(struct.unpack_from("Q", data, place)[0])


def _keys(tensor: Any) -> int:
    """The dispatch key set, as a word is read."""
    keys: int = torch._C._dispatch_keys(tensor).raw_repr()
    return keys


@functools.cache
def readable_keys() -> int:
    """The dispatch keys that plain tensors have: with others, sizes may be computed by somebody's code."""
    keys = 0
    for name in _KINDS.split():
        key = getattr(torch._C.DispatchKey, name, None)
        if key is not None:
            keys |= torch._C.DispatchKeySet(key).raw_repr()
    for tensor in probes():
        keys |= _keys(tensor)
    return keys


@functools.cache
def probes() -> tuple[Any, ...]:
    """Tensors of all kinds that C code is to read: ranks, dtypes, devices, leaves and others, views, inference."""
    shapes = [
        (),
        (7,),
        (0,),
        (3, 5),
        (2, 3, 5),
        (2, 3, 5, 7),
        (2, 1, 3, 1, 5),
        (2, 1, 3, 1, 2, 3),
        (1, 2, 1, 3, 1, 2, 4),
    ]
    made: list[Any] = [torch.empty(shape) for shape in shapes]
    made += [torch.empty(2, 3, dtype=dtype) for dtype in _DTYPES]
    made += [torch.empty(4, 6).t(), torch.empty(9, 9)[::2, 1:5], torch.empty(3, 1).expand(3, 8)]
    made += [torch.empty(3, device="meta"), torch.empty(3, dtype=torch.complex64).conj()]
    leaf = torch.empty(4, 2, requires_grad=True)
    parameter = torch.nn.Parameter(torch.empty(3, 2))
    made += [leaf, parameter, torch.nn.Parameter(torch.empty(2), requires_grad=False), leaf.detach(), leaf.t()]
    with torch.enable_grad():
        made += [leaf * 2, leaf[1], parameter.view(6), leaf.detach().requires_grad_()]
    with torch.inference_mode():
        made += [torch.empty(5)]
    return tuple(made)


# -- the fields


def _impl_place() -> int:
    """Where a tensor's Python object holds its TensorImpl."""
    size = torch.Tensor.__basicsize__
    words = [(ctypes.string_at(id(tensor), size), tensor._cdata) for tensor in probes()]
    return _only(p for p in range(16, size - 7, 8) if all(_word(data, p) == cdata for data, cdata in words))


def _keys_place() -> int:
    return _only(p for p in _words() if all(_word(_bytes(t), p) == _keys(t) for t in probes()))


def _shape_place() -> int:
    small = [t for t in probes() if 0 < t.dim() <= _INLINE_RANK]

    def reads(tensor: Any, place: int) -> bool:
        rank, data = tensor.dim(), _bytes(tensor)
        if place + 8 * (2 * _INLINE_RANK + 1) > _impl_bytes() or _word(data, place) != rank:
            return False
        numbers = [_word(data, place + 8 * i) for i in range(1, 2 * _INLINE_RANK + 1)]
        sizes, strides = numbers[:rank], numbers[_INLINE_RANK : _INLINE_RANK + rank]
        return sizes == list(tensor.shape) and strides == list(tensor.stride())

    return _only(p for p in _words() if all(reads(t, p) for t in small))


def _dtype_place() -> int:
    """Two bytes that are the same for one dtype and tell any two apart."""
    groups = [[_bytes(torch.empty(shape, dtype=dtype)) for shape in ((), (2, 3), (4,))] for dtype in _DTYPES]

    def reads(place: int) -> bool:
        codes = [{data[place : place + 2] for data in group} for group in groups]
        return all(len(code) == 1 for code in codes) and len(set.union(*codes)) == len(_DTYPES)

    return _only(p for p in range(0, _impl_bytes() - 1, 2) if reads(p))


def _changed(before: bytes, after: bytes, places: Iterable[int], size: int) -> list[int]:
    return [p for p in places if before[p : p + size] != after[p : p + size]]


def _autograd_places() -> tuple[int, int, int]:
    """(AutogradMeta in the TensorImpl, its flag, its grad_fn), each found by changing it and nothing else."""
    tensor = torch.empty(2)
    before = _bytes(tensor)
    tensor.requires_grad_()
    meta = _only(p for p in _changed(before, _bytes(tensor), _words(), 8) if not _word(before, p))

    size = min(_allocated([_word(_bytes(tensor), meta)], _META_BYTES), _META_BYTES)

    def content(tensor: Any) -> bytes:
        return ctypes.string_at(_word(_bytes(tensor), meta), size)

    on = content(tensor)
    off = content(tensor.requires_grad_(False))
    flag = _only(p for p in _changed(on, off, range(size), 1) if (on[p], off[p]) == (1, 0))
    with torch.enable_grad():
        result = torch.empty(2, requires_grad=True) * 2
    before = content(result)
    after = content(result.detach_())
    return meta, flag, _pointer(p for p in _changed(before, after, range(0, size, 8), 8) if not _word(after, p))


def _pointer(places: Iterable[int]) -> int:
    """The place of the one pointer among these words; a shared one has two, side by side."""
    found = list(places)
    return _only(found[:1] if found in [[p, p + 8] for p in found[:1]] else found)


def _storage_place() -> int:
    """Where it holds its memory; -1 if that is not found: then Python compares it."""
    try:
        return _only(p for p in _words() if all(_word(_bytes(t), p) == t.untyped_storage()._cdata for t in probes()))
    except _Unknown:
        return -1


_STORAGE_BYTES = 64  # of a storage, which is larger


def _memory_places() -> tuple[int, int, int]:
    """Where a storage keeps its address, who gave it (the address itself, if that was torch), and its size; or -1."""
    own = [torch.empty(count).untyped_storage() for count in (3, 50, 700)]
    buffers = [bytearray(4 * count) for count in (5, 60, 800)]
    foreign = [torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage() for buffer in buffers]

    def holds(place: int, storages: list[Any], what: str) -> bool:
        contents = [(ctypes.string_at(storage._cdata, _STORAGE_BYTES), storage) for storage in storages]
        return all(_word(content, place) == getattr(storage, what)() for content, storage in contents)

    words = range(0, _STORAGE_BYTES, 8)
    try:
        data = _only(place for place in words if holds(place, own + foreign, "data_ptr"))
        size = _only(place for place in words if holds(place, own + foreign, "nbytes"))
        context = _only(place for place in words if place != data and holds(place, own, "data_ptr"))
    except _Unknown:
        return -1, -1, -1
    return data, context, size


# -- what C code is told


@functools.cache
def _numbers(dtype: torch.dtype, device: torch.device) -> tuple[int, int]:
    """(number of the dtype, index of the device to be asked for)."""
    number, index = _native.tensor_numbers(torch.empty(0, dtype=dtype, device=device))
    return number, (-1 if device.type in ("cpu", "meta") else index)


@functools.lru_cache(maxsize=4096)
def native_facts(facts: TensorFacts) -> tuple[Any, ...] | None:
    """Facts as C code takes them; None if it is no tensor that C code reads."""
    if facts.type not in TYPES or facts.keys & ~readable_keys() or _native.tensor_way() == "unknown":
        return None
    dtype, index = _numbers(facts.dtype, facts.device)
    if dtype < 0 or (index < 0 and facts.device.type not in ("cpu", "meta")):
        return None
    size, stride = tuple(facts.size), tuple(facts.stride)
    if len(size) != len(stride):
        return None
    return facts.type, facts.keys & (1 << 64) - 1, size, stride, dtype, index, facts.requires_grad, facts.is_leaf


def _wrong(facts: TensorFacts) -> list[TensorFacts]:
    """Facts that differ in one point each."""
    others = [
        facts._replace(requires_grad=not facts.requires_grad),
        facts._replace(is_leaf=not facts.is_leaf),
        facts._replace(dtype=torch.int16),
        facts._replace(keys=facts.keys ^ _keys(probes()[0])),
        facts._replace(size=(*facts.size, 1), stride=(*facts.stride, 1)),
    ]
    for place in range(len(facts.size)):
        size, stride = list(facts.size), list(facts.stride)
        size[place] += 1
        stride[place] += 1
        others += [facts._replace(size=tuple(size)), facts._replace(stride=tuple(stride))]
    return others


def _verified() -> bool:
    """Does C code find the facts of every probe, and no others?"""

    def matches(tensor: Any, facts: TensorFacts) -> bool:
        told = native_facts(facts)
        return told is not None and _native.tensor_matches(tensor, told)

    _numbers.cache_clear()
    native_facts.cache_clear()
    for tensor in probes():
        facts = tensor_facts(tensor)
        if not matches(tensor, facts) or any(matches(tensor, wrong) for wrong in _wrong(facts)):
            return False
    right = all(_native.tensor_storage(t) in (None, t.untyped_storage()._cdata) for t in probes())
    foreign = [torch.frombuffer(bytearray(size), dtype=torch.uint8) for size in (20, 240)]
    for tensor in (*(t for t in probes() if t.device.type == "cpu"), *foreign):
        storage = tensor.untyped_storage()
        memory = storage.data_ptr(), storage.nbytes(), not storage.resizable()
        right = right and _native.tensor_memory(tensor) in (None, memory)
    return right and not matches(object(), tensor_facts(probes()[0]))


def reads_storages() -> bool:
    """Can C code tell which tensors share memory?"""
    return _native.tensor_memory(torch.empty(0)) is not None


def learn(layout: Callable[[], tuple[int, ...] | None]) -> bool:
    """Teach C code to read tensors in this way; False, and it reads none, if that does not hold up."""
    base: Any = vars(torch._C.TensorBase)
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        getters = base["requires_grad"], base["is_leaf"], base["grad"]
        _native.tensor_learn(*TYPES, _impl_place(), _keys_place(), *getters, library, layout())
        if _verified():
            return True
    except (_Unknown, KeyError, TypeError, RuntimeError):
        pass
    _native.tensor_forget()
    return False


def places() -> tuple[int, ...]:
    """The layout: shape, inline rank, dtype, autograd, flag, grad_fn, storage, address, context, size."""
    return _shape_place(), _INLINE_RANK, _dtype_place(), *_autograd_places(), _storage_place(), *_memory_places()


def stable_interface() -> None:
    """No layout: torch's C interface is asked."""


def setup() -> None:
    """Called once, at import."""
    learn(places) or learn(stable_interface)
    probes.cache_clear()
