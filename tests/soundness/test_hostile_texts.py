"""Names and values that would be code, if their own `repr` were believed: in replays, wrappers, scripts and files."""

from __future__ import annotations

import ast
import collections
import contextlib
import enum
import functools
import math
import runpy
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import rand

import stator
from stator.support.literals import in_docstring, is_identifier, is_literal, literal, name_of, one_line
from stator.support.python_source import SourceValues, importable

HIJACKED: list[str] = []
CODE = "__import__('test_hostile_texts').HIJACKED.append('repr') or 'abc'"
TEXTS = [
    "", "'", '"', "'''", '"""', "\\", "\\'", 'a"""\nimport os\n"""', "\n", "\r\n", "\x00", "\x85", "\u2028", "\ud800",
    "é", "\N{GREEK SMALL LETTER MU}", "\N{MICRO SIGN}", "{x}", "%s", "a\\", "#", "\t", "\x1b[31m", "x" * 5000,
]  # fmt: skip


def _act(*_: Any) -> str:
    HIJACKED.append("called")
    return CODE


class S(str):
    __slots__ = ()
    __repr__ = __str__ = __format__ = _act


class I(int):  # noqa: E742
    __repr__ = __str__ = __format__ = __int__ = __index__ = _act  # type: ignore[assignment]


class F(float):
    __repr__ = __str__ = __format__ = __float__ = _act  # type: ignore[assignment]


class H(str):
    """Found in dicts as it likes."""

    __repr__ = __str__ = __format__ = _act

    def __hash__(self) -> int:
        HIJACKED.append("hash")
        return hash("other")

    def __eq__(self, other: object) -> bool:
        HIJACKED.append("eq")
        return True


class E(str, enum.Enum):  # noqa: UP042
    A = "abc"
    B = '"""\nimport os #'


VALUES: list[Any] = [
    None, True, False, ..., NotImplemented, 0, -1, 1 << 64, -(1 << 20000), 0.0, -0.0, 1e308, math.inf, -math.inf,
    math.nan, 1j, complex(-0.0, math.inf), complex(math.nan, 0.5), b"", b"\x00'\"\\\n", (), (1,), (1, (2.5, "a")),
    *TEXTS, *map(str.encode, filter(lambda text: "\ud800" not in text, TEXTS)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_rule_8_a_value_is_written_as_what_it_is(number: int) -> None:
    value = VALUES[number]
    text = literal(value)
    assert is_literal(value) and text.isascii() and "\n" not in text
    again = eval(text)
    assert type(again) is type(value)
    assert repr(again) == repr(value) if type(value) is not int else again == value


@pytest.mark.parametrize("value", [S("a"), I(3), F(2.5), H("a"), E.A, (1, S("a")), [], {}, object(), S], ids=type)
def test_rule_8_other_values_are_not_written(value: Any) -> None:
    HIJACKED.clear()
    assert not is_literal(value)
    with pytest.raises(TypeError):
        literal(value)
    assert not HIJACKED


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_rule_8_comments_and_docstrings_do_not_end(number: int) -> None:
    text = TEXTS[number]
    for hostile in (text, S(text)):
        HIJACKED.clear()
        source = f'"""{in_docstring(hostile)}\n"""\n# {one_line(hostile)}\nx = 1  # {one_line(hostile)}\n'
        source.encode()
        tree = ast.parse(source)
        assert [type(node) for node in tree.body] == [ast.Expr, ast.Assign]
        assert not HIJACKED


def test_rule_8_identifiers() -> None:
    assert all(map(is_identifier, ("a", "_", "é", "match", "run")))
    wrong: list[Any] = ["class", "None", "__debug__", "", "1", "a b", "\N{MICRO SIGN}", "ﬁ", "a\n", S("a"), 3, None]
    assert not any(map(is_identifier, wrong))


def test_rule_8_names_of_classes_that_lie() -> None:
    class Meta(type):
        __name__ = property(_act)  # type: ignore[assignment]

    class Liar(metaclass=Meta):
        __name__ = property(_act)  # type: ignore[assignment]

        def __getattr__(self, name: str) -> Any:
            return _act()

    HIJACKED.clear()
    assert name_of(Liar).endswith("Liar") and name_of(Liar()).endswith("Liar")
    assert not HIJACKED


# ------------------------------------------------------------------------------------------------ replays


class Z:
    pass


def set_on_class(name: Any, x: torch.Tensor) -> torch.Tensor:
    setattr(Z, name, x + 1)
    return x * 2


def set_on_object(name: Any, x: torch.Tensor) -> Any:
    made = Z()
    setattr(made, name, x + 1)
    return made


def keyword_of_partial(name: Any, x: torch.Tensor) -> Any:
    return functools.partial(set_on_class, **{name: x + 1})


def multiply(name: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2


def state_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Z):
        return [(str.__str__(key), type(key), item.tolist()) for key, item in vars(value).items()]
    return [(str.__str__(key), type(key), item.tolist()) for key, item in value.keywords.items()]


@pytest.mark.parametrize("name", [S("abc"), E.A, E.B, "a\ud800\x00", '"""', H("abc")], ids=range(6))
@pytest.mark.parametrize("function", [set_on_class, set_on_object, keyword_of_partial])
def test_rule_8_names_of_attributes(function: Callable[[Any, torch.Tensor], Any], name: Any) -> None:
    def outcome(f: Callable[[Any, torch.Tensor], Any], x: torch.Tensor) -> Any:
        for key in [key for key in vars(Z) if not key.startswith("__")]:
            delattr(Z, key)
        result = state_of(f(name, x))
        return result, [(key, value.tolist()) for key, value in vars(Z).items() if isinstance(value, torch.Tensor)]

    fast = stator.compile(function, backend="eager")
    for seed in range(4):
        expected = outcome(function, rand(seed))
        HIJACKED.clear()
        plain = len(HIJACKED)
        assert outcome(fast, rand(seed)) == expected
        assert "repr" not in HIJACKED and (type(name) is H or len(HIJACKED) == plain)
    assert fast.stator.hits == 3 or type(name) is H


# ---------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("number", range(len(TEXTS)))
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_rule_8_names_of_functions_in_files_of_debug_dir(number: int, backend: str, tmp_path: Path) -> None:
    text = TEXTS[number]

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    fn.__qualname__ = fn.__name__ = f"f{text}"
    fn.__code__ = fn.__code__.replace(co_name=f"f{text}", co_qualname=f"f{text}", co_filename=text)
    made = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__)
    made.__qualname__ = fn.__qualname__
    fast = stator.compile(made, backend=backend, options={"debug_dir": str(tmp_path)})
    for seed in range(3):
        torch.testing.assert_close(fast(rand(seed)), rand(seed) * 2 + 1)
    assert fast.stator.hits == 2
    files = sorted(tmp_path.iterdir())
    assert len(files) >= 3
    for file in files:
        assert len(file.name.encode()) < 200 and file.parent == tmp_path and not file.is_symlink()
        assert file.stat().st_mode & 0o777 == 0o600
        ast.parse(file.read_text())
    if number % 6 == 2:
        for file in files:
            with pytest.raises(SystemExit) if file.stem.endswith("guards") else contextlib.nullcontext():
                runpy.run_path(str(file), run_name="__main__")


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__qualname__", "__name__", "__mro__", "__class__"):
            HIJACKED.append(name)
        return super().__getattribute__(name)


class OfMeta(metaclass=Meta):
    pass


class Answers:
    """Names itself when it is asked."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        HIJACKED.append("__class__")
        return type(self)

    def __getattr__(self, name: str) -> Any:
        HIJACKED.append(name)
        raise AttributeError(name)


ANSWERS = Answers()


@pytest.mark.parametrize("value", [OfMeta, OfMeta(), ANSWERS], ids=["class", "instance", "object"])
def test_rule_8_where_a_value_comes_from_is_not_asked_of_the_program(value: Any) -> None:
    HIJACKED.clear()
    assert importable(value) is None
    assert SourceValues().expression(value)
    assert HIJACKED == []


def test_rule_8_what_python_and_torch_have_is_still_found() -> None:
    for value, path in [
        (torch.nn.functional.relu, "torch.nn.functional.relu"), (torch.ops, "torch.ops"), (len, "builtins.len"),
        (torch.nn.Linear, "torch.nn.modules.linear.Linear"), (math, "math"), (functools.reduce, "_functools.reduce"),
        (collections.OrderedDict, "collections.OrderedDict"), (torch._C.DispatchKey, "torch.DispatchKey"),
        (contextlib.suppress.__exit__, "contextlib.suppress.__exit__"),
    ]:  # fmt: skip
        assert importable(value) == path


def test_rule_8_metaclasses_are_not_asked_for_files_of_debug_dir(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, scale: int) -> torch.Tensor:
        return x * scale + isinstance(x, OfMeta)

    fast = stator.compile(fn, backend="eager", options={"debug_dir": str(tmp_path)})
    for scale in (3, 3, 5, 5):
        HIJACKED.clear()
        torch.testing.assert_close(fast(rand(scale), scale), rand(scale) * scale)
        assert HIJACKED == []
    assert fast.stator.hits == 2
    assert any(file.stem.endswith("guards") for file in tmp_path.iterdir())
