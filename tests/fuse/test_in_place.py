"""Graphs that write to their inputs: in one pass where that is sound, and eager's results and versions always."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import stator
from stator.backends import native
from stator.fuse.loops import LoopProgram


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LoopProgram]]:
    """What the backend made."""
    seen: list[LoopProgram] = []
    inner = native._program

    def noting(module: Any) -> LoopProgram:
        seen.append(inner(module))
        return seen[-1]

    monkeypatch.setattr(native, "_program", noting)
    with stator.options.patch(suppress_errors=False):
        yield seen


def update(p: Tensor, g: Tensor, m: Tensor) -> None:
    with torch.no_grad():
        m.mul_(0.9).add_(g)
        p.sub_(m * 0.1)


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(33, generator=generator) for _ in range(3)]


def test_an_update_is_one_kernel_that_writes_in_place(programs: list[LoopProgram]) -> None:
    compiled = stator.compile(update, backend="native")
    for seed in range(3):
        mine, eager = tensors(seed), tensors(seed)
        pointers, versions = [t.data_ptr() for t in mine], [t._version for t in mine]
        compiled(*mine)
        update(*eager)
        assert all(torch.equal(a, b) for a, b in zip(mine, eager, strict=True))
        assert [t.data_ptr() for t in mine] == pointers
        assert [t._version > v for t, v in zip(mine, versions, strict=True)] == [True, False, True]
    (program,) = programs
    assert len(program.steps) == 1 and len(program.written) == 2


def test_inputs_that_share_memory_are_written_as_eager_writes_them(programs: list[LoopProgram]) -> None:
    """The recording is of separate tensors; guards or the host function find out that these are not."""
    compiled = stator.compile(update, backend="native")
    compiled(*tensors(0))
    compiled(*tensors(1))
    for first, second in ((0, 1), (0, 0), (5, 0)):
        mine, eager = torch.arange(40.0), torch.arange(40.0)
        for memory, run in ((mine, compiled), (eager, update)):
            run(memory[first : first + 33], torch.ones(33), memory[second : second + 33])
        assert torch.equal(mine, eager)
    assert programs[0].written


def test_host_functions_refuse_to_write_into_each_other(programs: list[LoopProgram]) -> None:
    """Past all guards: the compiled graph alone, on inputs that overlap, gives what separate inputs give."""
    graph = torch.fx.symbolic_trace(lambda p, g: (p.sub_(g), g.mul_(2))[:0])
    run = native.compile_graph(graph, [torch.ones(8), torch.ones(8)])
    assert programs[0].written
    one, other = torch.arange(8.0), torch.full((8,), 3.0)
    run(one, other)
    assert torch.equal(one, torch.arange(8.0) - 3) and torch.equal(other, torch.full((8,), 6.0))
    memory = torch.arange(12.0)
    before = memory.clone()
    run(memory[:8], memory[4:])
    want = before.clone()
    want[:8] = before[:8] - before[4:12]
    want[4:] = before[4:] * 2
    assert torch.equal(memory, want)


def test_what_others_read_is_not_written(programs: list[LoopProgram]) -> None:
    """A kernel behind it, or a shifted read, wants the old value: the write comes last, as a copy."""

    def shift(p: Tensor, q: Tensor) -> Tensor:
        with torch.no_grad():
            old = p * 2
            p.copy_(torch.cat([p[1:], p[:1]]) + 1)
            q.add_(old)
            return old.sum() + p.sum()

    compiled = stator.compile(shift, backend="native")
    for seed in range(3):
        mine, eager = tensors(seed)[:2], tensors(seed)[:2]
        torch.testing.assert_close(compiled(*mine), shift(*eager))
        assert all(torch.allclose(a, b) for a, b in zip(mine, eager, strict=True))
    assert len(programs) == 1


def swapped(a: Tensor, b: Tensor, c: Tensor) -> None:
    """One kernel, whose later result needs what its earlier one is written over."""
    one, other = b + c, a + c
    a.copy_(one)
    b.copy_(other)


def mixed(a: Tensor, b: Tensor, c: Tensor) -> None:
    shared = a * b + c
    one, other = shared - a, b - c
    a.copy_(other)
    b.copy_(one)


@pytest.mark.parametrize("fn", [swapped, mixed])
def test_nothing_is_written_that_another_result_still_needs(fn: Any, programs: list[LoopProgram]) -> None:
    compiled = stator.compile(fn, backend="native")
    for seed in range(4):
        mine, eager = tensors(seed), tensors(seed)
        compiled(*mine)
        fn(*eager)
        assert all(torch.equal(a, b) for a, b in zip(mine, eager, strict=True))
    assert len(programs) == 1
