"""Pages of the documentation that are written from the code: reasons for graph breaks, options.

    python -m stator.report.catalogue docs

What enters: `stator.errors.REASONS` and `stator.options`. What leaves: Markdown, a row per reason and per option.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from stator.errors import REASONS, Reason
from stator.options import FIELDS, PREFIX, default, describe

_BREAKS = """\
# Graph breaks

<!-- Written by `python -m stator.report.catalogue docs` from `src/stator/errors.py`: change it there. -->

Where Python must run, the graph ends, Python runs, and the next graph starts right behind it. A program with breaks
gives the results of plain Python, only in more and smaller graphs. `stator.explain(fn)(*args)` lists the breaks of a
call, `stator.compile(fn, fullgraph=True)` raises at the first one, and `STATOR_LOGS=graph_breaks` logs each.

Every break has one of the ids below. Ids are stable. `…` stands for what the case is about: a callable, a class, a
name."""


_OPTIONS = """\
# Options

<!-- Written by `python -m stator.report.catalogue docs` from `src/stator/options.py`: change it there. -->

Options of the process are attributes of `stator.options` (also `stator.config`); `stator.options.patch(name=value)`
changes them for the length of a `with` block. `stator.compile(fn, options={"name": value})` gives one callable its own.
An environment variable sets the value that a process starts with.

| option | default | environment | what it does |
| --- | --- | --- | --- |"""


def pages() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    return {"graph-breaks.md": "\n".join(_breaks()) + "\n", "options.md": "\n".join(_options()) + "\n"}


def _options() -> Iterator[str]:
    yield _OPTIONS
    for name in FIELDS:
        value = logging.getLevelName(default(name)) if name == "log_level" else repr(default(name))
        yield _row(f"`{name}`", f"`{value}`", f"`{PREFIX}{name.upper()}`", describe(name))


def _breaks() -> Iterator[str]:
    yield _BREAKS
    for section in dict.fromkeys(known.section for known in REASONS.values()):
        yield ""
        yield f"## {section}"
        yield ""
        yield "| id | reason | what to do |"
        yield "| --- | --- | --- |"
        yield from (_reason(known) for known in REASONS.values() if known.section == section)


def _reason(known: Reason) -> str:
    return _row(f"`{known.id}`", known.reason.format(what="…"), known.hint)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m stator.report.catalogue FOLDER    writes the pages into that folder")
    for name, text in pages().items():
        (Path(sys.argv[1]) / name).write_text(text)


if __name__ == "__main__":
    main()
