"""A build of the C core that ends the process if a walk over guards runs Python code, under programs that try."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "watch"))
import building  # noqa: E402

PROGRAM = """
import test_keys_that_run_code as keys
import stator
assert stator.__file__.startswith(FOLDER), stator.__file__
for function, name in ((keys.read_attribute, "scale"), (keys.read_missing, "missing"), (keys.call_super, "twice")):
    keys.test_rule_7_bases_get_a_key_that_acts(function, name)
keys.test_rule_7_a_mode_that_acts_when_grad_is_read()
print("nothing ran")
"""


def test_rule_7_no_walk_runs_python_code(tmp_path: Path) -> None:
    package = tmp_path / "stator"
    shutil.copytree(building.PACKAGE, package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    former = os.environ.get("CFLAGS")
    os.environ["CFLAGS"] = "-DSTATOR_CHECK_WALK"
    try:
        built = building.build(sys.executable, sorted((package / "_native").glob("*.c")), package, "_native")
    finally:
        os.environ.pop("CFLAGS")
        if former is not None:
            os.environ["CFLAGS"] = former
    assert b"a walk over guards has run Python code" in built.read_bytes()
    paths = os.pathsep.join(map(str, (tmp_path, Path(__file__).parent, TESTS)))
    text = f"FOLDER = {str(tmp_path)!r}\n{PROGRAM}"
    ran = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0 and "nothing ran" in ran.stdout, ran.stdout + ran.stderr[-2000:]
