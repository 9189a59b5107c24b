"""Numbers that `id` gives while a run is watched: good as keys, and for nothing else.

An identity differs in every call, so nothing that depends on its digits can be replayed. Any use but hashing and
comparing with another one ends the recording.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from ..graph_break import BreakGraph

_USES = (
    "add radd sub rsub mul rmul floordiv rfloordiv truediv rtruediv mod rmod divmod rdivmod pow rpow lshift rlshift "
    "rshift rrshift and rand or ror xor rxor neg pos abs invert int float index bool lt le gt ge repr str format round"
)


class Identity(int):
    """The identity of an object, as an int."""

    _stop: Callable[[BreakGraph], None]

    def __new__(cls, value: Any, *, stop: Callable[[BreakGraph], None]) -> Identity:
        self = super().__new__(cls, builtins.id(value))
        self._stop = stop
        return self


def _used(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def use(self: Identity, *args: Any) -> Any:
        self._stop(BreakGraph("identity", "id"))
        return plain(self, *args)

    use.__name__ = name
    return use


for _name in _USES.split():
    setattr(Identity, f"__{_name}__", _used(f"__{_name}__"))
