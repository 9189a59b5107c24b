"""Another frame evaluator in the same process: both see their frames, in whatever order they come and go."""

from __future__ import annotations

import gc
import importlib.util
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import building
import programs
from watching import Notes

from stator import _native as n


def load() -> Any:
    if "neighbour" in sys.modules:
        return sys.modules["neighbour"]
    if building.COMPILER is None:
        print("no C compiler: the tests of a second frame evaluator are not run")
        return None
    folder = Path(tempfile.mkdtemp())
    path = building.build(sys.executable, [Path(__file__).with_name("neighbour.c")], folder, "neighbour")
    spec = importlib.util.spec_from_file_location("neighbour", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["neighbour"] = module
    return module


def watched() -> Notes:
    notes = Notes(kinds="CALL")
    assert notes.watcher.run(programs.recursion, ()) == 144
    assert not notes.failures, notes.failures
    assert notes.watcher.events > 1000
    return notes


def test_who_was_there_before_stays() -> None:
    neighbour = load()
    if neighbour is None:
        return
    neighbour.install()
    try:
        watched()
        assert neighbour.installed()
        neighbour.counted()
        programs.recursion()
        assert neighbour.counted() > 100

        # frames that are not ours to handle are passed on, our copies are not
        def inner() -> int:
            return 1

        def f() -> Any:
            for _ in range(100):
                inner()

        notes = Notes(kinds="", classify=lambda code: (n.OURS, None, True) if code.co_name == "inner" else None)
        notes.watcher.run(f, ())
        gc.disable()  # callbacks of what dies have frames, too
        neighbour.counted()
        notes.watcher.run(f, ())
        assert neighbour.counted() == 100
    finally:
        gc.enable()
        neighbour.uninstall()
    assert not n.hook_installed()


def test_who_comes_during_a_recording_and_leaves() -> None:
    neighbour = load()
    if neighbour is None:
        return

    def f(install: Any, uninstall: Any) -> Any:
        install()
        value = programs.recursion()
        uninstall()
        return value, programs.recursion()

    notes = Notes(kinds="CALL")
    assert notes.run(f, neighbour.install, neighbour.uninstall) == (144, 144)
    assert notes.watcher.events > 2000 and not notes.failures


def test_who_comes_during_a_recording_and_stays() -> None:
    neighbour = load()
    if neighbour is None:
        return

    def f(install: Any) -> Any:
        install()
        return programs.recursion()

    notes = Notes(kinds="CALL")
    assert notes.watcher.run(f, (neighbour.install,)) == 144
    # now it is above ours and hands frames down to us; recording again must not make a circle
    assert neighbour.installed() and n.state() == n.OFF
    for _ in range(3):
        watched()
    neighbour.uninstall()  # puts our hook back, which removes itself at the next frame
    programs.recursion()
    assert not n.hook_installed() and not neighbour.installed()
    watched()


def test_who_throws_us_out_is_noticed() -> None:
    neighbour = load()
    if neighbour is None:
        return

    def f(reset: Any) -> Any:
        reset()
        return programs.recursion()

    notes = Notes(kinds="CALL")
    assert notes.run(f, neighbour.reset) == 144
    assert [type(e) for e in notes.failures] == [RuntimeError]
    assert notes.watcher.displaced and n.state() == n.OFF
    watched()


def test_who_leaves_from_below_throws_us_out() -> None:
    """It puts back what it found: not us."""
    neighbour = load()
    if neighbour is None:
        return

    def f(uninstall: Any, install: Any) -> Any:
        uninstall()
        install()  # on top again, and it does not know of us
        return programs.recursion()

    neighbour.install()
    try:
        for _ in range(3):
            notes = Notes(kinds="CALL")
            assert notes.run(f, neighbour.uninstall, neighbour.install) == 144
            assert [type(e) for e in notes.failures] == [RuntimeError] and notes.watcher.displaced
            watched()
    finally:
        neighbour.uninstall()
    assert not n.hook_installed() and not neighbour.installed()
    watched()


def test_who_comes_above_and_is_below_already() -> None:
    """Each hands frames down to the other: a circle."""
    neighbour = load()
    if neighbour is None:
        return

    def f(install: Any) -> Any:
        install()
        return programs.recursion()

    neighbour.install()
    try:
        for _ in range(3):
            notes = Notes(kinds="CALL")
            assert notes.run(f, neighbour.install) == 144
            assert not notes.failures and notes.watcher.events > 1000
            assert programs.recursion() == 144
        watched()
    finally:
        neighbour.reset()
    assert not n.hook_installed()
    watched()


def test_recordings_in_other_threads_learn_that_we_were_out() -> None:
    neighbour = load()
    if neighbour is None:
        return
    out, back = threading.Event(), threading.Event()

    def g() -> None:
        """Runs while the hook is out of the chain, and back when the next probe fires."""
        out.set()
        back.wait(10)

    def f() -> Any:
        g()
        return programs.recursion()

    first = Notes(kinds="CALL")
    thread = threading.Thread(target=first.watcher.run, args=(f, ()))
    thread.start()
    assert out.wait(10)
    neighbour.reset()
    watched()  # the hook is back for this one
    back.set()
    thread.join()
    assert [type(e) for e in first.failures] == [RuntimeError] and first.watcher.displaced
    watched()
