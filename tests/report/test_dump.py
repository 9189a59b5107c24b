"""`options.debug_dir`: every stage of a compilation is a file, in order, and every file runs without the program."""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stator
from stator.options import options

HISTORY: list[Any] = []

# Runs every file of a folder as `python FILE` would, in one process; says which failed, and with what.
RUN_ALL = """
import contextlib, io, pathlib, runpy, sys, traceback
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if end.code:
            print(path.name, "exit", end.code, printed.getvalue())
    except BaseException:
        print(path.name, traceback.format_exc())
    if not printed.getvalue().strip():
        print(path.name, "says nothing")
print("stator" in sys.modules)
"""


def run_all(folder: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", RUN_ALL, str(folder)], capture_output=True, text=True, timeout=300)
    assert ran.stdout == "False\n", ran.stdout + ran.stderr


def stages(folder: Path) -> list[str]:
    """The files' names without their numbers, which count up from one."""
    names = sorted(path.name for path in folder.iterdir())
    assert [name[:5] for name in names] == [f"{number:04}_" for number in range(1, len(names) + 1)]
    return [name[5:].removesuffix(".py") for name in names]


class Config:
    def __init__(self) -> None:
        self.seen: list[int] = []


class Named(list[Any]):
    pass


class Model(nn.Module):
    """Reads and changes objects of its own, breaks twice, builds objects of classes that a script does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.config, self.steps = Config(), 0

    def forward(self, tokens: Tensor, scale: float = 2.0) -> dict[str, Any]:
        hidden = self.linear(self.words(tokens)).relu() * scale
        self.steps += 1
        self.config.seen.append(self.steps)
        HISTORY.append(hidden.mean())
        print("between")
        hidden = self.norm(hidden.flatten(0, 1))
        if hidden.sum() > -1e9:
            hidden = nn.functional.dropout(hidden, 0.2)
        made = Config()
        made.last = hidden.sum()  # type: ignore[attr-defined]
        return {"hidden": hidden, "made": made, "named": Named([hidden]), "ordered": collections.OrderedDict(a=hidden)}


def test_a_model_with_breaks_effects_and_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = stator.compile(Model(), backend="aot_eager", options={"suppress_errors": False})
    with options.patch(debug_dir=tmp_path):
        for count in (20, 20, 24):  # the last one with a symbol for the size
            model(torch.randint(0, 50, (count, 30)))["hidden"].sum().backward()
    graph = ["captured_graph", "joint_graph", "forward_graph", "backward_graph", "guards", "replay"]
    count = len(model.stator.graphs)
    assert count >= 4
    assert stages(tmp_path) == [f"Model_graph_{n}_{stage}" for n in range(1, count + 1) for stage in graph]
    run_all(tmp_path)


def test_effects_of_every_kind(tmp_path: Path) -> None:
    """What puts effects back is in the replay's file: a cell's is called as the attribute that it reads."""
    count, table, seen = 0, {"a": 1}, {1}
    model = Config()

    def step(x: Tensor) -> Tensor:
        nonlocal count
        count = 7
        table["b"] = 7
        seen.add(7)
        model.seen.append(7)
        return x * 2

    with options.patch(debug_dir=tmp_path):
        fast = stator.compile(step, backend="eager", options={"suppress_errors": False})
        for number in range(1, 5):
            count, table["b"] = 0, 0
            seen.discard(7)
            assert torch.equal(fast(torch.ones(3) * number), torch.full((3,), 2.0 * number))
            assert (count, table["b"], seen, model.seen) == (7, 7, {1, 7}, [7] * number)
    assert fast.stator.hits == 3
    assert [name for name in stages(tmp_path) if name.endswith("_replay")] == ["step_graph_1_replay"]
    run_all(tmp_path)


def scaled(x: Tensor, n: int, table: dict[str, Any]) -> tuple[Tensor, list[int]] | Tensor:
    y = x**2
    if n >= 0:
        return (n + 1) * y + table["a"], [x.shape[0] * 2]
    return y / n


def under_autocast(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y).cos() + torch.rand(3, 3)


def test_numbers_containers_modes_and_views(tmp_path: Path) -> None:
    with options.patch(debug_dir=tmp_path, suppress_errors=False):
        fast = stator.compile(scaled, backend="eager")
        for n in (2, 3, -3):
            fast(torch.randn(5, requires_grad=n != 3), n, {"a": 1})
        with torch.no_grad(), torch.autocast("cpu"):
            stator.compile(under_autocast, backend="eager")(torch.randn(3, 3), torch.randn(3, 3).t())
    names = stages(tmp_path)
    assert names[:3] == ["scaled_graph_1_captured_graph", "scaled_graph_1_guards", "scaled_graph_1_replay"]
    assert names[-1] == "under_autocast_graph_1_replay"
    run_all(tmp_path)


def test_a_file_is_run_as_a_user_would(tmp_path: Path) -> None:
    stator.compile(scaled, backend="eager", options={"debug_dir": tmp_path})(torch.ones(4), 2, {"a": 1})
    first = min(tmp_path.iterdir())
    ran = subprocess.run([sys.executable, str(first)], capture_output=True, text=True, timeout=120)
    assert ran.stdout == "result: tuple of 1\nresult[0]: torch.float32 [4], mean 4\n", ran.stderr
    guards = subprocess.run([sys.executable, str(sorted(tmp_path.iterdir())[1])], capture_output=True, text=True)
    assert re.search(r"^holds n == 2$", guards.stdout, re.MULTILINE)
    assert re.search(r"^holds table\['a'\] == 1  # .*test_dump.py:\d+$", guards.stdout, re.MULTILINE)


def test_guards_that_do_not_hold_make_the_file_fail(tmp_path: Path) -> None:
    stator.compile(scaled, backend="eager", options={"debug_dir": tmp_path})(torch.ones(4), 2, {"a": 1})
    path = sorted(tmp_path.iterdir())[1]
    path.write_text(path.read_text().replace("return [tensor_1, 2, ", "return [tensor_1, 5, "))
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert ran.returncode == 1
    assert "FAILS n == 2" in ran.stdout


def test_numbers_go_on_where_they_were_and_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "0007_other.py").write_text("kept")
    stator.compile(scaled, backend="eager", options={"debug_dir": tmp_path})(torch.ones(4), 2, {"a": 1})
    assert sorted(path.name[:4] for path in tmp_path.iterdir()) == ["0007", "0008", "0009", "0010"]
    assert (tmp_path / "0007_other.py").read_text() == "kept"


def test_nothing_is_written_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fast = stator.compile(scaled, backend="eager")
    for n in (2, 3, 4):
        fast(torch.ones(4), n, {"a": 1})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fast = stator.compile(scaled, backend="eager", options={"debug_dir": tmp_path / "file"})
    with pytest.warns(UserWarning, match=r"options\.debug_dir: .*; stages are not kept there"):
        assert torch.equal(fast(torch.ones(4), 2, {"a": 1})[0], torch.full((4,), 4.0))
    assert torch.equal(fast(torch.ones(4), 2, {"a": 1})[0], torch.full((4,), 4.0))
    assert fast.stator.hits == 1


def test_code_that_the_backend_generated_is_kept_and_runs(tmp_path: Path) -> None:
    def doubled(x: Tensor) -> Tensor:
        return (x.sin() * 2).sum()

    fast: Callable[..., Tensor] = stator.compile(doubled, backend="inductor", options={"debug_dir": tmp_path})
    with torch.no_grad():
        fast(torch.ones(4))
    assert stages(tmp_path) == [
        "doubled_graph_1_captured_graph",
        "doubled_graph_1_joint_graph",
        "doubled_graph_1_forward_graph",
        "doubled_inductor_forward_code",
        "doubled_graph_1_guards",
        "doubled_graph_1_replay",
    ]
    code = tmp_path / "0004_doubled_inductor_forward_code.py"
    assert "async_compile" in code.read_text()
    assert subprocess.run([sys.executable, str(code)], capture_output=True, timeout=300).returncode == 0


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * 2 * x


def test_a_graph_with_a_function_of_the_program_in_it(tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return Squared.apply(x + 1) * 2  # type: ignore[no-any-return, no-untyped-call]

    fast = stator.compile(fn, backend="eager", options={"debug_dir": str(tmp_path)})
    for seed in range(3):
        x = torch.full((3,), float(seed), requires_grad=True)
        assert torch.equal(fast(x), fn(x))
    assert (fast.stator.hits, len(fast.stator.graphs)) == (2, 1)
    graph = next(tmp_path.glob("*captured_graph.py"))
    ran = subprocess.run([sys.executable, str(graph)], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0 and "CustomFunction Squared" in ran.stdout, ran.stderr
    run_all(tmp_path)


@stator.allow_in_graph
def allowed(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


@torch.library.custom_op("dumped::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@tripled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(("called", "said"), [(allowed, "<allowed>"), (tripled, "<torch.ops.dumped.tripled.default>")])
def test_a_graph_that_calls_what_only_the_program_has(called: Any, said: str, backend: str, tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return called(x.sin()) * 2 + x.cos().exp()  # type: ignore[no-any-return]

    fast = stator.compile(fn, backend=backend, options={"debug_dir": str(tmp_path)})
    for seed in range(3):
        x = torch.full((3,), float(seed))
        torch.testing.assert_close(fast(x), fn(x))
    assert (fast.stator.hits, len(fast.stator.graphs)) == (2, 1)
    graph = next(tmp_path.glob("*captured_graph.py"))
    ran = subprocess.run([sys.executable, str(graph)], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0 and f"{said}, which needs the program" in ran.stdout, ran.stderr
    run_all(tmp_path)
