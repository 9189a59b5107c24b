"""Every name in a table of the documents exists: a file, a function of ours, an option, a name of torch or of Python.

A name is a piece of code in a cell that is a path, or one dotted name, perhaps called. Other pieces of code (`x + 1`)
are examples. What is generated from the code itself is left to the tests that it is up to date.
"""

from __future__ import annotations

import ast
import builtins
import collections
import dis
import functools
import inspect
import keyword
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import functorch.compile
import pytest
import torch
import torch.overrides

import stator
from stator.options import FIELDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {"graph-breaks.md", "options.md", "models.md"}
TABLES = [p for p in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))] if p.name not in GENERATED]

PATH = re.compile(r"[\w.*/-]+\.(?:pyi?|c|h|md|css|html|js|svg|txt|toml|yml)")
FOLDER = re.compile(r"(?:[\w-]+/)+")
NAME = re.compile(r"@?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\)|\[.*\])?")

ROOTS = {"dis": dis, "stator": stator, "torch": torch, "options": stator.options}
# Where a name may come from that is written without its module.
LIBRARIES = [
    *(builtins, os, collections, collections.OrderedDict),
    *(torch, torch.nn.functional, torch.overrides, functorch.compile),
]
WORDS = {*keyword.kwlist, *dis.opmap, *sys.stdlib_module_names, *(f"STATOR_{name.upper()}" for name in FIELDS)}
# A program of others, and variables that are not options.
WORDS |= {"tlparse", "STATOR_LOGS"}


def rows(document: Path) -> Iterator[tuple[int, list[str]]]:
    """Every row of a table: its line, and all pieces of code in it."""
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        if line.startswith("|"):
            yield number, re.findall(r"`([^`]+)`", line)


@functools.cache
def defined() -> frozenset[str]:
    """Everything that the sources give a name to: modules, functions, classes, attributes, arguments; words of C."""
    names: set[str] = set()
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/*.py")]:
        names.add(path.stem)
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    names.add(node.name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                    names.add(name)
    for path in ROOT.glob("src/**/*.[ch]"):
        names.update(re.findall(r"\b[A-Za-z_]\w+", path.read_text()))
    return frozenset(names)


def exists(path: str, document: Path, row: list[str]) -> bool:
    """Relative to the root, the package, the tests, the document, or the folder of another file in the row."""
    places = [ROOT, ROOT / "src" / "stator", ROOT / "tests", document.parent]
    folders = [other if other.endswith("/") else str(Path(other).parent) for other in row if "/" in other]
    places += [place / folder for place in places for folder in folders]
    return any(any(place.glob(path.rstrip("/"))) for place in places if place.is_dir())


def reaches(root: object, names: list[str]) -> bool:
    for name in names:
        if not hasattr(root, name):
            return False
        root = getattr(root, name)
    return True


def known(name: str) -> bool:
    first, *rest = name.split(".")
    if first in ROOTS:
        return reaches(ROOTS[first], rest)
    if name in WORDS or any(reaches(library, [first, *rest]) for library in LIBRARIES):
        return True
    return all(part in defined() for part in [first, *rest])


@pytest.mark.parametrize("document", TABLES, ids=[str(path.relative_to(ROOT)) for path in TABLES])
def test_names_in_tables_exist(document: Path) -> None:
    unknown = []
    for line, row in rows(document):
        for code in row:
            if PATH.fullmatch(code) or FOLDER.fullmatch(code):
                found = exists(code, document, row)
            else:
                named = NAME.fullmatch(code)
                found = named is None or known(named[1])
            if not found:
                unknown.append(f"{document.relative_to(ROOT)}:{line}: {code}")
    assert not unknown, "\n".join(unknown)


MADE_UP = {"statistics._foo", "Fact.SORTED"}  # what the guides add


def test_names_in_the_guides_exist() -> None:
    """In every line of docs/contributing.md. Files are named by their last part, where the folder has been named."""
    guide, unknown = DOCS / "contributing.md", []
    for number, line in enumerate(guide.read_text().splitlines(), start=1):
        row = re.findall(r"`([^`]+)`", line)
        for code in row:
            named = NAME.fullmatch(code)
            if PATH.fullmatch(code) or FOLDER.fullmatch(code):
                found = exists(code, guide, row) or any((ROOT / "src").rglob(code))
            else:
                found = named is None or known(named[1]) or named[1] in MADE_UP
            if not found:
                unknown.append(f"{guide.name}:{number}: {code}")
    assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize(
    "name", ["stator.compil", "options.verbos", "torch.no_such_function", "recorrder", "Recorrder()"]
)
def test_a_name_that_does_not_exist_is_seen(name: str) -> None:
    assert not known(NAME.fullmatch(name)[1])


PROSE = re.compile(r"(?<![\w./-])((?:stator|torch)(?:\.[A-Za-z_]\w*)+|options\.[A-Za-z_]\w*)")
# Files and loggers are not attributes.
NO_ATTRIBUTES = re.compile(r"\.(?:py|h|c|md|html|svg|json|toml|so)\b")


@pytest.mark.parametrize("document", TABLES, ids=[str(path.relative_to(ROOT)) for path in TABLES])
def test_names_anywhere_exist(document: Path) -> None:
    """In the text and in its programs: `stator.compile`, `options.verbose`, `torch.compiler.reset`."""
    unknown = []
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        for name in PROSE.findall(line):
            found = NO_ATTRIBUTES.search(name) or known(name) or all(part in defined() for part in name.split(".")[1:])
            if not found:
                unknown.append(f"{document.relative_to(ROOT)}:{number}: {name}")
    assert not unknown, "\n".join(unknown)


ARGUMENTS = re.compile(r"\bstator\.(compile|compile_|disable|mark_dynamic|set_stance|explain)\(([^`]*?)\)")


@pytest.mark.parametrize("document", TABLES, ids=[str(path.relative_to(ROOT)) for path in TABLES])
def test_arguments_exist(document: Path) -> None:
    """Those that a call of ours is shown with."""
    for name, given in ARGUMENTS.findall(document.read_text()):
        taken = inspect.signature(getattr(stator, name)).parameters
        named = re.findall(r"\b(\w+)=(?!=)", re.sub(r"\{[^}]*\}|\"[^\"]*\"", "", given))
        free = any(each.kind is each.VAR_KEYWORD for each in taken.values())
        assert free or set(named) <= set(taken), f"{document.name}: stator.{name}({given})"
