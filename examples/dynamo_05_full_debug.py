"""A whole life: compile, cache hit, another shape, compile again. Its log answers these questions:

python examples/dynamo_05_full_debug.py > debug_log.txt 2>&1

grep CONVERT_FRAME debug_log.txt            which functions were watched?
grep -A 20 "Bytecode:" debug_log.txt        what ran, and what runs now?
grep -A 10 "Guard" debug_log.txt            what was assumed?
grep -A 30 "FX Graph" debug_log.txt         what was captured?
grep -A 1 "Recompiling" debug_log.txt       why was it compiled again?
grep -A 4 "Graph break" debug_log.txt       where did the graph break, and why?
grep -A 5 "Saved for" debug_log.txt         what is kept for the backward?
grep "ran in" debug_log.txt                 which compiled graphs ran, and how long did each take?
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import stator


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(8, 16)
        self.linear2 = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.linear1(x))
        print("    (the model prints this)", flush=True)
        result: Tensor = self.linear2(hidden)
        return result


def call(model: nn.Module, what: str, x: Tensor) -> None:
    print(f"\n===== {what}: {tuple(x.shape)}", flush=True)
    model(x).sum().backward()


def main() -> None:
    torch.manual_seed(0)
    model = stator.compile(Model(), backend="aot_eager")
    with stator.options.patch(verbose=True):
        call(model, "first call, compiles", torch.randn(4, 8))
        call(model, "same shape, cache hit", torch.randn(4, 8))
        call(model, "another batch size, compiles again with a symbol for it", torch.randn(6, 8))
        call(model, "a third batch size, served by the same graph", torch.randn(9, 8))
    print(f"\nrecorded {model.stator.recordings} times, {model.stator.hits} calls served by replays alone")


if __name__ == "__main__":
    main()
