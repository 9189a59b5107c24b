"""The simplest program: a function before and after stator.compile, with the same result.

    python examples/dynamo_01_simple.py

Backend "eager" runs the captured graph as it is, so that results agree to the last bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

import stator


def simple(x: Tensor, y: Tensor) -> Tensor:
    a = x + y
    b = a * 2
    return torch.sin(b)


def main() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4), torch.randn(4)
    fast = stator.compile(simple, backend="eager")

    print("Plain:")
    plain = simple(x, y)
    print(f"  result: {plain}")

    print("Compiled with stator.compile:")
    first = fast(x, y)  # runs for real, and is recorded
    second = fast(x, y)  # guards hold: the graph runs
    print(f"  result of the first call:  {first}")
    print(f"  result of the second call: {second}")
    print(f"  calls recorded: {fast.stator.recordings}, calls replayed: {fast.stator.hits}")

    print(f"equal: {torch.equal(plain, first) and torch.equal(plain, second)}")


if __name__ == "__main__":
    main()
