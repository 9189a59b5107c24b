"""The surface: functions and modules by way of graphs that the caller's compilers see.

Compilers are called `(gm, example_inputs) -> callable`, forward before backward, both before the first result is
returned. What was compiled for one call serves every call that looks the same: sizes, strides, dtypes, which
tensors require gradients, which are given twice or share memory, torch's modes, and all values that are not
tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .compile import Compiler, compile_function, derive
from .partition import PartitionFn, SavedValue, explain_saved, min_cut_partition
from .traced_graph import Decompositions


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFn = min_cut_partition,
    decompositions: Decompositions | None = None,
) -> Callable[..., Any]:
    """`fn` with its forward and backward compiled; arguments and results may be nested."""
    compiled: dict[Any, _Compiled] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch._C._are_functorch_transforms_active():  # vmap, grad: they see through functions, not through graphs
            return fn(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        key = (spec, _looks(leaves))
        entry = compiled.get(key)
        if entry is None:
            entry = compiled[key] = _compile(
                _Flat(fn, spec), leaves, fw_compiler, bw_compiler, partition_fn, decompositions
            )
        return pytree.tree_unflatten(list(entry.run(*leaves)), entry.result)

    return call


def aot_module(
    mod: nn.Module,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFn = min_cut_partition,
    decompositions: Decompositions | None = None,
) -> nn.Module:
    """A module with the same parameters and buffers, whose forward and backward are compiled."""
    return _AotModule(mod, aot_function(_calls(mod), fw_compiler, bw_compiler, partition_fn, decompositions))


def aot_module_simplified(
    mod: nn.Module,
    args: Sequence[Any] | None = None,
    fw_compiler: Compiler | None = None,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFn = min_cut_partition,
    decompositions: Decompositions | None = None,
) -> Callable[..., Any]:
    """A function that calls the module by way of graphs; compiled for `args` at once, or else at the first call."""
    if fw_compiler is None:
        raise TypeError("aot_module_simplified needs a compiler: fw_compiler=(gm, example_inputs) -> callable")
    run = aot_function(_calls(mod), fw_compiler, bw_compiler, partition_fn, decompositions)
    if args is not None:
        leaves, spec = pytree.tree_flatten(((_state(mod), *args), {}))
        flat = _Flat(_calls(mod), spec)
        entry = _compile(flat, leaves, fw_compiler, bw_compiler, partition_fn, decompositions)
        first = (spec, _looks(leaves))

        def call(*given: Any) -> Any:
            leaves, spec = pytree.tree_flatten(((_state(mod), *given), {}))
            if (spec, _looks(leaves)) != first:
                return run(_state(mod), *given)
            return pytree.tree_unflatten(list(entry.run(*leaves)), entry.result)

        return call
    return lambda *given: run(_state(mod), *given)


@dataclass(frozen=True)
class SavedValues:
    """What a function's forward keeps for its backward."""

    values: tuple[SavedValue, ...]
    eager_bytes: int  # what eager autograd keeps

    @property
    def bytes(self) -> int:
        """Without what is alive anyway (parameters)."""
        return sum(value.bytes for value in self.values if value.extra)

    def __str__(self) -> str:
        head = (
            f"{len(self.values)} values, {self.bytes:,} bytes kept for the backward; eager keeps {self.eager_bytes:,}"
        )
        return "\n".join([head, *(f"  {value}" for value in self.values)])


def saved_values(
    fn: Callable[..., Any],
    *,
    partition_fn: PartitionFn = min_cut_partition,
    decompositions: Decompositions | None = None,
) -> Callable[..., SavedValues]:
    """Called like `fn`: prints and gives back what its forward keeps for the backward, and why."""

    def look(*args: Any, **kwargs: Any) -> SavedValues:
        function, given = fn, args
        if isinstance(fn, nn.Module):
            function, given = _calls(fn), (_state(fn), *args)
        leaves, spec = pytree.tree_flatten((given, kwargs))
        graphs = derive(_Flat(function, spec), leaves, partition_fn=partition_fn, decompositions=decompositions)
        found: list[SavedValue] = []
        if graphs.backward is not None:
            found = explain_saved(graphs.forward, num_fwd_outputs=graphs.joint.plan.results)
        saved = SavedValues(tuple(found), bytes_kept_by_eager(fn, *args, **kwargs))
        print(saved)
        return saved

    return look


def bytes_kept_by_eager(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Memory that eager autograd holds between a forward and its backward, parameters left out."""
    kept: dict[int, int] = {}
    alive: list[Any] = []  # so that no memory is given out twice

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter) and not isinstance(tensor._base, nn.Parameter):
            memory = tensor.untyped_storage()
            kept[memory._cdata] = memory.nbytes()
            alive.append(memory)
        return tensor

    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fn(*args, **kwargs)
    return sum(kept.values())


# ------------------------------------------------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class _Compiled:
    run: Callable[..., Sequence[Any]]
    result: pytree.TreeSpec


class _Flat:
    """A function of nested arguments as one of flat ones. The shape of its result is known once it has run."""

    def __init__(self, fn: Callable[..., Any], spec: pytree.TreeSpec) -> None:
        self.__name__ = str(getattr(fn, "__name__", type(fn).__name__))  # for reports
        self._fn = fn
        self._spec = spec
        self.result: pytree.TreeSpec | None = None

    def __call__(self, *leaves: Any) -> list[Any]:
        args, kwargs = pytree.tree_unflatten(list(leaves), self._spec)
        flat, self.result = pytree.tree_flatten(self._fn(*args, **kwargs))
        return flat


def _compile(
    flat: _Flat,
    leaves: list[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None,
    partition_fn: PartitionFn,
    decompositions: Decompositions | None,
) -> _Compiled:
    graphs = compile_function(
        flat,
        leaves,
        fw_compiler=fw_compiler,
        bw_compiler=bw_compiler,
        partition_fn=partition_fn,
        decompositions=decompositions,
    )
    assert flat.result is not None  # it has run
    return _Compiled(graphs, flat.result)


class _AotModule(nn.Module):
    def __init__(self, mod: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.orig_module = mod
        self._run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(_state(self.orig_module), *args, **kwargs)


def _state(mod: nn.Module) -> dict[str, Tensor]:
    return {**dict(mod.named_parameters()), **dict(mod.named_buffers())}


def _calls(mod: nn.Module) -> Callable[..., Any]:
    """A function of the module's parameters and buffers and of its arguments."""

    @functools.wraps(mod.forward)
    def call(state: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(mod, dict(state), args, kwargs)

    return call


def _looks(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """All that compiled graphs assume of a call."""
    objects: dict[int, int] = {}
    memories: dict[int, int] = {}
    looks: list[Any] = [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
    ]
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            strided = leaf.layout is torch.strided
            looks.append((type(leaf), leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_leaf))
            looks.append(leaf.stride() if strided else leaf.layout)
            looks.append(objects.setdefault(id(leaf), index))
            looks.append(memories.setdefault(leaf.untyped_storage()._cdata if strided else 0, index))
        elif isinstance(leaf, slice):
            looks.append((leaf.start, leaf.stop, leaf.step))
        else:
            looks.append((type(leaf), leaf))
    return tuple(looks)
