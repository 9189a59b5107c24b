"""Every test starts with nothing compiled and leaves neither recordings nor a frame hook behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    forget_everything()
    callbacks = list(gc.callbacks)
    yield
    gc.callbacks[:] = callbacks  # hypothesis leaves one, which would run inside of what other tests watch
    forget_everything()
    assert nobody_watches()


def forget_everything() -> None:
    """Only if the package is loaded as a whole: the tests of the native layer run without torch."""
    reset = getattr(sys.modules.get("stator"), "reset", None)
    if reset is not None:
        reset()


def nobody_watches() -> bool:
    """No recording is left on in this thread, and the interpreter evaluates frames by itself again."""
    native = sys.modules.get("stator._native")
    return native is None or (native.current() is None and not native.hook_installed())
