"""The programs that faults are put into: small ones that together reach every stage.

Each is a function that builds a world (see `harness`), with the calls made of it. Everything that a program touches is
made inside, so that each run starts afresh, its code objects included: what stator remembers of code is made again.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from harness import World, rand
from torch import nn
from torch.utils.checkpoint import checkpoint

import stator

Calls = list[Callable[[World], Any]]


class Program(NamedTuple):
    name: str
    world: Callable[[], World]
    calls: Calls
    backend: Any = "eager"
    options: dict[str, Any] = {}  # noqa: RUF012  # never changed
    repeatable: bool = False  # a call that was interrupted half-way leaves nothing behind
    rooms: tuple[str, ...] = ()  # faults are put into these modules only; none named: into all


PROGRAMS: list[Program] = []


def fresh_code(code: types.CodeType) -> types.CodeType:
    """The same code, as objects that nobody has seen."""
    consts = tuple(fresh_code(const) if isinstance(const, types.CodeType) else const for const in code.co_consts)
    return code.replace(co_consts=consts)


def program(*calls: Callable[[World], Any], **how: Any) -> Callable[[Callable[[], World]], Callable[[], World]]:
    """Register a world. Without calls: four with different tensors."""

    def register(build: Callable[[], World]) -> Callable[[], World]:
        def world() -> World:
            again = types.FunctionType(fresh_code(build.__code__), build.__globals__, build.__name__)
            made: World = again()
            return made

        usual: Calls = [lambda w, seed=seed: w.fn(rand(seed, 3, 4)) for seed in range(4)]
        PROGRAMS.append(Program(build.__name__, world, list(calls) or usual, **how))
        return build

    return register


@program(repeatable=True)
def graph() -> World:
    weight = rand(9, 4)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * weight + 1.0).sum(dim=-1)

    return World(fn=fn)


@program(repeatable=True)
def module() -> World:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.norm = nn.LayerNorm(4)
            self.scale = 0.5

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            y = self.norm(self.layers(x)) * self.scale
            return {"y": y, "rows": [row.sum() for row in y]}

    torch.manual_seed(0)
    return World(fn=Model())


@program()
def effects() -> World:
    @dataclasses.dataclass
    class Counter:
        calls: int = 0
        last: Any = None

    class Held(NamedTuple):
        tensor: torch.Tensor
        size: int

    counter, seen, table, cell = Counter(), [1], {"a": 1}, 0
    queue, unique = collections.deque([1], maxlen=2), {1}
    weight = rand(5, 4)

    def fn(x: torch.Tensor) -> Any:
        nonlocal cell
        cell = cell + 1
        counter.calls += 1
        y = x * weight
        counter.last = y
        seen.append(len(seen))
        table["b"] = y
        table.pop("a", None)
        queue.append(3)
        unique.add(7)
        weight.add_(1.0)
        made = Held(y, y.shape[0])
        made_too = collections.defaultdict(list, {"x": [made]})
        return made_too, [made, made], (lambda: cell), collections.OrderedDict(a=y), slice(1, 2)

    return World(
        fn=fn, counter=counter, seen=seen, table=table, queue=queue, unique=unique, weight=weight, get=lambda: cell
    )


@program()
def classes() -> World:
    class Base:
        __slots__ = ("_value",)

        def __init__(self, value: Any) -> None:
            self._value = value

        @property
        def value(self) -> Any:
            return self._value

        def __add__(self, other: Any) -> Any:
            return type(self)(self._value + other)

        def __getattr__(self, name: str) -> Any:
            if name == "missing":
                return 2.0
            raise AttributeError(name)

    class Derived(Base):
        factor = 3.0

        @classmethod
        def make(cls, value: Any) -> Any:
            return cls(value)

        @staticmethod
        def twice(value: Any) -> Any:
            return value * 2

        def __add__(self, other: Any) -> Any:
            return super().__add__(other * self.factor)

        def __len__(self) -> int:
            return 3

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exception: object) -> None:
            self._value = self._value + 1

    def fn(x: torch.Tensor) -> Any:
        made = Derived.make(x) + x
        with made as inside:
            y = Derived.twice(inside.value) * inside.missing
        match {"k": len(made), "x": y}:
            case {"k": 3, "x": found}:
                y = found - 1
        pick = isinstance(made, Base) and hasattr(made, "value") and not hasattr(made, "nothing")
        return made if pick else None, y, f"{len(made):>4}", sorted([3, 1, 2], key=lambda n: -n)

    return World(fn=fn, Derived=Derived)


@program()
def breaks() -> World:
    log: list[int] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        log.append(1)
        print("first", y.shape)
        z = y + 1
        print("second")
        log.append(2)
        return z.sum()

    return World(fn=fn, log=log)


@program()
def nested_breaks() -> World:
    weights = {"w": rand(8, 4)}
    state: list[Any] = [0]

    def inner(x: torch.Tensor, by: float) -> torch.Tensor:
        y = x * weights["w"]
        print("inner", by)
        state.append(by)
        return y * by

    def middle(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = inner(x, 2.0)
        return y + inner(y, 3.0)

    def fn(x: torch.Tensor) -> torch.Tensor:
        total = middle(x)
        if total.sum().item() > 0:
            total = total - 1
        return total

    return World(fn=fn, state=state, weights=weights)


@program()
def loop_of_breaks() -> World:
    def fn(x: torch.Tensor) -> Any:
        made = []
        for i in range(3):
            x = x * 2 + i
            print("round", i)
            made.append(x.sum())
        try:
            print("before")
            y = x[7]
        except IndexError as error:
            y = x + len(str(error))
        return made, y

    return World(fn=fn)


@program()
def generators() -> World:
    weights = [rand(6, 4), rand(7, 4)]

    def pairs(x: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        received = None
        for number, weight in enumerate(weights):
            received = yield number, x * weight
        return received

    def fn(x: torch.Tensor) -> Any:
        found = {number: value for number, value in pairs(x)}
        first, *rest = (value + 1 for value in found.values())
        unfinished = pairs(x)
        next(unfinished)
        return found, first, rest, max(len(found), 2), sum(t.sum() for t in rest), list(zip("ab", [1, 2], strict=True))

    return World(fn=fn, weights=weights)


def _expecting(error: type[Exception], seed: int, *more: Any) -> Callable[[World], Any]:
    def call(w: World) -> Any:
        try:
            return w.fn(rand(seed, 3, 4), *more)
        except error as caught:
            return [type(caught), str(caught), caught.__context__, [f.name for f in _user_frames(caught)]]

    return call


def _user_frames(error: BaseException) -> Any:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]


@program(
    _expecting(ValueError, 1, 0),
    _expecting(ValueError, 2, 1),
    _expecting(ValueError, 3, 0),
    _expecting(ValueError, 4, 1),
)
def exceptions() -> World:
    finals: list[int] = []

    def inner(x: torch.Tensor, wrong: int) -> torch.Tensor:
        try:
            if wrong:
                raise ValueError(f"wrong {wrong}")
            return {"a": x}["b"]
        except KeyError:
            return x + 1
        finally:
            finals.append(len(finals))

    def fn(x: torch.Tensor, wrong: int) -> torch.Tensor:
        y = inner(x * 2, wrong)
        try:
            return y[5]
        except IndexError:
            return y - 1

    return World(fn=fn, finals=finals)


@program(
    *(lambda w, n=n: w.fn(rand(n, n, 4), n, n / 2) for n in (3, 4, 5, 6)),
    lambda w: w.fn(rand(1, 7, 4), 2, 1.5),
)
def dynamic() -> World:
    def fn(x: torch.Tensor, number: int, share: float) -> Any:
        rows = x.shape[0]
        y = x.reshape(rows * 2, -1) * number
        z = torch.cat([y, y]) + share
        if rows > 2 and number % 100 < 50:
            z = z[: rows + 1]
        return z, rows * 3 + number, [z.size(0) // 2, -number], torch.zeros(rows)

    return World(fn=fn)


@program(*(lambda w, n=n: w.fn(rand(n, n, 4)) for n in (3, 4, 5, 6)), options={"capture_scalar_outputs": True})
def scalars() -> World:
    def fn(x: torch.Tensor) -> Any:
        total = x.abs().sum().item()
        y = x * total
        n = int(x.shape[0])
        print("rows", n)
        return y / (n + 1), total

    return World(fn=fn)


@program(options={"reorder_print": True})
def modes() -> World:
    def fn(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = x + 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = torch.mm(x, x.t())
        with torch.inference_mode():
            k = y * 2
        print("later", 1)
        noise = torch.nn.functional.dropout(x, 0.5)
        return y, z, k.sum(), noise + torch.rand(3, 4)

    return World(fn=fn)


@program()
def in_place() -> World:
    state = {"x": rand(3, 4), "n": 1}

    def fn(x: torch.Tensor) -> Any:
        state["x"].mul_(2.0)
        x.add_(state["x"])
        x[0] = 1.0
        state["n"] += 1
        view = x.t()
        return view, x

    return World(fn=fn, state=state)


def _train(w: World, seed: int) -> Any:
    x = rand(seed, 3, 4, requires_grad=True)
    out = w.fn(x)
    loss = out["y"].sum() + out["z"].mean()
    loss.backward()
    return loss.detach(), x.grad, [p.grad.clone() for p in w.fn.parameters()]


@program(*(lambda w, seed=seed: _train(w, seed) for seed in range(4)), backend="aot_eager")
def training() -> World:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 8)
            self.second = nn.Linear(8, 4)
            self.drop = nn.Dropout(0.2)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            h = self.drop(torch.relu(self.first(x)))
            y = self.norm(self.second(h))
            return {"y": y, "z": torch.softmax(y * x, dim=-1), "view": y[0]}

    torch.manual_seed(0)
    return World(fn=Model())


def _step(w: World, n: int) -> Any:
    x = rand(n, n, 4, requires_grad=True)
    y, total = w.fn(x)
    (y.sum() + total).backward()
    return y.detach(), x.grad


@program(*(lambda w, n=n: _step(w, n) for n in (3, 4)), backend="aot_eager")
def dynamic_training() -> World:
    weight = rand(1, 4, 4, requires_grad=True)
    seen: list[int] = []

    def region(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weight)

    def fn(x: torch.Tensor) -> Any:
        h = checkpoint(region, x, use_reentrant=False)
        seen.append(1)
        print("between")
        z = h.view(x.shape[0], 2, 2)
        return z.cumsum(0), (z * z).sum()

    return World(fn=fn, weight=weight, seen=seen)


@program()
def transforms() -> World:
    weight, settings = rand(1, 4), {"scale": 2.0}

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * settings["scale"]

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * settings["scale"]

    def fn(x: torch.Tensor) -> Any:
        rows = torch.func.vmap(lambda row: (row * weight).sum())(x)
        slopes = torch.func.grad(lambda w: (x * w).sin().sum() * settings["scale"])(weight)
        return rows, slopes, Twice.apply(x) + 1

    return World(fn=fn, settings=settings)


@program()
def optimizer() -> World:
    weight = nn.Parameter(rand(1, 4))
    sgd = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    losses: list[torch.Tensor] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        weight.grad = x.sum(dim=0) * weight.detach()
        sgd.step()
        losses.append(weight.detach().sum())
        return losses[-1]

    return World(fn=fn, weight=weight, losses=losses)


def _change(w: World, scale: Any) -> Any:
    w.settings["scale"] = scale
    return w.fn(rand(2, 3, 4))


@program(
    *(lambda w, scale=scale: _change(w, scale) for scale in (1.0, "a", None, 3.0, (1, 2), 4.0)),
    options={"cache_size_limit": 3},
)
def misses() -> World:
    settings: dict[str, Any] = {"scale": 1.0}

    def fn(x: torch.Tensor) -> Any:
        scale = settings["scale"]
        return x * scale if isinstance(scale, float) else (x + 1, scale)

    return World(fn=fn, settings=settings)


def _with_logs(w: World, seed: int) -> Any:
    logger, handler = logging.getLogger("stator"), logging.NullHandler()
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    stator.set_logs(all=True)
    try:
        return w.fn(rand(seed, 3, 4))
    finally:
        stator.set_logs()
        logger.removeHandler(handler)
        logger.propagate = propagates


@program(*(lambda w, seed=seed: _with_logs(w, seed) for seed in range(3)))
def logged() -> World:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("break")
        return y + 1

    return World(fn=fn)


def broken_backend(gm: Any, example_inputs: Any) -> Any:
    raise ZeroDivisionError("this backend never works")


@program(backend=broken_backend)
def without_backend() -> World:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    return World(fn=fn)


def failing_graph(gm: Any, example_inputs: Any) -> Any:
    def run(*inputs: Any) -> Any:
        raise ZeroDivisionError("this graph never runs")

    return run


@program(backend=failing_graph)
def failing_graphs() -> World:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("break")
        return y + torch.rand(4)

    return World(fn=fn)


@program(*(lambda w, seed=seed: _train(w, seed) for seed in range(2)), backend="inductor", rooms=("backends.inductor",))
def generated_code() -> World:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(rand(7, 4))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            y = torch.relu(x) * self.weight  # nothing that generated code rounds otherwise
            return {"y": y, "z": y.abs()}

    return World(fn=Model())
