"""The host function for GPUs, with its memory and its order of steps, on a machine without one: kernels are run by the
reference evaluator, on the addresses that they are launched with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

import stator
from stator.backends import native
from stator.codegen import gpu_host, gpu_scalar, ptx, sizes
from stator.codegen.gpu_driver import Bound, Chosen
from stator.codegen.gpu_host import GpuHost
from stator.fuse import evaluate, write
from stator.fuse.decompose import decompositions
from stator.fuse.loops import Program
from stator.fuse.memory import plan_memory

LENGTH = 1 << 16  # elements behind each address that the evaluator may see


class Interpreted:
    """Stands for `Loaded`: a launch is done at once, by the evaluator."""

    launches = 0

    def __init__(self, kernels: list[Any], written: list[ptx.WrittenForGpu], device: int) -> None:
        self._kernels, self._written = kernels, written

    def bind(self, number: int, evaluate_size: Callable[[Any], int]) -> Any:
        kernel = self._kernels[number]
        symbols = {s: None for e in _sizes(kernel) if not isinstance(e, int) for s in e.free_symbols}
        known = {s: evaluate_size(s) for s in symbols}
        return _Run(self, self._written[number], kernel, known, evaluate_size)


def _sizes(kernel: Any) -> list[Any]:
    found = list(kernel.extents)
    for value in kernel.values:
        index = value.attr[1] if value.op in ("load", "store") else value.attr if value.op == "index" else None
        if index is not None:
            found += [index.offset, *[c for _, c in index.terms], *[s for _, s in index.gathered]]
    return found


class _Run(Bound):
    def __init__(self, loaded: Any, written: Any, kernel: Any, symbols: Any, evaluate_size: Any) -> None:
        super().__init__(loaded, written, len(kernel.buffers), evaluate_size)
        self._kernel, self._symbols = kernel, symbols

    def start(self, chosen: Chosen, pointers: list[int], stream: int) -> None:
        *buffers, scratch, status = pointers
        assert bool(chosen.scratch) == bool(scratch) and status == 0
        Interpreted.launches += 1
        memory = [_at(p, b.dtype) for p, b in zip(buffers, self._kernel.buffers, strict=True)]
        evaluate.run_kernel(self._kernel, memory, self._symbols)


def _at(pointer: int, dtype: torch.dtype) -> Tensor:
    if pointer == 0:
        return torch.empty(0, dtype=dtype)
    raw = (ctypes.c_uint8 * (LENGTH * dtype.itemsize)).from_address(pointer)
    return torch.frombuffer(raw, dtype=dtype)


def host_of(fn: Callable[..., Any], inputs: Sequence[Tensor], fallback: Any = None, mode: str = "fake") -> GpuHost:
    traced: fx.GraphModule = make_fx(fn, decomposition_table=decompositions(), tracing_mode=mode)(*inputs)
    output = traced.graph.output_node()
    if not isinstance(output.args[0], (list, tuple)):
        output.args = ((output.args[0],),)
    traced.graph.eliminate_dead_code()
    with mock.patch.object(write, "_as_gemm", lambda node: None):  # as for tensors on a GPU
        program: Program = write.write_program(traced, gpu_scalar.supported)

    def compute_of(expressions: Sequence[Any]) -> Any:
        symbols = {s: None for e in expressions for s in e.free_symbols}  # the interpreter asks for these alone
        known = list(dict.fromkeys([*expressions, *symbols]))
        compute = sizes.compute(program, known)
        host_expressions[:] = known
        return compute

    host_expressions: list[Any] = []
    host = GpuHost(program, plan_memory(program), {}, compute_of, fallback, torch.device("cpu"), load=Interpreted)
    host._unknown = host_expressions
    return host


def mlp(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    h = torch.softmax(F.gelu(x @ w) * 2 + 1, -1)
    return (h @ v).relu() + 1, h.sum(0), h.t()


def _inputs(seed: int, rows: int = 12) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator) for s in ((rows, 8), (8, 16), (16, 8))]


def test_results_are_eagers_and_inputs_are_dropped() -> None:
    host = host_of(mlp, _inputs(0))
    Interpreted.launches = 0
    for seed in range(3):
        given = _inputs(seed)
        args: list[Any] = list(given)
        got = host(args)
        assert args == []
        for g, want in zip(got, mlp(*given), strict=True):
            torch.testing.assert_close(g, want)
            assert g.stride() == want.stride()
    assert Interpreted.launches >= 6


def test_results_of_earlier_calls_stay() -> None:
    host = host_of(mlp, _inputs(0))
    first = host(_inputs(0))
    kept = [t.clone() for t in first]
    for seed in range(1, 11):
        host(_inputs(seed))
    for one, same in zip(first, kept, strict=True):
        assert torch.equal(one, same)


def test_sizes_are_planned_once_each() -> None:
    host = host_of(mlp, _inputs(0), mode="symbolic")
    for rows in (12, 5, 12, 33, 5):
        given = _inputs(rows, rows)
        for g, want in zip(host(list(given)), mlp(*given), strict=True):
            torch.testing.assert_close(g, want)
    assert len(host._plans) == 3


@pytest.mark.parametrize("change", ["dtype", "stride", "size"])
def test_other_inputs_go_to_the_graph_itself(change: str) -> None:
    asked: list[Any] = []
    host = host_of(mlp, _inputs(0), fallback=lambda args: asked.append(len(args)))
    x, w, v = _inputs(0)
    x = {"dtype": x.double(), "stride": x.t().contiguous().t(), "size": x[:5]}[change]
    Interpreted.launches = 0
    host([x, w, v])
    assert asked == [3] and Interpreted.launches == 0


def test_a_call_that_gives_other_strides_is_put_right() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.cumsum(x, 0) + 1

    host = host_of(fn, [torch.randn(4, 6)])
    step = next(s for s in host.program.steps if hasattr(s, "target"))
    right = step.target

    def turned(*args: Any, **kwargs: Any) -> Tensor:
        made: Tensor = right(*args, **kwargs)
        return made.t().contiguous().t()

    step.target = turned
    for _ in range(3):
        x = torch.randn(4, 6)
        torch.testing.assert_close(host([x])[0], fn(x))


def test_devices_of_a_graph() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, device="meta")
    graph.output((x,))
    module = fx.GraphModule({}, graph)
    assert native._device(module) == torch.device("cpu")
    x.meta["val"] = _on("cuda:1")
    assert native._device(module) == torch.device("cuda:1")
    y = graph.placeholder("y")
    y.meta["val"] = _on("cuda:0")
    with pytest.raises(native.host.NotCompiled, match="cuda:0, cuda:1"):
        native._device(module)


def _on(device: str) -> Tensor:
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        made = torch.empty(2, device="meta")
    made.fake_device = torch.device(device)
    return made


def test_the_backend_on_the_cpu_is_as_before() -> None:
    compiled = stator.compile(lambda x: torch.sin(x) + 1, backend="native")
    for _ in range(3):
        x = torch.randn(10)
        torch.testing.assert_close(compiled(x), torch.sin(x) + 1)
    assert gpu_host.GpuHost._boxed_call
