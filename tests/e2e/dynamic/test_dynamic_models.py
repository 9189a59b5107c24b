"""Models and training steps over batches and lengths in random order: few recordings, and eager's results."""

from __future__ import annotations

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stator

transformers = pytest.importorskip("transformers")
TINY = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def shuffled(seed, *ranges, count=10):
    """Random tuples from the ranges, all different."""
    source = random.Random(seed)
    found: list[tuple[int, ...]] = []
    while len(found) < count:
        one = tuple(source.choice(values) for values in ranges)
        if one not in found:
            found.append(one)
    return found


def tokens(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 60, shape, generator=generator)


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(**TINY, max_position_embeddings=512, attn_implementation="eager")
    return transformers.BertModel(config).eval()


def test_bert_over_batches_and_lengths():
    model = bert()
    compiled = stator.compile(model, backend="eager")
    lengths = [*range(5, 40), 128, 512]
    with torch.no_grad():
        for batch, length in [*shuffled(0, range(2, 20), lengths, count=10), (64, 7), (2, 512)]:
            ids = tokens(batch, length)
            mask = (torch.arange(length) < length - 2).long().expand(batch, length)
            for arguments in ({}, {"attention_mask": mask}):
                found, expected = compiled(ids, **arguments), model(ids, **arguments)
                assert_same(found.last_hidden_state, expected.last_hidden_state)
                assert_same(found.pooler_output, expected.pooler_output)
                assert type(found.last_hidden_state.shape[1]) is int
    assert compiled.stator.recordings <= 6  # three for each way to call it


def test_gpt2_token_by_token():
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "n_positions": 128, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, attn_implementation="eager", bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()

    def step(model, ids, past):
        out = model(ids, past_key_values=past, use_cache=True)
        return out.logits, out.past_key_values

    compiled = stator.compile(step, backend="eager")
    for batch, prompt in ((2, 5), (3, 9)):
        caches = [None, None]
        ids = tokens(batch, prompt)
        for _ in range(8):
            with torch.no_grad():
                expected, caches[0] = step(model, ids, caches[0])
                found, caches[1] = compiled(model, ids, caches[1])
            assert_same(found, expected)
            ids = expected[:, -1:].argmax(-1)
        assert caches[0].get_seq_length() == caches[1].get_seq_length() == prompt + 7
        assert type(caches[1].get_seq_length()) is int
    assert compiled.stator.recordings <= 6  # prompts, and tokens behind them: three each


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 8, 3, stride=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(x, 2)
        x = F.adaptive_avg_pool2d(F.relu(self.second(x)), 1)
        return self.head(x.flatten(1))


def convnet():
    torch.manual_seed(0)
    return ConvNet()


@pytest.mark.parametrize("training", [False, True])
def test_a_convnet_over_batches_and_resolutions(training):
    model = convnet().train(training)
    twin = copy.deepcopy(model)
    compiled = stator.compile(model, backend="eager")
    with torch.no_grad():
        for batch, height, width in shuffled(1, range(2, 12), range(12, 30), range(12, 30)):
            x = torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(batch))
            assert_same(compiled(x), twin(x))
    assert_same(model.state_dict(), twin.state_dict())
    assert compiled.stator.recordings <= 3


def train(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_training_step_over_batches(backend):
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    plain, compiled = make(), make()
    step = stator.compile(train, backend=backend)
    for number, (batch,) in enumerate(shuffled(2, range(2, 64))):
        x = torch.randn(batch, 6, generator=torch.Generator().manual_seed(batch))
        y = torch.arange(batch) % 3
        for optimizer in (plain[1], compiled[1]):
            optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        expected, found = train(*plain, x, y), step(*compiled, x, y)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(compiled[0].state_dict(), plain[0].state_dict())
        assert type(compiled[1].param_groups[0]["lr"]) is float
    assert step.stator.recordings <= 5  # the first step makes the momenta


def test_forward_and_backward_over_batches():
    model = convnet().train()
    twin = copy.deepcopy(model)
    compiled = stator.compile(model, backend="aot_eager")
    for batch, size in shuffled(3, range(2, 12), range(12, 24), count=6):
        x = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(batch))
        for each, run in ((twin, twin), (model, compiled)):
            each.zero_grad()
            run(x).pow(2).mean().backward()
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    assert compiled.stator.recordings <= 3


def test_attention_with_masks_made_inside():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.out, self.calls = nn.Linear(8, 24), nn.Linear(8, 8), 0

        def forward(self, x):
            self.calls += 1
            batch, length, width = x.shape
            q, k, v = (t.view(batch, length, 2, width // 2).transpose(1, 2) for t in self.mix(x).chunk(3, -1))
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            scores = (q @ k.transpose(-2, -1) / (width // 2) ** 0.5).masked_fill(~mask, float("-inf"))
            y = scores.softmax(-1) @ v
            return self.out(y.transpose(1, 2).reshape(batch, length, width)) * (1 / self.calls)

    torch.manual_seed(0)
    model = Attention()
    twin = copy.deepcopy(model)
    compiled = stator.compile(model, backend="eager")
    for batch, length in shuffled(4, range(2, 9), range(5, 60), count=12):
        x = torch.randn(batch, length, 8, generator=torch.Generator().manual_seed(length))
        assert_same(compiled(x), twin(x))
        assert model.calls == twin.calls and type(model.calls) is int
    assert compiled.stator.recordings <= 3


def test_a_recurrent_loop_is_a_recording_for_each_length():
    cell = nn.GRUCell(4, 6)

    def fn(xs):
        h = xs.new_zeros(xs.shape[1], 6)
        for x in xs:
            h = cell(x, h)
        return h

    compiled = stator.compile(fn, backend="eager")
    for length, batch in [(3, 2), (3, 4), (3, 7), (5, 2), (5, 9), (3, 5)]:
        xs = torch.randn(length, batch, 4, generator=torch.Generator().manual_seed(batch))
        assert_same(compiled(xs), fn(xs))
    assert compiled.stator.recordings <= 4
