"""Every test starts with nothing compiled and leaves nothing compiled behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    forget_everything()
    yield
    forget_everything()


def forget_everything() -> None:
    """Only if the package is loaded as a whole: the tests of the native layer run without torch."""
    reset = getattr(sys.modules.get("stator"), "reset", None)
    if reset is not None:
        reset()
