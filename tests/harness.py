"""The one check behind the end-to-end tests: a compiled program is the plain program, call after call.

What enters: a *world* (a factory that builds a function and all the outside state it touches) and calls.
What happens: the world is built twice; one runs plain, the other compiled with a backend that counts graphs.
What must hold after every call: equal results or exceptions, equal effects on the world, equal torch state, equal
output; and at the end the expected sequence of hits and misses, the expected number of graphs and the expected breaks.

Equality is that of *descriptions*: an object graph written out line by line, in which a second visit to an
object, or a second tensor on one storage, names the first. So the texts of two worlds are equal only if
types, values, order and aliasing all are. Earlier results stay in the description: a replay which hands
out or overwrites something that it gave away before is seen.
"""

from __future__ import annotations

import collections
import difflib
import enum
import functools
import hashlib
import io
import itertools
import random
import re
import sys
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stator
from stator import _native


class World(types.SimpleNamespace):
    """A function `fn` and the outside state that it reads and writes."""

    fn: Any


Call = Callable[[World], Any]


@dataclass
class Checked:
    """What a passed check leaves for a test that wants to look closer."""

    outcomes: list[str]
    graphs: list[torch.fx.GraphModule]
    world: World


def rand(seed: int, *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> torch.Tensor:
    """Normal random numbers that depend on `seed` alone; four of them unless a shape is given."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape or (4,), generator=generator).to(dtype)
    return values.requires_grad_(requires_grad)


def check(
    world: Callable[[], World],
    calls: Sequence[Call],
    *,
    expect: str | None,
    graphs: int | None = None,
    breaks: Sequence[str] | None = None,
    observe: Callable[[World], Any] | None = None,
    raises: type[Exception] | tuple[type[Exception], ...] = (),
    backend: Callable[..., Any] | None = None,
    tracebacks: bool = True,
    unreplayed: str | Sequence[str] = (),
) -> Checked:
    """Run `calls` in a plain and in a compiled world and compare them after each call.

    At least one call must be a replay, or the test says why none is: by `breaks`, or by `unreplayed`.

    `expect` is the sequence of outcomes, as in "miss hit hit" (None: any); `graphs` the number of graphs that
    the backend gets (None: one for every miss); `breaks` the ids of all graph breaks, in order (None: any);
    `observe` looks up effects not reachable from the world; `raises` names the exceptions that the plain program is
    meant to raise (any other is the test's mistake); `tracebacks` is False where a replay raises from its graph and
    cannot be repeated as plain Python. `unreplayed` names ids of graph breaks (any order, others may come too), or is
    one of PLAIN, RECORDED, LATER and GENERATED.
    """
    assert len(calls) >= 3, "a test needs three calls to tell a replay from luck"
    counting = CountingBackend(backend)
    plain = run(world, calls, observe, raises, compile_with=None)
    compiled = run(world, calls, observe, Exception, compile_with=counting)
    compare(plain, compiled, tracebacks)
    if "hit" not in compiled.outcomes and not breaks:
        why_unreplayed(compiled, [unreplayed] if isinstance(unreplayed, str) else unreplayed)
    if expect is not None:
        outcomes = " ".join(compiled.outcomes)
        assert outcomes == expect, f"{outcomes}, expected {expect}\n{explanation(compiled)}"
        count, wanted = len(counting.graphs), compiled.outcomes.count("miss") if graphs is None else graphs
        assert count == wanted, f"{count} graphs, expected {wanted}\n{explanation(compiled)}"
    if breaks is not None:
        ids = [why.id for why in compiled.world.fn.stator.break_reasons]
        assert ids == list(breaks), f"breaks {ids}, expected {list(breaks)}\n{explanation(compiled)}"
    return Checked(compiled.outcomes, counting.graphs, compiled.world)


# Why no call of a test is a replay, if not because of graph breaks: the program is never recorded; it is recorded anew
# in every call; another check of the same program in the same test has replays; or the program is one of many that were
# made up, and the test asks, with `Replays`, how many of them are replayed.
PLAIN, RECORDED, LATER, GENERATED = "plain", "recorded", "later", "generated"


class Replays:
    """How many of the programs that a test makes up are replayed: at least this share of them has to be."""

    def __init__(self, share: float) -> None:
        self.share, self.checked, self.replayed = share, 0, 0

    def count(self, seen: Checked) -> Checked:
        self.checked += 1
        self.replayed += "hit" in seen.outcomes
        return seen

    def enough(self) -> None:
        assert self.checked and self.replayed >= self.share * self.checked, f"{self.replayed} of {self.checked}"


def why_unreplayed(compiled: Run, reasons: Sequence[str]) -> None:
    """A program of which nothing is replayed proves nothing about stator, unless that is what the test is about."""
    seen = f"no call was a replay: {' '.join(compiled.outcomes)}\n{explanation(compiled)}"
    ids = sorted({why.id for why in getattr(compiled.world.fn.stator, "break_reasons", ())})
    assert reasons, f"{seen}\nsay why in `breaks` or `unreplayed`: {ids or set(compiled.outcomes)}"
    if GENERATED in reasons:
        return
    named = set(reasons) - {PLAIN, RECORDED, LATER}
    if named or LATER in reasons:
        assert named <= set(ids), f"{seen}\nbreaks {ids}, named {sorted(named)}"
    else:
        wanted = {"plain" if reason == PLAIN else "miss" for reason in reasons}
        assert set(compiled.outcomes) == wanted and not ids, f"{seen}\nbreaks {ids}, named {sorted(reasons)}"


def check_stateless(fn: Callable[..., Any], *, expect: str = "miss hit hit") -> Checked:
    """The commonest check: a function of one tensor, called with three different ones, is recorded once."""
    calls: list[Call] = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3))]
    return check(lambda: World(fn=fn), calls, expect=expect)


def check_noticed(world: Callable[[], World], before: Call, changed: Call) -> None:
    """`changed` must be a miss, with a reason in words, between calls of `before`, which undoes it."""
    seen = check(world, [before, before, changed, before], expect="miss hit miss hit")
    assert str(seen.world.fn.stator.last_miss or "")


def check_change(
    world: Callable[[], World],
    change: Callable[[World], Any],
    *,
    restore: Callable[[World], Any] = lambda w: None,
) -> list[str]:
    """Call with a tensor twice, twice more after `change`, and again after `restore`; gives the outcomes."""

    def after(step: Callable[[World], Any]) -> Call:
        def run(w: World) -> Any:
            step(w)
            return w.fn(rand(3))

        return run

    twice: list[Call] = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2))]
    return check(world, [*twice, after(change), lambda w: w.fn(rand(4)), after(restore)], expect=None).outcomes


def compare(plain: Run, compiled: Run, tracebacks: bool = True) -> None:
    """After every call both worlds look the same, and an exception names the program's own frames."""
    for number, outcome in enumerate(compiled.outcomes):
        wanted, got = plain.descriptions[number], compiled.descriptions[number]
        assert wanted == got, f"call {number + 1} ({outcome}) differs:\n{difference(wanted, got)}"
        frames, among = plain.tracebacks[number], compiled.tracebacks[number]
        lost = f"call {number + 1}: the traceback lost frames\n plain    {frames}\n compiled {among}"
        assert not tracebacks or is_subsequence(frames, among), lost


def explanation(compiled: Run) -> str:
    """What the compiled function knows about why it did not do what was expected."""
    breaks = [f"break: {why}" for why in getattr(compiled.world.fn.stator, "break_reasons", ())]
    misses = [f"call {number} missed: {why}" for number, why in enumerate(compiled.misses, start=1) if why]
    return "\n".join([*breaks, *misses])


class CountingBackend:
    """A backend that keeps the graphs it is given and runs them as they are (or hands them on to `inner`)."""

    def __init__(self, inner: Callable[..., Any] | None = None) -> None:
        self.inner = inner
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        gm.graph.lint()
        self.graphs.append(gm)
        return self.inner(gm, example_inputs) if self.inner else gm.forward


# ---- running one world --------------------------------------------------------------------------


@dataclass
class Run:
    world: World
    descriptions: list[list[str]]
    tracebacks: list[list[tuple[str, int]]]
    outcomes: list[str]
    misses: list[str | None]


def run(
    world: Callable[[], World],
    calls: Sequence[Call],
    observe: Callable[[World], Any] | None,
    expected: type[Exception] | tuple[type[Exception], ...],
    compile_with: CountingBackend | None,
) -> Run:
    with fresh_torch_state(), no_complaints_from_stator():
        w = world()
        if compile_with is not None:
            w.fn = stator.compile(w.fn, backend=compile_with)
        done = Run(w, [], [], [], [])
        results: list[Any] = []
        output = io.StringIO()
        for call in calls:
            before = counters(w.fn)
            frames: list[tuple[str, int]] = []
            written = output.tell()
            try:
                with redirect_stdout(output):
                    results.append(call(w))
            except expected as error:
                frames = user_frames(error)
                results.append(Raised(error))
            sys.stdout.write(output.getvalue()[written:])  # for whoever looks at it, pytest's report included
            done.outcomes.append(outcome(before, counters(w.fn)))
            done.misses.append(str(w.fn.stator.last_miss) if done.outcomes[-1] == "miss" else None)
            done.tracebacks.append(frames)
            state = {name: value for name, value in vars(w).items() if name != "fn"}
            seen = {"results": results, "world": state, "torch": torch_state(), "output": output.getvalue()}
            if observe is not None:
                seen["observed"] = observe(w)
            done.descriptions.append(describe(seen))
        return done


def counters(fn: Callable[..., Any]) -> tuple[int, int, int]:
    record = getattr(fn, "stator", None)
    return (record.hits, record.recordings, record.plain) if record is not None else (0, 0, 0)


def outcome(before: tuple[int, int, int], after: tuple[int, int, int]) -> str:
    for name, was, now in zip(("hit", "miss", "plain"), before, after, strict=True):
        if now > was:
            return name
    return "none"


class Raised:
    """Stands in the results for a call that raised; chained exceptions are part of what the caller sees."""

    def __init__(self, error: BaseException) -> None:
        self.error = [type(error), str(error), error.args]
        self.cause = Raised(error.__cause__) if error.__cause__ else None
        self.context = Raised(error.__context__) if error.__context__ else None


def user_frames(error: BaseException) -> list[tuple[str, int]]:
    """Function and line of the traceback's frames in the program, not in the harness or in torch."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(frame.name, frame.lineno or 0) for frame in frames if not Path(frame.filename).is_relative_to(TORCH)][1:]


def is_subsequence(wanted: Sequence[Any], among: Sequence[Any]) -> bool:
    rest = iter(among)
    return all(item in rest for item in wanted)


@contextmanager
def fresh_torch_state() -> Iterator[None]:
    """Both worlds start from the same seeds and defaults, whatever a call does to them."""
    rng, python_rng = torch.get_rng_state(), random.getstate()
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_rng_state(rng)
        random.setstate(python_rng)


@contextmanager
def no_complaints_from_stator() -> Iterator[None]:
    """A warning of stator's own means that it fell back to the plain program, hiding a failure."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    complaints = [str(w.message) for w in caught if "stator" in f"{w.category.__module__} {w.message}"]
    assert not complaints, f"stator warned: {complaints}"


def torch_state() -> dict[str, Any]:
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast dtype": torch.get_autocast_dtype("cpu"),
        "default dtype": torch.get_default_dtype(),
        "random numbers": digest(torch.get_rng_state().numpy().tobytes()),
        "python's random numbers": digest(repr(random.getstate()).encode()),
    }


# ---- describing an object graph -----------------------------------------------------------------

ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type(NotImplemented)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
TORCH = Path(torch.__file__).parent
HOOK_TABLES = re.compile(r"_.*hooks.*")


def describe(root: Any) -> list[str]:
    description = Description()
    description.add("", root)
    return description.lines


def difference(wanted: list[str], got: list[str]) -> str:
    lines = list(difflib.unified_diff(wanted, got, "plain", "compiled", n=2, lineterm=""))
    return "\n".join(lines[:60])


def digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()[:12]


def type_name(obj: Any) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")


def only_atoms(obj: Any) -> bool:
    """Whether identity cannot matter: CPython shares such values as it likes."""
    return type(obj) in ATOMS or (type(obj) in (tuple, torch.Size, frozenset) and all(map(only_atoms, obj)))


class Description:
    """Lines `path: what`; `names` has the path at which each object and each storage was first met."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[Any, str] = {}
        self.alive: list[Any] = []

    def say(self, path: str, what: str) -> None:
        self.lines.append(f"{path}: {what}")

    def add(self, path: str, obj: Any) -> None:
        if type(obj) in ATOMS:
            self.say(path, f"{type_name(obj)} {obj!r}")
            return
        if not only_atoms(obj):
            if id(obj) in self.names:
                self.say(path, f"is {self.names[id(obj)]}")
                return
            self.names[id(obj)] = path
            self.alive.append(obj)
        for kinds, write in self.WRITERS:
            if isinstance(obj, kinds):
                write(self, path, obj)
                return
        self.say(path, type_name(obj))
        self.attributes(path, obj)

    def attributes(self, path: str, obj: Any) -> None:
        declared = [vars(cls).get("__slots__", ()) for cls in type(obj).__mro__]
        for name in itertools.chain.from_iterable([s] if isinstance(s, str) else s for s in declared):
            if name not in ("__dict__", "__weakref__") and hasattr(obj, name):
                self.add(f"{path}.{name}", getattr(obj, name))
        for name, value in getattr(obj, "__dict__", {}).items():
            self.add(f"{path}.{name}", value)

    def tensor(self, path: str, t: torch.Tensor) -> None:
        storage = ("storage", t.untyped_storage()._cdata)
        shares = self.names.setdefault(storage, path)
        self.alive.append(t.untyped_storage())
        facts = [str(t.dtype), str(t.device), f"shape={tuple(t.shape)}", f"stride={t.stride()}"]
        facts += [f"offset={t.storage_offset()}", f"requires_grad={t.requires_grad}", f"leaf={t.is_leaf}"]
        facts += ["inference"] * t.is_inference() + [f"storage of {shares}"] * (shares != path)
        if t.device.type != "meta":
            plain = t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            bits = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
            facts.append(f"{plain[:8].tolist()} {digest(bits)}")
        self.say(path, f"{type_name(t)} {' '.join(facts)}")
        if (t.is_leaf or t.retains_grad) and t.grad is not None:
            self.add(f"{path}.grad", t.grad)
        self.attributes(path, t)

    def module(self, path: str, module: nn.Module) -> None:
        self.say(path, type_name(module))
        for name, value in vars(module).items():
            # The keys of hook tables come from a counter that all modules of the process share.
            is_hooks = HOOK_TABLES.fullmatch(name) and isinstance(value, dict)
            self.add(f"{path}.{name}", list(value.values()) if is_hooks else value)

    def mapping(self, path: str, table: dict[Any, Any]) -> None:
        self.say(path, f"{type_name(table)} of {len(table)}")
        if isinstance(table, collections.defaultdict):
            self.add(f"{path}.default_factory", table.default_factory)
        for place, (key, value) in enumerate(table.items()):
            if only_atoms(key):
                self.add(f"{path}[{key!r}]", value)
            else:
                self.add(f"{path}.key({place})", key)
                self.add(f"{path}.value({place})", value)
        self.attributes(path, table)

    def sequence(self, path: str, items: Sequence[Any]) -> None:
        limit = f" maxlen={items.maxlen}" if isinstance(items, collections.deque) else ""
        self.say(path, f"{type_name(items)} of {len(items)}{limit}")
        for place, item in enumerate(items):
            self.add(f"{path}[{place}]", item)
        self.attributes(path, items)

    def unordered(self, path: str, items: set[Any]) -> None:
        assert all(only_atoms(item) or isinstance(item, enum.Enum) for item in items), "sets of plain values only"
        self.say(path, f"{type_name(items)} {sorted(map(repr, items))}")

    def member(self, path: str, value: enum.Enum) -> None:
        self.say(path, f"{type_name(value)}.{value.name}")

    def value(self, path: str, value: float | str | bytearray) -> None:
        symbol = type(value) in (_native.Int, _native.Float)  # one that has got out of its recording
        self.say(path, f"{'symbolic ' * symbol}{type_name(value)} {type(value).__repr__(value)}")
        self.attributes(path, value)

    def function(self, path: str, fn: types.FunctionType) -> None:
        self.say(path, f"function {fn.__module__}.{fn.__qualname__} line {fn.__code__.co_firstlineno}")
        if "<locals>" in fn.__qualname__:
            cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
            for name, cell in cells:
                self.add(
                    f"{path}.closure({name})",
                    "<empty cell>" if cell == types.CellType() else cell.cell_contents,
                )
        self.add(f"{path}.defaults", fn.__defaults__)
        self.add(f"{path}.kwdefaults", fn.__kwdefaults__)
        self.attributes(path, fn)

    def compiled(self, path: str, fn: Any) -> None:
        self.add(path, fn.__wrapped__)  # what the plain world has in its place

    def method(self, path: str, method: types.MethodType) -> None:
        self.say(path, "bound method")
        self.add(f"{path}.__func__", method.__func__)
        self.add(f"{path}.__self__", method.__self__)

    def partial(self, path: str, value: functools.partial[Any]) -> None:
        self.say(path, type_name(value))
        self.add(f"{path}.call", [value.func, value.args, value.keywords])

    def klass(self, path: str, cls: type) -> None:
        self.say(path, f"class {cls.__module__}.{cls.__qualname__}")
        if "<locals>" in cls.__qualname__:  # built by the world, so its attributes are state of the world
            for name, value in vars(cls).items():
                if not name.startswith("__"):
                    self.add(f"{path}.{name}", value)

    def by_name(self, path: str, obj: Any) -> None:
        self.say(path, f"{type_name(obj)} {obj.__name__}")

    def reference(self, path: str, ref: weakref.ref[Any]) -> None:
        self.say(path, type_name(ref))
        self.add(f"{path}()", ref())

    WRITERS: tuple[tuple[Any, Callable[[Description, str, Any], None]], ...] = (
        (torch.Tensor, tensor),
        (nn.Module, module),
        (enum.Enum, member),
        (dict, mapping),
        ((list, tuple, collections.deque), sequence),
        ((set, frozenset), unordered),
        ((int, float, str, bytearray), value),
        (types.FunctionType, function),
        (_native.Compiled, compiled),
        (types.MethodType, method),
        (functools.partial, partial),
        (type, klass),
        ((types.BuiltinFunctionType, types.MethodDescriptorType, types.ModuleType), by_name),
        (weakref.ref, reference),
    )
