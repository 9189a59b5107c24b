"""Ending a recording: the exception that handlers raise to step back, and what it says."""

from __future__ import annotations

from typing import Any

from ..support.by_identity import WeakNotes

# After these nothing recorded so far is to be believed: something happened that stator did not see, or failed itself.
_UNTRUSTED = frozenset(
    {"tensor-changed", "state-changed", "outside-changed", "foreign-frame", "finalizer", "recursion", "internal-error"}
)


class BreakGraph(Exception):
    """This segment cannot be recorded any further. The program goes on and does not notice.

    `reason` is an id of the catalogue in `stator.errors`; `transient` says that the next call may well be recordable.
    """

    def __init__(self, reason: str, detail: str = "", *, transient: bool = False) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
        self.transient = transient
        self.untrusted = transient or reason in _UNTRUSTED
        # Set: it counts for the recordings of these programs, for these reasons (and what they are about).
        self.learned_by: WeakNotes[Any, tuple[str, str]] | None = None
        self.again = False  # the next recording will break elsewhere
        self.inside = False  # raised while an instruction was at work, not before it


def learn(probe: Any, program: object, reason: str, detail: str) -> bool:
    """The next recording of a program is to break before this instruction, which led to a break that it cannot go on
    from. False: there is no such instruction, or it has been learned."""
    if probe is None:
        return False
    if probe.mark is None:
        probe.mark = BreakGraph(reason, detail)
        probe.mark.learned_by = WeakNotes()
    if program in probe.mark.learned_by:
        return False
    probe.mark.learned_by.put(program, (reason, detail))
    return True
