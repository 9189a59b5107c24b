"""Everything that is compared with plain Python at scale: `python tests/conformance`, or `make conformance`.

Each part runs on its own, prints as it goes, and gives the line of numbers that sums it up; those end the output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import cpython

PARTS: dict[str, Callable[[list[str]], tuple[str, bool]]] = {"cpython": cpython.numbers}


def main(wanted: list[str]) -> int:
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
        return 2
    results = [PARTS[name]([]) for name in wanted or PARTS]
    for line, _ in results:
        print(line)
    return 0 if all(good for _, good in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
