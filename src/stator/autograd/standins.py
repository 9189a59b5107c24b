"""Stand-ins: tensors without data that a program is traced on in place of its inputs.

Enters: real tensors. Leaves: tensors with the same size, strides and dtype, and a way to run operators on them.
Static shapes on the CPU take plain meta tensors, which is fast. Whatever else there is (other devices, symbolic
shapes) takes fake tensors, which know their device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .operators import facts

META = torch.device("meta")
CPU = torch.device("cpu")


class MetaStandIns:
    """Meta tensors for tensors on the CPU."""

    device = CPU

    def of(self, tensor: Tensor) -> Tensor:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
        if tensor.storage_offset():
            length = tensor.untyped_storage().nbytes() // tensor.element_size()
            room = torch.empty(length, dtype=tensor.dtype, device=META)
            made = room.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if tensor.is_conj():
            made = made.conj()
        return made.neg() if tensor.is_neg() else made

    def owns(self, tensor: Tensor) -> bool:
        return tensor.device.type == "meta"

    def run(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if facts(op).takes_device:
            kwargs = {**kwargs, "device": META}
        return op(*args, **kwargs)

    def real(self, tensor: Tensor) -> Tensor:
        """A tensor on the real device, whose contents mean nothing: for operators that decide by the device."""
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CPU)

    def with_device(self, value: Any, mode: FakeTensorMode) -> Any:
        """The stand-in as a fake tensor, which knows the device."""
        return FakeTensor(mode, value, CPU) if isinstance(value, Tensor) else value


class FakeStandIns:
    """Fake tensors, for any device."""

    def __init__(self, mode: FakeTensorMode | None = None) -> None:
        self.mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
        self.device: torch.device | None = None  # they know it themselves

    def of(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor.detach()
        return self.mode.from_tensor(tensor.detach(), static_shapes=True)

    def owns(self, tensor: Tensor) -> bool:
        return isinstance(tensor, FakeTensor)

    def run(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.mode:
            return op(*args, **kwargs)

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
    if all(value.device.type == "cpu" for value in tensors):
        return MetaStandIns()
    return FakeStandIns()
