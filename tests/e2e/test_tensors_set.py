"""`Tensor.set_` and other C code that torch's modes are not told of."""

from __future__ import annotations

import contextlib
import types

import pytest
import torch
from harness import World, check, rand
from torch.overrides import TorchFunctionMode

from stator.backends.registry import look_up
from stator.watch.models import calls, methods

BACKENDS = pytest.mark.parametrize("backend", [None, "aot_eager"])


def set_to_a_tensor(x, y):
    x.set_(y)
    return x + 1


def set_to_nothing(x, y):
    x.set_()
    return y + 1


def set_to_a_storage(x, y):
    x.set_(y.untyped_storage(), 1, (2,), (1,))
    return x + 1


def set_and_not_used(x, y):
    x.set_(y)
    return y + 1


def set_to_a_result(x, y):
    z = y + 1
    x.set_(z)
    return z * 2


def set_behind_an_operation(x, y):
    z = x * 2
    x.set_(y)
    return z


def set_under_a_view(x, y):
    z = x.view(2, 2)
    x.set_(y)
    return z + 1, x + 1


def set_by_the_class(x, y):
    torch.Tensor.set_(x, y)
    return y + 1


def set_by_c_code(x, y):
    list(map(torch.Tensor.set_, [x], [y]))
    return y + 1


def set_by_a_bound_method(x, y):
    list(map(x.set_, [y]))
    return y + 1


def a_result_is_set(x, y):
    z = y + 1
    z.set_(x)
    z.add_(1)
    return z


PROGRAMS = [
    set_to_a_tensor,
    set_to_nothing,
    set_to_a_storage,
    set_and_not_used,
    set_to_a_result,
    set_behind_an_operation,
    set_under_a_view,
    set_by_the_class,
    set_by_c_code,
    set_by_a_bound_method,
    a_result_is_set,
]


def call(seed):
    def one(w):
        x, y = rand(seed), rand(seed + 10, 3)
        return w.fn(x, y), x, y

    return one


@BACKENDS
@pytest.mark.parametrize("program", PROGRAMS)
def test_set(program, backend):
    inner = look_up(backend)[1] if backend else None
    seen = check(lambda: World(fn=program), [call(seed) for seed in range(4)], expect=None, backend=inner)
    assert seen.outcomes == ["miss", "hit", "hit", "hit"]
    assert len(seen.graphs) >= 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_change_that_nobody_was_told_of_ends_the_recording(program, monkeypatch):
    monkeypatch.setattr(methods, "_HIDDEN_TENSOR_METHODS", frozenset())
    methods.method_rule.cache_clear()
    try:
        check(lambda: World(fn=program), [call(seed) for seed in range(4)], expect=None, unreplayed="tensor-changed")
    finally:
        methods.method_rule.cache_clear()


def test_a_buffer_is_set_before_its_first_use():
    def world():
        module = torch.nn.Module()
        module.buffer = rand(1)

        def fn(x):
            module.buffer.set_(x * 2)
            return module.buffer + x

        return World(fn=fn, module=module)

    calls = [lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3)), lambda w: w.fn(rand(4))]
    check(world, calls, expect="miss hit hit", graphs=2)


def test_views_and_detached_tensors_follow_recorded_writes():
    """The version counters of the others move as well: that is no change behind the recording."""

    def fn(x, view, detached):
        x.add_(1)
        a = view * 2
        x.mul_(3)
        return a + 1, detached + 1, view.sum()

    def call(seed):
        def one(w):
            x = rand(seed)
            return w.fn(x, x[:2], x.detach()), x

        return one

    check(lambda: World(fn=fn), [call(1), call(2), call(3)], expect="miss hit hit")


class Told(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.add(func.__name__)
        raise InterruptedError  # nothing needs to run


def arguments(name, skip):
    """(args, kwargs) to call a function with, by its schemas and by guessing. `skip`: so many are given already."""
    packet = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ():
        schema = getattr(packet, overload)._schema.arguments[skip:]
        given = [likely(argument) for argument in schema if not argument.kwarg_only]
        named = {a.name: likely(a) for a in schema if a.kwarg_only and not a.has_default_value()}
        yield from ((given[:count], named) for count in range(len(given) + 1))
    t = torch.ones(2, 2)
    some = [(), (t,), (1,), (torch.float32,), (t, t), ((2, 2),), ((2, 2), 1.0), (1, t, t), (lambda *a: 1,)]
    some += [(t, t, lambda *a: 1), (t, lambda *a: 1), (slice(None), t), ([t],), (t, t, t), (t, [1.0])]
    some += [(torch.float32, torch.float32), (t, t, t, [2, 2], torch.sparse_csr)]
    yield from ((given, {}) for given in some)


def likely(argument):
    """A value of an argument's type."""
    kind = str(argument.type)
    if "Tensor" in kind:
        return [torch.ones(2, 2)] if "List" in kind else torch.ones(2, 2)
    if "dtype" in argument.name:
        return torch.float32
    table = {"str": "sum", "bool": True, "float": 1.0, "Storage": torch.ones(2).untyped_storage()}
    found = [value for word, value in table.items() if word in kind]
    return found[0] if found else [1, 1] if "List" in kind else 1


def is_told(function, name, *first):
    """Is a mode told of calls of this function, with some arguments?"""
    for given, named in arguments(name, len(first)):
        with contextlib.suppress(Exception), Told() as mode:
            function(*first, *given, **named)
        if mode.names - {"__index__"} or (name == "__index__" and mode.names):
            return True
    return False


def test_all_methods_of_tensors_reach_a_mode_or_break():
    found, t = vars(torch._C.TensorBase), torch.ones(2, 2)
    kinds = (types.MethodDescriptorType, types.WrapperDescriptorType)
    trusted = {n: m for n, m in found.items() if isinstance(m, kinds) and methods.method_rule(m) is methods.nothing}
    assert len(trusted) > 500
    unseen = [name for name, method in trusted.items() if not is_told(method, name, t)]
    assert unseen == ["record_stream"]  # it takes a stream of a device
    assert not is_told(torch.Tensor.set_, "set_", t)


# What this build of torch can do, which does not change.
CAPABILITIES = {"_nnpack_available", "_use_cudnn_rnn_flatten_weight", "is_vulkan_available"}


@pytest.mark.filterwarnings("ignore")
def test_all_functions_of_torch_reach_a_mode():
    functions = {f.__name__: f for f in calls._FUNCTIONS_OF_TORCH}
    assert len(functions) > 1000
    unseen = {name for name, function in functions.items() if not is_told(function, name)}
    assert unseen == CAPABILITIES
