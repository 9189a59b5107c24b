"""The native layer under every supported CPython that is found on this machine: built with the plain
compiler, tested without torch and without pytest. A missing interpreter is reported, not an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import building
import pytest

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "src" / "stator"
TESTS = ["test_hook", "test_probes", "test_ledger", "test_fingerprint", "test_instrument", "test_neighbour"]
TESTS += ["test_continuation", "test_frames", "test_engine", "test_digest", "test_leaving", "test_relay"]
MODULES = ["__init__", "opcodes", "instrument", "flow", "assemble", "continuation", "step", "suspend"]
ASK = "import sys; print(sys.implementation.name, *sys.version_info[:2])"


def answers(python: Path, version: tuple[int, int]) -> bool:
    try:
        done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.split() == ["cpython", *map(str, version)]


def find(version: tuple[int, int]) -> Path | None:
    name = "python{}.{}".format(*version)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = sorted(root.glob(f"{version[0]}.{version[1]}.*/bin/python"))
    on_path = shutil.which(name)
    candidates += [Path(on_path)] if on_path else []
    return next((python for python in candidates if answers(python, version)), None)


def assemble(python: Path, folder: Path) -> None:
    """The part of the package that needs no torch."""
    watch = folder / "stator" / "watch"
    watch.mkdir(parents=True)
    (folder / "stator" / "__init__.py").write_text('"""The native layer alone."""\n')
    for name in MODULES:
        shutil.copy(PACKAGE / "watch" / f"{name}.py", watch)
    building.build(str(python), sorted((PACKAGE / "_native").glob("*.c")), folder / "stator", "_native")


OTHERS = [version for version in ((3, 11), (3, 12), (3, 13)) if version != sys.version_info[:2]]


@pytest.mark.parametrize("version", OTHERS, ids=lambda v: "{}.{}".format(*v))
def test_native_layer(version: tuple[int, int], tmp_path: Path) -> None:
    if building.COMPILER is None:
        pytest.skip("no C compiler")
    python = find(version)
    if python is None:
        pytest.skip("CPython {}.{} is not on this machine".format(*version))
    assemble(python, tmp_path)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join((str(tmp_path), str(HERE))), PYTHONDEVMODE="1")
    done = subprocess.run(
        [python, HERE / "run_plain.py", *TESTS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    print(done.stdout[-3000:], file=sys.stderr)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
