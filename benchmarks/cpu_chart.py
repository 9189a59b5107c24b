"""The picture of `benchmarks/cpu.py`: how much faster than eager and torch.compile every row is, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Any

Row = dict[str, Any]

WIDTH, LEFT, RIGHT, STEP = 980, 330, 90, 22
LOW, HIGH = 0.25, 16.0  # of the scale, which is logarithmic
TICKS = (0.25, 0.5, 1, 2, 4, 8, 16)
TITLES = {
    "cold": "first call, empty caches",
    "kernels": "kernels",
    "block": "one small block",
    "inference": "inference",
    "training": "training step with AdamW",
}
STYLE = """
    .ground { fill: #f7f8fa; stroke: #d5dae1 } .grid { stroke: #d5dae1 } .one { stroke: #57606a; stroke-width: 1.6 }
    .t { fill: #1b1f24; font-size: 12px } .h { fill: #1b1f24; font-size: 14px; font-weight: 600 }
    .s { fill: #57606a; font-size: 11px } .torch { fill: #1f8f6d } .eager { fill: #3f6fd1 }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #14181e; stroke: #333b46 } .grid { stroke: #333b46 } .one { stroke: #a3adb9 }
      .t, .h { fill: #e8ecf1 } .s { fill: #a3adb9 } .torch { fill: #45c39b } .eager { fill: #6f9bf0 }
    }"""


def across(ratio: float) -> float:
    """Where a ratio lies on the scale."""
    share = math.log(min(max(ratio, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def text(x: float, y: float, words: str, kind: str = "t", anchor: str = "start") -> str:
    return f'  <text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def bar(y: float, ratio: float, kind: str) -> str:
    low, high = sorted((across(1), across(ratio)))
    return f'  <rect class="{kind}" x="{low:.1f}" y="{y:.1f}" width="{max(high - low, 1):.1f}" height="7" rx="1.5"/>'


def title_of(row: Row) -> str:
    threads = row.get("threads")
    return f"{row['title']}{f', {threads} thread' + 's' * (threads > 1) if threads else ''}"


def drawn_rows(rows: list[Row], y: float) -> Iterator[tuple[float, str]]:
    for row in rows:
        yield y, text(LEFT - 10, y + 11, title_of(row), anchor="end")
        sides = [side for side in ("torch", "eager") if row.get(side)]
        for place, side in enumerate(sides):
            yield y, bar(y + 1 + 8 * place, row[side] / row["stator"], side)
        ratios = " ".join(f"{row[side] / row['stator']:.2f}" for side in sides)
        yield y, text(WIDTH - RIGHT + 10, y + 11, ratios, "s")
        y += STEP


def draw(rows: list[Row], machine: str) -> str:
    """All rows that compare times, group by group."""
    lines, y = [], 92.0
    for group, heading in TITLES.items():
        chosen = [row for row in rows if row.get("group") == group]
        if not chosen:
            continue
        lines.append(text(16, y + 12, heading, "h"))
        y += STEP
        lines += [line for _, line in drawn_rows(chosen, y)]
        y += STEP * len(chosen) + 10
    height = y + 20
    grid = [
        f'  <line class="{"one" if tick == 1 else "grid"}" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="80" '
        f'y2="{height - 16:.1f}"/>\n{text(across(tick), 74, f"{tick:g} x", "s", "middle")}'
        for tick in TICKS
    ]
    legend = [
        text(16, 28, "Speed of stator's native backend on CPU: above 1, stator is faster", "h"),
        text(16, 48, machine, "s"),
        f'  <rect class="torch" x="{WIDTH - 330}" y="20" width="14" height="8"/>',
        text(WIDTH - 310, 28, "against torch.compile", "s"),
        f'  <rect class="eager" x="{WIDTH - 170}" y="20" width="14" height="8"/>',
        text(WIDTH - 150, 28, "against eager", "s"),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-labelledby="title" '
        "font-family=\"-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\">\n"
        '  <title id="title">Speed of the native backend on CPU against eager and torch.compile</title>\n'
        f"  <style>{STYLE}\n  </style>\n"
        f'  <rect class="ground" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="12"/>'
    )
    return "\n".join([head, *grid, *legend, *lines, "</svg>", ""])
