"""The pages written from the code say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from stator.errors import REASONS
from stator.options import FIELDS
from stator.report.catalogue import pages

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", pages())
def test_the_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text() == pages()[name], "run: python -m stator.report.catalogue docs"


def test_every_option_has_a_row() -> None:
    rows = [line.split("`")[1] for line in pages()["options.md"].splitlines() if line.startswith("| `")]
    assert rows == list(FIELDS)


def test_every_reason_has_a_row_in_a_section() -> None:
    rows = [line.split("`")[1] for line in pages()["graph-breaks.md"].splitlines() if line.startswith("| `")]
    assert rows == list(REASONS)
    assert all(known.section for known in REASONS.values())
