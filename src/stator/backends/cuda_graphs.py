"""A compiled graph as a CUDA graph: its kernels are launched all at once.

Enters: a pure graph's callable, which takes a list and clears it, and the fx graph it was made from. Leaves: a callable
like it. The first call runs it as it is (kernels are loaded, and tuned). The second call captures it: inputs that lie
where they lay in the first are read there, the others from memory of ours, into which they are copied.
What holds: nothing that is given away is ever written to again. A capture writes to the same memory in every replay, so
results are copies of that; what is an input, or a view of one, is taken from the call's own input.
What a capture is not good for (inputs elsewhere, other strides, a stream that is being captured) runs as it is.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

Boxed = Callable[[list[Any]], Sequence[Any]]
_MOST_CAPTURES = 3  # of one graph, each with more of its inputs copied
_RANDOM = torch.Tag.nondeterministic_seeded


_NOTHING = torch.empty(0)


class NotCapturable(Exception):
    """The graph runs as it is, from now on."""


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


class Capture:
    """A captured run on the GPU: `replay` does again what it did, in the same memory."""

    def __init__(self, run: Boxed, inputs: Sequence[Tensor]) -> None:
        self._device = inputs[0].device
        self._graph = torch.cuda.CUDAGraph()
        self._kept: Any = inputs
        with torch.cuda.device(self._device):
            here = torch.cuda.current_stream()
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                run(list(inputs))  # libraries set themselves up, for each stream
            aside.synchronize()
            here.wait_stream(aside)
            with torch.cuda.graph(self._graph, stream=aside, capture_error_mode="thread_local"):
                self.outputs: Sequence[Any] = run(list(inputs))
            self._over = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._over.record()

    def keep(self, *memory: Any) -> None:
        """The memory in use, which must not be freed before the GPU is done with it."""
        self._kept, self.outputs = memory, ()

    def begin(self) -> None:
        """The memory is about to be written to: not before its last use, maybe on another stream."""
        with torch.cuda.device(self._device):
            self._over.wait()

    def replay(self) -> None:
        with torch.cuda.device(self._device):
            self._graph.replay()

    def end(self) -> None:
        with torch.cuda.device(self._device):
            self._over.record()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # it was not made to its end, or the process is ending
            self._over.synchronize()

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


class _Look(NamedTuple):
    """What a capture relies on."""

    size: torch.Size
    stride: tuple[int, ...]
    address: int


def _look(value: Tensor) -> _Look:
    return _Look(value.shape, value.stride(), value.data_ptr())


class Replayed:
    """The callable."""

    _boxed_call = True  # the mark that torch's compilers use

    def __init__(self, run: Boxed, capture: Any = Capture) -> None:
        self._run = run
        self._capture = capture
        self._lock = threading.Lock()  # the memory is one for all threads
        self._expected: list[_Look] = []  # of the inputs: as in the call before, then as captured
        self._copied: set[int] = set()  # inputs that were seen elsewhere
        self._captures = 0
        self._given_up = False
        self._captured: Any = None
        self._settings: tuple[Any, ...] = ()
        self._memory: list[Tensor] = []  # that the capture reads
        self._results: list[_Part | Tensor | None] = []

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
        looks = [_look(value) for value in inputs]
        if self._captured is None:
            return self._captures_now(inputs, looks)
        if self._capture.settings() != self._settings:
            return False
        return all(map(self._is_expected, range(len(looks)), looks)) or self._captures_now(inputs, looks)

    def _is_expected(self, index: int, look: _Look) -> bool:
        expected = self._expected[index]
        return look == expected or (index in self._copied and look[:2] == expected[:2])

    def _captures_now(self, inputs: list[Any], looks: list[_Look]) -> bool:
        """Not in the first call, nor for inputs that look otherwise."""
        former, self._expected = self._expected, looks
        if not former:
            return False
        if any(look[:2] != before[:2] for look, before in zip(looks, former, strict=True)):
            self._give_up()
            return False
        self._copied |= {i for i, look in enumerate(looks) if look.address != former[i].address}
        if self._captures == _MOST_CAPTURES:
            self._copied = set(range(len(looks)))  # they come and go
        self._captures += 1
        try:
            self._make(inputs)
        except Exception:  # an operation that waits for the GPU, or the like
            self._give_up()
            return False
        return True

    def _make(self, inputs: list[Any]) -> None:
        self._captured = None
        self._settings = self._capture.settings()
        self._memory = [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
            if index in self._copied
            else value.detach()
            for index, value in enumerate(inputs)
        ]
        captured = self._capture(self._run, self._memory)
        self._results = [self._result(value) for value in captured.outputs]
        for index in set(range(len(inputs))) - self._copied:
            self._memory[index] = _NOTHING  # it is the program's, which may let go of it
        captured.keep(self._memory, self._results)
        self._captured = captured

    def _result(self, value: Any) -> _Part | Tensor | None:
        if value is None:
            return None
        if not isinstance(value, Tensor):
            raise NotCapturable
        for index, given in enumerate(self._memory):
            if value.untyped_storage()._cdata == given.untyped_storage()._cdata:
                offset = int(value.storage_offset() - given.storage_offset())
                return _Part(index, value is given, value.shape, value.stride(), offset)
        if value.clone().stride() != value.stride():
            raise NotCapturable
        return value

    def _replay(self, inputs: list[Any]) -> Sequence[Any]:
        captured = self._captured
        captured.begin()
        for index in self._copied:
            self._memory[index].copy_(inputs[index])
        captured.replay()
        given = list(inputs)
        inputs.clear()
        results = [
            part.of(given[part.place]) if isinstance(part, _Part) else part if part is None else part.clone()
            for part in self._results
        ]
        captured.end()
        return results

    def _give_up(self) -> None:
        self._given_up = True
        self._captured, self._memory, self._results = None, [], []


def is_capturable(module: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Is all of the graph on one GPU, of known sizes, and the same in every run?"""
    devices = set()
    for node in module.graph.nodes:
        value = node.meta.get("val")
        for part in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(part, Tensor):
                devices.add(part.device)
                if any(isinstance(length, torch.SymInt) for length in part.shape):
                    return False
            elif part is not None:
                return False
        if _RANDOM in getattr(node.target, "tags", ()):  # drawn by the generator at the time of the call
            return False
    if not example_inputs or not all(isinstance(value, Tensor) for value in example_inputs):
        return False
    return len(devices) == 1 and devices.pop().type == "cuda"
