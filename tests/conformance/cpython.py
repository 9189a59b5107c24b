"""CPython's own test suite under watch: `python tests/conformance/cpython.py [options]`, or `make conformance`.

Each module of MODULES runs plain and watched, in a process of its own each time; the outcome of every test must be
the same: pass, fail, error or skip, and the type of the exception. Every interpreter found is used.

    watch    all versions, without torch: every frame a test enters runs as an instrumented copy
    compile  the interpreter that runs this, if it has torch: each test method through `stator.compile`, three times in
             a row, so that recordings are also checked and replayed

Differences that are explained in `explained.py` are counted apart; any other one makes the exit status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "watch")]
import building  # noqa: E402
from explained import explanation  # noqa: E402

HERE_IS = ".".join(map(str, sys.version_info[:3]))
VERSIONS = ((3, 11), (3, 12), (3, 13))
ROUNDS = {"watch": 2, "compile": 3}
TEXT = 400  # characters of a difference that are printed
MODULES = """
    test_generators test_dict test_list test_set test_tuple test_class test_descr test_super test_scope test_with
    test_contextlib test_exceptions test_raise test_functools test_itertools test_collections test_enum
    test_dataclasses test_patma test_unpack test_call test_decorators test_property test_operator test_iter
    test_string test_format test_fstring test_coroutines test_inspect test_typing test_weakref test_copy test_json
    test_abc test_asyncgen test_augassign test_baseexception test_binop test_bisect test_bool test_compare
    test_context test_contains test_contextlib_async test_copyreg test_defaultdict test_deque test_dictcomps
    test_dictviews test_dynamic test_dynamicclassattribute test_enumerate test_except_star test_exception_group
    test_exception_variations test_extcall test_funcattrs test_generator_stop test_genericalias test_genericclass
    test_genexps test_graphlib test_heapq test_index test_isinstance test_keywordonlyarg test_listcomps
    test_metaclass test_named_expressions test_ordered_dict test_positional_only_arg test_pprint test_range
    test_reprlib test_richcmp test_setcomps test_string_literals test_structseq test_subclassinit
    test_type_annotations test_types test_unary test_unpack_ex test_userdict test_userlist test_userstring
    test_weakset test_yield_from test_builtin test_float test_int test_complex test_fractions test_slice
    test_global test_textwrap test_pow test_gc test_frame test_traceback test_warnings
    test_sys_setprofile test_threading_local test_abstract_numbers test_exception_hierarchy test_numeric_tower
    test_print test_syntax test_hash test_descrtut test_queue test_re test_bytes
""".split()

Key = tuple[str, int]  # a test's id, and which run of it
Outcomes = dict[Key, list[str]]


@dataclass
class Interpreter:
    version: str
    python: Path
    package: Path  # what to import stator from
    mode: str

    @property
    def name(self) -> str:
        return f"{self.version} {self.mode}"


@dataclass
class Child:
    """What one process, and those after it where it crashed, had to say of a module."""

    outcomes: Outcomes = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    output: str = ""


@dataclass
class Tally:
    identical: int = 0
    explained: int = 0
    different: int = 0
    missing: int = 0  # modules
    calls: Counter[str] = field(default_factory=Counter)


# ---- one module in one process -----------------------------------------------------------------------------------


def read(path: Path, child: Child) -> tuple[Key | None, bool]:
    """Take a file of results. The test that had begun and not ended, and whether the module came to its end."""
    running: Key | None = None
    finished = False
    for line in path.read_text().splitlines():
        event, *fields = json.loads(line)
        if event == "start":
            running = (fields[0], fields[1])
        elif event == "end":
            child.outcomes[fields[0], fields[1]] = fields[2]
            running = None
        elif event == "calls":
            child.calls.update(fields[0])
        finished |= event == "finished"
    return running, finished


def wait(process: subprocess.Popen[bytes], results: Path, timeout: float) -> bool:
    """Until the process ends; False if it was ended because no test ended within the time."""
    size, since = -1, time.monotonic()
    while process.poll() is None:
        time.sleep(0.05)
        now = results.stat().st_size if results.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > timeout:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False
    return True


def run_module(where: Interpreter, mode: str, module: str, rounds: int, timeout: float) -> Child:
    """All outcomes of a module. For a test that crashes or hangs that is it, and the others go on without it."""
    child = Child()
    path = os.pathsep.join(map(str, (where.package, ROOT / "tests" / "watch")))
    environment = dict(os.environ, PYTHONPATH=path, PYTHONHASHSEED="0", PYTHONFAULTHANDLER="1", OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as name:
        results, output = Path(name) / "results", Path(name) / "output"
        while True:
            command = [where.python, HERE / "run_module.py", mode, module, rounds, results, results]
            results.touch()
            with output.open("ab") as out:
                process = subprocess.Popen(
                    list(map(str, command)),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
                in_time = wait(process, results, timeout)
            running, finished = read(results, child)
            if finished:
                break
            what = "hangs" if not in_time else f"ends with status {process.returncode}"
            if running is None or running in child.outcomes:
                child.outcomes[module, 0] = [f"crash {what}"]
                break
            child.outcomes[running] = [f"crash {what}"]
        child.output = output.read_text(errors="replace")
    return child


# ---- comparing ---------------------------------------------------------------------------------------------------


def kind(what: str) -> str:
    """Without the text of an exception: it may hold addresses."""
    return what if what.startswith(("skip", "crash", "stator")) else what.split(":")[0]


def differences(plain: Outcomes, watched: Outcomes) -> Iterator[tuple[Key, str]]:
    for key in sorted({*plain, *watched}):
        one, two = plain.get(key, ["not run"]), watched.get(key, ["not run"])
        if [*map(kind, one)] != [*map(kind, two)]:
            yield key, f"plain {'; '.join(one) or 'nothing'}  --  {'; '.join(two) or 'nothing'}"


def is_missing(outcomes: Outcomes) -> bool:
    return all(test.startswith("unittest.loader._FailedTest") for test, _ in outcomes)


def check(where: Interpreter, module: str, rounds: int, timeout: float, stats: Tally) -> list[str]:
    """Compare a module's tests; the lines to print."""
    start = time.monotonic()
    plain = run_module(where, "plain", module, rounds, timeout)
    if is_missing(plain.outcomes):
        stats.missing += 1
        return [f"{where.name}  {module}: cannot be run here: {next(iter(plain.outcomes.values()), '')}"]
    watched = run_module(where, where.mode, module, rounds, timeout)
    found = dict(differences(plain.outcomes, watched.outcomes))
    if found:  # is it the same without us, twice?
        again = run_module(where, "plain", module, rounds, timeout)
        for key, _ in differences(plain.outcomes, again.outcomes):
            found.pop(key, None)
            plain.outcomes.pop(key, None)
    lines: dict[str, str] = {}  # one for all runs of a test
    explained = 0
    for (test, number), text in found.items():
        why = explanation(test, where.version, where.mode)
        explained += why is not None
        what = "explained" if why else "DIFFERENT"
        lines.setdefault(test, f"    {what} {test} run {number}: {' '.join(text.split())[:TEXT]}")
    same = len(plain.outcomes) - len({*found} & {*plain.outcomes})
    stats.identical += same
    stats.explained += explained
    stats.different += len(found) - explained
    stats.calls.update(watched.calls)
    seconds = time.monotonic() - start
    text = f"{same} identical, {len(found) - explained} different, {explained} explained, {seconds:.0f} s"
    return [f"{where.name}  {module}: {text}", *lines.values()]


# ---- all of it ---------------------------------------------------------------------------------------------------


def has_tests(python: Path) -> bool:
    command = [python, "-c", "import test.support, test.test_dict"]
    return subprocess.run(command, capture_output=True, check=False, cwd="/").returncode == 0


def torch_free_package(python: Path, version: str) -> Path:
    """The part of the package that needs no torch, built for an interpreter unless that has been done."""
    native = sorted((building.PACKAGE / "_native").iterdir())
    sources = [*native, *(building.PACKAGE / "watch" / "bytecode" / f"{name}.py" for name in building.MODULES)]
    digest = hashlib.sha1(b"".join(path.read_bytes() for path in (Path(building.__file__), *sources))).hexdigest()
    package = ROOT / "build" / "conformance" / f"{version}-{digest[:12]}"
    if not package.exists():
        package.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=package.parent) as name:
            building.assemble(python, Path(name) / "made")
            with contextlib.suppress(OSError):  # somebody else was faster
                (Path(name) / "made").rename(package)
    return package


def interpreters(wanted: list[Path], modes: Iterable[str]) -> Iterator[Interpreter]:
    """Those found, with the part of the package for each; what is missing is said."""
    for version in VERSIONS:
        found = building.find_all(version)
        if wanted:
            found = {v: python for python in wanted if (v := building.version_of(python)) and v[:2] == version}
        elif not found:
            print("CPython {}.{}: not found, left out".format(*version))
        for full, python in found.items():
            name = ".".join(map(str, full))
            if not has_tests(python):
                print(f"CPython {name} ({python}): its test suite is not installed, left out")
            elif "watch" in modes:
                yield Interpreter(name, python, torch_free_package(python, name), "watch")
    here = Path(sys.executable)
    if "compile" in modes and (not wanted or here in wanted):
        if importlib.util.find_spec("torch") is None:
            print(f"CPython {HERE_IS} ({here}): has no torch, nothing is compiled")
        elif not has_tests(here):
            print(f"CPython {HERE_IS} ({here}): its test suite is not installed, nothing is compiled")
        else:
            yield Interpreter(HERE_IS, here, ROOT / "src", "compile")


def run(arguments: argparse.Namespace) -> tuple[dict[str, Tally], bool]:
    """What was found on each interpreter, and whether the comparison itself failed."""
    tallies: dict[str, Tally] = {}
    failed = False
    with ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = []
        for where in interpreters(arguments.python, arguments.modes):
            stats = tallies[where.name] = Tally()
            for module in arguments.modules:
                waiting.append(
                    pool.submit(check, where, module, arguments.rounds or ROUNDS[where.mode], arguments.timeout, stats)
                )
        for number, future in enumerate(waiting, 1):
            first, *rest = future.result() if future.exception() is None else [f"FAILED {future.exception()!r}"]
            failed |= future.exception() is not None
            print(f"[{number}/{len(waiting)}] {first}", *rest, sep="\n", flush=True)
    return tallies, failed


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="+", default=MODULES, metavar="NAME", help="test modules (all of the table)")
    parser.add_argument("--python", nargs="+", default=[], type=Path, help="interpreters (all that are found)")
    parser.add_argument("--modes", nargs="+", default=["watch", "compile"], choices=["watch", "compile"])
    parser.add_argument("--rounds", type=int, help="runs of each test (2 watched, 3 compiled)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a test may take (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (%(default)s)")
    return parser.parse_args(words)


def numbers(words: list[str] | None = None) -> tuple[str, bool]:
    """Run it; the line that sums it up, and whether all is well."""
    tallies, failed = run(parse(words))
    for name, stats in tallies.items():
        calls = ", ".join(f"{count} {what}" for what, count in stats.calls.items())
        print(
            f"CPython {name}: tests identical {stats.identical}, different {stats.different}, explained "
            f"{stats.explained}{f', modules not there {stats.missing}' if stats.missing else ''}"
            f"{f' (calls: {calls})' if calls else ''}"
        )
    same, other = (sum(getattr(stats, part) for stats in tallies.values()) for part in ("identical", "different"))
    return f"tests identical / different: {same} / {other}", same > 0 and other == 0 and not failed


def main() -> int:
    line, good = numbers()
    print(line)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
