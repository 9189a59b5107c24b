"""When a function has as many recordings as it may have, and none fits: calls run plain, and are not even looked at.

Looking costs more than many a function takes. So after some misses in a row a number of calls goes by, each time twice
as many, until a recording is looked for again. A hit in between ends that.
"""

from __future__ import annotations

from .. import _native

_PATIENCE = 4  # misses in a row before calls go by
_FIRST, _MOST = 16, 1 << 14  # calls that go by


class Backoff:
    def __init__(self) -> None:
        self.left = _native.Count()  # so many calls go by; C code counts down
        self._length = _FIRST
        self._misses = 0
        self._hits = 0

    def missed(self, hits: int) -> None:
        """One more call that none of the recordings fits, which together have been used so many times."""
        if hits != self._hits:
            self.reset()
            self._hits = hits
        self._misses += 1
        if self._misses >= _PATIENCE:
            self.left.value = self._length
            self._length = min(2 * self._length, _MOST)

    def lets_pass(self) -> bool:
        """Does this call go by?"""
        if self.left.value == 0:
            return False
        self.left.value -= 1
        return True

    def reset(self) -> None:
        self.left.value = self._misses = 0
        self._length = _FIRST
