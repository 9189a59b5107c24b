"""How reports look: short paths, guards in a reader's order, colours on a terminal and nowhere else."""

from __future__ import annotations

import io
import logging
import os
import sys
import sysconfig

import pytest

from stator.report import style
from stator.report.logs import set_logs
from stator.support.python_source import broken, readable


def test_paths_are_told_from_here_or_from_where_packages_are() -> None:
    assert style.short_path(os.path.join(os.getcwd(), "a", "b.py:3")) == os.path.join("a", "b.py:3")
    assert style.short_path(os.path.join(sysconfig.get_path("purelib"), "torch", "x.py:3")) == "torch/x.py:3"
    assert style.short_path("/elsewhere/b.py:3") == "/elsewhere/b.py:3"


def test_guards_on_the_programs_own_values_come_first() -> None:
    library = os.path.join(sysconfig.get_path("purelib"), "torch", "x.py")
    lines = [
        "torch's grad mode == True",
        "torch's autocast == None",
        f"type(self) is M  # {library}:5",
        "f.__code__ is f",
        "n == 2  # /p/a.py:7",
        f"args[0]: Tensor torch.float32 [2, 4] stride [4, 1] cpu  # {library}:9",
    ]
    assert style.guards(lines).splitlines() == [
        "n == 2                                                        # /p/a.py:7",
        "args[0]: Tensor torch.float32 [2, 4] stride [4, 1] cpu        # torch/x.py:9",
        "# of classes, code and libraries",
        "type(self) is M                                               # torch/x.py:5",
        "f.__code__ is f",
        "# of torch's state",
        "grad mode == True, autocast == None",
    ]


def test_no_guard_is_wider_than_a_page() -> None:
    text = style.guards([f"{'x' * 90} is {'y' * 40}  # /p/a.py:7", f"tuple({'k, ' * 60}) == ()"])
    assert max(map(len, text.splitlines())) <= 100


def test_python_is_broken_inside_of_brackets() -> None:
    call = f"    y = f({', '.join(f'argument_{n}' for n in range(12))})"
    lines = broken(call)
    assert max(map(len, lines)) <= 100
    assert lines[0] == "    y = f("
    assert lines[-1] == "    )"
    assert "".join(line.strip() for line in lines).replace(",argument", ", argument") == call.strip()


@pytest.mark.parametrize(
    "shape",
    ["(A, B,)", "[(A, B)]", "A[B]", "f(')(', 'a, b', \"it's\", A, B)"],
)
def test_a_broken_line_means_the_same(shape: str) -> None:
    expression = shape.replace("A", "a" * 60).replace("B", "b" * 60)
    names = {"a" * 60: [5, 6], "b" * 60: 1, "f": lambda *args: args}
    lines = broken(expression)
    assert len(lines) > 1
    assert eval("\n".join(lines), dict(names)) == eval(expression, dict(names))


def test_what_fx_writes_is_made_readable() -> None:
    written = """
    def forward(self, l_x_ : torch.Tensor):
        sub = l_x_ - 1;  l_x_ = None
        given = None
        return (sub, given)
    """
    assert readable(written) == (
        "def forward(self, l_x_: torch.Tensor):\n    sub = l_x_ - 1\n    given = None\n    return (sub, given)"
    )


# ------------------------------------------------------------------------------------------------------ colours


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a record becomes if the application has no handlers of its own."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    set_logs(recompiles=True)
    try:
        logging.getLogger("stator.recompiles").info("Recompiling f: n: expected 2, found 3")
    finally:
        set_logs()
    return stream.getvalue()


def test_a_terminal_gets_colours_and_a_file_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain = "[stator.recompiles] Recompiling f: n: expected 2, found 3\n"
    assert logged(io.StringIO(), monkeypatch) == plain
    coloured = logged(Terminal(), monkeypatch)
    assert "\033[33mRecompiling f: n: expected 2, found 3\033[0m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert logged(Terminal(), monkeypatch) == plain
