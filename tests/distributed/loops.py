"""Training loops under DistributedDataParallel and `fully_shard`, plain and compiled: a process runs all of them.

    RANK=0 WORLD_SIZE=2 python loops.py FILE    FILE: where the processes meet

Each loop must end with the losses, parameters, buffers and gradients of the plain one, in every process; the last line
that a process prints says how many did.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import stator

STEPS = 4


class Branches(nn.Module):
    """One of two layers is used."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.second = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.two(x) if self.second else self.one(x)))


class Named(nn.Module):
    """Takes a keyword, and gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        y = self.linear(x) * scale
        return {"logits": y, "norm": y.norm()}


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def data_parallel(module: nn.Module, settings: dict[str, Any]) -> Any:
    return DistributedDataParallel(module, **settings)


class Doubled(DistributedDataParallel):
    """Does more around the call than torch's class."""

    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return super()._run_ddp_forward(*inputs, **kwargs) * 2


def doubled(module: nn.Module, settings: dict[str, Any]) -> Any:
    return Doubled(module, **settings)


def sharded(module: nn.Module, settings: dict[str, Any]) -> Any:
    for part in module.children():
        if isinstance(part, nn.Linear):
            fully_shard(part, **settings)
    return fully_shard(module, **settings)


@dataclass
class Loop:
    make: Callable[[], nn.Module] = layers
    parallel: Callable[[nn.Module, dict[str, Any]], Any] = data_parallel
    settings: dict[str, Any] = field(default_factory=dict)
    batches: Callable[[int, int], int] = lambda rank, step: 8
    between: Callable[[Any, int], Any] = lambda module, step: None  # before a step: of the module inside
    call: Callable[[Any, torch.Tensor], torch.Tensor] = lambda net, x: net(x)
    hook: Callable[[Any], Any] = lambda net: None
    accumulate: bool = False
    recordings: int = 3  # before, the module, behind
    hits: int = STEPS - 1
    backends: tuple[str, ...] = ("eager", "native")
    tolerance: dict[str, float] = field(default_factory=dict)


def compress(net: Any) -> None:
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)


def power_sgd(net: Any) -> None:
    net.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)


def use_second(module: Any, step: int) -> None:
    module.second = step >= 2


LOOPS = {
    "plain": Loop(backends=("eager", "aot_eager", "native")),
    "a class of the program's": Loop(parallel=doubled),
    "many buckets": Loop(settings={"bucket_cap_mb": 0.0005}),
    "buckets as views": Loop(settings={"gradient_as_bucket_view": True}),
    "buffers": Loop(make=normalized),
    "unused parameters": Loop(
        make=Branches, settings={"find_unused_parameters": True}, between=use_second, recordings=4, hits=STEPS - 2
    ),
    "static graph": Loop(settings={"static_graph": True}, recordings=4, hits=STEPS - 2),
    "accumulation": Loop(accumulate=True, hits=2 * STEPS - 1),
    "compressed": Loop(hook=compress),
    "power SGD": Loop(hook=power_sgd),
    "keywords and dicts": Loop(make=Named, call=lambda net, x: net(x, scale=2.0)["logits"]),
    "other sizes in other processes": Loop(
        batches=lambda rank, step: 8 if rank == 0 else 5 + step, recordings=6, hits=STEPS - 2
    ),
    "shards": Loop(parallel=sharded, recordings=17),
    "shards that are kept": Loop(parallel=sharded, settings={"reshard_after_forward": False}, recordings=17),
    "shards, accumulation": Loop(parallel=sharded, accumulate=True, recordings=17, hits=2 * STEPS - 1),
    "shards in bfloat16": Loop(
        parallel=sharded,
        settings={"mp_policy": MixedPrecisionPolicy(torch.bfloat16)},
        recordings=17,
        tolerance={"rtol": 2e-2, "atol": 2e-2},
    ),
}


def train(
    loop: Loop,
    rank: int,
    wrap: Callable[[nn.Module, dict[str, Any]], Any],
    around: Callable[[Any], Any] = lambda step: step,
) -> tuple[Any, Any, list[torch.Tensor]]:
    """The wrapped module, the step, and everything that a step may change."""
    torch.manual_seed(0)
    module = loop.make()
    net = wrap(module, loop.settings)
    inner = module if loop.parallel is sharded else net  # which is sharded in place
    loop.hook(inner)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    @around
    def differentiate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(loop.call(net, x), y)
        loss.backward()
        return loss.detach()

    seen: list[torch.Tensor] = []
    for step in range(STEPS):
        loop.between(module, step)
        for last in (False, True) if loop.accumulate else (True,):
            generator = torch.Generator().manual_seed(1000 * step + 10 * rank + last)
            size = loop.batches(rank, step)
            x = torch.randn(size, 6, generator=generator)
            y = torch.randint(3, (size,), generator=generator)
            with contextlib.nullcontext() if last else waiting(inner):
                seen.append(differentiate(x, y))
        seen += [whole(p.grad) for p in module.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    return net, differentiate, [*seen, *map(whole, module.state_dict().values())]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def waiting(net: Any) -> contextlib.AbstractContextManager[None]:
    """Gradients stay in the process."""
    if isinstance(net, DistributedDataParallel):
        return net.no_sync()
    net.set_requires_gradient_sync(False)
    done = contextlib.ExitStack()
    done.callback(net.set_requires_gradient_sync, True)
    return done


def compare(name: str, loop: Loop, backend: str, rank: int) -> None:
    """The module alone, DistributedDataParallel around it, and a step that calls it are compiled."""
    stator.reset()
    compiling = functools.partial(stator.compile, backend=backend)
    *_, expected = train(loop, rank, loop.parallel)
    outside, _, found_outside = train(loop, rank, lambda module, settings: compiling(loop.parallel(module, settings)))
    _, step, found_in_step = train(loop, rank, loop.parallel, compiling)
    runs = [
        ("outside", outside.stator, found_outside, {"data-parallel"}),
        ("in a step", step.stator, found_in_step, {"data-parallel", "backward"}),
    ]
    if loop.parallel is data_parallel:
        inside, _, found_inside = train(loop, rank, lambda module, settings: data_parallel(compiling(module), settings))
        runs.append(("inside", inside.module.stator, found_inside, set()))
    for place, handle, found, breaks in runs:
        where = f"{name}, compiled {place} with {backend}, process {rank}"
        assert len(found) == len(expected), where
        for one, other in zip(found, expected, strict=True):
            if backend == "eager":
                assert torch.equal(one, other), f"{where}: {one} is not {other}"
            else:
                torch.testing.assert_close(
                    one, other, **loop.tolerance, msg=lambda text, where=where: f"{where}: {text}"
                )
        made = f"{where}: {handle}, {handle.last_miss}, {[f'{b.id} {b.reason}' for b in handle.break_reasons]}"
        most = loop.recordings + (2 if place == "in a step" else 0)
        assert handle.recordings <= most and handle.hits >= loop.hits, made
        assert {reason.id for reason in handle.break_reasons} == breaks, made


def main(file: str) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    warnings.simplefilter("ignore", UserWarning)
    for name, loop in LOOPS.items():
        for backend in loop.backends:
            compare(name, loop, backend, rank)
    print(f"{len(LOOPS)} loops as eager's", flush=True)
    wait_for_all(file, rank)
    dist.destroy_process_group()


def wait_for_all(file: str, rank: int) -> None:
    """Who closes its connections while another is still receiving resets them. Told by a file, not by a connection."""
    size = dist.get_world_size()
    over = dist.FileStore(f"{file}.over", size)
    over.set(str(rank), "over")
    over.wait([str(other) for other in range(size)])


if __name__ == "__main__":
    main(sys.argv[1])
