"""The order of units: what it says of paths, and that it holds, against a plain search."""

from __future__ import annotations

import random

import pytest

from stator.fuse.order import Order


def reachable(edges: set[tuple[int, int]], one: int, other: int) -> bool:
    pending, seen = [one], {one}
    while pending:
        here = pending.pop()
        for a, b in edges:
            if a == here and b not in seen:
                seen.add(b)
                pending.append(b)
    return other in seen and one != other


@pytest.mark.parametrize("seed", range(30))
def test_paths_and_order_are_those_of_a_plain_search(seed: int) -> None:
    choose = random.Random(seed)
    order, edges = Order(), set[tuple[int, int]]()
    for count in range(1, 25):
        order.add()
        for _ in range(3):
            one, other = choose.randrange(count), choose.randrange(count)
            if one != other and not reachable(edges, other, one):
                assert not order.reaches(other, one)
                order.edge(one, other)
                edges.add((one, other))
    units = range(24)
    assert all(order.reaches(a, b) == reachable(edges, a, b) for a in units for b in units)
    found = order.sorted([choose.random() for _ in units])  # type: ignore[arg-type]
    place = {unit: at for at, unit in enumerate(found)}
    assert sorted(found) == [*units] and all(place[a] < place[b] for a, b in edges)


def test_the_newest_unit_can_go() -> None:
    order = Order()
    for _ in range(3):
        order.add()
    order.edge(1, 0)
    order.drop_last()
    assert order.sorted([0, 0]) == [1, 0]
