"""Compile one part of a model: the encoder is compiled, the decoder runs as plain Python.

    python examples/regional_compile.py

Three ways: a submodule replaced by its compiled form, a submodule compiled in place (`stator.compile_`), and a function
kept out of the graph (`stator.disable`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import stator


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(x)
        self.largest = result.max().item()  # Python that nobody needs to compile
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder: nn.Module = Encoder()
        self.decoder = Decoder()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.decoder(self.encoder(x))
        return result


def plain_part(x: Tensor) -> Tensor:
    return x.flip(0)


kept_out = stator.disable(plain_part, reason="its own business")


def with_plain_part(x: Tensor) -> Tensor:
    flipped: Tensor = kept_out(x * 2)
    return flipped + 1


def main() -> None:
    inputs = [torch.randn(2, 16) for _ in range(3)]
    plain = Model()
    expected = [plain(x) for x in inputs]

    model = Model()
    model.encoder = encoder = stator.compile(model.encoder, backend="eager")
    same = all(torch.equal(model(x), wanted) for x, wanted in zip(inputs, expected, strict=True))
    print(f"encoder compiled: equal {same}, {len(encoder.stator.graphs)} graph, {encoder.stator.hits} replays")
    print(f"  same parameters: {list(model.state_dict()) == list(plain.state_dict())}")

    model = Model()
    stator.compile_(model.encoder, backend="eager")
    same = all(torch.equal(model(x), wanted) for x, wanted in zip(inputs, expected, strict=True))
    print(f"encoder compiled in place: equal {same}")

    whole = stator.explain(Model())(inputs[0])
    print(f"the whole model, for comparison: graphs {whole.graph_count}, breaks {whole.graph_break_count}: "
          f"{whole.break_reasons[0].reason}")  # fmt: skip

    around = stator.explain(with_plain_part)(inputs[0])
    print(f"a function kept out with stator.disable: graphs {around.graph_count}, "
          f"{around.break_reasons[0].reason}")  # fmt: skip


if __name__ == "__main__":
    main()
