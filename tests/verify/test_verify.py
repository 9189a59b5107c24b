"""`options.verify`: what a backend made of a graph is compared with eager in every call, on copies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import World, check, rand

import stator
from stator.errors import VerificationError

SOURCE = Path(stator.__file__).parents[1]


def wrong(change: Callable[..., Any]) -> Callable[..., Any]:
    """A backend whose graphs give what `change(outputs, inputs)` makes of it."""

    def backend(gm: Any, example_inputs: Any) -> Any:
        return lambda *inputs: change(list(gm(*inputs)), inputs)

    return backend


def with_nan(outputs: list[Any], inputs: Any) -> list[Any]:
    with torch.no_grad():
        outputs[0][0] = float("nan")
    return outputs


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 1.5


def modified(gm: Any, example_inputs: Any) -> Any:
    """Changes the graph that it is given."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is torch.add:
            node.target = torch.sub
    gm.recompile()
    return gm.forward


def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.add(x, y).t()


BACKENDS: dict[str, tuple[Any, str]] = {
    "values": (wrong(lambda out, _: [out[0] * 1.01]), "output 0 is wrong in"),
    "one value": (wrong(lambda out, _: [out[0] + (torch.arange(12).reshape(4, 3) == 5)]), "wrong in 1 of 12 elements"),
    "NaN": (wrong(with_nan), "nan"),
    "dtype": (wrong(lambda out, _: [out[0].double()]), "dtype torch.float64, eager gives torch.float32"),
    "shape": (wrong(lambda out, _: [out[0][:2]]), "shape (2, 3), eager gives (4, 3)"),
    "strides": (wrong(lambda out, _: [out[0].contiguous()]), "strides (3, 1), eager gives (1, 4)"),
    "sharing": (wrong(lambda out, inputs: [inputs[0].copy_(out[0].t()).t()]), "input 0 is left as wrong"),
    "count": (wrong(lambda out, _: [out[0], out[0]]), "eager gives 1 of them"),
    "raises": (wrong(lambda out, _: 1 / 0), "it raises ZeroDivisionError"),
    "requires_grad": (wrong(lambda out, _: [out[0].detach().requires_grad_()]), "requires_grad True"),
    "changed graph": (modified, "wrong in"),
}


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_wrong_backend_is_found(kind: str, tmp_path: Path) -> None:
    backend, message = BACKENDS[kind]
    fast = stator.compile(plain, backend=backend, options={"verify": True, "debug_dir": os.fspath(tmp_path)})
    x, y = rand(1, 3, 4), rand(2, 3, 4)
    before = x.clone(), y.clone()
    assert torch.equal(fast(x, y), plain(x, y))  # the first call is the eager one
    for _ in range(2):
        with pytest.raises(VerificationError) as caught:
            fast(x, y)
        assert message in str(caught.value)
        assert torch.equal(x, before[0]) and torch.equal(y, before[1])  # found on copies
    assert caught.value.reproduction is not None and Path(caught.value.reproduction).is_file()


def test_without_verify_nothing_is_compared() -> None:
    fast = stator.compile(plain, backend=BACKENDS["values"][0], options={"verify": False})
    x = rand(1, 3, 4)
    fast(x, x)
    assert not torch.allclose(fast(x, x), plain(x, x))


def test_a_missing_write_is_found() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    def backend(gm: Any, example_inputs: Any) -> Any:
        return lambda x: gm(x.clone())

    fast = stator.compile(fn, backend=backend, options={"verify": True})
    x = rand(1)
    fast(x)
    before = x.clone()
    with pytest.raises(VerificationError, match="input 0 is left as wrong"):
        fast(x)
    assert torch.equal(x, before)


def test_an_output_that_should_be_a_view_is_found() -> None:
    fast = stator.compile(lambda x: x[1:], backend=wrong(lambda out, _: [out[0].clone()]), options={"verify": True})
    fast(rand(1))
    with pytest.raises(VerificationError, match="has memory of its own; in eager it shares memory: with input 0"):
        fast(rand(1))


def test_outputs_that_are_one_tensor_by_mistake_are_found() -> None:
    fast = stator.compile(
        lambda x: (x + 1, x + 1), backend=wrong(lambda out, _: [out[0], out[0]]), options={"verify": True}
    )
    fast(rand(1))
    with pytest.raises(VerificationError, match="output 1 shares memory: is output 0"):
        fast(rand(1))


@pytest.mark.parametrize("leaf", [True, False])
def test_a_wrong_gradient_is_found(leaf: bool) -> None:
    def backend(gm: Any, example_inputs: Any) -> Any:
        return lambda *inputs: [WrongGradient.apply(out) for out in gm(*inputs)]

    fast = stator.compile(lambda x: (x * x).sin(), backend=backend, options={"verify": True})
    x = rand(1, requires_grad=True)
    given = x if leaf else x * 1
    fast(given)
    with pytest.raises(VerificationError, match="gradient 0 is wrong in 4 of 4 elements"):
        fast(given)
    assert x.grad is None


def test_random_numbers_drawn_otherwise_are_found() -> None:
    def backend(gm: Any, example_inputs: Any) -> Any:
        return lambda *inputs: (torch.rand(1), gm(*inputs))[1]

    fast = stator.compile(lambda x: x + torch.rand(4), backend=backend, options={"verify": True})
    fast(rand(1))
    with pytest.raises(VerificationError):
        fast(rand(1))


# ---- what is right passes, and nothing is done twice


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.3)
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        self.calls.append(1)
        h = self.drop(torch.relu(self.norm(self.first(x))))
        return {"h": h, "view": h[0], "x": x}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_training_is_as_without(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def world() -> World:
        torch.manual_seed(1)
        return World(fn=Model())

    def step(w: World, seed: int, rows: int = 3) -> Any:
        x = rand(seed, rows, 4, requires_grad=True)
        out = w.fn(x)
        (out["h"].sum() + out["view"].mean()).backward()
        return out["h"].detach(), x.grad, [p.grad.clone() for p in w.fn.parameters()]

    monkeypatch.setattr(stator.options, "verify", True)
    chosen = stator.backends.look_up(backend)[1]
    calls = [lambda w, n=n: step(w, n, 3 + n // 2) for n in range(6)]
    check(world, calls, expect="miss hit miss hit hit hit", backend=chosen)


def test_breaks_effects_and_output_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def world() -> World:
        log: list[int] = []
        weight = rand(5)

        def fn(x: torch.Tensor) -> torch.Tensor:
            log.append(1)
            y = x * weight
            print("between")
            weight.mul_(2)
            with torch.no_grad():
                z = y + torch.rand(4)
            return z * weight

        return World(fn=fn, log=log, weight=weight)

    monkeypatch.setattr(stator.options, "verify", True)
    check(world, [lambda w, n=n: w.fn(rand(n)) for n in range(4)], expect="miss hit hit hit", graphs=2)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * 2 * x


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_parts_that_are_called_as_a_whole(backend: str, recwarn: pytest.WarningsRecorder) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        squared: torch.Tensor = Squared.apply(x)  # type: ignore[no-untyped-call]
        return squared * 2 + torch.func.vmap(torch.sin)(x)

    fast = stator.compile(fn, backend=backend, options={"verify": True})
    for seed in range(3):
        x, y = (rand(seed, 2, 3, requires_grad=True) for _ in range(2))
        found, wanted = fast(x), fn(y)
        torch.testing.assert_close(found, wanted)
        found.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert (fast.stator.hits, len(fast.stator.graphs)) == (2, 1)
    assert not [str(each.message) for each in recwarn if "stator failed" in str(each.message)]

    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *values: [value + 1 for value in graph.forward(*values)]

    wrongly = stator.compile(fn, backend=wrong, options={"verify": True})
    wrongly(rand(0, 2, 3))
    with pytest.raises(VerificationError):
        wrongly(rand(1, 2, 3))


def test_inputs_that_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor, view: torch.Tensor, wide: torch.Tensor) -> Any:
        x.mul_(2)
        return view + 1, wide.sum(), view

    def call(w: World) -> Any:
        x = rand(3, 4, 4)
        return w.fn(x, x[1:].t(), rand(1, 1).expand(3, 4)), x

    monkeypatch.setattr(stator.options, "verify", True)
    check(lambda: World(fn=fn), [call, call, call], expect="miss hit hit")


def test_modes_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        torch.set_grad_enabled(False)
        return y, x + 1

    def inference(w: World) -> Any:
        with torch.inference_mode():
            return w.fn(rand(1, 4, 4))

    def usual(w: World) -> Any:
        torch.set_grad_enabled(True)
        return w.fn(rand(2, 4, 4))

    monkeypatch.setattr(stator.options, "verify", True)
    check(lambda: World(fn=fn), [inference, usual, inference, usual, usual], expect="miss miss hit hit hit")


def test_an_exception_is_eagers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.gather(x * 2, 0, index)

    def call(w: World, place: int) -> Any:
        return w.fn(rand(1), torch.tensor([place]))

    monkeypatch.setattr(stator.options, "verify", True)
    calls = [lambda w, place=place: call(w, place) for place in (1, 2, 9, 3)]
    check(lambda: World(fn=fn), calls, expect=None, raises=(RuntimeError, IndexError))


def test_inductor() -> None:
    fast = stator.compile(Model(), backend="inductor", options={"verify": True})
    for seed in range(3):
        x = rand(seed, 3, 4, requires_grad=True)
        fast(x)["h"].sum().backward()
    assert fast.stator.hits == 2


def test_the_option_takes_effect_at_once() -> None:
    fast = stator.compile(plain, backend=BACKENDS["values"][0])
    x = rand(1, 3, 4)
    fast(x, x)
    fast(x, x)
    with stator.options.patch(verify=True):
        fast(x, x)
        with pytest.raises(VerificationError):
            fast(x, x)
    fast(x, x)
    fast(x, x)


# ---- the reproduction


def nan_backend(gm: Any, example_inputs: Any) -> Any:
    return lambda *inputs: with_nan(list(gm(*inputs)), inputs)


def test_the_reproduction_runs_and_shows_the_difference(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.no_grad():
            y = torch.nn.functional.softmax(x, dim=-1, dtype=torch.float64)
        z = torch.where(w > 0, w, float("inf"))
        return y[..., 1:3], (z * 2).to(torch.float16), x.view(-1, 2), torch.zeros(2, device=x.device)

    fast = stator.compile(fn, backend=nan_backend, options={"verify": True, "debug_dir": os.fspath(tmp_path)})
    w = rand(2, 3, 4, requires_grad=True)
    fast(rand(1, 3, 4), w)
    with pytest.raises(VerificationError) as caught:
        fast(rand(1, 3, 4), w)
    script = caught.value.reproduction
    assert script is not None and f"python {script}" in str(caught.value)
    paths = os.pathsep.join([str(SOURCE), str(Path(__file__).parent), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "def forward" in done.stdout and "output 0 is wrong in" in done.stdout


def test_the_reproduction_of_a_repaired_backend_finds_nothing(tmp_path: Path) -> None:
    fast = stator.compile(plain, backend=nan_backend, options={"verify": True, "debug_dir": os.fspath(tmp_path)})
    fast(rand(1, 3, 4), rand(2, 3, 4))
    with pytest.raises(VerificationError) as caught:
        fast(rand(1, 3, 4), rand(2, 3, 4))
    script = Path(caught.value.reproduction or "")
    text = script.read_text()
    line = f"backend = {nan_backend.__module__}.nan_backend"
    assert line in text
    script.write_text(text.replace(line, "backend = stator.backends.look_up('aot_eager')[1]"))
    paths = os.pathsep.join([str(SOURCE), str(Path(__file__).parent), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "no difference" in done.stdout, done.stdout + done.stderr


def of_a_leaf(x: torch.Tensor) -> torch.Tensor:
    return WrongGradient.apply(x * 2) + 1


def of_a_transform(x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(lambda a: a * 2 + a.sum())(x) + 1


@stator.allow_in_graph
def allowed(x: torch.Tensor, *, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    return x * scale, x.sum()


def of_an_allowed_function(x: torch.Tensor) -> torch.Tensor:
    y, total = allowed(x * 2, scale=3.0)
    return y + total


def of_an_allowed_closure() -> Any:
    @stator.allow_in_graph
    def inside(y: torch.Tensor) -> torch.Tensor:
        return y * 2

    def fn(x: torch.Tensor) -> torch.Tensor:
        return inside(x) + 1

    return fn


def reproduced(script: str | None) -> subprocess.CompletedProcess[str]:
    assert script is not None
    paths = os.pathsep.join([str(SOURCE), str(Path(__file__).parent), str(Path(__file__).parents[1])])
    return subprocess.run(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("fn", "repaired"),
    [(of_an_allowed_function, False), (of_an_allowed_function, True), (of_an_allowed_closure(), False)],
)
def test_the_reproduction_of_a_graph_with_functions_that_are_allowed(fn: Any, repaired: bool, tmp_path: Path) -> None:
    fast = stator.compile(fn, backend=nan_backend, options={"verify": True, "debug_dir": os.fspath(tmp_path)})
    fast(rand(1, 3, 4))
    for seed in (2, 3):
        with pytest.raises(VerificationError) as caught:
            fast(rand(seed, 3, 4))
    script = Path(caught.value.reproduction or "")
    if repaired:
        text = script.read_text()
        line = f"backend = {nan_backend.__module__}.nan_backend"
        assert line in text
        script.write_text(text.replace(line, "backend = stator.backends.look_up('eager')[1]"))
    done = reproduced(os.fspath(script))
    if fn is of_an_allowed_function:
        assert "def forward" in done.stdout, done.stdout + done.stderr
        assert ("no difference" if repaired else "output 0 is wrong in") in done.stdout, done.stdout
        assert done.returncode == (not repaired), done.stderr
    else:  # no script can name it
        assert done.returncode == 1 and "it cannot be written" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("fn", [of_a_leaf, of_a_transform])
def test_the_reproduction_of_a_graph_with_parts_that_are_called_as_a_whole(fn: Any, tmp_path: Path) -> None:
    fast = stator.compile(fn, backend=nan_backend, options={"verify": True, "debug_dir": os.fspath(tmp_path)})
    fast(rand(1, 3, 4, requires_grad=True))
    with pytest.raises(VerificationError) as caught:
        fast(rand(2, 3, 4, requires_grad=True))
    script = caught.value.reproduction
    assert script is not None
    paths = os.pathsep.join([str(SOURCE), str(Path(__file__).parent), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    if fn is of_a_leaf:
        assert "output 0 is wrong in" in done.stdout, done.stdout + done.stderr
    else:
        assert done.stderr == "put leaf_1 in here, which is Transform(vmap_impl): it cannot be written\n"
