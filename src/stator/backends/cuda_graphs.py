"""A compiled graph as a CUDA graph: its kernels are launched all at once.

Enters: a pure graph's callable, which takes a list and clears it, and the fx graph it was made from. Leaves: a callable
like it. The first call runs it as it is (kernels are loaded, and tuned). The second call captures it: inputs that lie
where they lay in the first are read there, parameters anyhow; the others from memory of ours, into which they are
copied. What holds: nothing that is given away is ever written to while it is alive. A capture writes to the same memory
in every replay, so results are copies of that; what is an input, or a view of one, is taken from the call's own input.
Results that die soon (what a forward keeps for its backward, gradients) are given away as they are, and where one of
them is still alive, the graph runs as it is. What a capture is not good for (inputs elsewhere, other strides, a stream
that is being captured) runs as it is, too.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn import Parameter

from .. import events
from ..interrupts import let_through

Boxed = Callable[[list[Any]], Sequence[Any]]
_MOST_CAPTURES = 3  # of one graph, each with more of its inputs copied
_MOST_MOVES = 8  # captures in all: of one whose parameters move again and again no more are made
_MOST_ALIVE = 8  # calls in which results of the last one were alive: from then on all results are copies
_RANDOM = torch.Tag.nondeterministic_seeded


_NOTHING = torch.empty(0)


class NotCapturable(Exception):
    """The graph runs as it is, from now on; the text says why."""


# What kernels are chosen by when they are launched, and is settled when they are captured.
_NAMES = (
    "_get_cudnn_enabled _get_cudnn_benchmark _get_cudnn_deterministic _get_deterministic_algorithms "
    "_get_deterministic_algorithms_warn_only _get_cublas_allow_fp16_accumulation _get_blas_preferred_backend "
    "_get_linalg_preferred_backend _get_cublas_allow_fp16_reduced_precision_reduction "
    "_get_cublas_allow_bf16_reduced_precision_reduction"
)
_SETTINGS: list[Callable[[], Any]] = [getattr(torch._C, name) for name in _NAMES.split() if hasattr(torch._C, name)]
if hasattr(torch._C, "_get_fp32_precision_getter"):
    _OF = (("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"), ("cuda", "all"), ("generic", "all"))
    _SETTINGS += [functools.partial(torch._C._get_fp32_precision_getter, *of) for of in _OF]
else:
    _SETTINGS += [torch._C._get_cublas_allow_tf32, torch._C._get_cudnn_allow_tf32]


class _Device:
    """What captures on one device share. All replays there come one after the other, whatever their streams: those that
    were captured here share the workspaces of the libraries."""

    def __init__(self, device: torch.device) -> None:
        self.aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.lock = threading.RLock()
        self._over = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._last: Any = None  # the stream of the last replay

    def begin(self) -> None:
        """The memory of a capture is about to be written to: not before its last use, maybe on another stream."""
        if self._last is not None and self._last != torch.cuda.current_stream():
            self._over.wait()

    def end(self) -> None:
        self._last = torch.cuda.current_stream()
        self._over.record()


@functools.cache
def _device(device: torch.device) -> _Device:
    return _Device(device)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """What the garbage collector lets go of may wait for the GPU, which ends a capture."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Capture:
    """A captured run on the GPU: `replay` does again what it did, in the same memory."""

    def __init__(self, run: Boxed, inputs: Sequence[Tensor]) -> None:
        self._device = inputs[0].device
        self._shared = _device(self._device)
        self._graph = torch.cuda.CUDAGraph()
        self._kept: Any = inputs
        with torch.cuda.device(self._device), self._shared.lock:
            here, aside = torch.cuda.current_stream(), self._shared.aside
            self._shared.begin()
            aside.wait_stream(here)
            drawn = torch.cuda.get_rng_state(self._device)
            with torch.cuda.stream(aside):
                try:
                    run(list(inputs))  # libraries set themselves up, for each stream
                finally:
                    torch.cuda.set_rng_state(drawn, self._device)
                aside.synchronize()
                self.outputs: Sequence[Any] = self._captured(run, inputs)
            here.wait_stream(aside)
            self._shared.end()

    def _captured(self, run: Boxed, inputs: Sequence[Tensor]) -> Sequence[Any]:
        with _no_collection():
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                outputs = run(list(inputs))
            except BaseException:
                with contextlib.suppress(Exception):
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        return outputs

    def keep(self, *memory: Any) -> None:
        """The memory in use, which must not be freed before the GPU is done with it."""
        self._kept, self.outputs = memory, ()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Around a replay, the copies before it and those behind it."""
        with contextlib.ExitStack() as stack:
            if torch.cuda.current_device() != self._device.index:
                stack.enter_context(torch.cuda.device(self._device))
            stack.enter_context(self._shared.lock)
            self._shared.begin()
            try:
                yield
            finally:
                self._shared.end()

    def replay(self) -> None:
        self._graph.replay()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # it was not made to its end, or the process is ending
            torch.cuda.synchronize(self._device)

    @staticmethod
    def is_possible() -> bool:
        return not torch.cuda.is_current_stream_capturing()

    @staticmethod
    def settings() -> tuple[Any, ...]:
        """What must be as it was when it was captured."""
        return tuple([ask() for ask in _SETTINGS])


class _Part(NamedTuple):
    """A result that lies in an input's memory."""

    place: int  # of the input
    itself: bool
    size: torch.Size
    stride: tuple[int, ...]
    offset: int  # from where the input begins

    def of(self, value: Tensor) -> Tensor:
        if self.itself:
            return value
        return value.as_strided(self.size, self.stride, value.storage_offset() + self.offset)


# Where results lie that captures give away as they are: a capture that takes them reads them there.
_resident: set[int] = set()


def _looks(inputs: Sequence[Any], copied: Sequence[int]) -> Any:
    """What a capture relies on, by input: sizes, strides, and where it lies, unless it is copied. None: some are
    elsewhere, as the seeds of torch's attention are where nothing is captured."""
    if len({value.device for value in inputs}) > 1:
        return None
    return tuple([
        (value.shape, value.stride(), 0 if index in copied else value.data_ptr()) for index, value in enumerate(inputs)
    ])  # fmt: skip


def _addresses(looks: Any) -> Sequence[int]:
    if isinstance(looks, bytes):
        return struct.unpack(f"{len(looks) // 8}Q", looks)
    return [look[2] for look in looks]


def _same_layout(one: Any, other: Any) -> bool:
    """Host functions have looked at that themselves: what they give is addresses alone."""
    return isinstance(one, bytes) or all(a[:2] == b[:2] for a, b in zip(one, other, strict=True))


class Replayed:
    """The callable. `kept`: positions of results that die soon, and are given away as they are."""

    _boxed_call = True  # the mark that torch's compilers use

    def __init__(self, run: Boxed, capture: Any = Capture, kept: Collection[int] = (), part: str = "graph") -> None:
        self._run = run
        self._part = part  # how events call it
        self._looks: Callable[[list[Any], tuple[int, ...]], Any] = getattr(run, "looks", _looks)
        self._capture = capture
        self._kept = frozenset(kept)
        self._lock = threading.Lock()  # the memory is one for all threads
        self._copied: tuple[int, ...] = ()  # inputs that were seen elsewhere
        self._expected: Any = None  # what inputs look like: as in the call before, then as captured
        self._read_there: frozenset[int] = frozenset()  # inputs that lie in another capture's memory
        self._captures = 0
        self._given_up = False
        self._captured: Any = None
        self._settings: tuple[Any, ...] = ()
        self._memory: list[Tensor] = []  # that the capture reads
        self._results: list[_Part | Tensor | None] = []
        self._storages: list[tuple[Any, int]] = []  # of results that are given away, and who holds them anyhow
        self._held: list[Any] = []  # those storages
        self._mine: set[int] = set()  # of `_resident`
        self._alive_calls = 0  # in a row that ran as they are because of memory that captures give away

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        if not self._given_up and self._capture.is_possible() and self._lock.acquire(blocking=False):
            try:
                with torch.no_grad():
                    if self._is_there(inputs):
                        return self._replay(inputs)
            finally:
                self._lock.release()
        return self._run(inputs)

    def _is_there(self, inputs: list[Any]) -> bool:
        """Is there a capture that fits, now at least?"""
        looks = self._looks(inputs, self._copied)
        if looks is None:
            return False
        if self._captured is not None and self._capture.settings() != self._settings:
            return False
        if self._captured is None or looks != self._expected:
            return self._captures_now(inputs)
        return not self._is_alive()

    def _is_alive(self) -> bool:
        """Does somebody still hold what the last replay has given away?"""
        if all(torch._C._storage_Use_Count(at) == count for at, count in self._storages):
            self._alive_calls = 0
            return False
        self._alive_calls += 1
        if self._alive_calls == _MOST_ALIVE:  # they live longer here
            self._kept = frozenset()
            self._forget()
        return True

    def _captures_now(self, inputs: list[Any]) -> bool:
        """Not in the first call, nor for inputs that look otherwise."""
        looks = self._looks(inputs, ())
        former, self._expected = self._expected, looks
        if former is None:
            return False
        if not _same_layout(looks, former):
            self._give_up()
            return False
        addresses, before = _addresses(looks), _addresses(former)
        fixed = {i for i, value in enumerate(inputs) if type(value) is Parameter or addresses[i] in _resident}
        moved = {i for i in range(len(inputs)) if addresses[i] != before[i] and i not in self._copied}
        if self._captured is not None and moved & (self._read_there - fixed) and self._alive_calls < _MOST_ALIVE:
            self._alive_calls += 1  # the graph that makes them has run as it is, this time
            self._expected = former
            return False
        copied = {*self._copied, *(moved - fixed)} - fixed
        if self._captures >= _MOST_CAPTURES:
            copied = set(range(len(inputs))) - fixed  # they come and go
        self._captures += 1
        if self._captures > _MOST_MOVES:
            self._give_up()
            return False
        try:
            self._make(inputs, tuple(sorted(copied)))
        except Exception as error:  # an operation that waits for the GPU, or the like
            let_through(error)
            events.emit(events.NotCaptured(self._part, f"{type(error).__name__}: {error}"))
            self._give_up()
            return False
        self._expected = self._looks(inputs, self._copied)
        self._read_there = frozenset(i for i in fixed if addresses[i] in _resident)
        return True

    def _make(self, inputs: list[Any], copied: tuple[int, ...]) -> None:
        self._forget()
        self._copied = copied
        self._settings = self._capture.settings()
        self._memory = [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
            if index in copied
            else value.detach()
            for index, value in enumerate(inputs)
        ]
        captured = self._capture(self._run, self._memory)
        self._results = [self._result(position, value) for position, value in enumerate(captured.outputs)]
        for index in set(range(len(inputs))) - set(copied):
            self._memory[index] = _NOTHING  # it is the program's, which may let go of it
        captured.keep(self._memory, self._results)
        given = [r for n, r in enumerate(self._results) if n in self._kept and isinstance(r, Tensor)]
        self._mine = {value.data_ptr() for value in given}
        storages = {value.untyped_storage()._cdata: value.untyped_storage() for value in given}
        del given
        self._held = list(storages.values())
        self._storages = [(at, torch._C._storage_Use_Count(at)) for at in storages]
        _resident.update(self._mine)
        self._captured = captured

    def _result(self, position: int, value: Any) -> _Part | Tensor | None:
        if value is None:
            return None
        if not isinstance(value, Tensor):
            raise NotCapturable("a result is no tensor")
        for index, given in enumerate(self._memory):
            if value.untyped_storage()._cdata == given.untyped_storage()._cdata:
                offset = int(value.storage_offset() - given.storage_offset())
                return _Part(index, value is given, value.shape, value.stride(), offset)
        if position not in self._kept and value.clone().stride() != value.stride():
            raise NotCapturable("a result overlaps itself, or has gaps")
        return value

    def _replay(self, inputs: list[Any]) -> Sequence[Any]:
        captured = self._captured
        with captured.inside():
            for index in self._copied:
                self._memory[index].copy_(inputs[index])
            captured.replay()
            given = list(inputs)
            inputs.clear()
            return [
                part.of(given[part.place])
                if isinstance(part, _Part)
                else part
                if part is None
                else part.detach()
                if position in self._kept
                else part.clone()
                for position, part in enumerate(self._results)
            ]

    def _forget(self) -> None:
        """The capture that there is; what it has given away stays as it is, nobody writes there any more."""
        _resident.difference_update(self._mine)
        self._captured, self._memory, self._results = None, [], []
        self._storages, self._held, self._mine = [], [], set()

    def _give_up(self) -> None:
        self._given_up = True
        self._forget()

    def __del__(self) -> None:
        _resident.difference_update(self._mine)


def why_not_capturable(module: fx.GraphModule, example_inputs: Sequence[Any]) -> str | None:
    """None where all of the graph is on one GPU, and of known sizes."""
    devices = set()
    for node in module.graph.nodes:
        value = node.meta.get("val")
        for part in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(part, Tensor):
                devices.add(part.device)
                if any(isinstance(length, torch.SymInt) for length in part.shape):
                    return "it has sizes that are known at run time only"
            elif part is not None and type(part) is not int:  # attention gives the lengths of its sequences
                return "it has numbers that are known at run time only"
        if _RANDOM in getattr(node.target, "tags", ()) and node.kwargs.get("generator") is not None:
            return "it draws random numbers from a generator of its own"
    if not example_inputs or not all(isinstance(value, Tensor) for value in example_inputs):
        return "it has inputs that are no tensors, or none at all"
    if len(devices) != 1 or devices.pop().type != "cuda":
        return "it is not on one GPU alone"
    return None
