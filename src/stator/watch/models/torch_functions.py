"""The model of a torch function: what a call of it may do besides computing tensors whose sizes follow from shapes.

Enters: a function that reached the tensor mode, with its arguments. Leaves: a `Model`. It is derived from what torch
says of the ATen operators that the function is made of (`aten.py`): of a C function that is one operator, by name; of
any other, Python functions included, by looking on while it runs for the first time with arguments of these kinds
(`observing`). What holds: a function whose operators say too little breaks the graph. Models are kept by function and
kinds of arguments: all that decides which operators run, if no data does; and where data does, somebody has read it.
"""

from __future__ import annotations

import functools
import types
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import aten

_C: Any = torch._C


class Model(NamedTuple):
    """What a call may do, for arguments of these kinds."""

    reason: str  # id of the graph break; "": it may be a node of a graph
    fails: bool  # can it raise for other data of the same shapes?
    random: bool


SIMPLE = Model("", fails=False, random=False)
FAILING = Model("", fails=True, random=False)
OPAQUE = Model("", fails=True, random=True)  # nobody here knows its inside
BODY = Model("", fails=False, random=True)  # nor of this one, in Python: what it raises is raised on (`failing_ops.py`)

# Functions that read data for nothing but a check of theirs: for other data they give the same sizes, or raise. With
# the places where a tensor would be read for more than that.
_READ_TO_CHECK: dict[str, tuple[int | str, ...]] = {
    "one_hot": (1, "num_classes"),
    "quantile": (2, "dim"),
    "nanquantile": (2, "dim"),
    "gaussian_nll_loss": (),
    "istft": (1, 2, 3, "n_fft", "hop_length", "win_length", "length"),
    "_assert": (),
    "_assert_async": (),
}
# Composite functions that are not for users, and read no data past the operators that they call.
_PRIVATE = frozenset("_weight_norm _shape_as_tensor _dim_arange _batch_norm_impl_index".split())
# Functions that make a tensor of the size that they are given at this place; without it the data tells the size.
_GIVEN_SIZES: dict[str, tuple[int, str]] = {
    "sparse_coo_tensor": (2, "size"),
    **dict.fromkeys(
        "sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor sparse_compressed_tensor".split(),
        (3, "size"),
    ),
}
# Functions that reach no operator, and rightly so.
_WITHOUT_OPERATORS = frozenset(
    "requires_grad_ data detach_ _parse_to float double half bfloat16 cfloat cdouble chalf int long short char byte "
    "bool cpu cuda xpu ipu mtia to type as_tensor tensor asarray".split()
)
# Composite functions in C that are nothing but operators which are simple, for all arguments (a test looks).
_SIMPLE_COMPOSITES = frozenset(
    "linear matmul __matmul__ bmm reshape flatten contiguous view_as expand_as softmax log_softmax layer_norm rms_norm "
    "group_norm conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d float half bfloat16 double to "
    "type_as chunk split unflatten transpose movedim swapaxes swapdims square ones_like "
    "scaled_dot_product_attention_without_dropout pixel_shuffle einsum squeeze true_divide multiply divide subtract "
    "negative absolute greater less greater_equal less_equal not_equal adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d avg_pool1d max_pool1d max_pool2d max_pool3d concat concatenate hstack vstack".split()
)


def is_python(func: Any) -> bool:
    return isinstance(func, types.FunctionType)


# Torch asks in these whether a dispatch mode is on, and then computes in another way, with other roundings: nobody
# looks on. Their sizes follow from shapes, and they may fail.
_NOT_LOOKED_AT = frozenset({"norm", "nuclear_norm", "svd", "pinverse", "det", "slogdet", "logdet", "inverse"})


def _is_linear_algebra(name: str) -> bool:
    if name in _NOT_LOOKED_AT:
        return True
    found = aten.overloads_of(name) if name.startswith("linalg_") else []
    return bool(found) and all(not aten.reads_by_tag(overload) for overload in found)


class KnownByName(NamedTuple):
    """What the operators of a C function's name say, whatever the arguments are."""

    simple: bool  # sizes by shape, no random numbers: nobody has to look on
    fails: bool  # are there arguments for which it may fail?
    divides: bool = False  # does it fail for nothing but integers that it divides by zero?

    def may_fail(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if name in ITEMS:
            return _mentions_tensor(args[1])
        return self.fails and not (self.divides and not aten.divides_integers(args, kwargs))


_UNKNOWN = KnownByName(simple=False, fails=True)
ITEMS = ("__getitem__", "__setitem__")


def _mentions_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_mentions_tensor, value))
    if isinstance(value, slice):
        return any(map(_mentions_tensor, (value.start, value.stop, value.step)))
    return isinstance(value, torch.Tensor)


def known_by_name(func: Any, name: str) -> KnownByName:
    """Of a C function that is one operator. What is given by `out=` is left to who looks on."""
    if _is_linear_algebra(name):
        return KnownByName(simple=True, fails=True)
    if is_python(func) or isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return _UNKNOWN
    if name in ITEMS:
        return KnownByName(simple=True, fails=True)  # `needs_data` knows about masks
    name = _OPERATORS.get(name, name)
    overloads = [o for o in aten.overloads_of(name) if not any(a.is_out for a in o._schema.arguments)]
    if not overloads:
        return _UNKNOWN
    facts = [aten.facts_of(overload) for overload in overloads]
    simple = all(f.sized and not f.random for f in facts)
    if any(f.composite for f in facts):
        simple = name in _SIMPLE_COMPOSITES
        return KnownByName(simple, fails=not simple)
    total = all(f.total for f in facts)
    divides = any(f.divides for f in facts)
    return KnownByName(simple, fails=not total or divides, divides=total and divides)


_OPERATORS = {
    "__add__": "add", "__sub__": "sub", "__mul__": "mul", "__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_",
    "__radd__": "add", "__rmul__": "mul", "__truediv__": "div", "__itruediv__": "div_", "__div__": "div",
    "__idiv__": "div_", "__matmul__": "matmul", "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le",
    "__gt__": "gt", "__ge__": "ge", "__invert__": "bitwise_not", "__neg__": "neg", "__pos__": "positive",
    "__mod__": "remainder", "__imod__": "remainder_", "__abs__": "abs",
}  # fmt: skip


# -- looking on


class Observation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operators that run while it is on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reads = False
        self.fails = False
        self.random = False
        self.count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import and call TorchDynamo around every operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverload):
            if aten.facts_of(func).composite:
                with self:
                    result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            self.note(func, args, kwargs)
        else:
            self.reads = True
        return func(*args, **kwargs)

    def note(self, op: Any, args: Any, kwargs: Any) -> None:
        self.count += 1
        self.reads = self.reads or aten.sizes_by_data(op, args, kwargs)
        self.fails = self.fails or aten.may_fail(op, args, kwargs)
        self.random = self.random or aten.facts_of(op).random


class UnmodelledCall(NamedTuple):
    """A call of a function of which there is no model yet: `run` is called in its place."""

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: Any
    seen: Observation

    def run(self, *_given: Any, **_named: Any) -> Any:
        """(Where constants were put in the place of tensors, it is not called with what it was given.)"""
        with self.seen:
            return self.func(*self.args, **self.kwargs)

    def concluded(self) -> Model:
        """It has run."""
        model = conclude(self.func, self.name, self.args, self.kwargs, self.seen)
        _keep(self.key, model, self.seen)
        return model


def model_of(
    func: Any, name: str, known: KnownByName, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Model | UnmodelledCall:
    """What is known of a call."""
    if known.simple and kwargs.get("out") is None:
        return FAILING if known.may_fail(name, args, kwargs) else SIMPLE
    key = key_of(func, args, kwargs)
    model = None if key is None else _MODELS.get(key)
    return UnmodelledCall(func, name, args, kwargs, key, Observation()) if model is None else model


def without_own_frames(found: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback of an exception, as it is if nobody looks on."""
    frames: list[types.TracebackType] = []
    while found is not None and found.tb_frame.f_code is not Observation.__torch_dispatch__.__code__:
        if found.tb_frame.f_code is not UnmodelledCall.run.__code__:
            frames.append(found)
        found = found.tb_next
    made: types.TracebackType | None = None
    for tb in reversed(frames):
        made = types.TracebackType(made, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return made


def conclude(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Observation) -> Model:
    """What to think of a function that has run."""
    fails = seen.fails
    if seen.reads or not _has_size(name, args, kwargs):
        if not _reads_to_check(name, args, kwargs):
            return Model("dynamic-shape-op", fails=True, random=seen.random)
        fails = True
    if _is_private(func, name):
        return Model("unknown-callable", fails=True, random=seen.random)
    if not seen.count and not is_python(func) and name not in _WITHOUT_OPERATORS and not aten.overloads_of(name):
        return Model("unknown-callable", fails=True, random=seen.random)
    return Model("", fails, seen.random)


def _reads_to_check(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    places = _READ_TO_CHECK.get(name)
    if places is None:
        return False
    read = [args[place] for place in places if isinstance(place, int) and place < len(args)]
    read += [kwargs[place] for place in places if isinstance(place, str) and place in kwargs]
    return not any(map(_mentions_tensor, read))


def _has_size(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name not in _GIVEN_SIZES:
        return True
    place, keyword = _GIVEN_SIZES[name]
    size = args[place] if len(args) > place else kwargs.get(keyword)
    return isinstance(size, (tuple, list)) and not _mentions_tensor(size)


def _is_private(func: Any, name: str) -> bool:
    """A composite function in C that is not for users may read data past the operators."""
    if is_python(func) or not name.startswith("_") or name.startswith("__") or name in _PRIVATE:
        return False
    return any(aten.facts_of(overload).composite for overload in aten.overloads_of(name))


# -- kept by kinds of arguments

_MODELS: dict[Any, Model] = {}
_MOST_MODELS = 10_000
_CONSTANTS = frozenset(
    {
        int,
        float,
        bool,
        str,
        complex,
        type(None),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.Size,
    }
)


class _NoKey(Exception):
    """There is an argument of which nobody knows what decides."""


def key_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All that decides which operators a call is made of; None if that cannot be told."""
    try:
        named = tuple([(name, _kind(value)) for name, value in kwargs.items()]) if kwargs else ()
        key = (func, tuple(map(_kind, args)), named, _C.is_grad_enabled(), _C._functorch.maybe_current_level())
        hash(key)
    except (_NoKey, TypeError):
        return None
    return key


def _kind(value: Any) -> Any:
    cls = type(value)
    if cls in _CONSTANTS:
        return cls, value
    if cls is torch.Tensor or cls is torch.nn.Parameter or cls is torch.nn.Buffer:
        return cls, value.dtype, value.dim(), value.numel() > 1, value.requires_grad, value.device, value.layout
    if cls is tuple or cls is list:
        return cls, *map(_kind, value)
    if cls is slice:
        return cls, _kind(value.start), _kind(value.stop), _kind(value.step)
    raise _NoKey


def _keep(key: Any, model: Model, seen: Observation) -> None:
    """(Not if it did nothing: for other sizes or strides it may do something.)"""
    if key is not None and (seen.count or model.reason):
        if len(_MODELS) >= _MOST_MODELS:
            _MODELS.clear()
        _MODELS[key] = model


@functools.cache
def draws_numbers(name: str) -> bool:
    """Does the operator of this name draw random numbers?"""
    return any(aten.facts_of(overload).random for overload in aten.overloads_of(name))
