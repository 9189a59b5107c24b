"""Real models, unchanged: one graph each, bit-equal to plain, and a replay from the second call on."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from harness import RECORDED, World, check, rand
from torch import nn
from transformers.utils.import_utils import torch_compilable_check

VOCABULARY = 100


def tokens(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def padded(seed: int, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Token ids and the mask of a batch whose rows are of different lengths."""
    lengths = torch.arange(length - batch + 1, length + 1)[:, None] - seed % 2
    return {
        "input_ids": tokens(seed, batch, length),
        "attention_mask": (torch.arange(length) < lengths).long(),
    }


@dataclasses.dataclass
class Model:
    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Any]]

    def world(self) -> World:
        torch.manual_seed(0)
        model = self.make().eval()
        return World(fn=model, model=model)


def bert_config(**changes: Any) -> hf.BertConfig:
    sizes = dict(num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4)
    return hf.BertConfig(**sizes, vocab_size=VOCABULARY, max_position_embeddings=32, **changes)


def gpt2_config(**changes: Any) -> hf.GPT2Config:
    ends = dict(bos_token_id=1, eos_token_id=2)
    return hf.GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=32, vocab_size=VOCABULARY, **ends, **changes)


def llama_config(**changes: Any) -> hf.LlamaConfig:
    sizes = dict(num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4)
    return hf.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=VOCABULARY, **changes)


def t5_config() -> hf.T5Config:
    sizes = dict(num_layers=2, d_model=32, d_kv=8, d_ff=64, num_heads=4)
    return hf.T5Config(**sizes, vocab_size=VOCABULARY, decoder_start_token_id=0)


def vit_config() -> hf.ViTConfig:
    sizes = dict(num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4)
    return hf.ViTConfig(**sizes, image_size=32, patch_size=8)


def whisper_config() -> hf.WhisperConfig:
    sides = {f"{side}_{part}": n for side in ("encoder", "decoder") for part, n in WHISPER_SIZES.items()}
    ends = dict(decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return hf.WhisperConfig(**sides, **ends, d_model=32, max_source_positions=20, vocab_size=VOCABULARY)


WHISPER_SIZES = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}

MODELS = [
    Model("bert", lambda: hf.BertModel(bert_config()), lambda s: {"input_ids": tokens(s, 2, 9)}),
    Model("bert-padded", lambda: hf.BertForSequenceClassification(bert_config()), lambda s: padded(s, 3, 9)),
    Model("gpt2", lambda: hf.GPT2LMHeadModel(gpt2_config()), lambda s: {"input_ids": tokens(s, 2, 9)}),
    Model("gpt2-no-cache", lambda: hf.GPT2LMHeadModel(gpt2_config(use_cache=False)), lambda s: padded(s, 2, 9)),
    Model("llama", lambda: hf.LlamaForCausalLM(llama_config()), lambda s: {"input_ids": tokens(s, 2, 9)}),
    Model("llama-loss", lambda: hf.LlamaForCausalLM(llama_config(use_cache=False)), lambda s: with_labels(s)),
    Model("t5", lambda: hf.T5ForConditionalGeneration(t5_config()), lambda s: with_labels(s)),
    Model("vit", lambda: hf.ViTModel(vit_config()), lambda s: {"pixel_values": rand(s, 2, 3, 32, 32)}),
    Model("resnet", lambda: hf.ResNetModel(RESNET), lambda s: {"pixel_values": rand(s, 2, 3, 32, 32)}),
    Model("distilbert", lambda: hf.DistilBertModel(DISTILBERT), lambda s: padded(s, 2, 9)),
    Model("whisper", lambda: hf.WhisperModel(whisper_config()), lambda s: speech(s)),
]
RESNET = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic")
DISTILBERT = hf.DistilBertConfig(
    n_layers=2, dim=32, hidden_dim=64, n_heads=4, vocab_size=VOCABULARY, max_position_embeddings=32
)


def with_labels(seed: int) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(seed, 2, 9), "labels": tokens(seed + 50, 2, 9)}


def speech(seed: int) -> dict[str, torch.Tensor]:
    return {"input_features": rand(seed, 1, 80, 40), "decoder_input_ids": tokens(seed, 1, 6)}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_is_one_graph_and_then_a_replay(model):
    def call(seed):
        def run(w):
            with torch.no_grad():
                return w.fn(**model.inputs(seed))

        return run

    check(model.world, [call(1), call(2), call(3)], expect="miss hit hit", graphs=1)


def test_another_length_is_another_recording():
    model = MODELS[0]

    def call(seed, length):
        def run(w):
            with torch.no_grad():
                return w.fn(input_ids=tokens(seed, 2, length))

        return run

    check(model.world, [call(1, 9), call(2, 7), call(3, 9), call(4, 7)], expect="miss miss hit hit")


def test_hidden_states_are_collected_as_plain():
    """The library installs hooks on the model for this, in the first call that asks."""

    def call(seed):
        def run(w):
            with torch.no_grad():
                return w.fn(**padded(seed, 2, 9), output_hidden_states=True)

        return run

    check(MODELS[0].world, [call(1), call(2), call(3)], expect=None)


def test_one_token_at_a_time_with_a_cache():
    """The cache grows with every token: nothing to replay, but every result is the plain program's."""

    def world():
        torch.manual_seed(0)
        model = hf.LlamaForCausalLM(llama_config()).eval()
        return World(fn=model, model=model, cache=None)

    def step(seed):
        def run(w):
            with torch.no_grad():
                out = w.fn(input_ids=tokens(seed, 1, 1), past_key_values=w.cache, use_cache=True)
            w.cache = out.past_key_values
            return out.logits

        return run

    check(world, [step(1), step(2), step(3)], expect=None, unreplayed=RECORDED)


# ---- training steps -----------------------------------------------------------------------------


def training_step(w: World, *inputs: Any, **named: Any) -> torch.Tensor:
    """One step of gradient descent around the compiled forward; gradients and weights stay in the world."""
    w.optimizer.zero_grad()
    loss = w.fn(*inputs, **named)
    loss.backward()
    w.optimizer.step()
    return loss.detach()


def bert_loss(model: nn.Module) -> Callable[..., torch.Tensor]:
    def loss(input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return model(input_ids=input_ids, labels=labels).loss

    return loss


@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["without dropout", "with dropout"])
def test_a_training_step_of_bert(dropout):
    def world():
        torch.manual_seed(0)
        config = bert_config(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        model = hf.BertForMaskedLM(config).train()
        return World(fn=bert_loss(model), model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    def step(seed):
        def run(w):
            torch.manual_seed(seed)
            return training_step(w, tokens(seed, 2, 9), tokens(seed + 50, 2, 9))

        return run

    check(world, [step(1), step(2), step(3)], expect="miss hit hit", observe=gradients)


def test_a_training_step_of_a_convnet_with_batch_norm():
    class ConvNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
            )
            self.head = nn.Linear(16, 5)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(images).flatten(1))

    def world():
        torch.manual_seed(0)
        model = ConvNet().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(images, labels):
            return nn.functional.cross_entropy(model(images), labels)

        return World(fn=loss, model=model, optimizer=optimizer)

    def step(seed):
        return lambda w: training_step(w, rand(seed, 4, 3, 8, 8), tokens(seed, 4) % 5)

    def evaluate(w):
        w.model.eval()
        with torch.no_grad():
            return w.fn(rand(9, 4, 3, 8, 8), tokens(9, 4) % 5)

    check(
        world,
        [step(1), step(2), step(3), evaluate],
        expect="miss hit hit miss",
        observe=lambda w: (gradients(w), dict(w.model.named_buffers())),
    )


def test_the_compiled_module_itself_is_trained():
    def world():
        torch.manual_seed(0)
        model = hf.BertForMaskedLM(bert_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
        return World(fn=model, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    def step(seed):
        def run(w):
            w.optimizer.zero_grad()
            out = w.fn(input_ids=tokens(seed, 2, 9), labels=tokens(seed + 50, 2, 9))
            out.loss.backward()
            w.optimizer.step()
            return out.logits.detach()

        return run

    check(world, [step(1), step(2), step(3)], expect="miss hit hit", observe=gradients)


def gradients(w: World) -> dict[str, torch.Tensor | None]:
    return {name: p.grad for name, p in w.model.named_parameters()}


def test_a_check_of_the_library_with_a_message_about_data():
    """The text of a tensor that nobody reads unless the check fails does not break the graph."""

    def fn(ids):
        count, total = (ids == 3).sum(), ids.numel()
        torch_compilable_check(count * 4 == total, f"{count} of {total} are 3")
        return ids * count

    def quarter(seed: int, count: int = 2) -> Any:
        ids = torch.full((8,), 5)
        ids[torch.randperm(8, generator=torch.Generator().manual_seed(seed))[:count]] = 3
        return lambda w: w.fn(ids)

    calls = [quarter(1), quarter(2), quarter(3, 4), quarter(4), quarter(5, 1), quarter(6)]
    check(lambda: World(fn=fn), calls, expect=None, breaks=[], raises=ValueError)


class Once(logging.Handler):
    """Collects what is emitted."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


def once(level: int) -> Callable[[], World]:
    """A world whose function logs one message once, to a logger of its own."""

    def world() -> World:
        logger: Any = logging.Logger("of a test", level)
        handler = Once()
        logger.addHandler(handler)
        state = World(handler=handler.seen, logger=logger, last=None)

        def fn(x):
            state.last = x.shape[0]  # behind a write
            logger.warning_once("only once")
            return x * 2

        state.fn = fn
        return state

    return world


def at_level(seed: int, level: int) -> Callable[[World], Any]:
    def run(w: World) -> Any:
        w.logger.setLevel(level)
        w.logger._cache.clear()  # as `logging` does for loggers that it has made itself
        return w.fn(rand(seed)), list(w.handler)

    return run


def test_a_message_logged_once_that_nobody_hears():
    calls = [lambda w, s=s: (w.fn(rand(s)), list(w.handler)) for s in range(4)]
    check(once(logging.ERROR), calls, expect="miss hit hit hit", breaks=[])


def test_a_message_logged_once_that_somebody_hears():
    calls = [lambda w, s=s: (w.fn(rand(s)), list(w.handler)) for s in range(4)]
    seen = check(once(logging.WARNING), calls, expect=None)
    assert seen.world.handler == ["only once"]


def test_a_message_that_was_not_heard_is_not_logged_later():
    calls = [at_level(1, logging.ERROR), at_level(2, logging.WARNING), at_level(3, logging.WARNING)]
    seen = check(once(logging.ERROR), calls, expect="miss hit hit", breaks=[])
    assert seen.world.handler == []


def test_a_message_that_is_to_be_logged_again():
    def forget(seed: int) -> Callable[[World], Any]:
        def run(w: World) -> Any:
            w.logger.warning_once.__func__.cache_clear()
            return at_level(seed, logging.WARNING)(w)

        return run

    calls = [at_level(1, logging.ERROR), at_level(2, logging.ERROR), forget(3), at_level(4, logging.WARNING)]
    seen = check(once(logging.ERROR), calls, expect=None)
    assert seen.outcomes[:2] == ["miss", "hit"] and seen.world.handler == ["only once"]
