"""The page about graph breaks says what the catalogue says."""

from __future__ import annotations

from pathlib import Path

from stator.errors import REASONS
from stator.report.catalogue import page

PAGE = Path(__file__).parents[2] / "docs" / "graph-breaks.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m stator.report.catalogue > docs/graph-breaks.md"


def test_every_reason_has_a_row_in_a_section() -> None:
    rows = [line.split("`")[1] for line in page().splitlines() if line.startswith("| `")]
    assert rows == list(REASONS)
    assert all(known.section for known in REASONS.values())
