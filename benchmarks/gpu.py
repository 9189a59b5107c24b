"""Whole models on a GPU: eager, torch.compile and its reduce-overhead, stator's native backend and its reduce-overhead.

python benchmarks/gpu.py [bert gpt2 llama vit resnet] [--works infer1 infer8 train8] [--modes eager compile …]

Two rounds, each model in a process of its own. *Cold*: all models at the same time, with empty caches; seconds of the
first call. *Warm*: one after the other, with what the caches then hold; milliseconds a call (the median of calls that
are waited for), the first call of a second process, peak memory, the largest difference from eager. Rows are printed
as they come, and kept in `$OUT/gpu.jsonl` where that is set; the table is the last thing printed.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Callable[[int], dict[str, Any]]]
WORKS = {"infer1": (1, False), "infer8": (8, False), "train8": (8, True)}
MODES = ["eager", "compile", "reduce", "native", "native reduce"]
_GENERATING = ["compile", "reduce", "native", "native reduce"]


def _ids(vocabulary: int) -> Callable[[int], dict[str, Any]]:
    return lambda batch: {"input_ids": torch.randint(0, vocabulary, (batch, 128), device="cuda")}


def _images(name: str) -> Callable[[int], dict[str, Any]]:
    return lambda batch: {name: torch.randn(batch, 3, 224, 224, device="cuda")}


def _language(name: str, sizes: dict[str, Any]) -> nn.Module:
    transformers: Any = importlib.import_module("transformers")  # slow to import
    model, config = {
        "bert": ("BertModel", "BertConfig"),
        "gpt2": ("GPT2LMHeadModel", "GPT2Config"),
        "llama": ("LlamaForCausalLM", "LlamaConfig"),
    }[name]
    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    return made


def _vision(name: str) -> nn.Module:
    models: Any = importlib.import_module("torchvision.models")
    made: nn.Module = getattr(models, name)()
    return made


_LLAMA = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 128256,
    "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True, "use_cache": False,
}  # fmt: skip


def _bert() -> Made:
    return _language("bert", {}), _ids(30000)


def _gpt2() -> Made:
    return _language("gpt2", {"use_cache": False}), _ids(50000)


def _llama() -> Made:
    return _language("llama", _LLAMA).bfloat16(), _ids(128000)


def _vit() -> Made:
    return _vision("vit_b_16"), _images("x")


def _resnet() -> Made:
    return _vision("resnet50"), _images("x")


MODELS = {"bert": _bert, "gpt2": _gpt2, "llama": _llama, "vit": _vit, "resnet": _resnet}


def _compiled(model: nn.Module, mode: str) -> Callable[..., Any]:
    import stator

    torch._dynamo.reset()
    stator.reset()
    ways: dict[str, Callable[[], Any]] = {
        "eager": lambda: model,
        "compile": lambda: torch.compile(model),
        "reduce": lambda: torch.compile(model, mode="reduce-overhead"),
        "native": lambda: stator.compile(model),
        "native reduce": lambda: stator.compile(model, mode="reduce-overhead"),
    }
    made: Callable[..., Any] = ways[mode]()
    return made


def _result(output: Any) -> Tensor:
    found: Tensor = output if isinstance(output, Tensor) else output[0]
    return found


class Work:
    """A model, and what is done with it."""

    def __init__(self, name: str, work: str, mode: str) -> None:
        self.batch, self.train = WORKS[work]
        torch.manual_seed(0)
        with torch.device("cuda"):
            model, inputs = MODELS[name]()
        self.model = model.train(self.train)
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.inputs = inputs(self.batch)
        self.call = _compiled(self.model, mode)

    def run(self, call: Callable[..., Any] | None = None) -> Tensor:
        call = call or self.call
        if not self.train:
            with torch.no_grad():
                return _result(call(**self.inputs))
        loss = _result(call(**self.inputs)).float().square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.model.zero_grad(set_to_none=True)
        return loss.detach()

    def first(self) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        self.run()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def milliseconds(self, seconds: float) -> float:
        for _ in range(6):
            self.run()
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < 15 or (time.perf_counter() < end and len(times) < 200):
            torch.cuda.synchronize()
            start = time.perf_counter()
            self.run()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times)

    def error(self) -> float:
        got, want = self.run().double(), self.run(self.model).double()
        return float((got - want).abs().max())


def _one(name: str, works: list[str], modes: list[str], cold: bool) -> Iterator[dict[str, Any]]:
    for work in works:
        for mode in modes:
            row: dict[str, Any] = {"model": name, "work": work, "mode": mode, "cold": cold}
            try:
                made = Work(name, work, mode)
                row["first s"] = made.first()
                if not cold:
                    for _ in range(3):
                        made.run()
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                    row["ms"] = made.milliseconds(0.7)
                    row["MiB"] = torch.cuda.max_memory_allocated() / 2**20
                    row["error"] = made.error()
                else:
                    made.run()
                    made.run()
                del made
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
            gc.collect()
            torch.cuda.empty_cache()
            yield row


def _start(folder: str, name: str, works: list[str], modes: list[str], phase: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor-{name}",
        "TRITON_CACHE_DIR": f"{folder}/triton-{name}",
        "XDG_CACHE_HOME": f"{folder}/cache-{name}",
        "CUDA_CACHE_PATH": f"{folder}/cuda-{name}",
    }
    command = [sys.executable, __file__, name, "--phase", phase, "--works", *works, "--modes", *modes]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def _rows(process: subprocess.Popen[str], note: Callable[[dict[str, Any]], None], end: float) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            note(json.loads(line))
        if time.perf_counter() > end:
            process.kill()
            print("out of time", flush=True)
    process.wait()


def _table(rows: list[dict[str, Any]]) -> None:
    cold = {(r["model"], r["work"], r["mode"]): r.get("first s") for r in rows if r["cold"]}
    print(f"\n{'model':7}{'work':8}{'mode':14}{'ms':>9}{'/eager':>8}{'/compile':>9}{'/reduce':>9}", end="")
    print(f"{'cold s':>8}{'2nd s':>8}{'MiB':>8}  error")
    times = {(r["model"], r["work"], r["mode"]): r["ms"] for r in rows if "ms" in r}
    for r in rows:
        if r["cold"]:
            continue
        label = f"{r['model']:7}{r['work']:8}{r['mode']:14}"
        if "failed" in r:
            print(f"{label} failed: {r['failed']}")
            continue
        others = [times.get((r["model"], r["work"], m)) for m in ("eager", "compile", "reduce")]
        ratios = "".join(f"{r['ms'] / o:>{w}.2f}" if o else " " * w for o, w in zip(others, (8, 9, 9), strict=True))
        first = cold.get((r["model"], r["work"], r["mode"]))
        colds = f"{first:8.1f}" if first is not None else " " * 8
        print(f"{label}{r['ms']:9.3f}{ratios}{colds}{r['first s']:8.2f}{r['MiB']:8.0f}  {r['error']:.2g}")
    for mine, other in (("native", "compile"), ("native reduce", "reduce")):
        pairs = [(t, times.get((*key[:2], other))) for key, t in times.items() if key[2] == mine]
        ratios_of = [t / o for t, o in pairs if o]
        if ratios_of:
            mean = statistics.geometric_mean(ratios_of)
            print(f"{mine} / {other}: geometric mean {mean:.3f}, worst {max(ratios_of):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--works", nargs="*", default=list(WORKS))
    parser.add_argument("--modes", nargs="*", default=MODES)
    parser.add_argument("--limit", type=float, default=480, help="seconds in all")
    parser.add_argument("--phase", choices=["cold", "warm"], help="of one model, in this process")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("needs a GPU")
    if options.phase:
        for row in _one(options.names[0], options.works, options.modes, options.phase == "cold"):
            print(json.dumps(row), flush=True)
        return
    rows: list[dict[str, Any]] = []
    kept = Path(os.environ["OUT"], "gpu.jsonl") if "OUT" in os.environ else None

    def note(row: dict[str, Any]) -> None:
        rows.append(row)
        print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)
        if kept is not None:
            with kept.open("a") as file:
                file.write(json.dumps(row) + "\n")

    end = time.perf_counter() + options.limit
    with tempfile.TemporaryDirectory() as folder:
        start = functools.partial(_start, folder)
        modes = [mode for mode in options.modes if mode in _GENERATING]
        for process in [start(name, options.works, modes, "cold") for name in options.names]:
            _rows(process, note, end)
        for name in options.names:
            if time.perf_counter() < end:
                _rows(start(name, options.works, options.modes, "warm"), note, end)
        _table(rows)


if __name__ == "__main__":
    main()
