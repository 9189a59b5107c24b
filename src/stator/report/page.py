"""The page: an event log as one HTML file that needs nothing else, neither network nor other files.

What enters: an event log, and what is known besides (calls and their times, from `python -m stator explain`).
What leaves: a file. What holds: texts of programs reach the page as JSON whose `<`, `>` and `&` are escaped, and its
script puts them there as text, never as markup. A policy in the page allows this very script and style and no other.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata, resources
from typing import Any

from .event_log import EventLog
from .page_data import PageFields, tell

_PARTS = ("page.html", "page.css", "page.js")


def write(
    path: str | os.PathLike[str],
    event_log: EventLog,
    *,
    title: str,
    summary: str = "",
    calls: Sequence[PageFields] = (),
) -> str:
    """Write the page to `path`; gives back where that is."""
    text = render({**tell(event_log), "title": title, "summary": summary, "calls": list(calls), "made": made_with()})
    encoded = text.encode("utf-8", "backslashreplace")
    with open(path, "wb") as file:
        file.write(encoded)
    return os.path.abspath(path)


def made_with() -> dict[str, str]:
    """What the page was made with."""
    return {"stator": _version("stator"), "torch": _version("torch"), "Python": platform.python_version()}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def render(data: PageFields) -> str:
    """The page as text."""
    template, style, script = (resources.files(__package__).joinpath(name).read_text("utf-8") for name in _PARTS)
    parts = {
        "{{title}}": html.escape(str(data.get("title", ""))),
        "{{policy}}": f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}",
        "{{style}}": style,
        "{{data}}": embedded(data),
        "{{script}}": script,
    }
    # In the order in which they stand in the template; what was put in is not looked at again.
    pieces = [template]
    for hole, text in parts.items():
        head, _, tail = pieces.pop().partition(hole)
        pieces += [head, text, tail]
    return "".join(pieces)


def embedded(data: Any) -> str:
    """JSON that can stand inside of a `<script>`, whatever texts it holds."""
    text = json.dumps(data, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
