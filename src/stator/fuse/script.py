"""A loop program as Python: to be read (`program_text`), and as a file that runs without stator (`program_script`).

Enters: a `LoopProgram`, example inputs. Leaves: text. Every kernel is a function of flat memory; a value is a tensor
with a dimension per axis, so that loops are not written out. Above each stand the user's lines that it computes, and
why it was not fused with more; sizes that are symbols have the values of the example inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import source_lines
from ..support.op_namespaces import is_torchs_own
from ..support.python_source import SourceValues, absent, broken, number, script
from .loops import (
    Alias,
    Blocked,
    BufferView,
    Call,
    Gemm,
    Index,
    Kernel,
    Launch,
    LoopProgram,
    Ref,
    Size,
    Value,
    in_order,
)
from .memory import bytes_moved, plan_memory
from .random_numbers import philox

_HELPERS = '''
def axis(number, extent, rank):
    """The points of a loop, as a tensor with a dimension for every loop of the kernel."""
    return torch.arange(extent).view([-1 if d == number else 1 for d in range(rank)])


def memory(tensor):
    """All memory that a tensor reaches, flat, from its first element on."""
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return tensor.as_strided([reach], [1]) if tensor.numel() else tensor.new_empty(1)


def seen(tensor, sizes, strides, offset):
    return tensor.as_strided(sizes, strides, tensor.storage_offset() + offset)


def load(buffer, at, where=None):
    if where is None:
        return buffer.take(at)
    at, where = torch.broadcast_tensors(at, where)
    return torch.where(where, buffer[at.where(where, 0)], torch.zeros([], dtype=buffer.dtype))


def store(buffer, at, value):
    at, value = torch.broadcast_tensors(at, value)
    buffer[at.reshape(-1)] = value.reshape(-1).to(buffer.dtype)


def check(condition):
    if not condition.all():
        raise IndexError("an index lies outside")


def whole(value, inner, extents):
    """Along the loops that are folded, a value that does not depend on them counts once for each point."""
    return value.expand([extent if d in inner else n for d, (n, extent) in enumerate(zip(value.shape, extents))])


def fold(kind, value, inner, extents, position=None):
    value = whole(value, inner, extents)
    if not inner:
        return value if position is None else position
    if position is not None:
        position = whole(position, inner, extents).expand(value.shape)
        best = value.amax(inner, keepdim=True) if kind == "argmax" else value.amin(inner, keepdim=True)
        hit = (value == best) | ((value != value) & (best != best))
        return position.where(hit, 2**63 - 1).amin(inner, keepdim=True)
    if kind == "prod":
        for d in inner:
            value = value.prod(d, keepdim=True)
        return value
    if kind == "sum":
        return value.sum(inner, keepdim=True, dtype=value.dtype)
    folds = {"max": torch.amax, "min": torch.amin, "any": torch.any, "all": torch.all}
    return folds[kind](value, inner, keepdim=True)


def scan(kind, value, inner, extents):
    """What was folded so far, along the inner loops in their order."""
    value = whole(value, inner, extents)
    order = [d for d in range(value.dim()) if d not in inner] + inner
    moved = value.permute(order)
    fold = {"sum": torch.cumsum, "prod": torch.cumprod, "logaddexp": torch.logcumsumexp}[kind]
    flat = fold(moved.reshape([*moved.shape[: len(order) - len(inner)], -1]), -1)
    return flat.view(moved.shape).permute([order.index(d) for d in range(value.dim())])


def parts(results, wanted):
    return [results[part] for part in wanted]
'''
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_CALLED = {
    "min": "torch.minimum({})", "max": "torch.maximum({})", "not": "torch.bitwise_not({})",
    "floor_div": 'torch.div({}, rounding_mode="floor")', "trunc_div": 'torch.div({}, rounding_mode="trunc")',
    "round_bf16": "({}).bfloat16().float()", "round_f16": "({}).half().float()", "where": "torch.where({})",
    "check": "check({})", "philox": "philox({}, False)", "philox_more": "philox({}, True)",
}  # fmt: skip


def program_script(
    title: str, program: LoopProgram, inputs: Sequence[Any], constants: Mapping[str, torch.Tensor]
) -> str:
    """A file that runs the program on inputs like the given ones."""
    values, numbers = SourceValues(), _numbers_of(program, inputs)
    given = values.items(list(inputs))
    fixed = "".join(f"\n{name} = {values.expression(value)}" for name, value in constants.items())
    sizes = "".join(f"\n{name} = {value}" for name, value in numbers.items())
    call = "\n".join(broken(f"        results = graph({given})"))
    text = program_text(program, values)  # first: it may add lines to `values`
    lines = "\n".join(values.lines)
    helpers = f"{_HELPERS}\n\n{source_lines.of_function(philox)}" if "philox(" in text else _HELPERS
    body = (
        f"{helpers}\n\ntorch.manual_seed(0)\n{lines}{fixed}{sizes}\n\n\n{text}\n\n\n"
        f'if __name__ == "__main__":\n    with torch.no_grad():\n{call}\n    show(results)\n'
    )
    return script(title, body)


def program_text(program: LoopProgram, values: SourceValues | None = None) -> str:
    """The schedule in short, every kernel, and the steps in order."""
    kernels = ["\n".join(_kernel(step.kernel)) for step in in_order(program.steps) if isinstance(step, Launch)]
    graph = "\n".join(_graph(program, values or SourceValues()))
    return "\n\n\n".join([_schedule(program), *kernels, graph])


def _schedule(program: LoopProgram) -> str:
    """What was fused, in a few lines."""
    launches = [step for step in in_order(program.steps) if isinstance(step, Launch)]
    fused = sum(len(step.kernel.origins) for step in launches)
    gemms = sum(isinstance(step, Gemm) for step in in_order(program.steps))
    calls = sum(isinstance(step, Call) for step in in_order(program.steps))
    lines = [
        f"# {len(launches)} kernels for {fused} operations, {gemms} matrix products, {calls} other calls",
        f"# bytes that kernels and matrix products move: {bytes_moved(program)}; arena: {plan_memory(program).size}",
    ]
    return "\n".join(lines)


def _numbers_of(program: LoopProgram, inputs: Sequence[Any]) -> dict[str, Any]:
    """The symbols in sizes, with the values that they have for these inputs."""
    found: dict[str, Any] = {}
    for name, value in zip(program.inputs, inputs, strict=True):
        place = program.places.get(name)
        if place is not None and isinstance(value, torch.Tensor):
            pairs = [*zip(place.sizes, value.shape, strict=True), *zip(place.strides, value.stride(), strict=True)]
            found.update({str(size): number(n) for size, n in pairs if getattr(size, "is_Symbol", False)})
        elif (symbol := program.numbers.get(name)) is not None and getattr(symbol, "is_Symbol", False):
            found[str(symbol)] = number(value)
    return dict(sorted(found.items()))


# -------------------------------------------------------------------------------------------------------- kernels


def _kernel(kernel: Kernel) -> Iterator[str]:
    yield from (f"# {line}" for line in kernel.lines)
    yield from (f"# not fused with more: {why}" for why in kernel.why_not_more)
    yield from broken(f"def {kernel.name}({', '.join(buffer.name for buffer in kernel.buffers)}):")
    yield from broken(f"    # {', '.join(kernel.origins)}")
    yield f"    extents, inner = {_sizes(kernel.extents)}, {kernel.inner}"
    for axis in (*kernel.outer, *kernel.inner):
        kind = "  # folded" if axis in kernel.inner else ""
        yield f"    i{axis} = axis({axis}, extents[{axis}], {len(kernel.extents)}){kind}"
    for place, value in enumerate(kernel.values):
        text = _value(kernel, value)
        yield from broken(f"    {text}" if value.op in ("store", "check") else f"    v{place} = {text}")


def _value(kernel: Kernel, value: Value) -> str:
    args = [f"v{a}" for a in value.args]
    rank, dtype = len(kernel.extents), value.dtype
    if value.op == "const":
        return f"torch.full({[1] * rank}, {SourceValues().expression(value.attr)}, dtype={dtype})"
    if value.op == "index":
        return _index(value.attr, rank)
    if value.op == "load":
        buffer, index = value.attr
        return f"load({', '.join([kernel.buffers[buffer].name, _index(index, rank), *args])}).to({dtype})"
    if value.op == "store":
        buffer, index = value.attr
        return f"store({kernel.buffers[buffer].name}, {_index(index, rank)}, {args[0]})"
    if value.op == "reduce":
        return f"fold({value.attr!r}, {args[0]}, inner, extents{''.join(f', {a}' for a in args[1:])})"
    if value.op == "scan":
        return f"scan({value.attr!r}, {args[0]}, inner, extents)"
    if value.op == "cast":
        return f"{args[0]}.to({dtype})"
    if value.op in _INFIX:
        return f"{args[0]} {_INFIX[value.op]} {args[1]}"
    if value.op in _CALLED:
        return _CALLED[value.op].format(", ".join(args))
    return f"torch.{value.op}({', '.join(args)})"


def _index(index: Index, rank: int) -> str:
    """The place in flat memory, as a tensor."""
    parts = [f"i{a}" if c == 1 else f"i{a} * ({c})" for a, c in index.terms]
    parts += [f"v{v}" if s == 1 else f"v{v} * ({s})" for v, s in index.gathered]
    if not parts:
        return f"torch.full({[1] * rank}, {index.offset})"
    return " + ".join([*parts, *([] if index.offset == 0 else [f"({index.offset})"])])


# ------------------------------------------------------------------------------------------------------ the program


def _graph(program: LoopProgram, values: SourceValues) -> Iterator[str]:
    yield from broken(f"def graph({', '.join(program.inputs)}):")
    made = set(program.inputs)
    for whole in program.steps:
        if isinstance(whole, Blocked):
            yield f"    # the next {len(whole.steps)} steps run together, {whole.each} of {whole.units} units at a time"
        for step in in_order([whole]):
            for name in step.writes:
                if isinstance(step, (Launch, Gemm)) and name not in made:
                    place = program.places[name]
                    sizes = f"{_sizes(place.sizes)}, {_sizes(place.strides)}"
                    yield from broken(f"    {name} = torch.empty_strided({sizes}, dtype={place.dtype})")
                made.add(name)
            yield from broken(f"    {_step(program, step, values)}")
    results = ", ".join(out.name if isinstance(out, Ref) else values.expression(out) for out in program.outputs)
    yield from broken(f"    return [{results}]")


def _step(program: LoopProgram, step: Any, values: SourceValues) -> str:
    if isinstance(step, Launch):
        given = [_flat(program, name) for name in step.buffers]
        return f"{step.kernel.name}({', '.join(given)})"
    if isinstance(step, Gemm):
        product = f"{_seen(step.a)} @ {_seen(step.b)}"
        return f"{_seen(step.out)}.{'add_' if step.accumulate else 'copy_'}({product})"
    if isinstance(step, Alias):
        return f"{step.out} = {_seen(step.place)}"
    args = [_argument(a, values) for a in step.args]
    args += [f"{name}={_argument(a, values)}" for name, a in step.kwargs.items()]
    call = f"{_target(step.target, values)}({', '.join(args)})"
    if step.parts is None:
        return f"{', '.join(step.outs)} = {call}" if step.outs else call
    return f"[{', '.join(step.outs)}] = parts({call}, {step.parts})"


def _flat(program: LoopProgram, name: str) -> str:
    return f"torch.tensor([{name}], dtype=torch.float64)" if name in program.numbers else f"memory({name})"


def _seen(place: BufferView) -> str:
    return f"seen({place.buffer}, {_sizes(place.sizes)}, {_sizes(place.strides)}, {place.offset})"


def _sizes(sizes: Sequence[Size]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _target(target: Any, values: SourceValues) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}" if is_torchs_own(target) else absent(f"torch.ops.{target}")
    return values.expression(target)


def _argument(value: Any, values: SourceValues) -> str:
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_argument(item, values) for item in value)}]"
    if isinstance(value, slice):
        return f"slice({', '.join(_argument(part, values) for part in (value.start, value.stop, value.step))})"
    return values.expression(value)
