"""How reports look: at most 100 columns where a line can be broken, short paths, colours on a terminal only.

What enters: texts of events. What leaves: the same facts, laid out to be read.
"""

from __future__ import annotations

import logging
import os
import re
import sysconfig
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

from stator import source_lines

WIDTH = 100
_PLACE = re.compile(r"^(.*):(\d+)$")
_TENSOR = re.compile(r": \w+ torch\.\w+ \[")  # a guard on a tensor
_VALUE = re.compile(r" (?:==|!=|<|<=|>|>=) ")  # on a number or a text


# ------------------------------------------------------------------------------------------------------ places


def short_path(text: str) -> str:
    """Paths as short as they are still clear: from here, or from the folder that packages are installed in."""
    for folder in (*map(sysconfig.get_path, ("purelib", "platlib", "stdlib")), os.getcwd()):
        text = text.replace(folder + os.sep, "") if len(folder) > 1 else text
    return text


def folded(text: str) -> str:
    """Prose, with each line that is too wide broken into several."""
    return "\n".join(part for line in text.split("\n") for part in _folded_line(line))


def _folded_line(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    indent = line[: len(line) - len(line.lstrip())] + "    "
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def is_library(path: str) -> bool:
    """Is this code that comes with Python or was installed, and not the user's?"""
    return any(path.startswith(folder) for folder in map(sysconfig.get_path, ("purelib", "platlib", "stdlib")))


def source_line(place: str) -> str:
    """The text of the line `file:number`; empty if it cannot be read."""
    found = _PLACE.match(place)
    return source_lines.line(found[1], int(found[2])).strip() if found else ""


# ------------------------------------------------------------------------------------------------------- guards


def guards(lines: Sequence[str]) -> str:
    """Guards in the order of what a reader asks for: the program's own values, then libraries, then torch's state."""
    own, library, state = _sorted(lines)
    parts = own
    if library:
        parts += ["# of classes, code and libraries", *library]
    if state:
        parts += ["# of torch's state", *_filled(state)]
    return "\n".join(parts)


def guards_in_short(lines: Sequence[str], most: int) -> list[str]:
    """The first guards on the program's own values, and how many there are besides."""
    own, library, state = _sorted(lines)
    own.sort(key=lambda text: 0 if _TENSOR.search(text) else 1 if _VALUE.search(text) else 2)
    shown = [line for text in own[:most] for line in text.split("\n")]
    rest = {"of these": own[most:], "of classes, code and libraries": library, "of torch's state": state}
    more = ", ".join(f"{len(some):,} more {what}" for what, some in rest.items() if some)
    return [*shown, f"and {more}"] if more else shown


def _sorted(lines: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    own: list[str] = []
    library: list[str] = []
    state: list[str] = []
    for line in lines:
        words, _, place = line.partition("  # ")
        if line.startswith("torch's "):
            state.append(line.removeprefix("torch's "))
        elif not _TENSOR.search(words) and (is_library(place) or _says_little(words)):
            library.append(_with_place(words, place))
        else:
            own.append(_with_place(words, place))
    return own, library, state


def _says_little(words: str) -> bool:
    """Guards that hold unless somebody patches a class or a function."""
    return bool(re.search(r"special methods of|__code__ is|__getattribute__|^Tensor\.|^type\([\w.]+\) is dict$", words))


def _with_place(words: str, place: str) -> str:
    words = "\n".join(textwrap.wrap(words, WIDTH, subsequent_indent="    ", break_on_hyphens=False))
    if not place:
        return words
    place = f"# {short_path(place)}"
    whole = f"{words:<60}  {place}"
    return whole if len(whole) <= WIDTH else f"{words}\n    {place}"


def _filled(items: list[str]) -> list[str]:
    lines = [""]
    for item in items:
        longer = f"{lines[-1]}, {item}" if lines[-1] else item
        if len(longer) <= WIDTH:
            lines[-1] = longer
        else:
            lines.append(item)
    return lines


# ------------------------------------------------------------------------------------------------------ colours

_RESET, _DIM, _BOLD = "\033[0m", "\033[2m", "\033[1m"
_RED, _GREEN, _YELLOW, _CYAN = (f"\033[{code}m" for code in (31, 32, 33, 36))
# What a line looks like, by how it begins.
_LINES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"^\w[\w ]*:$"), _BOLD),  # a heading
    (re.compile(r"^\s*#"), _DIM),
    (re.compile(r"^\[Cache Hit\]|^\[Backward\]"), _GREEN),
    (re.compile(r"^\[Cache Miss\]|^Recompiling|^\[Plain\]|^Specialised"), _YELLOW),
    (re.compile(r"^Graph break|^Failure|^\s*\^+$"), _RED),
]


def coloured(name: str, message: str) -> str:
    """A record for a terminal."""
    return f"{_CYAN}[{name}]{_RESET} " + "\n".join(map(_coloured_line, message.split("\n")))


def _coloured_line(line: str) -> str:
    found = next((colour for pattern, colour in _LINES if pattern.search(line)), None)
    return f"{found}{line}{_RESET}" if found else line


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # a stream of the application's own, or a closed one
        return False


class Formatter(logging.Formatter):
    """`[logger] message`, coloured or plain."""

    def __init__(self) -> None:
        super().__init__("[%(name)s] %(message)s")
        self.colours = False

    def format(self, record: logging.LogRecord) -> str:
        if not self.colours or record.exc_info:
            return super().format(record)
        return coloured(record.name, record.getMessage())
