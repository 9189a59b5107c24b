"""Parts of image generators, written here: a UNet and a diffusion transformer, as their usual implementations are.

Both are given noisy images (or latents), a step of the diffusion, and something to be conditioned on.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from zoo import Model, add, noise, tokens


def embedding_of_steps(steps: torch.Tensor, width: int) -> torch.Tensor:
    """Sines and cosines of the number of a step."""
    half = width // 2
    frequencies = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32, device=steps.device) / half)
    angles = steps[:, None].float() * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class ResidualBlock(nn.Module):
    def __init__(self, inside: int, outside: int, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(4, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1))
        self.step = nn.Linear(width, outside)
        self.second = nn.Sequential(nn.GroupNorm(4, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1))
        self.shortcut = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x) + self.step(F.silu(step))[:, :, None, None]
        return self.second(hidden) + self.shortcut(x)  # type: ignore[no-any-return]


class CrossAttention(nn.Module):
    def __init__(self, channels: int, context: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(4, channels)
        self.query = nn.Linear(channels, channels)
        self.key, self.value = nn.Linear(context, channels), nn.Linear(context, channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        pixels = self.norm(x).flatten(2).transpose(1, 2)

        def split(t: torch.Tensor) -> torch.Tensor:
            return t.view(batch, -1, self.heads, channels // self.heads).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(
            *map(split, (self.query(pixels), self.key(context), self.value(context)))
        )
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, height * width, channels))
        return x + mixed.transpose(1, 2).reshape(batch, channels, height, width)


class UNet(nn.Module):
    def __init__(self, channels: tuple[int, ...] = (8, 16), width: int = 16, context: int = 12) -> None:
        super().__init__()
        self.width = width
        self.steps = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.entry = nn.Conv2d(3, channels[0], 3, padding=1)
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        before = channels[0]
        for count in channels:
            parts = {"residual": ResidualBlock(before, count, width), "attention": CrossAttention(count, context)}
            self.down.append(nn.ModuleDict({**parts, "pool": nn.Conv2d(count, count, 3, stride=2, padding=1)}))
            before = count
        self.middle = ResidualBlock(before, before, width)
        for count in reversed(channels):
            self.up.append(nn.ModuleDict({"residual": ResidualBlock(before + count, count, width)}))
            before = count
        self.exit = nn.Sequential(nn.GroupNorm(4, before), nn.SiLU(), nn.Conv2d(before, 3, 3, padding=1))

    def forward(
        self, sample: torch.Tensor, timestep: torch.Tensor, context: torch.Tensor, target: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        step = self.steps(embedding_of_steps(timestep, self.width))
        hidden = self.entry(sample)
        kept = []
        for level in self.down:
            hidden = level["attention"](level["residual"](hidden, step), context)
            kept.append(hidden)
            hidden = level["pool"](hidden)
        hidden = self.middle(hidden, step)
        for level in self.up:
            other = kept.pop()
            hidden = F.interpolate(hidden, size=other.shape[-2:], mode="nearest")
            hidden = level["residual"](torch.cat([hidden, other], dim=1), step)
        out = {"sample": self.exit(hidden)}
        if target is not None:
            out["loss"] = F.mse_loss(out["sample"], target)
        return out


class TransformerBlock(nn.Module):
    """Attention whose norms are shifted and scaled by the condition (adaLN-Zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, dim=-1)
        hidden = self.norms[0](x) * (1 + scale1) + shift1
        batch, length, width = hidden.shape
        qkv = self.qkv(hidden).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).reshape(batch, length, width)
        x = x + gate1 * self.out(mixed)
        return x + gate2 * self.mlp(self.norms[1](x) * (1 + scale2) + shift2)  # type: ignore[no-any-return]


class DiffusionTransformer(nn.Module):
    def __init__(self, size: int = 8, patch: int = 2, channels: int = 4, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.patch, self.channels, self.width = patch, channels, width
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2, width))
        self.classes = nn.Embedding(classes, width)
        self.steps = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, 2) for _ in range(2))
        self.exit = nn.Linear(width, patch * patch * channels)

    def forward(
        self, sample: torch.Tensor, timestep: torch.Tensor, label: torch.Tensor, target: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        condition = self.steps(embedding_of_steps(timestep, self.width)) + self.classes(label)
        hidden = self.patches(sample).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            hidden = block(hidden, condition)
        side = int(hidden.shape[1] ** 0.5)
        pixels = self.exit(hidden).view(-1, side, side, self.patch, self.patch, self.channels)
        out = {"sample": torch.einsum("nhwpqc->nchpwq", pixels).reshape(sample.shape)}
        if target is not None:
            out["loss"] = F.mse_loss(out["sample"], target)
        return out


def latents(seed: int, batch: int) -> dict[str, Any]:
    return {"sample": noise(seed, batch, 4, 8, 8), "timestep": tokens(seed, batch), "label": tokens(seed, batch) % 10}


def pictures(seed: int, batch: int) -> dict[str, Any]:
    sample, context = noise(seed, batch, 3, 16, 16), noise(seed + 1, batch, 5, 12)
    return {"sample": sample, "timestep": tokens(seed, batch), "context": context}


def with_target(inputs: Any) -> Any:
    def given(seed: int, batch: int) -> dict[str, Any]:
        return {**inputs(seed, batch), "target": torch.randn_like(inputs(seed + 70, batch)["sample"])}

    return given


for name, make, inputs in [("UNet", UNet, pictures), ("Diffusion transformer", DiffusionTransformer, latents)]:
    add(Model(name, "diffusion", make, inputs, with_target(inputs), loss=lambda out: out["loss"]))
