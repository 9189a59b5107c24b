"""Every kind of expression behind breaks, of numbers and texts that change from call to call.

Behind a break a number or a text is guarded only when something depends on it: whatever an expression does with one
must count as that, or pass it on.
"""

from __future__ import annotations

import linecache

import pytest
from harness import World, check, rand

import stator

VALUES = ((7, 7), (2.5, 7), (7, 8), ("ab", "ab"), (300, 301), ("cd", "ab"), (1, True), (9, 9))

EXPRESSIONS = """
v + v; (v, 1); (v, (w, v)); [v][0]; {v: 1}; {1: v}[1]; {v, 1}; v == w; v is w; v in (1, 2.5, "ab", 7)
v in {7: 1, "ab": 2}; {7: "x", "ab": "y"}.get(v, "none"); getattr(o, "a" if v == 7 else "b"); str(v); f"{v}"
f"{v!r}>{w}"; f"{v:>{5}}"; "%s-%s" % (v, w); "{}".format(v); [*str(v)]; (lambda: v)(); (lambda q=v: q)()
(lambda *a, q: (a, q))(v, q=v); [v for _ in range(2)]; [k for k in [v, w] if k != 7]; {k: v for k in range(2)}
list(map(lambda k: (k, v), [1, 2])); sorted([str(v), str(w), "k"]); max([v, v]); bool(v); not v; v and w; v or w
v if w else o.a; (v, w) == (7, 7); (v, w) < (v, w); [v, w] == [w, v]; isinstance(v, int); type(v).__name__
hash(v) == hash(w); repr([v]); o.put(v); o.items.append(v) or o.items[-1]; vars(o).setdefault("s", v)
o.table.update({v: w}) or len(o.table); o.table.setdefault(w, v); o.table.pop(v, w); setattr(o, "n", v) or o.n
(v,) * 2; [v] + [w]; v * 2; x * len(str(v)); generated(v); list(paired(v, w)); recursive(v, 2); dict(a=v, b=w)
(lambda a, b: (b, a))(*[v, w]); (lambda **k: k)(**{"q": v}); [v, w].index(v); {"v": v, "w": w}["v" if v is w else "w"]
print(v, w, sep=str(w)); guarded(v); o.kept(v)(); o.seen(v); (o.items.insert(0, v), o.items.pop())[1]
range(v if isinstance(v, int) else 2); abs(v) if not isinstance(v, str) else v.upper(); zipped(v, w); (v := w, v)
int(v) if not isinstance(v, str) else v[::-1]; sum([v, v]) if not isinstance(v, str) else v.join("xy")
[v, w][bool(v)]; slice(v, w); 0 < len(str(v)) < 3; matched(v); matched((v, w)); (v, w)
"""

FORMS = {
    "alone": "pause(); return {e}",
    "on both sides": "t = (v, {e}); pause(); return t, {e}, w",
    "on the stack": "r = ({e}, passed(v), v, [w, passed({e})], w); pause(); return r, x * 2",
    "in a loop": "r = []\n for i in range(2):\n  pause(); r.append({e}); v, w = w, v\n return r, v",
    "by way of an object": "o.n = v; pause(); v = o.n; r = {e}; o.n = w; pause(); return r, o.n",
    "as texts": "pause(); v, w = str(v), str(w); pause(); r = {e}; return r, v, w",
}


class Holder:
    def __init__(self):
        self.a, self.b, self.items, self.table, self.n = 1, 2, [1], {}, None

    def put(self, v):
        self.n = v
        pause()
        return self.n

    def kept(self, v):
        def inner():
            pause()
            return v

        return inner

    def seen(self, v):
        self.n = v
        return self.looked_at

    @property
    def looked_at(self):
        pause()
        return [self.n, self.a]


def pause():
    stator.graph_break()


def passed(v):
    pause()
    return v


def generated(v):
    def inner():
        yield v
        pause()
        yield [v]

    return list(inner())


def paired(v, w):
    for i in (v, w):
        pause()
        yield i, v


def recursive(v, n):
    if n == 0:
        return v
    pause()
    return recursive(v, n - 1), v


def guarded(v):
    try:
        pause()
        if v == 7:
            raise KeyError(v)
        return v
    except KeyError as error:
        pause()
        return error.args, v
    finally:
        pause()


def zipped(v, w):
    found = []
    for a, b in zip([v, w], [w, v], strict=True):
        pause()
        found.append((a, b))
    return found


def matched(v):
    match v:
        case 7:
            pause()
            return "seven"
        case str(s):
            pause()
            return s
        case (a, b):
            pause()
            return b, a
        case _:
            pause()
            return v


def expressions():
    return [text.strip() for line in EXPRESSIONS.strip().splitlines() for text in line.split(";")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("expression", expressions())
def test_numbers_and_texts(expression, form, monkeypatch):
    monkeypatch.setattr(stator.options, "cache_size_limit", 64)
    text = f"def fn(x, v, w):\n {FORMS[form].replace('{e}', expression)}\n"
    file = f"<{expression} {form}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    code = compile(text, file, "exec")

    def world():
        names = dict(globals(), o=Holder())
        exec(code, names)
        return World(fn=names["fn"], o=names["o"])

    calls = [lambda w, seed=seed, two=two: w.fn(rand(seed), *two) for seed, two in enumerate(VALUES)]
    check(world, calls, expect=None, raises=(TypeError, ValueError), unreplayed="user-graph-break")
