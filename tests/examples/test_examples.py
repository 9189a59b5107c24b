"""Every example runs as a user runs it, in less than 30 seconds of processor time, and shows what it says it shows."""

from __future__ import annotations

import functools
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 30.0
OTHERS = {"demo"}  # `make demo` runs it; it compiles with two compilers and takes longer


@functools.cache
def output(name: str, *arguments: str) -> str:
    """What an example prints, logs included. It must succeed, and in time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(
        [sys.executable, f"examples/{name}.py", *arguments],
        cwd=ROOT,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("STATOR_")}, "PYTHONPATH": "src"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ran.returncode == 0, ran.stdout
    assert after.ru_utime - before.ru_utime < LIMIT
    return ran.stdout


def after(text: str, heading: str, lines: int) -> str:
    """`grep -A lines heading`: the first match and what follows it."""
    found = text.splitlines()
    at = next(number for number, line in enumerate(found) if heading in line)
    return "\n".join(found[at : at + lines + 1])


SHOWS: dict[str, list[str]] = {
    "dynamo_01_simple": [
        r"result: tensor\(\[",
        r"calls recorded: 1, calls replayed: 1",
        r"^equal: True$",
    ],
    "dynamo_02_debug": [
        r"CONVERT_FRAME debug_me examples/dynamo_02_debug.py:\d+",
        r"BINARY_OP +5 \(\*\)",
        r"def replay\(v\):\n    out = graph\(v\[0\]\)\n    return out\[0\]",
        r"x: Tensor torch.float32 \[6\] stride \[1\] cpu",
        r"scale == 2\.0",
        r"def forward\(self, l_x_: torch.Tensor\):\n    y = l_x_ \* 2\.0\n    y_1 = y.relu\(\)",
        r"\[Cache Hit\] debug_me: graph 1 ran in [\d.]+ ms",
        r"Recompiling debug_me: scale: expected 2\.0, found 0\.5\n    needed by .*:19: y = x \* scale",
        r"recordings: 2, hits: 1",
    ],
    "dynamo_03_bytecode": [
        r"LOAD_CONST +\d+ \(<probe BINARY '-' at \d+>\)\n +\d+ UNARY_NEGATIVE",
        r"BINARY_OP -, \d+ BINARY_OP \*\*\n    -> sub = call_function sub\(l_x_, l_y_\)\n    -> z = call_function pow",
        r"-> sum_1 = call_method sum\(z,\)",
        r"def replay\(v\):",
        r"replayed 2 times",
    ],
    "dynamo_04_graph_break": [
        r"^with_print +2 +1 +line 22: call to print \(side effect\)$",
        r"^with_item +2 +1 +line \d+: call to tensor.item\(\) \(data-dependent control flow\)$",
        r"^with_numpy +2 +2 ",
        r"^append_to_a_list +1 +0 +-$",
        r"^no_break +1 +0 +-$",
        r"stator produced 2 graphs with 1 graph break and 2 ops",
    ],
    "dynamo_05_full_debug": [r"recorded 2 times, 2 calls served by replays alone"],
    "aot_01_graphs": [
        r"Forward graph: 5 nodes.*\nclass GraphModule.*\n    def forward\(self, primals_1: \"f32\[4\]\"\):",
        r"Backward graph: \d+ nodes(?s:.*?)torch.ops.aten.cos.default",
        r"Backward graph(?s:.*)the first result is here",
        r"gradient equals eager's: True",
        r"gradient of the weight: \[\[2\.0, 2\.0, 2\.0\]",
    ],
    "aot_02_saved_values": [
        r"primals_1: float32\[256, 256\], 262,144 bytes: an input; sin needs it",
        r"kept: 262,144 bytes against 1,048,576; eager keeps 1,048,576",
        r"the network keeps 0\.43 of what eager keeps",
    ],
    "aot_03_training_speed": [
        r"losses agree: True",
        r"^ +forward +backward +total +memory kept$",
        r"^eager +[\d.]+ ms +[\d.]+ ms +[\d.]+ ms +[\d,]+ bytes$",
        r"^compiled +[\d.]+ ms +[\d.]+ ms +[\d.]+ ms +[\d,]+ bytes$",
        r"^ratio +[\d.]+ +[\d.]+ +[\d.]+ +0\.\d+$",
    ],
    "custom_backend": [
        r"counting got a graph: \{'sin': 1, 'mul': 1, 'add': 1\}, 1 inputs",
        r"equal to eager: True; compiled 1 graph, replayed 2 times",
        r"cosine_for_sine wrote: \['sub', 'cos', 'mul', 'add'\]",
        r"close to eager: True",
        r"did you mean 'cosine_for_sine'\?",
    ],
    "dynamic_shapes": [
        r"def forward\(self, l_x_: torch.Tensor\):\n    y = l_x_ \*\* 2\n    mul = 3 \* y\n    return \(mul,\)",
        r"Recompiling scaled: n: expected 2, found 3\n    needed by examples/dynamic_shapes.py:\d+: if n >= 0:",
        r"l_n_: torch.SymInt\):\n    y = l_x_ \*\* 2\n    add = l_n_ \+ 1\n    mul = add \* y",
        r"Recompiling scaled: n >= 0: expected to hold, found n = -2",
        r"four values of n: 3 recordings, 1 replays",
        r"four batch sizes: 2 recordings; last one for any x.shape\[0\]",
        r"dynamic=True: 1 recording\ndynamic=False: 3 recordings",
        r"SpecializationError: .*dimension 0 of x can only be 6, due to .*dynamic_shapes.py:\d+",
    ],
    "warm_up": [
        r"compilations after the warm-up: 0",
        r"a batch of 32: served\n  a batch of 7: Sequential would have to be recorded again: .*\(32, 64\).*\(7, 64\)",
    ],
    "regional_compile": [
        r"encoder compiled: equal True, 1 graph, 2 replays\n  same parameters: True",
        r"encoder compiled in place: equal True",
        r"the whole model, for comparison: graphs 1, breaks 1: call to tensor.item\(\)",
        r"kept out with stator.disable: graphs 2, call to plain_part: its own business",
    ],
}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*SHOWS, *OTHERS}


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_shows_its_substance(name: str) -> None:
    text = output(name)
    missing = [pattern for pattern in SHOWS[name] if not re.search(pattern, text, re.MULTILINE)]
    assert not missing, f"{missing}\n{text}"


# ----------------------------------------------------------------- what a reader can answer from the log alone


def test_which_functions_were_watched() -> None:
    text = output("dynamo_05_full_debug")
    frames = [line for line in text.splitlines() if "CONVERT_FRAME" in line]
    assert len([line for line in frames if "CONVERT_FRAME Model.forward examples/dynamo_05_full_debug.py" in line]) == 2


def test_what_ran_and_what_runs_now() -> None:
    text = output("dynamo_05_full_debug")
    assert "LOAD_GLOBAL" in after(text, "Bytecode:", 20)
    assert "Model.forward, as CPython compiled it" in after(text, "Bytecode:", 20)
    assert "def replay(v):" in after(text, "Bytecode:", 60)


def test_what_was_captured() -> None:
    captured = after(output("dynamo_05_full_debug"), "FX Graph", 30)
    assert "# Model, graph 1" in captured
    assert "torch._C._nn.linear(l_args_0_, l_self_linear1_weight_, l_self_linear1_bias_)" in captured
    assert "hidden = torch.relu(linear)" in captured


def test_what_was_assumed() -> None:
    assumed = after(output("dynamo_05_full_debug"), "Guard", 10)
    assert "args[0]: Tensor torch.float32 [4, 8] stride [8, 1] cpu" in assumed
    assert "linear1" in assumed


def test_why_it_was_compiled_again() -> None:
    text = output("dynamo_05_full_debug")
    why = after(text, "Recompiling Model", 1)
    assert "x.size: expected (4, 8), found (6, 8)" in why
    assert re.search(r"needed by examples/dynamo_05_full_debug.py:\d+: hidden = ", why)
    assert "Recorded Model for any args[0].shape[0]" in text


def test_why_the_graph_broke_and_at_which_line() -> None:
    text = output("dynamo_05_full_debug")
    source = (ROOT / "examples" / "dynamo_05_full_debug.py").read_text().splitlines()
    line = next(number for number, line in enumerate(source, 1) if "the model prints" in line)
    broke = after(text, "Graph break in Model.forward", 4)
    assert "call to print (side effect)  [call-print]" in broke
    assert f'dynamo_05_full_debug.py", line {line}, in Model.forward' in broke
    assert "hint: do it before or after the compiled function" in broke


def test_what_is_kept_for_the_backward() -> None:
    kept = after(output("dynamo_05_full_debug"), "Saved for Backward:", 4)
    assert "# 2 values, 384 bytes that nobody else keeps" in kept
    assert "primals_1: float32[4, 8], 128 bytes: an input; mm needs it" in kept
    assert "relu: float32[4, 16], 256 bytes" in kept


def test_which_graphs_ran_and_how_long_each_took() -> None:
    text = output("dynamo_05_full_debug")
    second = text[text.index("same shape, cache hit") : text.index("another batch size")]
    ran = re.findall(r"\[(?:Cache Hit|Backward)\] (.*) ran in [\d.]+ ms", second)
    assert ran == ["Model: graph 1", "Model: graph 2", "Model, graph 2:", "Model, graph 1:"]


def test_no_line_of_the_log_is_wider_than_100_columns() -> None:
    wide = [line for line in output("dynamo_05_full_debug").splitlines() if len(line) > 100]
    assert wide == []
