"""The native layer under every supported CPython that is found on this machine: built with the plain
compiler, tested without torch and without pytest. A missing interpreter is reported, not an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import building
import pytest

HERE = Path(__file__).parent
TESTS = [
    "test_hook_unnoticed",
    "test_hook_runs",
    "test_hook_classification",
    "test_hook_every_frame",
    "test_hook_limits",
    "test_probes",
    "test_probe_filters",
    "test_ledger",
    "test_fingerprint",
    "test_instrument",
    "test_neighbour",
]
TESTS += ["test_continuation", "test_frames", "test_engine", "test_digest", "test_break_step", "test_relay"]
OTHERS = [version for version in ((3, 11), (3, 12), (3, 13)) if version != sys.version_info[:2]]


@pytest.mark.parametrize("version", OTHERS, ids=lambda v: "{}.{}".format(*v))
def test_native_layer(version: tuple[int, int], tmp_path: Path) -> None:
    if building.COMPILER is None:
        pytest.skip("no C compiler")
    python = building.find(version)
    if python is None:
        pytest.skip("CPython {}.{} is not on this machine".format(*version))
    building.assemble(python, tmp_path)
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
