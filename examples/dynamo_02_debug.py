"""What happens inside: the log of one function from its first call on.

    python examples/dynamo_02_debug.py

With options.verbose, stator logs every watched frame (CONVERT_FRAME), the bytecode it ran as and the replay that
repeats it (Bytecode:), what was assumed (Guards:), what was captured (FX Graph:), and every cache hit and miss.
The same without a change to the program: STATOR_VERBOSE=1 python program.py
"""

from __future__ import annotations

import torch
from torch import Tensor

import stator


def debug_me(x: Tensor, scale: float) -> Tensor:
    y = x * scale
    if scale > 1:
        y = y.relu()
    return y.sum()


def main() -> None:
    fast = stator.compile(debug_me, backend="eager")
    x = torch.arange(6.0) - 2
    with stator.options.patch(verbose=True):
        print("--- first call: watched, recorded, compiled", flush=True)
        fast(x, 2.0)
        print("--- second call: the guards hold", flush=True)
        fast(x + 1, 2.0)
        print("--- third call: another number, so a guard fails", flush=True)
        fast(x, 0.5)
    print(f"recordings: {fast.stator.recordings}, hits: {fast.stator.hits}")


if __name__ == "__main__":
    main()
