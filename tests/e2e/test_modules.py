"""`nn.Module` trees: parameters and buffers are inputs, everything else about a module is guarded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from harness import World, check, rand
from torch import nn

import stator


def seeded(make):
    """A factory of worlds around one module, always with the same weights."""

    def world():
        torch.manual_seed(7)
        model = make()
        return World(fn=model, model=model)

    return world


def call(seed, *shape, before=None):
    def run(w):
        if before is not None:
            before(w.model)
        return w.fn(rand(seed, *(shape or (2, 4))))

    return run


def check_module(make, *more, expect="miss hit hit"):
    return check(seeded(make), [call(1), call(2), *(more or [call(3)])], expect=expect)


def test_sequential():
    check_module(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))


def test_a_module_with_its_own_forward():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4, bias=False)
            self.scale = 0.5

        def forward(self, x):
            return x + self.down(F.gelu(self.up(self.norm(x)))) * self.scale

    check_module(Block)


def test_module_list():
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            for i, layer in enumerate(self.layers):
                x = layer(x) * (i + 1)
            return x + self.layers[-1](x), len(self.layers)

    grow = call(3, before=lambda m: m.layers.append(nn.Linear(4, 4)))
    check_module(Stack, grow, call(4), expect="miss hit miss hit")


def test_module_dict():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})

        def forward(self, x):
            return {name: head(x) for name, head in self.heads.items()} | {"again": self.heads["a"](x)}

    add = call(3, before=lambda m: m.heads.update({"c": nn.Identity()}))
    check_module(Heads, add, expect="miss hit miss")


def test_parameter_list_and_parameter_dict():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(4) * i) for i in range(3)])
            self.named = nn.ParameterDict({"bias": nn.Parameter(torch.ones(4))})

        def forward(self, x):
            return sum(x * s for s in self.scales) + self.named["bias"] + self.scales[1]

    check_module(Mixture)


def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens))

    def step(w, seed):
        tokens = torch.randint(0, 10, (2, 3), generator=torch.Generator().manual_seed(seed))
        w.model.zero_grad()
        w.fn(tokens).sum().backward()

    check(seeded(Tied), [lambda w, s=s: step(w, s) for s in (1, 2, 3)], expect="miss hit hit")


def test_untying_weights_is_noticed():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight

        def forward(self, x):
            self.a.weight.data.mul_(2)
            return self.b(self.a(x))

    def untie(model):
        model.b.weight = nn.Parameter(torch.ones(4, 4))

    check(seeded(Pair), [call(1), call(2), call(3, before=untie)], expect=None)


def test_forward_hooks_and_pre_hooks():
    def double_input(module, args):
        return (args[0] * 2,)

    def add_bias(module, args, output):
        module.last = output
        return output + module.bias

    def make():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[0].register_forward_pre_hook(double_input)
        model[1].register_forward_hook(add_bias)
        model[1].last = None
        return model

    check_module(make)


def test_hooks_added_and_removed_are_noticed():
    handles = []

    def add(model):
        handles.append(model[0].register_forward_hook(lambda module, args, output: output * 3))

    def remove(_):
        handles.pop().remove()

    check_module(
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        call(3, before=add),
        call(4, before=remove),
        expect="miss hit miss hit",
    )


def test_hooks_with_keyword_arguments():
    class Scale(nn.Module):
        def forward(self, x, *, by=1.0):
            return x * by

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = Scale()
            self.scale.register_forward_pre_hook(lambda m, a, k: (a, {"by": k["by"] + 1}), with_kwargs=True)
            self.scale.register_forward_hook(lambda m, a, k, out: out + k["by"], with_kwargs=True)

        def forward(self, x):
            return self.scale(x, by=2.0)

    check_module(Outer)


def test_a_hook_that_collects_outputs():
    def make():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        model.seen = []
        model[0].register_forward_hook(lambda module, args, output: model.seen.append(output))
        return model

    def emptied(seed):
        return call(seed, before=lambda m: m.seen.clear())

    check(seeded(make), [emptied(1), emptied(2), emptied(3)], expect="miss hit hit")


def test_batch_norm_updates_its_buffers_in_training():
    check(
        seeded(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())),
        [call(s, 2, 2, 5, 5) for s in (1, 2, 3)],
        expect="miss hit hit",
    )


def test_the_training_flag_flips():
    check(
        seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))),
        [
            call(1),
            call(2, before=lambda m: m.eval()),
            call(3, before=lambda m: m.train()),
            call(4, before=lambda m: m.eval()),
            call(5, before=lambda m: m[2].train()),
        ],
        expect="miss miss hit hit miss",
    )


def test_a_buffer_is_replaced_in_forward():
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, x):
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            self.steps += 1
            return x - self.mean

    check_module(Running)


def test_attributes_written_in_forward():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.last_input = self.activations = None
            self.shapes = {"x": None}

        def forward(self, x):
            self.last_input = x
            self.shapes["x"] = x.shape
            self.activations = [self.linear(x), x * 2]
            return self.activations[0] + 1

    check_module(Keeps, call(3, before=lambda m: setattr(m, "last_input", None)), expect="miss hit hit")


def test_a_counter_in_forward_is_right():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    reset = call(4, before=lambda m: setattr(m, "calls", 0))
    check_module(Counts, call(3), reset, expect="miss miss hit hit")


def test_weights_changed_between_calls_are_used():
    def train(model):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)

    def replace(model):
        model.weight = nn.Parameter(torch.ones(4, 4))

    check_module(lambda: nn.Linear(4, 4), call(3, before=train), call(4, before=replace), expect="miss hit hit hit")


def test_loading_a_state_dict():
    def load(model):
        model.load_state_dict({"weight": torch.ones(4, 4), "bias": torch.zeros(4)})

    check_module(lambda: nn.Linear(4, 4), call(3, before=load), expect="miss hit hit")


def test_freezing_a_parameter_is_noticed():
    check_module(
        lambda: nn.Linear(4, 4),
        call(3, before=lambda m: m.weight.requires_grad_(False)),
        call(4),
        expect="miss hit miss hit",
    )


def test_a_module_is_replaced():
    check_module(
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        call(3, before=lambda m: m.__setitem__(1, nn.Tanh())),
        call(4),
        expect="miss hit miss hit",
    )


def test_an_attribute_of_a_submodule_is_changed():
    check_module(
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.1)),
        call(3, before=lambda m: setattr(m[1], "negative_slope", 0.5)),
        call(4),
        expect="miss hit miss hit",
    )


def test_a_forward_that_is_replaced_on_the_object():
    def replace(model):
        model[1].forward = lambda x: x - 5

    check_module(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), call(3, before=replace), expect="miss hit miss")


def test_walking_the_tree_of_modules():
    class Penalty(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

        def forward(self, x):
            penalty = sum(p.square().sum() for p in self.parameters())
            names = [name for name, _ in self.named_modules()]
            return self.body(x).sum() + penalty, names, {k: v.shape for k, v in self.state_dict().items()}

    check_module(Penalty)


def test_a_function_around_a_module():
    def world():
        torch.manual_seed(7)
        model = nn.Linear(4, 4)

        def loss(x, y):
            return F.mse_loss(model(x), y)

        return World(fn=loss, model=model)

    def step(w, seed):
        w.model.zero_grad()
        loss = w.fn(rand(seed, 2, 4), rand(seed + 1, 2, 4))
        loss.backward()
        with torch.no_grad():
            for p in w.model.parameters():
                p.sub_(p.grad, alpha=0.1)
        return loss.detach()

    check(world, [lambda w, s=s: step(w, s) for s in (1, 3, 5)], expect="miss hit hit")


def test_attention_and_embedding_layers():
    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 8, padding_idx=0)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.register_buffer("mask", torch.ones(3, 3).triu(1).bool(), persistent=False)

        def forward(self, tokens):
            x = self.embed(tokens)
            out, weights = self.attention(x, x, x, attn_mask=self.mask)
            return out, weights

    def tokens(seed):
        return lambda w: w.fn(torch.randint(0, 10, (2, 3), generator=torch.Generator().manual_seed(seed)))

    check(seeded(Tiny), [tokens(1), tokens(2), tokens(3)], expect="miss hit hit")


def test_transformer_encoder_takes_the_same_path_as_plain():
    def make():
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()

    def inference(seed):
        def run(w):
            with torch.no_grad():
                return w.fn(rand(seed, 2, 3, 8))

        return run

    check(seeded(make), [inference(1), inference(2), inference(3)], expect="miss hit hit")
    check(seeded(make), [call(s, 2, 3, 8) for s in (1, 2, 3)], expect="miss hit hit")


def test_a_compiled_module_is_still_the_module():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    fast = stator.compile(model, backend="eager")
    assert isinstance(fast, nn.Sequential)
    assert list(fast.state_dict()) == list(model.state_dict())
    assert [id(p) for p in fast.parameters()] == [id(p) for p in model.parameters()]
    fast.eval()
    assert not model.training
    assert torch.equal(fast(rand(1, 2, 4)), model(rand(1, 2, 4)))
    assert len(fast) == 2
    assert fast[0] is model[0]
