"""Operations that may fail for other data, in a segment that writes to tensors from outside.

A replay that fails has to leave everything as it was, so that Python can run the call from its start. Enters: an
operation that may fail, and what is written before it, or by it. Three ways out, the cheapest first: an index that may
be out of range is looked at before the graph runs (`runtime_asserts.py`); what the graph writes to is kept, if it
is small; or the graph ends before the operation. On other devices than the CPU an index out of range is no
exception. What the body of an operator does, if that is written in Python, cannot be put back: behind one only the
first and the last way are left.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..._native import TrackedTensor
from ...recording import OnFailure
from ..bytecode.flow import flow_of
from ..graph_break import BreakGraph
from ..objects.run_context import RunContext
from ..symbols.asserts import Assert, Within
from .segment_graph import SegmentGraph

# Of what is written to: it is copied in every call, unless the backend's graphs write when all else is done. A break
# costs less than to copy more.
MOST_BYTES, MOST_BYTES_ELSE = 64 << 20, 256 << 10

# Methods that take a dimension and an index into it, which may not be negative.
_ALONG_DIMENSION = frozenset(
    "index_copy index_copy_ index_add index_add_ index_fill index_fill_ index_select scatter_ scatter scatter_add "
    "scatter_add_ gather".split()
)


def prepare(
    tracer: SegmentGraph, name: str, args: tuple[Any, ...], tensors: list[tuple[Any, TrackedTensor]], writes: bool
) -> None:
    """An operation may fail, and may come behind a write, or write itself. BreakGraph: the graph ends before it."""
    if not (_matters(tracer, tensors, writes) and _hoist(tracer, name, args)):
        prepare_late(tracer, name, tensors, writes)


def _matters(tracer: SegmentGraph, tensors: list[tuple[Any, TrackedTensor]], writes: bool) -> bool:
    written = bool(_written_outside(tensors, writes))
    return tracer.acted or written or (tracer.mutates and bool(not tracer.risky or tracer.unkept_writers()))


def _written_outside(tensors: list[tuple[Any, TrackedTensor]], writes: bool) -> list[Any]:
    return [tensor for tensor, known in tensors if known.alias_set.outside] if writes else []


def prepare_late(tracer: SegmentGraph, name: str, tensors: list[tuple[Any, TrackedTensor]], writes: bool) -> None:
    """The same for an operation that has run already: nobody knew of it before."""
    if tracer.acted or not tracer.keep(_written_outside(tensors, writes), own=writes, most=tracer.most_kept):
        raise BreakGraph("may-fail", name)


def prepare_body(context: RunContext, name: str) -> None:
    """An operator with a body in Python: what that does happens once, so a replay behind it is not repeated. What it
    raises is raised on by the replay, unless somebody would handle that, or something was changed before."""
    if context.ledger.changes or _is_handled(context):
        raise BreakGraph("may-fail", name)


def _is_handled(context: RunContext) -> bool:
    """Does the instruction at work, or a call that led to it, stand in a `try` or a `with`?"""
    for entry in context.watcher.frames()[0]:
        probe = entry[-1]
        if probe is None:
            return True
        flow = flow_of(probe.code)
        if flow.handlers[flow.find(probe.offset)] is not None:
            return True
    return False


def _hoist(tracer: SegmentGraph, name: str, args: tuple[Any, ...]) -> bool:
    """Can it fail for nothing but an index that is out of range, and is that looked at before the graph runs?"""
    found = _bounds(name, args) if tracer.hoists else None
    if found is None:
        return False
    index, within = found
    if index.device.type != "cpu":
        return True
    node = tracer.node_of(tracer.lookup(index))
    return (
        within.holds(index)
        and _is_as_it_was(tracer, node)
        and tracer.checking.add(Assert(node, within, True, OnFailure.RAISES))
    )


def _bounds(name: str, args: tuple[Any, ...]) -> tuple[Any, Within] | None:
    if name in _ALONG_DIMENSION and len(args) > 2 and isinstance(args[1], int) and _is_index(args[2]):
        size = args[0].size(args[1]) if args[0].dim() else 1
        return args[2], Within(0, size)
    if name in ("__getitem__", "__setitem__"):
        return _bounds_of_item(args[0], args[1])
    if name == "embedding" and len(args) > 1 and _is_index(args[1]):
        return args[1], Within(0, args[0].size(0))
    return None


def _bounds_of_item(tensor: Any, index: Any) -> tuple[Any, Within] | None:
    """One index among slices and `...`."""
    parts = list(index) if isinstance(index, tuple) else [index]
    places = [place for place, part in enumerate(parts) if isinstance(part, torch.Tensor)]
    if len(places) != 1 or not _is_index(parts[places[0]]) or any(part is None for part in parts):
        return None
    place = places[0]
    if any(part is ... for part in parts):
        dim = place if ... not in parts[:place] else tensor.dim() - (len(parts) - place)
    else:
        dim = place
    return parts[place], Within(-tensor.size(dim), tensor.size(dim))


def _is_index(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int32, torch.int64)


def _is_as_it_was(tracer: SegmentGraph, node: fx.Node) -> bool:
    """Is it computed from nothing that the segment has written to?"""
    written = {_storage_of(tensor) for tensor in tracer.written_tensors() if not _is_only_read(tracer, tensor)}
    inputs = {tracer.known[id(tensor)].node: tensor for _, tensor, _ in tracer.inputs}
    pending, seen = [node], set[fx.Node]()
    while pending:
        node = pending.pop()
        if node in inputs and _storage_of(inputs[node]) in written:
            return False
        if node not in seen:
            seen.add(node)
            pending += node.all_input_nodes
    return True


def _is_only_read(tracer: SegmentGraph, tensor: Any) -> bool:
    """An operand of a write that is no target of it. Of indices each write is counted: the statistics of norms, whose
    writes are not, are no whole numbers."""
    return _is_index(tensor) and tracer.counts_no_write(tensor) and not tracer.known[id(tensor)].alias_set.uncounted


def _storage_of(tensor: Any) -> Any:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
