"""Graphs that are equal in all that compiling them looks at: their content as a key, and what was compiled by it.

Enters: a graph, its example inputs, and what the compilers depend on besides. Leaves: a key, or None where something
is in the graph whose content a look does not tell all of; then the graph equals no other.

What holds: equal keys, equal code. Tensors that a graph holds, modules in it and functions of the program are told by
identity at best, so graphs with such have no key. What compiling assumed of symbolic sizes and numbers is assumed of
the next one's too, or it is compiled by itself. What was compiled lives as long as somebody runs it: the table is weak,
and a key has nothing of the program's in it.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.immutable_collections import immutable_dict, immutable_list

from ..support.guard_readers import (
    RANDOM,
    SIZES,
    WRITES,
    autocast_state,
    memory_of,
    shared_storages,
    tensor_facts,
    torch_state,
)
from ..support.op_namespaces import TORCHS_OWN
from .symbols import is_symbolic

_C: Any = torch._C


class _Unknown(Exception):
    """Something that is not told by its content."""


# ------------------------------------------------------------------------------------------------------ the table


class CompiledGraphs:
    """The graphs of one function, compiled: whoever runs them holds this."""

    __slots__ = ("__weakref__", "assumed", "backwards", "forward", "joint", "plain_backward", "tensors")

    def __init__(self, joint: Any, forward: Any, backwards: Any, plain_backward: Any, tensors: int) -> None:
        self.joint, self.forward, self.backwards = joint, forward, backwards
        self.plain_backward, self.tensors = plain_backward, tensors
        self.assumed: tuple[Any, ...] = ()  # of symbols, while it was compiled


_alive: weakref.WeakValueDictionary[Hashable, CompiledGraphs] = weakref.WeakValueDictionary()


class Lookup:
    """One graph that is to be compiled: is there an equal one?"""

    def __init__(self, module: Any, inputs: Sequence[Any], about: Hashable | None) -> None:
        self._env = env = None if about is None else _env_of(inputs)
        self._key = None if about is None else _key_of(module, inputs, env, about)
        self._guards = len(env.guards) if env is not None else 0

    def find(self) -> CompiledGraphs | None:
        found = None if self._key is None else _alive.get(self._key)
        return found if found is not None and self._assume(found.assumed) else None

    def keep(self, compiled: CompiledGraphs) -> None:
        """Found by others, as long as somebody holds it."""
        if self._key is not None:
            if self._env is not None:
                compiled.assumed = tuple([guard.expr for guard in self._env.guards[self._guards :]])
            _alive[self._key] = compiled

    def _assume(self, facts: Sequence[Any]) -> bool:
        """Whether this holds here, too. If so it is assumed."""
        env: Any = self._env
        try:
            if all(fact.xreplace(env.backed_var_to_val) == True for fact in facts):  # noqa: E712  # sympy's truth
                return all(bool(env.evaluate_expr(fact)) for fact in facts)
        except (TypeError, RuntimeError, AttributeError):
            pass
        return False


# -------------------------------------------------------------------------------------------------------- the key


def _key_of(module: Any, inputs: Sequence[Any], env: Any, about: Hashable) -> Hashable | None:
    """All that compiling this graph for these inputs depends on. `about`: what the compilers do, and with what."""
    if not isinstance(module, fx.GraphModule):
        return None
    try:
        return about, _state(), _graph(module.graph), _inputs(inputs), _symbols(env)
    except _Unknown:
        return None


def content_of(
    module: fx.GraphModule, inputs: Sequence[Any], about: Hashable, without: Collection[fx.Node]
) -> Hashable | None:
    """The same of a graph without symbols; in what these nodes take numbers do not count."""
    try:
        return about, _state(), _graph(module.graph, without), _inputs(inputs)
    except _Unknown:
        return None


# What chooses between kernels, besides what guards compare.
_SETTINGS: tuple[Callable[[], Any], ...] = (
    torch.get_num_threads,
    torch.is_autocast_cache_enabled,
    _C._get_cudnn_enabled,
    _C._get_cudnn_benchmark,
    _C._get_mkldnn_enabled,
    _C._get_nnpack_enabled,
    _C._get_flash_sdp_enabled,
    _C._get_mem_efficient_sdp_enabled,
    _C._get_math_sdp_enabled,
    _C._get_cudnn_sdp_enabled,
)


def _state() -> Hashable:
    """Torch's, as far as operators and compilers look at it."""
    return torch_state(), autocast_state(), tuple([read() for read in _SETTINGS])


def _graph(graph: fx.Graph, without: Collection[fx.Node] = ()) -> Hashable:
    numbers: dict[fx.Node, int] = {}
    rows: list[Hashable] = []
    for node in graph.nodes:
        given = [arg for arg in node.args if isinstance(arg, fx.Node)] if node in without else node.args
        args, kwargs = _content(given, numbers), _content(node.kwargs, numbers)
        rows.append((node.op, node.name, _target(node), args, kwargs, _noted(node)))
        numbers[node] = len(numbers)
    return tuple(rows)


def _target(node: fx.Node) -> Hashable:
    if node.op == "call_function":
        if not _is_of_torch(node.target):
            raise _Unknown
        return node.target
    if node.op in ("placeholder", "call_method", "output"):
        return str(node.target)
    raise _Unknown  # something that the graph holds


def _is_of_torch(target: Any) -> bool:
    """Is it a function that torch or the interpreter has under its name, so that it is one and the same for all?"""
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in TORCHS_OWN
    if isinstance(target, types.FunctionType):
        home = str(target.__globals__.get("__name__"))
    elif isinstance(target, types.BuiltinFunctionType):
        owner = target.__self__
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            raise _Unknown
        home = str(getattr(owner, "__module__" if isinstance(owner, type) else "__name__", target.__module__))
        return _is_home(home)
    elif isinstance(target, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return _is_home(target.__objclass__.__module__)
    else:
        return False
    found: Any = sys.modules.get(home)
    for name in target.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is not target:  # a closure, which may be about anything, unless it is a name of the module
        found = getattr(sys.modules.get(str(target.__module__)), target.__name__, None)
    return found is target and _is_home(home)


_HOMES = frozenset(("torch", "math", "builtins", "operator", "_operator"))


def _is_home(name: str) -> bool:
    return name.partition(".")[0] in _HOMES or name == "stator.support.graph_numbers"


_SAID = frozenset(("stack_trace", "example_value", "value"))  # for reports; what the inputs say


def _noted(node: fx.Node) -> Hashable:
    """What is in its `meta` for those who compile it."""
    kept = {name: value for name, value in node.meta.items() if name not in _SAID}
    if not kept.keys() <= {SIZES, RANDOM, WRITES}:
        raise _Unknown
    return _content(kept, {})


_BY_VALUE = frozenset(
    (int, bool, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)
)


def _content(value: Any, numbers: dict[fx.Node, int]) -> Hashable:
    """An argument, with its type: 1, 1.0 and True are equal; so are the zeros of either sign."""
    kind = type(value)
    if kind in _BY_VALUE:
        return kind, value
    if kind is fx.Node:
        return fx.Node, numbers[value]
    if kind is float:
        return kind, value.hex()
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if kind in (tuple, list, immutable_list, torch.Size):
        return kind, *[_content(item, numbers) for item in value]
    if kind in (dict, immutable_dict):
        return kind, *[(_content(k, numbers), _content(v, numbers)) for k, v in value.items()]
    if kind is slice:
        return kind, *[_content(part, numbers) for part in (value.start, value.stop, value.step)]
    raise _Unknown


def _inputs(inputs: Sequence[Any]) -> Hashable:
    facts = tuple([_input(value) for value in inputs])  # before anything asks for memory that they may not have
    first: dict[Any, int] = {}
    same = tuple([first.setdefault(id(value), index) for index, value in enumerate(inputs)])
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    memory = tuple([first.setdefault(("memory", memory_of(value)), index) for index, value in enumerate(tensors)])
    shared = shared_storages([value for value in tensors if type(value) is not FakeTensor])
    return same, memory, shared, facts


def _input(value: Any) -> Hashable:
    kind = type(value)
    if is_symbolic(value):
        return kind, _expression(value)
    if kind not in (Tensor, torch.nn.Parameter, FakeTensor) or value.layout is not torch.strided:
        raise _Unknown  # a tensor that stands for others
    facts = tensor_facts(value)._replace(size=(), stride=())
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    length = None if kind is FakeTensor else value.untyped_storage().nbytes()
    parameter = isinstance(value, torch.nn.Parameter)
    return *facts, len(value.shape), tuple(map(_expression, numbers)), length, value._is_view(), parameter


# ---------------------------------------------------------------------------------------------------- the symbols


def _env_of(inputs: Sequence[Any]) -> Any:
    """Where torch keeps what is known of symbols, if there are inputs that may have such."""
    for value in inputs:
        if is_symbolic(value):
            return value.node.shape_env
        if isinstance(value, FakeTensor) and value.fake_mode.shape_env is not None:
            return value.fake_mode.shape_env
    return None


def _expression(number: Any) -> Hashable:
    return ("symbolic", number.node.expr) if is_symbolic(number) else number


def _symbols(env: Any) -> Hashable:
    """All that is known of them, but for their values: what follows from those is assumed, and so is compared."""
    if env is None:
        return None
    if env.deferred_runtime_asserts or not env.var_to_range.keys() <= env.backed_var_to_val.keys():
        raise _Unknown  # data decide
    if any(value == 0 or not value.is_finite for value in env.backed_var_to_val.values()):
        raise _Unknown  # algebra has but one zero, and takes infinity for a number
    return (
        tuple([guard.expr for guard in env.guards]),
        tuple(env.replacements.items()),
        tuple([(symbol, known.lower, known.upper) for symbol, known in env.var_to_range.items()]),
    )
