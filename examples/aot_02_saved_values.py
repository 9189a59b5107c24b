"""What the forward keeps for the backward: eager autograd against graphs that were cut for it.

    python examples/aot_02_saved_values.py

Eager keeps what each operation asks for. stator sees forward and backward together, keeps the fewest bytes from which
the backward can be computed with cheap operations (a minimum cut), and computes the rest again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stator.autograd import default_partition, saved_values


def chain(x: Tensor) -> Tensor:
    a = torch.sin(x)
    b = a * a
    c = torch.exp(b)
    d = torch.tanh(c)
    return d.sum()


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 256, requires_grad=True)

    print("A chain of elementwise operations, minimum cut:")
    few = saved_values(chain)(x)
    print("\nThe same, keeping what the backward reads, as eager does (default_partition):")
    many = saved_values(chain, partition_fn=default_partition)(x)
    print(f"\nkept: {few.bytes:,} bytes against {many.bytes:,}; eager keeps {few.eager_bytes:,}")

    print("\nA small network, minimum cut:")
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8))
    kept = saved_values(model)(torch.randn(32, 64))
    print(f"\nthe network keeps {kept.bytes / kept.eager_bytes:.2f} of what eager keeps")


if __name__ == "__main__":
    main()
