"""Loop programs as Python: the text is the program, and the file runs without stator."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_native import PROGRAMS
from torch import Tensor
from torch.utils import _pytree as pytree

import stator
from stator import events
from stator.backends import native
from stator.fuse import evaluate
from stator.fuse.loops import LoopProgram
from stator.fuse.script import program_script

RUN = """
import pathlib, runpy, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*native*.py")):
    runpy.run_path(str(path), run_name="__main__")
print("stator" in sys.modules)
"""


def like(program: LoopProgram) -> list[Any]:
    """Inputs for a program whose sizes are known."""
    made = []
    for name in program.inputs:
        place = program.places[name]
        value = torch.empty_strided(place.sizes, place.strides, dtype=place.dtype)
        made.append(value.copy_(torch.randint(0, 3, place.sizes) + (0.5 if place.dtype.is_floating_point else 0)))
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_is_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, make = PROGRAMS[name]
    programs: list[tuple[LoopProgram, dict[str, Tensor]]] = []
    inner = native._host_function

    def noting(module: Any, program: LoopProgram, *rest: Any) -> Any:
        programs.append((program, native._constants(module)))
        return inner(module, program, *rest)

    monkeypatch.setattr(native, "_host_function", noting)
    compiled = stator.compile(fn, backend="native")
    sum(r.sum() for r in pytree.tree_leaves(compiled(*make(0))) if r.is_floating_point() and r.requires_grad)
    assert programs
    for program, constants in programs:
        inputs = like(program)
        names: dict[str, Any] = {"__name__": "script"}
        exec(program_script("A program.", program, inputs, constants), names)
        got, wanted = names["graph"](*inputs), evaluate.run_program(program, inputs, constants, {})
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            assert torch.allclose(a, b, equal_nan=True) if isinstance(b, Tensor) else a == b


@pytest.mark.parametrize("dynamic", [False, True])
def test_files_run_by_themselves(dynamic: bool, tmp_path: Path) -> None:
    def fn(words: Tensor, table: Tensor, weight: Tensor, scale: float) -> Tensor:
        hidden = torch.nn.functional.embedding(words, table) @ weight
        return torch.softmax(hidden * scale, -1).cumsum(0).amax(-1)

    table, weight = torch.randn(10, 6, requires_grad=True), torch.randn(6, 5, requires_grad=True)
    compiled = stator.compile(fn, backend="native", dynamic=dynamic, options={"debug_dir": str(tmp_path)})
    for length in (3, 3, 3):
        words = torch.arange(length)
        compiled(words, table, weight, 2.0).sum().backward()
        assert torch.allclose(compiled(words, table, weight, 2.0), fn(words, table, weight, 2.0))
    names = [path.name for path in sorted(tmp_path.glob("*native*.py"))]
    assert [name.partition("_native_")[2] for name in names] == ["forward_code.py", "backward_code.py"]
    command: Sequence[str] = [sys.executable, "-c", RUN, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.stdout.endswith("False\n") and not ran.stderr, ran.stdout + ran.stderr


def test_the_log_shows_lines_schedule_and_bytes(caplog: pytest.LogCaptureFixture) -> None:
    def fn(x: Tensor, weight: Tensor) -> Tensor:
        return torch.softmax(torch.tanh(x) @ weight, -1)

    with caplog.at_level(logging.DEBUG, "stator.output_code"):
        compiled = stator.compile(fn, backend="native")
        for _ in range(3):
            compiled(torch.ones(4, 8), torch.ones(8, 16))
    (text,) = [
        record.message for record in caplog.records if "Output Code" in record.message and "def " in record.message
    ]
    assert "# 2 kernels for 6 operations, 1 matrix products, 0 other calls" in text
    assert "bytes that kernels and matrix products move: " in text
    assert f'# File "{__file__}", line {fn.__code__.co_firstlineno + 1}, in fn' in text
    assert "= torch.tanh(" in text and "fold('max', " in text


def test_llvm_ir_is_shown_on_request(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    unsubscribe = events.subscribe(told.append, events.CodeGenerated)
    try:
        for all_logs in ({"all": True}, {"llvm_ir": True}):
            caplog.clear()
            stator.reset()
            stator.set_logs(**all_logs)
            stator.compile(lambda x: x.sin() * 2, backend="native")(torch.ones(50))
            found = [record.message for record in caplog.records if record.name == "stator.llvm_ir"]
            assert len(found) == ("llvm_ir" in all_logs)
        assert "LLVM IR:" in found[0] and "define " in found[0]
        assert found[0].strip().endswith(told[-1].llvm().strip())
    finally:
        stator.set_logs()
        unsubscribe()
