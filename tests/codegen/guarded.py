"""Memory with a page behind it, and one before, that nobody may touch."""

from __future__ import annotations

import ctypes
import mmap

import torch

_libc = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
BAND = 0xA5
PROT_NONE = 0


class Guarded:
    """A copy of a tensor's elements, that ends (or begins) where a forbidden page begins (or ends)."""

    def __init__(self, content: torch.Tensor, *, at_end: bool) -> None:
        self.dtype, self.count = content.dtype, content.numel()
        size = self.count * content.itemsize
        self._inside = max(1, -(-size // PAGE)) * PAGE
        self._map = mmap.mmap(-1, self._inside + 2 * PAGE)
        whole = (ctypes.c_char * len(self._map)).from_buffer(self._map)
        self._base = ctypes.addressof(whole)
        del whole
        ctypes.memset(self._base + PAGE, BAND, self._inside)
        self.address = self._base + PAGE + (self._inside - size if at_end else 0)
        ctypes.memmove(self.address, content.data_ptr(), size)
        for page in (self._base, self._base + PAGE + self._inside):
            assert _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), PROT_NONE) == 0

    def content(self) -> torch.Tensor:
        if self.count == 0:
            return torch.empty(0, dtype=self.dtype)
        size = self.count * self.dtype.itemsize
        return torch.frombuffer(bytearray(ctypes.string_at(self.address, size)), dtype=self.dtype)

    def bands_are_whole(self) -> bool:
        size = self.count * self.dtype.itemsize
        before = self.address - self._base - PAGE
        outside = ctypes.string_at(self._base + PAGE, before) + ctypes.string_at(
            self.address + size, self._inside - before - size
        )
        return outside == bytes([BAND]) * len(outside)
