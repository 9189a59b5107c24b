"""A reader can answer these from the output alone, whichever it is: what was captured, what was assumed, why it was
compiled again, why the graph broke and at which line, what is kept for the backward, which graphs ran and for how long.
"""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Browser
from torch import nn

import stator
from stator.options import options

HERE = os.path.relpath(__file__)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        hidden = torch.relu(self.first(x))
        print("half way")
        return self.second(hidden).sum()


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


FIRST = line_of("hidden = torch" + ".relu")
BREAK = line_of('print("half' + ' way")')
BATCHES = (4, 4, 6, 6)  # recorded, replayed, another size, replayed


def explained() -> Any:
    with redirect_stdout(io.StringIO()):
        explanation = stator.explain(Model())(torch.randn(4, 8))
        for size in BATCHES[1:]:
            explanation = explanation.again(torch.randn(size, 8))
    return explanation


@pytest.fixture(scope="module")
def log() -> str:
    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    lines: list[str] = []
    handler = Kept()
    logging.getLogger("stator").addHandler(handler)
    try:
        with options.patch(verbose=True), redirect_stdout(io.StringIO()):
            compiled = stator.compile(Model(), backend="aot_eager")
            for size in BATCHES:
                compiled(torch.randn(size, 8)).backward()
    finally:
        logging.getLogger("stator").removeHandler(handler)
    return "\n".join(lines)


@pytest.fixture(scope="module")
def words() -> str:
    return str(explained())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """What a reader sees in a part of the page."""
    path = Path(explained().save_html(tmp_path_factory.mktemp("page") / "report.html"))

    def text(part: str) -> str:
        with Browser() as browser:
            browser.open(path, part)
            if part in DRAWN_ON_SIGHT:
                browser.wait(f"!!document.querySelector('{DRAWN_ON_SIGHT[part]}')")
            return browser.text()

    return text


IN_THE_LOG = {
    "what was captured": r"FX Graph:\n# Model, graph 1: .*\ndef forward\((?s:.*?)hidden = torch\.relu\(linear\)",
    "what was assumed": r"Guards:\n# Model(?s:.*?)args\[0\]: Tensor torch\.float32 \[4, 8\] stride \[8, 1\] cpu\n"
    rf"    # torch/nn/modules/linear\.py:\d+ from {HERE}:{FIRST}\n",
    "why it was compiled again": r"Recompiling Model: x\.size: expected \(4, 8\), found \(6, 8\)\n"
    rf"    needed by {HERE}:{FIRST}: hidden = torch\.relu\(self\.first\(x\)\)\n"
    r"    in torch/nn/modules/linear\.py:\d+: return F\.linear\(.*\n(?s:.*)"
    r"Recorded Model for any args\[0\]\.shape\[0\]",
    "why the graph broke": r"Graph break in Model\.forward: call to print \(side effect\)  \[call-print\]\n"
    rf'  File ".*", line {BREAK}, in Model\.forward\n    print\("half way"\)\n    \^+\n  hint: ',
    "what is kept": r"Saved for Backward:\n# Model, graph 1: .*\n# 2 values, 384 bytes that nobody else keeps\n(?s:.*?)"
    r"relu: float32\[4, 16\], 256 bytes: ",
    "which graphs ran": r"\[Cache Hit\] Model: graph 1 ran in [\d.]+ ms\n"
    r"\[Cache Hit\] Model: graph 2 ran in [\d.]+ ms\n"
    r"\[Backward\] Model, graph 2: ran in [\d.]+ ms\n\[Backward\] Model, graph 1: ran in [\d.]+ ms\n",
}


@pytest.mark.parametrize("question", IN_THE_LOG)
def test_the_log_answers(log: str, question: str) -> None:
    assert re.search(IN_THE_LOG[question], log), log


IN_WORDS = {
    "what was captured": r"^stator produced 4 graphs with 2 graph breaks and 8 ops\n\nGraph 1 \(2 ops\):\n"
    r"  linear = .*\n  hidden = relu\(linear\)\n",
    "what was assumed": r"\nAssumed \(\d+ guards\):\n(?s:.*?)"
    r"  args\[0\]: Tensor torch\.float32 \[4, 8\] stride \[8, 1\] cpu\n"
    rf"      # torch/nn/modules/linear\.py:\d+ from {HERE}:{FIRST}\n(?s:.*?)\n  and \d+ more of these, "
    r"\d+ more of classes, code and libraries, \d+ more of torch's state\n",
    "why it was compiled again": r"\nRecorded again: x\.size: expected \(4, 8\), found \(6, 8\) "
    rf"\(needed by\s+{HERE}:{FIRST}, in\s+torch/nn/modules/linear\.py:\d+\)\n\nSymbolic: args\[0\]\.shape\[0\], ",
    "why the graph broke": r"\nGraph break 1 \(2 times\): call to print \(side effect\)  \[call-print\]\n"
    rf'  File ".*", line {BREAK}, in Model\.forward\n    print\("half way"\)\n    \^+\n  hint: ',
    "what is kept": r"\nKept for the backward of Model, graph 1: 384 bytes\n  relu: float32\[4, 16\], 256 bytes: .*\n"
    r"  primals_1: float32\[4, 8\], 128 bytes: an input; mm needs it\n(?s:.*)"
    r"\nKept for the backward of Model, graph 3, with the sizes of the call that was recorded: 576 bytes\n",
    "which graphs ran": r"\nCompiled graphs that ran:\n"
    + "".join(rf"  Model, graph {number}: once, median [\d.]+ ms, [\d.]+ ms in all\n" for number in (1, 2, 3, 4)),
}


@pytest.mark.parametrize("question", IN_WORDS)
def test_an_explanation_answers(words: str, question: str) -> None:
    assert re.search(IN_WORDS[question], words), words


DRAWN_ON_SIGHT = {"guards": ".guard", "code": ".row"}
ON_THE_PAGE = {
    "what was captured": ("code", r"1\. Model: captured graph(?s:.*)\n(?s:.*)hidden = torch\.relu\(linear\)"),
    "what was assumed": (
        "guards",
        r"tensors\s+args\[0\]: Tensor torch\.float32 \[4, 8\] stride \[8, 1\] cpu\s+modules/linear\.py:\d+ from "
        rf"report/test_answers\.py:{FIRST}\n",
    ),
    "why it was compiled again": (
        "recompilations",
        r"Model\s+x\.size\s+\(4, 8\)\s+\(6, 8\)\s+modules/linear\.py:\d+ from "
        rf"report/test_answers\.py:{FIRST}$",
    ),
    "why the graph broke": (
        "overview",
        r"1\. call to print \(side effect\)\s+call-print\s+2 times\s+in Model\.forward at "
        rf"report/test_answers\.py:{BREAK}\s+print\(\"half way\"\)\n\s*\^+\s+What to do: ",
    ),
    "what is kept": (
        "memory",
        r"384 B kept\s+in 2 values\s+Model, graph 1\n(?s:.*)relu\s+float32\[4, 16\]\s+256 B\s+op 3\s+op \d+\s+",
    ),
    "which graphs ran": (
        "replays",
        r"Recording\s+Ran\s+Median\s+In all(?s:.*?)\n1\. Model, 2 ops\s+1\s+[\d.]+ (?:µs|ms)\s+[\d.]+ (?:µs|ms)\s",
    ),
}


@pytest.mark.browser
@pytest.mark.parametrize("question", ON_THE_PAGE)
def test_the_page_answers(page: Callable[[str], str], question: str) -> None:
    part, pattern = ON_THE_PAGE[question]
    text = page(part)
    assert re.search(pattern, text), text
