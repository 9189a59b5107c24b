"""Training: eager against compiled. Forward, backward, the whole step, and memory kept between the two.

    python examples/aot_03_training_speed.py [--backend NAME] [--steps N]

The model is what a Llama has between its attentions: a norm written out in operations, and a gated linear unit. Such
chains of small operations are what a compiler can put together; the matrix products in between are the same kernels on
both sides, so that a model of hardly anything else wins little.

The backend is "native", stator's own, unless another one is asked for: "inductor" needs a C++ compiler, "aot_eager"
derives and cuts the graphs but runs them operator by operator and wins no time.
Rounds are interleaved, and processor time is measured, so that it matters little what else the machine does; medians
are shown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stator
from stator.autograd import saved_values

WIDTH, INNER, BATCH = 64, 128, 4096


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.gate = nn.Linear(WIDTH, INNER, bias=False)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        added: Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + added


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Norm(), nn.Linear(WIDTH, 10))


def step(model: Callable[[Tensor], Tensor], parameters: Sequence[Tensor], x: Tensor, y: Tensor) -> tuple[float, float]:
    """Seconds of a forward and of its backward."""
    start = time.process_time()
    loss = F.cross_entropy(model(x), y)
    between = time.process_time()
    torch.autograd.grad(loss, parameters)
    return between - start, time.process_time() - between


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", default="native", choices=stator.list_backends())
    parser.add_argument("--steps", type=int, default=30)
    chosen = parser.parse_args()

    torch.set_num_threads(1)  # on a busy machine threads wait for each other, and that would be measured
    model = make_model()
    parameters = list(model.parameters())
    x, y = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))
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
    print(f"\n{'':<12}{'forward':>12}{'backward':>12}{'total':>12}{'memory kept':>18}")
    rows = {}
    for name, rounds in sides.items():
        forward, backward = (statistics.median(part) * 1e3 for part in zip(*rounds, strict=True))
        total = statistics.median(forward + backward for forward, backward in rounds) * 1e3
        kept_bytes = memory.eager_bytes if name == "eager" else memory.bytes
        rows[name] = (forward, backward, total, kept_bytes)
        print(f"{name:<12}{forward:>9.2f} ms{backward:>9.2f} ms{total:>9.2f} ms{kept_bytes:>12,} bytes")
    ratios = [after / before for before, after in zip(rows["eager"], rows["compiled"], strict=True)]
    print(f"{'ratio':<12}{ratios[0]:>12.2f}{ratios[1]:>12.2f}{ratios[2]:>12.2f}{ratios[3]:>18.2f}")


if __name__ == "__main__":
    main()
