"""Running: forward and backward graphs behind one node of autograd.

Enters: compiled graphs, boxed (they take a list of tensors and clear it), and the `Plan` of their trace. Leaves: a
function of the original inputs that gives the original outputs.

What holds: what is kept for the backward is kept by autograd (`save_for_backward`), so that it is freed, checked
for writes and handed to the user's hooks as in eager. A backward that is itself to be differentiated runs the
original function.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import events
from ..errors import mark_unwritten
from ..interrupts import let_through
from ..support.tensor_memory import refuse_short
from .custom_functions import Watched
from .equal_graphs import CompiledGraphs
from .functional import TensorView
from .kept import AtOnce, OneByOne, keeping, modified, spend
from .symbols import Later, filled, is_symbolic
from .tangents import Backwards, Boxed, OneBackward
from .trace import ConstantOutput, GraphResult, InputAsOutput, Joint, Plan, PlannedOutput, ViewOutput, WriteBack

_MANY = 4  # writes to inputs: torch makes them in one call, one after another
_MOST_BYTES = 64 << 20  # of an input that is written to: it is copied in every call, in case of a second derivative


@dataclass(frozen=True, slots=True)
class Original:
    """What the graphs were made from, for a backward that is to be differentiated itself."""

    function: Callable[..., Sequence[Any]]
    backward: Callable[..., Sequence[Any]] | None  # as a function of sizes and tangents, if no tensor is kept


@dataclass(frozen=True, slots=True)
class TangentFacts:
    """How the backward expects a tangent."""

    size: tuple[int, ...]  # in these two there may be `Place`s
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def fit(self, tangent: Tensor | None, numbers: Sequence[Any]) -> Tensor:
        """The tangent as expected: zeros if there is none, a copy if its strides are others."""
        stride = filled(self.stride, numbers) if numbers else self.stride
        if tangent is None:
            made = torch.empty_strided(filled(self.size, numbers), stride, dtype=self.dtype, device=self.device)
            return made.zero_()
        if (
            tangent.stride() == stride
            and tangent.layout is torch.strided
            and not (tangent.is_conj() or tangent.is_neg())
        ):
            return tangent
        if tangent.layout is not torch.strided:
            tangent = tangent.to_dense()
        refuse_short(tangent)
        copy = torch.empty_strided(tangent.shape, stride, dtype=tangent.dtype, device=tangent.device)
        return copy.copy_(tangent)


def wrap(made: CompiledGraphs, label: str, original: Original, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """The function that takes what `original` takes, and gives what it gives, by way of its compiled graphs.

    They are those of all functions that are equal to it; what is said and held of this one is its own.
    """
    joint, forward, backward = made.joint, _without_autocast(made.forward), made.backwards
    forward.made = made  # type: ignore[attr-defined]  # others find it while this is there
    plan = joint.plan
    if backward is None:
        plain = forward
        if any(isinstance(value, Tensor) and value.requires_grad for value in inputs):
            plain = torch.no_grad()(plain)  # nothing that comes out has a gradient
        if plan.in_inference_mode:
            plain = torch.inference_mode()(plain)

        def run(*primals: Any) -> Sequence[Any]:
            return plain(list(primals))
    else:
        run = _node(joint, label, forward, backward, original, inputs, made.tensors)
    if plan.writes:
        run = _before_writes(run)
    finish = _finisher(joint)
    if plan.inputs != list(range(len(inputs))):

        def whole(*given: Any) -> Sequence[Any]:
            return finish(given, run(*[given[index] for index in plan.inputs]))

    elif finish is _nothing_around:
        return run
    else:

        def whole(*given: Any) -> Sequence[Any]:
            return finish(given, run(*given))

    whole.writes_last = True  # type: ignore[attr-defined]  # `finish` does it: whatever fails has not written to inputs
    return whole


# --------------------------------------------------------------------------------------- the node of autograd


def _node(
    joint: Joint,
    label: str,
    forward: Boxed,
    backwards: Backwards | OneBackward,
    original: Original,
    inputs: Sequence[Any],
    tensors: int,
) -> Callable[..., Any]:
    """One `autograd.Function` for this graph."""
    plan, results = joint.plan, joint.plan.results
    later = Later(joint.primals)
    tangents = [_tangent_facts(t, joint.stand_ins.device, later) for t in joint.tangents]
    sizes = later.computed()
    end_of_tensors = results + tensors
    differentiable = plan.differentiable
    constant = [position for position in range(results) if position not in differentiable]
    written = {write.position: plan.inputs.index(write.index) for write in plan.writes}
    again = _Again(plan, original, inputs)
    kept = keeping(differentiable, plan.emptied)

    class Graph(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *primals: Any) -> Any:
            ctx.again = again.note(primals)
            produced = [*forward(list(primals))]
            for position in range(results):
                if produced[position]._is_view():
                    produced[position] = _no_view(produced[position])
            kept.hold(ctx, produced[results:end_of_tensors], produced[:results])
            ctx.counters = [
                _counter_of(primals[written[position]], 1)
                if position in written
                else _counter_of(produced[position], 0)
                for position in plan.read_again
            ]
            ctx.reads = [(weakref.ref(primals[primal]), primals[primal]._version) for primal in plan.read_inputs]
            ctx.numbers = produced[end_of_tensors:]
            ctx.sizes = sizes(*primals) if sizes else ()
            ctx.set_materialize_grads(False)
            if constant:
                ctx.mark_non_differentiable(*[produced[position] for position in constant])
            return tuple(produced[:results])

        backward = staticmethod(_backward_of(joint, label, backwards, original, again, kept, tangents))

    # Past the wrapper in Python, which is there for function transforms; a compiled graph is not run under one.
    apply: Callable[..., Any] = super(torch.autograd.Function, Graph).apply
    return apply


def _backward_of(
    joint: Joint,
    label: str,
    backwards: Backwards | OneBackward,
    original: Original,
    again: _Again,
    kept: AtOnce | OneByOne,
    tangents: Sequence[TangentFacts],
) -> Callable[..., Any]:
    """The backward of that function."""
    led, leads = joint.plan.led, joint.plan.leads
    expected = list(zip(led, tangents, strict=True))
    watched = None if joint.plan.reads is None else Watched(joint.plan.reads)
    leading_there = list(joint.plan.read_again.values())
    leading_back = list(joint.plan.read_inputs.values())
    run_backward = _without_autocast(_told(label, original))

    def backward(ctx: Any, *given: Any) -> Any:
        for (counter, version), leading in zip(ctx.counters, leading_there, strict=True):
            if counter._version != version and any(given[position] is not None for position in leading):
                raise modified(counter, version, "a compiled graph has made")
        for (reference, version), leading in zip(ctx.reads, leading_back, strict=True):
            primal = reference()
            is_read = any(given[position] is not None for position in leading)
            if primal is not None and primal._version != version and is_read:
                raise modified(primal, version, "a compiled graph has taken")
        if torch.is_grad_enabled():
            kept.refuse_spent(ctx, given)
            if original.backward is not None:
                fitting = [facts.fit(given[position], ctx.sizes) for position, facts in expected]
                return tuple(original.backward(*ctx.numbers, *fitting))
            return again.run(ctx.again, given)
        args = [*kept.take(ctx, given), *ctx.numbers]
        there = tuple([given[position] is not None for position in led])
        if watched is not None and not (all(there) and watched.holds(given, led)):
            return again.run(ctx.again, given)
        backward, taken = backwards.found.get(there) or _found_for(backwards, there)
        args += [
            facts.fit(given[position], ctx.sizes)
            for (position, facts), takes in zip(expected, taken, strict=True)
            if takes
        ]
        gradients = run_backward(backward, args)
        return tuple(gradients if all(there) else _those_there_are(gradients, leads, there))

    return backward


def _those_there_are(gradients: Sequence[Any], leads: Sequence[int], there: Sequence[bool]) -> list[Any]:
    """Eager's backward gives nothing where it was given nothing, for which a compiled one may have taken zeros."""
    given = sum(1 << count for count, is_there in enumerate(there) if is_there)
    return [gradient if given & tangents else None for gradient, tangents in zip(gradients, leads, strict=True)]


def _counter_of(tensor: Tensor, to_come: int) -> tuple[Tensor, int]:
    """Something that counts the writes to a tensor, and keeps none of its memory; and the count when the call is over:
    to an input its new contents are yet to be written."""
    counter = tensor.detach()
    counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return counter, counter._version + to_come


def _found_for(backwards: Backwards | OneBackward, there: tuple[bool, ...]) -> tuple[Boxed, tuple[bool, ...]]:
    """The graph for these tangents, compiled now; where that fails, all operators one by one."""
    try:
        return backwards.of(there)
    except Exception as error:
        let_through(error)
        events.emit(events.NotGenerated("backward", f"{type(error).__name__}: {error}"))
        return backwards.plain


def _told(label: str, original: Original) -> Callable[[Boxed, list[Any]], Sequence[Any]]:
    """Runs the backward of a graph, and says how long it took if somebody wants to know."""
    source = getattr(original.function, "__self__", original.function)  # of a graph: its `forward`

    def run(backward: Boxed, args: list[Any]) -> Sequence[Any]:
        if events.BackwardRan not in events.READERS:
            return backward(args)
        start = time.perf_counter()
        gradients = backward(args)
        events.emit(events.BackwardRan(label, time.perf_counter() - start, source))
        return gradients

    return run


def _no_view(tensor: Tensor) -> Tensor:
    """The same memory, as a tensor of its own: autograd lets nobody write to a view that was made inside of a node.

    What it was a view of has stayed in the graph, and other results do not share its memory.
    """
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg()
    own = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return own.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def _tangent_facts(tangent: Tensor, device: torch.device | None, later: Later) -> TangentFacts:
    size, stride = later.want(tuple(tangent.shape)), later.want(tangent.stride())
    return TangentFacts(size, stride, tangent.dtype, device or tangent.device)


def _without_autocast(graph: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """Casts are written out in the graph; autocast must not add to them."""

    def run(*args: Any) -> Sequence[Any]:
        if torch._C._is_any_autocast_enabled():
            with torch._C._DisableAutocast():
                return graph(*args)
        return graph(*args)

    return run


def _before_writes(run: Callable[..., Any]) -> Callable[..., Any]:
    """Whatever fails here has not written to the inputs yet, and whoever called the graph may want to know."""

    def marking(*primals: Any) -> Any:
        try:
            return run(*primals)
        except Exception as error:
            mark_unwritten(error)
            raise

    return marking


# ---------------------------------------------------------------------------------------------- what is around


def _nothing_around(given: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    return results


def _write_groups(joint: Joint) -> list[tuple[bool, list[WriteBack]]]:
    """Writes to inputs, in order. Those that autograd does not see have one dtype and device in a group."""
    at = {index: joint.primals[number] for number, index in enumerate(joint.plan.inputs)}
    groups: list[tuple[bool, list[WriteBack]]] = []
    for differentiable, run in itertools.groupby(joint.plan.writes, key=lambda write: write.differentiable):
        alike: dict[Any, list[WriteBack]] = {}
        for write in run:
            value = None if differentiable else at.get(write.index)
            kind = (value.dtype, value.device) if isinstance(value, Tensor) else None
            alike.setdefault(kind, []).append(write)
        groups += [(differentiable, group) for group in alike.values()]
    return groups


def _finisher(joint: Joint) -> Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]:
    """From the graph's results to the function's outputs: writes to inputs first, then views."""
    plan = joint.plan
    later = Later(joint.primals)
    outputs = [_with_places(output, later) for output in plan.outputs]
    computed = later.computed()
    writes = _write_groups(joint)
    if (
        not plan.writes
        and not plan.spent
        and plan.outputs == [GraphResult(position) for position in range(plan.results)]
    ):
        return _nothing_around

    def finish(given: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
        for differentiable, group in writes:
            if not differentiable and len(group) >= _MANY:
                with torch.no_grad():
                    targets = [given[write.index] if write.counted else given[write.index].data for write in group]
                    torch._foreach_copy_(targets, [results[write.position] for write in group])
                continue
            with contextlib.nullcontext() if differentiable else torch.no_grad():
                for write in group:
                    target = given[write.index]
                    (target if write.counted else target.data).copy_(results[write.position])
        if plan.spent:
            results = [*results]
            with torch.enable_grad():
                for position, index in plan.spent.items():
                    results[position] = spend(given[index], [results[position]])
        numbers = computed(*[given[index] for index in plan.inputs]) if computed else ()
        return [_output(output, given, results, numbers) for output in outputs]

    return finish


def _with_places(output: PlannedOutput, later: Later) -> PlannedOutput:
    """The output, with places for numbers that are known at run time."""
    if isinstance(output, ConstantOutput):
        return ConstantOutput(later.want(output.value)) if is_symbolic(output.value) else output
    if isinstance(output, ViewOutput):
        views = tuple([
            TensorView(view.op, view.position, tuple(map(later.want, view.args)),
                 {name: later.want(arg) for name, arg in view.kwargs.items()}, view.index)
            for view in output.views
        ])  # fmt: skip
        return ViewOutput(output.source, views, output.detached)
    return output


def _output(output: PlannedOutput, given: Sequence[Any], results: Sequence[Any], numbers: Sequence[Any]) -> Any:
    if isinstance(output, GraphResult):
        return results[output.position]
    if isinstance(output, InputAsOutput):
        return given[output.index]
    if isinstance(output, ConstantOutput):
        return filled(output.value, numbers)
    seen = _output(output.source, given, results, numbers)
    for view in output.views:
        args, kwargs = view.on(seen), view.kwargs
        if numbers:
            args = filled(args, numbers)
            kwargs = {name: filled(arg, numbers) for name, arg in kwargs.items()}
        seen = view.op(*args, **kwargs)
        seen = seen if view.index is None else seen[view.index]
    return seen.detach() if output.detached else seen


# --------------------------------------------------------------------------------------- differentiating again


class _Again:
    """A backward that is to be differentiated itself, or is no longer what was compiled: the original function runs, in
    eager mode."""

    def __init__(self, plan: Plan, original: Original, inputs: Sequence[Any]) -> None:
        self._plan = plan
        self._original = original
        self._count = len(inputs)
        self._constants = {i: v for i, v in enumerate(inputs) if not isinstance(v, Tensor) and not is_symbolic(v)}
        first: dict[int, int] = {}  # the same object may be given twice
        self._same = [first.setdefault(id(value), index) for index, value in enumerate(inputs)]
        # Leaves that require gradients are kept alive by autograd; keeping others would cost memory.
        primals = [inputs[index] for index in plan.inputs]
        # (A backward of the program's may have to run instead of the compiled one: then all are kept.)
        weak = [i for i, p in enumerate(primals) if isinstance(p, Tensor) and not (p.requires_grad and p.is_leaf)]
        self._weak = weak if plan.reads is None else []
        self._written = {plan.inputs.index(write.index): write.index in plan.overwritten for write in plan.writes}
        self._differentiates_written = any(inputs[write.index].requires_grad for write in plan.writes)
        self._warned = False
        self._autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]

    def note(self, primals: tuple[Any, ...]) -> Any:
        """What the node must hold."""
        state = torch.get_rng_state() if self._plan.random else None
        if not self._weak and not self._written:
            return primals, state
        held: list[Any] = list(primals)
        for index in self._weak:
            held[index] = weakref.ref(primals[index])
        for index, needed in self._written.items():
            if needed and not self._differentiates_written and primals[index].nbytes <= _MOST_BYTES:
                refuse_short(primals[index])
                held[index] = primals[index].clone()
        return held, state

    def run(self, noted: Any, tangents: tuple[Any, ...]) -> Any:
        held, state = noted
        primals: list[Any] = [p() if isinstance(p, weakref.ref) else p for p in held]
        if any(primal is None for primal in primals):
            raise RuntimeError(
                "a compiled graph is to be differentiated twice, but one of its inputs is gone; "
                "keep a reference to the inputs, or leave this function uncompiled"
            )
        for index, needed in self._written.items():  # the function is going to write to copies
            if self._differentiates_written or (needed and not isinstance(held[index], Tensor)):
                raise RuntimeError("a compiled graph that writes to such inputs cannot be differentiated twice")
            primals[index] = primals[index].detach().clone()
        twice = torch.is_grad_enabled()
        if twice and not self._warned:
            self._warned = True
            warnings.warn("differentiating a compiled graph's backward: this backward runs in eager mode", stacklevel=2)
        with torch.enable_grad():
            results = self._results(primals, state)
        wanted = [p for p in primals if isinstance(p, Tensor) and p.requires_grad]
        pairs = [(results[i], tangents[i]) for i in self._plan.differentiable if tangents[i] is not None]
        found = iter(
            torch.autograd.grad(
                [r for r, _ in pairs], wanted, [t for _, t in pairs], create_graph=twice, allow_unused=True
            )
        )
        return tuple([next(found) if isinstance(p, Tensor) and p.requires_grad else None for p in primals])

    def _results(self, primals: list[Any], state: Tensor | None) -> dict[int, Tensor]:
        """The graph's results, computed by the original function."""
        by_index = dict(zip(self._plan.inputs, primals, strict=True)) | self._constants
        inputs = [by_index[self._same[index]] for index in range(self._count)]
        with contextlib.ExitStack() as stack:
            for device, enabled, dtype in self._autocast:
                stack.enter_context(torch.autocast(device, dtype, enabled))
            if state is not None:
                stack.enter_context(torch.random.fork_rng(devices=[]))
                torch.set_rng_state(state)
            outputs = self._original.function(*inputs)
        results: dict[int, Tensor] = {
            write.position: inputs[write.index] for write in self._plan.writes if write.differentiable
        }
        for plan, output in zip(self._plan.outputs, outputs, strict=True):
            if isinstance(plan, GraphResult):
                results[plan.position] = output
            elif isinstance(plan, ViewOutput) and isinstance(plan.source, GraphResult) and output._base is not None:
                results.setdefault(plan.source.position, output._base)
        return results
