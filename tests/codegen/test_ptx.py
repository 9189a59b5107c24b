"""PTX without a GPU: every kernel is accepted by NVIDIA's own assembler for three generations of devices, and the
numbers that launch it are right."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from gpu_cases import CASES, Case, function_kernel, program_of
from random_kernels import draw

from stator.codegen import gpu_driver, jit, math, ptx
from stator.codegen.gpu_shape import shapes
from stator.codegen.gpu_values import rounded_soon
from stator.fuse.loops import Kernel, Launch, concrete

DRIVER = 13000
CAPABILITIES = [(8, 0), (9, 0), (10, 0)]


def _ptxas() -> str | None:
    for package in ("nvidia.cu13", "nvidia.cuda_nvcc"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in (found.submodule_search_locations or []) if found else []:
            if (path := Path(folder) / "bin" / "ptxas").exists():
                return str(path)
    return shutil.which("ptxas")


def kernels_of(case: Case) -> list[Kernel]:
    return [step.kernel for step in program_of(case)[0].steps if isinstance(step, Launch)]


def assembled(variants: list[ptx.Variant], capability: tuple[int, int], folder: Path) -> str:
    text = gpu_driver.assembly(variants, gpu_driver.target(capability, DRIVER))
    if (program := _ptxas()) is not None:
        source = folder / "kernel.ptx"
        source.write_text(text)
        arch = f"-arch=sm_{capability[0]}{capability[1]}"
        done = subprocess.run(
            [program, arch, str(source), "-o", str(folder / "out")], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return text


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_assembler_takes_every_kernel(capability: tuple[int, int], tmp_path: Path) -> None:
    """All of them in a few modules: that kernels of one graph share one is tested too."""
    written = [
        ptx.write(kernel, f"k{n}_{i}") for n, case in enumerate(CASES) for i, kernel in enumerate(kernels_of(case))
    ]
    assert len(written) >= len(CASES)
    variants = [v for w in written for v in w.variants]
    for start in range(0, len(variants), 60):
        part = variants[start : start + 60]
        text = assembled(part, capability, tmp_path)
        assert ".extern .func" not in text, "an intrinsic that this LLVM does not know"
        for launch in (launch for v in part for launch in v.launches):
            assert f".entry {launch.name}(" in text


def test_the_assembler_takes_random_programs(tmp_path: Path) -> None:
    written = [ptx.write(draw(seed).kernel, f"random{seed}") for seed in range(150)]
    variants = [v for w in written for v in w.variants]
    for start in range(0, len(variants), 60):
        assembled(variants[start : start + 60], (9, 0), tmp_path)


def test_the_assembler_takes_every_function(tmp_path: Path) -> None:
    two = {"pow", "atan2"}
    written = [
        ptx.write(function_kernel(op, 2 if op in two else 1, torch.float32, 1001), f"f_{op}") for op in sorted(math.F32)
    ]
    text = assembled([w.variants[0] for w in written], (9, 0), tmp_path)
    assert text.count(".entry ") == len(math.F32)
    assert "div.rn.f32" not in text, "division in float32 is the short one"


def test_vectors_need_alignment_and_the_last_variant_nothing() -> None:
    for case in CASES:
        for kernel in kernels_of(case):
            variants = ptx.write(kernel, "k").variants
            assert variants[-1].requirements == [], case.name
            for variant in variants:
                wide = {kernel.values[n].attr[0] for n in variant.shape.vectors}
                required = {r.what for r in variant.requirements if r.kind == "aligned"}
                assert {b for b in wide if kernel.buffers[b].dtype.itemsize * variant.shape.slots > 1} <= required


def test_an_odd_row_is_read_in_vectors_nowhere() -> None:
    (kernel,) = kernels_of(next(c for c in CASES if c.name == "softmax_1000"))
    assert max(len(v.shape.vectors) for v in ptx.write(kernel, "k").variants) == 2
    (kernel,) = kernels_of(next(c for c in CASES if c.name == "softmax_257"))
    assert [v.shape.vectors for v in ptx.write(kernel, "k").variants] == [frozenset()]


def test_positions_are_narrow_only_where_they_fit() -> None:
    def narrow(n: int) -> list[bool]:
        return [s.narrow for s in shapes(function_kernel("exp", 1, torch.float32, n))]

    assert narrow(2**30) == [True, True]
    assert narrow(2**31) == [False, False]
    assert narrow(2**33) == [False, False]


def test_symbolic_sizes_choose_at_launch() -> None:
    case = next(c for c in CASES if c.name == "dynamic_softmax_31x77")
    (kernel,) = kernels_of(case)
    symbols = program_of(case)[2]
    written = ptx.write(kernel, "k")
    kinds = {r.kind for r in written.variants[0].requirements}
    assert kinds == {"aligned", "multiple", "at_most"}
    odd = [r for r in written.variants[0].requirements if r.kind == "multiple"]
    assert any(concrete(r.what, symbols) % r.of for r in odd)


def test_a_full_sum_is_one_launch_for_each_level() -> None:
    case = next(c for c in CASES if c.name == "full_sum_1000003")
    for kernel in kernels_of(case):
        for variant in ptx.write(kernel, "k").variants:
            first, last = variant.launches
            assert first.splits > 1 and last.splits == 1
            assert variant.scratch >= first.splits * 8


def test_rough_forms_are_for_what_is_rounded_at_once() -> None:
    def gate(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)

    def moved(x: torch.Tensor) -> torch.Tensor:
        return 1.0 - torch.sigmoid(x.float()).float()

    def is_rough(fn: object, dtype: torch.dtype) -> bool:
        (kernel,) = kernels_of(Case("c", fn, lambda: (torch.randn(64).to(dtype),)))
        number = next(n for n, v in enumerate(kernel.values) if v.op == "sigmoid")
        return number in rounded_soon(kernel)

    assert is_rough(gate, torch.bfloat16) and is_rough(gate, torch.float16)
    assert not is_rough(gate, torch.float32)
    assert not is_rough(moved, torch.bfloat16), "a difference may lose the digits that are right"


def test_targets() -> None:
    assert gpu_driver.target((9, 0), 13000).cpu == "sm_90"
    assert gpu_driver.target((8, 9), 12040) == gpu_driver.target((8, 0), 12040)
    assert gpu_driver.target((12, 0), 13000).cpu == "sm_100"
    assert gpu_driver.target((10, 0), 12040).cpu == "sm_90", "an older driver takes older PTX"
    with pytest.raises(jit.Unavailable):
        gpu_driver.target((7, 5), 13000)
    with pytest.raises(jit.Unavailable):
        gpu_driver.target((9, 0), 11080)
