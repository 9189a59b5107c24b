"""Guards on modules and on torch's own state, changes that must stay hits, and the limit of recordings."""

from __future__ import annotations

import contextlib

import pytest
import torch
from harness import World, check, check_noticed, rand
from torch import nn

import stator

# ---- modules ------------------------------------------------------------------------------------


def model_world():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.1), nn.Dropout(0.0))
    return World(fn=model, model=model, linear=model[0])


def with_model(change):
    def run(w):
        change(w)
        return w.fn(rand(1, 2, 4))

    return run


@pytest.mark.parametrize(
    ("normal", "changed"),
    [
        (lambda w: w.model.train(), lambda w: w.model.eval()),
        (
            lambda w: setattr(w.model[1], "negative_slope", 0.1),
            lambda w: setattr(w.model[1], "negative_slope", 0.2),
        ),
        (lambda w: w.model.__setitem__(0, w.linear), lambda w: w.model.__setitem__(0, nn.Identity())),
        (
            lambda w: w.model.__setitem__(0, w.linear),
            lambda w: w.model.__setitem__(0, nn.Linear(4, 4, bias=False)),
        ),
        (lambda w: w.model.double().float(), lambda w: w.model.append(nn.Tanh())),
        (lambda w: w.linear.weight.requires_grad_(True), lambda w: w.linear.weight.requires_grad_(False)),
    ],
    ids=["training flag", "attribute", "module swapped", "bias gone", "module added", "frozen"],
)
def test_changed_module(normal, changed):
    seen = check(model_world, [with_model(normal), with_model(normal), with_model(changed)], expect="miss hit miss")
    assert str(seen.world.fn.stator.last_miss)


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("place", ["root", "leaf"])
def test_hook_added(kind, place):
    hooks = {
        "register_forward_hook": lambda module, args, output: output * 2,
        "register_forward_pre_hook": lambda module, args: (args[0] * 2,),
    }

    def with_hook(w):
        module = w.model if place == "root" else w.linear
        handle = getattr(module, kind)(hooks[kind])
        try:
            return w.fn(rand(1, 2, 4))
        finally:
            handle.remove()

    check_noticed(model_world, lambda w: w.fn(rand(1, 2, 4)), with_hook)


def test_global_hook_added():
    def with_hook(w):
        handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output + 1)
        try:
            return w.fn(rand(1, 2, 4))
        finally:
            handle.remove()

    check_noticed(model_world, lambda w: w.fn(rand(1, 2, 4)), with_hook)


# ---- torch's own state --------------------------------------------------------------------------


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "context",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: default_dtype(torch.float64),
    ],
    ids=["grad mode", "inference mode", "autocast", "default dtype"],
)
def test_changed_state_of_torch(context):
    def fn(x):
        return x @ torch.ones(4, 2, dtype=x.dtype), torch.zeros(2)

    def inside(w):
        x = rand(1, 3, 4, requires_grad=True)
        with context():
            return w.fn(x)

    def outside(w):
        return w.fn(rand(1, 3, 4, requires_grad=True))

    check_noticed(lambda: World(fn=fn), outside, inside)


def test_changed_autocast_dtype():
    def cast(dtype):
        def run(w):
            with torch.autocast("cpu", dtype=dtype):
                return w.fn(rand(1, 3, 4), rand(2, 4, 3))

        return run

    check_noticed(lambda: World(fn=torch_matmul), cast(torch.bfloat16), cast(torch.float16))


def torch_matmul(x, y):
    return x @ y


# ---- changes that have nothing to do with the function ------------------------------------------


class Holder:
    def __init__(self):
        self.used, self.unused = 2.0, 1

    def scaled(self, x):
        return x * self.used


UNRELATED = 0


@pytest.mark.parametrize(
    "change",
    [
        lambda w: setattr(w.holder, "unused", 99),
        lambda w: setattr(w.holder, "brand_new", [1]),
        lambda w: globals().__setitem__("UNRELATED", 5),
        lambda w: w.table.__setitem__("other", "changed"),
        lambda w: torch.manual_seed(77),
        lambda w: w.weight.data.mul_(2),
        lambda w: setattr(w.holder, "used", 4.0 / 2),
    ],
    ids=["attribute", "new attribute", "global", "dict value", "seed", "tensor values", "equal value"],
)
def test_unrelated_changes_stay_hits(change):
    def world():
        holder, table, weight = Holder(), {"scale": 3, "other": "x"}, rand(9)
        return World(fn=lambda x: holder.scaled(x) * table["scale"] + weight, holder=holder, table=table, weight=weight)

    def changed(w):
        change(w)
        return w.fn(rand(3))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), changed], expect="miss hit hit")


def test_other_functions_compiled_in_between_change_nothing():
    def other(w):
        assert torch.equal(stator.compile(lambda x: x - 1, backend="eager")(rand(1)), rand(1) - 1)
        return w.fn(rand(2))

    check(
        lambda: World(fn=lambda x: x + 1),
        [lambda w: w.fn(rand(1)), other, lambda w: w.fn(rand(3))],
        expect="miss hit hit",
    )


# ---- many recordings ----------------------------------------------------------------------------


def test_each_of_eight_recordings_is_found_again():
    calls = [lambda w, n=n, s=s: w.fn(rand(s), n) for s in (1, 2) for n in range(8)]
    with stator.options.patch(dynamic_shapes=False):
        check(lambda: World(fn=lambda x, n: x * n), calls, expect=" ".join(["miss"] * 8 + ["hit"] * 8))


def test_over_the_limit_the_function_runs_plain_with_one_warning_that_names_the_guard():
    fn = stator.compile(lambda x, n: x * n, backend="eager", dynamic=False)
    for n in range(8):
        fn(rand(1), n)
    with pytest.warns(Warning, match=r"\bn\b") as caught:
        for n in range(8, 11):
            assert torch.equal(fn(rand(1), n), rand(1) * n)
    assert len([w for w in caught if "stator" in f"{w.category.__module__} {w.message}"]) == 1
    assert fn.stator.recordings == 8
    assert fn.stator.plain == 3
    assert torch.equal(fn(rand(2), 3), rand(2) * 3)
    assert fn.stator.hits == 1
