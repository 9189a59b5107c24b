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
GROUND = {
    "options",
    "errors",
    "events",
    "guard_codes",
    "recording",
    "source_lines",
    "own_files",
    "interrupts",
    "support",
}
STAGES = {"watch", "replay", "autograd", "fuse", "codegen", "backends"}
BELOW_BUILD = GROUND | STAGES | {"_native", "reporting", "verify"}
BELOW_PIPELINE = BELOW_BUILD | {"build", "calling", "async_compile"}
BELOW_PIPELINE_PAGE = BELOW_PIPELINE | {"stance", "program", "lookup", "record", "fallback"}
BELOW_API = BELOW_PIPELINE_PAGE | {"pipeline", "dispatch", "modules", "callees", "report"}

MAY_IMPORT: dict[str, set[str]] = {
    # ground: no room at all, and each other only downward
    "options": {"support"},
    "interrupts": {"_native"},  # frames are looked into in C
    "source_lines": {"interrupts"},
    "own_files": set(),
    "errors": {"source_lines"},
    "events": {"errors", "interrupts", "support"},
    "guard_codes": set(),
    "recording": {"errors", "guard_codes", "_native"},  # origins are made in C
    "support": {"errors", "interrupts", "recording", "support"},
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
    "stance": BELOW_PIPELINE,
    "program": BELOW_PIPELINE,
    "fallback": BELOW_PIPELINE | {"program"},
    "lookup": BELOW_PIPELINE | {"stance", "program", "fallback"},
    "record": BELOW_PIPELINE | {"program", "fallback", "lookup"},
    "pipeline": BELOW_PIPELINE_PAGE,
    "dispatch": BELOW_PIPELINE_PAGE | {"pipeline"},
    "modules": BELOW_PIPELINE_PAGE | {"pipeline", "dispatch"},
    "callees": BELOW_PIPELINE_PAGE | {"pipeline", "dispatch"},
    "api": BELOW_API,
    "report": {"options", "errors", "events", "interrupts", "source_lines", "own_files", "report"},
    "__init__": BELOW_API | {"api"},
    "cli": BELOW_API | {"api", "__init__", "cli"},
    "__main__": {"cli"},
}


def room(path: Path) -> str:
    """The first part of a file's path below the package: its folder, or its own name."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def modules(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of every import of this package in a file, also in functions and for type checkers."""
    package = ["stator", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((node.lineno, module, alias.name) for alias in node.names)


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


def module_name(path: Path) -> str:
    parts = ["stator", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other."""
    reach = {here: set(there) for here, there in graph.items()}
    while True:
        more = {here: there.union(*(reach[next] for next in there)) for here, there in reach.items()}
        if more == reach:
            break
        reach = more
    inside = [here for here in graph if here in reach[here]]
    return sorted({tuple(sorted(b for b in inside if b in reach[a] and a in reach[b])) for a in inside})


def test_no_files_import_each_other() -> None:
    """Neither directly nor through others, for type checkers and inside of functions included."""
    names = {module_name(path): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for here, path in names.items():
        found = set()
        for _, module, name in modules(path):
            inner = f"{module}.{name}"
            found.add(inner if inner in names else module if inner != "stator._native" else inner)
        graph[here] = (found & names.keys()) - {here}
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [("b", "c")]
    assert cycles(graph) == []


# What C code imports from Python, by itself. Everything else that it needs of Python it is told at import.
FROM_C = {"codeinfo.c": {"stator.watch.bytecode.instrument"}, "shield.c": {"stator.interrupts"}}


def test_c_code_imports_what_is_declared() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted((SOURCE / "_native").glob("*.[ch]")):
        text = path.read_text()
        for name in re.findall(r'PyImport_Import\w*\(\s*"(stator[\w.]*)"', text):
            found.setdefault(path.name, set()).add(name)
        assert not re.search(r"PyImport_Import\w*\((?!\s*\")", path.read_text()), (
            f"{path.name} imports by a computed name"
        )
    assert found == FROM_C
    names = {module_name(path) for path in FILES}
    assert set().union(*FROM_C.values()) <= names


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


# ------------------------------------------------------------------------------------------------- the vocabulary

NATIVE = SOURCE / "_native"


def types_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and text of the public types of a module: its classes, and what stands for a type under a name. A class that
    derives from the one by its name in C is that very thing."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            if f"_native.{node.name}" not in map(ast.unparse, node.bases):
                yield node.name, node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if re.fullmatch(r"[A-Z][A-Za-z]*[a-z][A-Za-z]*", name):
                yield name, ast.unparse(node.value)


def test_a_public_type_name_stands_for_one_thing() -> None:
    """In all rooms, and in C: there the classes of `_native.pyi` are structs by the same name."""
    found: dict[str, set[tuple[str, str]]] = {}
    paths = [*FILES, SOURCE / "_native.pyi"]
    for path in paths:
        here = str(path.relative_to(SOURCE))
        for name, text in types_of(ast.parse(path.read_text())):
            if not name.startswith("_"):
                # one alias, written twice, is one thing
                found.setdefault(name, set()).add((here if text == name else "an alias", text))
    classes = {name for name, _ in types_of(ast.parse((SOURCE / "_native.pyi").read_text()))}
    for path in sorted(NATIVE.glob("*.[ch]")):
        for name in re.findall(r"^(?:\} |typedef .*\(\*|typedef \w+ )(\w+)(?:;|\)\()", path.read_text(), re.MULTILINE):
            if name[0].isupper():
                found.setdefault(name, set()).add(("_native.pyi" if name in classes else path.name, name))
    assert {name: sorted(places) for name, places in sorted(found.items()) if len(places) > 1} == {}


VOCABULARY = Path(__file__).parents[1] / "docs" / "design" / "vocabulary.md"


def test_names_that_have_gone_stay_away_and_new_ones_exist() -> None:
    """The last table of docs/design/vocabulary.md."""
    table = VOCABULARY.read_text().split("## Names that have gone")[1]
    rows = re.findall(r"^\| (.*\*.*) \| (.*) \|$", table, re.MULTILINE)
    gone = {name for was, _ in rows for name in re.findall(r"\*(\w+)\*", was)}
    new = {name for _, now in rows for name in re.findall(r"`(\w+)`", now)}
    types = {name for path in [*FILES, SOURCE / "_native.pyi"] for name, _ in types_of(ast.parse(path.read_text()))}
    text = "".join(path.read_text() for path in NATIVE.glob("*.[ch]"))
    types |= set(re.findall(r"^\} (\w+);", text, re.MULTILINE))
    assert len(gone) > 10 and not gone & types
    assert new <= types


# ------------------------------------------------------------------------------------------------- small parts

LONGEST_FILE, LONGEST_FUNCTION, MOST_BRANCHES, LONGEST_LINE_IN_C = 600, 60, 20, 100


def functions_of(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, lines and branches of every function. In C a function's braces stand in the first column."""
    lines = path.read_text().splitlines()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.name, (node.end_lineno or 0) - node.lineno + 1, 0  # branches: ruff's C901
        return
    begin = 0
    for number, line in enumerate(lines):
        if line == "{":
            begin = number
        elif line == "}" and begin:
            body = re.sub(
                r"/\*.*?\*/|\"(\\.|[^\"])*\"|'(\\.|[^'])'", "", "\n".join(lines[begin:number]), flags=re.DOTALL
            )
            yield lines[begin - 1], number - begin + 3, 1 + len(re.findall(r"\b(?:if|for|while|case)\b|\?", body))
            begin = 0


@pytest.mark.parametrize("end", ["py", "c", "h"])
def test_files_and_functions_are_small(end: str) -> None:
    found = []
    for path in sorted(SOURCE.rglob(f"*.{end}")):
        here = path.relative_to(SOURCE)
        if (count := len(path.read_text().splitlines())) > LONGEST_FILE:
            found.append(f"{here}: {count} lines")
        for name, lines, branches in functions_of(path):
            if lines > LONGEST_FUNCTION or branches > MOST_BRANCHES:
                found.append(f"{here}: {name} has {lines} lines, {branches} branches")
    assert found == []


def test_files_of_tests_are_small() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in Path(__file__).parent.rglob("*.py")}
    assert len(lines) > 300 and {name: count for name, count in lines.items() if count > LONGEST_FILE} == {}


def test_lines_of_c_are_short() -> None:
    """As `.clang-format` has them; those of Python are ruff's business."""
    paths = [*sorted(NATIVE.glob("*.[ch]")), *Path(__file__).parent.rglob("*.c")]
    lines = [(path.name, line) for path in paths for line in path.read_text().splitlines()]
    assert len(lines) > 10_000
    assert [(name, line) for name, line in lines if len(line) > LONGEST_LINE_IN_C] == []


# ------------------------------------------------------------------------------------------------- state of modules

STATE = Path(__file__).parents[1] / "docs" / "design" / "state.md"
GROWING = re.compile(
    r"(\{\}|\[\]|ByIdentity\(\)|set\(\)|dict\(\)|list\(\)|(\w+\.)*(Weak\w+|defaultdict|OrderedDict|deque|Alive|R?Lock|Condition|local"
    r"|count)\(.*\))"
)


def state_of(path: Path) -> Iterator[str]:
    """Module-level names that are bound to what grows or locks, and those that functions bind."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and value is not None and GROWING.fullmatch(ast.unparse(value)):
            yield target.id
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names


def test_state_of_modules_is_listed_with_its_reason() -> None:
    rows = re.findall(r"^\| `([\w/.]+)` \| (.*?) \| (.+) \|$", STATE.read_text(), re.MULTILINE)
    listed = {(file, name) for file, names, why in rows for name in re.findall(r"`(\w+)`", names) if why.strip()}
    found = {(str(path.relative_to(SOURCE)), name) for path in FILES for name in state_of(path)}
    assert sorted(found - listed) == [], "say in docs/design/state.md why these are there"
    assert sorted(listed - found) == [], "docs/design/state.md lists what is not there"
