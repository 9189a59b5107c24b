"""The documents tell the truth: every block of Python in them runs, and prints what the block of text behind it says.

The blocks of one document are one program, in order, in a process of its own. `...` in a text stands for anything.
"""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

RUN = """
import contextlib, io, json, linecache, sys
names = {"__name__": "__main__"}
for number, source in enumerate(json.load(sys.stdin)):
    file = f"<block {number + 1}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, file, "exec"), names)
    print(json.dumps(printed.getvalue()), file=sys.__stdout__, flush=True)
"""


def blocks(document: Path) -> list[tuple[str, str | None]]:
    """Every block of Python with the text that it is said to print."""
    found: list[tuple[str, str | None]] = []
    for kind, text in FENCE.findall(document.read_text()):
        if kind == "python":
            found.append((text, None))
        else:
            assert found and found[-1][1] is None, f"a text in {document.name} without a program before it:\n{text}"
            found[-1] = (found[-1][0], text)
    return found


@pytest.mark.parametrize("name", ["tutorial.md", "how-it-works.md", "coming-from-torch-compile.md"])
def test_the_programs_print_what_is_said(name: str) -> None:
    parts = blocks(DOCS / name)
    assert parts
    sources = json.dumps([source for source, _ in parts])
    ran = subprocess.run([sys.executable, "-c", RUN], input=sources, capture_output=True, text=True, timeout=300)
    printed = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.returncode == 0, f"block {len(printed) + 1} of {name}:\n{parts[len(printed)][0]}\n{ran.stderr}"
    same = doctest.OutputChecker().check_output
    for (source, wanted), got in zip(parts, printed, strict=True):
        if wanted is not None:
            assert same(wanted, got, doctest.ELLIPSIS), f"{name}:\n{source}\nsays:\n{wanted}\nprints:\n{got}"


SURROUNDINGS = """
import torch
x, fn = torch.ones(4, 4), lambda x: x.sin()
model = module = torch.nn.Linear(4, 4)
my_backend = lambda gm, example_inputs: gm.forward
"""


def test_the_blocks_of_the_readme_run(tmp_path: Path) -> None:
    sources = [SURROUNDINGS, *(source for source, _ in blocks(DOCS.parent / "README.md"))]
    assert len(sources) == 3
    given = json.dumps(sources)
    ran = subprocess.run(
        [sys.executable, "-c", RUN], input=given, capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert "stator produced 1 graph with 0 graph breaks and 1 op" in json.loads(ran.stdout.splitlines()[2])
    assert (tmp_path / "report.html").exists()


def test_the_picture_is_whole_in_itself() -> None:
    picture = (DOCS / "way.svg").read_text()
    tree = ElementTree.fromstring(picture)
    assert tree.tag.endswith("svg") and "(docs/way.svg)" in (DOCS.parent / "README.md").read_text()
    words = " ".join("".join(element.itertext()) for element in tree.iter() if element.tag.endswith("}text"))
    for stage in ("watch", "guards", "graph", "joint graph", "partition", "backend", "replay"):
        assert stage in words
    assert "prefers-color-scheme: dark" in picture
    assert set(re.findall(r"https?://[^\s\"']+", picture)) == {"http://www.w3.org/2000/svg"}  # nothing is fetched


def test_links_lead_somewhere() -> None:
    for document in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)  # no code
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
