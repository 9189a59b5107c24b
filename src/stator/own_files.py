"""Files that stator writes: in folders of this user, under names that it has made, never over what is there.

Enters: a folder, or none, a name of any text, and what is to be written. Leaves: the path of a new file that only its
owner may read. What holds: the folder belongs to this user and nobody else may write to it; a file is made, not
opened; its name is of a few letters, however long and odd the text was, and leads nowhere else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import tempfile

_MOST_IN_A_NAME = 60
_MINE = 0o700


class Refused(OSError):
    """A folder in which nothing is written; the text says why, in one line."""


def default_folder() -> str:
    """Where things go that nobody has named a folder for: the name is known to all, so the folder is checked."""
    user = os.geteuid() if hasattr(os, "geteuid") else "user"
    return os.path.join(tempfile.gettempdir(), f"stator-{user}")


def as_file_name(text: str) -> str:
    """A name that any file system takes; two texts that differ in what it leaves out have two of them."""
    text = str.__str__(text)
    short = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")[:_MOST_IN_A_NAME]
    plain = re.sub(r"\W+", "_", text).strip("_")
    if short == plain:
        return short or "function"
    return f"{short}_{hashlib.sha256(text.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}".strip("_")


def open_folder(folder: str | None) -> tuple[int, str]:
    """The folder, made if need be and checked, as a descriptor to do everything in; and its path. `None`: the default
    one, which nobody else may even enter. Whoever calls this closes it."""
    path = folder or default_folder()
    if folder is not None:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, _MINE)
    if os.path.islink(path):
        raise Refused(f"{path} is a symbolic link")
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        check_owner(os.fstat(opened), path, private=folder is None)
    except BaseException:
        os.close(opened)
        raise
    return opened, path


def check_owner(found: os.stat_result, path: str, *, private: bool) -> None:
    """Is this a folder of this user in which (`private`: into which) nobody else gets?"""
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise Refused(f"{path} belongs to another user")
    if found.st_mode & (0o077 if private else 0o022):
        what = "enter" if private else "write to"
        raise Refused(f"others may {what} {path} (its mode is {stat.S_IMODE(found.st_mode):o})")


def create(folder: int, name: str, data: str | bytes) -> None:
    """A new file in an open folder; FileExistsError if there is one of that name, whatever it is."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode("utf-8", "backslashreplace"))


def save(folder: str | None, stem: str, suffix: str, data: str | bytes) -> str:
    """The path of a new file with a name of its own."""
    opened, path = open_folder(folder)
    try:
        name = f"{as_file_name(stem)}-{secrets.token_hex(6)}{suffix}"
        create(opened, name, data)
        return os.path.join(path, name)
    finally:
        os.close(opened)


def save_together(folder: str | None, stem: str, files: dict[str, str | bytes]) -> str:
    """Files of these names in a new folder; the path of the last one."""
    opened, path = open_folder(folder)
    try:
        within = f"{as_file_name(stem)}-{secrets.token_hex(6)}"
        os.mkdir(within, _MINE, dir_fd=opened)
        inner = os.open(within, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened)
        try:
            for name, data in files.items():
                create(inner, name, data)
        finally:
            os.close(inner)
        return os.path.join(path, within, [*files][-1])
    finally:
        os.close(opened)
