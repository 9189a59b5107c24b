"""Facts about ATen operators, found once per overload from their schemas.

Enters: an `OpOverload`. Leaves: what a recorder must know of it. Does it return views, does it write to its
arguments and which pure operator computes what it writes, does it draw random numbers, is it written in terms of
other operators?
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

aten = torch.ops.aten


class Write(NamedTuple):
    """How a writing operator is said without writing."""

    functional: OpOverload
    arguments: tuple[str, ...]  # the arguments it writes to
    keeps_arguments: bool  # does `functional` take them (in-place), or not (`out=`)?
    returns: int  # results before the written values: `x_functional` gives both


class OperatorFacts(NamedTuple):
    name: str  # for nodes
    composite: bool  # written in terms of other operators: never a node
    view_of: int | None  # position of the argument whose memory the results share
    in_place_view: bool  # changes the shape of its argument, not its contents
    writes: bool  # to an argument
    random: bool
    takes_device: bool


# Pure forms that cannot be found by name and arguments.
_PURE = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.polygamma_.default: aten.polygamma.default,
    aten.normal_.default: aten.normal_functional.default,
}
# Operators that are there for what they do, not for what they give.
EFFECTS = frozenset(
    {
        aten._assert_async.msg,
        aten._assert_async.default,
        aten._assert_tensor_metadata.default,
        aten._linalg_check_errors.default,
    }
)
# Operators that write to arguments which their schemas do not mark.
UNMARKED = {
    aten.native_batch_norm.default: Write(
        aten._native_batch_norm_legit_functional.default, ("running_mean", "running_var"), True, 3
    )
}
# What operators write to without counting it, marked or not: whoever has kept that for a backward is not told.
UNCOUNTED = dict.fromkeys(
    (
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._batch_norm_with_update.default,
    ),
    ("running_mean", "running_var"),
)


@functools.cache
def facts(op: OpOverload) -> OperatorFacts:
    schema = op._schema
    written = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    view_of = None
    if not written and any(r.alias_info is not None for r in schema.returns):
        view_of = next(i for i, a in enumerate(schema.arguments) if a.alias_info is not None)
    in_place_view = torch.Tag.inplace_view in op.tags
    has, full_name = torch._C._dispatch_has_kernel_for_dispatch_key, op._schema.name
    if op._schema.overload_name:
        full_name += f".{op._schema.overload_name}"
    return OperatorFacts(
        name=op._overloadpacket.__name__,
        composite=has(full_name, "CompositeImplicitAutograd") and not has(full_name, "CPU"),
        view_of=view_of,
        in_place_view=in_place_view,
        writes=written and not in_place_view,
        random=torch.Tag.nondeterministic_seeded in op.tags,
        takes_device=any(a.name == "device" for a in schema.arguments),
    )


def _signature(op: OpOverload, without: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Names and types of the arguments, alias marks left out."""
    return [(a.name, str(a.type)) for a in op._schema.arguments if a.name not in without]


def _overloads(name: str) -> list[OpOverload]:
    packet = getattr(aten, name, None)
    return [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]


@functools.cache
def pure_form(op: OpOverload) -> Write | None:
    """How to say `op` without writing; None if ATen has no such operator."""
    schema = op._schema
    written = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    name = op._overloadpacket.__name__
    if op in _PURE:
        return Write(_PURE[op], written, True, 0)
    if schema.arguments[-1].is_out:
        wanted = _signature(op, written)
        found = [o for o in _overloads(name) if _signature(o) == wanted and not facts(o).writes]
        return Write(found[0], written, False, 0) if found else None
    plain = "__" + name[3:] if name.startswith("__i") else name.removesuffix("_")
    if plain != name:
        candidates = [o for o in _overloads(plain) if _signature(o) == _signature(op) and not facts(o).writes]
        candidates.sort(key=lambda o: o._overloadname != op._overloadname)
        if candidates:
            return Write(candidates[0], written, True, 0)
    found = [o for o in _overloads(name + "_functional") if _signature(o) == _signature(op)]
    plain_returns = sum(1 for r in schema.returns if r.alias_info is None)
    return Write(found[0], written, True, plain_returns) if found else None


def arguments_by_name(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call, defaults filled in where the pure form has others."""
    named = {a.name: value for a, value in zip(op._schema.arguments, args, strict=False)}
    if op in _PURE:
        named = {a.name: a.default_value for a in op._schema.arguments if a.default_value is not None} | named
    return {**named, **kwargs}
