"""What all parts of a segment share: the table of outside objects, and how they tell that they cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ... import _native
from .ledger import Ledger
from .own_objects import OwnObjects


@dataclass(eq=False)
class RunContext:
    watcher: _native.Watcher
    ledger: Ledger
    own: OwnObjects
    fail: Callable[[BaseException], None]  # the recording cannot go on while an instruction is at work
    captures_scalars: bool  # are numbers that are taken from tensors nodes, as an option says?
    may_expect: bool  # may the recording take it that comparisons of numbers in the graph come out as they do now?
    most_kept: int  # bytes that may be kept in every call, of what a graph writes to before something that may fail
    slot_values: list[Any] = field(default_factory=list)  # what the segment starts with, and its function

    def release(self) -> None:
        """The parts of a segment know each other: nothing is to wait for the collector."""
        vars(self).clear()
