"""When a function has as many recordings as it may have, and none fits: calls run plain, and are hardly looked at.

Looking costs more than many a function takes. So after some misses in a row a number of calls goes by, each time twice
as many, until a recording is looked for again. A hit in between ends that: from then on the guards of each call are
checked, but where none hold, nobody asks why, again for a number of calls that grows.
"""

from __future__ import annotations

from .. import _native

_PATIENCE = 4  # misses in a row before calls go by
_FIRST, _MOST = 16, 1 << 14  # calls that go by


class Backoff:
    def __init__(self) -> None:
        self.left = _native.Count()  # so many calls go by; C code counts down
        self.spared = _native.Count()  # so many misses are no more than that; C code counts down
        self._length = self._sparing = _FIRST
        self._misses = 0
        self._hits = 0

    def missed(self, hits: int) -> None:
        """One more call that none of the recordings fits, which together have been used so many times."""
        if hits != self._hits:
            self._wait_no_more()
            self._hits = hits
            self.spared.value = self._sparing
            self._sparing = min(2 * self._sparing, _MOST)
        self._misses += 1
        if self._misses >= _PATIENCE:
            self.left.value = self._length
            self._length = min(2 * self._length, _MOST)

    def lets_pass(self) -> bool:
        """Does this call go by?"""
        return _count_down(self.left)

    def spares(self) -> bool:
        """No recording fits this call. Is that all there is to know?"""
        return _count_down(self.spared)

    def reset(self) -> None:
        self._wait_no_more()
        self.spared.value = 0
        self._sparing = _FIRST

    def _wait_no_more(self) -> None:
        self.left.value = self._misses = 0
        self._length = _FIRST


def _count_down(count: _native.Count) -> bool:
    if count.value == 0:
        return False
    count.value -= 1
    return True
