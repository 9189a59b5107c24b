"""Warm-up: one call with a dummy input compiles everything it touches, before the first real batch comes.

    python examples/warm_up.py

Backend "aot_eager": compiling means capturing and deriving the backward. With a backend that generates code the first
call takes seconds, and warming up matters more.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stator


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8)]
    return nn.Sequential(*layers, nn.Linear(64, 4)).eval()


def milliseconds(model: nn.Module, x: Tensor) -> float:
    start = time.perf_counter()
    with torch.no_grad():
        model(x)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    torch.set_num_threads(1)  # on a busy machine threads wait for each other, and that would be measured
    model = stator.compile(make_model(), backend="aot_eager")
    print(f"warm-up with a dummy input:  {milliseconds(model, torch.zeros(32, 64)):8.2f} ms (watched and compiled)")

    # A fixed batch size: without drop_last the last batch has another size and is compiled for.
    data = TensorDataset(torch.randn(100, 64))
    for number, (batch,) in enumerate(DataLoader(data, batch_size=32, drop_last=True), 1):
        print(f"batch {number} of {tuple(batch.shape)}:         {milliseconds(model, batch):8.2f} ms")
    print(f"compilations after the warm-up: {model.stator.recordings - 1}")

    print("\nand now nothing may be compiled any more:")
    with stator.set_stance("fail_on_recompile"):
        milliseconds(model, torch.randn(32, 64))
        print("  a batch of 32: served")
        try:
            milliseconds(model, torch.randn(7, 64))
        except RuntimeError as error:
            print(f"  a batch of 7: {error}")


if __name__ == "__main__":
    main()
