"""Is this installation whole? `scripts/wheel-check` runs this beside an installed wheel, without pytest and sources."""

from __future__ import annotations

from pathlib import Path

import torch

import stator


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + torch.nn.functional.gelu(self.inner(x))).softmax(-1)


def step(module: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    out = module(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def check(backend: str) -> None:
    torch.manual_seed(0)
    model = Model()
    fast = stator.compile(model, backend=backend)
    for rows in (4, 4, 4, 6):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(step(fast, x), step(model, x))
    seen = fast.stator
    assert seen.hits >= 2 and not seen.break_reasons and seen.plain == 0, (seen.hits, seen.break_reasons, seen.plain)
    print(f"{backend}: {seen.recordings} recordings, {seen.hits} replays, equal to eager")


if __name__ == "__main__":
    here = Path(stator.__file__).parent
    assert "site-packages" in here.parts, here
    for backend in ("eager", "aot_eager", "native"):
        check(backend)
    explanation = stator.explain(Model())(torch.randn(4, 8))
    assert "1 graph with 0 graph breaks" in str(explanation)
    explanation.save_html("report.html")
    assert "<script" in Path("report.html").read_text()  # the page's parts are data files of the wheel
    assert (here / "py.typed").exists() and (here / "_native.pyi").exists() and not list(here.rglob("*.[ch]"))
