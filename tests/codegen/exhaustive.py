"""All 2**32 float32 arguments of one-argument functions, against float64: `python tests/codegen/exhaustive.py exp log`.

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
from reference import REFERENCES, TWO_ARGUMENTS, ulps

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


def main() -> int:
    names = sorted(math.F32 - TWO_ARGUMENTS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", default=[], help=f"functions; all of them without a name: {' '.join(names)}"
    )
    parser.add_argument("--width", type=int, default=16, help="lanes of a vector (default 16)")
    parser.add_argument("--step", type=int, default=1, help="only every n-th bit pattern, for a quick look")
    arguments = parser.parse_args()
    beyond = False
    for name in arguments.names or names:
        worst, argument = largest_error(name, arguments.width, arguments.step)
        beyond |= worst > LIMIT
        print(f"{name:8} {worst:.3f} ulp at {argument!r}", flush=True)
    return int(beyond)


if __name__ == "__main__":
    sys.exit(main())
