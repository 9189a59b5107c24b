"""`backend="native"`: fused machine code, made in this process.

Enters: a torch-level graph. Leaves: a callable. Forward and backward graphs, decomposed while they are traced, become
loop programs (`fuse`), machine code and a host function each (`codegen`), on the CPU and on NVIDIA GPUs. What cannot be
compiled, and what is on other devices, runs operator by operator, as `aot_eager` does, and a log line says why. A mode
makes CUDA graphs of the host functions on a GPU.
"""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .. import events
from ..autograd.compile import compile_function, make_boxed
from ..autograd.tangents import Boxed
from ..codegen import gpu_host, gpu_scalar, host, jit, scalar, sizes
from ..codegen.kernels import llvm_text
from ..errors import CannotDerive
from ..fuse.blocks import BlockTarget, run_in_blocks
from ..fuse.channels_last import prefer_channels_last
from ..fuse.decompose import decompositions
from ..fuse.gathers import RunOp, gather_first
from ..fuse.in_place import write_in_place
from ..fuse.loops import Call, Launch, LoopProgram, Ref, in_order
from ..fuse.memory import plan_memory
from ..fuse.overwrite import write_over
from ..fuse.script import program_script, program_text
from ..fuse.split import split_reductions
from ..fuse.views import NoMap
from ..fuse.write import write_program
from . import aot_eager, eager
from .cuda_graphs import Replayed, why_not_capturable
from .data_scalars import split
from .launch_bound import why_not_worth
from .short_memory import looking
from .tape import tape_of


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    return _compile(gm, example_inputs, captures=None)


# Whether a mode asks for CUDA graphs. None: where they are worth it.
CAPTURES = {"default": None, "reduce-overhead": True, "max-autotune": True, "max-autotune-no-cudagraphs": False}


class NativeInMode:
    """This backend; modes are for graphs on a GPU."""

    benchmarks = False  # nothing is timed

    def __init__(self, mode: str) -> None:
        self._captures = CAPTURES[mode]

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return _compile(gm, example_inputs, captures=self._captures)


_NO_CODE = (host.NotCompiled, jit.Unavailable, sizes.UnknownSize, NoMap)

in_mode = functools.cache(NativeInMode)  # one for each mode: functions compiled alike share their recordings


@dataclass(frozen=True)
class Asked:
    captures: bool | None = None  # CUDA graphs; None: where they are worth it
    random: bool = False  # see `options.native_random`
    frozen: bool = False  # see `options.frozen_weights`


def _compile(gm: fx.GraphModule, example_inputs: Sequence[Any], *, captures: bool | None) -> Callable[..., Any]:
    if gm.meta.get("cuda_graphs") is not None:
        captures = bool(gm.meta["cuda_graphs"])
    asked = Asked(captures, *[bool(gm.meta.get(name)) for name in ("native_random", "frozen_weights")])
    try:
        parts = split(gm, example_inputs)
        if parts is not None:
            return parts.compiled(functools.partial(_derive, asked=asked))
        return _derive(gm, example_inputs, asked)
    except CannotDerive as why:
        events.emit(events.NotDerived(why))
        return eager.compile_graph(gm, example_inputs)


def _derive(gm: fx.GraphModule, example_inputs: Sequence[Any], asked: Asked) -> Callable[..., Any]:
    try:
        return compile_function(
            gm,
            example_inputs,
            fw_compiler=functools.partial(_generate_or_run if asked.random else _generate, part="forward", asked=asked),
            bw_compiler=functools.partial(_generate_or_run, part="backward", asked=asked),
            decompositions=decompositions(asked.random),
            with_devices=False,  # a meta tensor stands for one on the CPU
            by_tangents=True,
            rewrite=_rewrite,
            about=_about(example_inputs, asked),
        )
    except _NO_CODE as why:  # in eager's operators then: there are far fewer of them than after decomposition
        events.emit(events.NotGenerated("forward", str(why)))
        return aot_eager.compile_graph(gm, example_inputs)


def _about(example_inputs: Sequence[Any], asked: Asked) -> Hashable | None:
    """What the machine code depends on besides the graph; None where it keeps addresses or contents of one graph."""
    on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in example_inputs)
    if asked.frozen or (on_gpu and asked.captures is not False):
        return None
    return "native", asked, torch.backends.cudnn.allow_tf32


def _rewrite(module: fx.GraphModule, run: RunOp) -> None:
    gather_first(module, run)
    prefer_channels_last(module, run)


def _generate_or_run(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, part: str, asked: Asked = Asked()
) -> Callable[..., Any]:
    """A backward is compiled when it is first needed, for a forward that there is already. Random numbers that kernels
    compute are the same without them."""
    try:
        return _generate(module, example_inputs, part=part, asked=asked)
    except _NO_CODE as why:
        events.emit(events.NotGenerated(part, str(why)))
        return _plain(module)


def _plain(module: fx.GraphModule) -> Boxed:
    written = [*(module.meta.get("writes") or {}).values()]
    return looking(module, make_boxed(module), written)


def _generate(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, part: str, asked: Asked = Asked()
) -> Callable[..., Any]:
    start = time.perf_counter()
    program = _program(module)
    if part == "backward":
        # The forward has checked the same indices. What it keeps is large, and let go of as soon as it was used.
        program.may_fail = False
        program.dying = _dying(module)
    frozen = _parameters(module) if asked.frozen and "writes" in module.meta else ()  # without a backward
    compiled: Callable[..., Any] = _host_function(module, program, _plain(module), frozen)
    if events.listening(events.CodeGenerated):
        events.emit(_generated(module, program, example_inputs, part, time.perf_counter() - start))
    return _captured(module, example_inputs, program, compiled, part, asked)


def _captured(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    program: LoopProgram,
    compiled: Callable[..., Any],
    part: str,
    asked: Asked,
) -> Callable[..., Any]:
    """As a CUDA graph, if it can be one, and is to be one."""
    device = _device(module)
    if device.type != "cuda" or asked.captures is False:
        return compiled
    why = why_not_capturable(module, example_inputs)
    if why is None and asked.captures is None:
        why = why_not_worth(module, program, _free_memory(device), for_good="writes" in module.meta)
    if why is not None:
        events.emit(events.NotCaptured(part, why))
        return compiled
    results: Any = module.graph.output_node().args[0]
    first = 0 if part == "backward" else module.meta.get("results", len(results))
    kept = {*range(first, len(results)), *module.meta.get("passing", ())}
    return Replayed(compiled, kept=kept, part=part)


def _free_memory(device: torch.device) -> int:
    """Bytes that torch could still give out there."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + kept)


def _generated(
    module: fx.GraphModule, program: LoopProgram, example_inputs: Sequence[Any], part: str, seconds: float
) -> events.CodeGenerated:
    title = f"The {part} as a loop program: every kernel is a function, `graph` calls them in order."
    inputs = list(example_inputs)
    return events.CodeGenerated(
        "native",
        part,
        seconds,
        code=lambda: program_text(program),
        script=lambda: program_script(title, program, inputs, _constants(module)),
        llvm=lambda: llvm_text([step.kernel for step in in_order(program.steps) if isinstance(step, Launch)]),
    )


def _dying(module: fx.GraphModule) -> list[str]:
    """The inputs of a backward that die with it: all but parameters and what else is alive anyway."""
    given = module.graph.find_nodes(op="placeholder")
    tensors = [node for node in given if isinstance(node.meta.get("val"), torch.Tensor)]
    return [node.name for node in tensors if not node.meta.get("parameter")]


def _parameters(module: fx.GraphModule) -> list[str]:
    return [node.name for node in module.graph.find_nodes(op="placeholder") if node.meta.get("parameter")]


def _constants(module: fx.GraphModule) -> dict[str, Any]:
    return {node.name: getattr(module, str(node.target)) for node in module.graph.find_nodes(op="get_attr")}


def _program(module: fx.GraphModule) -> LoopProgram:
    device = _device(module)
    if device.type == "cuda":
        if (why := gpu_host.is_available()) is not None:
            raise host.NotCompiled(why)
        program = write_program(module, gpu_scalar.supported)
        _check_devices(module, program, device)
        return program
    if (why := host.is_available()) is not None:
        raise host.NotCompiled(why)
    program = split_reductions(write_program(module, scalar.supported))
    writes = module.meta.get("writes") or {}
    program = write_in_place(program, {position: program.inputs[number] for position, number in writes.items()})
    program = run_in_blocks(program, BlockTarget(host.units_of, host.pack_bytes, torch.get_num_threads()))
    return write_over(program)


def _devices(module: fx.GraphModule) -> dict[str, torch.device]:
    values = ((node.name, node.meta.get("val")) for node in module.graph.nodes)
    return {name: value.device for name, value in values if isinstance(value, torch.Tensor)}


def _device(module: fx.GraphModule) -> torch.device:
    """Where kernels run: on the one GPU that has tensors of the graph, if there is one."""
    found = {device for device in _devices(module).values() if device.type not in ("cpu", "meta")}
    if len(found) > 1 or any(device.type != "cuda" for device in found):
        raise host.NotCompiled(f"tensors on {', '.join(sorted(map(str, found)))}")
    return found.pop() if found else torch.device("cpu")


def _check_devices(module: fx.GraphModule, program: LoopProgram, device: torch.device) -> None:
    """Tensors of the CPU may go through a graph on a GPU, to and from operators; kernels get numbers of them alone."""
    devices = _devices(module)
    for step in program.steps:
        for name in step.buffers if isinstance(step, Launch) else ():
            place = program.places.get(name)
            number = place is None or (not place.sizes and devices.get(name) == torch.device("cpu"))
            if (devices.get(name) != device and not number) or (number and name in step.writes):
                raise host.NotCompiled(f"a kernel on {device} with {name}, which is not there")


def _host_function(
    module: fx.GraphModule, program: LoopProgram, plain: Callable[..., Any], frozen: Collection[str]
) -> Any:
    constants, device = _constants(module), _device(module)
    target = gpu_host.Gpu(program, _devices(module), device) if device.type == "cuda" else None
    compute_of = functools.partial(sizes.compute, program)
    written = (module.meta.get("writes") or {}).values()
    return host.build(program, plan_memory(program), constants, _tape, compute_of, plain, target, written, frozen)


def _tape(call: Call) -> Any:
    """One operator, to be called from C with its operands."""
    graph = fx.Graph()
    inputs = {name: graph.placeholder(f"operand_{i}") for i, name in enumerate(call.reads)}

    def filled(arg: Any) -> Any:
        if isinstance(arg, Ref):
            return inputs[arg.name]
        if isinstance(arg, (list, tuple)):
            return type(arg)([filled(a) for a in arg])
        if isinstance(arg, dict):
            return {k: filled(a) for k, a in arg.items()}
        return slice(filled(arg.start), filled(arg.stop), filled(arg.step)) if isinstance(arg, slice) else arg

    target = call.target._op if isinstance(call.target, torch._ops.OpOverload) else call.target
    node = graph.call_function(target, filled(call.args), filled(call.kwargs))
    results = [node] if call.parts is None else [graph.call_function(operator.getitem, (node, i)) for i in call.parts]
    graph.output(tuple(results))
    made = tape_of(graph)
    if made is None:
        raise host.NotCompiled(f"a call of {call.label}")
    return made
