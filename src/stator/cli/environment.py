"""`python -m stator env`: what stator works with here."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from ..backends.registry import DEFAULT, list_backends
from ..options import FIELDS, code_cache_folder, default, options
from ..report.page import made_with

FEATURES = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "asimd", "sve")


def run(given: argparse.Namespace) -> int:
    found = facts()
    if given.json:
        print(json.dumps(found, indent=2))
        return 0
    width = max(map(len, found))
    for name, value in found.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        print(f"{name:{width}}  {text or 'none'}")
    return 0


def facts() -> dict[str, Any]:
    """Everything, by name."""
    cuda = torch.cuda.is_available()
    changed = {name: getattr(options, name) for name in FIELDS if getattr(options, name) != default(name)}
    return {
        **made_with(),
        "platform": platform.platform(),
        "CPU": _cpu("model name") or platform.processor() or platform.machine(),
        "CPU features": [name for name in FEATURES if name in _cpu("flags").split() + _cpu("Features").split()],
        "torch's CPU kernels": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads of torch": torch.get_num_threads(),
        "CUDA": f"{torch.version.cuda}, {torch.cuda.get_device_name()}" if cuda else "none",
        "C++ compiler": next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), "none"),
        "backends": list_backends(),
        "default backend": DEFAULT,
        "options": [f"{name}={value!r}" for name, value in changed.items()],
        "cache directory": f"{code_cache_folder() or 'none'}; TorchInductor's is {cache_dir()}",
    }


def _cpu(field: str) -> str:
    """A field of the first processor, as Linux tells it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == field), "")
