"""`docs/graph-breaks.md`: the catalogue of graph-break reasons as a page to read.

    python -m stator.report.catalogue > docs/graph-breaks.md

What enters: `stator.errors.REASONS`. What leaves: Markdown, a section per part of the catalogue, a row per reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from stator.errors import REASONS, Reason

_HEAD = """\
# Graph breaks

<!-- Written by `python -m stator.report.catalogue` from the catalogue in `src/stator/errors.py`: change it there. -->

Where Python must run, the graph ends, Python runs, and the next graph starts right behind it. A program with breaks
gives the results of plain Python, only in more and smaller graphs. `stator.explain(fn)(*args)` lists the breaks of a
call, `stator.compile(fn, fullgraph=True)` raises at the first one, and `STATOR_LOGS=graph_breaks` logs each.

Every break has one of the ids below. Ids are stable. `…` stands for what the case is about: a callable, a class, a
name."""


def page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    for section in dict.fromkeys(known.section for known in REASONS.values()):
        yield ""
        yield f"## {section}"
        yield ""
        yield "| id | reason | what to do |"
        yield "| --- | --- | --- |"
        yield from (_row(known) for known in REASONS.values() if known.section == section)


def _row(known: Reason) -> str:
    cells = (f"`{known.id}`", known.reason.format(what="…"), known.hint)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(page(), end="")
