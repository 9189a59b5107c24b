"""The mistakes that commands can be used with."""

from __future__ import annotations

import os


class Misused(Exception):
    """The command was used wrongly; the text says how."""


def check_readable(path: str) -> None:
    """A file that is to be run must be there."""
    if os.path.isdir(path):
        raise Misused(f"{path!r} is a folder, not a Python file")
    if not os.path.isfile(path):
        raise Misused(f"there is no file {path!r}")
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise Misused(f"{path!r} cannot be read: {error.strerror}") from error


def check_writable(path: str) -> None:
    """Where something is to be written in the end, it must be possible in the beginning."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise Misused(f"{path!r} is a folder, not a file to write to")
    if not os.path.isdir(folder):
        raise Misused(f"there is no folder for {path!r}")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise Misused(f"{path!r} cannot be written to")
