"""User classes: what is looked up on objects from outside, and what their special methods do."""

from __future__ import annotations

import functools

import pytest
import torch
from harness import World, check, rand


class Layer:
    kind = "layer"
    count = 0

    def __init__(self, scale, bias):
        self.scale = scale
        self.bias = bias

    def apply(self, x):
        return x * self.scale + self.bias

    def __call__(self, x, times=1):
        for _ in range(times):
            x = self.apply(x)
        return x

    @property
    def norm(self):
        return self.bias.abs().sum()

    @norm.setter
    def norm(self, value):
        self.bias = self.bias / self.bias.abs().sum() * value

    @classmethod
    def named(cls, x):
        return x + len(cls.kind)

    @staticmethod
    def shift(x, by):
        return x + by


class Wide(Layer):
    kind = "wide layer"

    def __init__(self, scale, bias, width):
        super().__init__(scale, bias)
        self.width = width

    def apply(self, x):
        return super().apply(x).repeat(self.width)[: x.shape[0]] + 1


def world_of(fn, make=lambda: Layer(2.0, rand(100))):
    return lambda: World(fn=fn, layer=make())


def call(seed, **changes):
    """Call `fn` with a tensor and the layer, after some of the layer's attributes were set."""

    def run(w):
        for name, value in changes.items():
            setattr(w.layer, name, value() if callable(value) else value)
        return w.fn(rand(seed), w.layer)

    return run


def test_methods_and_attributes():
    check(
        world_of(lambda x, layer: layer.apply(x) - layer.bias),
        [call(1), call(2), call(3, scale=3.0), call(4, bias=lambda: rand(101))],
        expect="miss hit miss hit",
    )


def test_another_object_of_the_same_class():
    def fn(x, layer):
        return layer.apply(x)

    check(
        lambda: World(fn=fn, layers=[Layer(2.0, rand(s)) for s in (10, 11)], other=Layer(5.0, rand(12))),
        [
            lambda w: w.fn(rand(1), w.layers[0]),
            lambda w: w.fn(rand(2), w.layers[1]),
            lambda w: w.fn(rand(3), w.other),
        ],
        expect="miss hit miss",
    )


def test_calling_an_object():
    check(
        world_of(lambda x, layer: layer(x) + layer(x, times=2)),
        [call(1), call(2), call(3, bias=lambda: rand(101))],
        expect="miss hit hit",
    )


def test_reading_a_property():
    check(
        world_of(lambda x, layer: x / layer.norm),
        [call(1), call(2), call(3, bias=lambda: rand(101))],
        expect="miss hit hit",
    )


def test_writing_a_property():
    def fn(x, layer):
        layer.norm = x.sum()
        return layer.norm * 2

    check(world_of(fn), [call(1), call(2), call(3, bias=lambda: rand(101))], expect="miss hit hit")


def test_class_methods_static_methods_and_class_attributes():
    check(
        world_of(lambda x, layer: layer.named(x) + Layer.shift(x, 2) + layer.shift(x, len(layer.kind))),
        [call(1), call(2), call(3, kind="another kind"), call(4)],
        expect="miss hit miss hit",
    )


def test_super_and_overriding():
    check(
        world_of(lambda x, layer: layer(x), make=lambda: Wide(2.0, rand(100), 3)),
        [call(1), call(2), call(3, width=2), call(4, bias=lambda: rand(101))],
        expect="miss hit miss hit",
    )


def test_super_in_a_diamond():
    class Base:
        def steps(self, x):
            return [x]

    class Left(Base):
        def steps(self, x):
            return [*super().steps(x), x + 1]

    class Right(Base):
        def steps(self, x):
            return [*super().steps(x), x * 2]

    class Both(Left, Right):
        def steps(self, x):
            return [*super(Both, self).steps(x), x - 3]  # noqa: UP008  the long form

    check(
        world_of(lambda x, layer: layer.steps(x), make=Both),
        [call(1), call(2), call(3)],
        expect="miss hit hit",
    )


def test_a_class_attribute_is_changed():
    def world():
        class Local(Layer):
            pass

        return World(fn=lambda x, layer: x + len(layer.kind), cls=Local, layer=Local(1.0, rand(100)))

    def rename(w):
        w.cls.kind = "local"
        return w.fn(rand(3), w.layer)

    check(world, [call(1), call(2), rename, call(4)], expect="miss hit miss hit")


def test_a_method_is_replaced_on_the_class_and_on_the_object():
    def world():
        class Local(Layer):
            pass

        return World(fn=lambda x, layer: layer.apply(x), cls=Local, layer=Local(1.0, rand(100)))

    def on_class(w):
        w.cls.apply = lambda self, x: x - self.bias
        return w.fn(rand(3), w.layer)

    def on_object(w):
        w.layer.apply = lambda x: x * 7
        return w.fn(rand(4), w.layer)

    check(world, [call(1), call(2), on_class, on_object], expect="miss hit miss miss")


def test_a_class_attribute_is_written():
    def world():
        class Counting(Layer):
            last = None

            def apply(self, x):
                type(self).last = x * 2
                return super().apply(x)

        return World(fn=lambda x, layer: layer.apply(x), cls=Counting, layer=Counting(1.0, rand(100)))

    check(world, [call(1), call(2), call(3)], expect="miss hit hit", observe=lambda w: w.cls.last)


def test_attributes_are_written_and_deleted():
    def fn(x, layer):
        layer.bias = layer.bias + x
        layer.seen = x.shape[0]
        layer.temporary = x
        del layer.temporary
        return layer.bias * 2

    check(world_of(fn), [call(1), call(2), call(3, bias=lambda: rand(101))], expect="miss hit hit")


def test_an_attribute_that_is_only_written():
    def fn(x, layer):
        layer.last = x * 2
        layer.info = {"shape": x.shape, "values": [x, layer.last]}
        return layer.last + 1

    def forget(seed):
        def run(w):
            vars(w.layer).pop("last", None)
            vars(w.layer).pop("info", None)
            return w.fn(rand(seed), w.layer)

        return run

    check(world_of(fn), [forget(1), forget(2), forget(3)], expect="miss hit hit")


def test_getattr_of_a_missing_attribute():
    class Open(Layer):
        def __getattr__(self, name):
            if name.startswith("times_"):
                return lambda x: x * int(name.removeprefix("times_"))
            raise AttributeError(name)

    def fn(x, layer):
        return layer.times_3(x) + (layer.times_5(x) if hasattr(layer, "wanted") else 0)

    check(
        world_of(fn, make=lambda: Open(1.0, rand(100))),
        [call(1), call(2), call(3, wanted=True), call(4)],
        expect="miss hit miss hit",
    )


def test_getattribute_and_setattr_hooks():
    class Logged:
        def __init__(self):
            object.__setattr__(self, "values", {"w": rand(100)})

        def __getattribute__(self, name):
            values = object.__getattribute__(self, "values")
            return values[name] if name in values else object.__getattribute__(self, name)

        def __setattr__(self, name, value):
            self.values[name] = value

    def fn(x, layer):
        layer.w = layer.w + x
        return layer.w * 2

    check(
        world_of(fn, make=Logged),
        [call(1), call(2), call(3, w=lambda: rand(101))],
        expect="miss hit hit",
        observe=lambda w: object.__getattribute__(w.layer, "values"),
    )


def test_indexing_length_containment_and_iteration_of_a_user_class():
    class Stack:
        def __init__(self):
            self.items = [rand(10), rand(11)]

        def __len__(self):
            return len(self.items)

        def __getitem__(self, i):
            return self.items[i]

        def __setitem__(self, i, value):
            self.items[i] = value

        def __contains__(self, i):
            return 0 <= i < len(self.items)

        def __iter__(self):
            return iter(self.items)

    def fn(x, stack):
        total = sum(item * 2 for item in stack) + len(stack)
        if 1 in stack:
            stack[1] = x
        return total + stack[0] + stack[-1]

    def longer(w):
        w.layer.items.append(rand(12))
        return w.fn(rand(3), w.layer)

    check(
        world_of(fn, make=Stack),
        [call(1), call(2), longer, call(4, items=lambda: [rand(5), rand(6)])],
        expect="miss hit miss hit",
    )


def test_operators_of_a_user_class():
    class Vec:
        def __init__(self, t):
            self.t = t

        def __add__(self, other):
            return Vec(self.t + (other.t if isinstance(other, Vec) else other))

        __radd__ = __add__

        def __mul__(self, k):
            return Vec(self.t * k)

        def __imul__(self, k):
            self.t = self.t * k
            return self

        def __matmul__(self, other):
            return (self.t * other.t).sum()

        def __neg__(self):
            return Vec(-self.t)

        def __eq__(self, other):
            return self.t.shape == other.t.shape

        def __lt__(self, other):
            return len(self.t.shape) < len(other.t.shape)

        def __bool__(self):
            return self.t.dim() > 0

        __hash__ = None

    def fn(x, v):
        fresh = 1 + (v + Vec(x)) * 2
        fresh *= 3
        if v and v == fresh and not v < fresh:
            return (-fresh).t, v @ fresh
        return x

    check(
        world_of(fn, make=lambda: Vec(rand(10))),
        [call(1), call(2), call(3, t=lambda: rand(11)), call(4, t=lambda: rand(12, 1, 4))],
        expect="miss hit hit miss",
    )


def test_descriptors():
    class Scaled:
        """A data descriptor that keeps its value in the owner under another name."""

        def __set_name__(self, owner, name):
            self.key = "_" + name

        def __get__(self, obj, owner=None):
            return self if obj is None else getattr(obj, self.key) * 2

        def __set__(self, obj, value):
            setattr(obj, self.key, value + 1)

    class Holder:
        weight = Scaled()

        def __init__(self):
            self.weight = rand(100)

    def fn(x, holder):
        before = holder.weight
        holder.weight = x
        return before + holder.weight

    check(
        world_of(fn, make=Holder),
        [call(1), call(2), call(3, weight=lambda: rand(101))],
        expect="miss hit hit",
    )


def test_a_cached_property_is_computed_once():
    class Lazy:
        def __init__(self):
            self.base = rand(100)

        @functools.cached_property
        def table(self):
            return self.base.cumsum(0)

    def forget(w):
        vars(w.layer).pop("table")
        return w.fn(rand(3), w.layer)

    check(
        world_of(lambda x, lazy: x * lazy.table, make=Lazy),
        [call(1), call(2), forget, call(4)],
        expect=None,
    )


def test_slots():
    class Slotted:
        __slots__ = ("last", "scale", "weight")

        def __init__(self):
            self.scale, self.weight = 2.0, rand(100)

    def fn(x, layer):
        layer.last = layer.weight * layer.scale + x
        return layer.last * 2

    check(
        world_of(fn, make=Slotted),
        [call(1), call(2), call(3, scale=3.0), call(4, weight=lambda: rand(101))],
        expect="miss hit miss hit",
    )


def test_an_empty_slot_is_noticed_when_it_is_filled():
    class Slotted:
        __slots__ = ("weight",)

    def fn(x, layer):
        return x * layer.weight if hasattr(layer, "weight") else x + 1

    check(
        world_of(fn, make=Slotted),
        [call(1), call(2), call(3, weight=lambda: rand(101)), call(4)],
        expect="miss hit miss hit",
    )


def test_bound_methods_as_values():
    def fn(x, layer):
        steps = [layer.apply, layer.__call__, functools.partial(layer.apply)]
        for step in steps:
            x = step(x)
        return x

    check(world_of(fn), [call(1), call(2), call(3, bias=lambda: rand(101))], expect="miss hit hit")


def test_compiling_a_bound_method():
    def world():
        layer = Layer(2.0, rand(100))
        return World(fn=layer.apply, layer=layer)

    def rescale(w):
        w.layer.scale = 3.0
        return w.fn(rand(3))

    check(
        world,
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), rescale, lambda w: w.fn(rand(4))],
        expect="miss hit miss hit",
    )


def test_a_partial_method_and_a_class_with_class_getitem():
    class Powers:
        def power(self, x, n):
            return x**n

        square = functools.partialmethod(power, n=2)

        def __class_getitem__(cls, n):
            return functools.partial(cls().power, n=n)

    check(
        world_of(lambda x, p: p.square(x) + type(p)[3](x), make=Powers),
        [call(1), call(2), call(3)],
        expect="miss hit hit",
    )


def test_tensors_compared_by_identity_inside_objects():
    def fn(x, layer):
        return x + 1 if layer.bias is layer.scale else x - 1

    shared = torch.ones(4)
    check(
        world_of(fn),
        [
            call(1, bias=lambda: shared, scale=lambda: shared),
            call(2),
            call(3, bias=lambda: rand(101)),
            call(4, scale=lambda: rand(102)),
        ],
        expect="miss hit miss hit",
    )


def _by_super(cls, name):
    return super(type(cls), cls).__getattribute__(name)


def _by_type(cls, name):
    return type.__getattribute__(cls, name)


@pytest.mark.parametrize("getter", [_by_super, _by_type])
@pytest.mark.parametrize("read", ["attribute", "getattr", "inherited"])
def test_attributes_of_classes_whose_metaclass_looks_them_up(getter, read):
    meta = type("Meta", (type,), {"__getattribute__": getter})

    def world():
        base = meta("Base", (), {"scale": 3})
        cls = meta("Cls", (base,), {}) if read == "inherited" else base

        def fn(x):
            return x * (getattr(cls, "scale") if read == "getattr" else cls.scale)  # noqa: B009

        return World(fn=fn, base=base)

    def scaled(number):
        def call(w):
            type.__setattr__(w.base, "scale", number)
            return w.fn(rand(number))

        return call

    check(world, [scaled(3), scaled(3), scaled(5), scaled(5)], expect="miss hit miss hit")
