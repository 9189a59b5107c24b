"""What users are told about symbols; and failures of ours in the middle of an operation."""

from __future__ import annotations

import gc
import logging
import os
import warnings

import pytest
import torch
from harness import rand

import stator
from stator.watch.symbols.symbolic_numbers import Symbols
from stator.watch.symbols.symbolic_shapes import Shapes


def rounds(x, n):
    for i in range(n):
        x = x + i
    return x.view(-1)


def line_of(function, offset):
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno + offset}"


def test_the_log_names_what_is_symbolic_and_what_a_line_made_constant(caplog):
    stator.set_logs(recompiles=True)
    try:
        compiled = stator.compile(rounds, backend="eager")
        for size, n in ((3, 2), (4, 3), (5, 3), (6, 3)):
            assert torch.equal(compiled(rand(1, size, 2), n), rounds(rand(1, size, 2), n))
    finally:
        stator.set_logs()
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert len(texts) == 3 and compiled.stator.recordings == 2
    assert texts[0].startswith("Recompiling rounds: x.size: expected (3, 2), found (4, 2)")
    assert texts[1] == "Recorded rounds for any x.shape[0]"
    place = os.path.relpath(line_of(rounds, 1))
    assert texts[2].startswith(f"Specialised rounds: n can only be 3, due to {place}\n    Keep it constant")
    assert compiled.stator.entries[0].symbolic == ("x.shape[0]",)


def test_explain_names_them_too():
    x = rand(1, 6, 2)
    stator.mark_dynamic(x, 0)
    explained = stator.explain(rounds, x, 2)
    assert explained.symbolic == ["x.shape[0]"] and explained.specialised == []
    assert "Symbolic: x.shape[0]" in str(explained)

    def tied(x):
        return x * 2 if x.shape[0] == 6 else x

    with pytest.raises(stator.errors.SpecializationError, match=f"can only be 6, due to {line_of(tied, 1)}"):
        stator.explain(tied, x)


@pytest.mark.parametrize(("owner", "name"), [(Shapes, "tensor"), (Symbols, "operate"), (Symbols, "run")])
def test_a_failure_of_ours_in_the_middle_of_an_operation(monkeypatch, owner, name):
    """The operation goes on with the operands that it has on the stack: they must not be exchanged."""

    def fail(*args):
        raise RuntimeError("on purpose")

    def fn(x, n):
        return x * (n + 1) + x.shape[0]

    monkeypatch.setattr(owner, name, fail)
    for _ in range(10):
        compiled = stator.compile(fn, backend="eager")
        for size, n in ((3, 2), (4, 3), (5, 4), (6, 5)):
            x = rand(size, size)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert torch.equal(compiled(x, n), fn(x, n))
        assert compiled.stator.plain > 0
        gc.collect()
