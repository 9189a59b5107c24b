"""Random training steps: a number is a program, with what happens between its calls. Compared with the plain program.

python tests/training/random_steps.py 1000 [first] [backend]     a hunt
python tests/training/random_steps.py --show 77                  the text of one
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from harness import GENERATED, Checked, World, check, rand
from torch import nn, optim

# `A`, `B`: values of size [5, 4]; `W`: a parameter of size [4, 4], `V`: one of size [4].
_FORWARD = (
    "N = A @ W",
    "N = F.linear(A, W, V)",
    "N = (A + V).tanh()",
    "N = A * B",
    "N = A.detach() * V",
    "with torch.no_grad(): N = A * 2 + V",
    "N = F.dropout(A, 0.3)",
    "N = A.clone(); N[:, 1:3] *= V[1:3]",
    "N = torch.cat([A[:, :2], B[:, 2:]], 1)",
    "N = F.layer_norm(A, (4,), V, V)",
    "N = model(A)",
    "N = (A @ W.t()).relu()",
    "N = torch.where(A > 0, A, V)",
    "N = A[torch.tensor([0, 2, 2, 4, 1])]",
)
_PASSES = (
    "L.backward()",
    "L.backward()",
    "L.backward(retain_graph=True); (L * 2).backward()",
    "G = torch.autograd.grad(L, params, allow_unused=True)",
    "G = torch.autograd.grad(L, [params[0], params[4]], allow_unused=True, materialize_grads=True)",
    "G = torch.autograd.grad(L, params[:2], create_graph=True, allow_unused=True); "
    "(L + sum(g.square().sum() for g in G if g is not None)).backward()",
    "L.backward(gradient=torch.tensor(0.5), inputs=[p for p in params[:3] if p.requires_grad])",
    "torch.autograd.backward([L, L * 3])",
)
_BEHIND = (
    "nn.utils.clip_grad_norm_(params, 0.5)",
    "nn.utils.clip_grad_value_([p for p in params if p.grad is not None], 0.1)",
    "optimizer.step()",
    "optimizer.zero_grad()",
    "optimizer.zero_grad(set_to_none=False)",
    "state['steps'] = state['steps'] + 1",
    "[p.grad.mul_(0.5) for p in params if p.grad is not None]",
    "results.append([p.grad for p in params])",
    "results.append([None if p.grad is None else p.grad.sum() for p in params])",
)
_OPTIMIZERS: tuple[Callable[[Any], Any], ...] = (
    lambda params: optim.SGD(params, lr=0.05),
    lambda params: optim.SGD(params, lr=0.05, momentum=0.9),
    lambda params: optim.AdamW(params, lr=0.01),
)


class _Writer:
    def __init__(self, numbers: random.Random) -> None:
        self._numbers = numbers
        self._lines = ["results = []"]
        self._count = 0

    def text(self) -> str:
        numbers = self._numbers
        for _ in range(numbers.randint(1, 3)):
            self._pass()
            self._lines.append(numbers.choice(_BEHIND))
        if numbers.random() < 0.7:
            self._lines.append("optimizer.step()")
        if numbers.random() < 0.6:
            self._lines.append(numbers.choice(["optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"]))
        return "def step(x):\n    " + "\n    ".join([*self._lines, "return results"]) + "\n"

    def _new(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _pass(self) -> None:
        numbers, values = self._numbers, ["x"]
        for _ in range(numbers.randint(2, 6)):
            made = self._new()
            self._lines.append(self._filled(numbers.choice(_FORWARD), values, N=made))
            values.append(made)
        loss = self._new()
        self._lines.append(self._filled("N = A.square().mean() + (B * 0.1).sum() + V.square().sum()", values, N=loss))
        self._lines.append(self._filled(numbers.choice(_PASSES), values, L=loss, G=self._new()))
        self._lines.append(f"results.append({loss if numbers.random() < 0.3 else f'{loss}.detach()'})")

    def _filled(self, template: str, values: list[str], **names: str) -> str:
        numbers = self._numbers
        filled = {
            "A": numbers.choice(values),
            "B": numbers.choice(values),
            "W": f"params[{numbers.randint(0, 3)}]",
            "V": f"params[{numbers.randint(4, 5)}]",
            **names,
        }
        words = {name: value for name, value in filled.items() if name in template}
        return _replaced(template, words)


def _replaced(template: str, words: dict[str, str]) -> str:
    """Single letters that stand alone."""
    text = ""
    for place, letter in enumerate(template):
        around = template[place - 1 : place] + template[place + 1 : place + 2]
        text += words[letter] if letter in words and not any(c.isalnum() or c == "_" for c in around) else letter
    return text


def program(number: int) -> str:
    return _Writer(random.Random(number)).text()


def world(number: int) -> World:
    torch.manual_seed(0)
    params = [nn.Parameter(rand(seed, 4, 4)) for seed in range(4)] + [nn.Parameter(rand(seed, 4)) for seed in (4, 5)]
    params[2] = nn.Parameter(rand(2, 4, 4).t())
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = random.Random(number).choice(_OPTIMIZERS)([*params, *model.parameters()])
    namespace = {"params": params, "model": model, "optimizer": optimizer, "state": {"steps": 0}}
    text = program(number)
    names = {**namespace, "torch": torch, "nn": nn, "F": F}
    exec(compile(text, f"<step {number}>", "exec"), names)
    return World(fn=names["step"], **namespace)


def _without_gradients(w: World) -> None:
    for p in w.params:
        p.grad = None


def _other_gradients(w: World) -> None:
    for p in w.params:
        p.grad = None if p.grad is None else p.grad.clone()


def _frozen(w: World) -> None:
    w.params[1].requires_grad_(not w.params[1].requires_grad)


def _other_mode(w: World) -> None:
    w.model.train(not w.model.training)


def _other_rate(w: World) -> None:
    w.optimizer.param_groups[0]["lr"] *= 0.9


def _nothing(w: World) -> None:
    pass


_CHANGES = (_without_gradients, _other_gradients, _frozen, _other_mode, _other_rate, *[_nothing] * 5)


def calls(number: int, count: int = 6) -> list[Callable[[World], Any]]:
    numbers = random.Random(-1 - number)

    def call(seed: int, change: Callable[[World], None]) -> Callable[[World], Any]:
        def run(w: World) -> Any:
            change(w)
            torch.manual_seed(seed)
            return w.fn(rand(seed, 5, 4))

        return run

    return [call(seed, numbers.choice(_CHANGES)) for seed in range(count)]


def compare(number: int, backend: str = "eager") -> Checked | None:
    """With `eager` and `aot_eager` all is equal to the bit, aliases included where eager's engine decides on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if backend == "eager":
            make: Callable[[], World] = lambda: world(number)  # noqa: E731
            return check(
                make,
                calls(number),
                expect=None,
                raises=(RuntimeError, ValueError),
                unreplayed=GENERATED,
                tracebacks=False,
            )
        return _compare_ahead(number, backend)


def _compare_ahead(number: int, backend: str) -> None:
    import stator

    worlds = [world(number), world(number)]
    worlds[1].fn = stator.compile(worlds[1].fn, backend=backend)
    for call in calls(number):
        results = []
        for w in worlds:
            try:
                results.append(call(w))
            except (RuntimeError, ValueError) as error:
                results.append(type(error).__name__)
        if isinstance(results[0], str):
            assert results[0] == results[1]
            return
        parts = [
            torch.utils._pytree.tree_leaves(
                [result, [[p.detach(), p.grad] for p in w.params], [*w.model.state_dict().values()], w.state]
            )
            for result, w in zip(results, worlds, strict=True)
        ]
        for plain, compiled in zip(*parts, strict=True):
            same(plain, compiled, exact=backend != "native")


def same(plain: Any, compiled: Any, *, exact: bool) -> None:
    if not isinstance(plain, torch.Tensor):
        assert plain == compiled
        return
    facts = [(t.shape, t.stride(), t.dtype, t.requires_grad, t.is_leaf) for t in (plain, compiled)]
    assert facts[0] == facts[1]
    if exact:
        assert torch.equal(plain.nan_to_num(), compiled.nan_to_num())
    else:
        torch.testing.assert_close(compiled, plain, rtol=2e-2, atol=1e-2, equal_nan=True)


def main(arguments: list[str]) -> None:
    if arguments[0] == "--show":
        print(program(int(arguments[1])))
        return
    count, first = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0
    backend = arguments[2] if len(arguments) > 2 else "eager"
    found = 0
    for number in range(first, first + count):
        try:
            compare(number, backend)
        except Exception as error:
            found += 1
            print(f"step {number}: {type(error).__name__}: {str(error)[:1000]}")
    print(f"{found} of {count} differ")


if __name__ == "__main__":
    main(sys.argv[1:])
