"""What runs at a break finds torch as the program left it: our mode is off. So torch.compile can be called there."""

from __future__ import annotations

import pytest
import torch
from harness import World, check, rand
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import stator

modes = torch._C._len_torch_function_stack


def test_no_mode_of_ours_at_a_break():
    def world():
        log = []

        @stator.disable
        def look():
            log.append(modes())

        def fn(x):
            y = x * 2
            look()
            return y + 1

        return World(fn=fn, log=log)

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3))], expect=None, graphs=2)


def test_no_mode_of_ours_behind_the_end_of_a_recording():
    """The recording ends inside of an operation, and cannot go on behind it."""

    def world():
        log = []

        class Items(list):
            def __iter__(self):
                for item in list.__iter__(self):
                    yield item.item()

        def look():
            log.append(modes())

        def fn(x):
            y = x * 2
            total = sum(Items([y[0], y[1]]))
            stator.graph_break()
            look()
            return y + total

        return World(fn=fn, log=log)

    calls = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3)), lambda w: w.fn(rand(4))]
    check(world, calls, expect=None)


def test_a_mode_of_the_program_is_left_alone():
    class Twice(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.sin else result

    def world():
        def fn(x):
            y = torch.sin(x)
            with Twice():
                y = y + torch.sin(x)
                stator.graph_break()
                y = y + torch.sin(x)
            return y + torch.sin(x)

        return World(fn=fn)

    check(
        world,
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3))],
        expect=None,
        unreplayed="unknown-callable",
    )


def rel(score, b, h, q, k):
    return score + (q - k)


def causal(b, h, q, k):
    return q >= k


@pytest.mark.parametrize("variant", ["plain", "score", "mask"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_flex_attention(variant, backend):
    mask = create_block_mask(causal, 1, 2, 16, 16, device="cpu")
    chosen = {"plain": {}, "score": {"score_mod": rel}, "mask": {"block_mask": mask}}[variant]

    def fn(q, k, v):
        return flex_attention(q * 2, k, v, **chosen) + 1

    compiled = stator.compile(fn, backend=backend)
    for seed in range(4):
        q, k, v = (rand(seed * 3 + number, 1, 2, 16, 8) for number in range(3))
        torch.testing.assert_close(compiled(q, k, v), fn(q, k, v), rtol=0, atol=0)
    assert [why.id for why in compiled.stator.break_reasons] == ["other-compiler"]
    assert len(compiled.stator.graphs) == 2 and compiled.stator.hits == 3


def test_a_block_mask_is_made_inside():
    def fn(q, k, v):
        mask = create_block_mask(causal, 1, 2, 16, 16, device="cpu")
        return flex_attention(q * 2, k, v, block_mask=mask) + 1

    compiled = stator.compile(fn, backend="eager")
    for seed in range(4):
        q, k, v = (rand(seed * 3 + number, 1, 2, 16, 8) for number in range(3))
        assert torch.equal(compiled(q, k, v), fn(q, k, v))
    assert compiled.stator.hits == 3
