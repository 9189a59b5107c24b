"""Which graphs on a GPU are launched as CUDA graphs where nobody said so: an estimate, of graphs without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import stator
from stator import events
from stator.backends import launch_bound, native
from stator.codegen import gpu_scalar
from stator.fuse.decompose import decompositions
from stator.fuse.write import write_program

GIB = 1 << 30


def why_not(fn: Callable[..., Any], *shapes: tuple[int, ...], free: int = 100 * GIB, **options: Any) -> str | None:
    dtype = options.pop("dtype", torch.float32)
    with torch._subclasses.FakeTensorMode():
        inputs = [torch.empty(shape, device="cuda", dtype=dtype) for shape in shapes]
        module = make_fx(fn, decomposition_table=decompositions())(*inputs)
    module.graph.eliminate_dead_code()
    program = write_program(module, gpu_scalar.supported)
    return launch_bound.why_not_worth(module, program, free, for_good=options.get("for_good", True))


def layers(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    for _ in range(10):
        x = torch.softmax(F.gelu(x @ w), -1)
    return (x,)


def test_short_graphs_are_worth_it() -> None:
    assert why_not(layers, (128, 256), (256, 256)) is None
    assert why_not(layers, (128, 256), (256, 256), for_good=False) is None


def test_long_graphs_are_not() -> None:
    shapes = (16384, 8192), (8192, 8192)
    assert "computing 4" in str(why_not(layers, *shapes))
    assert "computing 5" in str(why_not(layers, *shapes, dtype=torch.bfloat16))  # 60 ms
    assert "launching takes about" in str(why_not(lambda x: (x + 1,), (1 << 28,)))


def test_those_with_a_backward_must_gain_more() -> None:
    shapes = (2048, 768), (768, 768)
    assert why_not(layers, *shapes) is None
    assert "launching" in str(why_not(layers, *shapes, for_good=False))


def test_memory_is_short() -> None:
    assert why_not(layers, (128, 256), (256, 256), free=1 << 20) == "its results take 0 MiB, of 1 that are free"


def test_costs_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import flop_counter

    def refuse(*args: Any, **kwargs: Any) -> int:
        raise ValueError("lengths lie in a tensor")

    monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.mm, refuse)
    why = why_not(layers, (128, 256), (256, 256))
    assert why == "what it costs is not known: ValueError: lengths lie in a tensor"


@pytest.mark.parametrize(
    ("mode", "option", "captures"),
    [
        ("default", None, None), ("reduce-overhead", None, True), ("max-autotune-no-cudagraphs", None, False),
        ("default", True, True), ("reduce-overhead", False, False),
    ],
)  # fmt: skip
def test_what_is_asked(mode: str, option: bool | None, captures: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    inner = native._generate

    def noting(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs["asked"].captures)
        return inner(*args, **kwargs)

    monkeypatch.setattr(native, "_generate", noting)
    compiled = stator.compile(lambda x: torch.sin(x) + 1, mode=mode, options={"cuda_graphs": option})
    for seed in range(3):
        x = torch.randn(10, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(compiled(x), torch.sin(x) + 1)
    assert asked == [captures]


def test_a_graph_without_code_runs_in_operators_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decomposed ones would be many more: slower than eager."""

    def refuse(*args: Any) -> Any:
        raise native.host.NotCompiled("there is no compiler")

    monkeypatch.setattr(native, "_host_function", refuse)
    told: list[Any] = []
    end = events.subscribe(told.append, events.NotGenerated)

    def fn(x: Tensor) -> Tensor:
        return F.layer_norm(F.gelu(x), (8,)).log_softmax(-1)

    compiled = stator.compile(fn)
    for seed in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        got, want = compiled(x), fn(x)
        assert torch.equal(got, want)
        (mine,), (eagers,) = (torch.autograd.grad(y.square().sum(), x) for y in (got, want))
        assert torch.equal(mine, eagers)
    end()
    assert [(event.part, event.why) for event in told] == [("forward", "there is no compiler")]
    assert compiled.stator.recordings == 1 and compiled.stator.hits == 2
