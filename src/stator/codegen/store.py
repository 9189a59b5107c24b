"""Named pieces of data on disk, for code that will be executed: nothing is given back that this user did not put there.

What enters: a name (hexadecimal digits) and bytes (`put`). What leaves: the same bytes for that name (`get`), or None.
What holds: the folder and its files belong to this user and nobody else may enter; what is read has been checked by
owner, kind, permissions and digest, in the very bytes that are given back; a file appears whole or not at all; a
folder that is not fit, a full disk, or a file that somebody damaged means None or nothing done, never an exception.
Several processes may use one folder at once. `docs/design/code-cache.md` says against whom this is, and why so.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

MAGIC = b"stator code 1\n"
_DIGEST_BYTES = 32
_LARGEST = 1 << 28  # nothing that we write is near it: do not read what somebody made huge
_USED_RECENTLY = 3600.0  # seconds; a file's time is renewed at most so often
_LEFT_BEHIND = 3600.0  # seconds; a temporary file that is older has no writer any more
_PUTS_BETWEEN_SCANS = 64  # other processes write too
_TEMPORARY = ".writing-"


class Unfit(Exception):
    """The folder cannot be used; the text says why, in one line."""


@dataclass
class _File:
    name: str
    size: int
    used: float


class Store:
    """A folder of files, at most `limit` bytes in all; those not used for longest are removed first."""

    def __init__(self, folder: str, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.refused = 0  # files that were there and failed a check
        self._bytes = 0
        self._puts_until_scan = 0

    # ------------------------------------------------------------------------------------------------ get and put

    def get(self, name: str) -> bytes | None:
        try:
            with self._opened() as folder:
                return self._read(folder, name)
        except (OSError, Unfit):
            return None

    def put(self, name: str, data: bytes) -> bool:
        """Keep it; False if that cannot be done."""
        whole = MAGIC + _digest(name, data) + data
        if len(whole) > self.limit:
            return False
        try:
            with self._opened(make=True) as folder:
                self._make_room(folder, len(whole))
                self._write(folder, name, whole)
        except (OSError, Unfit):
            return False
        return True

    def _read(self, folder: int, name: str) -> bytes | None:
        try:
            # O_NONBLOCK: opening a FIFO that somebody put here must not wait for its writer.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError:
            self.refused += 1
            return None
        try:
            found = os.fstat(file)
            data = _whole(file, found.st_size) if _is_ours(found) else b""
            if not data.startswith(MAGIC) or len(data) < (head := len(MAGIC) + _DIGEST_BYTES):
                self.refused += 1
                return None
            if _digest(name, data[head:]) != data[len(MAGIC) : head]:
                self.refused += 1
                return None
            if time.time() - found.st_mtime > _USED_RECENTLY:
                with suppress(OSError):
                    os.utime(file)
            return data[head:]
        finally:
            os.close(file)

    def _write(self, folder: int, name: str, whole: bytes) -> None:
        temporary = f"{_TEMPORARY}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            _write_all(file, whole)
            # No fsync: a file that a crash cut short is found out by its digest.
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise

    # ------------------------------------------------------------------------------------------------- the folder

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        """The folder, checked: everything is then done relative to it, whatever happens to its path."""
        if not hasattr(os, "geteuid"):
            raise Unfit("files have no owners on this system")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        if make and not os.path.lexists(self.folder):
            os.makedirs(os.path.dirname(self.folder) or ".", 0o700, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(self.folder, 0o700)
        if os.path.islink(self.folder):
            raise Unfit("it is a symbolic link")
        descriptor = os.open(self.folder, flags)
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid():
                raise Unfit("it belongs to another user")
            if found.st_mode & 0o077:
                raise Unfit(f"others may enter it (mode {stat.S_IMODE(found.st_mode):o}, must be 700)")
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_room(self, folder: int, size: int) -> None:
        """Look through the folder from time to time, and remove what is too much with a tenth to spare."""
        self._bytes += size
        self._puts_until_scan -= 1
        if self._puts_until_scan >= 0 and self._bytes <= self.limit:
            return
        files = sorted(_files(folder), key=lambda file: file.used)
        total = sum(file.size for file in files) + size
        goal = self.limit * 9 // 10 if total > self.limit else total
        for file in files:
            if total <= max(goal, size):
                break
            with suppress(OSError):
                os.unlink(file.name, dir_fd=folder)
                total -= file.size
        self._bytes, self._puts_until_scan = total, _PUTS_BETWEEN_SCANS

    # ------------------------------------------------------------------------------------------------ for a person

    def trouble(self) -> str | None:
        """Why the folder cannot be used; None if it can, or is not there yet."""
        try:
            with self._opened():
                return None
        except FileNotFoundError:
            return None
        except (OSError, Unfit) as error:
            return str(error.strerror if isinstance(error, OSError) else error)

    def measure(self) -> tuple[int, int]:
        """How many files there are, and their bytes."""
        try:
            with self._opened() as folder:
                sizes = [file.size for file in _files(folder)]
        except (OSError, Unfit):
            return 0, 0
        return len(sizes), sum(sizes)

    def clear(self) -> tuple[int, int]:
        """Remove all files; how many, and their bytes."""
        count = size = 0
        with suppress(OSError, Unfit), self._opened() as folder:
            for file in _files(folder):
                with suppress(OSError):
                    os.unlink(file.name, dir_fd=folder)
                    count, size = count + 1, size + file.size
        self._bytes = self._puts_until_scan = 0
        return count, size


def _is_ours(found: os.stat_result) -> bool:
    """A plain file of this user that nobody else may open, reached by one name only."""
    return (
        stat.S_ISREG(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & 0o077
        and found.st_nlink == 1
        and found.st_size <= _LARGEST
    )


def _whole(file: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.read(file, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write_all(file: int, data: bytes) -> None:
    """All of it, and the file closed."""
    try:
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)


def _digest(name: str, data: bytes) -> bytes:
    """Of the name too: a file that was moved to another name is refused."""
    return hashlib.sha256(name.encode() + b"\n" + data).digest()


def _files(folder: int) -> list[_File]:
    """What lies in the folder, without what is being written now; what a dead process left is removed."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:  # another process has removed it
                continue
            if stat.S_ISDIR(about.st_mode):
                continue
            if not entry.name.startswith(_TEMPORARY):
                found.append(_File(entry.name, about.st_size, about.st_mtime))
            elif time.time() - about.st_mtime > _LEFT_BEHIND:
                with suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder)
    return found
