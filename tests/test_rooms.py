"""Imports go downward only: a room sees the plain data below it, never another room's insides.

The order is data. A file may import what its row allows; a folder that has no row yet is a mistake here, so
that a new room states its place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stator.watch.observe import policy

SOURCE = Path(__file__).parents[1] / "src" / "stator"

# Plain data that every room may use.
GROUND = {"options", "errors", "events", "guard_codes", "recording", "source_lines", "own_files", "support"}
STAGES = {"watch", "replay", "autograd", "fuse", "codegen", "backends"}
BELOW_BUILD = GROUND | STAGES | {"_native", "reporting", "verify"}
BELOW_PIPELINE = BELOW_BUILD | {"build", "calling", "async_compile"}
BELOW_API = BELOW_PIPELINE | {"pipeline", "dispatch", "modules", "report"}

MAY_IMPORT: dict[str, set[str]] = {
    # ground: no room at all, and each other only downward
    "options": set(),
    "source_lines": set(),
    "own_files": set(),
    "errors": {"source_lines"},
    "events": {"errors"},
    "guard_codes": set(),
    "recording": {"errors", "guard_codes", "_native"},  # origins are made in C
    "support": {"recording", "support"},
    # stages: their own room and the ground; C is mechanism for all of them
    "watch": GROUND | {"watch", "_native"},
    "replay": GROUND | {"replay", "_native"},
    "autograd": GROUND | {"autograd"},
    "fuse": GROUND | {"fuse"},
    "codegen": GROUND | {"codegen", "_native"},
    "backends": GROUND | {"_native", "backends", "autograd", "fuse", "codegen"},
    # beside them: what compares their results with eager's
    "verify": GROUND | {"verify"},
    # who puts them together
    "reporting": GROUND | STAGES | {"_native"},
    "calling": set(),
    "build": BELOW_BUILD,
    "async_compile": GROUND | {"replay"},
    "pipeline": BELOW_PIPELINE,
    "dispatch": BELOW_PIPELINE | {"pipeline"},
    "modules": BELOW_PIPELINE | {"pipeline", "dispatch"},
    "api": BELOW_API,
    "report": {"options", "errors", "events", "source_lines", "own_files", "report"},
    "__init__": BELOW_API | {"api"},
    "cli": BELOW_API | {"api", "__init__", "cli"},
    "__main__": {"cli"},
}


def room(path: Path) -> str:
    """The first part of a file's path below the package: its folder, or its own name."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and room of every import of this package in a file, also in functions and for type checkers."""
    package = ["stator", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "stator" else [module]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "stator":
                yield node.lineno, parts[1] if len(parts) > 1 else "__init__"


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_imports_go_downward(path: Path) -> None:
    here = room(path)
    assert here in MAY_IMPORT, f"say in MAY_IMPORT what {here} may import"
    wrong = [f"line {line}: {there}" for line, there in imported(path) if there not in MAY_IMPORT[here]]
    assert not wrong, f"{here} may import {sorted(MAY_IMPORT[here])} only"


def test_the_order_has_no_cycle_between_rooms() -> None:
    """No two rooms may import each other, directly or through others."""
    reach = {here: set(there) - {here} for here, there in MAY_IMPORT.items()}
    for _ in reach:
        reach = {here: there.union(*(reach.get(next, set()) for next in there)) for here, there in reach.items()}
    assert [here for here, there in reach.items() if here in there] == []


def test_the_watched_run_knows_its_own_files() -> None:
    """Frames of stator's own code are not the program's, whatever room they are in."""
    assert Path(policy._STATOR) == SOURCE


# ---------------------------------------------------------------------------------------------------- the map

MAP = Path(__file__).parents[1] / "docs" / "map.md"


def test_the_map_names_every_file_of_the_package_and_no_other() -> None:
    named = set(re.findall(r"^\| `([\w/]+\.(?:py|c|h))` \|", MAP.read_text(), re.MULTILINE))
    files = {str(path.relative_to(SOURCE)) for end in ("py", "c", "h") for path in SOURCE.rglob(f"*.{end}")}
    in_package = {name for name in named if not name.startswith(("examples/", "benchmarks/", "tests/"))}
    assert sorted(files - in_package) == [], "docs/map.md does not say what these do"
    assert sorted(in_package - files) == [], "docs/map.md names what is not there"


def test_names_of_test_files_are_unique():
    """Pytest imports them by their bare names."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
