"""Rule 6: a class attribute that the program writes, and reads through other classes of the MRO."""

from __future__ import annotations

import pytest
import torch
from attacks import attack
from harness import World


def test_rule_6_a_subclass_hides_what_is_written():
    def world():
        class A:
            n = 1

        class B(A):
            n = 1

        a, b = A(), B()

        def fn(x):
            A.n = b.n
            A.n = 3
            result = x * b.n + a.n
            A.n = 1
            return result

        return World(fn=fn, A=A, B=B)

    attack(
        world,
        lambda w: delattr(w.B, "n"),
        lambda w: setattr(w.B, "n", 1),
        lambda w: setattr(w.B, "n", 5),
    )


def test_rule_6_a_subclass_with_an_entry_of_its_own():
    def world():
        class A:
            n = 1

        class B(A):
            n = 4

        b = B()

        def fn(x):
            A.n = 3
            return x * b.n + A.n

        return World(fn=fn, A=A, B=B)

    attack(world, lambda w: setattr(w.B, "n", 9), lambda w: delattr(w.B, "n"))


@pytest.mark.parametrize("value", [7, 2.5, "text", torch.full((1,), 7.0)], ids=["int", "float", "str", "tensor"])
def test_rule_6_what_lies_behind_a_deleted_entry(value):
    def world():
        class Z:
            n = value

        class A(Z):
            pass

        class B(A):
            pass

        b = B()

        def fn(x):
            A.n = 3
            y = x * b.n
            del A.n
            return y + (len(b.n) if isinstance(b.n, str) else b.n)

        return World(fn=fn, Z=Z, A=A, B=B)

    attack(
        world,
        lambda w: setattr(w.Z, "n", 9),
        lambda w: setattr(w.B, "n", 1),
        lambda w: delattr(w.B, "n"),
        lambda w: setattr(w.B, "__bases__", (w.Z,)),
    )


def test_rule_6_a_tensor_written_over_one_of_a_base():
    def world():
        class A:
            n = 1

        class B(A):
            t = torch.ones(1)

        class C(B):
            pass

        c = C()

        def fn(x):
            A.t = x
            return x * c.t + c.n

        return World(fn=fn, A=A, B=B, C=C)

    attack(
        world,
        lambda w: setattr(w.B, "t", torch.full((1,), 9.0)),
        lambda w: delattr(w.B, "t"),
        lambda w: setattr(w.C, "__bases__", (w.A,)),
    )


def test_rule_6_an_entry_deleted_from_a_metaclass():
    def world():
        class MZ(type):
            n = 5

        class M(MZ):
            pass

        class A(metaclass=M):
            pass

        def fn(x):
            M.n = 3
            y = x * A.n
            del M.n
            return y + A.n

        return World(fn=fn, MZ=MZ, A=A)

    attack(world, lambda w: setattr(w.MZ, "n", 9), lambda w: setattr(w.A, "n", 9))
