"""Rule 2: constants are guarded by value, type and, where nothing else tells them apart, by identity."""

from __future__ import annotations

import decimal
import enum
import math

from attacks import attack
from harness import World


def test_rule_2_an_attribute_of_an_enum_member():
    def world():
        class Color(enum.Enum):
            RED = 1
            BLUE = 2

        Color.RED.weight = 2.0
        return World(fn=lambda x: x * Color.RED.weight, c=Color)

    attack(world, lambda w: setattr(w.c.RED, "weight", 3.0), lambda w: w.c.RED.__dict__.update(weight=4.0))


def test_rule_2_the_value_of_an_enum_member():
    def world():
        class Color(enum.Enum):
            RED = 1
            BLUE = 2

        return World(fn=lambda x: x * Color.RED.value, c=Color)

    attack(world, lambda w: setattr(w.c.RED, "_value_", 3.0))


def test_rule_2_the_members_of_an_enum():
    def world():
        class Color(enum.Enum):
            RED = 1
            BLUE = 2

        return World(fn=lambda x: x * (2 if Color(1) is Color.RED else 3), c=Color)

    attack(world, lambda w: w.c._value2member_map_.update({1: w.c.BLUE}), replayed=False)


def test_rule_2_a_nan_is_found_by_identity():
    def world():
        n = float("nan")
        d = {n: 2.0}
        w = World(d=d, n=n)
        w.fn = lambda x: x * d.get(w.n, 5.0)
        return w

    attack(world, lambda w: setattr(w, "n", float("nan")))


def test_rule_2_equal_keys_of_other_types():
    def world():
        d = {1: 2.0}

        def fn(x):
            for k in d:
                x = x * 2 if isinstance(k, bool) else x + k
            return x

        return World(fn=fn, d=d)

    attack(world, lambda w: (w.d.clear(), w.d.update({True: 2.0})), lambda w: (w.d.clear(), w.d.update({1.0: 2.0})))


def test_rule_2_a_zero_of_the_other_sign_as_key():
    def world():
        d = {0.0: 2.0}

        def fn(x):
            for k in d:
                x = x * math.copysign(1, k)
            return x

        return World(fn=fn, d=d)

    attack(world, lambda w: (w.d.clear(), w.d.update({-0.0: 2.0})))


def test_rule_2_equal_members_of_other_types():
    def world():
        s = {1, 2}

        def fn(x):
            for k in s:
                x = x * 2 if isinstance(k, bool) else x + k
            return x

        return World(fn=fn, s=s)

    def ch(w):
        w.s.clear()
        w.s.update({True, 2})

    attack(world, ch)


def test_rule_2_decimals_follow_their_context():
    def world():
        a, b = decimal.Decimal(1), decimal.Decimal(3)
        return World(fn=lambda x: x * float(a / b), ctx=None)

    def ch(w):
        decimal.getcontext().prec = 2

    try:
        p = decimal.getcontext().prec
        attack(world, ch, lambda w: setattr(decimal.getcontext(), "prec", p), replayed=False)
    finally:
        decimal.getcontext().prec = p
