"""Tests that need a browser are chosen where one is; `tests/report/in_browser.py` insists on it."""

from __future__ import annotations

import pytest
from browser import EXECUTABLE


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if EXECUTABLE is None:
        left_out = [item for item in items if item.get_closest_marker("browser")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
