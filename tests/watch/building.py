"""Building C sources with the plain compiler, for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")

ASK = "import sysconfig; print(sysconfig.get_path('include')); print(sysconfig.get_config_var('EXT_SUFFIX'))"


def build(python: str, sources: list[Path], folder: Path, name: str) -> Path:
    """Build an extension module for an interpreter into a folder."""
    asked = subprocess.run([python, "-c", ASK], check=True, capture_output=True, text=True)
    include, suffix = asked.stdout.split()
    target = folder / f"{name}{suffix}"
    flags = [
        "-shared",
        "-fPIC",
        "-O2",
        "-std=c11",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
    ]
    flags += os.environ.get("CFLAGS", "").split()
    assert COMPILER is not None
    command = [COMPILER, *flags, f"-I{include}", *map(str, sources), "-o", str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return target
