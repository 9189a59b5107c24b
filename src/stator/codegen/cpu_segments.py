"""Stretches of the lanes' axis on which conditions are known: parts put together (`cat`), pads.

Enters: a kernel and an axis. Leaves: where the axis is cut, and which tests are true in each stretch. A loop for each
stretch then has neither masks nor loads from memory that is not there.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

MOST = 4  # stretches: each is a loop of its own


@dataclass(frozen=True)
class Test:
    """True from a position on, or before it."""

    at: int
    from_there: bool


def find_tests(kernel: Any, axis: int | None) -> dict[int, Test]:
    """By value: comparisons of the position on the axis with a number."""
    found: dict[int, Test] = {}
    for number, value in enumerate(kernel.values):
        if value.op in _TESTS and axis is not None:
            left, right = (_line(kernel, a, axis) for a in value.args)
            if left is None or right is None or left[0] - right[0] not in (1, -1):
                continue
            found[number] = _test(value.op, left[0] - right[0], right[1] - left[1])
    return found


_TESTS = frozenset("lt le gt ge".split())
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _test(op: str, slope: int, limit: int) -> Test:
    """slope · position op limit, for a slope of 1 or -1."""
    if slope == -1:
        op, limit = _MIRRORED[op], -limit
    return Test(limit + (op in ("le", "gt")), op in ("gt", "ge"))


def _line(kernel: Any, number: int, axis: int) -> tuple[int, int] | None:
    """A value as slope and offset over the axis, where it depends on nothing else."""
    value = kernel.values[number]
    if value.op == "const" and value.dtype is torch.int64:
        return 0, value.attr
    if value.op != "index" or value.attr.gathered:
        return None
    slope, offset = value.attr.coefficient(axis), value.attr.offset
    if not isinstance(slope, int) or not isinstance(offset, int) or any(a != axis for a in value.attr.axes):
        return None
    return slope, offset


def stretches(tests: dict[int, Test], extent: Any) -> list[tuple[int, int]]:
    """Neighbouring ranges that cover the axis; none, where nothing is known or too much."""
    if not isinstance(extent, int):
        return []
    cuts = sorted({0, extent, *[test.at for test in tests.values() if 0 < test.at < extent]})
    made = list(itertools.pairwise(cuts))
    return made if tests and len(made) <= MOST else []


def truths(kernel: Any, tests: dict[int, Test], first: int) -> dict[int, bool]:
    """By value: what is known in the stretch that begins here."""
    known = {number: (first >= test.at) == test.from_there for number, test in tests.items()}
    for number, value in enumerate(kernel.values):
        if value.dtype is not torch.bool or value.op not in ("and", "or", "not", "const"):
            continue
        given = [known.get(a) for a in value.args]
        if value.op == "const":
            known[number] = bool(value.attr)
        elif value.op == "not" and given[0] is not None:
            known[number] = not given[0]
        elif value.op == "and" and (False in given or given == [True, True]):
            known[number] = False not in given
        elif value.op == "or" and (True in given or given == [False, False]):
            known[number] = True in given
    return known
