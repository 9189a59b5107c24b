"""Training steps of real models by way of our graphs: losses, parameters and buffers after three steps, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as T
from torch import nn

import stator
from stator import events
from stator.autograd import saved_values

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = 100


def ids() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(0, WORDS, (2, 16))


def image() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 32, 32)


def bert() -> Any:
    return T.BertForMaskedLM(T.BertConfig(vocab_size=WORDS, **SMALL)), {"input_ids": ids()}


def gpt2() -> Any:
    config = T.GPT2Config(vocab_size=WORDS, n_layer=2, n_embd=32, n_head=4, bos_token_id=0, eos_token_id=0)
    return T.GPT2LMHeadModel(config), {"input_ids": ids(), "use_cache": False}


def llama() -> Any:
    config = T.LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **SMALL)
    return T.LlamaForCausalLM(config), {"input_ids": ids(), "use_cache": False}


def vit() -> Any:
    return T.ViTForImageClassification(T.ViTConfig(image_size=32, patch_size=8, **SMALL)), {"pixel_values": image()}


def resnet() -> Any:
    config = T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return T.ResNetForImageClassification(config), {"pixel_values": image()}


def t5() -> Any:
    config = T.T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_heads=4, num_layers=2)
    return T.T5ForConditionalGeneration(config), {"input_ids": ids(), "decoder_input_ids": ids(), "use_cache": False}


MODELS: dict[str, Callable[[], Any]] = {f.__name__: f for f in (bert, gpt2, llama, vit, resnet, t5)}


def train(
    build: Callable[[], Any], backend: str | None, steps: int = 3
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Losses, and the model's state at the end."""
    torch.manual_seed(0)
    model, inputs = build()
    model.train()
    call = model if backend is None else stator.compile(model, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        logits = call(**inputs).logits
        loss = F.cross_entropy(logits.flatten(0, -2), torch.arange(logits.flatten(0, -2).shape[0]) % logits.shape[-1])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [t.detach().clone() for t in model.state_dict().values()]


@pytest.fixture
def derived() -> Any:
    """How many graphs were derived; none may have been refused."""
    seen: list[Any] = []
    end = events.subscribe(seen.append, events.BackwardDerived, events.NotDerived, events.InternalFailure)
    yield seen
    end()
    assert seen
    assert [type(event) for event in seen] == [events.BackwardDerived] * len(seen)


@pytest.mark.parametrize("name", MODELS)
def test_three_steps(name: str, derived: Any) -> None:
    expected = train(MODELS[name], None)
    found = train(MODELS[name], "aot_eager")
    for one, other in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["bert", "resnet", "t5"])
def test_bit_for_bit(name: str, derived: Any) -> None:
    """Against the same captured graph, run by eager autograd: libraries take other paths while they are captured."""
    expected = train(MODELS[name], "eager")
    found = train(MODELS[name], "aot_eager")
    for one, other in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        assert torch.equal(one, other)


def small_transformer() -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(WORDS, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(32, WORDS)

        def forward(self, input_ids: torch.Tensor) -> Any:
            return SimpleNamespace(logits=self.head(self.encoder(self.embed(input_ids))))

    return Model(), {"input_ids": ids()}


def test_ten_steps_have_the_same_losses(derived: Any) -> None:
    expected, found = (train(small_transformer, backend, 10)[0] for backend in (None, "aot_eager"))
    torch.testing.assert_close(found, expected)
    assert found[-1] < found[0]


def stack() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(8)])


def test_less_is_kept_than_eager_keeps(capsys: Any) -> None:
    model, inputs = bert()
    saved = saved_values(model)(**inputs)
    assert saved.bytes <= 0.7 * saved.eager_bytes
    saved = saved_values(stack())(torch.randn(32, 64))
    assert saved.bytes <= 0.7 * saved.eager_bytes
