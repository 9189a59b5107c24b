"""Running one model of the zoo plain and compiled, side by side: what it gave, and what it took.

What enters: a `Model`. What leaves: an `Outcome` for each way of running it: forward calls, training steps,
`generate`. What holds: both sides are built from the same seed and called with the same arguments; after every call
results (caches that are handed out included), gradients, parameters, buffers and torch's random numbers are compared.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from harness import Description, difference, fresh_torch_state
from zoo import Model

import stator
from stator import events

Call = Callable[[Any, int], Any]  # (model, number of the call) to a result


@dataclass(frozen=True)
class Break:
    id: str
    reason: str
    place: str  # file and line, with the line's text


@dataclass
class Outcome:
    """What came of one way of running a model."""

    way: str
    calls: int = 0
    wrong: str = ""  # the first difference
    close: bool = False  # sums were added up in another order: equal within the tolerance, not bit by bit
    graphs: int = 0
    recordings: int = 0  # watched runs
    plain: int = 0  # calls of which a part ran as plain Python
    guards: int = 0  # of the first call
    capture: float = 0.0  # seconds of the first call, compiled
    eager: float = 0.0  # seconds of the same call, plain
    breaks: dict[Break, int] = field(default_factory=dict)  # of all calls, and how often
    misses: list[str] = field(default_factory=list)  # why calls after the first were recorded again
    given_up: bool = False  # the limit of recordings was reached
    rounds: bool = False  # kernels of its own: every sum may be added up in another order
    refused: list[str] = field(default_factory=list)  # why graphs did not become what the backend makes of them

    @property
    def right(self) -> bool:
        return not self.wrong

    @property
    def one_graph(self) -> bool:
        """Was every watched run one graph, from the call to its result?"""
        return not self.breaks and not self.plain and 0 < self.graphs == self.recordings


# ---- what is called ----------------------------------------------------------------------------------

BATCHES = (2, 2, 2, 3, 4)


def forward_calls(model: Model) -> list[Call]:
    """Other values, other weights, and other batch sizes."""

    def call(module: Any, number: int) -> Any:
        if number == 2:
            change_weights(module)
        with torch.no_grad():
            return module(**model.inputs(number, BATCHES[number]))

    return [call] * len(BATCHES)


def change_weights(module: Any) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.25)


def training_calls(model: Model) -> list[Call]:
    """Steps of gradient descent around the compiled forward."""
    assert model.training is not None
    training = model.training

    def call(module: Any, number: int) -> Any:
        torch.manual_seed(number)
        module.zero_grad()
        loss = model.loss(module(**training(number, 2)))
        loss.backward()
        gradients = {name: p.grad for name, p in module.named_parameters()}
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
        return loss.detach(), gradients

    return [call] * 3


def generate_calls(model: Model) -> list[Call]:
    """Greedy decoding with a cache, of several prompts."""
    given = model.prompt or model.inputs

    def call(module: Any, number: int) -> Any:
        asked = dict(max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True)
        out = module.generate(**given(number, 2), **asked)
        return out.sequences, out.logits

    return [call] * 3


# The calls of each way to run a model, and the backend: forward graphs as they are, training through both graphs.
WAYS: dict[str, tuple[Callable[[Model], list[Call]], str]] = {
    "forward": (forward_calls, "eager"),
    "training": (training_calls, "aot_eager"),
    "generate": (generate_calls, "eager"),
}


def ways_of(model: Model) -> list[str]:
    """What there is to run of a model."""
    return ["forward"] + ["training"] * (model.training is not None) + ["generate"] * model.generates


# ---- running it ------------------------------------------------------------------------------------------


def measure(model: Model, way: str, backend: str | None = None) -> Outcome:
    """Run a model one way, plain and compiled, and stop at the first difference. `backend`: another than usual."""
    make_calls, usual = WAYS[way]
    backend = backend or usual
    outcome = Outcome(way, rounds=backend == "native")
    plain, original = (build(model, way) for _ in range(2))
    compiled = stator.compile(original, backend=backend)
    handle = compiled.stator
    exact = Exact(model, way) if outcome.rounds else None
    for number, call in enumerate(make_calls(model)):
        wanted, eager = run(plain, call, number)
        recorded = handle.recordings
        with listening(outcome):
            got, seconds = run(compiled, call, number)
        outcome.calls += 1
        if number == 0:
            outcome.eager, outcome.capture = eager, seconds
            outcome.guards = sum(len(entry.guards.lines()) for entry in handle.entries)
        elif handle.recordings > recorded:
            outcome.misses.append(f"call {number + 1}: {handle.last_miss}")
        compare(outcome, number, wanted, got, exact)
        if outcome.wrong:
            break
    outcome.graphs, outcome.recordings, outcome.plain = len(handle.graphs), handle.recordings, handle.plain
    for why in handle.break_reasons:
        place = f"{why.filename.rsplit('/', 1)[-1]}:{why.lineno} `{why.line}`"
        key = Break(why.id, why.reason, place)
        outcome.breaks[key] = outcome.breaks.get(key, 0) + 1
    return outcome


def build(model: Model, way: str) -> Any:
    torch.manual_seed(0)
    return model.make().train(way == "training")


def run(module: Any, call: Call, number: int) -> tuple[Description, float]:
    """What one call leaves behind, and how long it took."""
    with fresh_torch_state():
        start = time.perf_counter()
        result = call(module, number)
        seconds = time.perf_counter() - start
        seen = {
            "result": result,
            "parameters": dict(module.named_parameters()),
            "buffers": dict(module.named_buffers()),
            "random numbers": torch.get_rng_state(),
        }
        description = Description()
        description.add("", seen)
        description.lines = [line for line in description.lines if MARK_OF_DYNAMO not in line]
        return description, seconds


# The library marks tensors of its caches for torch.compile, unless it is being compiled: then it leaves that to others.
MARK_OF_DYNAMO = "._dynamo_static_input_type: "


# Where a graph is cut, or a library takes another way when it is compiled, sums are added up in another order.
TOLERANCE = dict(rtol=1e-4, atol=1e-6)
ROUNDING = 2e-4
VALUES = re.compile(r" \[[^]]*\] [0-9a-f]{12}$")


def compare(outcome: Outcome, number: int, wanted: Description, got: Description, exact: Exact | None) -> None:
    """Bit by bit; or else the same but for the values of tensors, and these equal within the tolerance."""
    if wanted.lines == got.lines:
        return
    outlines = [[VALUES.sub("", line) for line in side.lines] for side in (wanted, got)]
    tensors = [tensors_of(side) for side in (wanted, got)]
    if outlines[0] == outlines[1] and (
        all(map(is_near, *tensors, [outcome.rounds] * len(tensors[0])))
        or (exact is not None and all(map(is_no_worse, *tensors, exact.tensors(number))))
    ):
        outcome.close = True
    else:
        outcome.wrong = outcome.wrong or f"call {number + 1}: {difference(wanted.lines, got.lines)}"


def tensors_of(description: Description) -> list[torch.Tensor]:
    return [value for value in description.alive if isinstance(value, torch.Tensor)]


class Exact:
    """The same model in float64, for calls where results differ by more than usual: so far eager's may be off, too."""

    def __init__(self, model: Model, way: str) -> None:
        self._model, self._way, self._done = model, way, 0
        self._built: Any = None

    def tensors(self, number: int) -> list[torch.Tensor]:
        """What the call of this number gives; all calls before it are made first."""
        if self._built is None:
            self._built = build(self._model, self._way).double()
            self._built.register_forward_pre_hook(_widened, with_kwargs=True)
        calls = WAYS[self._way][0](self._model)
        for earlier in range(self._done, number + 1):
            seen, _ = run(self._built, calls[earlier], earlier)
        self._done = number + 1
        return tensors_of(seen)


def _widened(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return args, {name: v.double() if _is_real(v) else v for name, v in kwargs.items()}


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def is_no_worse(wanted: torch.Tensor, got: torch.Tensor, exact: torch.Tensor) -> bool:
    """Is the result as near to the exact one as eager's, give or take?"""
    if not wanted.is_floating_point() or not wanted.numel() or wanted.shape != exact.shape:
        return torch.equal(wanted, got)
    errors = [float((side.detach().double() - exact.detach()).abs().max()) for side in (wanted, got)]
    return is_near(wanted, got, True) or errors[1] <= 4 * errors[0] + 1e-7


def is_near(wanted: torch.Tensor, got: torch.Tensor, rounds: bool) -> bool:
    if not wanted.is_floating_point():
        return torch.equal(wanted, got)
    if not rounds or not wanted.numel():
        return torch.allclose(wanted, got, equal_nan=True, **TOLERANCE)
    scale = float(wanted.detach().abs().nan_to_num(0, 0, 0).max())  # what a sum loses depends on its largest terms
    return torch.allclose(wanted, got, equal_nan=True, rtol=ROUNDING, atol=ROUNDING * max(scale, 1e-2))


LIMIT = "recordings and none fits"


@contextmanager
def listening(outcome: Outcome) -> Iterator[None]:
    """A warning of stator's own, but for the limit of recordings, is a fault that it has survived: here it counts."""

    def refused(event: Any) -> None:
        outcome.refused.append(str(event.why))

    unsubscribe = events.subscribe(refused, events.NotGenerated, events.NotDerived)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    unsubscribe()
    said = [str(each.message) for each in caught if "stator" in f"{each.category.__module__} {each.message}"]
    outcome.given_up = outcome.given_up or any(LIMIT in text for text in said)
    faults = [text for text in said if LIMIT not in text]
    outcome.wrong = outcome.wrong or "; ".join(faults)
