"""What happens once in a while in a training job: the first evaluation, a checkpoint that is saved and loaded, a copy
of the model, the last batch of an epoch. None of it makes a recording that the program's own changes do not ask for."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from harness import rand
from torch import nn
from torch.nn import functional as F

import stator


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


class Job:
    def __init__(self, whole: bool, compiled: bool) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.forward = stator.compile(self.model, backend="eager") if compiled and not whole else self.model
        self.step = stator.compile(self.one, backend="eager") if compiled and whole else self.one
        self.seed = 0

    def one(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.forward(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self, batch: int = 16, steps: int = 2) -> list[torch.Tensor]:
        losses = []
        for _ in range(steps):
            self.seed += 1
            losses.append(self.step(rand(self.seed, batch, 8), torch.arange(batch) % 4))
        return losses

    def evaluate(self, batch: int = 16) -> list[torch.Tensor]:
        self.model.eval()
        with torch.no_grad():
            results = [self.forward(rand(seed, batch, 8)) for seed in range(2)]
        self.model.train()
        return results

    def save_and_load(self) -> None:
        file = io.BytesIO()
        parts: list[Any] = [self.model, self.optimizer, self.scheduler]
        torch.save([part.state_dict() for part in parts], file)
        file.seek(0)
        for part, state in zip(parts, torch.load(file), strict=True):
            part.load_state_dict(state)

    def copy(self) -> None:
        self.average = copy.deepcopy(self.model)
        for mine, other in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mine.data.lerp_(other.data, 0.1)


# What is done, and how many recordings there are behind it: of the model, and of the whole step.
STORY: list[tuple[str, Any, int, int]] = [
    ("the first steps", lambda job: job.train(steps=4), 1, 2),
    ("a state dict is taken", lambda job: list(job.model.state_dict().values()), 1, 2),
    ("steps", lambda job: job.train(), 1, 2),
    ("a checkpoint is saved and loaded", lambda job: job.save_and_load(), 1, 2),
    ("steps", lambda job: job.train(), 1, 2),
    ("a copy is made", lambda job: job.copy(), 1, 2),
    ("steps", lambda job: job.train(), 1, 2),
    ("the first evaluation", lambda job: job.evaluate(), 2, 2),
    ("steps", lambda job: job.train(), 2, 2),
    ("the last batch of an epoch", lambda job: job.train(7, 1), 3, 3),
    ("steps", lambda job: job.train(), 3, 3),
    ("the second evaluation", lambda job: job.evaluate(), 3, 3),
    ("another last batch", lambda job: job.train(5, 1), 3, 3),
    ("another checkpoint", lambda job: job.save_and_load(), 3, 3),
    ("steps", lambda job: job.train(), 3, 3),
]


def tell(whole: bool) -> None:
    plain, compiled = Job(whole, False), Job(whole, True)
    handle: Any = (compiled.step if whole else compiled.forward).stator  # type: ignore[attr-defined]
    for what, do, of_model, of_step in STORY:
        expected, found = do(plain), do(compiled)
        for a, b in zip(expected or [], found or [], strict=True):
            assert torch.equal(a, b), what
        assert handle.recordings == (of_step if whole else of_model), f"{what}: {handle.last_miss}"
    for a, b in zip(plain.model.state_dict().values(), compiled.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert handle.plain == 0


def test_a_compiled_model():
    tell(whole=False)


def test_a_compiled_step():
    tell(whole=True)


def test_batches_and_lengths_of_all_sizes():
    """Thirty-three shapes: one recording, one for sizes that change, one for a batch of one, in each of two modes."""
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 8), nn.Tanh()).eval()
    for dynamic, most in ((None, 4), (True, 2)):
        compiled = stator.compile(model, backend="eager", dynamic=dynamic)
        for batch in (16, 8, 5, 1, 4, 2, 3, 7, 9, 12, 11):
            for length in (32, 17, 48):
                tokens = torch.arange(batch * length).reshape(batch, length) % 20
                with torch.no_grad():
                    assert torch.equal(compiled(tokens), model(tokens))
        assert compiled.stator.recordings <= most and compiled.stator.plain == 0
