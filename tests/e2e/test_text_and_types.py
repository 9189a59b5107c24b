"""Strings, numbers, and asking objects what they are and have."""

from __future__ import annotations

import collections.abc
import functools
import math
import operator
import re

import pytest
import torch
from harness import World, check, check_stateless, rand
from torch import nn

import stator

TEMPLATE, PERCENT, SIZES, NUMBER = "{0.name} {1[k]}", "<%s>", "%d-%d", "{:>4}"


class Thing:
    def __init__(self, **attributes):
        vars(self).update(attributes)


def test_f_strings():
    def fn(x, name):
        text = f"{name!r:>8}|{x.shape[0]:03d}|{tuple(x.shape)}|{3.14159:.2f}|{x.dtype}"
        return x * len(text), text

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1), "ab"), lambda w: w.fn(rand(2), "ab"), lambda w: w.fn(rand(3), "abc")],
        expect="miss hit miss",
    )


def test_an_f_string_asks_an_object():
    class Named:
        def __init__(self, name):
            self.name = name

        def __str__(self):
            return f"<{self.name}>"

        def __format__(self, spec):
            return f"{self.name}:{spec}"

    def fn(x, named):
        return x * 2, f"{named!s} {named:wide}", TEMPLATE.format(named, {"k": 3}), PERCENT % named

    def rename(w):
        w.named.name = "other"
        return w.fn(rand(3), w.named)

    check(
        lambda: World(fn=fn, named=Named("n")),
        [lambda w: w.fn(rand(1), w.named), lambda w: w.fn(rand(2), w.named), rename],
        expect="miss hit miss",
    )


ADDRESSES = {
    "repr": lambda thing: repr(thing),
    "str": lambda thing: str(thing),
    "format": lambda thing: format(thing),
    "ascii": lambda thing: ascii(thing),
    "f-string": lambda thing: f"{thing}",
    "f-string repr": lambda thing: f"{thing!r:>80}",
    "percent": lambda thing: PERCENT % thing,
    "percent tuple": lambda thing: "%s %s" % (1, thing),  # noqa: UP031
    "percent dict": lambda thing: "%(key)s" % {"key": thing},  # noqa: UP031
    "str.format": lambda thing: "{}".format(thing),  # noqa: UP032
    "str.format by name": lambda thing: "{a!r}".format(a=thing),  # noqa: UP032
    "str.format_map": lambda thing: "{a}".format_map({"a": thing}),
    "in a list": lambda thing: str([1, thing]),
    "deep": lambda thing: f"{(1, {2: [thing]})}",
    "dict view": lambda thing: str({1: thing}.values()),
    "exception": lambda thing: str(ValueError(thing)),
    "dunder": lambda thing: thing.__repr__() + thing.__str__(),
    "of object": lambda thing: object.__repr__(thing),
    "of list": lambda thing: list.__repr__([thing]),
    "method": lambda thing: repr(thing.__init__),
    "partial": lambda thing: repr(functools.partial(print, thing)),
    "map": lambda thing: ",".join(map(repr, [thing, 1])),
    "sorted": lambda thing: str(sorted([thing, 1], key=str)[0] is thing) + repr(thing),
}


@pytest.mark.parametrize("text_of", ADDRESSES.values(), ids=ADDRESSES)
def test_the_address_of_an_outside_object_in_a_text(text_of):
    """The same guards hold for all of these objects; their texts differ."""
    compiled = stator.compile(lambda x, thing: (x * 2, text_of(thing)), backend="eager")
    things = [Thing() for _ in range(4)]
    for seed, thing in enumerate(things):
        y, text = compiled(rand(seed), thing)
        assert torch.equal(y, rand(seed) * 2) and text == text_of(thing)


@pytest.mark.parametrize("text_of", ADDRESSES.values(), ids=ADDRESSES)
def test_the_address_of_an_object_made_inside_in_a_text(text_of):
    def fn(x):
        thing = Thing()
        return x * 2, text_of(thing), thing

    compiled = stator.compile(fn, backend="eager")
    kept = []
    for seed in range(4):
        y, text, thing = compiled(rand(seed))
        kept.append(thing)
        assert torch.equal(y, rand(seed) * 2) and text == text_of(thing)


def test_the_address_of_a_function_made_inside_in_a_text():
    def fn(x):
        def inner():
            return 1

        return x * 2, f"{inner}", "%r" % inner, str([inner]), inner  # noqa: UP031

    compiled = stator.compile(fn, backend="eager")
    kept = []
    for seed in range(4):
        _, *texts, inner = compiled(rand(seed))
        kept.append(inner)
        assert texts == [f"{inner}", repr(inner), str([inner])]


def test_texts_without_addresses_do_not_break():
    class Named:
        def __repr__(self):
            return "named"

    def fn(x, named, table):
        texts = f"{named} {table!r} {type(x)} {x.dtype} {x.shape} {None} {len}", repr(named), str(table)
        return x * 2, texts, PERCENT % named, f"{named} {[named]!r}", str(ValueError("a", 1)), str(slice(1, 2))

    world = lambda: World(fn=fn, named=Named(), table={"a": [1, 2.0, (True, "b")], "c": Named})  # noqa: E731
    check(world, [lambda w, s=s: w.fn(rand(s), w.named, w.table) for s in (1, 2, 3)], expect="miss hit hit", breaks=[])


def test_string_methods():
    def fn(x, key):
        parts = key.split(".")
        name = "_".join(p.upper() for p in parts if not p.isdigit()).replace("W", "V").strip("_")
        if key.endswith("weight") and parts[-1][0] in "wv" and key.find("layer") >= 0:
            x = x + len(name)
        return x * key.count("."), name, key.partition("."), key[::-1], key * 2, key > "a", key.encode()

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), "layer.0.weight"),
            lambda w: w.fn(rand(2), "layer.0.weight"),
            lambda w: w.fn(rand(3), "layer.0.bias"),
        ],
        expect="miss hit miss",
    )


def test_regular_expressions():
    pattern = re.compile(r"layer\.(\d+)\.(?P<kind>\w+)")

    def fn(x, key):
        found = pattern.match(key)
        if found is None:
            return x - 1
        return x * int(found.group(1)), found["kind"]

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), "layer.3.weight"),
            lambda w: w.fn(rand(2), "layer.3.weight"),
            lambda w: w.fn(rand(3), "head"),
        ],
        expect=None,
    )


def test_math_and_number_functions():
    def fn(x, n):
        scale = 1 / math.sqrt(n) + math.pi * math.floor(2.7) + math.log2(n) - math.inf * 0.0 * 0
        steps = (
            divmod(n, 3),
            pow(n, 2, 7),
            abs(-n),
            round(n / 3, 2),
            int("12"),
            float("1.5"),
            bool(n),
            hash(n),
        )
        return (
            x * math.prod([1, n]) + math.gcd(n, 6),
            steps,
            math.isnan(scale),
            n.bit_length(),
            7 // n,
            -7 % n,
        )

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1), 4), lambda w: w.fn(rand(2), 4), lambda w: w.fn(rand(3), 9)],
        expect="miss hit miss",
    )


def test_isinstance_and_type():
    def fn(x, value):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return x * value
        if isinstance(value, collections.abc.Mapping):
            return x + len(value)
        if type(value) is list:
            return [x - v for v in value]
        if isinstance(value, str | bytes):
            return x + value.__len__()
        return x - 1

    values = [lambda: 2, lambda: {"a": 1}, lambda: [1, 2], lambda: "text"]
    check(
        lambda: World(fn=fn),
        [lambda w, v=v, s=s: w.fn(rand(s) + 1, v()) for s in (1, 2) for v in values],
        expect="miss miss miss miss hit hit hit hit",
    )


def test_isinstance_of_tensors_and_modules():
    def world():
        torch.manual_seed(1)
        return World(fn=fn, linear=nn.Linear(4, 4), relu=nn.ReLU())

    def fn(x, layer):
        if isinstance(layer, nn.Linear):
            return x @ layer.weight
        if isinstance(layer, nn.Module):
            return layer(x)
        return x * layer if isinstance(layer, nn.Parameter) else x + layer

    check(
        world,
        [
            lambda w: w.fn(rand(1), w.linear),
            lambda w: w.fn(rand(2), w.relu),
            lambda w: w.fn(rand(3), w.linear.bias),
            lambda w: w.fn(rand(4), rand(5)),
            lambda w: w.fn(rand(6), w.linear),
            lambda w: w.fn(rand(7), rand(8)),
        ],
        expect="miss miss miss miss hit hit",
    )


def test_user_defined_instance_checks():
    class Even(type):
        def __instancecheck__(cls, value):
            return isinstance(value, int) and value % 2 == 0

    class EvenNumber(metaclass=Even):
        pass

    def fn(x, n):
        return x + 1 if isinstance(n, EvenNumber) else x - 1

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1), 2), lambda w: w.fn(rand(2), 2), lambda w: w.fn(rand(3), 3)],
        expect="miss hit miss",
    )


def test_hasattr_and_getattr_with_default():
    def fn(x, thing):
        scale = getattr(thing, "scale", 5)
        if hasattr(thing, "bias"):
            x = x + getattr(thing, "bi" + "as")
        return x * scale

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), Thing()),
            lambda w: w.fn(rand(2), Thing()),
            lambda w: w.fn(rand(3), Thing(scale=2)),
            lambda w: w.fn(rand(4), Thing(bias=rand(5))),
            lambda w: w.fn(rand(6), Thing(bias=rand(7))),
        ],
        expect="miss hit miss miss hit",
    )


def test_setattr_and_delattr():
    def fn(x, thing):
        for name in ("a", "b"):
            setattr(thing, name, x * len(name))
        delattr(thing, "old")
        vars(thing)["c"] = x + 1
        return thing.a + thing.c

    def call(seed):
        def run(w):
            w.thing = Thing(old=1)
            return w.fn(rand(seed), w.thing)

        return run

    check(lambda: World(fn=fn, thing=None), [call(1), call(2), call(3)], expect="miss hit hit")


def test_vars_and_dunder_dict():
    def fn(x, thing):
        total = x
        for value in vars(thing).values():
            total = total + value
        return total, sorted(thing.__dict__)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), Thing(a=rand(2), b=1)),
            lambda w: w.fn(rand(3), Thing(a=rand(4), b=1)),
            lambda w: w.fn(rand(5), Thing(a=rand(6), b=1, c=2)),
        ],
        expect="miss hit miss",
    )


def test_callable_and_length_hints():
    def fn(x, value):
        if callable(value):
            return value(x)
        return x * operator.length_hint(value) + len(value)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), torch.neg),
            lambda w: w.fn(rand(2), [1, 2]),
            lambda w: w.fn(rand(3), torch.neg),
            lambda w: w.fn(rand(4), [1, 2]),
        ],
        expect="miss miss hit hit",
    )


def test_questions_to_a_tensor():
    def fn(x):
        facts = [x.dim(), x.ndim, x.numel(), x.size(), x.size(0), x.stride(), x.dtype, x.device, x.layout]
        facts += [x.is_floating_point(), x.is_contiguous(), x.requires_grad, x.is_leaf, len(x), x.itemsize]
        facts += [x.is_cuda, x.is_sparse, x.element_size(), x.nbytes, x.storage_offset(), x.shape.numel()]
        facts += [torch.is_tensor(x), torch.is_floating_point(x), isinstance(x, torch.Tensor), type(x)]
        return x * len(facts), facts

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1)),
            lambda w: w.fn(rand(2)),
            lambda w: w.fn(rand(3, 3, 2).t()),
            lambda w: w.fn(rand(4, 3, 2).t()),
        ],
        expect="miss hit miss hit",
    )


def test_formatting_numbers_of_the_shape():
    def fn(x):
        n, m = x.shape
        return x.view(m, n), f"{n}x{m}", str(x.shape), repr([n, m]), SIZES % (n, m), NUMBER.format(n)

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1, 2, 3)), lambda w: w.fn(rand(2, 2, 3)), lambda w: w.fn(rand(3, 3, 2))],
        expect="miss hit miss",
    )


def test_type_of_the_result_is_exact():
    check_stateless(lambda x: (x + 1, 1, True, 1.0, 1j, "s", b"b", None, ..., x.shape[0], x.shape, float, x.dtype))
