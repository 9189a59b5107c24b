"""The page: what it holds, that texts of programs stay texts, and that it works in a browser."""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Browser
from torch import nn

import stator
from stator.recording import Fact
from stator.replay.guard_facts import FACTS
from stator.report.page import embedded, render

needs_browser = pytest.mark.browser
EVIL = "</script><img src=x onerror=window.hacked=1>"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 4)

    def forward(self, x: Any, n: int) -> Any:
        y = torch.relu(self.up(x))
        print("in between")
        for _ in range(n):
            y = y * n
        return self.down(y).sum()


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture
def net_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    explanation = stator.explain(Net())(torch.randn(3, 8), 2)
    explanation = explanation.again(torch.randn(3, 8), 3)
    explanation = explanation.again(torch.randn(3, 8), 3)
    assert capsys.readouterr().out == "in between\n" * 3
    return Path(explanation.save_html(tmp_path / "report.html"))


# ----------------------------------------------------------------------------------------------------- contents


def test_what_the_page_holds(net_page: Path) -> None:
    data = data_of(net_page)
    assert data["title"] == "Net"
    before, *after = data["recordings"]
    assert before["ops"] == 2 and [recording["name"] for recording in after] == ["Net"] * len(after)
    (why,) = data["breaks"]
    place = (data["files"][why["at"][0]], why["at"][1])
    assert (why["id"], *place) == ("call-print", __file__, line_of('print("in' + ' between")'))
    assert why["line"][slice(*why["columns"])] == 'print("in between")'
    assert before["break"] == 0


def test_operations_stand_at_the_lines_of_the_program(net_page: Path) -> None:
    data = data_of(net_page)
    source = next(source for source in data["sources"] if data["files"][source["file"]] == __file__)
    marked = {int(line): mark for line, mark in source["marks"].items()}
    relu = marked[line_of("torch.relu(self.up(x))")]["graph"]
    names = {data["recordings"][recording]["nodes"][node]["name"] for recording, node in relu}
    assert {"linear", "y"} <= names
    assert marked[line_of("y = y *" + " n")]["graph"]
    assert marked[line_of('print("in' + ' between")')]["break"] == [0]
    texts = {start + i: line for start, lines in source["chunks"] for i, line in enumerate(lines)}
    assert all("torch.relu(self.up(x))" in texts[line] for line in marked if line == line_of("torch.relu(self.up(x))"))


def test_guards_come_with_origin_and_line(net_page: Path) -> None:
    data = data_of(net_page)
    told = {
        data["forms"][form].replace("\0", data["origins"][origin]): (data["kinds"][kind], data["origins"][origin])
        for kind, form, origin, *_ in data["recordings"][0]["guards"]
    }
    assert told["args[0]: Tensor torch.float32 [3, 8] stride [8, 1] cpu"] == ("tensors", "args[0]")
    assert told["torch's grad mode == True"][0] == "torch's state"
    assert told["args[1] == 2"] == ("values", "args[1]")


def test_every_guard_is_of_some_kind() -> None:
    assert set(FACTS) == set(Fact)


def test_recompilations_say_why(net_page: Path) -> None:
    (miss,) = data_of(net_page)["misses"]
    assert (miss["guard"], miss["expected"], miss["found"]) == ("n", "2", "3")
    assert miss["place"] == f"{__file__}:{line_of('for _ in range(n' + '):')}"


def test_specialised_numbers_are_marked(net_page: Path) -> None:
    data = data_of(net_page)
    source = next(source for source in data["sources"] if data["files"][source["file"]] == __file__)
    loop = source["marks"][str(line_of("for _ in range(n" + "):"))]
    assert [what for _, what in loop["specialised"]] == ["n can only be 3"]


def test_what_is_kept_for_the_backward(net_page: Path) -> None:
    data = data_of(net_page)
    derived = [it for it in data["derived"] if it["backward"]]
    assert [it["recording"] for it in derived] == list(range(len(data["recordings"])))
    first = derived[0]
    kept = {value["what"]: value for value in first["kept"]}
    assert kept["float32[3, 8]"]["bytes"] == 96 and kept["float32[3, 8]"]["made"] == 0
    for value in first["kept"]:
        assert 0 <= value["made"] <= first["operations"][0] and 0 < value["freed"] <= first["operations"][1]
    assert "def forward" in first["forward"] and "def forward" in first["backward"]


def test_a_page_about_nothing(tmp_path: Path) -> None:
    path = Path(stator.explain(len)([1]).save_html(tmp_path / "empty.html"))
    assert data_of(path)["recordings"] == []


def test_without_gradients_nothing_is_kept(tmp_path: Path) -> None:
    path = Path(stator.explain(lambda x: x.sin())(torch.ones(2)).save_html(tmp_path / "page.html"))
    assert data_of(path)["derived"] == []


def test_an_explanation_of_no_call_cannot_be_asked_again() -> None:
    with pytest.raises(ValueError, match="comes from no call"):
        stator.explain(lambda x: x.sin())(torch.ones(2)).__class__(graphs=[]).again()


# ----------------------------------------------------------------------------------------------------- escaping


@pytest.fixture
def evil_page(tmp_path: Path) -> Iterator[Path]:
    """A program whose file, names and texts try to get out of where they stand."""
    name = f"/tmp/{EVIL}.py"
    text = (
        f"def run(x, names):\n    y = x + names[{EVIL!r}]  # {EVIL} \u2028 ]]> <!-- <script>\n"
        f"    graph_break({EVIL!r})\n    return y.sin() * names[{EVIL!r}]\n"
    )
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    space: dict[str, Any] = {"graph_break": stator.graph_break}
    exec(compile(text, name, "exec"), space)
    run = space["run"]
    run.__qualname__ = run.__name__ = EVIL
    explanation = stator.explain(run)(torch.ones(3, requires_grad=True), {EVIL: 2})
    explanation = explanation.again(torch.ones(3, requires_grad=True), {EVIL: 3})
    yield Path(explanation.save_html(tmp_path / "evil.html"))
    del linecache.cache[name]


def test_texts_of_programs_stay_texts(evil_page: Path) -> None:
    data, raw = data_of(evil_page), evil_page.read_text()
    assert raw.lower().count("</script") == 2 and raw.count("<script") == 2
    assert "<img" not in raw and "<!--" not in raw
    assert data["title"] == EVIL and f"/tmp/{EVIL}.py" in data["files"]
    assert EVIL in data["breaks"][0]["reason"] and any(EVIL in origin for origin in data["origins"])


def test_a_parser_of_html_finds_our_own_elements_alone(evil_page: Path) -> None:
    """As a browser reads it: what is in a script ends at the first end tag, whatever the script means."""

    class Elements(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[tuple[str, dict[str, str | None]]] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found.append((tag, dict(attrs)))

    parser, plain = Elements(), Elements()
    parser.feed(evil_page.read_text())
    plain.feed(render({"title": "plain"}))
    assert parser.found == plain.found
    assert [attributes.get("id") for tag, attributes in parser.found if tag == "script"].count("data") == 1
    assert not any(name.startswith("on") for _, attributes in parser.found for name in attributes)


def test_embedded_json_is_the_data() -> None:
    data = {"a": [EVIL, "\u2028\ud800&amp;", None, 1.5]}
    assert json.loads(embedded(data)) == data
    assert not set("<>&") & set(embedded(data))


def test_what_is_put_in_is_not_looked_at_again() -> None:
    text = render({"title": "{{script}}{{data}}"})
    assert "<title>{{script}}{{data}} · stator</title>" in text
    assert json.loads(text.split('id="data">')[1].split("</script>")[0]) == {"title": "{{script}}{{data}}"}


# -------------------------------------------------------------------------------------------------- in a browser

PARTS = "overview timeline source graphs guards replays code recompilations memory".split()


@needs_browser
def test_every_part_opens_by_a_click(net_page: Path, tmp_path: Path) -> None:
    with Browser() as browser:
        browser.open(net_page)
        for number, part in enumerate(PARTS):
            browser.click("nav a", number)
            browser.wait_for(part)
            assert len(browser.text()) > 40
            assert "No graph" not in browser.text()
        browser.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
        assert browser.complaints == []


@needs_browser
def test_a_click_counts_although_the_page_is_drawn_anew_during_it(net_page: Path) -> None:
    with Browser() as browser:
        browser.open(net_page)
        at = browser.middle("nav a", PARTS.index("timeline"))
        browser.mouse("mousePressed", at)
        browser.evaluate("location.hash = 'guards'")
        browser.wait_for("guards")
        browser.mouse("mouseReleased", at)
        browser.wait_for("timeline")


@needs_browser
def test_what_a_reader_sees(net_page: Path) -> None:
    with Browser() as browser:
        browser.open(net_page)
        assert "call to print (side effect)" in browser.text() and "What to do" in browser.text()
        browser.click(".card a")  # the place of the break
        browser.wait("!!document.querySelector('.row.at')")
        assert 'print("in between")' in browser.text(".row.at")
        assert "graph break: call to print" in browser.text(".row.at + .note")
        browser.click("button.gutter")
        browser.wait("!!document.querySelector('.note.ops a')")
        browser.click(".note.ops a")
        browser.wait("!!document.querySelector('.node.on')")
        assert browser.evaluate("document.querySelectorAll('.flow path.into, .flow path.out').length") > 0
        browser.click("nav a", PARTS.index("timeline"))
        browser.wait_for("timeline")
        browser.click(".span")
        assert browser.text("[role=status]").startswith("watch, ")
        browser.click("nav a", PARTS.index("recompilations"))
        browser.wait("document.querySelector('main').innerText.includes('n\\t2\\t3')")
        browser.click("nav a", PARTS.index("memory"))
        browser.wait("!!document.querySelector('.chart svg .edge')")
        assert "kept" in browser.text() and "float32[3, 8]" in browser.text()
        assert browser.complaints == []


@needs_browser
def test_guards_are_chosen_by_kind_and_graphs_by_number(net_page: Path) -> None:
    with Browser() as browser:
        browser.open(net_page, "guards")
        browser.wait("document.querySelectorAll('.guard').length > 20")
        browser.evaluate(
            "[...document.querySelectorAll('.chip')].find((c) => c.innerText.startsWith('tensors')).click()"
        )
        browser.wait("document.querySelectorAll('.guard').length === 3")  # rows are drawn once they are in sight
        assert browser.evaluate("[...document.querySelectorAll('.kind')].every((k) => k.innerText === 'tensors')")
        browser.open(net_page, "graphs/1")
        browser.wait("document.querySelector('main select').selectedOptions[0].innerText.startsWith('2. Net')")
        before = browser.evaluate("document.querySelectorAll('.node').length")
        browser.click("#inputs")
        browser.wait(f"document.querySelectorAll('.node').length > {before}")


@needs_browser
def test_search_finds_in_all_parts(net_page: Path) -> None:
    with Browser() as browser:
        browser.open(net_page, "guards")
        browser.type("#search", "relu")
        browser.wait("document.querySelectorAll('nav .found').length >= 3")
        marks = "[...document.querySelectorAll('main mark')].every((m) => m.innerText.toLowerCase() === 'relu')"
        assert browser.evaluate(marks)
        browser.click("nav a", PARTS.index("graphs"))
        browser.wait("document.querySelectorAll('.node').length === 1")
        browser.evaluate("document.querySelector('#search').focus()")
        for kind in ("keyDown", "keyUp"):
            browser.send("Input.dispatchKeyEvent", type=kind, key="Escape", code="Escape", windowsVirtualKeyCode=27)
        browser.wait("document.querySelectorAll('.node').length > 1")


@needs_browser
def test_light_and_dark(net_page: Path) -> None:
    background = "getComputedStyle(document.documentElement).backgroundColor"
    with Browser() as browser:
        for scheme in ("light", "dark"):
            browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            browser.open(net_page)
            browser.wait(f"document.documentElement.dataset.theme === '{scheme}'")
        dark = browser.evaluate(background)
        browser.click("#theme")
        browser.wait("document.documentElement.dataset.theme === 'light'")
        assert browser.evaluate(background) != dark


@needs_browser
def test_hostile_texts_do_nothing(evil_page: Path) -> None:
    with Browser() as browser:
        browser.open(evil_page)
        for number in range(len(PARTS)):
            browser.click("nav a", number)
            browser.wait_for(PARTS[number])
            assert browser.evaluate("document.querySelectorAll('main img, header img, nav img').length") == 0
        browser.type("#search", "<img")
        browser.wait("document.querySelectorAll('nav .found').length > 3")
        assert browser.evaluate("typeof window.hacked") == "undefined"
        assert EVIL in browser.text("header h1")
        assert browser.complaints == []


@needs_browser
def test_twelve_layers_of_bert(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        num_hidden_layers=12, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=200
    )
    explanation = stator.explain(transformers.BertModel(config))(torch.randint(0, 200, (2, 12)))
    explanation = explanation.again(torch.randint(0, 200, (3, 14)))
    path = Path(explanation.save_html(tmp_path / "bert.html"))
    assert explanation.graph_count == 2 and path.stat().st_size < 2_500_000
    static, symbolic = data_of(path)["derived"]
    assert symbolic["label"] == f"{static['label'][:-1]}2, with the sizes of the call that was recorded"
    assert [kept["what"] for kept in symbolic["kept"] if "[3, 14, 64]" in kept["what"]]
    with Browser() as browser:
        browser.open(path)
        for part in PARTS:
            drawn = "new Promise((done) => setTimeout(() => done(performance.now() - begin), 0))"
            click = f"const begin = performance.now(); location.hash = '{part}'; return {drawn};"
            spent = browser.evaluate(f"(async () => {{ {click} }})()")
            browser.wait_for(part)
            assert spent < 3000, f"{part} takes {spent} ms"  # alone on a machine: under 100
        browser.open(path, "guards")
        assert re.search(r"[6-9],\d\d\d", browser.text("nav a[aria-current]"))  # more than three thousand each
        browser.type("#search", "layer']._modules['11'")
        browser.wait("document.querySelectorAll('.guard mark').length > 20")
        browser.open(path, "source")
        assert "modeling_bert.py" in browser.text() and "24 ops" in browser.text()
        assert browser.complaints == []


def test_all_graphs_of_a_line_are_in_the_source(tmp_path: Path) -> None:
    """A line that several graphs were made of: each is among its marks, from which the page makes its bands."""

    def same(x):
        return x * 2

    explained = stator.explain(same)(torch.ones(2))
    explained = explained.again(torch.ones(2, dtype=torch.float64))
    path = Path(explained.save_html(tmp_path / "bands.html"))
    data = data_of(path)
    source = next(source for source in data["sources"] if data["files"][source["file"]] == __file__)
    marks = source["marks"][str(line_of("return x " + "* 2"))]["graph"]
    assert sorted({recording for recording, _ in marks}) == [0, 1]
    assert "--bands" in path.read_text()
    assert [name.rpartition(", ")[2] for name in sorted(explained.compile_times)] == ["graph 1", "graph 2"]
    seconds = sorted(round(recording["seconds"], 6) for recording in data["recordings"])
    assert seconds == sorted(round(each, 6) for each in explained.compile_times.values())
