"""What else happens in a process while stator records and replays: `tests/faults/disturbances.py [--only change_list]`.

Each kind of disturbance has a process of its own: programs are compiled, called and forgotten again and again, while
other threads (which get the GIL every microsecond), signal handlers, the garbage collector, forks and other
interpreters do what they do. Nothing may crash, and every result must be one that the plain program can give at some
moment. The programs are such that this can be told: whatever is read of the outside, every element of a result is the
same whole number, and an exception is one that the plain program raises.

Where the line is drawn: torch's operators let go of the GIL and hold nothing of a tensor meanwhile. Two threads that
assign the memory of one tensor free it twice, without stator (`set_` against `.data =`, within half a minute); a thread
that frees memory while an operator reads it takes it away from the operator. So tensors are changed by one thread at a
time, here, and their storages stay large enough and alive. What stator adds holds without that: our own kernels look
where memory lies, and how much it is, under the GIL and just before each of them runs (tests/fuse/test_host_inputs.py).
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

SECONDS = 3.0  # of each kind
NUMBERS = "processes disturbed / failed"
CHILD_SECONDS = 20.0  # until a forked process counts as hanging
MOST = 64  # elements of a tensor: storages of that many are never too small
ROUNDS = (4, 8, 60)  # calls of one compilation
BACKENDS = ("eager", "eager", "eager", "native", "aot_eager")


# ---- the programs: functions of a world, which others change ----


def make_world(seed: int) -> types.SimpleNamespace:
    import torch
    from torch import nn

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("factor", torch.full((4,), 2.0))
            self.shift = 1.0
            self.notes: list[float] = []

        def forward(self, x: Any) -> Any:
            return x * self.factor + self.shift

    class Holder:
        pass

    w = types.SimpleNamespace(seed=seed, module=Scale(), holder=Holder(), odd={})
    w.numbers = [1.0, 2.0, 3.0]
    w.tensors = [torch.ones(4), torch.full((4,), 2.0)]
    w.nested = [[1.0], [2.0, 3.0]]
    w.table = {"a": 1.0, "b": 2.0}
    w.weights = {"w": torch.ones(4)}
    w.holder.value = 3.0
    w.holder.deep = Holder()
    w.holder.deep.list = w.numbers
    w.tensor = torch.ones(MOST)
    w.weight = torch.ones(4, requires_grad=True)
    w.kept = [w.tensor.untyped_storage()]
    return w


def sum_of_numbers(w: Any, x: Any) -> Any:
    for number in w.numbers:
        x = x + number
    return x + len(w.numbers)


def items_of_lists(w: Any, x: Any) -> Any:
    for row in w.nested:
        for number in row:
            x = x * 1.0 + number
    return x + w.holder.deep.list[0]


def sum_of_tensors(w: Any, x: Any) -> Any:
    for tensor in w.tensors:
        x = x + tensor
    return x


def notes_are_kept(w: Any, x: Any) -> Any:
    w.module.notes.append(x.shape[0])
    if len(w.module.notes) > 3:
        w.module.notes.clear()
    return x + 1


def values_of_dicts(w: Any, x: Any) -> Any:
    for key, number in w.table.items():
        x = x + number if key != "c" else x
    return x + w.table["a"] + w.weights["w"]


def attributes(w: Any, x: Any) -> Any:
    return x + w.holder.value + getattr(w.holder, "extra", 0.0) + w.holder.deep.list[-1]


def a_module(w: Any, x: Any) -> Any:
    return w.module(x)


def keys_are_written(w: Any, x: Any) -> Any:
    w.holder.count = getattr(w.holder, "count", 0) + 1
    w.table["d"] = 4.0
    del w.table["d"]
    return x + 2


def tensor_read(w: Any, x: Any) -> Any:
    return (w.tensor + 1).sum() * 0 + x + 1


def tensor_sized(w: Any, x: Any) -> Any:
    return x + w.tensor.shape[0] + (w.tensor * 2)[:1]


def tensor_views(w: Any, x: Any) -> Any:
    return x + w.tensor[1:3].sum() - w.tensor.detach()[:2].sum()


def gradients(w: Any, x: Any) -> Any:
    w.weight.grad = None
    (w.weight * x).sum().backward()
    return w.weight.grad.clamp(1, 1) + x.detach() * 0


def breaks(w: Any, x: Any) -> Any:
    time.perf_counter()
    first = w.numbers[0] if w.numbers else 1.0
    return [x + first for _ in range(2)][-1] + int(x.sum().item() > 0)


PROGRAMS: dict[str, tuple[Callable[[Any, Any], Any], ...]] = {
    "change_list": (sum_of_numbers, items_of_lists, sum_of_tensors, notes_are_kept, breaks),
    "change_dict": (values_of_dicts, attributes, a_module, keys_are_written),
    "change_tensor": (tensor_read, tensor_sized, tensor_views),
}
CHANGED = (*(program for programs in PROGRAMS.values() for program in programs[:3]), breaks, gradients)
# What a plain program may raise when others change what it works with.
RAISED: dict[str, tuple[type[BaseException], ...]] = {
    "change_list": (IndexError,),
    "change_dict": (KeyError, RuntimeError, AttributeError),
    "change_tensor": (RuntimeError, IndexError),
}


# ---- who changes them ----


def change_list(w: Any, rng: random.Random) -> None:
    import torch

    which = rng.randrange(10)
    if which == 0:
        w.numbers[:] = [float(n) for n in range(rng.randrange(1, 6))]
    elif which == 1:
        w.numbers.append(float(rng.randrange(4)))
        del w.numbers[6:]
    elif which == 2:
        w.numbers.insert(0, 5.0)
        w.numbers.pop()
    elif which == 3:
        w.tensors[:] = [torch.full((4,), float(n)) for n in range(rng.randrange(4))]
    elif which == 4:
        w.tensors.append(torch.ones(4))
        del w.tensors[3:]
    elif which == 5:
        w.tensors.clear()
        w.tensors.extend((torch.ones(4), torch.full((1,), 7.0)))
    elif which == 6:
        w.nested[0] = [float(rng.randrange(9))]
    elif which == 7:
        w.nested.append([1.0, 2.0])
        del w.nested[:-2]
    elif which == 8:
        w.holder.deep.list = w.numbers = list(w.numbers) or [1.0]
    else:
        w.module.notes.clear()


def change_dict(w: Any, rng: random.Random) -> None:
    import torch

    which = rng.randrange(10)
    if which == 0:
        w.table["c"] = 3.0
        w.table.pop("c", None)
    elif which == 1:
        w.table["a"] = float(rng.randrange(5))
    elif which == 2:
        w.table = {"b": 2.0, "a": 1.0}
    elif which == 3:
        w.weights["w"] = torch.full((4,), float(rng.randrange(3)))
    elif which == 4:
        w.holder.extra = float(rng.randrange(3))
        w.holder.__dict__.pop("extra", None)
    elif which == 5:
        w.module.factor = torch.full((4,), float(rng.randrange(1, 4)))
    elif which == 6:
        w.module.__dict__["shift"] = float(rng.randrange(3))
    elif which == 7:
        w.holder.__dict__ = dict(w.holder.__dict__)
    elif which == 8:
        w.module._buffers = dict(w.module._buffers)
    else:
        type(w.module).scale = rng.random()


def change_tensor(w: Any, rng: random.Random) -> None:
    """Within storages that are large enough, and that stay: plain operators on other threads are then safe, too."""
    import torch

    which, size = rng.randrange(5), rng.choice((2, 4, 16, MOST))
    if which == 0:
        w.tensor.resize_(size)
    elif which == 1:
        storage = rng.choice(w.kept)
        w.tensor.set_(storage, 0, (size,), (1,))
    elif which == 2:
        w.tensor.data = torch.empty(0).set_(rng.choice(w.kept), 0, (size,), (1,))
    elif which == 3 and len(w.kept) < 64:
        w.kept.append(torch.ones(MOST).untyped_storage())
    elif which == 4:
        w.tensor = torch.empty(0).set_(rng.choice(w.kept), 0, (size,), (1,))


CHANGES = {"change_list": change_list, "change_dict": change_dict, "change_tensor": change_tensor}


# ---- calling, and judging what came of it ----


class Wrong(Exception):
    """A result that no plain program gives."""


def judge(result: Any, what: str) -> None:
    import torch

    if not isinstance(result, torch.Tensor) or result.dim() != 1 or not 1 <= result.shape[0] <= 4:
        raise Wrong(f"{what}: {result!r}")
    values = result.tolist()
    if len(set(values)) != 1 or values[0] != round(values[0]) or abs(values[0]) > 1000:
        raise Wrong(f"{what}: {values}")


def compiled_calls(
    program: Any, w: Any, rng: random.Random, allowed: tuple[type[BaseException], ...], **how: Any
) -> int:
    import torch

    import stator

    how = {"backend": rng.choice(BACKENDS), "dynamic": rng.choice((None, True, False)), **how}
    stator.reset()
    fast = stator.compile(program, **how)
    rounds = rng.choice(ROUNDS)
    for number in range(rounds):
        x = torch.full((rng.choice((1, 4, 4)),), float(number))
        what = f"{program.__name__}, {how}, call {number}"
        try:
            result = fast(w, x)
        except allowed:
            continue
        judge(result, what)
    return rounds


@contextlib.contextmanager
def threads(count: int, job: Callable[[random.Random], None]) -> Iterator[list[BaseException]]:
    """Run a job again and again in so many threads; gives what was raised in them."""
    over, raised = threading.Event(), []

    def run(seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not over.is_set():
                job(rng)
        except BaseException as error:
            raised.append(error)

    running = [threading.Thread(target=run, args=(seed,), daemon=True) for seed in range(count)]
    for thread in running:
        thread.start()
    try:
        yield raised
    finally:
        over.set()
        for thread in running:
            thread.join(timeout=30)


def in_threads(kind: str, until: float, rng: random.Random) -> int:
    """Other threads change what the programs read."""
    calls, seed = 0, 0
    while time.monotonic() < until:
        seed += 1
        w = make_world(seed)
        with threads(1 if kind == "change_tensor" else 2, lambda r, w=w: CHANGES[kind](w, r)) as raised:
            for program in PROGRAMS[kind]:
                calls += compiled_calls(program, w, rng, RAISED[kind])
        if raised:
            raise raised[0]
    return calls


# ---- the other kinds ----


class Interrupted(Exception):
    """What the signal handler raises."""


class Ended(BaseException):
    """The same, which `except Exception` lets pass: torch and sympy are full of those, and none of it may vanish."""


def signals(_kind: str, until: float, rng: random.Random) -> int:
    """A handler that raises, wherever the program is."""
    calls, raised, caught, lost = 0, 0, 0, 0
    armed, error = False, Interrupted

    def handler(_number: int, _frame: Any) -> None:
        nonlocal raised
        if armed:
            raised += 1
            raise error

    def unraisable(what: Any) -> None:  # in a finalizer, where no program gets to see it
        nonlocal lost
        lost += what.exc_type is error

    sys.unraisablehook = unraisable
    signal.signal(signal.SIGALRM, handler)
    while time.monotonic() < until:
        w = make_world(calls)
        error = rng.choice((Interrupted, Ended))
        for program in CHANGED:
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.05))
                calls += compiled_calls(program, w, rng, ())
                armed = False
            except (Interrupted, Ended):
                armed = False
                caught += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if error is Ended and raised != caught + lost:
                raise Wrong(f"{program.__name__}: what a handler raised has vanished")
            calls += compiled_calls(program, w, rng, ())  # nothing is left of it
            raised = caught + lost
    if not caught:
        raise Wrong("no signal arrived")
    return calls


class Garbage:
    """A cycle whose end changes the world."""

    def __init__(self, change: Callable[[], None]) -> None:
        self.me, self.change = self, change

    def __del__(self) -> None:
        self.change()


def collect(_kind: str, until: float, rng: random.Random) -> int:
    """A collection at almost every allocation: finalizers and callbacks, of weak references too, change things."""
    calls, busy = 0, False
    own = random.Random(1)

    def change(kind: str, w: Any) -> None:
        nonlocal busy
        if not busy:
            busy = True
            try:
                CHANGES[kind](w, own)
            finally:
                busy = False

    while time.monotonic() < until:
        for kind in CHANGES:
            w = make_world(calls)
            references = []

            def on_collection(
                phase: str, _info: Any, kind: str = kind, w: Any = w, kept: list[Any] = references
            ) -> None:
                change(kind, w)
                if phase == "stop" and own.random() < 0.1:
                    Garbage(lambda: change(kind, w))
                    loose = Garbage(lambda: None)
                    kept[:] = [weakref.ref(loose, lambda _: change(kind, w))]

            threshold = gc.get_threshold()
            gc.callbacks.append(on_collection)
            gc.set_threshold(own.choice((1, 2, 7)), 50, 1000)
            try:
                for program in PROGRAMS[kind]:
                    calls += compiled_calls(program, w, rng, RAISED[kind])
            finally:
                gc.set_threshold(*threshold)
                gc.callbacks.remove(on_collection)
    return calls


def fork(_kind: str, until: float, rng: random.Random) -> int:
    """The process is forked amid recordings and replays, by the program and by other threads; the children go on."""
    import torch

    import stator

    calls = 0
    children: list[int] = []

    def forked(w: Any, x: Any) -> Any:
        x = x + w.holder.value
        if w.fork:
            child = os.fork()
            w.child = child
            if child:
                children.append(child)
        return x * 2 + len(w.numbers)

    for backend in BACKENDS:  # CPython's lock of a module that is just being imported is not free in a child
        compiled_calls(values_of_dicts, make_world(0), rng, (), backend=backend, dynamic=True)
    until = max(until, time.monotonic() + 0.2)
    while time.monotonic() < until:
        w = make_world(calls)
        stator.reset()
        fast = stator.compile(forked, backend=rng.choice(BACKENDS), options={"background_compile": rng.random() < 0.3})
        at = rng.randrange(4)
        for number in range(4):
            w.fork, w.child = number == at, -1
            judge(fast(w, torch.full((4,), float(number))), f"fork, call {number}")
            calls += 1
            if w.child == 0:
                in_child(w, fast, rng)
        with threads(1, lambda _: fork_and_go_on(children, rng)) as raised:
            calls += compiled_calls(sum_of_numbers, w, rng, ())
        if raised:
            raise raised[0]
        while children:
            status = os.waitstatus_to_exitcode(os.waitpid(children.pop(), 0)[1])
            if status != 0:
                raise Wrong(f"a child ended with {status}")
    return calls


def in_child(w: Any, fast: Any, rng: random.Random) -> None:
    import torch

    faulthandler.dump_traceback_later(CHILD_SECONDS, exit=True)
    status = 1
    try:
        w.fork = False
        for number in range(3):
            judge(fast(w, torch.full((4,), float(number))), "in a child")
        compiled_calls(values_of_dicts, make_world(1), rng, ())
        status = 0
    finally:
        os._exit(status)


def fork_and_go_on(children: list[int], rng: random.Random) -> None:
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(CHILD_SECONDS, exit=True)
        status = 1
        try:
            compiled_calls(values_of_dicts, make_world(1), rng, ())
            status = 0
        finally:
            os._exit(status)
    children.append(child)
    time.sleep(0.02)


def subinterpreter(_kind: str, until: float, rng: random.Random) -> int:
    """Other interpreters come, run code and go, in other threads and in the program's own."""
    import _xxsubinterpreters as interpreters

    import torch

    import stator

    code = (
        "import json; kept = [json.dumps({'a': [n] * 3}) for n in range(50)]; x = sorted(kept, key=lambda t: t[::-1])"
    )
    calls = 0

    def run(_rng: Any = None) -> None:
        one = interpreters.create()
        try:
            interpreters.run_string(one, code)
        finally:
            interpreters.destroy(one)

    def inside(w: Any, x: Any) -> Any:
        x = x + w.holder.value
        run()
        return x * 2

    while time.monotonic() < until:
        w = make_world(calls)
        with threads(1, run) as raised:
            for program in CHANGED:
                if program is not gradients:  # with another interpreter torch's engine refuses to run, without us too
                    calls += compiled_calls(program, w, rng, ())
        if raised:
            raise raised[0]
        stator.reset()
        fast = stator.compile(inside, backend="eager")
        for number in range(3):
            judge(fast(w, torch.full((4,), float(number))), "an interpreter inside")
            calls += 1
    return calls


KINDS: dict[str, Callable[[str, float, random.Random], int]] = dict.fromkeys(CHANGES, in_threads)
KINDS |= {"signals": signals, "gc": collect, "fork": fork, "subinterpreter": subinterpreter}


def work(kinds: list[str], seconds: float, seed: int) -> None:
    import torch

    faulthandler.enable()
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-6)
    for kind in kinds:
        calls = KINDS[kind](kind, time.monotonic() + seconds, random.Random(seed))
        print(f"{kind}: {calls} calls", flush=True)


def run(kinds: list[str], seconds: float, seed: int) -> str:
    """What went wrong in a process that disturbs in these ways, one after the other; nothing, if all is well."""
    command = [sys.executable, __file__, "--child", *kinds, "--seconds", str(seconds), "--seed", str(seed)]
    limit = len(kinds) * (120 + 20 * seconds)
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    print(done.stdout.strip(), flush=True)
    return f"{' '.join(kinds)}: status {done.returncode}\n{done.stderr[-6000:]}" if done.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=KINDS, action="append", help="these kinds alone")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", action="store_true", help="all kinds in one process, one after the other")
    parser.add_argument("--child", choices=KINDS, nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        work(args.child, args.seconds, args.seed)
        return 0
    kinds = args.only or [*KINDS]
    processes = [kinds] if args.together else [[kind] for kind in kinds]
    failed = [what for each in processes if (what := run(each, args.seconds, args.seed))]
    print("\n".join(failed))
    print(f"{NUMBERS}: {len(processes)} / {len(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
