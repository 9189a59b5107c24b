"""Support for tests of PTX: functions that become kernels of every shape and type, and their loop programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from stator.codegen import gpu_scalar
from stator.fuse import evaluate
from stator.fuse.decompose import decompositions
from stator.fuse.loops import Buffer, Index, Kernel, Launch, LoopProgram, Ref, Value, concrete
from stator.fuse.write import write_program

Function = Callable[..., Any]


@dataclass
class Case:
    name: str
    function: Function
    inputs: Callable[[], tuple[Tensor, ...]]
    loose: float = 1.0  # times the usual tolerance
    dynamic: tuple[Tensor, ...] | None = None  # traced with these, with symbols for sizes


def _floats(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], tuple[Tensor, ...]]:
    def make() -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(s, generator=generator).to(dtype) for s in shapes)

    return make


def _given(*tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(tensors)


def _chain(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh") * torch.sigmoid(y) + x


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def _moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(-1), x.amax(-1), (x * x).sum(-1)


def _cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    picked = torch.log_softmax(x, -1).gather(1, target[:, None])
    return -picked.mean()


def _many_folds(x: Tensor) -> tuple[Tensor, ...]:
    """More than shared memory has room for, if all threads of a block took part."""
    return (*[(x.float() * n).sin().sum(0) for n in range(1, 9)], x.amax(0), x.amin(0))


def _sum_over(dim: int) -> Function:
    return lambda x: x.sum(dim)


def _softmax_over(dim: int) -> Function:
    return lambda x: torch.softmax(x, dim)


_LONG = torch.arange(1000) * 7919 % 100


def _pointwise_cases() -> Iterator[Case]:
    for n in (1, 3, 255, 1024, 4099, 1000003, 2**21):
        yield Case(f"chain_{n}", _chain, _floats((n,), (n,)))
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        label = str(dtype).removeprefix("torch.")
        yield Case(f"arithmetic_{label}", lambda x, y: x * y + x - y / 3, _floats((70001,), (70001,), dtype=dtype))
    for dtype in (torch.bfloat16, torch.float16):
        yield Case(f"chain_{str(dtype)[6:]}", _chain, _floats((70000,), (70000,), dtype=dtype))
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        given = _given((torch.arange(5003) % 200 - 77).to(dtype), (torch.arange(5003) % 111).to(dtype))
        yield Case(f"integers_{str(dtype)[6:]}", lambda x, y: (x * y + x - 3, x & y, x ^ y, x > y, x.abs()), given)
        yield Case(f"from_{str(dtype)[6:]}", lambda x, y: x.float() / 4 + y.double(), given)
    yield Case(
        "bools", lambda x, y: ((x > 0) & (y > 0), (x > 0) ^ (y > x), torch.where(x > y, x, y)), _floats((999,), (999,))
    )
    yield Case("broadcast", lambda x, y, z: x * y + z, _floats((33, 64, 128), (128,), (64, 1)))
    yield Case("broadcast_odd", lambda x, y, z: x * y + z, _floats((33, 7, 129), (129,), (7, 1)))
    yield Case("transposed", lambda x, y: x.t() + y, _floats((65, 97), (97, 65)))
    yield Case("transposed_even", lambda x, y: x.t() * y + x.t(), _floats((256, 128), (128, 256)))
    yield Case("transposed_batch", lambda x, y: x.transpose(1, 2) + y, _floats((5, 65, 97), (5, 97, 65)))
    yield Case("transposed_bfloat16", lambda x: x.t().contiguous(), _floats((100, 200), dtype=torch.bfloat16))
    yield Case("transposed_float64", lambda x, y: x.t() + y, _floats((65, 97), (97, 65), dtype=torch.float64))
    yield Case("transposed_bool", lambda x: (x > 0).t().contiguous() | (x.t() > 1), _floats((65, 97)))
    yield Case("permuted", lambda x: x.permute(2, 0, 1).contiguous() * 2, _floats((12, 20, 28)))
    yield Case("strided", lambda x: x[:, ::3] * 2 + x[:, 1::3], _floats((40, 300)))
    yield Case("cat", lambda x, y: torch.cat([x, y * 2], -1) + 1, _floats((50, 60), (50, 68)))
    yield Case("cat_odd", lambda x, y: torch.cat([x, y * 2], -1) + 1, _floats((50, 61), (50, 68)))
    yield Case("pad", lambda x: F.pad(x, (3, 5, 1, 2)) * 2, _floats((30, 40)))
    yield Case("flip", lambda x: x.flip(-1) + 1, _floats((30, 41)))
    yield Case("triangle", lambda x: torch.tril(x) + 1, _floats((64, 64)))
    yield Case("embedding", lambda i, w: F.embedding(i, w) * 2, _given(_LONG, *_floats((100, 64))()))
    yield Case("embedding_odd", lambda i, w: F.embedding(i, w) * 2, _given(_LONG, *_floats((100, 63))()))
    yield Case("gather", lambda x, i: x.gather(1, i), _given(*_floats((20, 100))(), _LONG.view(20, 50)))
    yield Case("index_select", lambda x, i: x.index_select(1, i) + 1, _given(*_floats((20, 100))(), _LONG[:40]))
    yield Case("remainders", lambda x, y: (torch.fmod(x, y), torch.remainder(x * 100, y)), _floats((5000,), (5000,)))
    yield Case("one_number", lambda x: x * 2 + 1, _floats(()))
    yield Case("arange", lambda x: x + torch.arange(77, dtype=torch.float32), _floats((77,)))


def _reduction_cases() -> Iterator[Case]:
    for length in (1, 2, 3, 4, 7, 8, 31, 32, 33, 64, 100, 128, 257, 512, 768, 1000, 1024, 3072, 4096, 8192, 50257):
        yield Case(f"softmax_{length}", _softmax, _floats((37, length)))
        yield Case(f"moments_{length}", _moments, _floats((9, length)), loose=20)
    for length in (64, 768, 1024, 4096, 5000):
        yield Case(f"layer_norm_{length}", _layer_norm, _floats((70, length), (length,), (length,)), loose=10)
        for dtype in (torch.bfloat16, torch.float16):
            sizes = ((70, length), (length,), (length,))
            yield Case(f"layer_norm_{length}_{str(dtype)[6:]}", _layer_norm, _floats(*sizes, dtype=dtype))
    yield Case("softmax_float64_mean", lambda x: x.mean(-1), _floats((70, 1000), dtype=torch.float64))
    yield Case("rms_norm", _rms_norm, _floats((64, 2048), (2048,)), loose=4)
    yield Case("rms_norm_bfloat16", _rms_norm, _floats((64, 2048), (2048,), dtype=torch.bfloat16))
    yield Case("cross_entropy", _cross_entropy, _given(*_floats((200, 1003))(), _LONG[:200]), loose=4)
    yield Case("softmax_few_long_rows", _softmax, _floats((2, 300000)))
    for shape in ((4096, 512), (4096, 511), (100, 8), (100, 3), (7, 1000), (5000, 33), (3, 2000, 64), (1, 64)):
        label = "x".join(map(str, shape))
        dim = len(shape) - 2
        yield Case(f"column_sum_{label}", _sum_over(dim), _floats(shape), loose=20)
        yield Case(f"column_softmax_{label}", _softmax_over(dim), _floats(shape))
    yield Case("column_sum_bfloat16", lambda x: x.sum(0), _floats((3000, 768), dtype=torch.bfloat16), loose=2)
    yield Case("many_column_folds", _many_folds, _floats((500, 512)), loose=20)
    yield Case("many_column_folds_bfloat16", _many_folds, _floats((500, 512), dtype=torch.bfloat16), loose=4)
    yield Case("column_argmax", lambda x: x.argmax(0), _floats((300, 70)))
    for n in (5, 1000, 1000003):
        yield Case(f"full_sum_{n}", lambda x: (x.sum(), x.amax(), x.mean() * 2), _floats((n,)), loose=200)
    yield Case("full_sum_float64", lambda x: x.sum(), _floats((100003,), dtype=torch.float64), loose=20)
    yield Case("variance", lambda x: torch.var(x, (0, 2, 3)), _floats((8, 16, 20, 20)), loose=4)
    yield Case("mean_2d", lambda x: x.mean((2, 3)), _floats((8, 16, 14, 14)), loose=4)
    yield Case("argmax", lambda x: (x.argmax(-1), x.argmin(-1)), _floats((50, 600)))
    yield Case("argmax_full", lambda x: x.argmax(), _floats((300, 600)))
    yield Case("any_all", lambda x: ((x > 3).any(-1), (x > -3).all(-1)), _floats((50, 600)))
    ints = (torch.arange(6000) * 7919 % 1000 - 500).view(10, 600)
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        yield Case(f"fold_{str(dtype)[6:]}", lambda x: (x.sum(-1), x.amax(-1), x.amin(-1)), _given(ints.to(dtype)))
    with_nan = _floats((40, 500))()[0].index_fill(1, torch.tensor([250]), float("nan"))
    yield Case("nan", lambda x: (x.amax(-1), x.argmax(-1), x.sum(-1), torch.maximum(x, -x)), _given(with_nan))
    yield Case("prod", lambda x: x.prod(-1), _floats((40, 20)), loose=20)


def _dynamic_cases() -> Iterator[Case]:
    small = _floats((6, 10), (6, 10))()
    for shape in ((5, 8), (31, 77), (1, 1), (512, 1024)):
        label = "x".join(map(str, shape))
        yield Case(f"dynamic_chain_{label}", _chain, _floats(shape, shape), dynamic=small)
        yield Case(f"dynamic_softmax_{label}", _softmax, _floats(shape), dynamic=small[:1])
        yield Case(
            f"dynamic_column_{label}", lambda x: (x.sum(0), x.amax(0)), _floats(shape), loose=20, dynamic=small[:1]
        )
        yield Case(f"dynamic_sum_{label}", lambda x: x.sum(), _floats(shape), loose=200, dynamic=small[:1])
        yield Case(f"dynamic_transposed_{label}", lambda x: x.t() + 1, _floats(shape), dynamic=small[:1])


CASES = [*_pointwise_cases(), *_reduction_cases(), *_dynamic_cases()]


def program_of(case: Case) -> tuple[LoopProgram, dict[str, Tensor], dict[Any, int]]:
    """The loop program, its constants, and numbers for its symbols."""
    mode = "symbolic" if case.dynamic else "fake"
    inputs = case.inputs()
    traced = make_fx(case.function, decomposition_table=decompositions(), tracing_mode=mode)(*(case.dynamic or inputs))
    output = traced.graph.output_node()
    if not isinstance(output.args[0], (list, tuple)):
        output.args = ((output.args[0],),)
    traced.graph.eliminate_dead_code()
    symbols: dict[Any, int] = {}
    for node, given in zip(traced.graph.find_nodes(op="placeholder"), inputs, strict=True):
        for size, number in zip(node.meta["val"].shape, given.shape, strict=True):
            if isinstance(size, torch.SymInt):
                symbols[size.node.expr] = number
    constants = {n.name: getattr(traced, n.target) for n in traced.graph.find_nodes(op="get_attr")}
    for node in traced.graph.find_nodes(op="get_attr"):
        node.meta.setdefault("val", constants[node.name])
    return write_program(traced, gpu_scalar.supported), constants, symbols


def steps_of(case: Case) -> Iterator[tuple[Launch, list[Tensor], list[Tensor], dict[Any, int]]]:
    """Each kernel with its memory (flat) before and after, as the reference evaluator has it."""
    program, constants, symbols = program_of(case)
    env: dict[str, Any] = dict(zip(program.inputs, case.inputs(), strict=True)) | constants
    for step in program.steps:
        if not isinstance(step, Launch):
            single = LoopProgram([*env], [step], [Ref(step.writes[0])] if step.writes else [], program.places, set())
            for name, made in zip(step.writes, evaluate.run_program(single, [*env.values()], {}, symbols), strict=True):
                env[name] = made
            continue
        before = []
        for name in step.buffers:
            if name not in env:
                place = program.places[name]
                sizes, strides = ([concrete(n, symbols) for n in ns] for ns in (place.sizes, place.strides))
                env[name] = torch.empty_strided(sizes, strides, dtype=place.dtype).fill_(77)
            before.append(evaluate.memory_of(env[name]).clone())
        memory = [evaluate.memory_of(env[name]) for name in step.buffers]
        evaluate.run_kernel(step.kernel, memory, symbols)
        yield step, before, [m.clone() for m in memory], symbols


def function_kernel(op: str, arguments: int, dtype: torch.dtype, n: int) -> Kernel:
    """One scalar operation on every element of its operands."""
    at = Index.axis(0)
    buffers = [Buffer(f"x{i}", dtype) for i in range(arguments)]
    values = [Value("load", (), dtype, (i, at)) for i in range(arguments)]
    values.append(Value(op, tuple(range(arguments)), dtype))
    values.append(Value("store", (arguments,), dtype, (arguments, at)))
    return Kernel(op, [n], [0], [], [*buffers, Buffer("out", dtype)], values)
