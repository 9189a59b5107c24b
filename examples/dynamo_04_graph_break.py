"""Graph breaks: where Python has to run between two graphs, why, and how to avoid it.

python examples/dynamo_04_graph_break.py
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import stator

SEEN: list[Any] = []


def with_print(x: Tensor) -> Tensor:
    a = x + 1
    print("    (the program prints this)")
    return a * 2


def with_item(x: Tensor) -> Tensor:
    total = (x * 2).sum().item()
    if total > 0:
        return x + 1
    return x - 1


def with_branch(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return x - 1


def with_numpy(x: Tensor) -> Tensor:
    a = x + 1
    return a + float(a.numpy().max())


def with_random(x: Tensor) -> Tensor:
    return (x + 1) * random.random()


def append_to_a_list(x: Tensor) -> Tensor:
    SEEN.append(x.shape)  # a change outside: noted, and made again by the replay. No break
    return x + 1


def dynamic_getattr(x: Tensor) -> Tensor:
    wave: Tensor = getattr(x, "si" + "n")()  # what is looked up is guarded. No break
    return wave + 1


def no_break(x: Tensor) -> Tensor:
    for step in range(3):
        x = torch.where(x > 0, x * 2, x - step)
    return x


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    with_print, with_item, with_branch, with_numpy, with_random, append_to_a_list, dynamic_getattr, no_break,
]  # fmt: skip


def main() -> None:
    explained = {fn.__name__: stator.explain(fn)(torch.ones(4)) for fn in FUNCTIONS}

    print(f"\n{'function':<20} {'graphs':>6} {'breaks':>6}   reasons")
    print("-" * 100)
    for name, explanation in explained.items():
        reasons = [f"line {why.lineno}: {why.reason}" for why in explanation.break_reasons] or ["-"]
        counts = f"{explanation.graph_count:>6} {explanation.graph_break_count:>6}"
        print(f"{name:<20} {counts}   {(chr(10) + ' ' * 37).join(reasons)}")

    print("\nIn full, for one of them:\n")
    print(explained["with_print"])


if __name__ == "__main__":
    main()
