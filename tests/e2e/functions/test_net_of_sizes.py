"""The net under the models of functions: sizes that a program has asked for are compared in the replay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import rand

import stator
from stator.errors import VerificationError
from stator.watch.models import torch_functions


@pytest.fixture
def wrong_model(monkeypatch):
    """`_pad_packed_sequence` is taken for a function whose sizes follow from shapes."""
    monkeypatch.setattr(torch_functions, "_PRIVATE", frozenset({"_pad_packed_sequence"}))
    monkeypatch.setattr(torch_functions, "_MODELS", {})


@pytest.fixture(scope="module")
def lying():
    """An operator of the program, whose kernel for fake tensors takes half of the numbers to be above 0."""
    library = torch.library.Library("lying", "FRAGMENT")
    library.define("above_zero(Tensor x) -> Tensor")
    library.impl("above_zero", lambda x: x[x > 0], "CPU")
    torch.library.register_fake("lying::above_zero", lambda x: x.new_empty(x.shape[0] // 2), lib=library)
    yield torch.ops.lying.above_zero
    library._destroy()


def uses_of(lying: Any) -> dict[str, Any]:
    def read(x: torch.Tensor) -> Any:
        y = lying(x)
        return y * 2, y.shape[0]

    def read_alone(x: torch.Tensor) -> Any:
        return x * lying(x).shape[0], 0

    def read_of_another(x: torch.Tensor) -> Any:
        y = lying(x).exp() + 1
        return y.sum(), y.shape[0]

    def returned(x: torch.Tensor) -> Any:
        y = lying(x)
        return y, y.shape[0]

    return {use.__name__: use for use in (read, read_alone, read_of_another, returned)}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("use", ["read", "read_alone", "read_of_another", "returned"])
def test_sizes_that_a_program_promises_are_compared(lying, use, backend):
    program = uses_of(lying)[use]
    compiled = stator.compile(program, backend=backend)
    for above in (2, 2, 1, 1, 3, 2, 2):
        x = torch.tensor([0.5] * above + [-0.5] * (4 - above))
        wanted, found = program(x), compiled(x.clone())
        assert torch.equal(wanted[0], found[0]) and wanted[1] == found[1]
    assert 3 <= compiled.stator.recordings <= 4 and compiled.stator.hits >= 3
    assert len(compiled.stator.graphs) == compiled.stator.recordings


def fn(x: torch.Tensor, sizes: torch.Tensor) -> Any:
    y = torch._VF._pad_packed_sequence(x, sizes, True, 0.0, 0)[0] * 2
    return y, y.shape[0] * y.shape[1]


def fn_without_asking(x: torch.Tensor, sizes: torch.Tensor) -> Any:
    return torch._VF._pad_packed_sequence(x, sizes, True, 0.0, 0)[0] * 2, 1


SIZES = ([2, 2], [2, 2], [3, 1], [3, 1], [2, 2])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_other_sizes_are_a_miss(wrong_model, backend):
    compiled = stator.compile(fn, backend=backend)
    for sizes in SIZES:
        wanted, found = fn(rand(1, 4, 3), torch.tensor(sizes)), compiled(rand(1, 4, 3), torch.tensor(sizes))
        assert torch.equal(wanted[0], found[0]) and wanted[1] == found[1]
    assert compiled.stator.recordings == len(compiled.stator.graphs) == 3


def test_sizes_that_nobody_asks_for_may_change(wrong_model):
    compiled = stator.compile(fn_without_asking, backend="eager")
    for sizes in SIZES:
        wanted = fn_without_asking(rand(1, 4, 3), torch.tensor(sizes))
        assert torch.equal(wanted[0], compiled(rand(1, 4, 3), torch.tensor(sizes))[0])
    assert (compiled.stator.recordings, compiled.stator.hits) == (1, 4)


def test_verify_names_the_node(wrong_model, tmp_path):
    compiled = stator.compile(fn, backend="eager", options={"verify": True, "debug_dir": str(tmp_path)})
    compiled(rand(1, 4, 3), torch.tensor([2, 2]))
    compiled(rand(1, 4, 3), torch.tensor([2, 2]))
    with pytest.raises(VerificationError, match=r"y has the sizes \(3, 2, 3\); when it was recorded, \(2, 2, 3\)"):
        compiled(rand(1, 4, 3), torch.tensor([3, 1]))


def test_tensors_that_are_reshaped_in_place_later():
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        before = y.shape
        y.unsqueeze_(0)
        return y, before, y.shape

    compiled = stator.compile(program, backend="eager")
    for seed in range(4):
        wanted, found = program(rand(seed)), compiled(rand(seed))
        assert torch.equal(wanted[0], found[0]) and wanted[1:] == found[1:]
    assert (compiled.stator.recordings, compiled.stator.hits) == (1, 3)
