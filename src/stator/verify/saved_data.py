"""Tensors in a file, and the lines of Python that read them from it: bytes and nothing else.

Enters: tensors. Leaves: the contents of their storages, one behind the other, and an expression for each tensor, with
its layout and its flags. What holds: tensors that share memory do so again; reading the file runs no code of anybody's.
"""

from __future__ import annotations

import torch

from ..support.literals import literal

# Stands in the script: how the expressions are read.
READER = '''
def storage(start, size, device):
    """So many bytes of the file."""
    held = bytearray(saved[start : start + size])
    made = torch.frombuffer(held, dtype=torch.uint8).clone().untyped_storage() if size else torch.UntypedStorage(0)
    return made if device == "cpu" else torch.empty(size, dtype=torch.uint8, device=device).copy_(
        torch.empty(0, dtype=torch.uint8).set_(made, 0, (size,), (1,))
    ).untyped_storage()


def tensor(place, dtype, size, stride, offset, device, grad=False, parameter=False):
    """A tensor in one of the storages."""
    made = torch.empty(0, dtype=dtype, device=device).set_(storages[place], offset, size, stride)
    return torch.nn.Parameter(made, requires_grad=grad) if parameter else made.requires_grad_(grad)
'''


class Data:
    """What goes into the file."""

    def __init__(self) -> None:
        self.contents = bytearray()
        self._storages: dict[int, int] = {}
        self.lines: list[str] = []  # one expression for each storage
        self._kept: list[torch.Tensor] = []

    def tensor(self, value: torch.Tensor) -> str:
        """The expression for a tensor; what computed it is not saved."""
        with torch._C.DisableTorchFunction():
            whole = value.detach()
            if whole.layout is not torch.strided or whole.is_conj() or whole.is_neg():
                whole = whole.to_dense().resolve_conj().resolve_neg()
            self._kept.append(whole)
            parts = [self._place(whole), str(whole.dtype), str(tuple(whole.shape)), str(whole.stride())]
            parts += [str(whole.storage_offset()), literal(str(whole.device))]
            parts += ["grad=True"] if value.requires_grad else []
            parts += ["parameter=True"] if isinstance(value, torch.nn.Parameter) else []
        return f"tensor({', '.join(parts)})"

    def _place(self, value: torch.Tensor) -> str:
        storage = value.untyped_storage()
        place = self._storages.get(storage._cdata)
        if place is None:
            place = self._storages[storage._cdata] = len(self._storages)
            flat = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage, 0, (storage.nbytes(),), (1,))
            data = flat.cpu().numpy().tobytes()
            self.lines.append(f"storage({len(self.contents)}, {len(data)}, {literal(str(value.device))})")
            self.contents += data
        return str(place)
