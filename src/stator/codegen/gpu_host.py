"""The host function of a graph on a GPU: a loop program, run step by step from Python.

Enters: a `Program` (any object of that form: this room does not know `fuse`) and its memory plan. Leaves: a callable
that takes the list of inputs, clears it, and gives the results. Kernels go to the stream that is current in the call;
buffers between them lie in one block of the caching allocator, which is taken anew in each call, so it is that
stream's; library calls go through the dispatcher. Nothing waits for the device. A checked index that lies outside
stops the kernel, as eager's assertion does: the next synchronisation raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import ptx
from .gpu_driver import Bound, Loaded
from .gpu_values import Size

Evaluate = Callable[[Size], int]
_MOST_SIZES = 64  # sets of sizes for which a plan is kept
_tensor_types = (Tensor, torch.nn.Parameter)


class _Plan:
    """Everything that depends on sizes, as numbers."""

    def __init__(self, host: GpuHost, evaluate: Evaluate) -> None:
        program, plan = host.program, host.plan

        def layout(place: Any) -> tuple[torch.Size, tuple[int, ...]]:
            return torch.Size([evaluate(s) for s in place.sizes]), tuple([evaluate(s) for s in place.strides])

        self.arena = evaluate(plan.size)
        self.offsets = {name: evaluate(offset) for name, offset in plan.offsets.items()}
        self.places = {name: (*layout(place), place.dtype) for name, place in program.places.items()}
        self.bounds = {n: host.kernels.bind(k, evaluate) for n, k in host.kernel_of_step.items()}
        self.buffers = {n: [self.offsets.get(b, b) for b in program.steps[n].buffers] for n in host.kernel_of_step}
        self.aliases = {
            number: (*layout(step.place), evaluate(step.place.offset))
            for number, step in enumerate(program.steps)
            if hasattr(step, "place")
        }


class GpuHost:
    """Callable; `load` makes kernels callable (another one in tests)."""

    _boxed_call = True

    def __init__(
        self,
        program: Any,
        plan: Any,
        constants: Mapping[str, Any],
        compute_of: Callable[[Sequence[Any]], Callable[[list[Any]], tuple[int, ...] | None] | None],
        fallback: Callable[[list[Any]], Any],
        device: torch.device,
        load: Callable[[list[Any], list[ptx.WrittenForGpu], int], Any] | None = None,
    ) -> None:
        self.program, self.plan, self.device = program, plan, device
        self._constants, self._fallback = dict(constants), fallback
        kernels: dict[str, Any] = {}
        self.kernel_of_step: dict[int, int] = {}
        for number, step in enumerate(program.steps):
            if hasattr(step, "kernel"):
                key = step.kernel.key()
                kernels.setdefault(key, step.kernel)
                self.kernel_of_step[number] = list(kernels).index(key)
        written = [ptx.write(kernel, f"kernel{n}") for n, kernel in enumerate(kernels.values())]
        index = device.index or 0
        self.kernels: Any = load([*kernels.values()], written, index) if load else Loaded(written, index)
        self._unknown = list(dict.fromkeys(_expressions(program, plan, written)))
        self._compute = compute_of(self._unknown)
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._lock = threading.RLock()
        self._touched = {name for step in program.steps if not hasattr(step, "target") for name in step.reads}
        self._arguments = {
            n: tuple([_filler(part) or _same(part) for part in (step.args, step.kwargs)])
            for n, step in enumerate(program.steps)
            if hasattr(step, "target")
        }
        self._checked = [(n, name) for n, name in enumerate(program.inputs) if name in program.places]

    def __call__(self, args: list[Any]) -> Any:
        values = self._compute(args) if self._compute is not None else ()
        if values is None:  # sizes that the graph was not compiled for
            return self._fallback(args)
        plan = self._plans.get(values) or self._new_plan(values)
        if not all(_fits(args[n], plan.places[name], self.device) for n, name in self._checked):
            return self._fallback(args)
        env: dict[str, Any] = dict(zip(self.program.inputs, args, strict=True))
        args.clear()
        env.update(self._constants)
        if self.device.type == "cuda" and torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                return self._run(plan, env)
        return self._run(plan, env)

    def _new_plan(self, values: tuple[int, ...]) -> _Plan:
        numbers = dict(zip(self._unknown, values, strict=True))
        plan = _Plan(self, lambda size: size if isinstance(size, int) else _number(size, numbers))
        with self._lock:
            if len(self._plans) >= _MOST_SIZES:
                self._plans.pop(next(iter(self._plans)))
            self._plans[values] = plan
        return plan

    # -- one call

    def _run(self, plan: _Plan, env: dict[str, Any]) -> tuple[Any, ...]:
        memory, base, stream = self.plan, 0, 0
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device).cuda_stream
            self.kernels.enter()
        if plan.arena:
            arena = torch.empty(plan.arena, dtype=torch.uint8, device=self.device)
            base = arena.data_ptr()
        for number, step in enumerate(self.program.steps):
            for name in memory.allocated.get(number, ()):
                sizes, strides, dtype = plan.places[name]
                env[name] = torch.empty_strided(sizes, strides, dtype=dtype, device=self.device)
            if (bound := plan.bounds.get(number)) is not None:
                self._launch(bound, plan.buffers[number], env, base, stream)
            elif number in plan.aliases:
                sizes, strides, offset = plan.aliases[number]
                of = env[step.place.buffer]
                env[step.out] = of.as_strided(sizes, strides, of.storage_offset() + offset)
            else:
                self._call(number, step, plan, env)
            for name in memory.dropped.get(number, ()):
                env.pop(name, None)
        return tuple([env[out.name] if hasattr(out, "name") else out for out in self.program.outputs])

    def _launch(self, bound: Bound, buffers: Sequence[Any], env: dict[str, Any], base: int, stream: int) -> None:
        """`buffers`: names of tensors, or offsets in the arena."""
        pointers = [base + b if type(b) is int else env[b].data_ptr() for b in buffers]
        chosen = bound.choose(pointers)
        if not chosen.scratch:
            bound.start(chosen, [*pointers, 0, 0], stream)
            return
        scratch = torch.empty(chosen.scratch, dtype=torch.uint8, device=self.device)
        bound.start(chosen, [*pointers, scratch.data_ptr(), 0], stream)

    def _call(self, number: int, step: Any, plan: _Plan, env: dict[str, Any]) -> None:
        args, kwargs = self._arguments[number]
        result = getattr(step.target, "_op", step.target)(*args(env), **kwargs(env))
        results = [result] if step.parts is None else [result[part] for part in step.parts]
        for name, made in zip(step.outs, results, strict=True):
            if name in self._touched and isinstance(made, Tensor):
                made = _as_promised(made, plan.places[name])
            env[name] = made


def _fits(given: Any, place: tuple[torch.Size, tuple[int, ...], torch.dtype], device: torch.device) -> bool:
    """Whether an input is what kernels were written for."""
    sizes, strides, dtype = place
    return (
        type(given) in _tensor_types
        and given.dtype is dtype
        and given.shape == sizes
        and (given.device == device or given.device.type == "cpu")
        and (given.stride() == strides or _same_strides(sizes, strides, given.stride()))
    )


def _same_strides(sizes: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """That of a dimension with one element does not count."""
    return 0 in sizes or all(n == 1 or a == b for n, a, b in zip(sizes, one, other, strict=True))


def _as_promised(made: Tensor, place: tuple[torch.Size, tuple[int, ...], torch.dtype]) -> Tensor:
    """What an operator gave, with the strides that its meta kernel had promised."""
    sizes, strides, dtype = place
    if made.shape != sizes or made.dtype is not dtype:
        raise RuntimeError(f"an operator gave {tuple(made.shape)} of {made.dtype}, not {tuple(sizes)} of {dtype}")
    if made.stride() == strides or _same_strides(sizes, strides, made.stride()):
        return made
    return torch.empty_strided(sizes, strides, dtype=dtype, device=made.device).copy_(made)


def _filler(arg: Any) -> Callable[[Mapping[str, Any]], Any] | None:
    """What gives an argument its values for `Ref`s; None: there is none in it."""
    if type(arg).__name__ == "Ref":
        name = arg.name
        return lambda env: env[name]
    if isinstance(arg, (list, tuple)):
        parts = [(a, _filler(a)) for a in arg]
        if all(fill is None for _, fill in parts):
            return None
        made = [fill or _same(a) for a, fill in parts]
        return (
            (lambda env: tuple([m(env) for m in made]))
            if isinstance(arg, tuple)
            else lambda env: [m(env) for m in made]
        )
    if isinstance(arg, dict):
        values = _filler(list(arg.values()))
        return None if values is None else lambda env: dict(zip(arg, values(env), strict=True))
    if isinstance(arg, slice):
        ends = _filler([arg.start, arg.stop, arg.step])
        return None if ends is None else lambda env: slice(*ends(env))
    return None


def _same(value: Any) -> Callable[[Mapping[str, Any]], Any]:
    return lambda env: value


def _number(size: Size, numbers: Mapping[Any, int]) -> int:
    return int(size) if getattr(size, "is_Integer", False) else numbers[size]


def _expressions(program: Any, plan: Any, written: Iterable[ptx.WrittenForGpu]) -> Iterator[Any]:
    """All sizes that are not numbers."""

    def everything() -> Iterator[Any]:
        yield plan.size
        yield from plan.offsets.values()
        for place in [*program.places.values(), *[s.place for s in program.steps if hasattr(s, "place")]]:
            yield from (*place.sizes, *place.strides, place.offset)
        for kernel in written:
            yield from kernel.sizes
            for variant in kernel.variants:
                yield from (variant.scratch, *[launch.blocks for launch in variant.launches])
                yield from (r.what for r in variant.requirements)

    return (e for e in everything() if not isinstance(e, int) and not getattr(e, "is_Integer", False))
