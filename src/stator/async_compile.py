"""Recordings whose graphs are compiled on the background thread (`options.background_compile`).

Enters: a recording, and what makes an entry of it. Leaves: the entry in its cache, or the failure, for the next call to
tell. What holds in between: the cache knows of the recording, so that calls which it fits run plain and are not
recorded again; the program may do what it likes with its tensors and torch's state, for the thread has its own; and
nothing that the thread does is seen by the program. What cannot be compiled like that is compiled at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .recording import Recording
from .replay.cache import Cache, Entry, Pending
from .replay.engine import compile_guards
from .replay.guards import EntryGuards
from .support import background
from .support.guard_readers import STATE_NAMES, tensor_facts, torch_state

StoreEntry = Callable[[Entry], bool]  # False: nobody wants it any more
_TYPES = (torch.Tensor, torch.nn.Parameter)
# What a state must be for another thread to take it on. The rest: grad and inference mode can be set, and the default
# dtype is the same for all threads.
_USUAL = {
    "absence of tracing": True,
    "number of torch function modes": 0,
    "number of torch dispatch modes": 0,
    "functorch level": None,
    "absence of saved tensor hooks": True,
    "forward AD level": -1,
    "autocast": None,  # its cache of casts is one for all threads
}
_GRAD, _INFERENCE = STATE_NAMES.index("grad mode"), STATE_NAMES.index("inference mode")


class _Overtaken(Exception):
    """The program has changed torch's settings, for all threads."""


class Part(NamedTuple):
    """One recording."""

    cache: Cache
    pending: Pending
    recording: Recording
    make: Callable[[StoreEntry], None]


class Compilation:
    """The recordings of one run, in order. A failure ends it: `failed` is told, and those left are forgotten."""

    def __init__(self, parts: Sequence[Part], failed: Callable[[BaseException], None]) -> None:
        self._parts = parts
        self._failed = failed

    def run(self) -> None:
        try:
            for part in self._parts:
                if part.cache.awaits(part.pending) and not self._made(part):
                    break
        finally:
            self._forget()

    def _made(self, part: Part) -> bool:
        try:
            self._make(part)
        except _Overtaken:
            return False  # calls in that state will be recorded again
        except BaseException as error:
            if part.cache.awaits(part.pending):
                self._failed(error)
            return False
        return True

    def _make(self, part: Part) -> None:
        state = part.recording.state
        with torch.inference_mode(state[_INFERENCE]), torch.set_grad_enabled(state[_GRAD]):
            if torch_state() != state:
                raise _Overtaken
            part.make(functools.partial(self._store, part))

    @staticmethod
    def _store(part: Part, entry: Entry) -> bool:
        if torch_state() != part.recording.state:
            raise _Overtaken
        return part.cache.deliver(part.pending, entry)

    def _forget(self) -> None:
        for part in self._parts:
            part.cache.forget(part.pending)
            part.recording.example_inputs = []

    def abandon(self) -> None:
        """In the child of a fork: the thread may have held these locks."""
        for part in self._parts:
            part.cache.free()
            part.cache.forget(part.pending)

    def submit(self) -> bool:
        """False: it cannot be done later."""
        for part in self._parts:
            part.cache.expect(part.pending)
        if background.submit(self):
            return True
        for part in self._parts:
            part.cache.forget(part.pending)
        return False


def part(cache: Cache, recording: Recording, make: Callable[[StoreEntry], None]) -> Part | None:
    """The recording as something to be compiled later; None: it is to be compiled at once."""
    if recording.plain or recording.graph is None or not _is_usual(recording.state):
        return None
    examples = _on_their_own(recording.example_inputs)
    if examples is None or _turns_off_cudnn(recording.graph, examples):
        return None
    recording.example_inputs = examples
    pending = Pending(EntryGuards(recording, [], compile_guards), recording.break_reason)
    return Part(cache, pending, recording, make)


def _is_usual(state: tuple[Any, ...]) -> bool:
    return all(_USUAL.get(name, value) == value for name, value in zip(STATE_NAMES, state, strict=True))


def _turns_off_cudnn(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> bool:
    """Our autograd does, for all threads, while it differentiates norms on a GPU."""
    if not any(isinstance(value, torch.Tensor) and value.is_cuda for value in examples):
        return False
    return any("norm" in str(getattr(node.target, "__name__", node.target)) for node in graph.graph.nodes)


def _on_their_own(inputs: Sequence[Any]) -> list[Any] | None:
    """Tensors over the same memory which look like the inputs and stay as they are, whatever the program does to its
    own: to sizes, strides, and what requires gradients. None: there is one that cannot be had like that."""
    known: dict[int, Any] = {}
    for value in inputs:
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):  # made for the backend
            known[id(value)] = value
        elif id(value) not in known:
            if type(value) not in _TYPES:
                return None
            known[id(value)] = _twin(value)
            if tensor_facts(known[id(value)]) != tensor_facts(value):
                return None
    return [known[id(value)] for value in inputs]


def _twin(value: torch.Tensor) -> torch.Tensor:
    twin = value.data  # not `detach`: that is a view, and keeps what it is a view of
    if type(value) is torch.nn.Parameter:
        return torch.nn.Parameter(twin, value.requires_grad)
    if value.is_leaf:
        return twin.requires_grad_(value.requires_grad)
    with torch.enable_grad():
        return twin.requires_grad_().view_as(twin)
