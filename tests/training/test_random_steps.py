"""Random training steps (`random_steps.py`): compiled as plain, call after call."""

from __future__ import annotations

import pytest
from harness import Replays
from random_steps import compare


def test_with_the_engine():
    replays = Replays(0.7)
    for number in range(24):
        seen = compare(number)
        assert seen is not None
        replays.count(seen)
    replays.enough()


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_ahead_of_time(backend):
    for number in range(100, 110):
        compare(number, backend)
