"""Whole models on a GPU: eager, torch.compile and stator's native backend; milliseconds a call, and the first call.

python benchmarks/gpu.py [bert gpt2 …] [--modes eager compile reduce native]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import stator


def _bert(batch: int) -> tuple[nn.Module, dict[str, Any]]:
    from transformers import BertConfig, BertModel  # slow to import

    model = BertModel(BertConfig())
    return model, {"input_ids": torch.randint(0, 30000, (batch, 128), device="cuda")}


def _gpt2(batch: int) -> tuple[nn.Module, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(use_cache=False))
    return model, {"input_ids": torch.randint(0, 50000, (batch, 128), device="cuda")}


MODELS = {"bert": _bert, "gpt2": _gpt2}
MODES: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "compile": torch.compile,
    "reduce": lambda f: torch.compile(f, mode="reduce-overhead"),
    "native": lambda f: stator.compile(f, backend="native"),
}


def _measure(run: Callable[[], Any], repeats: int) -> tuple[float, float]:
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times), first


def _row(name: str, batch: int, train: bool, mode: str, repeats: int) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    stator.reset()
    model, inputs = MODELS[name](batch)
    model = model.cuda().train(train)
    if train:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    call = MODES[mode](model)

    def run() -> Any:
        if not train:
            with torch.no_grad():
                return call(**inputs)[0]
        loss = call(**inputs)[0].float().square().mean()
        loss.backward()
        model.zero_grad(set_to_none=True)
        return loss

    torch.cuda.reset_peak_memory_stats()
    time_ms, first = _measure(run, repeats)
    peak = torch.cuda.max_memory_allocated() / 2**20
    with torch.no_grad():
        error = float((call(**inputs)[0].double() - model(**inputs)[0].double()).abs().max())
    work = "train" if train else "infer"
    print(f"{name:6} {batch:3} {work:6} {mode:8} {time_ms:9.3f} {first:8.2f} {peak:8.0f}  {error:.2g}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=["bert"])
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("needs a GPU")
    print(f"{'model':6} {'n':>3} {'work':6} {'mode':8} {'ms':>9} {'first s':>8} {'MiB':>8}  error")
    for name in options.names:
        for batch in options.batches:
            for mode in options.modes:
                _row(name, batch, options.train, mode, options.repeats)


if __name__ == "__main__":
    main()
