"""Convolutions in channels-last: the numbers and the strides of results stay, the images in between lie otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from stator.autograd.compile import compile_function, make_boxed
from stator.fuse.channels_last import prefer_channels_last
from stator.fuse.decompose import decompositions

aten = torch.ops.aten


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.other = (nn.BatchNorm2d(channels, track_running_stats=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.other(self.two(F.relu(self.norm(self.one(x))))))


class Images(nn.Module):
    """As networks of images are made: strided, pooled, in residual blocks, flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 8, 3, stride=2), Residual(8)
        self.narrow, self.head = nn.Conv2d(8, 4, 1), nn.Linear(4 * 7 * 7, 5)

    def forward(self, x: Tensor) -> Any:
        x = F.max_pool2d(self.block(self.stem(x)), 2)
        y = self.narrow(x)
        return self.head(y.view(x.shape[0], -1)), y


def patches(x: Tensor, w: Tensor) -> Any:
    return torch.softmax(F.conv2d(x, w, stride=4).flatten(2).transpose(1, 2), -1)


def dropped(x: Tensor, w: Tensor) -> Any:
    y = F.conv2d(x, w, padding=1)
    return F.dropout(y, 0.5) * 2, torch.as_strided(y, (3, 5), (7, 2)), y.cumsum(-1)


def grouped(x: Tensor, w: Tensor) -> Any:
    return F.conv2d(x, w, groups=2)


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


class Compiled:
    """A function by way of graphs in channels-last, run operator by operator."""

    def __init__(self, fn: Callable[..., Any], inputs: list[Tensor], rewrite: Any) -> None:
        self.graphs: list[fx.GraphModule] = []
        self.call = compile_function(
            lambda *args: _as_tuple(fn(*args)),
            [value.detach().requires_grad_() for value in inputs],
            fw_compiler=self._compile,
            decompositions=decompositions(),
            rewrite=rewrite,
        )

    def _compile(self, module: fx.GraphModule, examples: Any) -> Any:
        self.graphs.append(module)
        return make_boxed(module)

    def images(self, op: Any) -> list[bool]:
        """By image that these convolutions take: does it lie in channels-last?"""
        nodes = [node for graph in self.graphs for node in graph.graph.nodes if node.target is op]
        values = [node.args[0].meta["val"] for node in nodes]
        return [value.is_contiguous(memory_format=torch.channels_last) for value in values]

    def copies(self) -> int:
        clones = [n for g in self.graphs for n in g.graph.nodes if n.target is aten.clone.default]
        return sum("memory_format" in node.kwargs for node in clones)


def turned(module: fx.GraphModule, run: Any) -> None:
    prefer_channels_last(module, run, kind="meta")  # what stands for tensors on the CPU


def run(call: Callable[..., Any], inputs: list[Tensor], seed: int) -> tuple[list[Tensor], list[Tensor]]:
    torch.manual_seed(seed)
    given = [value.detach().clone().requires_grad_() for value in inputs]
    results = call(*given)
    results = [results] if isinstance(results, Tensor) else list(results)
    loss = sum((r * torch.linspace(-1, 1, r.numel()).view_as(r)).sum() for r in results)
    return results, list(torch.autograd.grad(loss, given))


def same(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [(patches, [(2, 3, 8, 8), (6, 3, 4, 4)]), (dropped, [(2, 3, 8, 8), (4, 3, 3, 3)])],
    ids=["patches", "not by index"],
)
def test_functions(fn: Any, shapes: list[tuple[int, ...]]) -> None:
    inputs = [rand(*shape) for shape in shapes]
    compiled = Compiled(fn, inputs, turned)
    for seed in range(3):
        inputs = [value * 1.1 for value in inputs]
        for mine, eagers in zip(run(compiled.call, inputs, seed), run(fn, inputs, seed), strict=True):
            same(mine, eagers)
    assert compiled.images(aten.convolution.default) == [True]
    assert compiled.images(aten.convolution_backward.default) == [True]


def test_a_network() -> None:
    torch.manual_seed(0)
    model = Images()
    names = [name for name, _ in model.named_parameters()]

    def fn(x: Tensor, *parameters: Tensor) -> Any:
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,))

    inputs = [rand(2, 3, 32, 32), *[p.detach() for p in model.parameters()]]
    compiled, plain = Compiled(fn, inputs, turned), Compiled(fn, inputs, None)
    for seed in range(3):
        inputs = [value * 1.1 for value in inputs]
        for got, want in zip(run(compiled.call, inputs, seed), run(fn, inputs, seed), strict=True):
            same(got, want)
    assert compiled.images(aten.convolution.default) == [True] * 4 and not any(plain.images(aten.convolution.default))
    assert compiled.images(aten.convolution_backward.default) == [True] * 4
    # the first image, one to be viewed, one that is a result; weights of 3 by 3, thrice; gradients of all these
    assert compiled.copies() - plain.copies() <= 16


def test_what_is_left_as_it_is() -> None:
    inputs = [rand(2, 4, 8, 8), rand(4, 2, 3, 3)]
    assert not any(Compiled(grouped, inputs, turned).images(aten.convolution.default))
    assert not any(
        Compiled(patches, [rand(2, 3, 8, 8), rand(6, 3, 4, 4)], prefer_channels_last).images(aten.convolution.default)
    )  # on another kind of device
