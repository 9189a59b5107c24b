"""Training: eager against compiled. Forward, backward, the whole step, and memory kept between the two.

    python examples/aot_03_training_speed.py [--backend NAME] [--steps N]

The default is the best backend there is: "native" once stator has it, now "inductor", which needs a C++ compiler; where
there is none, "aot_eager", which derives and cuts the graphs but runs them operator by operator and wins no time.
Rounds are interleaved, so that whatever else the machine does meets both sides alike; medians are shown.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stator
from stator.autograd import saved_values


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10))


def best_backend() -> str:
    if "native" in stator.list_backends():
        return "native"
    return "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"


def step(model: Callable[[Tensor], Tensor], parameters: Sequence[Tensor], x: Tensor, y: Tensor) -> tuple[float, float]:
    """Seconds of a forward and of its backward."""
    start = time.perf_counter()
    loss = F.cross_entropy(model(x), y)
    between = time.perf_counter()
    torch.autograd.grad(loss, parameters)
    return between - start, time.perf_counter() - between


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", default=best_backend(), choices=stator.list_backends())
    parser.add_argument("--steps", type=int, default=30)
    chosen = parser.parse_args()

    torch.set_num_threads(1)  # on a busy machine threads wait for each other, and that would be measured
    model = make_model()
    parameters = list(model.parameters())
    x, y = torch.randn(512, 256), torch.randint(0, 10, (512,))
    compiled = stator.compile(model, backend=chosen.backend)

    torch.manual_seed(1)
    eager_loss = F.cross_entropy(model(x), y)
    start = time.perf_counter()
    compiled(x)
    print(f"backend {chosen.backend!r}: first call, compiling included, {time.perf_counter() - start:.2f} s")
    torch.manual_seed(1)
    difference = (F.cross_entropy(compiled(x), y) - eager_loss).abs().item()
    print(f"losses agree: {difference < 1e-4} (difference {difference:.1e})")

    sides: dict[str, list[tuple[float, float]]] = {"eager": [], "compiled": []}
    for number in range(chosen.steps + 3):
        for name, side in (("eager", model), ("compiled", compiled)):
            spent = step(side, parameters, x, y)
            if number >= 3:
                sides[name].append(spent)

    print("\nkept for the backward:")
    memory = saved_values(model)(x)
    print(f"\n{'':<12}{'forward':>12}{'backward':>12}{'total':>12}{'memory kept':>16}")
    rows = {}
    for name, rounds in sides.items():
        forward, backward = (statistics.median(part) * 1e3 for part in zip(*rounds, strict=True))
        total = statistics.median(forward + backward for forward, backward in rounds) * 1e3
        kept_bytes = memory.eager_bytes if name == "eager" else memory.bytes
        rows[name] = (forward, backward, total, kept_bytes)
        print(f"{name:<12}{forward:>9.2f} ms{backward:>9.2f} ms{total:>9.2f} ms{kept_bytes:>10,} bytes")
    ratios = [after / before for before, after in zip(rows["eager"], rows["compiled"], strict=True)]
    print(f"{'ratio':<12}{ratios[0]:>12.2f}{ratios[1]:>12.2f}{ratios[2]:>12.2f}{ratios[3]:>16.2f}")


if __name__ == "__main__":
    main()
