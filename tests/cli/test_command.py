"""`python -m stator`: what the commands print, and their exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import stator
from stator import events
from stator.cli.command import main
from stator.codegen import cache

DOOR: Any = torch.nn.Module.__call__

SCRIPT = """
import sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 32)
        self.down = torch.nn.Linear(32, 4)

    def forward(self, x):
        y = torch.relu(self.up(x))
        print("in", len(x))
        return self.down(y)

torch.manual_seed(0)
net = Net()
total = 0.0
for size in map(int, sys.argv[1:]):
    total += net(torch.ones(size, 8)).sum().item()
print("total", total)
"""


@pytest.fixture(autouse=True)
def as_before() -> Any:
    """Whatever a command does to torch and to stator is undone at its end."""
    found = DOOR.__code__, stator.compile, stator.compile_, list(sys.argv), dict(events.READERS)
    yield
    assert (DOOR.__code__, stator.compile, stator.compile_, list(sys.argv), dict(events.READERS)) == found


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return path


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


def two_lines() -> tuple[str, str]:
    return "a", "b"


# ------------------------------------------------------------------------------------------------------- explain


def plain_output(script: Path, *sizes: str) -> str:
    return subprocess.run([sys.executable, script, *sizes], capture_output=True, text=True, check=True).stdout


def test_explain_says_what_broke_and_what_was_compiled_again(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "3 3 3 3 3 3 5".split()
    assert main(["explain", "--backend", "eager", str(script), *sizes]) == 0
    out = capsys.readouterr().out
    assert out.startswith(plain_output(script, *sizes))
    assert "1 module or function compiled, 4 graphs, 2 graph breaks, 1 recompilation" in out
    assert f"{script}:{line_of('net(torch.ones')}  Net, 7 calls" in out
    assert re.search(r"first call .*, then plain .*, compiled .* \(medians\)\n  \d+\.\d\d times as fast.*; ", out)
    assert "Graph break 1 (2 times): call to print (side effect)  [call-print]" in out
    assert f'File "{script}", line {line_of("print(")}, in Net.forward' in out
    assert "Net: x.size: expected (3, 8), found (5, 8)" in out
    ran = r"  Net, graph {}: 3 times, median [\d.]+ ms, about [\d.]+ ms in all\n"
    assert re.search(f"Compiled graphs that ran:\n{ran.format(1)}{ran.format(2)}", out)


def test_explain_of_few_calls(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--backend", "eager", str(script), "3"]) == 0
    assert "too few calls with the same shapes to say what was won or lost" in capsys.readouterr().out


def test_explain_strict(script: Path) -> None:
    assert main(["explain", "--backend", "eager", "--strict", str(script), "3"]) == 3


def test_explain_strict_of_a_program_without_breaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fine.py"
    path.write_text("import torch\nnet = torch.nn.Linear(2, 2)\nfor _ in range(3): net(torch.ones(1, 2))\n")
    assert main(["explain", "--backend", "eager", "--strict", str(path)]) == 0
    assert "1 graph, 0 graph breaks, 0 recompilations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("end", "code"),
    [("raise SystemExit(5)", 5), ("raise SystemExit", 0), ("raise SystemExit('so')", 1), ("1 / 0", 1)],
)
def test_the_exit_code_of_the_script(tmp_path: Path, end: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ends.py"
    path.write_text(f"import torch\ntorch.nn.ReLU()(torch.ones(2))\n{end}\n")
    assert main(["explain", "--backend", "eager", str(path)]) == code
    captured = capsys.readouterr()
    assert "1 module or function compiled" in captured.out
    if code == 1:
        assert "so" in captured.err or "line 3, in <module>" in captured.err
        assert "runpy" not in captured.err


def test_explain_writes_a_page(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    sizes = "3 3 3 3 3 5".split()
    assert main(["explain", "--backend", "aot_eager", "--html", str(page), str(script), *sizes]) == 0
    assert f"page: {page}" in capsys.readouterr().out
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    data = json.loads(found[1])
    (call,) = data["calls"]
    assert (call["name"], call["calls"]) == ("Net", 6) and call["plain"] > 0 and call["compiled"] > 0
    assert [recording["hits"] for recording in data["recordings"][:2]] == [2, 2]  # calls 2 and 4; 3 and 5 run plain
    assert [recording["timed"] for recording in data["recordings"][:2]] == [1, 1]  # call 2
    assert len(data["misses"]) == 1 and len(data["derived"]) == 4
    assert {stage["stage"] for stage in data["timeline"]} >= {"watch", "backend", "forward and backward"}


def test_what_the_program_compiles_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "import stator, torch\n"
        "inner = torch.nn.Linear(2, 2)\n"
        "net = stator.compile(inner, backend='eager')\n"
        "@stator.compile(backend='eager')\n"
        "def f(x):\n    return inner(x).sum() + 1\n"
        "for i in range(6): assert torch.equal(net(torch.ones(1, 2)).sum() + 1, f(torch.ones(1, 2)))\n"
        "print(f.stator.recordings, isinstance(net, torch.nn.Linear))\n"
    )
    assert main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 True\n")
    assert "2 modules and functions compiled, 2 graphs, 0 graph breaks, 0 recompilations" in out
    assert "7  Linear, 6 calls" in out and "7  f, 6 calls" in out


def test_a_module_for_every_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "many.py"
    path.write_text("import torch\nkept = [torch.nn.ReLU() for _ in range(20)]\nfor m in kept: m(torch.ones(2))\n")
    assert main(["explain", "--backend", "eager", str(path)]) == 0
    out = capsys.readouterr().out
    assert "8 modules and functions compiled" in out
    assert "a new module in almost every call: it runs as plain Python" in out


def test_modules_of_other_threads_run_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "threads.py"
    path.write_text(
        "import threading, torch\n"
        "net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())\n"
        "def work():\n    for _ in range(50): net(torch.ones(1, 2))\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "for t in threads: t.start()\nwork()\nfor t in threads: t.join()\nprint('ok')\n"
    )
    assert main(["explain", "--backend", "eager", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ok\n") and "Sequential, 50 calls" in out and "0 recompilations" in out


def test_a_script_without_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.py"
    path.write_text("print('hello')\n")
    assert main(["explain", str(path)]) == 0
    assert "It called no nn.Module." in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------- other commands


def test_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4)\n"
        "def batch(): return (torch.ones(2, 4),)\ndef step(): return torch.ones(3).sin()\n"
    )
    assert main(["bench", f"{path}:model", "--inputs", "batch", "--rounds", "2", "--backend", "eager"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"plain +\d.*\n +compiled +\d.* times as fast\)\n +graphs 1, graph breaks 0, replays \d+", out)
    never = ["bench", f"{path}:step", "--rounds", "1", "--backend", "eager", "--at-least", "1e9"]
    assert main(never) == 3
    assert "that is less than 1e+09" in capsys.readouterr().out


def test_bench_of_what_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "raising_branches.py"
    path.write_text("def step(): raise KeyError('no')\n")
    assert main(["bench", f"{path}:step", "--backend", "eager"]) == 1
    said = capsys.readouterr().err
    assert "line 1, in step" in said and said.endswith("KeyError: 'no'\n") and "site-packages" not in said
    assert stator.__path__[0] not in said  # no frame of ours


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def step(:", "SyntaxError: invalid syntax"),
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("\0", "SyntaxError: source code string cannot contain null bytes"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "bench"])
def test_files_that_fail(
    command: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fails.py"
    path.write_text(text)
    assert main([command, f"{path}:step" if command == "bench" else str(path)]) == 1
    error = capsys.readouterr().err
    assert error.endswith(f"{said}\n") and "importlib" not in error and "runpy" not in error and "cli" not in error


def test_files_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "secret.py"
    path.write_text("print('read')\n")
    refused = PermissionError(13, "Permission denied", str(path))

    def refuse(*args: Any, **kwargs: Any) -> Any:  # the superuser, who runs tests in containers, may read everything
        raise refused

    monkeypatch.setattr("stator.cli.misuse.open", refuse, raising=False)
    assert main(["explain", str(path)]) == 2
    captured = capsys.readouterr()
    assert f"{str(path)!r} cannot be read: Permission denied" in captured.err and captured.out == ""


def test_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    assert torch.__version__ in text and "aot_eager" in text and "cache directory" in text
    with stator.options.patch(cache_size_limit=3):
        assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backends"] == stator.list_backends() and found["options"] == ["cache_size_limit=3"]


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """TorchInductor's cache with one file, stator's with two."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    (tmp_path / "inductor").mkdir()
    (tmp_path / "inductor" / "code.py").write_text("12345")
    with stator.options.patch(cache_dir=str(tmp_path), code_cache_mib=2):
        store = cache.disk()
        assert store is not None and store.put("00", b"x") and store.put("01", b"xyz")
        yield tmp_path


def test_cache(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, size = caches / "code", sum(path.stat().st_size for path in (caches / "code").iterdir())
    for arguments in (["cache"], ["cache", "list"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert f"machine code: {own}, 2 files, {size} bytes of at most 2,097,152\n" in out
        assert "1 files, 5 bytes" in out
    assert main(["cache", "clear"]) == 0
    assert f"cleared machine code: {own}, 2 files, {size} bytes" in capsys.readouterr().out
    assert list(own.iterdir()) == [] and (caches / "inductor" / "code.py").exists()
    assert main(["cache", "--clear", "--inductor"]) == 0
    assert "0 files, 0 bytes" in capsys.readouterr().out and not (caches / "inductor").exists()


def test_cache_that_is_off_or_unfit(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stator.options.patch(code_cache_mib=0):
        assert main(["cache"]) == main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out.count("not kept on disk: option code_cache_mib is 0") == 2
    (caches / "code").chmod(0o755)
    assert main(["cache"]) == main(["cache", "--clear"]) == 0
    out = capsys.readouterr().out
    assert "it is not used: others may enter it (mode 755, must be 700)" in out and "is not touched" in out
    assert len(list((caches / "code").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["explain", "not-there.py"], "there is no file 'not-there.py'"),
        (["explain", "--backend", "inducter", __file__], "did you mean 'inductor'?"),
        (["explain", "--html", "/no/such/folder/x.html", __file__], "there is no folder"),
        (["explain", "."], "'.' is a folder, not a Python file"),
        (["explain", "--html", ".", __file__], "'.' is a folder, not a file to write to"),
        (["bench", ".:f"], "'.' is a folder, not a Python file"),
        (["bench", "not-there.py:f"], "there is no file 'not-there.py'"),
        (
            ["bench", f"{__file__}:line_of"],
            "missing a required argument: 'text' (--inputs names a function",
        ),
        (["bench", f"{__file__}:line_of", "--inputs", "two_lines"], "too many positional arguments (two_lines gave 2)"),
        (["bench", "no-colon"], "not of the form FILE:FUNCTION"),
        (["bench", f"{__file__}:not_there"], "has no 'not_there'"),
        (["bench", f"{__file__}:SCRIPT"], "cannot be called"),
    ],
)
def test_wrong_use(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "bench", "env", "cache"])
def test_help_helps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert "exit codes:" in capsys.readouterr().out


def test_as_a_program() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-m", "stator"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "usage: python -m stator" in done.stderr and "COMMAND" in done.stderr
