"use strict";
/* Draws the report from the data that the page carries. Texts of programs become text nodes, never markup. */
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");
const search = document.getElementById("search");
const root = document.documentElement;
let query = "";

// ------------------------------------------------------------------------------------------------- small tools

/** An element. Attributes that are functions are listeners; texts among the children stay texts. */
function h(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) made.style.setProperty(key, text);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}
const drawn = (tag, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};
const hue = (number) => `var(--g${((number % 8) + 8) % 8})`;
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const duration = (s) => (s >= 1 ? `${s.toFixed(2)} s` : s >= 1e-3 ? `${(s * 1e3).toFixed(1)} ms` : `${(s * 1e6).toFixed(0)} µs`);
const size = (b) => {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (b < 1024 || unit === "GiB") return `${unit === "B" ? b : b.toFixed(b < 10 ? 2 : 1)} ${unit}`;
    b /= 1024;
  }
};
const matches = (text) => !query || text.toLowerCase().includes(query);
const short = (path) => path.split(/[\\/]/).slice(-2).join("/");

/** A text in which what was searched for is marked. */
function found(text) {
  if (!query) return [text];
  const parts = [], low = text.toLowerCase();
  let at = 0;
  for (let next; (next = low.indexOf(query, at)) >= 0; at = next + query.length) {
    parts.push(text.slice(at, next), h("mark", {}, text.slice(next, next + query.length)));
  }
  return [...parts, text.slice(at)];
}

/** A link to a line of a source that is shown, or its place as text. */
function placeOf([file, line]) {
  if (file < 0) return "";
  const text = `${short(data.files[file])}:${line}`;
  const known = sourceOf(file);
  if (known < 0) return h("span", { class: "faint", title: `${data.files[file]}:${line}` }, text);
  return h("a", { href: `#source/${known}/${line}`, title: `${data.files[file]}:${line}` }, text);
}
/** The same for a place that is given as `file:line`. */
function named(place) {
  const cut = place.lastIndexOf(":"), file = data.files.indexOf(place.slice(0, cut));
  return file >= 0 ? placeOf([file, Number(place.slice(cut + 1))]) : place;
}
const sourceOf = (file) => data.sources.findIndex((source) => source.file === file);

// -------------------------------------------------------------------------------------------------- Python text

const TOKEN = /(#.*$)|((?:\b[rbfu]{1,2})?(?:"""|'''|"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?))|\b(\d[\w.]*)\b|\b(False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b/g;

function highlighted(text) {
  const parts = [];
  let at = 0;
  for (const token of text.matchAll(TOKEN)) {
    const kind = token[1] ? "c" : token[2] ? "s" : token[3] ? "n" : "k";
    parts.push(...found(text.slice(at, token.index)), h("span", { class: kind }, ...found(token[0])));
    at = token.index + token[0].length;
  }
  return [...parts, ...found(text.slice(at))];
}

const BLOCK = 120;
const onSight = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) {
    onSight.unobserve(entry.target);
    entry.target.fill();
  }
}, { rootMargin: "800px" });

/** Something tall that is drawn once it comes into sight. */
function later(height, fill) {
  const holder = h("div", { style: { "min-height": `${height}px` } });
  holder.fill = () => holder.replaceChildren(...fill());
  onSight.observe(holder);
  return holder;
}

/** A program text with line numbers. */
function listing(text) {
  const lines = text.replace(/\s+$/, "").split("\n");
  const blocks = [];
  for (let start = 0; start < lines.length; start += BLOCK) {
    const some = lines.slice(start, start + BLOCK);
    blocks.push(later(20 * some.length, () => some.map((line, i) =>
      h("div", { class: "row" }, h("span", { class: "no" }, String(start + i + 1)), h("span", { class: "tx" }, ...highlighted(line))))));
  }
  return h("div", { class: "sheet code plain" }, blocks);
}

// --------------------------------------------------------------------------------------------------- the parts

const nothing = (text) => h("p", { class: "empty" }, text);
const heading = (title, lead) => [h("h2", {}, title), lead ? h("p", { class: "lead" }, lead) : null];
const label = (recording, number) => `${number + 1}. ${recording.name}, ${count(recording.ops, "op")}`;

/** Which recording a part is about. */
function chooser(part, chosen, of = data.recordings.map((recording, number) => [number, label(recording, number)])) {
  return h("select", { "aria-label": "Which one", change: (event) => { location.hash = `${part}/${event.target.value}`; } },
    of.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
}

function breakCard(why, number) {
  const [from, to] = why.columns || [0, why.line.length];
  return h("article", { class: "card" },
    h("div", { class: "head" }, h("span", {}, `${number + 1}. `, ...found(why.reason)), h("span", { class: "tag" }, why.id),
      why.times > 1 && h("span", { class: "tag bad" }, `${why.times} times`)),
    h("p", { class: "soft" }, "in ", h("code", {}, ...found(why.function)), " at ", placeOf(why.at)),
    why.line && h("pre", {}, ...found(why.line), "\n", h("span", { class: "caret" }, " ".repeat(from) + "^".repeat(Math.max(to - from, 1)))),
    why.rest && h("p", {}, "What follows runs as plain Python: ", ...found(why.rest)),
    h("p", {}, h("b", {}, "What to do: "), ...found(why.hint)),
    why.stack.length > 1 && h("details", {}, h("summary", { class: "soft" }, "Callers"),
      why.stack.map(([file, line, name]) => h("p", {}, h("code", {}, name), " ", placeOf([file, line])))));
}

function overview() {
  const sum = (what) => data.recordings.reduce((total, recording) => total + what(recording), 0);
  const graphs = sum((r) => r.nodes.length > 0 ? 1 : 0), breaks = data.breaks.reduce((n, why) => n + why.times, 0);
  const tile = (number, noun, part, kind) => h("a", { class: `tile ${number ? kind || "" : ""}`, href: `#${part}` }, h("b", {}, number.toLocaleString("en")), h("span", {}, noun));
  return [
    ...heading(data.title, graphs ? null : "No graph was captured."),
    h("div", { class: "tiles" },
      tile(graphs, graphs === 1 ? "graph" : "graphs", "graphs"),
      tile(breaks, breaks === 1 ? "graph break" : "graph breaks", "source", "bad"),
      tile(sum((r) => r.ops), "operations", "graphs"),
      tile(sum((r) => r.guards.length), "guards", "guards"),
      tile(sum((r) => r.hits), "replays", "replays"),
      tile(data.misses.length, data.misses.length === 1 ? "recompilation" : "recompilations", "recompilations", "warn")),
    data.breaks.length > 0 && [h("h3", {}, "Where the graph broke"), data.breaks.map(breakCard)],
    data.failures.length > 0 && [h("h3", {}, "What did not work"), data.failures.map((it) =>
      h("article", { class: "card warn" }, h("div", { class: "head" }, it.where), h("p", {}, ...found(it.what)), it.path && h("p", { class: "soft" }, it.path)))],
    data.recordings.length > 0 && [h("h3", {}, "Recordings"), h("div", { class: "sheet scroll" }, h("table", {},
      h("tr", {}, ["Function", "Graph", "Guards", "Made in", "Replays", "Ends"].map((t, i) => h("th", { class: i && i < 5 ? "num" : "" }, t))),
      data.recordings.map((r, i) => h("tr", {},
        h("td", {}, h("span", { class: "swatch", style: { "--hue": hue(i) } }), h("a", { href: `#graphs/${i}` }, `${i + 1}. `, ...found(r.name)),
          r.symbolic.length > 0 && h("div", { class: "soft" }, `for any ${r.symbolic.join(", ")}`)),
        h("td", { class: "num" }, count(r.ops, "op")), h("td", { class: "num" }, h("a", { href: `#guards/${i}` }, r.guards.length.toLocaleString("en"))),
        h("td", { class: "num" }, duration(r.seconds)), h("td", { class: "num" }, r.hits.toLocaleString("en")),
        h("td", {}, r.break === null ? h("span", { class: "soft" }, "with the function") : h("span", { class: "tag bad" }, data.breaks[r.break].reason))))))],
    data.summary && h("details", { open: data.summary.length < 4000 }, h("summary", {}, h("h3", {}, "In words")), h("pre", { class: "sheet words" }, ...found(data.summary))),
  ];
}

const STAGES = ["watch", "backend", "forward and backward", "code generation", "guards and replay"];
function timeline() {
  if (!data.timeline.length) return [...heading("Timeline"), nothing("Nothing was recorded.")];
  const begin = Math.min(...data.timeline.map((s) => s.start)), end = Math.max(...data.timeline.map((s) => s.end));
  const all = Math.max(end - begin, 1e-9), told = h("p", { class: "lead", role: "status" }, "Click a bar to see what it stands for.");
  const lane = (stage) => h("div", { class: "lane" }, h("span", {}, stage), h("div", { class: "track" }, data.timeline.filter((s) => s.stage === stage).map((s) =>
    h("button", {
      type: "button", class: "span", title: `${s.name}: ${duration(s.end - s.start)}`, "aria-label": `${stage}: ${s.name}`,
      style: { "--hue": hue(STAGES.indexOf(stage)), left: `${100 * (s.start - begin) / all}%`, width: `${100 * (s.end - s.start) / all}%` },
      click: (event) => {
        main.querySelectorAll(".span[aria-pressed]").forEach((other) => other.removeAttribute("aria-pressed"));
        event.target.setAttribute("aria-pressed", "true");
        told.textContent = `${stage}, ${duration(s.end - s.start)}: ${s.name}`;
      },
    }))));
  const used = STAGES.filter((stage) => data.timeline.some((s) => s.stage === stage));
  return [
    ...heading("Timeline", "A first call really runs, watched. Then its graphs go to the backend, and guards and replay are made of what it read and did."),
    h("div", { class: "sheet lanes" }, used.map(lane), h("div", { class: "axis" }, [0, 0.25, 0.5, 0.75, 1].map((part) => h("i", { style: { left: `${100 * part}%` } }, duration(part * all))))),
    h("h3", {}, "Chosen"), told,
    h("h3", {}, "All stages"), h("div", { class: "sheet scroll" }, h("table", {},
      h("tr", {}, ["Stage", "Of", "Begins", "Takes"].map((t, i) => h("th", { class: i > 1 ? "num" : "" }, t))),
      data.timeline.filter((s) => matches(`${s.stage} ${s.name}`)).map((s) => h("tr", {},
        h("td", { class: "whole" }, h("span", { class: "swatch", style: { "--hue": hue(STAGES.indexOf(s.stage)) } }), s.stage), h("td", { class: "mono" }, ...found(s.name)),
        h("td", { class: "num" }, duration(s.start - begin)), h("td", { class: "num" }, duration(s.end - s.start)))))),
  ];
}

function sourceLine(no, text, mark, at) {
  const graphs = mark.graph || [], rows = [];
  const kinds = [graphs.length && "graph", mark.break && "broken", at === no && "at"].filter(Boolean).join(" ");
  const words = [graphs.length && count(graphs.length, "op"), !graphs.length && mark.guards && `${mark.guards} g`].filter(Boolean).join(" ");
  const title = [graphs.length && `${count(graphs.length, "operation")} of ${[...new Set(graphs.map(([r]) => `graph ${r + 1}`))].join(", ")}`, mark.guards && count(mark.guards, "guard")].filter(Boolean).join("; ");
  const hues = [...new Set(graphs.map(([r]) => hue(r)))]; // one band beside the line for each graph that it went into
  const style = graphs.length ? { "--hue": hues[0], "--bands": `linear-gradient(${hues.map((one, i) => `${one} ${(100 * i) / hues.length}% ${(100 * (i + 1)) / hues.length}%`).join(", ")})` } : {};
  const row = h("div", { class: `row ${kinds}`, id: `L${no}`, style },
    h("span", { class: "no" }, String(no)),
    graphs.length ? h("button", { type: "button", class: "gutter", title, click: () => unfold(row, graphs) }, words) : h("span", { class: "gutter", title }, words),
    h("span", { class: "tx" }, ...highlighted(text)));
  rows.push(row);
  for (const number of mark.break || []) {
    const why = data.breaks[number];
    rows.push(h("div", { class: "note bad" }, h("b", {}, "graph break: "), why.reason, why.times > 1 ? ` (${why.times} times)` : "", h("div", { class: "hint" }, why.hint)));
  }
  for (const [recording, what] of mark.specialised || []) {
    rows.push(h("div", { class: "note warn" }, h("b", {}, "specialised: "), what, ` (recording ${recording + 1})`));
  }
  return rows;
}

function unfold(row, graphs) {
  if (row.nextElementSibling && row.nextElementSibling.classList.contains("ops")) return row.nextElementSibling.remove();
  row.after(h("div", { class: "note ops" }, graphs.slice(0, 60).map(([r, n]) =>
    h("div", {}, h("a", { href: `#graphs/${r}/${n}` }, `graph ${r + 1}: ${data.recordings[r].nodes[n].name}`), ` = ${data.recordings[r].nodes[n].text}`)),
    graphs.length > 60 && h("div", { class: "faint" }, `and ${graphs.length - 60} more`)));
}

function source(chosen = 0, at = 0) {
  const it = data.sources[chosen];
  const head = heading("Source", "What went into graphs is tinted by its graph; click the count to see the operations. Lines that made guards necessary have a number of guards (g).");
  if (!it) return [...head, nothing("No line of a program that can be read is marked.")];
  const rank = (s) => Object.values(s.marks).reduce((n, m) => n + (m.graph ? m.graph.length : 0), 0);
  const rows = [];
  let last = 0;
  for (const [start, lines] of it.chunks) {
    if (start > last + 1) rows.push(h("div", { class: "gap" }, `⋯ ${count(start - last - 1, "line")} without marks`));
    for (let i = 0; i < lines.length; i += BLOCK) {
      const some = lines.slice(i, i + BLOCK), first = start + i;
      const draw = () => some.flatMap((text, k) => sourceLine(first + k, text, it.marks[first + k] || {}, at));
      const needed = at >= first && at < first + some.length;
      rows.push(needed ? h("div", {}, draw()) : later(20 * some.length, draw));
    }
    last = start + lines.length - 1;
  }
  if (it.lines > last) rows.push(h("div", { class: "gap" }, `⋯ ${count(it.lines - last, "line")} without marks`));
  setTimeout(() => { const line = at && document.getElementById(`L${at}`); if (line) line.scrollIntoView({ block: "center" }); });
  return [
    ...head,
    h("div", { class: "bar" }, chooser("source", chosen, data.sources.map((s, i) => [i, `${short(data.files[s.file])} (${count(rank(s), "op")})`])),
      h("span", { class: "soft mono" }, data.files[it.file])),
    h("div", { class: "legend" }, [...new Set(Object.values(it.marks).flatMap((m) => (m.graph || []).map(([r]) => r)))].sort((a, b) => a - b).slice(0, 12).map((r) =>
      h("span", {}, h("span", { class: "swatch", style: { "--hue": hue(r) } }), `graph ${r + 1}`)), h("span", {}, h("span", { class: "swatch", style: { "--hue": "var(--bad)" } }), "graph break")),
    it.chunks.length ? h("div", { class: "sheet code" }, rows) : nothing("The text of this file cannot be read."),
  ];
}

const MOST_ARCS = 4000;
function graphs(chosen = 0, at = -1) {
  const r = data.recordings[chosen];
  const head = heading("Graphs", "One row per node, in the order in which they run. Click one: what it takes is green, what takes it is amber.");
  if (!r) return [...head, nothing("No graph was captured.")];
  const wanted = (node) => (query || inputsShown || node.op !== "input") && matches(`${node.name} ${node.text}`);
  const visible = r.nodes.map((node, i) => i).filter((i) => i === at || wanted(r.nodes[i]));
  const inputs = r.nodes.filter((node) => node.op === "input").length;
  const position = new Map(visible.map((i, place) => [i, place]));
  const users = r.nodes.map(() => []);
  r.nodes.forEach((node, i) => node.from.forEach((j) => users[j].push(i)));
  const rows = [], paths = new Map();
  const svg = drawn("svg", { width: 160, height: 24 * visible.length, "aria-hidden": "true" });
  const arc = (from, to, kind) => {
    const y0 = position.get(from) * 24 + 12, y1 = position.get(to) * 24 + 12, x = 160 - Math.min(14 + 9 * Math.sqrt(Math.abs(y1 - y0) / 24), 152);
    return drawn("path", { d: `M160 ${y0}C${x} ${y0} ${x} ${y1} 160 ${y1}`, class: kind });
  };
  const edges = visible.flatMap((i) => r.nodes[i].op === "output" ? [] : r.nodes[i].from.filter((j) => position.has(j) && r.nodes[j].op === "op").map((j) => [j, i]));
  if (edges.length <= MOST_ARCS) for (const [j, i] of edges) svg.append(arc(j, i, ""));
  const choose = (i) => {
    paths.forEach((path) => path.remove());
    paths.clear();
    rows.forEach((row, k) => {
      const n = visible[k];
      row.classList.toggle("on", n === i);
      row.classList.toggle("into", r.nodes[i].from.includes(n));
      row.classList.toggle("out", users[i].includes(n));
    });
    for (const j of r.nodes[i].from) if (position.has(j)) paths.set(`<${j}`, svg.appendChild(arc(j, i, "into")));
    for (const j of users[i]) if (position.has(j)) paths.set(`>${j}`, svg.appendChild(arc(i, j, "out")));
  };
  for (const i of visible) {
    const node = r.nodes[i];
    rows.push(h("div", { class: `node ${node.op}`, style: { "--hue": hue(chosen) }, click: () => choose(i) },
      h("span", { class: "name" }, h("span", { class: "dot" }), ...found(node.name)), h("span", { class: "text", title: node.text }, ...found(node.text)), h("span", { class: "where" }, placeOf(node.at))));
  }
  if (at >= 0 && position.has(at)) setTimeout(() => { choose(at); rows[position.get(at)].scrollIntoView({ block: "center" }); });
  const specialised = r.specialised.map((s) => h("p", {}, h("span", { class: "tag warn" }, "specialised"), " ", s.text, " ", placeOf(s.at)));
  return [
    ...head,
    h("div", { class: "bar" }, chooser("graphs", chosen), h("button", { type: "button", class: "chip", id: "inputs", "aria-pressed": String(inputsShown), click: () => { inputsShown = !inputsShown; show(); } }, `${count(inputs, "input")}`),
      h("span", { class: "soft" }, count(r.ops, "operation")),
      r.code && h("a", { href: `#code/${TEXTS.findIndex(([, , of]) => of === chosen)}` }, "as Python")),
    r.symbolic.length > 0 && h("p", {}, h("span", { class: "tag good" }, "symbolic"), ` ${r.symbolic.join(", ")}`), specialised,
    rows.length ? h("div", { class: "sheet flow" }, svg, rows) : nothing(r.nodes.length ? "No node has that in it." : "This segment computes nothing with tensors."),
  ];
}

const guardText = (guard) => data.forms[guard[1]].replace("\0", () => data.origins[guard[2]]);
/** The guard with its origin set off, unless what was searched for is marked. */
function guardShown(guard) {
  const [before, after] = data.forms[guard[1]].split("\0");
  if (query || after === undefined) return h("span", {}, ...found(guardText(guard)));
  return h("span", {}, before, h("span", { class: "origin", title: "how the value is reached" }, data.origins[guard[2]]), after);
}
let kindShown = -1, inputsShown = false;
function guards(chosen = 0) {
  const r = data.recordings[chosen];
  const head = heading("Guards", "What later calls must find as it was, for the recording to be used: each with how its value is reached, and the line that made it necessary.");
  if (!r) return [...head, nothing("There is no recording.")];
  const hits = r.guards.filter((guard) => matches(guardText(guard)));
  const kinds = new Map();
  for (const guard of hits) kinds.set(guard[0], (kinds.get(guard[0]) || 0) + 1);
  if (kindShown >= 0 && !kinds.has(kindShown)) kindShown = -1;
  const shown = kindShown < 0 ? hits : hits.filter((guard) => guard[0] === kindShown);
  const list = h("div", { class: "sheet" });
  for (let i = 0; i < shown.length; i += BLOCK) {
    const some = shown.slice(i, i + BLOCK);
    list.append(later(27 * some.length, () => some.map((guard) => h("div", { class: "guard" }, h("span", { class: "kind" }, data.kinds[guard[0]]),
      guardShown(guard), h("span", { class: "where" }, placeOf([guard[3], guard[4]]), guard[5] >= 0 && [h("span", { class: "faint" }, " from "), placeOf([guard[5], guard[6]])])))));
  }
  const chip = (kind, text, number) => h("button", { type: "button", class: "chip", "aria-pressed": String(kindShown === kind), click: () => { kindShown = kind; show(); } }, `${text} `, h("span", { class: "count" }, number.toLocaleString("en")));
  return [
    ...head, h("div", { class: "bar" }, chooser("guards", chosen)),
    h("div", { class: "bar" }, chip(-1, "all", hits.length), [...kinds].sort((a, b) => b[1] - a[1]).map(([kind, number]) => chip(kind, data.kinds[kind], number))),
    shown.length ? list : nothing("No guard has that in it."),
  ];
}

/** Which compiled graphs ran, how often, and how long that took. */
function runs() {
  const most = Math.max(...data.recordings.map((r) => r.total + r.backward_total), 1e-12);
  const cell = (text) => h("td", { class: "num" }, text), none = "–";
  const rows = data.recordings.map((r, i) => h("tr", {},
    h("td", {}, h("span", { class: "swatch", style: { "--hue": hue(i) } }), h("a", { href: `#replays/${i}` }, ...found(label(r, i)))),
    cell(r.hits.toLocaleString("en")), cell(r.timed ? duration(r.median) : none), cell(r.timed ? `${r.timed < r.hits ? "about " : ""}${duration(r.total)}` : none),
    cell(r.backward ? r.backward.toLocaleString("en") : none), cell(r.backward ? duration(r.backward_median) : none), cell(r.backward ? duration(r.backward_total) : none),
    h("td", { style: { width: "110px" } }, r.timed + r.backward > 0 && h("div", { class: "meter", style: { "--hue": hue(i), width: `${100 * (r.total + r.backward_total) / most}%` } }))));
  const timed = data.recordings.some((r) => r.timed), some = data.recordings.some((r) => r.timed && r.timed < r.hits);
  return [
    h("div", { class: "sheet scroll", id: "runs" }, h("table", {}, h("tr", {}, ["Recording", "Ran", "Median", "In all", "Backward ran", "Median", "In all", ""].map((t, i) => h("th", { class: i && i < 7 ? "num" : "" }, t))), rows)),
    h("p", { class: "soft" }, timed ? `The call that is recorded runs as plain Python and is not counted.${some ? " Some of the replays were timed, and all of them are counted." : ""}` : "No replay was timed: the only calls were those that were recorded."),
  ];
}

function replays(chosen = 0) {
  const r = data.recordings[chosen];
  const head = heading("Replays", "What later calls run once the guards hold: it checks nothing, calls the compiled graph, rebuilds results and makes the changes that the program made.");
  if (!r) return [...head, nothing("There is no recording.")];
  return [
    ...head, runs(), h("h3", {}, "The replay itself"), h("div", { class: "bar" }, chooser("replays", chosen), h("span", { class: "tag good" }, `used ${count(r.hits, "time")}`), h("span", { class: "soft" }, `made in ${duration(r.seconds)}, ${count(r.probes, "probe")} fired`)),
    r.replay ? listing(r.replay) : nothing("There is no replay: from here on the function runs as plain Python."),
    r.bytecode && h("details", {}, h("summary", {}, h("h3", {}, "Bytecode")), listing(r.bytecode)),
    r.break !== null && [h("h3", {}, "It ends at a break"), breakCard(data.breaks[r.break], r.break)],
  ];
}

/** Every program text: [title, text, recording]. */
function texts() {
  const all = data.recordings.flatMap((r, i) => r.code ? [[`${i + 1}. ${r.name}: captured graph`, r.code, i]] : []);
  for (const d of data.derived) {
    const of = d.recording === null ? "" : `${d.recording + 1}. ${d.label}: `;
    for (const part of ["joint", "forward", "backward"]) if (d[part]) all.push([`${of}${part} graph`, d[part], d.recording]);
  }
  for (const c of data.compiled) if (c.code) all.push([`${c.recording === null ? "" : `${c.recording + 1}. `}${c.name}: generated by ${c.backend}`, c.code, c.recording]);
  return all;
}
const TEXTS = texts();
function code(chosen = 0) {
  const head = heading("Code", "Every form of the program as Python: the captured graph, forward and backward, and what the backend wrote.");
  if (!TEXTS.length) return [...head, nothing("There is no code.")];
  const [title, text] = TEXTS[chosen] || TEXTS[0];
  return [
    ...head, h("div", { class: "bar" }, chooser("code", chosen, TEXTS.map(([t], i) => [i, t])), h("span", { class: "soft" }, count(text.split("\n").length, "line")),
      h("button", { type: "button", click: (event) => copy(text, event.target) }, "Copy")), h("h3", { class: "hidden" }, title), listing(text),
  ];
}
function copy(text, button) {
  const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1200); };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, () => {});
}

function recompilations() {
  const head = heading("Recompilations", "Calls that no recording fitted: the guard that failed, what it expected, what it found, and the line that made it.");
  const rows = data.misses.filter((miss) => matches(`${miss.name} ${miss.why}`));
  if (!rows.length) return [...head, nothing(data.misses.length ? "No recompilation has that in it." : "No call had to be recorded again.")];
  return [...head, h("div", { class: "sheet scroll" }, h("table", {},
    h("tr", {}, ["Function", "Guard that failed", "Expected", "Found", "Needed by"].map((t) => h("th", {}, t))),
    rows.map((miss) => h("tr", {}, h("td", {}, ...found(miss.name)), h("td", { class: "mono" }, ...found(miss.guard || miss.why)), h("td", { class: "mono" }, ...found(miss.expected)),
      h("td", { class: "mono" }, ...found(miss.found)), h("td", { class: "mono" }, named(miss.place), miss.caller && [" from ", named(miss.caller)])))))];
}

/** Bytes that are kept, behind each operation of the forward and then of the backward. */
function keptOver(d) {
  const [forward, backward] = d.operations, change = new Float64Array(forward + backward + 2);
  for (const kept of d.kept) if (kept.extra) {
    change[kept.made] += kept.bytes;
    change[forward + Math.max(kept.freed, 0) + 1] -= kept.bytes;
  }
  const points = [];
  change.reduce((sum, step, i) => (points.push([i, sum + step]), sum + step), 0);
  return points;
}

function chart(d) {
  const points = keptOver(d), width = 900, height = 240, left = 76, bottom = 26, last = points.length - 1;
  const most = Math.max(...points.map(([, bytes]) => bytes), 1);
  const x = (i) => left + (width - left - 6) * i / Math.max(last, 1), y = (bytes) => 10 + (height - bottom - 10) * (1 - bytes / most);
  const line = points.map(([i, bytes], k) => (k ? `H${x(i).toFixed(1)}V${y(bytes).toFixed(1)}` : `M${x(0)} ${y(bytes).toFixed(1)}`)).join("");
  const half = x(d.operations[0] + 0.5);
  const text = (at, words, anchor) => drawn("text", { x: at[0], y: at[1], "text-anchor": anchor }, words);
  return h("div", { class: "sheet chart" }, drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", preserveAspectRatio: "none", "aria-label": `kept for the backward: at most ${size(most)}` },
    ...[0, 0.5, 1].flatMap((part) => [drawn("line", { class: "grid", x1: left, x2: width, y1: y(part * most), y2: y(part * most) }), text([left - 8, y(part * most) + 4], size(Math.round(part * most)), "end")]),
    drawn("path", { class: "area", d: `${line}V${y(0)}H${left}Z` }), drawn("path", { class: "edge", d: line }),
    drawn("line", { class: "half", x1: half, x2: half, y1: 6, y2: height - bottom }),
    text([(left + half) / 2, height - 6], `forward: ${count(d.operations[0], "operation")}`, "middle"), text([(half + width) / 2, height - 6], `backward: ${count(d.operations[1], "operation")}`, "middle")));
}

function memory(chosen = 0) {
  const head = heading("Memory", "What forward graphs keep for their backward graphs: when each value is made, and behind which operation of the backward it is freed. Parameters are alive anyway and not counted.");
  const some = data.derived.filter((d) => d.backward);
  if (!some.length) return [...head, nothing("No backward was derived: nothing that was recorded needs gradients, or its backend leaves them to eager autograd.")];
  const d = some[chosen] || some[0], kept = d.kept.filter((k) => matches(`${k.name} ${k.what} ${k.why}`)).sort((a, b) => b.extra - a.extra || b.bytes - a.bytes);
  const total = d.kept.reduce((sum, k) => sum + (k.extra ? k.bytes : 0), 0), most = Math.max(...d.kept.map((k) => (k.extra ? k.bytes : 0)), 1);
  const title = (it, i) => it.recording === null ? `Graph ${i + 1}` : label(data.recordings[it.recording], it.recording);
  return [
    ...head, h("div", { class: "bar" }, chooser("memory", chosen, some.map((it, i) => [i, title(it, i)])), h("b", {}, `${size(total)} kept`), h("span", { class: "soft" }, `in ${count(d.kept.filter((k) => k.extra).length, "value")}`), h("span", { class: "soft" }, d.label)),
    chart(d), h("h3", {}, "What is kept, and why"),
    kept.length ? h("div", { class: "sheet scroll" }, h("table", {}, h("tr", {}, ["Value", "What", "Bytes", "", "Made behind", "Freed behind", "Why"].map((t, i) => h("th", { class: [2, 4, 5].includes(i) ? "num" : "" }, t))),
      kept.map((k) => h("tr", {}, h("td", { class: "mono" }, ...found(k.name)), h("td", { class: "mono whole" }, ...found(k.what)), h("td", { class: "num" }, k.extra ? size(k.bytes) : h("span", { class: "faint" }, "alive anyway")),
        h("td", { style: { width: "110px" } }, k.extra && h("div", { class: "meter", style: { width: `${100 * k.bytes / most}%` } })),
        h("td", { class: "num" }, k.made ? `op ${k.made}` : "input"), h("td", { class: "num" }, k.freed ? `op ${k.freed}` : "start"), h("td", {}, ...found(k.why)))))) : nothing("No value has that in it."),
    h("h3", {}, "Steps"), listing(d.steps.join("\n")),
  ];
}

function calls() {
  const rows = data.calls.filter((c) => matches(`${c.place} ${c.name}`));
  return [...heading("Calls", "Calls from outside of any module, by place in the program. From the third call with the same shapes on, every second one runs as plain Python, to compare with: medians, forward only."),
    rows.length ? h("div", { class: "sheet scroll" }, h("table", {}, h("tr", {}, ["Place", "What", "Calls", "First call", "Plain", "Compiled", "Won or lost"].map((t, i) => h("th", { class: i > 1 ? "num" : "" }, t))),
      rows.map((c) => h("tr", {}, h("td", { class: "mono" }, ...found(c.place)), h("td", {}, ...found(c.name), c.note && h("div", { class: "soft" }, c.note)), h("td", { class: "num" }, String(c.calls)), h("td", { class: "num" }, duration(c.first)),
        h("td", { class: "num" }, c.plain === null ? "–" : duration(c.plain)), h("td", { class: "num" }, c.compiled === null ? "–" : duration(c.compiled)),
        h("td", { class: "num" }, c.plain === null || c.compiled === null ? h("span", { class: "faint" }, "too few calls") : h("span", { class: c.plain >= c.compiled ? "win" : "loss" }, `${(c.plain / c.compiled).toFixed(2)}×`)))))) : nothing("No call has that in it.")];
}

// ------------------------------------------------------------------------------------------- search and routing

const low = (items) => items.map((item) => item.toLowerCase());
const PARTS = [
  ["overview", "Overview", overview, () => low([...data.breaks.map((b) => `${b.reason} ${b.function} ${b.hint}`), ...data.recordings.map((r) => r.name)])],
  ...(data.calls.length ? [["calls", "Calls", calls, () => low(data.calls.map((c) => `${c.place} ${c.name}`))]] : []),
  ["timeline", "Timeline", timeline, () => low(data.timeline.map((s) => `${s.stage} ${s.name}`)), data.timeline.length],
  ["source", "Source", source, () => low(data.sources.flatMap((s) => s.chunks.flatMap(([, lines]) => lines))), data.sources.length],
  ["graphs", "Graphs", graphs, () => low(data.recordings.flatMap((r) => r.nodes.map((n) => `${n.name} ${n.text}`))), data.recordings.filter((r) => r.nodes.length).length],
  ["guards", "Guards", guards, () => low(data.recordings.flatMap((r) => r.guards.map(guardText))), data.recordings.reduce((n, r) => n + r.guards.length, 0)],
  ["replays", "Replays", replays, () => low(data.recordings.flatMap((r) => `${r.replay}\n${r.bytecode}`.split("\n"))), data.recordings.length],
  ["code", "Code", code, () => low(TEXTS.flatMap(([, text]) => text.split("\n"))), TEXTS.length],
  ["recompilations", "Recompilations", recompilations, () => low(data.misses.map((m) => `${m.name} ${m.why}`)), data.misses.length],
  ["memory", "Memory", memory, () => low(data.derived.flatMap((d) => d.kept.map((k) => `${k.name} ${k.what} ${k.why}`))), data.derived.filter((d) => d.backward).length],
].map(([id, title, draw, index, number]) => ({ id, title, draw, index, number, texts: null }));

function hits(part) {
  part.texts = part.texts || part.index();
  return part.texts.reduce((n, text) => n + text.includes(query), 0);
}

function route() {
  const [id, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
  const part = PARTS.find((it) => it.id === id) || PARTS[0];
  return { part, numbers: rest.map(Number).filter(Number.isInteger) };
}

// The links stay the same elements: one that is replaced between the press and the release of a mouse gets no click.
for (const part of PARTS) part.link = h("a", { href: `#${part.id}` }, part.title, part.label = h("span"));
document.getElementById("nav").append(...PARTS.map((part) => part.link), h("div", { class: "made" }, Object.entries(data.made).map(([name, version]) => h("div", {}, `${name} ${version}`))));

function show() {
  const { part, numbers } = route();
  for (const it of PARTS) {
    const number = query ? hits(it) : it.number;
    it.label.textContent = number === undefined ? "" : number.toLocaleString("en");
    it.label.className = number === undefined ? "" : query && number ? "count found" : "count";
    if (it === part) it.link.setAttribute("aria-current", "page");
    else it.link.removeAttribute("aria-current");
  }
  main.replaceChildren(h("div", { "data-part": part.id }, part.draw(...numbers)));
  root.dataset.shown = location.hash; // for who waits until this part is there
}

document.getElementById("title").textContent = data.title;
let waiting = 0;
search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => { query = search.value.trim().toLowerCase(); show(); }, 90);
});
window.addEventListener("hashchange", () => { show(); if (!/\/.*\//.test(location.hash)) window.scrollTo(0, 0); });
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); search.focus(); }
  if (event.key === "Escape" && document.activeElement === search) { search.value = ""; query = ""; show(); }
});
root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; });
show();
})();
