"""A compiled function and model, called in processes of a forkserver: `python in_children.py` prints "right".

The server imports this module under its own name and records there; its children inherit the recordings, and make more.
"""

from __future__ import annotations

import multiprocessing
import os

import torch
from torch import nn

import stator

SCALE = [2.0]


@stator.compile(backend="eager")
def compiled(x: torch.Tensor, n: int) -> torch.Tensor:
    total = torch.zeros_like(x)
    for power in range(n):
        total = total + x**power * SCALE[0]
    return total


def tensor(seed: int) -> torch.Tensor:
    return torch.full((2, 4), float(seed))


polynomial = compiled.__wrapped__
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval()
compiled_model = stator.compile(model, backend="eager")

if __name__ == "in_children":
    torch.set_num_threads(1)
    for _seed in range(8):
        compiled(tensor(_seed), 3)
        compiled_model(tensor(_seed))


def job(function: object, number: int, results: object) -> None:
    """In a child. What was changed outside since the recording is noticed there, and nothing of it elsewhere."""
    import in_children as here

    right = [function is here.compiled, compiled.stator.recordings == 1]  # pickled by name; inherited
    for seed in (1, 2, 3):
        right.append(torch.equal(compiled(tensor(seed), 3), polynomial(tensor(seed), 3)))
        right.append(torch.equal(compiled_model(tensor(seed)), model(tensor(seed))))
    right.append((compiled.stator.recordings, compiled_model.stator.recordings) == (1, 1))
    SCALE[0] = float(number)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    model[1].eps = 0.5
    for seed in (1, 2, 3):
        right.append(torch.equal(compiled(tensor(seed), 3), polynomial(tensor(seed), 3)))
        right.append(torch.equal(compiled(tensor(seed), 4), polynomial(tensor(seed), 4)))
        right.append(torch.equal(compiled_model(tensor(seed)), model(tensor(seed))))
    right.append((compiled.stator.recordings, compiled_model.stator.recordings) == (3, 2))
    results.put((os.getpid(), right))  # type: ignore[attr-defined]


def main() -> None:
    import in_children as here

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["in_children"])
    results = context.Queue()
    children = [context.Process(target=here.job, args=(here.compiled, number, results)) for number in (3, 4, 5)]
    for child in children:
        child.start()
    answers = [results.get(timeout=120) for _ in children]
    for child in children:
        child.join(timeout=60)
    assert all(child.exitcode == 0 for child in children)
    assert len({pid for pid, _ in answers} | {os.getpid()}) == 4
    assert all(all(right) for _, right in answers), answers
    print("right")


if __name__ == "__main__":
    main()
