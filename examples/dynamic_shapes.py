"""Sizes and numbers that change: compiled for one value first, and once they change, for all.

python examples/dynamic_shapes.py
"""

from __future__ import annotations

import torch
from torch import Tensor

import stator


def scaled(x: Tensor, n: int) -> Tensor:
    y = x**2
    if n >= 0:
        return (n + 1) * y
    return y / n


def main() -> None:
    stator.set_logs(graph_code=True, recompiles=True)
    fast = stator.compile(scaled, backend="eager")
    x = torch.ones(4)
    for n in (2, 3, 7, -2):
        print(f"\n--- scaled(x, {n})", flush=True)
        assert torch.equal(fast(x, n), scaled(x, n))
    stator.set_logs()
    print(f"\nfour values of n: {fast.stator.recordings} recordings, {fast.stator.hits} replays")

    rows = stator.compile(lambda x: (x - x.mean(dim=0)).relu(), backend="eager")
    for length in (5, 8, 11, 200):
        rows(torch.randn(length, 3))
    print(f"\nfour batch sizes: {rows.stator.recordings} recordings; last one for any "
          f"{', '.join(rows.stator.entries[0].symbolic)}")  # fmt: skip

    known = stator.compile(lambda x: x * 2 + x.shape[0], backend="eager", dynamic=True)
    for length in (5, 8, 11):
        known(torch.randn(length))
    print(f"dynamic=True: {known.stator.recordings} recording")

    fixed = stator.compile(lambda x: x * 2 + x.shape[0], backend="eager", dynamic=False)
    for length in (5, 8, 11):
        fixed(torch.randn(length))
    print(f"dynamic=False: {fixed.stator.recordings} recordings")

    print("\nmark_dynamic: the size is to be a symbol, or an error says which line prevents it")
    batch = torch.randn(6, 3)
    stator.mark_dynamic(batch, 0)
    try:
        stator.compile(lambda x: [x * i for i in range(x.shape[0])], backend="eager")(batch)
    except stator.errors.SpecializationError as error:
        print(f"  SpecializationError: {error}")


if __name__ == "__main__":
    main()
