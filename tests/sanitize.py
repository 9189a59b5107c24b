"""Looks for errors of memory in the C core: `python tests/sanitize.py [STEP ...]`, or `make sanitize` for all steps.

    leaks    tests of guards and dispatch that need no torch, with AddressSanitizer (leaks too) and
             UndefinedBehaviorSanitizer
    plain    the other tests that need no torch, without looking for leaks, which takes long
    torch    tests of guards, dispatch and segments that use torch, in the same way
    kernels  tests of host functions and machine code, in the same way
    disturb  recordings and replays amid other threads, signals, collections, forks and interpreters, in the same way
    devmode  many tests with PYTHONDEVMODE=1: CPython's own checks of memory and of objects

A leak counts if the C core is among those who asked for the memory.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WATCH = ROOT / "tests" / "watch"
sys.path.insert(0, str(WATCH))
import building  # noqa: E402

FLAGS = (
    "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g -O1 -DSTATOR_CHECK_WALK"
)
LEAKS = ("test_engine", "test_digest", "test_break_step")
PLAIN = (
    "test_hook_unnoticed",
    "test_hook_runs",
    "test_hook_classification",
    "test_hook_every_frame",
    "test_hook_limits",
    "test_probes",
    "test_probe_filters",
    "test_ledger",
    "test_frames",
    "test_instrument",
    "test_neighbour",
)
TORCH = ("replay", "e2e/test_guards.py", "e2e/test_guards_of_state.py", "e2e/test_dispatch.py", "e2e/test_modules.py")
TORCH += ("e2e/test_containers.py", "e2e/test_shared_recordings.py", "e2e/breaks/test_breaks_chain.py")
TORCH += tuple(
    f"e2e/dynamic/test_dynamic_{name}.py" for name in ("native", "numbers", "containers", "breaks", "reports")
)
KERNELS = ("fuse/test_native.py", "fuse/test_host_inputs.py", "fuse/test_in_place.py", "codegen/test_small_gemm.py")
DEVMODE = ("e2e", "replay", "watch")


def library(name: str) -> str:
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


def run(title: str, command: list[object], **environment: str) -> str:
    """Both outputs of a command; ends this program if it fails."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(f"{title}: {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ''}", flush=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-8000:]}\n{title}: status {done.returncode}")
    return done.stdout


def sanitized(folder: Path) -> dict[str, str]:
    """A copy of the package with a C core that checks itself; the environment in which it can be imported."""
    package = folder / "stator"
    shutil.copytree(ROOT / "src" / "stator", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    os.environ["CFLAGS"] = FLAGS
    building.build(sys.executable, sorted((package / "_native").glob("*.c")), package, "_native")
    return {
        "LD_PRELOAD": " ".join(map(library, ("libasan.so", "libubsan.so", "libstdc++.so"))),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join((str(folder), str(WATCH))),
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def our_leaks(report: str) -> list[str]:
    """Those of LeakSanitizer's findings whose memory was asked for by, or on behalf of, the C core."""
    found = re.split(r"\n(?=(?:Direct|Indirect) leak of )", report)
    return [leak for leak in found[1:] if "/stator/_native" in leak]


def leaks() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = sanitized(folder)
        (folder / "stator" / "__init__.py").write_text('"""Without torch."""\n')
        options = "detect_leaks=1:exitcode=0:fast_unwind_on_malloc=0:malloc_context_size=12"
        environment["ASAN_OPTIONS"] = f"{options}:log_path={folder / 'leaks'}"
        run("leaks", [sys.executable, WATCH / "run_plain.py", *LEAKS], **environment)
        reports = "".join(path.read_text() for path in folder.glob("leaks.*"))
        errors, ours = re.findall(r"ERROR: AddressSanitizer.*", reports), our_leaks(reports)
        print(f"leaks: {len(errors)} errors, {len(ours)} leaks of ours")
        if errors or ours:
            sys.exit(reports[-8000:] if errors else "\n".join(ours)[:8000])


def plain() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = sanitized(folder)
        (folder / "stator" / "__init__.py").write_text('"""Without torch."""\n')
        run("plain", [sys.executable, WATCH / "run_plain.py", *PLAIN], **environment, ASAN_OPTIONS="detect_leaks=0")


def with_torch(title: str, command: Sequence[object]) -> None:
    with tempfile.TemporaryDirectory() as name:
        environment = sanitized(Path(name))
        environment["ASAN_OPTIONS"] = "detect_leaks=0"
        where = run(title, [sys.executable, "-c", "import stator._native as n; print(n.__file__)"], **environment)
        assert where.startswith(name), where
        run(title, [sys.executable, *command], **environment)


def with_pytest(title: str, tests: Sequence[str]) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-o", "pythonpath="]
    # What is freed is kept for a while, to notice uses of it: memory grows.
    options += ["--deselect", "tests/e2e/test_dispatch.py::test_recording_again_does_not_grow"]
    with_torch(title, ["-m", "pytest", *options, *[f"tests/{path}" for path in tests]])


def devmode() -> None:
    paths = [f"tests/{path}" for path in DEVMODE]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
    run("devmode", [*command, "--deselect", "tests/watch/test_other_pythons.py"], PYTHONDEVMODE="1")


STEPS: dict[str, Callable[[], None]] = {
    "leaks": leaks,
    "plain": plain,
    "torch": lambda: with_pytest("torch", TORCH),
    "kernels": lambda: with_pytest("kernels", KERNELS),
    "disturb": lambda: with_torch("disturb", ["tests/faults/disturbances.py", "--seconds", "20"]),
    "devmode": devmode,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)} (all)")
    asked = parser.parse_args().steps
    if unknown := [step for step in asked if step not in STEPS]:
        parser.error(f"no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    if building.COMPILER is None:
        sys.exit("no C compiler")
    for step in asked or STEPS:
        STEPS[step]()


if __name__ == "__main__":
    main()
