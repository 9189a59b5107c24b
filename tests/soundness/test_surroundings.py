"""Rule 5: what a program asks of the world around it, and values of many kinds (rules 2, 3, 6)."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import logging
import math
import os
import random
import sys
import time
import warnings

import numpy as np
from attacks import attack, hidden
from harness import RECORDED, World


def test_rule_5_filters_of_warnings():
    def world():
        def fn(x):
            warnings.warn("hello", UserWarning, stacklevel=1)
            return x + 1

        return World(fn=fn)

    attack(
        world,
        lambda w: warnings.simplefilter("error", UserWarning),
        lambda w: warnings.simplefilter("always"),
        raises=UserWarning,
        replayed=False,
    )


def test_rule_5_levels_of_loggers():
    def world():
        log = logging.getLogger("soundness.attack")
        log.setLevel(logging.WARNING)
        log.propagate = False
        out = []

        class H(logging.Handler):
            def emit(self, r):
                out.append(r.getMessage())

        log.handlers[:] = [H()]

        def fn(x):
            log.info("got %s", 3)
            if log.isEnabledFor(logging.DEBUG):
                x = x * 2
            return x + 1

        return World(fn=fn, out=out)

    L = logging.getLogger("soundness.attack")
    attack(
        world,
        lambda w: L.setLevel(logging.DEBUG),
        lambda w: L.setLevel(logging.WARNING),
        lambda w: logging.disable(logging.CRITICAL),
        lambda w: (logging.disable(logging.NOTSET), L.setLevel(logging.INFO)),
    )
    logging.disable(logging.NOTSET)


def test_rule_5_environment_variables():
    def world():
        os.environ["STA_X"] = "2"
        os.environ.pop("STA_Y", None)
        return World(
            fn=lambda x: x * float(os.environ["STA_X"]) + float(os.getenv("STA_Y", "1")) + ("STA_Y" in os.environ)
        )

    attack(
        world,
        lambda w: os.environ.update(STA_X="3"),
        lambda w: os.environ.update(STA_Y="3"),
        lambda w: os.environ.pop("STA_Y"),
        lambda w: os.environ._data.update({b"STA_X": b"7"}),
    )


def test_rule_5_files(tmp_path):
    p = tmp_path / "f.txt"

    def world():
        p.write_text("2")
        return World(fn=lambda x: x * float(p.read_text()) + len(os.listdir(tmp_path)) + os.path.getsize(p))

    attack(
        world,
        lambda w: p.write_text("33"),
        lambda w: (tmp_path / "g").write_text(""),
        lambda w: (tmp_path / "g").unlink(),
        replayed=False,
    )


def test_rule_5_random_numbers_and_time():
    def world():
        return World(
            fn=lambda x: (
                x * random.random() + random.choice([1.0, 2.0]) + (time.time() > 0) + np.random.RandomState(0).rand()
            )
        )

    attack(world, lambda w: random.seed(7), replayed=False, unreplayed=["numpy", "random", "time"])


def test_rule_6_dataclasses_frozen_and_ordered():
    def world():
        @dataclasses.dataclass(frozen=True, slots=True)
        class P:
            a: float
            l: list = dataclasses.field(default_factory=list)

        @dataclasses.dataclass(order=True)
        class Q:
            a: float = 1.0

            def __post_init__(s):
                s.b = s.a * 2

        p, q = P(2.0), Q()

        def fn(x):
            p.l.append(1)
            r = dataclasses.replace(q, a=q.a + 1)
            f = P(r.b)
            try:
                f.a = 3.0
            except dataclasses.FrozenInstanceError:
                x = x + 1
            return x * p.a + len(p.l) + f.a + (q < r) + dataclasses.asdict(r)["a"], f, r

        return World(fn=fn, p=p, q=q, P=0, set=hidden(lambda v: object.__setattr__(p, "a", v)))

    attack(world, lambda w: w.set(5.0), lambda w: w.p.l.clear(), replayed=False, unreplayed=RECORDED)


def test_rule_2_named_tuples_replaced():
    def world():
        N = collections.namedtuple("N", "a b", defaults=[3.0])
        w = World(n=N(2.0))
        w.fn = lambda x: (
            w.n._replace(a=w.n.a + 1),
            x * w.n.a + w.n.b + w.n[1] + len(w.n._asdict()),
            N(1.0),
            w.n == (2.0, 3.0),
        )
        return w

    attack(
        world,
        lambda w: setattr(w, "n", w.n._replace(b=5.0)),
        lambda w: setattr(w, "n", (2.0, 3.0)),
        raises=AttributeError,
    )


def test_rule_2_flags():
    def world():
        class F(enum.Flag):
            A = 1
            B = 2
            C = 4

        class Whole(enum.IntFlag):
            A = 1
            B = 2

        w = World(f=F.A | F.B, i=Whole.A)
        w.fn = lambda x: x * len([m for m in F if m in w.f]) + (1 if w.f & F.C else 2) + (w.i | Whole.B) + bool(w.f)
        w.set = hidden(lambda v: setattr(w, "f", F(v)))
        return w

    attack(world, lambda w: w.set(7), lambda w: w.set(0), replayed=False)


def test_rule_6_exit_stacks():
    def world():
        log = []

        @contextlib.contextmanager
        def cm(n):
            log.append(("in", n))
            try:
                yield n
            finally:
                log.append(("out", n))

        def fn(x):
            with contextlib.ExitStack() as st:
                for i in range(3):
                    x = x * (st.enter_context(cm(i)) + 1)
                st.callback(log.append, "cb")
                st.push(lambda *a: log.append("push") or True)
                if len(log) > 9:
                    raise ValueError
            with contextlib.suppress(KeyError):
                {}["a"]
            return x

        return World(fn=fn, log=log)

    attack(world, lambda w: w.log.clear(), replayed=False)


def test_rule_3_orders_and_hashes_of_their_own():
    def world():
        @functools.total_ordering
        class T:
            def __init__(s, v):
                s.v = v

            def __lt__(s, o):
                return s.v < o.v

            def __eq__(s, o):
                return s.v == o.v

            def __hash__(s):
                return hash(s.v)

        a, b = T(1), T(2)
        return World(
            fn=lambda x: x * (a >= b) + (a <= b) + (max(a, b) is a) + len({a, b}) + {a: 1.0, b: 2.0}[T(2)], a=a, b=b
        )

    attack(world, lambda w: setattr(w.a, "v", 2), lambda w: setattr(w.b, "v", 0), raises=KeyError)


def test_rule_2_large_numbers_and_texts():
    def world():
        w = World(n=10**40, s="ab", f=1e300)
        w.fn = lambda x: (
            x * (w.n % 7) + (w.s is sys.intern("ab")) + len(w.s * 2) + (w.f * w.f == math.inf) + hash(w.s) % 1
        )
        return w

    attack(
        world,
        lambda w: setattr(w, "n", 10**40 + 1),
        lambda w: setattr(w, "s", "".join(["a", "c"])),
        lambda w: setattr(w, "f", 1.0),
    )
