"""The reference evaluator: loop programs run slowly, by torch, in the plainest way. Every test of a target compares
with it.

Enters: a `LoopProgram` and its inputs, or a `Kernel` and its buffers. Leaves: what the program returns. Each value of a
kernel is one tensor with a dimension per axis; nothing is vectorised, fused or reused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .loops import Alias, BufferView, Call, Gemm, Index, Kernel, Launch, LoopProgram, Ref, concrete, in_order
from .random_numbers import philox

_BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.true_divide, "pow": torch.pow,
    "floor_div": functools.partial(torch.div, rounding_mode="floor"),
    "trunc_div": functools.partial(torch.div, rounding_mode="trunc"),
    "remainder": torch.remainder, "fmod": torch.fmod, "min": torch.minimum, "max": torch.maximum,
    "atan2": torch.atan2, "copysign": torch.copysign,
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip
_UNARY: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name)
    for name in "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh "
    "acosh atanh erf erfc sigmoid floor ceil trunc round neg abs sign signbit".split()
} | {"not": torch.bitwise_not}
_BINARY |= {"philox": functools.partial(philox, more=False), "philox_more": functools.partial(philox, more=True)}
SCALAR_OPS = frozenset((*_BINARY, *_UNARY, "where", "cast", "round_bf16", "round_f16"))


_broadcast: Callable[..., torch.Size] = torch.broadcast_shapes


class OutOfRange(IndexError):
    """A checked index lies outside."""


def run_kernel(kernel: Kernel, buffers: Sequence[Tensor], symbols: dict[Any, int]) -> None:
    """`buffers`: flat memory, beginning where index 0 lies."""
    extents = [concrete(e, symbols) for e in kernel.extents]
    rank = len(extents)
    if any(extents[a] == 0 for a in kernel.outer):
        return
    grid = [torch.arange(e).view([-1 if d == a else 1 for d in range(rank)]) for a, e in enumerate(extents)]
    made: list[Tensor] = []

    def place(index: Index) -> Tensor:
        flat = torch.full([1] * rank, concrete(index.offset, symbols))
        for axis, c in index.terms:
            flat = flat + grid[axis] * concrete(c, symbols)
        for value, stride in index.gathered:
            flat = flat + made[value] * concrete(stride, symbols)
        return flat

    varies = kernel.varies()
    for number, value in enumerate(kernel.values):
        args = [made[a] for a in value.args]
        if value.op == "const":
            result = torch.full([1] * rank, value.attr, dtype=value.dtype)
        elif value.op == "index":
            result = place(value.attr)
        elif value.op == "load":
            result = _load(buffers[value.attr[0]], place(value.attr[1]), args).to(value.dtype)
        elif value.op == "store":
            flat = place(value.attr[1])
            shape = _broadcast(flat.shape, args[0].shape)
            memory = buffers[value.attr[0]]
            memory[flat.expand(shape).reshape(-1)] = args[0].expand(shape).reshape(-1).to(memory.dtype)
            result = args[0]
        elif value.op == "check":
            nowhere = varies[number] & set(kernel.inner) and any(extents[a] == 0 for a in kernel.inner)
            if not nowhere and not bool(args[0].all()):
                raise OutOfRange(kernel.name)
            result = args[0]
        elif value.op == "scan":
            result = _scan(kernel, value.attr, args[0], extents)
        elif value.op == "reduce":
            result = _reduce(kernel, value.attr, args, extents)
        else:
            result = _scalar(value.op, args, value.dtype)
        made.append(result)


def _load(memory: Tensor, flat: Tensor, condition: list[Tensor]) -> Tensor:
    if condition:
        shape = _broadcast(flat.shape, condition[0].shape)
        safe = torch.where(condition[0], flat, torch.zeros_like(flat)).expand(shape)
        return torch.where(condition[0], memory[safe], torch.zeros([], dtype=memory.dtype))
    return memory.take(flat)  # a copy, of a single element too


def _scalar(op: str, args: list[Tensor], dtype: torch.dtype) -> Tensor:
    if op == "where":
        return torch.where(args[0], args[1], args[2])
    if op == "cast":
        return args[0].to(dtype)
    if op in ("round_bf16", "round_f16"):
        return args[0].to(torch.bfloat16 if op == "round_bf16" else torch.float16).to(torch.float32)
    if op in _BINARY:
        return _BINARY[op](*args)
    return _UNARY[op](*args)


def _reduce(kernel: Kernel, kind: str, args: list[Tensor], extents: list[int]) -> Tensor:
    dims = kernel.inner
    shape = _broadcast(*[a.shape for a in args])
    full = [e if d in dims else s for d, (e, s) in enumerate(zip(extents, shape, strict=True))]
    value = args[0].expand(full)
    if not dims:
        if kind in ("argmax", "argmin"):
            return args[1]
        return value + 0 if kind == "sum" else value  # eager's sum of -0.0 is 0.0
    if kind in ("argmax", "argmin"):
        return _arg_reduce(kind, value, args[1].expand(full), dims)
    if kind == "sum":
        return value.sum(dims, keepdim=True, dtype=value.dtype)
    if kind == "prod":
        for d in dims:
            value = value.prod(d, keepdim=True, dtype=value.dtype)
        return value
    fold: Any = {"max": torch.amax, "min": torch.amin, "any": torch.any, "all": torch.all}[kind]
    return fold(value, dims, keepdim=True)


def _scan(kernel: Kernel, kind: str, value: Tensor, extents: list[int]) -> Tensor:
    """Along the inner axes, in their order, as along one."""
    sizes = zip(extents, value.shape, strict=True)
    full = value.expand([e if d in kernel.inner else s for d, (e, s) in enumerate(sizes)])
    order = [d for d in range(full.dim()) if d not in kernel.inner] + kernel.inner
    moved = full.permute(order)
    flat = moved.reshape([*moved.shape[: len(order) - len(kernel.inner)], -1])
    scanned: Any = {"sum": torch.cumsum, "prod": torch.cumprod, "logaddexp": torch.logcumsumexp}[kind](flat, -1)
    return scanned.view(moved.shape).permute([order.index(d) for d in range(full.dim())])


def _arg_reduce(kind: str, value: Tensor, position: Tensor, dims: list[int]) -> Tensor:
    """The smallest position among the best values; NaN is better than any."""
    best = value.amax(dims, keepdim=True) if kind == "argmax" else value.amin(dims, keepdim=True)
    hit = (value == best) | (value.isnan() & best.isnan()) if value.is_floating_point() else value == best
    return torch.where(hit, position, torch.full_like(position, torch.iinfo(torch.int64).max)).amin(dims, keepdim=True)


# ------------------------------------------------------------------------------------------------------ programs


def memory_of(tensor: Tensor) -> Tensor:
    """All memory that a tensor reaches, flat, from its first element on."""
    if tensor.numel() == 0:
        return tensor.new_empty(1)
    reach = 1 + sum((s - 1) * t for s, t in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided([reach], [1])


def run_program(
    program: LoopProgram, inputs: Sequence[Any], constants: dict[str, Tensor], symbols: dict[Any, int]
) -> list[Any]:
    env: dict[str, Any] = dict(zip(program.inputs, inputs, strict=True)) | constants

    def made(place: BufferView) -> Tensor:
        if place.buffer not in env:
            base = program.places[place.buffer]
            sizes, strides = ([concrete(n, symbols) for n in ns] for ns in (base.sizes, base.strides))
            env[place.buffer] = torch.empty_strided(sizes, strides, dtype=base.dtype)
        sizes, strides = ([concrete(n, symbols) for n in ns] for ns in (place.sizes, place.strides))
        base = env[place.buffer]
        return base.as_strided(sizes, strides, base.storage_offset() + concrete(place.offset, symbols))

    for step in in_order(program.steps):
        if isinstance(step, Launch):
            tensors = []
            for name in step.buffers:
                given = env[name] if name in env else made(program.places[name])
                tensors.append(
                    memory_of(given) if isinstance(given, Tensor) else torch.tensor([given], dtype=torch.float64)
                )
            run_kernel(step.kernel, tensors, symbols)
        elif isinstance(step, Gemm):
            made(step.out).copy_(torch.matmul(made(step.a), made(step.b)))
        elif isinstance(step, Call):
            args, kwargs = _filled(step.args, env), _filled(step.kwargs, env)
            result = step.target(*args, **kwargs)
            results = [result] if step.parts is None else [result[part] for part in step.parts]
            env.update(zip(step.outs, results, strict=True))
        elif isinstance(step, Alias):
            env[step.out] = made(step.place)
    return [env[out.name] if isinstance(out, Ref) else out for out in program.outputs]


def _filled(arg: Any, env: dict[str, Any]) -> Any:
    if isinstance(arg, Ref):
        return env[arg.name]
    if isinstance(arg, (list, tuple)):
        return (
            type(arg)([_filled(a, env) for a in arg]) if type(arg) in (list, tuple) else [_filled(a, env) for a in arg]
        )
    if isinstance(arg, dict):
        return {k: _filled(a, env) for k, a in arg.items()}
    if isinstance(arg, slice):
        return slice(_filled(arg.start, env), _filled(arg.stop, env), _filled(arg.step, env))
    return arg
