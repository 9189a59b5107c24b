"""`python -m stator cache`: what is kept on disk between runs."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator

from torch._inductor.runtime.cache_dir_utils import cache_dir

OWN = "stator keeps recordings and compiled code in the process only: nothing of its own is on disk"


def run(given: argparse.Namespace) -> int:
    """List or clear."""
    folder = cache_dir()
    count, size = _measure(folder)
    if given.action == "list":
        print(OWN)
        print(
            f"TorchInductor's cache (for backend inductor, and torch.compile): {folder}, {count} files, {size:,} bytes"
        )
    elif given.inductor:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"cleared TorchInductor's cache: {folder}, {count} files, {size:,} bytes")
    else:
        print(f"{OWN}; nothing to clear")
        print(f"TorchInductor's cache is shared with torch.compile; --inductor clears it: {folder}, {size:,} bytes")
    return 0


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
