"""`options.native_random`: random numbers that kernels compute: their statistics, and what repeats them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor

import stator
from stator import events
from stator.backends import native
from stator.codegen import host, kernels
from stator.fuse.loops import Call, Launch, LoopProgram
from stator.fuse.random_numbers import philox

NATIVE = {"native_random": True}


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


def compiled(fn: Callable[..., Any], *args: Any, **how: Any) -> Callable[..., Any]:
    """Recorded: the first call runs for real, with eager's numbers."""
    made = stator.compile(fn, backend="native", options={**NATIVE, **how})
    made(*args)
    return made


def calls(program: LoopProgram) -> list[str]:
    return [step.label for step in program.steps if isinstance(step, Call)]


def test_known_answers() -> None:
    """Those of the authors of Philox 4x32-10."""
    zero, ones = torch.zeros((), dtype=torch.int64), torch.full((), -1)
    assert [int(philox(zero, zero, more)) % 2**64 for more in (False, True)] == [0xE169C58D6627E8D5, 0x9B00DBD8BC57AC4C]
    assert int(philox(ones, zero, False)) != int(philox(zero, ones, False))


def moments(distribution: Any) -> tuple[float, float]:
    mean, variance = distribution.stats(moments="mv")
    return float(mean), float(variance)


COUNT = 60_000
DISTRIBUTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
    "rand": (lambda x: torch.rand(COUNT), scipy.stats.uniform()),
    "rand_like": (lambda x: torch.rand_like(x), scipy.stats.uniform()),
    "rand of float64": (lambda x: torch.rand_like(x.double()), scipy.stats.uniform()),
    "randn": (lambda x: torch.randn(COUNT // 4, 4), scipy.stats.norm()),
    "randn_like of float64": (lambda x: torch.randn_like(x, dtype=torch.float64), scipy.stats.norm()),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1, 3), scipy.stats.uniform(-1, 4)),
    "normal_": (lambda x: torch.empty_like(x).normal_(2, 0.5), scipy.stats.norm(2, 0.5)),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), scipy.stats.expon(scale=0.5)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution(name: str, programs: list[LoopProgram]) -> None:
    fn, distribution = DISTRIBUTIONS[name]
    x = torch.zeros(COUNT)
    made = compiled(fn, x)
    torch.manual_seed(5)
    drawn = [made(x).double().flatten() for _ in range(3)]
    mean, variance = moments(distribution)
    for numbers in drawn:
        assert numbers.numel() == COUNT
        assert abs(float(numbers.mean()) - mean) < 4 * (variance / COUNT) ** 0.5
        assert abs(float(numbers.var()) / variance - 1) < 0.05
        assert scipy.stats.kstest(numbers.numpy(), distribution.cdf).pvalue > 1e-3
    for one, other in ((0, 1), (1, 2), (0, 2)):  # independent of each other, and of their neighbours
        assert abs(float(torch.corrcoef(torch.stack([drawn[one], drawn[other]]))[0, 1])) < 0.02
    assert abs(float(torch.corrcoef(torch.stack([drawn[0][1:], drawn[0][:-1]]))[0, 1])) < 0.02
    (program,) = programs
    assert set(calls(program)) == {"aten.randint.low"} and any(isinstance(step, Launch) for step in program.steps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_evenly_spaced_numbers_below_one(dtype: torch.dtype, programs: list[LoopProgram]) -> None:
    made = compiled(lambda x: torch.rand_like(x), x := torch.zeros(COUNT, dtype=dtype))
    for _ in range(3):
        numbers = made(x)
        assert numbers.dtype is dtype and float(numbers.min()) >= 0 and float(numbers.max()) < 1
        assert abs(float(numbers.double().mean()) - 0.5) < 0.01
    digits = {torch.bfloat16: 8, torch.float16: 11}.get(dtype)
    assert digits is None or numbers.unique().numel() == 1 << digits
    assert len(programs) == 1


def test_integers_and_coins(programs: list[LoopProgram]) -> None:
    def fn(x: Tensor, p: Tensor) -> Any:
        return torch.randint(-3, 5, (COUNT,)), torch.randint_like(x, 7), torch.bernoulli(p), torch.bernoulli(x, 0.25)

    x, p = torch.zeros(COUNT), torch.linspace(0, 1, COUNT)
    made = compiled(fn, x, p)
    for _ in range(3):
        low, like, coins, quarter = made(x, p)
        assert low.dtype is torch.int64 and like.dtype is torch.float32
        for numbers, values in ((low, range(-3, 5)), (like, range(7))):
            counted = [int((numbers == value).sum()) for value in values]
            assert sum(counted) == COUNT and scipy.stats.chisquare(counted).pvalue > 1e-3
        assert set(coins.tolist()) == {0.0, 1.0} and coins[0] == 0 and coins[-1] == 1
        assert abs(float((coins - p).mean())) < 0.01 and abs(float(quarter.mean()) - 0.25) < 0.01
        assert float(coins[: COUNT // 10].mean()) < 0.1 < 0.9 < float(coins[-COUNT // 10 :].mean())
    assert set(calls(programs[0])) == {"aten.randint.low"}


def test_seeds_and_states_repeat_them() -> None:
    def fn(x: Tensor) -> Any:
        return F.dropout(x, 0.3), torch.randn_like(x)

    x = torch.ones(1000)
    made = compiled(fn, x)

    def twice() -> list[Tensor]:
        return [*made(x), *made(x)]

    torch.manual_seed(1)
    first = twice()
    state = torch.get_rng_state()
    more = twice()
    torch.manual_seed(1)
    assert all(map(torch.equal, first, twice()))
    torch.set_rng_state(state)
    assert all(map(torch.equal, more, twice()))
    torch.manual_seed(2)
    assert not any(map(torch.equal, first, twice()))
    assert not torch.equal(first[0], first[2]) and not torch.equal(first[1], first[3]), "two calls differ"
    with torch.random.fork_rng():
        made(x)
    before = torch.get_rng_state()
    made(x)
    assert not torch.equal(before, torch.get_rng_state()), "the generator goes on"
    assert len(made.stator.entries) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_a_dropout_and_its_gradient_have_one_mask(p: float, programs: list[LoopProgram]) -> None:
    def fn(x: Tensor) -> Tensor:
        return F.dropout(x * 2, p) + 1

    x = torch.rand(300, 100) + 0.5
    made = compiled(fn, x.requires_grad_())
    for _ in range(3):
        result = made(x)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        kept = result.detach() != 1
        scale = 2 / (1 - p) if p < 1 else 0.0
        assert abs(float(kept.float().mean()) - (1 - p)) < 0.02
        torch.testing.assert_close(gradient, torch.where(kept, scale, 0.0))
        torch.testing.assert_close(result.detach(), torch.where(kept, x.detach() * scale + 1, 1.0))
    if 0 < p < 1:
        assert [set(calls(program)) for program in programs] == [{"aten.randint.low"}, set()]
        kept_sizes = [programs[1].places[name].sizes for name in programs[1].inputs]
        assert () in kept_sizes and (300, 100) in kept_sizes  # the seed and the tangent: no mask


def test_threads_and_vectors_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1003, 501)
    before, drawn = torch.get_num_threads(), []
    try:
        for width, threads in ((None, 1), (None, 2), (4, 1), (8, 2)):
            if width is not None:
                monkeypatch.setattr(kernels, "vector_width", lambda width=width: width)
            torch.set_num_threads(threads)
            made = compiled(lambda x: torch.rand_like(x) + x, x)
            torch.manual_seed(4)
            drawn.append(made(x))
            made = compiled(lambda x: (torch.rand_like(x) + x.t().t()).sum(), x)
            torch.manual_seed(4)
            torch.testing.assert_close(made(x), drawn[-1].sum())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(drawn[0], other) for other in drawn[1:])


def test_sizes_that_change() -> None:
    made = compiled(lambda x: F.dropout(x, 0.5), torch.ones(64, 3, requires_grad=True), assume_static_by_default=False)
    for rows in (100, 200, 400):
        x = torch.ones(rows, 100, requires_grad=True)
        result = made(x)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        assert torch.equal(gradient, result.detach()) and abs(float(result.detach().mean()) - 1) < 0.1
    assert len(made.stator.entries) == 1  # type: ignore[attr-defined]


def test_without_machine_code_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Tensor) -> Any:
        return F.dropout(x, 0.4), torch.randn(50), torch.rand_like(x)

    x = torch.ones(30, 40)
    made = compiled(fn, x)
    refused: list[Any] = []
    monkeypatch.setattr(host, "is_available", lambda: "not here")
    end = events.subscribe(refused.append, events.NotGenerated)
    try:
        plain = compiled(lambda x: fn(x + 0), x)  # of an equal graph the machine code would be there
        torch.manual_seed(0)
        want = plain(x)
    finally:
        end()
    assert refused
    torch.manual_seed(0)
    for one, other in zip(made(x), want, strict=True):
        torch.testing.assert_close(one, other)


def test_eagers_numbers_without_the_option_and_beside_verify() -> None:
    def fn(x: Tensor) -> Tensor:
        return F.dropout(x, 0.3) + torch.rand_like(x)

    x = torch.ones(500)
    for how in ({"native_random": False}, {"verify": True}):
        made = compiled(fn, x, **how)
        for seed in range(3):
            torch.manual_seed(seed)
            got = made(x)
            torch.manual_seed(seed)
            torch.testing.assert_close(got, fn(x))


def test_functions_compiled_with_and_without_it_share_nothing() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.rand_like(x)

    x = torch.zeros(100)
    mine, eagers = compiled(fn, x), stator.compile(fn, backend="native")
    eagers(x)
    for _ in range(2):
        drawn = []
        for run in (mine, eagers, fn):
            torch.manual_seed(6)
            drawn.append(run(x))
        assert torch.equal(drawn[1], drawn[2]) and not torch.equal(drawn[0], drawn[1])
