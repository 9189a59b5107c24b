"""Single kernels on a GPU: ours, eager's, and torch.compile's, each with a cold L2 cache.

python benchmarks/gpu_kernels.py [name ...]; prints milliseconds (median), and what part of the memory's speed that is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import stator
from stator.codegen import gpu_shape

Function = Callable[..., Any]


def chain(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh") * torch.sigmoid(y) + x


def long_chain(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(6):
        x = chain(x, y)
    return x


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def bf16_rms_norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return -torch.log_softmax(x, -1).gather(1, target[:, None]).mean()


def _cases(quick: bool) -> dict[str, tuple[Function, tuple[Tensor, ...]]]:
    def r(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, device="cuda").to(dtype)

    bf16 = torch.bfloat16
    cases: dict[str, tuple[Function, tuple[Tensor, ...]]] = {}
    for label, n in (("1e6", 2**20), ("1e8", 2**27)):
        rows = n // 1024
        cases[f"add {label}"] = (lambda x, y: x + y, (r(n), r(n)))
        cases[f"chain {label}"] = (chain, (r(n), r(n)))
        cases[f"chain bf16 {label}"] = (chain, (r(n, dtype=bf16), r(n, dtype=bf16)))
        cases[f"softmax 1024 {label}"] = (lambda x: torch.softmax(x, -1), (r(rows, 1024),))
        cases[f"layer norm 1024 {label}"] = (layer_norm, (r(rows, 1024), r(1024), r(1024)))
        cases[f"rms norm 4096 {label}"] = (rms_norm, (r(rows // 4, 4096), r(4096)))
        cases[f"rms norm bf16 4096 {label}"] = (bf16_rms_norm, (r(rows // 4, 4096, dtype=bf16), r(4096, dtype=bf16)))
        cases[f"column sum {label}"] = (lambda x: x.sum(0), (r(rows // 2, 2048),))
        cases[f"full sum {label}"] = (lambda x: x.sum(), (r(n),))
    cases["chain x6 64M"] = (long_chain, (r(2**26) * 0.1, r(2**26) - 3))
    cases["softmax 128"] = (lambda x: torch.softmax(x, -1), (r(2**19, 128),))
    cases["softmax 768 bf16"] = (lambda x: torch.softmax(x, -1), (r(2**16, 768, dtype=bf16),))
    cases["layer norm 768"] = (layer_norm, (r(2**16, 768), r(768), r(768)))
    cases["softmax 32768"] = (lambda x: torch.softmax(x, -1), (r(2048, 32768),))
    cases["softmax 50257"] = (lambda x: torch.softmax(x, -1), (r(2048, 50257),))
    cases["cross entropy 50257"] = (cross_entropy, (r(2048, 50257), torch.randint(0, 50257, (2048,), device="cuda")))
    cases["column sum bf16"] = (lambda x: x.sum(0), (r(16384, 4096, dtype=bf16),))
    cases["transpose 8192"] = (lambda x: x.t().contiguous() + 1, (r(8192, 8192),))
    return {k: v for k, v in cases.items() if not quick or "1e8" not in k}


def milliseconds(run: Callable[[], Any], repeats: int) -> float:
    """Device time of one run, replayed from a CUDA graph, with the L2 cache overwritten before it."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    flush = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
    times: list[float] = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def moved_bytes(inputs: Sequence[Tensor], result: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in (*inputs, result))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--set", nargs="*", default=[], help="NAME=NUMBER of the cost model (codegen/gpu_shape.py)")
    options = parser.parse_args()
    for name, number in (text.split("=") for text in options.set):
        assert hasattr(gpu_shape, name), name
        setattr(gpu_shape, name, int(number))
    if not torch.cuda.is_available():
        sys.exit("needs a GPU")
    print(f"{'kernel':28} {'eager':>9} {'compiled':>9} {'ours':>9} {'ratio':>6} {'GB/s':>6} {'ms to make':>10}  error")
    ratios = []
    for name, (function, inputs) in _cases(options.quick).items():
        if options.names and not any(part in name for part in options.names):
            continue
        want = function(*inputs)
        stator.reset()
        native_function = stator.compile(function, backend="native", dynamic=False)
        start = time.perf_counter()
        got = native_function(*inputs)
        made_ms = (time.perf_counter() - start) * 1e3
        error = float((got.double() - want.double()).abs().max())
        eager = milliseconds(lambda f=function, i=inputs: f(*i), options.repeats)  # type: ignore[misc]
        other = float("nan")
        if not options.no_compile:
            torch._dynamo.reset()
            compiled = torch.compile(function, dynamic=False)
            other = milliseconds(lambda c=compiled, i=inputs: c(*i), options.repeats)  # type: ignore[misc]
        mine = milliseconds(lambda c=native_function, i=inputs: c(*i), options.repeats)  # type: ignore[misc]
        ratios.append(mine / other)
        speed = moved_bytes(inputs, want) / mine / 1e6
        times = f"{eager:9.4f} {other:9.4f} {mine:9.4f} {mine / other:6.2f}"
        print(f"{name:28} {times} {speed:6.0f} {made_ms:10.0f}  {error:.2g}", flush=True)
    print(f"geometric mean of ours / compiled: {statistics.geometric_mean(ratios):.3f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
