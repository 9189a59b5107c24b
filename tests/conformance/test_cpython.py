"""A part of CPython's test suite under watch, small enough for every day; `make conformance` runs all of it."""

from __future__ import annotations

import sys
from pathlib import Path

import cpython
import explained
import pytest

WATCHED = ["test_scope", "test_generator_stop", "test_unpack_ex", "test_with"]
COMPILED = ["test_augassign", "test_keywordonlyarg"]


def compare(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    _, good = cpython.numbers(["--jobs", "2", *words])
    output = capsys.readouterr().out
    assert good, output
    print(output)


@pytest.mark.parametrize("version", cpython.VERSIONS, ids=lambda v: "{}.{}".format(*v))
def test_watched_tests_have_the_same_outcomes(version: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    if cpython.building.COMPILER is None:
        pytest.skip("no C compiler")
    found = [str(python) for python in cpython.building.find_all(version).values() if cpython.has_tests(python)]
    if not found:
        pytest.skip("no CPython {}.{} with its test suite is on this machine".format(*version))
    compare(capsys, "--modes", "watch", "--python", *found, "--modules", *WATCHED)


def test_what_differs_is_found_and_a_crash_is_not_the_end() -> None:
    here = Path(sys.executable)
    where = cpython.Interpreter("here", here, cpython.torch_free_package(here, cpython.HERE_IS), "watch")
    stats = cpython.Tally()
    lines = cpython.check(where, "misbehaving", rounds=1, timeout=5, stats=stats)
    assert (stats.identical, stats.different, stats.explained) == (3, 5, 0), lines
    found = [line.split()[1].rpartition(".")[2] for line in lines[1:]]
    names = "b_crashes d_hangs e_raises_something_else f_skips g_a_part_fails"
    assert found == [f"test_{name}" for name in names.split()]
    assert "crash ends with status -6" in lines[1] and "crash hangs" in lines[2]


def test_an_explanation_is_for_its_tests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    row = explained.Explained("test.test_x.*.test_frame", "watch", "asks for its frame")
    monkeypatch.setattr(explained, "EXPLAINED", (row,))
    assert explained.explanation("test.test_x.Case.test_frame", "3.11.7", "watch") == row.reason
    assert explained.explanation("test.test_x.Case.test_frame", "3.11.7", "compile") is None
    assert explained.explanation("test.test_x.Case.test_frames", "3.11.7", "watch") is None


def test_compiled_tests_have_the_same_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    if not cpython.has_tests(Path(sys.executable)):
        pytest.skip("this CPython has no test suite")
    compare(capsys, "--modes", "compile", "--modules", *COMPILED)
