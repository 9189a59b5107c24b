"""Every test starts with nothing compiled and leaves neither recordings nor a frame hook behind."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

# What stator keeps on disk, here and in programs that tests start, is new in each run and not the user's. Set before
# the package is imported; the folder is removed by the process that made it.
_CACHE = tempfile.mkdtemp(prefix="stator-tests-")
_MADE_BY = os.getpid()
os.environ["XDG_CACHE_HOME"] = _CACHE
# Is every test to run in a process that has used torch.compile before? (No option of stator's: it would warn.)
_AFTER_DYNAMO = os.environ.pop("STATOR_TEST_AFTER_DYNAMO", "0") != "0"


def pytest_unconfigure() -> None:
    if os.getpid() == _MADE_BY:
        shutil.rmtree(_CACHE, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def another_compiler() -> None:
    """With `STATOR_TEST_AFTER_DYNAMO=1`: used on a function and on a module."""
    if _AFTER_DYNAMO:
        import torch

        torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.ones(2))
        torch.compile(torch.nn.Linear(2, 2), backend="aot_eager")(torch.ones(2)).sum().backward()


_tests = itertools.count()


@pytest.fixture(autouse=True)
def older_objects_set_aside() -> None:
    """A collection within a test walks through the objects of that test, not through a million of what is loaded.

    What the test before has left is collected first: cycles that are set aside would keep what they hold alive.
    """
    if next(_tests) % 100 == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_compiled(older_objects_set_aside: None) -> Iterator[None]:
    forget_everything()
    callbacks = list(gc.callbacks)
    validate_recordings()
    yield
    mistakes, INVALID[:] = list(INVALID), []
    assert not mistakes
    gc.callbacks[:] = callbacks  # hypothesis leaves one, which would run inside of what other tests watch
    forget_everything()
    assert nobody_watches()


INVALID: list[ValueError] = []  # what is wrong with recordings of the test that runs


def validate_recordings() -> None:
    """Every recording of which an entry is made must fit together, before its graph is compiled and after that."""
    module = sys.modules.get("stator.record")
    if module is None or hasattr(module.build, "__wrapped__"):
        return
    build = module.build

    @functools.wraps(build)
    def validated(recording: Any, *rest: Any) -> Any:
        try:
            recording.validate()
            entry = build(recording, *rest)
            recording.validate()
        except ValueError as error:
            if str(error).startswith("recording of"):
                INVALID.append(error)
            raise
        return entry

    module.build = validated  # type: ignore[attr-defined]


def forget_everything() -> None:
    """Only if the package is loaded as a whole: the tests of the native layer run without torch."""
    reset = getattr(sys.modules.get("stator"), "reset", None)
    if reset is not None:
        reset()


def nobody_watches() -> bool:
    """No recording is left on in this thread, and the interpreter evaluates frames by itself again."""
    native = sys.modules.get("stator._native")
    return native is None or (native.current() is None and not native.hook_installed())
