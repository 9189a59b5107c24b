"""Building C sources with the plain compiler, and the part of the package that needs no torch, for tests; finding
the interpreters to do it for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
PACKAGE = Path(__file__).parents[2] / "src" / "stator"
MODULES = ["__init__", "opcodes", "instrument", "flow", "assemble", "continuation", "break_step", "suspend"]
GROUND = ["__init__", "by_identity"]  # of `support`, which they build on

ASK = "import sysconfig; print(sysconfig.get_path('include')); print(sysconfig.get_config_var('EXT_SUFFIX'))"
ASK_VERSION = "import sys; print(sys.implementation.name, *sys.version_info[:3])"


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


def assemble(python: Path, folder: Path) -> None:
    """The part of the package that needs no torch, for an interpreter."""
    bytecode = folder / "stator" / "watch" / "bytecode"
    bytecode.mkdir(parents=True)
    (folder / "stator" / "__init__.py").write_text('"""The native layer alone."""\n')
    shutil.copy(PACKAGE / "watch" / "__init__.py", bytecode.parent)
    for name in MODULES:
        shutil.copy(PACKAGE / "watch" / "bytecode" / f"{name}.py", bytecode)
    (folder / "stator" / "support").mkdir()
    for name in GROUND:
        shutil.copy(PACKAGE / "support" / f"{name}.py", folder / "stator" / "support")
    build(str(python), sorted((PACKAGE / "_native").glob("*.c")), folder / "stator", "_native")


def version_of(python: Path) -> tuple[int, ...] | None:
    """The full version of an interpreter; None if it is no CPython, or does not run."""
    try:
        done = subprocess.run([python, "-c", ASK_VERSION], capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return None
    name, *numbers = done.stdout.split() or [""]
    return tuple(map(int, numbers)) if done.returncode == 0 and name == "cpython" else None


def find_all(version: tuple[int, int]) -> dict[tuple[int, ...], Path]:
    """The interpreters of this version, of pyenv's and on the path, by full version."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = sorted(root.glob(f"{version[0]}.{version[1]}.*/bin/python"))
    for folder in os.get_exec_path():
        candidates.append(Path(folder) / "python{}.{}".format(*version))
    found: dict[tuple[int, ...], Path] = {}
    for python in candidates:
        full = version_of(python)
        if full is not None and full[:2] == version:
            found.setdefault(full, python)
    return found


def find(version: tuple[int, int]) -> Path | None:
    return next(iter(find_all(version).values()), None)
