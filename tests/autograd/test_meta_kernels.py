"""Tracing does not import torch's own compiler, and takes nothing from it once it is there."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, torch, stator
import torch.nn.functional as F

def f(x, w):
    return F.layer_norm(F.gelu(x @ w), (8,)).mean()

x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8)
for backend in ("aot_eager", "native"):
    compiled = stator.compile(f, backend=backend)
    for _ in range(3):
        compiled(x, w).backward()
assert "torch._dynamo" not in sys.modules, "imported"
import torch._dynamo
from torch._refs import add
from stator.autograd import meta_kernels
wrapper, = meta_kernels._wrappers(add)
torch.ops.aten.add.Tensor(torch.empty(2, device="meta"), 1)
add(torch.empty(2), 1)
inner = wrapper.__closure__[wrapper.__code__.co_freevars.index("fn")].cell_contents
kept = vars(inner)["__dynamo_disable"]
assert kept.__module__ != "stator.autograd.meta_kernels", "the wrapper does not do what it was made for"
seen = []
def count(gm, example_inputs):
    seen.append(gm)
    return gm.forward
sizes = stator.compile(f, backend=count)
for batch in range(2, 9):
    assert torch.equal(sizes(torch.ones(batch, 8), w), f(torch.ones(batch, 8), w))
assert len(seen) == 2, seen
assert "torch.export._trace" not in sys.modules, "torch's tracer, to say which line assumes something of a size"
print("fine")
"""


def test_torchs_compiler_is_not_imported() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "fine", run.stderr[-2000:]
