"""Functions of floats: at most 2 ulp from a reference in a wider type, with C's special values, at any width."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from calling import Lines, function, module
from reference import OF_LONG_DOUBLE, REFERENCES, SLOW, TWO_ARGUMENTS, Array, double_pairs, doubles, ulps

from stator.codegen import jit, math

LIMIT = 2.0
SPECIALS = [0.0, 1.0, 0.5, 2.0, 3.0, np.inf, np.nan, 1e-45, 1e-38, 1.1754944e-38, 3.4028235e38, 88.72284, 103.97]
SPECIALS += [0.625, 0.921875, 9.1, 131072.0, 131073.0, 1e30, 1e15, 16777216.0, 16777217.0, 1.5707964, 3.1415927]


def samples(seed: int) -> Array:
    """Every exponent with random mantissas, ranges where functions have their shape, and specials, of both signs."""
    random = np.random.default_rng(seed)
    exponents = np.repeat(np.arange(255, dtype=np.uint32), 256) << np.uint32(23)
    spread = (exponents | random.integers(0, 1 << 23, len(exponents), dtype=np.uint32)).view(np.float32)
    shaped = [random.uniform(0, top, 20000).astype(np.float32) for top in (1, 4, 20, 105, 1000)]
    special = np.array(SPECIALS, np.float32)
    with np.errstate(over="ignore"):
        near = np.concatenate([np.nextafter(special, np.float32(0)), np.nextafter(special, np.float32(np.inf))])
    positive = np.concatenate([spread, *shaped, special, near])
    return np.concatenate([positive, -positive])


def pairs() -> tuple[Array, Array]:
    x, y = samples(1), np.random.default_rng(3).permutation(samples(2))
    grid = np.array([*SPECIALS, *(-value for value in SPECIALS)], np.float32)
    bases, powers = np.meshgrid(grid, grid)
    small = np.random.default_rng(4).integers(-20, 21, len(x)).astype(np.float32)
    return np.concatenate([x, bases.ravel(), x]), np.concatenate([y, powers.ravel(), small])


@pytest.mark.parametrize("width", [1, 8, 16])
@pytest.mark.parametrize("name", sorted(math.F32))
def test_float32_is_within_two_ulp(name: str, width: int) -> None:
    given = pairs() if name in TWO_ARGUMENTS else (samples(0),)
    got = function(name, "float", width, len(given))(*given)
    with np.errstate(all="ignore"):
        want = REFERENCES[name](*[values.astype(np.float64) for values in given])
        distance = ulps(got, want)
    worst = int(np.argmax(distance))
    assert distance[worst] <= LIMIT, ([float(values[worst]) for values in given], got[worst], want[worst])


@pytest.mark.parametrize("name", sorted(math.F64))
def test_float64_is_within_two_ulp(name: str) -> None:
    given = double_pairs(0, 1) if name in TWO_ARGUMENTS else (doubles(0, 1)[:: 8 if name in SLOW else 1],)
    got = function(name, "double", 8, len(given))(*given)
    with np.errstate(all="ignore"):
        want = OF_LONG_DOUBLE[name](*[values.astype(np.longdouble) for values in given])
        distance = ulps(got, want)
    worst = int(np.argmax(distance))
    assert distance[worst] <= LIMIT, ([float(values[worst]) for values in given], got[worst], want[worst])


@pytest.mark.parametrize("kind", ["float", "double"])
def test_every_width_gives_the_same_bits(kind: str) -> None:
    x = samples(5) if kind == "float" else doubles(5, 1)
    for name in sorted((math.F32 if kind == "float" else math.F64) - TWO_ARGUMENTS):
        one, *others = (function(name, kind, width)(x) for width in (1, 4, 16))
        for other in others:
            assert np.array_equal(one, other, equal_nan=True), name


def test_what_is_not_within_the_limit_is_not_offered() -> None:
    assert math.supported("exp", "float") and math.supported("sqrt", "double")
    assert not math.supported("erfc", "double") and not math.supported("exp", "half")
    assert not math.supported("lgamma", "float")
    with pytest.raises(AssertionError):
        math.FUNCTIONS["erfc"](Lines(8), "double", "%x")


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("name", sorted(math.F32))
def test_other_machines_take_the_same_text(name: str, kind: str) -> None:
    if not math.supported(name, kind):
        assert name == "erfc"  # in double
        return
    text = module(name, kind, 4, 2 if name in TWO_ARGUMENTS else 1)
    assert "ret" in jit.assembly(text, jit.Target("aarch64-unknown-linux-gnu", "generic", ""))
    assert "ret" in jit.assembly(text, jit.Target("x86_64-unknown-linux-gnu", "haswell", ""))
