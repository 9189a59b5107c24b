"""The zoo: architectures of transformers with tiny random configurations, and how each is called.

What enters: nothing; all is offline. What leaves: `Model`s, each of which makes itself, with random weights, and its
inputs for a seed and a batch size. The files beside this one fill the zoo, a kind of model each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

VOCABULARY = 100
LENGTH = 9  # of texts, where the architecture does not ask for another one

Inputs = Callable[[int, int], dict[str, Any]]  # (seed, batch size) to the arguments of a call


@dataclass(frozen=True)
class Model:
    """One architecture, and what is to be run of it."""

    name: str
    kind: str
    make: Callable[[], nn.Module]
    inputs: Inputs
    training: Inputs | None = None  # arguments with which the model gives a loss
    loss: Callable[[Any], torch.Tensor] = lambda out: out.loss
    generates: bool = False
    prompt: Inputs | None = None  # what `generate` is given, if not the inputs


KINDS = ("text", "decoders", "seq2seq", "vision", "detection", "audio", "multimodal", "diffusion")  # a file for each
ZOO: dict[str, Model] = {}


def add(model: Model) -> None:
    """Every model of the zoo has a name of its own."""
    assert model.name not in ZOO, model.name
    ZOO[model.name] = model


def from_config(class_name: str, **changes: Any) -> Callable[[], nn.Module]:
    """What makes a model of this class, by a configuration with these changes."""

    def make() -> nn.Module:
        cls = getattr(hf, class_name)
        return cls(cls.config_class(**changes))  # type: ignore[no-any-return]

    return make


# ---- inputs -------------------------------------------------------------------------------------


def tokens(seed: int, *shape: int) -> torch.Tensor:
    """Token ids, without the special ones at the beginning of the vocabulary."""
    return torch.randint(5, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mask(seed: int, batch: int, length: int, left: bool = False) -> torch.Tensor:
    """The mask of a batch whose rows are of different lengths; none is shorter than half."""
    lengths = length - (torch.arange(batch)[:, None] + seed) % (length // 2)
    kept = torch.arange(length) < lengths
    return (kept.flip(1) if left else kept).long()


def text(length: int = LENGTH, **more: Any) -> Inputs:
    """Padded texts."""
    return lambda seed, batch: {
        "input_ids": tokens(seed, batch, length),
        "attention_mask": mask(seed, batch, length),
        **more,
    }


def prompt(length: int = LENGTH) -> Inputs:
    """Texts padded on the left, as they are for generating."""
    return lambda seed, batch: {
        "input_ids": tokens(seed, batch, length),
        "attention_mask": mask(seed, batch, length, left=True),
    }


def labelled_text(length: int = LENGTH) -> Inputs:
    """Padded texts, and a token for each token."""
    return lambda seed, batch: {**text(length)(seed, batch), "labels": tokens(seed + 50, batch, length)}


def images(size: int = 32, channels: int = 3) -> Inputs:
    return lambda seed, batch: {"pixel_values": noise(seed, batch, channels, size, size)}


def labelled(inputs: Inputs, classes: int = 2) -> Inputs:
    """Inputs with a class for each row."""
    return lambda seed, batch: {**inputs(seed, batch), "labels": tokens(seed + 50, batch) % classes}


def both(*parts: Inputs) -> Inputs:
    """The inputs of all parts together."""

    def joined(seed: int, batch: int) -> dict[str, Any]:
        return {name: value for part in parts for name, value in part(seed, batch).items()}

    return joined
