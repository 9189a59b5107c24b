"""Ending a recording: the exception that handlers raise to step back, and what it says."""

from __future__ import annotations


class Drop(Exception):
    """This run cannot be recorded to its end. The program goes on and does not notice.

    `reason` is an id of the catalogue in `stator.errors`; `transient` says that the next call may well be recordable.
    """

    def __init__(self, reason: str, detail: str = "", *, transient: bool = False) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
        self.transient = transient
