"""`python -m stator cache`: what is kept on disk between runs."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator

from torch._inductor.runtime.cache_dir_utils import cache_dir

from ..codegen import cache


def run(given: argparse.Namespace) -> int:
    """List or clear."""
    clear = given.clear or given.action == "clear"
    print(_clear_code() if clear else _code())
    folder = cache_dir()
    count, size = _measure(folder)
    about = f"{folder}, {count} files, {size:,} bytes"
    if not clear:
        print(f"TorchInductor's cache (for backend inductor, and torch.compile): {about}")
    elif given.inductor:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"cleared TorchInductor's cache: {about}")
    else:
        print(f"TorchInductor's cache is shared with torch.compile; --inductor clears it: {about}")
    return 0


def _code() -> str:
    """stator's own: machine code for CPUs."""
    if (store := cache.disk()) is None:
        return f"machine code is not kept on disk: {cache.why_no_disk()}"
    count, size = store.measure()
    unfit = f"; it is not used: {trouble}" if (trouble := store.trouble()) else ""
    return f"machine code: {store.folder}, {count} files, {size:,} bytes of at most {store.limit:,}{unfit}"


def _clear_code() -> str:
    if (store := cache.disk()) is None:
        return f"machine code is not kept on disk: {cache.why_no_disk()}"
    if trouble := store.trouble():
        return f"machine code: {store.folder} is not touched: {trouble}"
    count, size = store.clear()
    return f"cleared machine code: {store.folder}, {count} files, {size:,} bytes"


def _measure(folder: str) -> tuple[int, int]:
    sizes = list(_sizes(folder))
    return len(sizes), sum(sizes)


def _sizes(folder: str) -> Iterator[int]:
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(at, name)).st_size
            except OSError:  # it has gone in between
                continue
