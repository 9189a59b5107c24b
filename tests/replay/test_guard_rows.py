"""The tables of edges and facts: whole, and the same in Python and C."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stator import _native, guard_codes
from stator.recording import Check, Edge, Fact
from stator.replay import engine, guard_edges, guard_facts
from stator.replay.guard_edges import EDGES
from stator.replay.guard_facts import FACTS
from stator.support.guard_readers import torch_state

SOURCE = Path(guard_codes.__file__).parent


def test_the_header_is_fresh() -> None:
    """`python src/stator/guard_codes.py > src/stator/_native/guard_codes.h`"""
    assert (SOURCE / "_native" / "guard_codes.h").read_text() == guard_codes.header()


def test_every_edge_and_every_fact_has_a_row() -> None:
    assert sorted(EDGES) == sorted(Edge) and sorted(FACTS) == sorted(Fact)


CODES = {
    "FETCH_": guard_codes.FETCHES,
    "CHECK_": guard_codes.CHECKS,
    "": guard_codes.LASTING,
    "VERSION_": guard_codes.VERSIONS,
    "PART_": guard_codes.PARTS,
}


@pytest.mark.parametrize("prefix", CODES)
def test_python_has_the_numbers_of_c(prefix: str) -> None:
    stub = (SOURCE / "_native.pyi").read_text()
    for number, name in enumerate(CODES[prefix]):
        assert getattr(_native, prefix + name) == number
        assert f"\n{prefix}{name}: Final[int]\n" in stub


@pytest.mark.parametrize(("prefix", "codes"), [("FETCH_", guard_codes.FETCHES), ("CHECK_", guard_codes.CHECKS)])
def test_every_code_of_c_is_used_and_checked_when_it_comes_in(prefix: str, codes: dict[str, str]) -> None:
    rows = "".join(Path(module.__file__).read_text() for module in (engine, guard_edges, guard_facts))
    walk = "".join(path.read_text() for path in (SOURCE / "_native").glob("*.[ch]") if path.name != "guard_codes.h")
    for name in codes:
        assert re.search(rf"\bn\.{prefix}{name}\b", rows), f"no row leads to {prefix}{name}"
        assert re.search(rf"\b{prefix}{name}\b", walk), f"C code does not know {prefix}{name}"


def test_a_number_that_c_does_not_know_is_refused() -> None:
    check = (len(guard_codes.CHECKS), _native.LIVE, 0, 0, None)
    for edge, checks in ((len(guard_codes.FETCHES), []), (_native.FETCH_LOCAL, [check])):
        node = (edge, -1, None, 0, _native.VERSION_NONE, 1, 0, checks)
        with pytest.raises(ValueError, match="guards: "):
            _native.Guards(
                state=torch_state(),
                nodes=[node],
                relations=[],
                groups=[],
                wanted=(0,),
                asked=(),
                always=-1,
                ask=lambda *a: (),
            )


EXPECTED = {
    Fact.TYPE: (int, 1, "a"),
    Fact.EQUAL: (2, 2, 3),
    Fact.IS: (None, None, 1),
    Fact.LEN: (2, [1, 2], [1]),
    Fact.KEYS: (("a",), {"a": 1}, {"b": 1}),
    Fact.HAS: ("a", {"a": 1}, {}),
    Fact.LACKS: ("a", {}, {"a": 1}),
    Fact.NO_ENTRY: ("append", dict, list),
    Fact.OWN_ENTRY: (("append", True), list, type("Named", (list,), {})),
}


@pytest.mark.parametrize("fact", EXPECTED, ids=lambda fact: fact.name)
def test_a_row_agrees_with_itself(fact: Fact) -> None:
    """What holds, in Python, in words and as source; what does not hold is told with both sides."""
    expected, right, wrong = EXPECTED[fact]
    row = FACTS[fact]
    assert row.holds(right, expected, ()) and not row.holds(wrong, expected, ())
    assert "it" in row.words("it", expected)
    guard, wanted, got = row.found("it", expected, wrong)
    assert "it" in guard and wanted != got
    source = row.source("it", expected)
    if source is not None:
        assert eval(source, {"it": right}) and not eval(source, {"it": wrong})


class Standing(NamedTuple):
    """What a row asks of an origin; real ones are made by a ledger in C."""

    index: int
    edge: Edge
    parent: Any
    key: Any
    checks: list[Check]


def test_an_origin_is_fetched_by_its_row() -> None:
    root = Standing(0, Edge.LOCAL, None, (1, "x"), [])
    child = Standing(1, Edge.ITEM, root, "k", [Check(Fact.EQUAL, 3, None)])
    values = [guard_edges.fetch(root, [], (None, {"k": 3}))]
    assert guard_edges.fetch(child, values, ()) == 3
    assert EDGES[Edge.ITEM].in_c(child, dict) == (_native.FETCH_KEY, "k", 0)
    assert EDGES[Edge.ITEM].in_c(child, None) is None
