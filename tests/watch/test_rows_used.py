"""All rows of C callables in all uses: with its row a call becomes part of the graph, without it the graph breaks, and
no result is another than eager's.

Which programs: for each row one callable of it, called as it is, with arguments spread out, kept in a `partial`, and by
C code (`map`). All of them see other values in every call.
"""

from __future__ import annotations

import abc
import bisect
import collections
import functools
import heapq
import itertools
import math
import operator
import os
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.watch.models import calls


class Box:
    a = 3

    def __init__(self, a: int = 3) -> None:
        self.a = a


class Countable(abc.ABC):  # noqa: B024
    pass


Countable.register(int)


def _first(result: Any) -> Any:
    return result[0]


def _two(result: Any) -> Any:
    return 2


def _one_or_two(result: Any) -> Any:
    return 1 if result else 2


def _difference(a: int, b: int) -> int:
    return a - b


def _is_there(result: Any) -> Any:
    return 1 if result is not None else 2


# Of a callable: what it is given, made of a list of two numbers that changes; and the number that its result comes to.
USED: dict[Any, tuple[Callable[[list[int]], tuple[Any, ...]], Callable[[Any], Any]]] = {
    any: (lambda v: (v,), _one_or_two),
    filter: (lambda v: (abs, v), sum),
    set: (lambda v: (v,), len),
    sorted: (lambda v: (v,), _first),
    min: (lambda v: (v,), int),
    max: (lambda v: (v,), int),
    sum: (lambda v: (v,), int),
    list: (lambda v: (v,), _first),
    enumerate: (lambda v: (v, v[0]), lambda r: next(r)[0]),
    dict: (lambda v: ([("a", v[0])],), lambda r: r["a"]),
    divmod: (lambda v: (v[0], 3), sum),
    int: (lambda v: (v[0],), abs),
    float: (lambda v: (v[0],), abs),
    abs: (lambda v: (v[0],), int),
    round: (lambda v: (v[0],), int),
    pow: (lambda v: (v[0], v[1]), int),
    bytes: (lambda v: (v,), _first),
    str: (lambda v: (v[0] * 7,), len),
    format: (lambda v: (v[0] * 7, "d"), len),
    isinstance: (lambda v: (v[0], bool), _one_or_two),
    len: (lambda v: ("a" * v[0],), int),
    bool: (lambda v: (v[0] - 3,), _one_or_two),
    object: (lambda v: (), _two),
    type: (lambda v: (v[0],), lambda r: 2 if r is int else 3),
    getattr: (lambda v: (Box(v[0]), "a"), int),
    setattr: (lambda v: (Box(), "a", v[0]), _is_there),
    delattr: (lambda v: (Box(v[0]), "a"), _is_there),
    vars: (lambda v: (Box(v[0]),), lambda r: r["a"]),
    next: (lambda v: (iter(v),), int),
    math.prod: (lambda v: (v,), int),
    math.sqrt: (lambda v: (v[0],), float),
    math.floor: (lambda v: (v[0] / 2,), int),
    math.gcd: (lambda v: (v[0], 6), int),
    str.join: (lambda v: (",", ["a"] * v[0]), len),
    torch.Size.numel: (lambda v: (torch.Size(v),), int),
    operator.is_: (lambda v: (v[0], v[1]), _one_or_two),
    operator.getitem: (lambda v: (v, 0), int),
    operator.call: (lambda v: (len, v), int),
    operator.add: (lambda v: (v[0], v[1]), int),
    operator.and_: (lambda v: (v[0], 6), int),
    operator.iadd: (lambda v: (v[0], v[1]), int),
    operator.ior: (lambda v: (v[0], 8), int),
    operator.index: (lambda v: (v[0],), int),
    functools.reduce: (lambda v: (operator.add, v), int),
    functools.cmp_to_key: (lambda v: (_difference,), lambda r: sorted([3, 2], key=r)[0]),
    functools.partial: (lambda v: (max, v), lambda r: r()),
    itertools.chain: (lambda v: (v, v), sum),
    bisect.bisect_left: (lambda v: (v, 3), lambda r: r + 1),
    heapq.heappop: (lambda v: ([*v],), int),
    collections._count_elements: (lambda v: ({}, v), _is_there),
    hash: (lambda v: (v[0],), int),
    id: (lambda v: (v,), _two),
    sys.modules["re._compiler"].compile: (lambda v: ("a" * v[0], 0), lambda r: len(r.pattern)),
    sys.exc_info: (lambda v: (), len),
    sys.getrecursionlimit: (lambda v: (), lambda r: r % 7),
    sys.intern: (lambda v: (str(v[0] * 7),), len),
    os.fspath: (lambda v: ("a" * v[0],), len),
    collections.deque: (lambda v: (v,), _first),
    collections.OrderedDict: (lambda v: ([("a", v[0])],), lambda r: r["a"]),
    collections.defaultdict: (lambda v: (int, {"a": v[0]}), lambda r: r["a"]),
    types.SimpleNamespace: (lambda v: (), _two),
    types.MappingProxyType: (lambda v: ({"a": v[0]},), lambda r: r["a"]),
    operator.itemgetter: (lambda v: (v[0],), lambda r: r(range(10))),
    abc._abc_instancecheck: (lambda v: (Countable, v[0]), _one_or_two),
    abc.get_cache_token: (lambda v: (), _two),
    torch.Size: (lambda v: (v,), _first),
    torch.finfo: (lambda v: (torch.float32 if v[0] > 2 else torch.float64,), lambda r: r.bits),
    weakref.ref: (lambda v: (Box,), _is_there),
    torch._C._has_torch_function_unary: (lambda v: (v,), _one_or_two),
    torch._C._is_torch_function_mode_enabled: (lambda v: (), _one_or_two),
    torch._C._len_torch_function_stack: (lambda v: (), lambda r: r + 1),
    torch._C._log_api_usage_once: (lambda v: ("a",), _two),
    torch.is_grad_enabled: (lambda v: (), _one_or_two),
    torch.is_autocast_enabled: (lambda v: (), _one_or_two),
    torch.autograd._profiler_enabled: (lambda v: (), _one_or_two),
    torch._C._has_distributed: (lambda v: (), _one_or_two),
    torch._C._get_cpu_capability: (lambda v: (), len),
    torch.get_num_threads: (lambda v: (), int),
    torch._C._get_cudnn_benchmark: (lambda v: (), _one_or_two),
    torch._C._get_flash_sdp_enabled: (lambda v: (), _one_or_two),
    torch._C._get_float32_matmul_precision: (lambda v: (), len),
    torch._C._get_default_device: (lambda v: (), len),
    torch.is_anomaly_enabled: (lambda v: (), _one_or_two),
    torch._C._is_torch_function_enabled: (lambda v: (), _one_or_two),
    torch._C._are_functorch_transforms_active: (lambda v: (), _one_or_two),
    torch._C._get_warnAlways: (lambda v: (), _one_or_two),
    torch._C._get_dtensor_allow_implicit_replication: (lambda v: (), _one_or_two),
}

# Rows whose callables are no such programs: they stand for what other callables are replaced by, work on tensors,
# loggers and locks, and ask for what every watched run changes.
ELSEWHERE = {
    "total _adaptive_avg_pool2d _group_tensors_by_device_and_dtype": "called by torch, or in the place of others",
    "debug log isEnabledFor getLogger": "`tests/e2e/test_logging_patched.py`, `tests/e2e/breaks/test_breaks_kinds.py`",
    "super globals": "go by the frame that calls them: `tests/watch/test_probes.py`, `tests/e2e/test_environment.py`",
    "manual_seed step _apply_on_tensors graph_break": "break the graph by their row",
    "is_compiling set_eval_frame _get_function_stack_at": "other compilers and modes: `tests/e2e/beside`",
    "_cuda_isCurrentStreamCapturing": "asks a device that there may not be",
    "__exit__": "`tests/e2e/test_locks.py`",
}


def test_every_row_is_used_or_named() -> None:
    used = {id(calls.RULES[id(func)]) for func in USED}
    names = [
        {getattr(each, "__name__", "") for each in row.callables} for row in calls.CALL_MODELS if id(row) not in used
    ]
    elsewhere = " ".join(ELSEWHERE).split()
    assert all(not found.isdisjoint(elsewhere) for found in names), names
    assert all(any(name in found for found in names) for name in elsewhere)


def directly(func: Any, arguments: tuple[Any, ...]) -> Any:
    return func(*arguments)


def kept(func: Any, arguments: tuple[Any, ...]) -> Any:
    return functools.partial(func, *arguments)()


def by_c_code(func: Any, arguments: tuple[Any, ...]) -> Any:
    return next(map(func, *([each] for each in arguments))) if arguments else func()


@pytest.mark.parametrize("use", [directly, kept, by_c_code])
@pytest.mark.parametrize("func", USED)
def test_a_row_in_each_use(monkeypatch: pytest.MonkeyPatch, func: Any, use: Callable[..., Any]) -> None:
    arguments, number = USED[func]
    for there in (True, False):
        values: list[int] = []
        compiled = stator.compile(lambda x: x * number(use(func, arguments(values))), backend="eager")
        compiled.stator.reset()  # functions of one code share their recordings
        with monkeypatch.context() as patch:
            if not there:
                patch.delitem(calls.RULES, id(func))
            for first in (2, 2, 3, 4, 4):
                values[:] = [first, first + 1]
                x = torch.arange(3.0) + first
                wanted = (x * number(use(func, arguments(values)))).tolist()
                assert compiled(x).tolist() == wanted, (func, use, first, there)
        breaks = [why.id for why in compiled.stator.break_reasons]
        assert compiled.stator.hits or (not there and compiled.stator.graphs)
        if there and use is directly:  # C code that calls other C code is another matter
            assert not breaks or func is id
        if not there:  # a class is made as any other is, and a method goes by the row of its type
            others = (type, types.MethodDescriptorType, types.FunctionType)
            assert breaks or isinstance(func, others)
