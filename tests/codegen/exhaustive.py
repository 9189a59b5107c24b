"""All 2**32 float32 arguments of one-argument functions, against float64: `python tests/codegen/exhaustive.py exp log`.

With `--double N`: N samples of each exponent of float64, and N times some ten thousand of where functions have their
shape, against long double; of two-argument functions too.

Prints the largest error in ulp and where it is, per function; ends with 1 where one is beyond 2 ulp.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from calling import function
from reference import OF_LONG_DOUBLE, REFERENCES, SLOW, TWO_ARGUMENTS, double_pairs, doubles, ulps

from stator.codegen import math

LIMIT = 2.0


def largest_error(name: str, width: int, step: int) -> tuple[float, float]:
    """The largest distance over every step-th bit pattern, and the argument that has it."""
    run = function(name, "float", width)
    worst, argument, chunk, start = 0.0, 0.0, step << 22, time.monotonic()
    for first in range(0, 1 << 32, chunk):
        bits = np.arange(first, min(first + chunk, 1 << 32), step, dtype=np.uint64).astype(np.uint32)
        x = bits.view(np.float32)
        with np.errstate(all="ignore"):
            distance = ulps(run(x), REFERENCES[name](x.astype(np.float64)))
        at = int(np.argmax(distance))
        if distance[at] > worst:
            worst, argument = float(distance[at]), float(x[at])
        done = 100 * (first + chunk) / (1 << 32)
        print(f"\r{name} {done:5.1f} % {time.monotonic() - start:6.1f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return worst, argument


def largest_error_in_double(name: str, width: int, each: int) -> tuple[float, float]:
    """The largest distance over the samples, and the (first) argument that has it."""
    given = double_pairs(1, each) if name in TWO_ARGUMENTS else (doubles(1, each)[:: 64 if name in SLOW else 1],)
    with np.errstate(all="ignore"):
        want = OF_LONG_DOUBLE[name](*[values.astype(np.longdouble) for values in given])
        distance = ulps(function(name, "double", width, len(given))(*given), want)
    at = int(np.argmax(distance))
    return float(distance[at]), float(given[0][at])


def main() -> int:
    names = sorted(math.F32 - TWO_ARGUMENTS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", default=[], help=f"functions; all of them without a name: {' '.join(names)}"
    )
    parser.add_argument("--width", type=int, default=16, help="lanes of a vector (default 16)")
    parser.add_argument("--step", type=int, default=1, help="only every n-th bit pattern, for a quick look")
    parser.add_argument("--double", type=int, default=0, metavar="N", help="float64 instead, sampled (see above)")
    arguments = parser.parse_args()
    beyond = False
    for name in arguments.names or (sorted(math.F64) if arguments.double else names):
        if arguments.double:
            worst, argument = largest_error_in_double(name, arguments.width, arguments.double)
        else:
            worst, argument = largest_error(name, arguments.width, arguments.step)
        beyond |= worst > LIMIT
        print(f"{name:8} {worst:.3f} ulp at {argument!r}", flush=True)
    return int(beyond)


if __name__ == "__main__":
    sys.exit(main())
