"""The table of what reaches the world outside: its ids are in the catalogue, and it recognises what it names."""

from __future__ import annotations

import io
import os
import random
import sys
import time

import pytest

from stator.errors import REASONS
from stator.watch.models import side_effect_calls


@pytest.mark.parametrize("row", side_effect_calls.TABLE, ids=lambda row: f"{row.module}-{row.id}")
def test_every_row_is_complete(row: side_effect_calls.SideEffectRow) -> None:
    assert row.id in REASONS
    assert row.names.strip() and row.why and not row.why.endswith(".")


def test_c_functions_and_methods() -> None:
    named = {print: "call-print", time.time: "time", os.listdir: "call-open", os.getcwd: "call-os", eval: "exec-eval"}
    assert {func: side_effect_calls.break_for(func) for func in named} == named
    assert side_effect_calls.break_for(random.random) == side_effect_calls.break_for(random.getrandbits) == "random"
    assert side_effect_calls.break_for(io.StringIO().read) == "call-open"
    assert side_effect_calls.break_for(sys.getsizeof) == "unknown-callable"
    assert side_effect_calls.break_for([].append) == "unknown-callable"


def test_names_are_those_of_the_program() -> None:
    named = {open: "open", os.stat: "os.stat", random.random: "random.random", time.time: "time.time", print: "print"}
    assert {func: side_effect_calls.name_of(func) for func in named} == named


def test_python_functions_by_the_file_of_their_module() -> None:
    assert side_effect_calls.break_in(random.randint.__func__.__code__) == ("random", "random.randint")
    assert side_effect_calls.break_in(os.path.exists.__code__) == ("call-open", "os.path.exists")
    assert side_effect_calls.break_in(os.path.join.__code__) is None
    assert side_effect_calls.break_in(test_names_are_those_of_the_program.__code__) is None


def test_a_folder_that_only_has_a_library_s_name(tmp_path) -> None:
    code = compile("def train(): pass", str(tmp_path / "numpy" / "train.py"), "exec").co_consts[0]
    assert side_effect_calls.break_in(code) is None
