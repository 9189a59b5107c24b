"""No module that a test made is there for later tests: they may do anything when they are looked at."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import attacks
import pytest


@pytest.fixture(autouse=True)
def no_modules_left() -> Iterator[None]:
    yield
    for name in attacks.MADE:
        sys.modules.pop(name, None)
    attacks.MADE.clear()
