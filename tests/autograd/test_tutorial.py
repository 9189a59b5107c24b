"""The tutorial's small programs: the graphs are as small as it says, word for word."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stator.autograd import aot_function, aot_module_simplified, default_partition, min_cut_partition, saved_values


def graphs_of(fn: Any, *args: Any, partition_fn: Any = min_cut_partition) -> str:
    """Forward and backward, as their compilers see them."""
    texts = []

    def seeing(name: str) -> Any:
        def compiler(gm: Any, inputs: Any) -> Any:
            body = gm.code.strip().replace("def forward(self", f"def {name}(").replace("(, ", "(")
            lines = [line.rstrip().split(";")[0] for line in body.splitlines()]
            texts.append("\n".join(lines).replace("torch.ops.aten.", ""))
            return gm

        return compiler

    compiled = aot_function(fn, seeing("forward"), seeing("backward"), partition_fn=partition_fn)
    expected, found = fn(*args), compiled(*args)
    assert torch.equal(expected, found)
    inputs = [a for a in args if a.requires_grad]
    for one, other in zip(torch.autograd.grad(expected, inputs), torch.autograd.grad(found, inputs), strict=True):
        assert torch.equal(one, other)
    return "\n".join(texts)


def x(*size: int) -> torch.Tensor:
    return torch.randn(*size, requires_grad=True)


def test_add_multiply_mean_keeps_nothing() -> None:
    assert (
        graphs_of(lambda x: ((x + 1) * 2).mean(), x(4))
        == """\
def forward(primals_1):
    add = add.Tensor(primals_1, 1)
    mul = mul.Tensor(add, 2)
    mean = mean.default(mul)
    return (mean,)
def backward(tangents_1):
    expand = expand.default(tangents_1, [4])
    div = div.Scalar(expand, 4)
    mul_1 = mul.Tensor(div, 2)
    return (mul_1,)"""
    )


def test_simple_fn() -> None:
    def simple_fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y + 1
        return z.sum()

    assert (
        graphs_of(simple_fn, x(10))
        == """\
def forward(primals_1):
    mul = mul.Tensor(primals_1, 2)
    add = add.Tensor(mul, 1)
    sum_1 = sum.default(add)
    return (sum_1,)
def backward(tangents_1):
    expand = expand.default(tangents_1, [10])
    mul_1 = mul.Tensor(expand, 2)
    return (mul_1,)"""
    )


def test_four_operations_in_a_row_keep_nothing() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        a = x + 1
        b = a * 2
        c = b + 3
        d = c * 4
        return d.sum()

    for partition_fn in (min_cut_partition, default_partition):
        assert (
            graphs_of(forward, x(8), partition_fn=partition_fn).split("def backward")[1]
            == """\
(tangents_1):
    expand = expand.default(tangents_1, [8])
    mul_2 = mul.Tensor(expand, 4)
    mul_3 = mul.Tensor(mul_2, 2)
    return (mul_3,)"""
        )


def test_sine_keeps_its_input_only() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        z = y * 2
        return z.sum()

    assert (
        graphs_of(forward, x(100, 100))
        == """\
def forward(primals_1):
    sin = sin.default(primals_1)
    mul = mul.Tensor(sin, 2)
    sum_1 = sum.default(mul)
    return (sum_1, primals_1)
def backward(primals_1, tangents_1):
    expand = expand.default(tangents_1, [100, 100])
    mul_1 = mul.Tensor(expand, 2)
    cos = cos.default(primals_1)
    mul_2 = mul.Tensor(mul_1, cos)
    return (mul_2,)"""
    )


class SimpleModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, self.weight).sum()


def test_simple_model(capsys: Any) -> None:
    """As the tutorial calls it: without example arguments, with compilers that print."""

    def print_graph(name: str) -> Any:
        def compiler(fx_graph: Any, args: Any) -> Any:
            print(name, fx_graph.code)
            return fx_graph

        return compiler

    model = SimpleModel()
    compiled = aot_module_simplified(model, fw_compiler=print_graph("FORWARD"), bw_compiler=print_graph("BACKWARD"))
    data = torch.randn(10)
    output = compiled(data)
    printed = capsys.readouterr().out  # both, before the backward is asked for
    assert printed.index("FORWARD") < printed.index("BACKWARD")
    output.backward()
    assert torch.equal(output, model(data))
    expected = torch.autograd.grad(model(data), model.weight)[0]
    assert torch.equal(model.weight.grad, expected)
    lines = [line.split(";")[0].strip().replace("torch.ops.aten.", "") for line in printed.splitlines()]
    assert [line for line in lines if " = " in line or line.startswith("return")] == [
        "unsqueeze = unsqueeze.default(primals_2, 0)",
        "mm = mm.default(unsqueeze, primals_1)",
        "squeeze = squeeze.dim(mm, 0)",
        "sum_1 = sum.default(squeeze)",
        "return (sum_1, primals_2)",
        "expand = expand.default(tangents_1, [10])",
        "unsqueeze_1 = unsqueeze.default(expand, 0)",
        "unsqueeze = unsqueeze.default(primals_2, 0)",
        "t = t.default(unsqueeze)",
        "mm_1 = mm.default(t, unsqueeze_1)",
        "return (mm_1, None)",
    ]


def test_with_example_arguments() -> None:
    seen = []
    model = SimpleModel()
    data = torch.randn(10)
    compiled = aot_module_simplified(model, (data,), fw_compiler=lambda gm, inputs: seen.append(gm) or gm)
    assert len(seen) == 2  # compiled at once
    assert torch.equal(compiled(data), model(data))


def test_looking_at_saved_values(capsys: Any) -> None:
    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w).sin().sum()

    saved = saved_values(forward)(x(16, 8), x(8, 32))
    assert capsys.readouterr().out.strip() == str(saved)
    assert saved.bytes < saved.eager_bytes
    assert all(value.why for value in saved.values)
    nothing = saved_values(lambda x: ((x + 1) * 2).mean())(x(4))
    assert nothing.values == () and nothing.bytes == nothing.eager_bytes == 0


def test_own_partition_function() -> None:
    called = []

    def custom(joint_gm: Any, joint_inputs: Any, *, num_fwd_outputs: int) -> Any:
        called.append(num_fwd_outputs)
        return default_partition(joint_gm, joint_inputs, num_fwd_outputs=num_fwd_outputs)

    graphs_of(lambda x: x.sin().sum(), x(4), partition_fn=custom)
    assert called == [1]
