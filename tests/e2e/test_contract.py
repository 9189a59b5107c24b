"""What `stator.compile` takes: names of backends and modes, options; and what it says of those that there are not."""

from __future__ import annotations

import pytest
import torch
from harness import rand
from torch._inductor import config

import stator
from stator.backends.registry import look_up, look_up_with
from stator.errors import UnknownBackend


def fn(x):
    return (x * 2).sin()


@pytest.mark.parametrize("name", ["aot_eager_decomp_partition", "eager_noexcept", "eager_debug"])
def test_backends_of_torchs_registry(name):
    stator.reset()
    compiled = stator.compile(fn, backend=name)
    for seed in range(4):
        x, y = rand(seed).requires_grad_(), rand(seed).requires_grad_()
        result, expected = compiled(x), fn(y)
        torch.autograd.backward([result.sum(), expected.sum()])
        torch.testing.assert_close([result, x.grad], [expected, y.grad])
    assert (compiled.stator.recordings, compiled.stator.hits) == (1, 3)
    assert name not in stator.list_backends()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("inducter", "did you mean 'inductor'"),
        ("nativ", "did you mean 'native'"),
        ("eager_noexept", "'eager_noexcept'"),
    ],
)
def test_a_backend_that_is_near(name, told):
    with pytest.raises(UnknownBackend, match=told):
        stator.compile(fn, backend=name)


def test_a_backend_that_is_far():
    with pytest.raises(UnknownBackend, match=r"there is no backend 'quantum' \(known: aot_eager,") as raised:
        stator.compile(fn, backend="quantum")
    assert "did you mean" not in str(raised.value)


def test_an_option_that_is_far():
    for wrong in (lambda: stator.compile(fn, options={"zzz": 1}), lambda: setattr(stator.options, "zzz", 1)):
        with pytest.raises(AttributeError, match=r"no option 'zzz' \(known: verbose,"):
            wrong()


def test_options_of_torchs_generator():
    seen = []

    def told(x):
        return x * 2 + 1

    make = look_up_with("inductor", "max-autotune-no-cudagraphs", {"max_fusion_size": 7})[1]

    def watching(gm, example_inputs):
        with config.patch({}):
            compiled = make(gm, example_inputs)
        seen.append((make._settings["max_fusion_size"], make._settings["max_autotune"], make._captures))
        return compiled

    compiled = stator.compile(told, backend=watching)
    for seed in range(3):
        torch.testing.assert_close(compiled(rand(seed)), told(rand(seed)))
    assert seen == [(7, True, False)]
    assert look_up_with("inductor", "max-autotune-no-cudagraphs", {"max_fusion_size": 7})[1] is make
    assert look_up("inductor", "max-autotune-no-cudagraphs")[1] is not make


def test_options_of_the_generator_reach_it(monkeypatch):
    from stator.backends import inductor

    reached = []
    generate = inductor._generate

    def looking(*args, **kwargs):
        reached.append(config.max_fusion_size)
        return generate(*args, **kwargs)

    monkeypatch.setattr(inductor, "_generate", looking)
    compiled = stator.compile(
        lambda x: x * 5 - 1, backend="inductor", options={"max_fusion_size": 9, "cache_size_limit": 4}
    )
    for seed in range(3):
        torch.testing.assert_close(compiled(rand(seed)), rand(seed) * 5 - 1)
    assert reached == [9]
    assert compiled.stator._program.settings.cache_size_limit == 4


def test_options_that_nobody_has():
    with pytest.raises(ValueError, match="no option 'max_autotun'; the nearest is 'max_autotune'; nor has stator"):
        stator.compile(fn, backend="inductor", options={"max_autotun": True})
    with pytest.raises(AttributeError, match="no option 'max_autotune'"):
        stator.compile(fn, options={"max_autotune": True})


@pytest.mark.parametrize("wrong", [3, None, "fn", [fn]])
def test_explain_takes_what_can_be_called(wrong):
    with pytest.raises(TypeError, match=r"stator\.explain takes a function"):
        stator.explain(wrong)
