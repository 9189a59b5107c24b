"""Runs one module of CPython's test suite in this process: `run_module.py MODE MODULE ROUNDS RESULTS [DONE]`.

MODE says how a test method is called: `plain`, through a watcher that only looks on (`watch`, needs no torch), or
through `stator.compile` (`compile`). Every test case runs ROUNDS times in a row, each time on a fresh instance. RESULTS
gets a line of JSON when a run of a test starts and when it ends; runs that have begun in DONE are left out.
No pytest, and nothing that a bare CPython does not have.
"""

from __future__ import annotations

import copy
import doctest
import gc
import itertools
import json
import os
import random
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from test import support

Call = Callable[[], Any]
RECORDINGS = 64  # of a test method: many classes share one, and each of them needs recordings of its own


class Results(unittest.TestResult):
    """Writes down what happens, as it happens: after a crash the file says where."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._process = os.getpid()
        self._runs: Counter[str] = Counter()
        self._now: list[str] | None = None

    def write(self, *fields: Any) -> None:
        if os.getpid() == self._process:  # not in a child of the test's
            os.write(self._file, (json.dumps(fields) + "\n").encode())

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        random.seed(0)
        self._now = []
        self._runs[test.id()] += 1
        self.write("start", test.id(), self._runs[test.id()])

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        if self._now is None:  # CPython 3.12.1 says twice that a skipped test is over
            return
        self.write("end", test.id(), self._runs[test.id()], self._now)
        self._now = None

    def note(self, what: str, test: Any = None) -> None:
        if self._now is not None:
            self._now.append(what)
        else:  # a fixture of a class or a module
            self._runs[test.id()] += 1
            self.write("start", test.id(), self._runs[test.id()])
            self.write("end", test.id(), self._runs[test.id()], [what])

    def addSuccess(self, test: Any) -> None:
        self.note("pass")

    def addFailure(self, test: Any, err: Any) -> None:
        self.note(f"fail {_words(err)}", test)

    def addError(self, test: Any, err: Any) -> None:
        self.note(f"error {_words(err)}", test)

    def addSkip(self, test: Any, reason: str) -> None:
        self.note(f"skip {reason}", test)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.note(f"expected {_words(err)}")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.note("unexpected success")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.note(f"subtest {_words(err)}")


def _words(err: Any) -> str:
    """Exceptions are compared by type; the text is for whoever reads the difference."""
    if os.environ.get("CONFORMANCE_TRACEBACKS"):
        sys.excepthook(*err)
    return f"{err[0].__module__}.{err[0].__qualname__}: {err[1]}"


# ---- ways to call a test method ----------------------------------------------------------------------------------


def call_plainly(results: Results) -> Callable[[Call], Any]:
    """Through as many functions of this file, for tests that look at their callers; and with the same modules loaded:
    torch replaces a function of the standard library."""
    import stator  # noqa: F401

    def call(method: Call) -> Any:
        return method()

    return lambda method: call(method)


def call_watched(results: Results) -> Callable[[Call], Any]:
    """Every frame runs as an instrumented copy, every probe tells its handler."""
    from watching import KINDS

    from stator import _native as n

    everything = itertools.cycle((True, False))
    silent = "".format  # takes anything, at no cost; only what a call's handler gives back counts

    def look_on(probe: Any, *operands: Any) -> None:
        assert n.state() == n.OFF

    handlers = dict.fromkeys((*KINDS, n.RETURN, n.PACK), look_on)
    many = handlers | dict.fromkeys((*KINDS.keys() - {n.CALL, n.CALL_EX}, n.RETURN, n.PACK), silent)

    def classify(code: CodeType) -> tuple[int, Any, bool]:
        if code.co_flags & 3 == 3:  # optimised, with locals of its own
            return (n.COPY, None, False)
        return (n.TRANSPARENT, None, False)  # a class body, or a text that is executed: what it calls is watched

    def call(method: Call) -> Any:
        return method()

    def failed(error: BaseException) -> None:
        results.note(f"stator: {type(error).__name__}: {error}")

    def run(method: Call) -> Any:
        if n.current() is not None:  # a test that runs tests
            return method()
        unfiltered = next(everything)
        watcher = n.Watcher(
            many if unfiltered else handlers,
            enter=lambda func: None,
            classify=classify,
            leaf=lambda payload, func, slots: watcher.call_leaf(func, slots, None),
            blind=lambda code, reason: None,
            foreign=lambda code: None,
            failed=failed,
            transparent=lambda func, slots: True,
        )
        watcher.unfiltered = unfiltered
        try:
            return watcher.run(call, (method,))
        finally:
            if n.state() != n.OFF or n.current() is not None or n.hook_installed():
                results.note("stator: watching goes on behind the test")

    return run


def call_compiled(results: Results) -> Callable[[Call], Any]:
    """The whole of stator: watched, recorded, guarded and, in later rounds, replayed."""
    import stator
    from stator import _native as n
    from stator import events

    def failed(event: Any) -> None:
        results.note(f"stator: {event}")

    events.subscribe(failed, events.InternalFailure)

    def run(method: Call) -> Any:
        compiled = stator.compile(method, backend="eager", options={"cache_size_limit": RECORDINGS})
        handle = compiled.stator
        before = Counter(replayed=handle.hits, recorded=handle.recordings, plain=handle.plain)
        try:
            return compiled()
        finally:
            after = Counter(replayed=handle.hits, recorded=handle.recordings, plain=handle.plain)
            results.write("calls", dict(after - before))
            if n.state() != n.OFF or n.current() is not None or n.hook_installed():
                results.note("stator: watching goes on behind the test")

    return run


def call_through(run: Callable[[Call], Any]) -> None:
    """Test methods are called by `run` from now on."""
    for case in (unittest.TestCase, unittest.IsolatedAsyncioTestCase):
        plain = case._callTestMethod

        def call_test(self: Any, method: Any, plain: Any = plain) -> None:
            if plain is unittest.TestCase._callTestMethod.__wrapped__:
                plain(self, lambda: run(method))
            else:  # a coroutine function: what is watched is the loop that runs it
                loop = _with_code_of_its_own(lambda: plain(self, method))
                run(loop)

        call_test.__wrapped__ = plain
        case._callTestMethod = call_test


def _with_code_of_its_own(function: Any) -> FunctionType:
    function.__code__ = function.__code__.replace()
    return function


CALLERS = {"plain": call_plainly, "watch": call_watched, "compile": call_compiled}


# ---- the tests of a module ---------------------------------------------------------------------------------------


def again(case: Any) -> Any:
    """The same test on an instance that has not run."""
    if isinstance(case, doctest.DocTestCase):
        new = copy.copy(case)
        new._dt_test = copy.copy(case._dt_test)
        new._dt_test.globs = case._dt_test.globs.copy()
        return new
    try:
        return type(case)(case._testMethodName)
    except Exception:
        return copy.copy(case)


def flat(suite: Any) -> Iterator[Any]:
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from flat(part)
        else:
            yield part


def repeated(suite: Any, rounds: int, done: Counter[str]) -> unittest.TestSuite:
    cases: list[Any] = []
    for case in flat(suite):
        runs = rounds - done[case.id()]
        done[case.id()] = max(0, -runs)  # several cases may have one id
        cases += [again(case) if number else case for number in range(max(0, runs))]
    return unittest.TestSuite(cases)


def begun(path: str) -> Counter[str]:
    with open(path) as lines:
        events = map(json.loads, lines)
        return Counter(event[1] for event in events if event[0] == "start")


def main(mode: str, module: str, rounds: str, path: str, done: str | None = None) -> None:
    support.use_resources = ()
    support.verbose = False
    results = Results(path)
    if done is not None:
        results._runs = begun(done)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{module}" if module.startswith("test_") else module)
        suite = repeated(suite, int(rounds), Counter(results._runs))
        call_through(CALLERS[mode](results))
        gc.freeze()  # what was imported: tests collect garbage a hundred times
        suite.run(results)
        os.chdir("/")
    results.write("finished")


if __name__ == "__main__":
    main(*sys.argv[1:])
