"""Files that stator writes: new, of their owner alone, in folders of this user, whatever names they come from."""

from __future__ import annotations

import ast
import os
import pickletools
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import rand

import stator
from stator import own_files
from stator.errors import VerificationError

NAMES = [
    "", ".", "..", "/etc/passwd", "../../up", "a/b", "a\\b", "\x00", "\n", "é" * 300, "字" * 300, "x" * 5000, "\ud800",
    "con", "-rf", "~", "$HOME", "a b", "<lambda>", "ﬁ",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(NAMES)))
def test_a_name_is_short_and_leads_nowhere(number: int, tmp_path: Path) -> None:
    name = own_files.as_file_name(NAMES[number])
    assert name.isascii() and 0 < len(name) <= 70 and all(c.isalnum() or c == "_" for c in name)
    path = Path(own_files.save(os.fspath(tmp_path), NAMES[number], ".txt", "said \ud800"))
    assert path.parent == tmp_path and path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == "said \\ud800"


def test_names_that_were_cut_stay_apart() -> None:
    names = {own_files.as_file_name(text) for text in ("x" * 500, "x" * 501, "é", "è", "", "字")}
    assert len(names) == 6


def test_nothing_is_written_over(tmp_path: Path) -> None:
    opened, _ = own_files.open_folder(os.fspath(tmp_path))
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("taken", "link"):
        with pytest.raises(FileExistsError):
            own_files.create(opened, name, "theirs")
    os.close(opened)
    assert (tmp_path / "taken").read_text() == "mine" and not (tmp_path / "elsewhere").exists()


def test_a_new_folder_is_its_owners_alone(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        path = own_files.save(os.fspath(tmp_path / "new"), "a", ".txt", "text")
    finally:
        os.umask(former)
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default folder, in a temporary directory of this test's; it is not there yet."""
    monkeypatch.setattr(own_files.tempfile, "gettempdir", lambda: os.fspath(tmp_path))
    return Path(own_files.default_folder())


def _failing(graph: Any, inputs: Any) -> Any:
    raise ValueError("no")


def warned() -> str:
    fast = stator.compile(lambda x: x * 2, backend=_failing)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for seed in range(3):
            assert torch.equal(fast(rand(seed)), rand(seed) * 2)
    return "\n".join(str(each.message) for each in seen)


def test_the_default_folder_is_of_the_user(shared: Path) -> None:
    text = warned()
    assert shared.stat().st_mode & 0o777 == 0o700 and [*shared.iterdir()]
    assert os.fspath(shared) in text


def test_a_link_in_its_place_is_refused(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    shared.symlink_to(tmp_path / "theirs")
    assert f"nothing is saved: {shared} is a symbolic link" in warned()
    assert [*(tmp_path / "theirs").iterdir()] == []


def test_a_folder_that_others_may_enter_is_refused(shared: Path) -> None:
    shared.mkdir()
    shared.chmod(0o755)
    assert f"nothing is saved: others may enter {shared}" in warned()
    assert [*shared.iterdir()] == []


@pytest.mark.parametrize("named", [False, True])
def test_a_folder_of_another_user_is_refused(
    shared: Path, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "named" if named else shared
    folder.mkdir(0o700)
    found = os.stat(folder)
    monkeypatch.setattr(os, "geteuid", lambda: found.st_uid + 1)
    monkeypatch.setattr(own_files, "default_folder", lambda: os.fspath(shared))
    with stator.options.patch(debug_dir=os.fspath(folder) if named else None):
        assert f"{folder} belongs to another user" in warned()
    assert [*folder.iterdir()] == []


def test_a_named_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with stator.options.patch(debug_dir=os.fspath(folder)):
        assert f"others may write to {folder}" in warned()
    assert [*folder.iterdir()] == []


def _wrong(graph: Any, inputs: Any) -> Any:
    return lambda *values: [value + 1 for value in graph.forward(*values)]


@pytest.mark.parametrize("number", range(len(NAMES)))
def test_a_reproduction_is_data_and_no_code_of_a_name(number: int, tmp_path: Path) -> None:
    def fn(graph: torch.Tensor, torch: torch.Tensor, saved: torch.Tensor) -> Any:
        return graph * 2 + torch - saved.t()

    fn.__qualname__ = fn.__name__ = NAMES[number] + '"""\nimport os; os.mkdir("hijacked")\n'
    fast = stator.compile(fn, backend=_wrong, options={"verify": True, "debug_dir": os.fspath(tmp_path)})
    x = rand(1, 3, 3)
    args = (x[1:], x[:2], rand(2, 3, 2, requires_grad=True))
    fast(*args)
    with pytest.raises(VerificationError) as caught:
        fast(*args)
    script = Path(caught.value.reproduction or "")
    assert script.parent.parent == tmp_path and script.parent.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in script.parent.iterdir()] == [0o600] * 2
    ast.parse(script.read_text())
    text = script.read_text()
    assert "weights_only=False" not in text and "pickle" not in text and "torch.load" not in text
    with pytest.raises(ValueError, match=r"opcode|pickle"):
        list(pickletools.genops((script.parent / "inputs.bin").read_bytes()))
    if number % 7 == 0:
        source = Path(stator.__file__).parents[1]
        paths = os.pathsep.join(map(os.fspath, (source, Path(__file__).parent, Path(__file__).parents[1])))
        ran = subprocess.run(
            [sys.executable, script], env={**os.environ, "PYTHONPATH": paths}, cwd=tmp_path, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 1 and "output 0 is wrong" in ran.stdout, ran.stdout + ran.stderr
        assert not (tmp_path / "hijacked").exists()


def test_a_page_of_a_function_with_an_odd_name(tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    fn.__qualname__ = fn.__name__ = "f\ud800</script><b>"
    path = Path(stator.explain(fn)(rand(1)).save_html(tmp_path / "page.html"))
    text = path.read_text()
    assert text.rstrip().endswith("</html>") and "</script><b>" not in text
