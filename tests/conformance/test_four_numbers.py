"""The script that runs all parts: which it runs, with what, and what its exit status says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def whole() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformance_main", HERE / "__main__.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def parts(whole: ModuleType, folder: Path, **endings: str) -> dict[str, object]:
    """Scripts that only print the end of their output."""
    made = {}
    for name, ending in endings.items():
        script = folder / f"{name}.py"
        script.write_text(ending)
        made[name] = whole.Part(str(script), lambda asked: [], f"{name} good / bad")
    return made


def test_the_numbers_of_all_parts_end_the_output(whole, tmp_path, monkeypatch, capfd):
    one, two = "print('one good / bad: 3 / 0')", "print('two good / bad: 5 / 0'); print('more')"
    monkeypatch.setattr(whole, "PARTS", parts(whole, tmp_path, one=one, two=two))
    assert whole.main([]) == 0
    assert capfd.readouterr().out.splitlines()[-2:] == ["one good / bad: 3 / 0", "two good / bad: 5 / 0"]
    assert whole.main(["two"]) == 0
    assert "one good" not in capfd.readouterr().out


@pytest.mark.parametrize(
    "ending", ["import sys; print('bad good / bad: 3 / 1'); sys.exit(1)", "print('nothing')", "raise ValueError"]
)
def test_what_is_wrong_in_one_part_is_seen_in_the_exit_status(ending, whole, tmp_path, monkeypatch, capfd):
    good = "print('good good / bad: 5 / 0')"
    monkeypatch.setattr(whole, "PARTS", parts(whole, tmp_path, bad=ending, good=good))
    assert whole.main([]) == 1
    bad, fine = capfd.readouterr().out.splitlines()[-2:]
    assert bad.endswith("<-- look at bad") and fine == "good good / bad: 5 / 0"


def test_parts_and_samples(whole, capsys):
    with pytest.raises(SystemExit):
        whole.arguments(["nonsense"])
    assert "no such part: nonsense" in capsys.readouterr().err
    asked = whole.arguments(["fuzz", "--programs", "5000", "--seed", "7", "--jobs", "3"])
    assert whole.PARTS["fuzz"].words(asked) == ["-n", "5000", "--seed", "7", "--processes", "3"]
    for part in whole.PARTS.values():
        assert (whole.TESTS / part.script).is_file()
        assert part.words(whole.arguments(["--quick"]))
