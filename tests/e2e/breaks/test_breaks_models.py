"""Programs as people write them: post-processing of detections, and a mixture of experts that routes by data."""

from __future__ import annotations

import torch
import transformers as hf
from harness import World, check, rand
from torch import nn

import stator


def box_iou(a, b):
    top_left = torch.maximum(a[:, None, :2], b[None, :, :2])
    bottom_right = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    size = (bottom_right - top_left).clamp(min=0)
    overlap = size[..., 0] * size[..., 1]
    area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    return overlap / (area_a[:, None] + area_b[None, :] - overlap)


def suppress(boxes, scores, threshold):
    """Non-maximum suppression as a Python loop."""
    kept = []
    order = scores.argsort(descending=True)
    while order.numel() > 0:
        best = order[0].item()
        kept.append(best)
        if order.numel() == 1:
            break
        rest = order[1:]
        overlap = box_iou(boxes[best : best + 1], boxes[rest])[0]
        order = rest[overlap <= threshold]
    return kept


class Detector(nn.Module):
    """A head that gives boxes and scores, and the post-processing of its output."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.boxes, self.scores = nn.Linear(16, 4), nn.Linear(16, 3)
        self.history = []

    def forward(self, images, threshold=0.3):
        features = self.body(images)
        corners = self.boxes(features)
        boxes = torch.cat([corners[..., :2], corners[..., :2] + corners[..., 2:].abs() + 0.1], dim=-1)
        scores = self.scores(features).softmax(-1)
        return [self.process(b, s, threshold) for b, s in zip(boxes, scores, strict=True)]

    def process(self, boxes, scores, threshold):
        detections = []
        for label in range(1, scores.shape[1]):
            keep = torch.nonzero(scores[:, label] > threshold).flatten()
            if keep.numel() == 0:
                continue
            for index in suppress(boxes[keep], scores[keep, label], 0.5):
                score = scores[keep[index], label].item()
                detections.append({"label": label, "score": round(score, 4), "box": boxes[keep[index]]})
        detections.sort(key=lambda d: d["score"], reverse=True)
        self.history.append(len(detections))
        return detections[:5]


def test_post_processing_of_detections():
    def world():
        torch.manual_seed(0)
        model = Detector().eval()
        return World(fn=model, model=model)

    steps = [lambda w, seed=seed: w.fn(rand(seed, 2, 6, 8)) for seed in (1, 2, 3, 1, 2, 3)]
    with torch.no_grad(), stator.options.patch(cache_size_limit=64):  # every number of boxes is a recording of its own
        seen = check(world, steps, expect=None)
    assert {"tensor-item", "dynamic-shape-op"} & {why.id for why in seen.world.fn.stator.break_reasons}
    assert sum(seen.world.model.history) > 0
    assert len(seen.graphs) > 0


def test_the_body_of_a_detector_stays_one_graph():
    """Everything before the first `nonzero` is in the first graph."""

    def world():
        torch.manual_seed(0)
        model = Detector().eval()
        return World(fn=model, model=model)

    with torch.no_grad(), stator.options.patch(cache_size_limit=64):
        seen = check(
            world,
            [lambda w, s=s: w.fn(rand(s, 1, 6, 8)) for s in range(3)],
            expect=None,
            unreplayed=["dynamic-shape-op", "tensor-item"],
        )
    assert sum(node.op == "call_function" for node in seen.graphs[0].graph.nodes) >= 8


def mixtral_config():
    return hf.MixtralConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=32,
    )


def tokens(seed, *shape):
    return torch.randint(3, 100, shape, generator=torch.Generator().manual_seed(seed))


def test_mixtral():
    def world():
        torch.manual_seed(0)
        model = hf.MixtralForCausalLM(mixtral_config()).eval()
        return World(fn=model, model=model)

    steps = [lambda w, seed=seed: w.fn(input_ids=tokens(seed, 2, 7)).logits for seed in (1, 2, 3, 1, 2)]
    with torch.no_grad():
        seen = check(world, steps, expect=None)
    assert len(seen.graphs) > 0


def test_mixtral_trains():
    def world():
        torch.manual_seed(0)
        model = hf.MixtralForCausalLM(mixtral_config()).train()
        return World(fn=model, model=model)

    def step(w, seed):
        w.model.zero_grad()
        ids = tokens(seed, 2, 7)
        loss = w.fn(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss

    steps = [lambda w, seed=seed: step(w, seed) for seed in (1, 2, 3)]
    check(world, steps, expect=None)


def test_greedy_decoding():
    """A loop that stops when the model says so."""

    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(16, 8), nn.Linear(8, 16)

        def forward(self, ids):
            return self.out(self.embed(ids).mean(1))

    def decode(model, ids, end=3, limit=6):
        words = []
        for _ in range(limit):
            word = model(ids).argmax(-1)
            ids = torch.cat([ids, word[:, None]], dim=1)
            words.append(word.tolist())
            if (word == end).all():
                break
        return ids, words

    def world():
        torch.manual_seed(1)
        model = Tiny().eval()
        return World(fn=decode, model=model)

    steps = [lambda w, seed=seed: w.fn(w.model, tokens(seed, 2, 3) % 16) for seed in range(4)]
    with torch.no_grad():
        check(world, steps, expect=None)
