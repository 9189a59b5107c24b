"""An order of units that grows: who must run before whom, without cycles.

Enters: units, numbered in the order in which they are added (each new one runs before those there are), and edges.
Leaves: whether one unit must run before another, and an order that all edges allow. The order is kept up with every
edge (Pearce and Kelly, 2006), so a question looks only at what lies between the two.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence


class Order:
    def __init__(self) -> None:
        self._after: list[set[int]] = []  # by unit: those that need it
        self._before: list[set[int]] = []
        self._place: list[int] = []  # by unit: smaller runs earlier

    def add(self) -> None:
        """One more unit, before all others so far."""
        self._after.append(set())
        self._before.append(set())
        self._place.append(-len(self._place))

    def drop_last(self) -> None:
        """The newest unit goes; it has no edges yet."""
        self._after.pop()
        self._before.pop()
        self._place.pop()

    def reaches(self, one: int, other: int) -> bool:
        """Whether there is a way from one unit to another."""
        limit = self._place[other]
        if self._place[one] >= limit:
            return False
        seen, pending = {one}, [one]
        while pending:
            for unit in self._after[pending.pop()]:
                if unit == other:
                    return True
                if self._place[unit] < limit and unit not in seen:
                    seen.add(unit)
                    pending.append(unit)
        return False

    def edge(self, one: int, other: int) -> None:
        """One unit runs before another. The caller knows that no cycle comes of it."""
        if one == other or other in self._after[one]:
            return
        self._after[one].add(other)
        self._before[other].add(one)
        low, high = self._place[other], self._place[one]
        if high < low:
            return
        behind = self._collect(other, self._after, lambda place: place <= high)
        ahead = self._collect(one, self._before, lambda place: place >= low)
        moved = [*sorted(ahead, key=self._place.__getitem__), *sorted(behind, key=self._place.__getitem__)]
        for unit, place in zip(moved, sorted([self._place[unit] for unit in moved]), strict=True):
            self._place[unit] = place

    def _collect(self, start: int, edges: list[set[int]], inside: Callable[[int], bool]) -> list[int]:
        seen, pending = {start}, [start]
        while pending:
            for unit in edges[pending.pop()]:
                if unit not in seen and inside(self._place[unit]):
                    seen.add(unit)
                    pending.append(unit)
        return list(seen)

    def sorted(self, wanted: Sequence[int]) -> list[int]:
        """All units in an order that the edges allow; among those that may run, the one whose `wanted` is smallest."""
        missing = [len(before) for before in self._before]
        ready = [(wanted[unit], unit) for unit, count in enumerate(missing) if count == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, unit = heapq.heappop(ready)
            order.append(unit)
            for after in self._after[unit]:
                missing[after] -= 1
                if missing[after] == 0:
                    heapq.heappush(ready, (wanted[after], after))
        assert len(order) == len(missing), "units depend on each other in a circle"
        return order
