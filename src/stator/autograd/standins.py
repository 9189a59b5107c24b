"""Stand-ins: tensors without data that a program is traced on in place of its inputs.

Enters: real tensors, or fake ones with symbolic sizes. Leaves: tensors with the same size, strides and dtype, and a
way to run operators on them.
Static shapes on the CPU take plain meta tensors, which is fast. Whatever else there is (other devices, symbolic
shapes) takes fake tensors, which know their device.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.immutable_collections import immutable_list
from torch.utils._pytree import tree_leaves, tree_map_only

from ..errors import CannotDerive
from . import narrow_strides
from .operators import facts
from .symbols import is_symbolic, made_by_data, surely_equal

META = torch.device("meta")
CPU = torch.device("cpu")
_SIZED_BY_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

aten = torch.ops.aten
# Of tensors that do not lie in order these give results with other strides on the CPU than torch's meta kernels say
# (found by comparing all operators of torch's own samples).
_OTHER_STRIDES = frozenset(
    {
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_functional.default,
        aten._batch_norm_with_update_functional.default,
        aten.log_sigmoid_forward.default,
        aten.huber_loss_backward.default,
        aten.smooth_l1_loss_backward.default,
        aten.mse_loss_backward.default,
        aten._log_softmax_backward_data.default,
        aten.native_dropout_backward.default,
        aten.div.Tensor_mode,
        aten.floor_divide.default,
        aten.pow.Scalar,
        aten.copysign.Tensor,
        aten.logical_and.default,
        aten.logical_or.default,
        aten.logical_xor.default,
        aten._fft_c2r.default,
        aten.normal.Tensor_Tensor,
        aten.normal.Tensor_float,
        aten.normal.float_Tensor,
    }
)
# These always do, or may.
_OTHER_STRIDES_ALWAYS = frozenset(
    {
        aten._linalg_svd.default,
        aten.linalg_eig.default,
        aten.max_unpool2d.default,
        aten.nonzero_static.default,
        aten._embedding_bag.default,
        aten._embedding_bag_forward_only.default,
    }
)
# Of narrow floats these keep statistics in another type than torch's meta kernels say.
_OTHER_TYPES = frozenset(
    {
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_functional.default,
        aten._batch_norm_with_update_functional.default,
        aten.native_layer_norm.default,
    }
)


# Fake tensors know the rule for these; meta tensors do not.
_CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})

# Their meta kernels take no symbols. Of gradients that lie in order they give new tensors of the sizes that they are
# told.
_SIZED_BY_ARGUMENT = frozenset(
    {
        aten.upsample_nearest1d_backward.default,
        aten.upsample_nearest3d_backward.default,
        aten.upsample_linear1d_backward.default,
        aten.upsample_bilinear2d_backward.default,
        aten.upsample_trilinear3d_backward.default,
        aten.upsample_bicubic2d_backward.default,
    }
)


def _believable(op: OpOverload, args: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether an operator gives on the CPU what its meta kernel says."""
    if op in _OTHER_STRIDES_ALWAYS or (op in _OTHER_TYPES and _narrow(args)):
        return False
    if op is aten._fft_r2c.default and len(args[0][1]) > 1:  # of several dimensions
        return False
    return op not in _OTHER_STRIDES or _in_order(args)


def _narrow(args: Any) -> bool:
    return any(isinstance(t, Tensor) and t.dtype in (torch.bfloat16, torch.float16) for t in tree_leaves(args))


def _in_plain_order(args: Any) -> bool:
    tensors = [value for value in tree_leaves(args) if isinstance(value, Tensor)]
    return all(tensor.stride() == torch.empty(tensor.shape, device=META).stride() for tensor in tensors)


def _goes_by_narrow_strides(op: OpOverload, args: Any) -> bool:
    """Do strides of dimensions of size 1 decide about those of the result, in another way than meta kernels say?"""
    return op in _CONVOLUTIONS and not _in_plain_order(args)


def _in_order(args: Any) -> bool:
    return all(tensor.is_contiguous() for tensor in tree_leaves(args) if isinstance(tensor, Tensor))


def _not_expanded(op: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Expanded operands of narrow floats as they were before that, where another operand has the size.

    For kernels that is the same. Torch's meta kernels cast these operands first, which kernels do not, and what is cast
    has lost the order of its dimensions."""
    tensors = {number: arg for number, arg in enumerate(args) if isinstance(arg, Tensor) and arg.dim()}
    if len(tensors) < 2 or torch.Tag.pointwise not in op.tags or not _narrow(args):
        return args
    common = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors.values()])
    wide = {dim for tensor in tensors.values() for dim in range(-tensor.dim(), 0) if not _repeats(tensor, dim)}
    return tuple(_first(arg, wide) if i in tensors and arg.dtype is common else arg for i, arg in enumerate(args))


def _repeats(tensor: Tensor, dim: int) -> bool:
    stride, size = tensor.stride()[dim], tensor.shape[dim]
    return surely_equal((stride,), (0,)) or surely_equal((size,), (1,))


def _first(tensor: Tensor, wide: set[int]) -> Tensor:
    dims = {dim for dim in wide if dim >= -tensor.dim() and _repeats(tensor, dim)}
    sizes = [1 if dim - tensor.dim() in dims else size for dim, size in enumerate(tensor.shape)]
    return tensor.as_strided(sizes, tensor.stride()) if dims else tensor


# What operators gave, by what they were given. Torch's meta kernels are Python and take up to a millisecond, and a
# model does the same things again in every layer.


class _NotCached(Exception):
    """Something that a look does not tell all of."""


class _Look(NamedTuple):
    """All that an operator on stand-ins knows of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
_RESULTS: dict[Any, Any] = {}
_MOST_RESULTS = 20_000


def _looks(arg: Any) -> Any:
    kind = type(arg)
    if kind is Tensor or kind is torch.nn.Parameter:
        if arg.dtype.is_complex:
            raise _NotCached
        return _Look(arg.shape, arg.stride(), arg.dtype)
    if kind in _PLAIN:
        return kind, arg  # the type too: 1 == 1.0 == True
    if kind is tuple or kind is list or kind is torch.Size or kind is immutable_list:
        return tuple([_looks(item) for item in arg])
    raise _NotCached


def _look_of_result(result: Any) -> Any:
    if isinstance(result, Tensor) and not result.dtype.is_complex:
        return _Look(tuple(result.shape), result.stride(), result.dtype)
    if type(result) in (tuple, list):
        return type(result)(map(_look_of_result, result))
    raise _NotCached


def _made(look: Any) -> Any:
    if type(look) is _Look:
        return torch.empty_strided(look.shape, look.stride, dtype=look.dtype, device=META)
    return type(look)(map(_made, look))


class MetaStandIns:
    """Meta tensors for tensors on the CPU."""

    device = CPU
    symbolic = False

    def of(self, tensor: Tensor) -> Tensor:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
        if tensor.storage_offset():
            room = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device=META).untyped_storage()
            empty = torch.empty(0, dtype=tensor.dtype, device=META)
            made = empty.set_(room, tensor.storage_offset(), tensor.shape, tensor.stride())  # no view of anything
        if tensor.is_conj():
            made = made.conj()
        return made.neg() if tensor.is_neg() else made

    def owns(self, tensor: Tensor) -> bool:
        return tensor.device.type == "meta"

    def run(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = facts(op)
        if known.takes_device:
            kwargs = {**kwargs, "device": META}
        if known.view_of is not None or known.writes or known.in_place_view:
            return op(*args, **kwargs)
        try:
            key = (op, torch.get_default_dtype(), _looks(args), _looks(tuple(kwargs.items())))
            made = _RESULTS.get(key)
        except _NotCached:
            return self._run(op, args, kwargs)
        if made is not None:
            return _made(made)
        result = self._run(op, args, kwargs)
        with contextlib.suppress(_NotCached):
            if len(_RESULTS) >= _MOST_RESULTS:
                _RESULTS.clear()
            _RESULTS[key] = _look_of_result(result)
        return result

    def _run(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _believable(op, (args, kwargs)) and not _goes_by_narrow_strides(op, (args, kwargs)):
            try:
                return narrow_strides.settled(op, args, kwargs, op(*_not_expanded(op, args), **kwargs))
            except NotImplementedError as error:
                if not _SIZED_BY_DATA.isdisjoint(op.tags):
                    raise CannotDerive(f"what {op} gives depends on data") from error
        # No meta kernel, or one that is not to be believed: it runs on zeros, once, to see what it gives. If those are
        # not allowed (integers are divided by them), on ones.
        try:
            return self._run_on(0, op, args, kwargs)
        except RuntimeError:
            return self._run_on(1, op, args, kwargs)

    def _run_on(self, number: int, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = tree_map_only(Tensor, lambda tensor: self.real(tensor).fill_(number), (args, kwargs))
        return tree_map_only(Tensor, self.of, op(*args, **kwargs))

    def real(self, tensor: Tensor) -> Tensor:
        """A tensor on the real device, whose contents mean nothing: for operators that decide by the device."""
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CPU)

    def with_device(self, value: Any, mode: FakeTensorMode) -> Any:
        """The stand-in as a fake tensor, which knows the device."""
        return FakeTensor(mode, value, CPU) if isinstance(value, Tensor) else value


@contextlib.contextmanager
def without_cudnn() -> Iterator[None]:
    """Cudnn's batch norm writes to arguments that its schema does not mark. Convolutions choose it when they run."""
    enabled = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(enabled)


class FakeStandIns:
    """Fake tensors, for any device."""

    def __init__(self, mode: FakeTensorMode | None = None) -> None:
        self.mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
        self.device: torch.device | None = None  # they know it themselves
        self.symbolic = self.mode.shape_env is not None  # sizes may be symbols

    def of(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor.detach()
        return self.mode.from_tensor(tensor.detach(), static_shapes=True)

    def owns(self, tensor: Tensor) -> bool:
        return isinstance(tensor, FakeTensor)

    def run(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.symbolic:
            with self.mode:
                result = op(*_not_expanded(op, args), **kwargs)
            return self._settled(op, args, kwargs, result)
        if not _believable(op, (args, kwargs)):
            raise CannotDerive(f"the tensors that {op} gives are not known for symbolic sizes")
        if op in _SIZED_BY_ARGUMENT and narrow_strides.is_in_order(args[0]):
            with self.mode:
                return args[0].new_empty(args[2])
        with self.mode, enable_python_dispatcher():  # which prefers torch's meta kernels in Python: they keep symbols
            result = op(*_not_expanded(op, args), **kwargs)
        if not _SIZED_BY_DATA.isdisjoint(op.tags) and made_by_data(result):
            raise CannotDerive(f"what {op} gives depends on data")
        return self._settled(op, args, kwargs, result)

    def _settled(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """With eager's strides, on the CPU."""
        given = (args, kwargs)
        if any(isinstance(value, Tensor) and value.device.type != "cpu" for value in tree_leaves((given, result))):
            return result
        return narrow_strides.settled(op, args, kwargs, result)

    def real(self, tensor: Tensor) -> Tensor:
        return tensor

    def with_device(self, value: Any, mode: FakeTensorMode) -> Any:
        return value


StandIns = MetaStandIns | FakeStandIns


def stand_ins_for(inputs: Sequence[Any]) -> StandIns:
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    fake = next((value for value in tensors if isinstance(value, FakeTensor)), None)
    if fake is not None:
        return FakeStandIns(fake.fake_mode)
    number = next((value for value in inputs if is_symbolic(value)), None)
    if number is not None:
        return FakeStandIns(FakeTensorMode(allow_non_fake_inputs=True, shape_env=number.node.shape_env))
    if torch._C._is_any_autocast_enabled():  # it goes by the device
        return FakeStandIns()
    if all(value.device.type == "cpu" for value in tensors):
        return MetaStandIns()
    return FakeStandIns()
