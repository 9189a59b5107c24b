"""Calls of compiled functions whose tensors have lost their memory: for each a name and what came, as a line of JSON.

To be run as a script: where one crashes, its name is the last line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stator

Make = Callable[[], list[Any]]


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def grad(*shape: int) -> Tensor:
    return rand(*shape).requires_grad_()


def add_in_place(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2).add_(y)
    return y.sum()


def write_and_differentiate(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y.detach())
    return (x * y).sum()


def part(x: Tensor) -> Tensor:
    return x[:2] * 2 + 1


def shapes(x: Tensor) -> tuple[Tensor, ...]:
    return torch.ones_like(x) + x.shape[0], torch.rand_like(x) * 0, x.new_zeros(3)


# By name: a function and what makes its arguments, of which the first loses its memory.
CASES: dict[str, tuple[Callable[..., Any], Make]] = {
    "a kernel": (lambda x: (x * 2 + 1).abs(), lambda: [rand(300, 400)]),
    "two rows of a tensor": (part, lambda: [rand(300, 400)]),
    "sizes alone": (shapes, lambda: [rand(300, 400)]),
    "a view": (lambda x: x.view(400, 300), lambda: [rand(300, 400)]),
    "the tensor itself": (lambda x: x, lambda: [rand(300, 400)]),
    "a view with a gradient": (lambda x: (x.view(400, 300), (x * 2).sum()), lambda: [rand(300, 400)]),
    "a product": (lambda x, y: x @ y, lambda: [rand(300, 400), rand(400, 3)]),
    "an operator": (lambda x: x.sort()[0], lambda: [rand(300, 400)]),
    "a convolution": (lambda x, w: F.conv2d(x, w), lambda: [rand(2, 3, 64, 64), rand(8, 3, 3, 3)]),
    "complex numbers": (lambda x: x * 2 + 1, lambda: [rand(300, 400).to(torch.complex64)]),
    "an expanded tensor": (lambda x: x + 1, lambda: [rand(1, 400).expand(300, 400)]),
    "indices": (lambda i, x: x[i] * 2, lambda: [torch.arange(400) % 7, rand(300, 400)]),
    "a table": (lambda w, i: F.embedding(i, w), lambda: [rand(300, 400), torch.arange(400) % 7]),
    "written in place": (add_in_place, lambda: [rand(300, 400), rand(300, 400)]),
    "only written": (lambda x, y: x.copy_(y * 2), lambda: [rand(300, 400), rand(300, 400)]),
    "filled": (lambda x: x.zero_(), lambda: [rand(300, 400)]),
    "written, with gradients": (write_and_differentiate, lambda: [rand(300, 400), grad(300, 400)]),
    "negated": (lambda x: x * 2 + 1, lambda: [torch._neg_view(rand(300, 400))]),
    "of nothing": (lambda x: (x * 2 + 1, x.sum()), lambda: [rand(0, 400)]),
}
SYMBOLIC = {"a kernel with symbols": (lambda x: (x * 2 + 1).softmax(-1), lambda: [rand(300, 400)])}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(36, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(F.relu(self.norm(self.conv(x))).flatten(1)).square().sum()


def shrink(tensor: Tensor, size: int) -> None:
    tensor.data.untyped_storage().resize_(size)


def outcome(call: Callable[[], Any]) -> str:
    try:
        found = call()
    except Exception as error:
        return type(error).__name__
    return "values " + str([tuple(t.shape) for t in torch.utils._pytree.tree_leaves(found)])


def tell(name: str, call: Callable[[], Any]) -> None:
    print(json.dumps(name), end=": ", flush=True)
    print(json.dumps(outcome(call)), flush=True)


def calls() -> None:
    for cases, dynamic in ((CASES, False), (SYMBOLIC, True)):
        for name, (fn, make) in cases.items():
            compiled = stator.compile(fn, dynamic=dynamic)
            for _ in range(2):
                compiled(*make())
            for size in (0, 4000):
                given = make()
                shrink(given[0], size)
                tell(f"{name}, {size} bytes", lambda compiled=compiled, given=given: compiled(*given))
            torch.testing.assert_close(compiled(*make()), fn(*make()))


def backwards() -> None:
    compiled = stator.compile(lambda x: x.sin() * x)
    for _ in range(2):
        compiled(grad(300, 400)).sum().backward()
    for size in (0, 40):
        tangents = {"a tangent": rand(300, 400), "a tangent with other strides": rand(400, 300).t()}
        x = grad(300, 400)
        for name, given in tangents.items():
            shrink(given, size)
            y = compiled(x)
            tell(f"{name}, {size} bytes", lambda y=y, given=given: y.backward(given))
        y = compiled(x)
        shrink(x, size)
        tell(f"what a backward reads, {size} bytes", lambda y=y: y.sum().backward())


def modules() -> None:
    net = Net()
    compiled = stator.compile(net)
    for _ in range(2):
        compiled(rand(2, 3, 5, 5)).backward()
    for name, tensor in {**dict(net.named_parameters()), **dict(net.named_buffers())}.items():
        whole, loss = tensor.data.clone(), compiled(rand(2, 3, 5, 5))
        shrink(tensor, 0)
        tell(f"forward without {name}", lambda: compiled(rand(2, 3, 5, 5)))
        if name.endswith(".weight"):
            tell(f"backward without {name}", lambda loss=loss: loss.backward())
        shrink(tensor, whole.nbytes)
        tensor.data.copy_(whole)


def optimizers() -> None:
    p = nn.Parameter(rand(30, 40))
    optimizer = torch.optim.AdamW([p])
    p.grad = rand(30, 40)
    step = stator.compile(lambda: optimizer.step())
    for _ in range(4):
        step()
    for name, tensor in {"state": optimizer.state[p]["exp_avg"], "gradient": p.grad, "parameter": p}.items():
        whole = tensor.data.clone()
        shrink(tensor, 0)
        tell(f"a step without {name}", step)
        shrink(tensor, whole.nbytes)
        tensor.data.copy_(whole)


if __name__ == "__main__":
    calls()
    backwards()
    modules()
    optimizers()
