"""The host function for GPUs, with its memory and its order of steps, on a machine without one: a stand-in for the
driver has kernels run by the reference evaluator, on the addresses that they are launched with."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

sys.path.insert(0, str(Path(__file__).parent))

from driver import Driver

import stator
from stator import _native as n
from stator import events
from stator.backends import native
from stator.codegen import gpu_host, gpu_scalar, host, ptx, sizes
from stator.codegen.gpu_host import Gpu
from stator.fuse import evaluate, write
from stator.fuse.decompose import decompositions
from stator.fuse.loops import LoopProgram
from stator.fuse.memory import plan_memory

CONTEXT = 0x103
LENGTH = 1 << 16  # elements behind each address that the evaluator may see


class Interpreted:
    """Stands for `Loaded`: a launch is done at once, by the evaluator."""

    context = CONTEXT

    def __init__(self, driver: Driver, kernels: list[Any], written: list[ptx.PtxKernel]) -> None:
        self._kernels, self._written = kernels, written
        self.symbols: dict[Any, int] = {}
        self.launched: list[tuple[int, int, int]] = []  # kernel, variant, which launch of it
        self.wrong: list[BaseException] = []
        driver.on_launch(self._launch)

    def addresses(self, kernel: int, variant: int) -> tuple[int, ...]:
        launches = self._written[kernel].variants[variant].launches
        return tuple([1 + kernel * 10000 + variant * 100 + number for number in range(len(launches))])

    def _launch(self, function: int, parameters: Any) -> int:
        kernel, variant, number = (function - 1) // 10000, (function - 1) % 10000 // 100, (function - 1) % 100
        self.launched.append((kernel, variant, number))
        try:
            if number == 0:
                self._run(self._kernels[kernel], self._written[kernel], variant, parameters)
        except BaseException as error:
            self.wrong.append(error)
            return 700
        return 0

    def _run(self, kernel: Any, written: ptx.PtxKernel, variant: int, parameters: Any) -> None:
        pointers = [parameters[i][0] for i in range(written.buffers + 2)]
        chosen = written.variants[variant]
        for needed in chosen.requirements:
            assert needed.kind != "aligned" or pointers[needed.what] % needed.of == 0
        assert pointers[-2] != 0 or chosen.scratch == 0
        assert pointers[-1] == 0, "there is no status word"
        given = [parameters[written.buffers + 2 + i][0] for i in range(len(written.sizes))]
        assert given == [s if isinstance(s, int) else int(s.subs(self.symbols)) for s in written.sizes]
        memory = [_at(p, b.dtype) for p, b in zip(pointers, kernel.buffers, strict=False)]
        evaluate.run_kernel(kernel, memory, self.symbols)


def _at(pointer: int, dtype: torch.dtype) -> Tensor:
    if pointer == 0:
        return torch.empty(0, dtype=dtype)
    raw = (ctypes.c_uint8 * (LENGTH * dtype.itemsize)).from_address(pointer)
    return torch.frombuffer(raw, dtype=dtype)


class Made:
    """A host function, and what it is made of."""

    def __init__(
        self,
        driver: Driver,
        fn: Callable[..., Any],
        inputs: Sequence[Any],
        fallback: Any = None,
        mode: str = "fake",
        numbers: Sequence[str] = (),
    ) -> None:
        traced: fx.GraphModule = make_fx(fn, decomposition_table=decompositions(), tracing_mode=mode)(*inputs)
        output = traced.graph.output_node()
        if not isinstance(output.args[0], (list, tuple)):
            output.args = ((output.args[0],),)
        traced.graph.eliminate_dead_code()
        with mock.patch.object(write, "_as_gemm", lambda node: None):  # as for tensors on a GPU
            self.program: LoopProgram = write.write_program(traced, gpu_scalar.supported)
        there = {name: torch.device("meta") for name in numbers}  # anywhere else than where kernels run

        def load(kernels: Any, written: Any, index: int) -> Interpreted:
            self.loaded = Interpreted(driver, kernels, written)
            return self.loaded

        target = Gpu(self.program, there, torch.device("cpu"), load)
        self.host = host.build(
            self.program, plan_memory(self.program), {}, native._tape, self._compute_of, fallback or traced, target
        )

    def _compute_of(self, expressions: Sequence[Any]) -> Any:
        symbols = list(dict.fromkeys(s for e in expressions for s in e.free_symbols))
        compute = sizes.compute(self.program, [*expressions, *symbols])
        if compute is None:
            return None

        def noting(args: list[Any]) -> Any:
            found = compute(args)
            if found is not None and symbols:
                self.loaded.symbols = dict(zip(symbols, found[-len(symbols) :], strict=True))
                return found[: -len(symbols)]
            return found

        return noting

    def __call__(self, args: list[Any]) -> Any:
        made = self.host(args)
        assert not self.loaded.wrong, self.loaded.wrong
        return made


def mlp(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    h = torch.softmax(F.gelu(x @ w) * 2 + 1, -1)
    return (h @ v).relu() + 1, h.sum(0), h.t()


def _inputs(seed: int, rows: int = 12) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator) for s in ((rows, 8), (8, 16), (16, 8))]


def test_results_are_eagers_and_inputs_are_dropped(driver: Driver) -> None:
    made = Made(driver, mlp, _inputs(0))
    for seed in range(3):
        given = _inputs(seed)
        args: list[Any] = list(given)
        got = made(args)
        assert args == []
        for g, want in zip(got, mlp(*given), strict=True):
            torch.testing.assert_close(g, want)
            assert g.stride() == want.stride()
    assert driver.count("launches") >= 6
    assert driver.address("last_stream") == driver.address("stream")


def test_a_launch_has_the_grid_that_was_written(driver: Driver) -> None:
    made = Made(driver, lambda x: torch.exp(x) + 1, [torch.randn(5000)])
    for turn in range(3):
        made([torch.randn(5000)])
        assert driver.count("launches") == turn + 1
    shape = made.loaded._written[0].variants[0].shape
    blocks = -(-5000 // (shape.threads * shape.slots * shape.groups))
    assert driver.grid() == [blocks, 1, 1, shape.threads, 1, 1]


def test_long_reductions_are_several_launches_that_share_scratch_memory(driver: Driver) -> None:
    made = Made(driver, lambda x: x.sum() * 2, [torch.ones(300, 200)])
    for seed in range(3):
        x = torch.full((300, 200), float(seed))
        torch.testing.assert_close(made([x])[0], x.sum() * 2)
    assert [number for _, _, number in made.loaded.launched] == [0, 1] * 3


def test_unaligned_memory_takes_the_other_variant(driver: Driver) -> None:
    made = Made(driver, lambda x: torch.exp(x) + 1, [torch.randn(64)])
    for off in (0, 1, 0, 3):
        x = torch.randn(70)[off : off + 64]
        torch.testing.assert_close(made([x])[0], torch.exp(x) + 1)
    assert [variant for _, variant, _ in made.loaded.launched] == [0, 1, 0, 1]


def test_a_size_of_zero_launches_nothing(driver: Driver) -> None:
    made = Made(driver, lambda x: torch.exp(x) + 1, [torch.randn(0, 4)])
    for _ in range(3):
        assert made([torch.randn(0, 4)])[0].shape == (0, 4)
    assert driver.count("launches") == 0


def test_results_of_earlier_calls_stay(driver: Driver) -> None:
    made = Made(driver, mlp, _inputs(0))
    first = made(_inputs(0))
    kept = [t.clone() for t in first]
    for seed in range(1, 11):
        made(_inputs(seed))
    for one, same in zip(first, kept, strict=True):
        assert torch.equal(one, same)


def test_sizes_are_computed_in_each_call(driver: Driver) -> None:
    made = Made(driver, mlp, _inputs(0), mode="symbolic")
    for rows in (12, 5, 12, 33, 5):
        given = _inputs(rows, rows)
        for g, want in zip(made(list(given)), mlp(*given), strict=True):
            torch.testing.assert_close(g, want)
    assert driver.count("launches") >= 10


@pytest.mark.parametrize("change", ["dtype", "stride", "size", "kind", "memory"])
def test_other_inputs_go_to_the_graph_itself(change: str, driver: Driver) -> None:
    asked: list[Any] = []
    made = Made(driver, mlp, _inputs(0), fallback=lambda args: asked.append(len(args)))
    x, w, v = _inputs(0)
    other = {
        "dtype": x.double(),
        "stride": x.t().contiguous().t(),
        "size": x[:5],
        "kind": x.to("meta"),
        "memory": x.clone(),
    }[change]
    if change == "memory":
        other.untyped_storage().resize_(16)
    made([other, w, v])
    assert asked == [3] and driver.count("launches") == 0
    made([x, w, v])
    assert asked == [3] and driver.count("launches") > 0


def test_a_call_that_gives_other_strides_is_put_right(driver: Driver) -> None:
    def turned(step: Any) -> Any:
        given = native_tape(step)

        class Turned(fx.GraphModule): ...

        graph = fx.Graph()
        x = graph.placeholder("x")
        graph.output((graph.call_function(lambda x: torch.cumsum(x, 0).t().contiguous().t(), (x,)),))
        return native.tape_of(graph) if "cumsum" in step.label else given

    native_tape = native._tape
    with mock.patch.object(native, "_tape", turned):
        made = Made(driver, lambda x: torch.cumsum(x, 0) + 1, [torch.randn(4, 6)])
    for _ in range(3):
        x = torch.randn(4, 6)
        torch.testing.assert_close(made([x])[0], torch.cumsum(x, 0) + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.int64])
def test_numbers_on_the_cpu_travel_by_value(dtype: torch.dtype, driver: Driver) -> None:
    example = torch.tensor(3).to(dtype)
    made = Made(driver, lambda x, s_1: x * s_1 + s_1, [torch.randn(5), example], numbers=["s_1_1"])
    for value in (3, 1, 0, 2):
        x, s = torch.randn(5), torch.tensor(value).to(dtype)
        want = x * s + s
        got = made([x, s])[0]
        torch.testing.assert_close(got, want)
        assert got.dtype is want.dtype
    assert driver.count("sets") == 4 * max(1, dtype.itemsize // 4)


def test_a_thread_without_a_context_gets_one(driver: Driver) -> None:
    made = Made(driver, mlp, _inputs(0))
    made(_inputs(0))
    assert (driver.count("guards"), driver.count("freed"), driver.count("contexts_set")) == (1, 1, 1)
    made(_inputs(1))
    assert (driver.count("guards"), driver.count("contexts_set")) == (1, 1), "it is there now"
    driver.set_address("current", 0x105)  # the thread works on another device
    made(_inputs(2))
    assert (driver.count("guards"), driver.count("freed"), driver.count("contexts_set")) == (2, 2, 2)


def test_a_failed_launch_is_an_exception_and_the_next_call_is_right(driver: Driver) -> None:
    made = Made(driver, mlp, _inputs(0))
    driver.set("fail_launch", 1)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"cuLaunchKernel: it failed \(700\)"):
            made(_inputs(0))
    driver.set("fail_launch", 0)
    for g, want in zip(made(_inputs(5)), mlp(*_inputs(5)), strict=True):
        torch.testing.assert_close(g, want)


def test_threads_call_it_at_the_same_time(driver: Driver) -> None:
    made = Made(driver, mlp, _inputs(0))
    wrong: list[int] = []

    def work(number: int) -> None:
        for seed in range(number * 20, number * 20 + 20):
            given = _inputs(seed)
            if not all(torch.allclose(g, w, atol=1e-5) for g, w in zip(made(list(given)), mlp(*given), strict=True)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_tables_that_do_not_fit_are_refused() -> None:
    good = (((0, 15),), ((0, 4, True),), 0, ((0, 1, 256),))
    last = ((), (), 0, ((0, 1, 256),))
    assert n.GpuKernel((good, last), 2, 1, lambda variant: (1,))
    for wrong in (
        (good,),  # the last one requires something
        ((((2, 15),), (), 0, ()), last),  # no such buffer
        (((), ((1, 4, True),), 0, ()), last),  # no such slot
        (((), ((0, 0, True),), 0, ()), last),  # a multiple of 0
        (((), (), 1, ()), last),
        (((), (), 0, ((0, 0, 1),)), last),
        (),
        (last, 3),
    ):
        with pytest.raises((ValueError, TypeError)):
            n.GpuKernel(wrong, 2, 1, lambda variant: (1,))  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        n.GpuKernel((last,), 2, 1, None)  # type: ignore[arg-type]


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(64), torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
        self.first, self.words = torch.nn.Conv2d(3, 8, 3), torch.nn.Embedding(50, 64)

    def forward(self, ids: Tensor, image: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        x = self.words(ids) * scale
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        q = x.view(2, 5, 4, 16).transpose(1, 2)
        x = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(2, 5, 64)
        logits = x @ self.words.weight.t()
        return F.cross_entropy(logits.view(10, 50), ids.view(10)), F.relu(self.first(image)).mean((2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_graphs_become_host_functions(dtype: torch.dtype, driver: Driver, monkeypatch: Any) -> None:
    """With the driver's stand-in, and tensors that say they are on a GPU."""
    monkeypatch.setattr(gpu_host, "_keys", lambda kind: (1, 1))
    told: list[Any] = []
    ends = [events.subscribe(told.append, kind) for kind in (events.NotGenerated, events.NotDerived)]
    made: list[Any] = []
    ends.append(events.subscribe(made.append, events.CodeGenerated))
    with torch._subclasses.FakeTensorMode():
        layer = Layer()
        for name, value in list(layer.named_parameters()):
            at = layer.get_submodule(name.rpartition(".")[0])
            there = torch.empty(value.shape, dtype=dtype, device="cuda")
            setattr(at, name.rpartition(".")[2], torch.nn.Parameter(there, requires_grad=False))
        args = [
            torch.zeros(2, 5, dtype=torch.int64, device="cuda"),
            torch.zeros(2, 3, 8, 8, dtype=dtype, device="cuda"),
            torch.tensor(3.0),
        ]
        names = list(dict(layer.named_parameters()))

        def whole(*given: Tensor) -> Any:
            weights = dict(zip(names, given[3:], strict=True))
            return torch.func.functional_call(layer, weights, given[:3])

        graph = make_fx(whole, decomposition_table=decompositions())(*args, *layer.parameters())
        graph.graph.eliminate_dead_code()
        inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    native._generate(graph, inputs, part="forward", asked=native.Asked(captures=False))
    for end in ends:
        end()
    assert [event.part for event in made] == ["forward"] and not told, told
    assert driver.count("modules") == 1


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
