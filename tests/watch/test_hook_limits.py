"""The frame hook under deep recursion, in several threads, over many runs: nothing breaks and nothing leaks."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from types import CodeType
from typing import Any

import programs
from watching import Notes

from stator import _native as n

TICK = itertools.count().__next__


def plain(a: int, b: int = 2) -> Any:
    return TICK()


def ticks(count: int) -> Any:
    for _ in range(count):
        yield TICK()


def test_deep_recursion_ends_the_recording_not_the_process() -> None:
    def down(k: int) -> int:
        return 0 if k == 0 else 1 + down(k - 1)

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    try:
        notes = Notes(kinds="")
        assert notes.run(down, 50_000) == 50_000
        assert ("down", "recursion") in notes.blinds
    finally:
        sys.setrecursionlimit(before)


def test_deep_recursion_in_code_that_is_not_watched_ends_the_recording() -> None:
    def down(k: int) -> int:
        return 0 if k == 0 else 1 + down(k - 1)

    def f() -> int:
        class Blind:
            result = down(50_000)

        return Blind.result

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    try:
        notes = Notes()
        assert notes.run(f) == 50_000
    finally:
        sys.setrecursionlimit(before)
    assert notes.watcher.misled and not notes.failures


def test_the_limit_of_recursion_is_no_failure_of_the_recording() -> None:
    """Handlers run with what is left of it, and may have to give up."""

    def down(items: list[Any]) -> int:
        try:
            return len(items) + down([items])
        except RecursionError:
            return 0

    told: list[Any] = []
    former, sys.unraisablehook = sys.unraisablehook, told.append
    try:
        for _ in range(3):
            notes = Notes()
            notes.watcher.unfiltered = True
            assert notes.run(down, []) > 100
            assert all(isinstance(failure, RecursionError) for failure in notes.failures), notes.failures
    finally:
        sys.unraisablehook = former
    assert not told


def test_deep_recursion_in_a_thread_that_records_nothing() -> None:
    """Another thread's recording makes its calls take C stack."""

    def down(k: int) -> int:
        return 0 if k == 0 else 1 + down(k - 1)

    results: list[int] = []

    def f(start: Any, other: Any) -> None:
        start()
        other.join()

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    try:
        other = threading.Thread(target=lambda: results.append(down(50_000)))
        notes = Notes(kinds="")
        notes.watcher.run(f, (other.start, other))
    finally:
        sys.setrecursionlimit(before)
    assert results == [50_000]
    assert "displaced" in str(notes.failures[0])  # and this recording knows that frames ran unseen
    assert Notes().run(programs.recursion) == 144


def test_threads_record_apart() -> None:
    barrier = threading.Barrier(3)
    notes = [Notes(kinds="BINARY") for _ in range(2)]
    problems: list[Any] = []

    def work(x: int, wait: Any) -> int:
        wait()
        for _ in range(300):
            x = step(x)
        wait()
        return x

    def step(x: int) -> int:
        return x + 1

    def thread(i: int) -> None:
        if notes[i].watcher.run(work, (i, barrier.wait)) != 300 + i:
            problems.append(i)
        if n.state() != n.OFF:
            problems.append("state")

    threads = [threading.Thread(target=thread, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    barrier.wait()
    if n.state() != n.OFF or n.current() is not None:
        problems.append("main thread")
    programs.recursion()
    barrier.wait()
    for t in threads:
        t.join()
    assert not problems and not n.hook_installed()
    for i in range(2):
        assert notes[i].watcher.events >= 900 and not notes[i].failures
        assert "work" in notes[i].entered[0]


def test_nothing_leaks() -> None:
    def f(x: Any, *args: Any, **kwargs: Any) -> Any:
        def inner(y: Any) -> Any:
            return (y, x, [z for z in ticks(2)])

        try:
            raise ValueError(x)
        except ValueError as error:
            return inner(str(error)), sorted([2, 1], key=lambda v: -v), f"{x:>3}"

    def once() -> None:
        notes = Notes(kinds="CALL ATTR GLOBAL")
        notes.run(f, 3, (), {})

    for _ in range(200):
        once()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(2000):
        once()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 500


def test_one_watcher_can_run_many_times() -> None:
    notes = Notes(kinds="BINARY")

    def f(x: int) -> int:
        return plain(x) + len(str(x))

    for _ in range(100):
        notes.run(f, 3)
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(10_000):
        notes.watcher.run(f, (3,))
    assert sys.getallocatedblocks() - blocks < 100


def test_code_objects_that_come_and_go_leak_nothing() -> None:
    def make() -> Any:
        space: dict[str, Any] = {}
        exec("def f(x):\n    return [len(str(i)) for i in range(x)]", space)
        return space["f"]

    def once() -> None:
        Notes(kinds="CALL").run(make(), 2)

    for _ in range(50):
        once()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(300):
        once()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 100


def test_a_code_object_can_be_forgotten_while_it_is_judged() -> None:
    def inner() -> int:
        return 1

    def f() -> int:
        return inner()

    def classify(code: CodeType) -> Any:
        n.forget_code(code)
        return (n.CONSTANT, [1, 2], True)

    notes = Notes(classify=classify)
    for _ in range(3):
        assert notes.run(f) == [1, 2]
        n.forget_code(inner.__code__)
