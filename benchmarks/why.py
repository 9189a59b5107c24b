"""What a user feels: stator beside torch.compile, each in processes of its own.

    python benchmarks/why.py [--rounds 5]

A training step of a small transformer (forward and loss compiled, then backward), on one thread, with the default
backend of each and empty caches. Prints the table that README opens with:

| row | what is measured |
| --- | --- |
| first call | processor time of the first step, the forward of which is compiled then, C++ compilers included |
| second process | the same in another process, which finds the caches of the first one |
| later calls | processor time of a step, the median of some rounds, as a ratio to eager's in the same process |
| memory | the most that the process held, beyond what it held before the first step |
| 33 batches and lengths | graphs of a walk over them in a process of its own, and what it takes from `compile` on |
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

CONTENDERS = ("torch.compile", "stator")


# ------------------------------------------------------------------------------------------- in a process of its own


def processor_time() -> float:
    """Of this process and of the compilers that it has called."""
    return sum(os.times()[:4])


def measure(contender: str, rounds: int) -> dict[str, Any]:
    """All figures of one contender, but those of the walk."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)

    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.Linear(32, 128), nn.TransformerEncoder(layer, 2), nn.Linear(128, 8))

    def step(model: Callable[..., Any], batch: int, length: int) -> None:
        model(torch.ones(batch, length, 32)).square().mean().backward()

    plain, model = build(), build()
    step(plain, 8, 64)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = processor_time()
    fast = compiled(contender, model)
    step(fast, 8, 64)
    found: dict[str, Any] = {"first": processor_time() - start}
    step(fast, 8, 64)
    found["memory"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024
    spent: dict[str, list[float]] = {"eager": [], "compiled": []}
    for _ in range(rounds):
        for name, each in (("eager", plain), ("compiled", fast)):
            begun = time.process_time()
            for _ in range(5):
                step(each, 8, 64)
            spent[name].append((time.process_time() - begun) / 5)
    found["later"] = statistics.median(spent["compiled"]) / statistics.median(spent["eager"])

    return found


def compiled(contender: str, module: Any) -> Callable[..., Any]:
    if contender == "stator":
        import stator

        return stator.compile(module)  # type: ignore[no-any-return]
    import torch

    return torch.compile(module)


def measure_walk(contender: str) -> dict[str, Any]:
    """Graphs and time of a walk over batches and lengths, in a process that has compiled nothing before."""
    import torch
    from torch import nn

    torch.set_num_threads(1)

    class Walked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(torch.relu(self.linear(x)) + x)  # type: ignore[no-any-return]

    start = processor_time()
    walker: Any = compiled(contender, Walked())
    for number in range(33):
        walker(torch.ones(2 + number % 7, 3 + number % 11, 32))
    spent = processor_time() - start
    if contender == "stator":
        return {"walk": spent, "graphs": walker.stator.recordings}
    from torch._dynamo.utils import counters

    return {"walk": spent, "graphs": counters["stats"]["unique_graphs"]}


def run(contender: str, rounds: int, cache: str, *more: str) -> dict[str, Any]:
    environment = {
        **os.environ,
        **{"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": cache, "STATOR_CACHE_DIR": cache},
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(cache, "inductor"),
    }
    command = [sys.executable, __file__, "--contender", contender, "--rounds", str(rounds), *more]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


# ---------------------------------------------------------------------------------------------------- the table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--walk", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contender:
        print(json.dumps(measure_walk(given.contender) if given.walk else measure(given.contender, given.rounds)))
        return
    first, second, walks = {}, {}, {}
    for contender in CONTENDERS:
        with tempfile.TemporaryDirectory() as cache:
            first[contender] = run(contender, given.rounds, cache)
            second[contender] = run(contender, given.rounds, cache)
        with tempfile.TemporaryDirectory() as cache:
            walks[contender] = run(contender, given.rounds, cache, "--walk")
    rows = [
        ("first call", [f"{first[c]['first']:.1f} s" for c in CONTENDERS]),
        ("first call, second process", [f"{second[c]['first']:.1f} s" for c in CONTENDERS]),
        ("later calls, eager = 1", [f"{second[c]['later']:.2f}" for c in CONTENDERS]),
        ("memory for compiling and the step", [f"{first[c]['memory']:.0f} MiB" for c in CONTENDERS]),
        (
            "33 batches and lengths, compiling included",
            [f"{walks[c]['graphs']} graphs, {walks[c]['walk']:.1f} s" for c in CONTENDERS],
        ),
    ]
    print("| | torch.compile | stator |\n| --- | --- | --- |")
    for name, cells in rows:
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
