"""Passes over the joint graph, one by one, as text before and after; and what they must leave alone."""

from __future__ import annotations

import torch
from comparing import as_it_is, check

from stator.autograd import aot_function
from stator.autograd.joint import optimise
from stator.autograd.trace import trace


def body(fn, *args):
    """The optimised joint graph, line by line."""
    joint = trace(fn, list(args))
    runs = optimise(joint.module, joint.plan.results, texts=True)
    assert all(run.text and run.seconds >= 0 for run in runs)
    lines = [line.strip() for line in joint.module.code.strip().splitlines()[1:]]
    return [line.split(";")[0].replace("torch.ops.aten.", "") for line in lines]


def x(*size, grad=False, dtype=torch.float32):
    return torch.randn(size or (3, 4), requires_grad=grad, dtype=dtype)


def test_dead_code():
    assert body(lambda a: [a + 1, (a * 2).sin()][:1], x()) == ["add = add.Tensor(primals_1, 1)", "return (add,)"]


def test_random_numbers_stay():
    assert "rand = rand.default([3], device = device(type='cpu'), pin_memory = False)" in body(
        lambda a: [torch.rand(3), a + 1][1:], x()
    )


def test_common_subexpressions():
    assert body(lambda a, b: [(a + b).sin() * (a + b).sin()], x(), x()) == [
        "add = add.Tensor(primals_1, primals_2)",
        "sin = sin.default(add)",
        "mul = mul.Tensor(sin, sin)",
        "return (mul,)",
    ]


def test_views_of_views():
    assert body(lambda a: [a.view(-1).view(4, 3).view(2, 6) + 1], x()) == [
        "view_2 = view.default(primals_1, [2, 6])",
        "add = add.Tensor(view_2, 1)",
        "return (add,)",
    ]
    assert body(lambda a: [a.t().t() + a.transpose(0, 1).transpose(0, 1)], x()) == [
        "add = add.Tensor(primals_1, primals_1)",
        "return (add,)",
    ]
    assert body(lambda a: [a.permute(2, 0, 1).permute(1, 2, 0) + 1], x(2, 3, 4)) == [
        "add = add.Tensor(primals_1, 1)",
        "return (add,)",
    ]


def test_casts_there_and_back():
    assert body(lambda a: [a.float().bfloat16() * 2], x(dtype=torch.bfloat16)) == [
        "mul = mul.Tensor(primals_1, 2)",
        "return (mul,)",
    ]
    assert len(body(lambda a: [a.bfloat16().float() * 2], x())) == 4  # loses digits: stays


def test_numbers_that_change_nothing():
    assert body(lambda a: [((a * 1 + 0) / 1 - 0) ** 1 * torch.ones(4) + torch.zeros(3, 4) + 2], x()) == [
        "add_2 = add.Tensor(primals_1, 2)",
        "return (add_2,)",
    ]


def test_constants_are_computed():
    assert body(lambda a: [a * ((torch.ones(4) + 1) * 3)], x()) == [
        "mul = full.default([4], 6.0, dtype = torch.float32, device = device(type='cpu'), pin_memory = False)",
        "mul_1 = mul.Tensor(primals_1, mul)",
        "return (mul_1,)",
    ]


def test_outputs_stay_tensors_of_their_own():
    check(lambda a: (a * 1, a + 1, a + 1), x(grad=True))
    check(lambda a: ((a + 1).view(-1), (a + 1).t(), (a * 1).view(-1)), x(grad=True))
    check(lambda a: (a.view(4, 3).view(3, 4), a.float()), x(grad=True))
    check(lambda a: (torch.ones(3), torch.ones(3), torch.zeros(2) + 1), x(grad=True))


def test_gradients_of_views_are_merged():
    shapes = []

    def compiler(gm, inputs):
        shapes.append([str(n.target) for n in gm.graph.nodes if n.op == "call_function"])
        return gm

    aot_function(lambda a: a.view(-1).view(4, 3).sin().view(12).view(2, 6), as_it_is, compiler)(x(grad=True))
    assert shapes[0].count("aten.view.default") <= 3
