"""Tests of CPython's that tell a watched run from a plain one, and why each of them must."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple


class Explained(NamedTuple):
    test: str  # the test's id; a pattern
    modes: str
    reason: str


EXPLAINED: tuple[Explained, ...] = ()


def explanation(test: str, version: str, mode: str) -> str | None:
    for row in EXPLAINED:
        if mode in row.modes.split() and fnmatchcase(test, row.test):
            return row.reason
    return None
