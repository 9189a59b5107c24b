"""After ten calls a report foretells how many recordings there will be, and which line causes them: and so it comes."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import stator


def text(x, s):
    return x + len(s)


def size(x):
    return x.sum() * x.shape[0]


def alternating(x, flag):
    return x * 2 if flag else x - 1


ONE = torch.ones(2)
JOBS = {
    "a text that is always another one": (text, lambda i: (ONE, "a" * i), 1),
    "a text that is another one every four calls": (text, lambda i: (ONE, "a" * (i // 4)), 4),
    "a size that grows": (size, lambda i: (torch.ones(i + 2),), 0),
    "one way and another": (alternating, lambda i: (ONE, i % 2 == 0), 0),
    "the same": (text, lambda i: (ONE, "a"), 0),
}


@pytest.mark.parametrize("job", JOBS)
def test_it_comes_true(job):
    fn, arguments, every = JOBS[job]
    limit = 30
    with warnings.catch_warnings(), stator.options.patch(cache_size_limit=limit):
        warnings.simplefilter("ignore")
        explained = stator.explain(fn)(*arguments(0))
        assert explained.forecast is None  # too early
        for number in range(1, 12):
            explained = explained.again(*arguments(number))
        early = explained.forecast
        assert (early.calls, early.recordings, early.every) == (12, len(explained.segments), every)
        for number in range(12, 60 if every < 2 else 130):
            explained = explained.again(*arguments(number))
        assert len(explained.segments) == early.total == (limit if every else early.recordings)
    misses = [m for m in explained.event_log.of(stator.events.CacheMiss) if not m.records]
    if every:
        assert early.full_at == misses[0].call
        (cause,) = early.causes
        assert cause.guard == "s" and cause.place == f"{__file__}:{text.__code__.co_firstlineno + 1}"
    else:
        assert not misses and early.full_at is None and not early.causes


def test_in_words():
    explained = stator.explain(text)(ONE, "")
    for number in range(1, 12):
        explained = explained.again(ONE, "a" * (number // 4))
    said = " ".join(str(explained).partition("Forecast: ")[2].split())
    assert said.startswith("text: 3 recordings in 12 calls, and one more every 4: 8 before call 33, which are as many")
    assert "s was another one once of late, needed by" in said and "return x + len(s)" in said


def test_the_command_says_it(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x, name):\n"
        "        return x * len(name)\n"
        "net = Net()\n"
        "for step in range(14):\n"
        "    net(torch.ones(2), 'a' * (step // 4))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "stator", "explain", str(script)], capture_output=True, text=True, timeout=120
    )
    said = " ".join(ran.stdout.partition("Forecast:")[2].split())
    # (Some of the calls are made plain, to compare.)
    assert re.match(r"Net: 4 recordings in 1\d calls, and one more every [34]: 8 before call", said), ran.stdout
    assert "name was another one" in said and "job.py:4" in said


def test_modules_are_told_apart_by_their_names():
    class Steady(nn.Module):
        def forward(self, x):
            return x + 1

    explained = stator.explain(Steady())(ONE)
    for _ in range(10):
        explained = explained.again(ONE)
    assert list(explained.forecast.lines()) == [f"{explained.name}: 1 recording in 11 calls, and no more to come"]
