"""The memory of training steps, eager and compiled, as torch's CPU allocator tells it. Run in a process of its own.

The allocator remembers the size of a block only if the profiler was on when it was given out, and does not notice that
one was given back while it was off. So one profile covers all of a process; steps are told apart by time. Arenas of the
native backend are not the allocator's: the largest of them is added, as if it were held all the time.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers as T
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import stator
from stator import events

WORDS = 400
Loss = Callable[[Any], Tensor]  # of the model or of the compiled model


def bert(dropout: float) -> tuple[nn.Module, Loss]:
    config = T.BertConfig(
        vocab_size=WORDS,
        num_hidden_layers=4,
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=256,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    ids = torch.randint(0, WORDS, (8, 64))
    return T.BertForMaskedLM(config), lambda model: model(input_ids=ids, labels=ids).loss


def mlp() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(8)])
    batch = torch.randn(256, 64)
    return model, lambda model: model(batch).pow(2).mean()


def convolutions() -> tuple[nn.Module, Loss]:
    def block(width: int, out: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

    model = nn.Sequential(block(3, 32), block(32, 32), nn.MaxPool2d(2), block(32, 64), block(64, 64))
    batch = torch.randn(8, 3, 64, 64)
    return model, lambda model: model(batch).pow(2).mean()


class Checkpointed(nn.Module):
    """Blocks of which eager keeps what enters them, and what matrix products give if `selective`."""

    def __init__(self, selective: bool) -> None:
        super().__init__()
        widths = (64, 256), (256, 64)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(*widths[0]), nn.GELU(), nn.Linear(*widths[1]), nn.Dropout(0.1), nn.LayerNorm(64))
            for _ in range(6)
        )
        self.options = {"context_fn": contexts} if selective else {}

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, **self.options)
        return x


def contexts() -> Any:
    return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])


def checkpointed(selective: bool) -> tuple[nn.Module, Loss]:
    model, batch = Checkpointed(selective), torch.randn(256, 64)
    return model, lambda model: model(batch).pow(2).mean()


BUILD: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {
    "BERT-4": lambda: bert(0.0),
    "BERT-4 with dropout": lambda: bert(0.1),
    "MLP": mlp,
    "convolutions": convolutions,
    "checkpointed": lambda: checkpointed(selective=False),
    "checkpointed selectively": lambda: checkpointed(selective=True),
}


def steps(name: str, backend: str | None, inference: bool) -> tuple[int, int, int]:
    """When a step began, when its forward was done, when it ended, in the profiler's time."""
    torch.manual_seed(0)
    model, loss = BUILD[name]()
    call = stator.compile(model, backend=backend) if backend else model
    with torch.set_grad_enabled(not inference):
        for _ in range(3):
            result = loss(call)
            if not inference:
                result.backward()
            model.zero_grad()
        del result
        gc.collect()
        begin = time.time_ns()
        result = loss(call)
        between = time.time_ns()
        if not inference:
            result.backward()
        return begin, between, time.time_ns()


def bytes_of(blocks: list[tuple[int, int]], begin: int, between: int, end: int) -> dict[str, int]:
    """Beyond what there was at the beginning: most bytes at a time, and bytes between forward and backward."""
    now = most = kept = 0
    for when, size in blocks:
        if begin <= when <= end:
            now += size
            most = max(most, now)
            if when <= between:
                kept = now
    return {"peak": most, "kept": kept}


def largest_arena() -> list[int]:
    """Bytes of the largest arena that was planned from now on, if there was one."""
    from stator.backends import native

    plan, largest = native.plan_memory, []

    def planned(program: Any) -> Any:
        made = plan(program)
        largest[:] = [max([int(made.size), *largest])]
        return made

    native.plan_memory = planned
    return largest


def main() -> None:
    torch.set_num_threads(1)
    backend = sys.argv[2] if len(sys.argv) > 2 else "aot_eager"
    refused: list[Any] = []
    events.subscribe(refused.append, events.NotDerived, events.NotGenerated, events.InternalFailure)
    arena = largest_arena() if backend == "native" else []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        inference = "inference" in sys.argv[3:]
        times = {kind: steps(sys.argv[1], how, inference) for kind, how in (("eager", None), ("compiled", backend))}
    assert not refused, refused
    raw: Any = profiled.profiler
    found = [event for event in raw.kineto_results.events() if event.name() == "[memory]"]
    blocks = sorted((event.start_ns(), event.nbytes()) for event in found)
    result = {kind: bytes_of(blocks, *when) for kind, when in times.items()}
    result["compiled"]["peak"] += sum(arena)
    print(json.dumps(result | {"arena": sum(arena)}))


if __name__ == "__main__":
    main()
