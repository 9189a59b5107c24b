"""The table of models: every architecture of the zoo, plain and compiled, and what became of it.

    python tests/models/table.py                      run all, print rows and totals
    python tests/models/table.py --models Llama,T5    run some
    python tests/models/table.py --write              run all and write docs/models.md
    python tests/models/table.py --backend native     all ways with another backend than usual
    python tests/models/table.py --list               the names

What is run of a model, and what counts as right, stands in `measuring.py`. The exit status is 0 if no result
was wrong.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
import transformers  # noqa: E402
from measuring import WAYS, Outcome, measure, ways_of  # noqa: E402
from zoo import KINDS, ZOO, Model  # noqa: E402

import stator  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "models.md"
for _part in KINDS:
    importlib.import_module(f"zoo_{_part}")

Row = tuple[Model, list[Outcome]]

NOT_BUILT = {
    "LayoutLMv2, LayoutXLM": "need detectron2",
    "DiNAT": "needs natten",
    "timm's wrapper and backbones": "need timm; the detectors here stand on a ResNet of transformers",
    "xLSTM": "the library's own chunkwise code fails on sizes as small as these, plain too",
    "kernels of GPUs (flash attention, mamba-ssm, quantised layers)": "need a GPU; the models' plain ways stand here",
}


# ---- running ---------------------------------------------------------------------------------------------


def run(names: list[str], ways: list[str], backend: str | None) -> Iterator[Row]:
    """Row by row, with a line of progress for each."""
    start = time.perf_counter()
    for number, name in enumerate(names, 1):
        model = ZOO[name]
        outcomes = []
        for way in ways_of(model):
            if way in ways:
                outcomes.append(survive(model, way, backend))
        spent = time.perf_counter() - start
        print(f"[{number}/{len(names)}] {spent:5.0f} s  {name}: {', '.join(map(in_short, outcomes))}", flush=True)
        yield model, outcomes


def survive(model: Model, way: str, backend: str | None) -> Outcome:
    """What a model raises is a wrong result, and no reason to leave out the others."""
    try:
        return measure(model, way, backend)
    except Exception as error:
        return Outcome(way, wrong=f"{type(error).__name__}: {error}")
    finally:
        stator.reset()


def verdict(outcome: Outcome) -> str:
    return "wrong" if outcome.wrong else "close" if outcome.close else "right"


def in_short(outcome: Outcome) -> str:
    breaks = sum(outcome.breaks.values())
    how = "one graph" if outcome.one_graph else f"{outcome.graphs} graphs, {breaks} breaks, {outcome.plain} plain calls"
    text = f"{outcome.way} {verdict(outcome)}, {how}, {outcome.recordings} recordings of {outcome.calls} calls"
    said = [f"\n    {why[:200]}" for why in (outcome.wrong, *dict.fromkeys(outcome.refused)) if why]
    return text + "".join(said)


# ---- writing ---------------------------------------------------------------------------------------------


def machine() -> str:
    """What it ran on, in general terms."""
    return (
        f"{os.cpu_count()} {platform.machine()} cores, one thread, Python {platform.python_version()}, "
        f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    )


def totals(rows: list[Row]) -> list[str]:
    """Per way: how many are right, wrong, and in one graph."""
    lines = ["| | models | right | of these not bit by bit | wrong | in one graph |", "|---|--:|--:|--:|--:|--:|"]
    for way in WAYS:
        found = [outcome for _, outcomes in rows for outcome in outcomes if outcome.way == way]
        if found:
            right, close = sum(o.right for o in found), sum(o.right and o.close for o in found)
            whole = sum(o.right and o.one_graph for o in found)
            share = f"{whole} ({100 * whole / len(found):.1f} %)"
            lines.append(f"| {way} | {len(found)} | {right} | {close} | {len(found) - right} | {share} |")
    return lines


def numbers(rows: list[Row]) -> str:
    """Models, in whichever of their ways: one that is wrong in one of them is wrong."""
    right = sum(all(o.right for o in outcomes) for _, outcomes in rows)
    whole = sum(all(o.right and o.one_graph for o in outcomes) for _, outcomes in rows)
    return f"models right / wrong / in one graph: {right} / {len(rows) - right} / {whole}"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}"


def table(rows: list[Row]) -> list[str]:
    head = "model | kind | way | result | graphs | breaks | guards | capture, ms | eager, ms | recordings/calls"
    lines = [f"| {head} |", "|---|---|---|---|--:|--:|--:|--:|--:|--:|"]
    for model, outcomes in rows:
        for o in outcomes:
            cells = [model.name, model.kind, o.way, verdict(o), o.graphs, sum(o.breaks.values()), o.guards]
            cells += [milliseconds(o.capture), milliseconds(o.eager), f"{o.recordings}/{o.calls}"]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def breaks(rows: list[Row]) -> list[str]:
    """Each break once per model and place."""
    lines = ["| model | ways | times | reason | place |", "|---|---|--:|---|---|"]
    for model, outcomes in rows:
        times: Counter[tuple[str, str]] = Counter()
        ways: dict[tuple[str, str], list[str]] = {}
        for outcome in outcomes:
            for why, count in outcome.breaks.items():
                key = why.reason.replace("|", "\\|"), why.place.replace("|", "\\|")
                times[key] += count
                ways.setdefault(key, []).append(outcome.way)
        for (reason, place), count in times.items():
            lines.append(f"| {model.name} | {', '.join(ways[reason, place])} | {count} | {reason} | {place} |")
    return lines


ABOUT = """
Generated by `python tests/models/table.py --write` (`make models`); do not edit.

{count} architectures with tiny random configurations ({kinds}), each run plain and compiled side by side.
{machine}.

- forward: five calls: other values, other weights, two other batch sizes; backend `eager`.
- training: three steps, with dropout, gradients and weights compared; backend `aot_eager`.
- generate: greedy decoding with a cache, three prompts, tokens and logits compared; backend `eager`.

A result is *right* if all that a call leaves behind is equal bit by bit, *close* if the values of tensors are equal
within 1e-4: gradients of a model whose graph is cut are added up in another order, and some libraries take another
algorithm when they are compiled. *In one graph*: every watched run was one graph, from the call to its result. Graphs
and breaks are those of all calls, guards and times those of the first.
"""


def page(rows: list[Row]) -> str:
    kinds = Counter(model.kind for model, _ in rows)
    facts = dict(count=len(rows), kinds=", ".join(f"{n} {kind}" for kind, n in kinds.items()), machine=machine())
    wrong = [f"- {m.name}, {o.way}: {o.wrong.splitlines()[0]}" for m, outcomes in rows for o in outcomes if o.wrong]
    not_built = [f"- {name}: {why}" for name, why in NOT_BUILT.items()]
    parts: dict[str, list[str]] = {
        "Totals": [*totals(rows), *([""] if wrong else []), *wrong],
        "Breaks": breaks(rows),
        "All models": table(rows),
        "Not built here": not_built,
    }
    sections = [f"## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in parts.items()]
    return "\n".join(["# Models", ABOUT.format(**facts), *sections])


# ---- asking ----------------------------------------------------------------------------------------------


def chosen(parser: argparse.ArgumentParser, text: str, known: list[str]) -> list[str]:
    """The names in a comma-separated list; names that hold a comma are told by what is known."""
    names, parts = [], text.split(",")
    while parts:
        count = next((n for n in range(len(parts), 0, -1) if ",".join(parts[:n]).strip() in known), 0)
        if count == 0:
            parser.error(f"unknown: {parts[0].strip()!r} (known: {'; '.join(known)})")
        names.append(",".join(parts[:count]).strip())
        parts = parts[count:]
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="comma-separated names (default: all)")
    parser.add_argument("--kinds", help="comma-separated kinds of models (default: all)")
    parser.add_argument("--ways", default=",".join(WAYS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--backend", help="for all ways (default: what `measuring.py` says)")
    parser.add_argument(
        "--write", action="store_true", help=f"write {PAGE.relative_to(PAGE.parents[1])}; of all models only"
    )
    parser.add_argument("--list", action="store_true", help="print the names and kinds, and stop")
    asked = parser.parse_args()
    names = chosen(parser, asked.models, list(ZOO)) if asked.models else list(ZOO)
    if asked.kinds:
        kinds = chosen(parser, asked.kinds, sorted({model.kind for model in ZOO.values()}))
        names = [name for name in names if ZOO[name].kind in kinds]
    if asked.list:
        print("\n".join(f"{name} ({ZOO[name].kind})" for name in names))
        return 0
    ways = chosen(parser, asked.ways, list(WAYS))
    if asked.write and asked.backend:
        parser.error("--write takes the usual backends")
    if asked.write and (len(names) < len(ZOO) or len(ways) < len(WAYS)):
        parser.error("--write takes all models and ways, so that the page is whole")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # the library is large, and stays
    rows = list(run(names, ways, asked.backend))
    print("", *totals(rows), *breaks(rows), sep="\n")
    if asked.write:
        PAGE.write_text(page(rows))
        print(f"\nwrote {PAGE}")
    print(numbers(rows))
    return 1 if any(outcome.wrong for _, outcomes in rows for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
