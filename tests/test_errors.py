"""The catalogue of graph-break reasons, the place of a break, and the messages of the exceptions."""

from __future__ import annotations

import ast
import dis
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stator
from stator.errors import (
    REASONS,
    BackendError,
    BreakReason,
    GraphBreakError,
    InternalError,
    StatorError,
    UnknownBackend,
    break_reason,
    caret,
    render,
)

# Ids are a promise: users' scripts and tests compare them. Adding one is fine, renaming one is not.
PROMISED = [
    "call-print",
    "call-input",
    "call-open",
    "tensor-item",
    "tensor-bool",
    "tensor-tolist",
    "tensor-numpy",
    "tensor-data-ptr",
    "dynamic-shape-op",
    "unknown-callable",
    "unknown-tensor",
    "unknown-function",
    "outside-iterator",
    "outside-generator",
    "build-class",
    "exec-eval",
    "unwatchable-code",
    "tracer-active",
    "finalizer",
    "recursion",
    "foreign-frame",
    "rebuild",
    "state-changed",
    "tensor-changed",
    "user-graph-break",
    "disabled-function",
    "rng-state",
    "time",
    "random",
    "numpy",
    "backward",
    "backward-hooks",
    "module-hooks",
    "autograd-function",
    "functorch",
    "import",
    "thread-local",
    "identity",
    "attribute-set-on-tensor",
    "internal-error",
    "raises",
]


def offset_of(function: Callable[..., Any], opname: str, which: int = 0) -> int:
    """Offset of the `which`-th instruction of that name."""
    return [at.offset for at in dis.get_instructions(function) if at.opname == opname][which]


def prints(x: int) -> int:
    y = x + 1; print("é", x); return y  # fmt: skip  # noqa: E702


def spans_lines(x: Any) -> Any:
    return print(
        x,
    )


def test_the_promised_ids_exist() -> None:
    assert set(PROMISED) <= set(REASONS)


@pytest.mark.parametrize("id", REASONS)
def test_every_reason_is_complete(id: str) -> None:
    known = REASONS[id]
    assert known.id == id
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", id)
    assert known.hint and not known.hint.endswith(".")
    assert "{" not in known.reason.format(what="torch.foo")


def test_the_contract_s_wordings() -> None:
    assert REASONS["call-print"].reason == "call to print (side effect)"
    assert REASONS["tensor-item"].reason == "call to tensor.item() (data-dependent control flow)"


def test_a_break_knows_its_place() -> None:
    why = break_reason("call-print", prints.__code__, offset_of(prints, "CALL"))
    assert (why.id, why.reason) == ("call-print", "call to print (side effect)")
    assert why.filename == __file__
    assert why.lineno == prints.__code__.co_firstlineno + 1
    assert why.line.startswith("y = x + 1; print(")
    assert why.function == "prints"
    assert why.place == f"{__file__}:{why.lineno}"
    assert [frame.name for frame in why.user_stack] == ["prints"]
    assert why.hint == REASONS["call-print"].hint


def test_the_caret_stands_under_the_call_also_behind_letters_of_two_bytes() -> None:
    lines = render(break_reason("call-print", prints.__code__, offset_of(prints, "CALL"))).splitlines()
    assert lines[0] == "call to print (side effect)  [call-print]"
    assert lines[1].endswith("in prints")
    start, end = lines[3].index("^"), lines[3].rindex("^") + 1
    assert lines[2][start:end] == 'print("é", x)'
    assert lines[4] == f"  hint: {REASONS['call-print'].hint}"


def test_a_caret_counts_wide_characters_twice() -> None:
    line = '名 = f("名")'
    assert caret(line, (4, 10)) == " " * 5 + "^" * 7
    assert caret("abc", None) == "^^^"


def test_a_call_over_several_lines_is_marked_on_its_first() -> None:
    why = break_reason("call-print", spans_lines.__code__, offset_of(spans_lines, "CALL"))
    assert why.line == "return print("
    assert render(why).splitlines()[3] == "    " + " " * len("return ") + "^" * len("print(")


def test_a_break_of_a_whole_function_names_its_first_line() -> None:
    why = break_reason("generator-root", prints.__code__, what="prints")
    assert why.reason == "prints is a generator function"
    assert why.line == "def prints(x: int) -> int:"


def test_what_a_reason_is_about_may_be_unknown() -> None:
    assert break_reason("build-class", prints.__code__).reason == "class statement"
    assert break_reason("import", prints.__code__).reason == "import of something unknown (not loaded yet)"
    assert break_reason("import", prints.__code__, what="{x}").reason == "import of {x} (not loaded yet)"


def test_a_break_of_something_without_python_code() -> None:
    why = break_reason("unwatchable-code", None, what="builtins.len")
    assert (why.reason, why.line) == ("the code of builtins.len cannot be watched", "")
    assert render(why).splitlines()[1] == '  File "<built-in>", line 0, in builtins.len'


def test_source_that_cannot_be_read_leaves_the_line_out() -> None:
    namespace: dict[str, Any] = {}
    exec("def made(x):\n    print(x)\n", namespace)
    made = namespace["made"]
    why = break_reason("call-print", made.__code__, offset_of(made, "CALL"))
    assert (why.filename, why.lineno, why.line) == ("<string>", 2, "")
    assert "^" not in render(why)


def test_callers_come_before_the_place() -> None:
    outer = break_reason("call-print", spans_lines.__code__).user_stack
    why = break_reason("call-print", prints.__code__, user_stack=outer)
    assert [frame.name for frame in why.user_stack] == ["spans_lines", "prints"]


def test_an_unknown_id_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError):
        break_reason("no-such-reason", prints.__code__)


# ------------------------------------------------------------------------------------------------- exceptions


def a_break() -> BreakReason:
    return break_reason("call-print", prints.__code__, offset_of(prints, "CALL"))


def test_graph_break_error_shows_line_reason_and_hint() -> None:
    error = GraphBreakError(a_break())
    assert "fullgraph=True forbids" in str(error)
    assert render(a_break()) in str(error)
    assert error.why.id == "call-print"


def test_unknown_backend_lists_the_known_and_the_nearest() -> None:
    error = UnknownBackend("inducter", ["eager", "inductor"])
    assert str(error) == "there is no backend 'inducter'; did you mean 'inductor'? (known: eager, inductor)"
    assert str(UnknownBackend(3, [])) == "there is no backend 3 (known: none)"


def test_a_long_text_of_a_backend_is_cut() -> None:
    error = BackendError("mine", ValueError("\n".join(["first" + "x" * 500, *map(str, range(1, 100))])), None)
    lines = str(error).splitlines()
    assert lines[0].startswith("backend 'mine' failed with ValueError: firstxxx") and len(lines[0]) < 400
    assert lines[11:] == ["11", "… 88 more lines"]
    assert str(BackendError("mine", ValueError("a\nb"), None)).endswith("ValueError: a\nb")


def test_backend_error_carries_the_cause_and_the_graph() -> None:
    cause = ValueError("no such op")
    error = BackendError("mine", cause, "some/graph.py")
    assert error.__cause__ is cause
    assert str(error) == "backend 'mine' failed with ValueError: no such op; the graph was saved to some/graph.py"


def test_internal_error_names_step_cause_and_report() -> None:
    error = InternalError("recording", KeyError("x"), "some/report.txt")
    assert str(error) == "stator failed in recording with KeyError: 'x'; a report was saved to some/report.txt"
    assert str(InternalError("recording")) == "stator failed in recording"


@pytest.mark.parametrize(
    "error",
    [
        GraphBreakError(a_break()),
        UnknownBackend("x", ["y"]),
        BackendError("b", ValueError("v"), None),
        InternalError("w", None, None),
    ],
)
def test_every_exception_is_a_stator_error_and_pickles(error: StatorError) -> None:
    assert isinstance(error, StatorError)
    assert type(error).__doc__
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# -------------------------------------------------------------------------------- the code and the catalogue

SOURCE = Path(__file__).parents[1] / "src" / "stator"


def ids_used() -> Iterator[tuple[str, str]]:
    """Place and id of every `BreakGraph("...")` and `break_reason("...")` in the package."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in ("BreakGraph", "break_reason"):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", str(node.args[0].value)


def test_hints_name_only_what_there_is() -> None:
    named = {name for known in REASONS.values() for name in re.findall(r"stator\.(\w+)", known.reason + known.hint)}
    assert {name for name in named if not hasattr(stator, name)} == set()


def test_every_reason_that_the_code_gives_is_in_the_catalogue() -> None:
    assert [use for use in ids_used() if use[1] not in REASONS] == []
