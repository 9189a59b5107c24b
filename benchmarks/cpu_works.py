"""The programs that `benchmarks/cpu.py` times: kernels, one small block, models, training steps.

A `Work` gives, for a compiler (a function from a callable to a callable), one step to be called again and again. Every
side has state of its own, made from the same seed: so their results can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

HUB: Any = transformers  # typed as if every field of a config were given
VOCABULARY, LENGTH, CLASSES = 8000, 128, 100

Compiler = Callable[[Any], Any]
Step = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    title: str
    group: str  # kernels, block, inference, training
    prepare: Callable[[Compiler], Step]
    tolerance: float = 1e-3


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ------------------------------------------------------------------------------------------------------- kernels


def chain(x: Tensor, y: Tensor) -> Tensor:
    return (x * y + 1).tanh() * (x - y).sigmoid() + x


def softmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def norm(x: Tensor, y: Tensor) -> Tensor:
    return F.layer_norm(x + y, x.shape[-1:])


def gelu(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x) * y


def gelu_tanh(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh") * y


def silu(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def total(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum()


def rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x + y).amax(-1), x.var(-1)


def columns(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(0)


KERNELS: dict[str, tuple[Callable[..., Any], torch.dtype]] = {
    "pointwise chain": (chain, torch.float32),
    "softmax": (softmax, torch.float32),
    "layer norm + residual": (norm, torch.float32),
    "gelu": (gelu, torch.float32),
    "gelu tanh": (gelu_tanh, torch.float32),
    "silu bf16": (silu, torch.bfloat16),
    "layer norm bf16": (norm, torch.bfloat16),
    "sum of all": (total, torch.float32),
    "sums of rows": (rows, torch.float32),
    "sums of columns": (columns, torch.float32),
}
ELEMENTS = {"1e4": (10, 1000), "1e6": (1000, 1000), "1e7": (10_000, 1000)}


def kernel(name: str, size: str) -> Work:
    fn, dtype = KERNELS[name]

    def prepare(compiler: Compiler) -> Step:
        x, y = (rand(*ELEMENTS[size], seed=seed, dtype=dtype) for seed in range(2))
        call = compiler(fn)
        return lambda: call(x, y)

    return Work(f"{name} {size}", "kernels", prepare, 1e-3 if dtype is torch.float32 else 4e-2)


# -------------------------------------------------------------------------------------------------------- models


class Block(nn.Module):
    """linear → gelu → linear → residual → layer norm"""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, hidden), nn.Linear(hidden, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(x + self.down(F.gelu(self.up(x))))
        return result


class MLP(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block(width, 4 * width) for _ in range(4)])
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> tuple[Tensor]:
        result = self.head(self.blocks(x))
        return (result if labels is None else F.cross_entropy(result, labels),)


def ids(batch: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, LENGTH), generator=torch.Generator().manual_seed(0))


def classes(batch: int) -> Tensor:
    return torch.arange(batch) % CLASSES


def words(batch: int, training: bool) -> dict[str, Tensor]:
    return {"input_ids": ids(batch), **({"labels": ids(batch)} if training else {})}


def images(batch: int, training: bool) -> dict[str, Tensor]:
    return {"pixel_values": rand(batch, 3, 224, 224), **({"labels": classes(batch)} if training else {})}


def vectors(batch: int, training: bool) -> dict[str, Tensor]:
    return {"x": rand(batch, 512), **({"labels": classes(batch)} if training else {})}


def bert() -> Any:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return HUB.BertForMaskedLM(HUB.BertConfig(num_hidden_layers=4, vocab_size=VOCABULARY, **still))


def gpt2() -> Any:
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = HUB.GPT2Config(n_layer=4, vocab_size=VOCABULARY, use_cache=False, **still, **ends)
    return HUB.GPT2LMHeadModel(config)


def llama() -> Any:
    small = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 4}
    return HUB.LlamaForCausalLM(HUB.LlamaConfig(num_hidden_layers=4, vocab_size=VOCABULARY, use_cache=False, **small))


def vit() -> Any:
    small = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6, "num_hidden_layers": 4}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return HUB.ViTForImageClassification(HUB.ViTConfig(num_labels=CLASSES, **small, **still))


def resnet() -> Any:
    basic = {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}
    return HUB.ResNetForImageClassification(HUB.ResNetConfig(num_labels=CLASSES, **basic))


Inputs = Callable[[int, bool], dict[str, Tensor]]
MODELS: dict[str, tuple[Callable[[], Any], Inputs]] = {
    "MLP": (MLP, vectors),
    "BERT-4": (bert, words),
    "GPT2-4": (gpt2, words),
    "Llama-4": (llama, words),
    "ViT": (vit, images),
    "ResNet": (resnet, images),
}


def inference(name: str, batch: int) -> Work:
    build, inputs = MODELS[name]

    def prepare(compiler: Compiler) -> Step:
        torch.manual_seed(0)
        model, given = build().eval(), inputs(batch, False)
        call = compiler(model)
        return lambda: call(**given)[0]

    return Work(f"{name} inference, batch {batch}", "inference", prepare)


def training(name: str, batch: int) -> Work:
    """A step: forward, backward, AdamW. Model and optimizer are compiled."""
    build, inputs = MODELS[name]

    def prepare(compiler: Compiler) -> Step:
        torch.manual_seed(0)
        model, given = build().train(), inputs(batch, True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        call, update = compiler(model), compiler(optimizer.step)

        def step() -> Tensor:
            loss: Tensor = call(**given)[0]
            loss.backward()  # type: ignore[no-untyped-call]
            update()
            optimizer.zero_grad()
            return loss.detach()

        return step

    return Work(f"{name} training, batch {batch}", "training", prepare)


def small_block() -> Work:
    def prepare(compiler: Compiler) -> Step:
        torch.manual_seed(0)
        call, x = compiler(Block(256, 256).eval()), rand(1, 256)
        return lambda: call(x)

    return Work("block at 256, batch 1", "block", prepare)


WORKS: dict[str, Work] = {
    work.title: work
    for work in (
        *[kernel(name, size) for name in KERNELS for size in ELEMENTS],
        small_block(),
        *[inference(name, batch) for name in MODELS for batch in (1, 8)],
        *[training(name, batch) for name in MODELS for batch in (1, 8)],
    )
}
COLD = [f"{name} inference, batch 1" for name in ("MLP", "BERT-4", "GPT2-4", "Llama-4")] + ["BERT-4 training, batch 1"]


# ---------------------------------------------------------------------------------------- graphs of growing length


def operations(count: int) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """A function of so many operations, in blocks of ten that differ from each other in a constant."""

    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        for number in range(count // 10):
            y = torch.addmm(b, x, w).tanh() * (1 + number % 7)
            y = (y + x).sigmoid() - y.exp()
            x = (y / y.abs().sum(-1, keepdim=True)) + x
        return x

    return fn, (rand(8, 16), rand(16, 16, seed=1), rand(16, seed=2))


def layers(count: int) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return nn.Sequential(*[Block(64, 256) for _ in range(count)]).eval(), (rand(8, 64),)
