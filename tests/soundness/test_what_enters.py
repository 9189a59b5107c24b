"""Rule 1 and pitfall 29: whatever a program reads, it sees when it changes, by whichever way.

Modules, functions, classes and their parts, exchanged between calls."""

from __future__ import annotations

import abc
import importlib
import sys
import types
import weakref

from attacks import attack, function_in, module
from harness import World


def test_rule_1_a_module_is_loaded_again(tmp_path):
    (tmp_path / "b2rel.py").write_text("K = 2.0\ndef f(x): return x * K\n")
    sys.path.insert(0, str(tmp_path))

    def world():
        (tmp_path / "b2rel.py").write_text("K = 2.0\ndef f(x): return x * K\n")
        sys.modules.pop("b2rel", None)
        import b2rel

        def fn(x):
            import b2rel as m

            return m.f(x) + b2rel.K

        return World(fn=fn)

    def ch(w):
        (tmp_path / "b2rel.py").write_text("K = 30.0\nKK=1\ndef f(x): return x * K + 1.0\n")
        importlib.invalidate_caches()
        sys.dont_write_bytecode = True
        importlib.reload(sys.modules["b2rel"])

    def ch2(w):
        sys.modules["b2rel"] = types.SimpleNamespace(f=lambda x: -x, K=0)

    def ch3(w):
        del sys.modules["b2rel"]

    try:
        attack(world, ch, ch2, ch3)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("b2rel", None)


def test_rule_1_names_imported_inside():
    def world():
        m = module("b2fi", "K = 2.0")
        p = module("b2pk", "")
        p.__path__ = []
        p.sub = module("b2pk.sub", "V = 3.0")

        def fn(x):
            import b2pk.sub as s
            from b2fi import K
            from b2pk import sub

            return x * K + sub.V + s.V

        return World(fn=fn)

    attack(
        world,
        lambda w: setattr(sys.modules["b2fi"], "K", 3.0),
        lambda w: setattr(sys.modules["b2pk"], "sub", types.SimpleNamespace(V=9.0)),
        lambda w: sys.modules.update(b2fi=types.SimpleNamespace(K=1.0)),
        lambda w: delattr(sys.modules["b2fi"], "K"),
        raises=ImportError,
    )


def test_rule_1_the_class_of_a_module_is_assigned():
    def world():
        m = module("b2mc", "K = 2.0")
        return World(
            fn=lambda x: x * m.K + getattr(m, "zz", 1.0),
            set=lambda c: setattr(m, "__class__", c),
            g=lambda: setattr(m, "__getattr__", lambda n: 8.0),
            d=lambda: m.__dict__.pop("K"),
        )

    class M(types.ModuleType):
        @property
        def K(self):
            return 9.0

    attack(world, lambda w: w.g(), lambda w: w.set(M), lambda w: w.set(types.ModuleType), lambda w: w.d())


def test_rule_1_builtins_of_its_own():
    def world():
        ns = {"__builtins__": {"len": lambda l: 7}, "l": [1, 2]}
        f = function_in(ns, "def f(x): return x * len(l)", "f")
        return World(fn=lambda x: f(x), ns=ns)

    attack(world, lambda w: w.ns["__builtins__"].update(len=lambda l: 8), lambda w: w.ns.update(len=lambda l: 9))


def test_rule_1_a_metaclass_answers():
    def world():
        class M(type):
            k = 2.0

            def __getattr__(c, n):
                return c.k

            def __call__(c, *a):
                return super().__call__(*a)

            def __len__(c):
                return int(c.k)

            def __contains__(c, i):
                return i == c.k

            def __instancecheck__(c, o):
                return c.k > 5

        class A(metaclass=M):
            def f(s, x):
                return x * 2

        def fn(x):
            return A().f(x) * A.zzz + len(A) + (3.0 in A) + isinstance(x, A)

        return World(fn=fn, A=A, M=M)

    attack(
        world,
        lambda w: setattr(w.M, "k", 10.0),
        lambda w: setattr(w.A, "k", 4.0),
        lambda w: setattr(w.M, "__len__", lambda c: 0),
        replayed=False,
    )


def test_rule_1_a_descriptor_with_a_cache():
    def world():
        class D:
            def __init__(s):
                s.cache = {}

            def __get__(s, o, t=None):
                if o is None:
                    return s
                if o.key not in s.cache:
                    s.cache[o.key] = o.key * 2.0
                return s.cache[o.key]

        class A:
            v = D()

        a = A()
        a.key = 1
        return World(fn=lambda x: x * a.v, a=a, A=A)

    attack(
        world,
        lambda w: setattr(w.a, "key", 2),
        lambda w: w.A.__dict__["v"].cache.clear(),
        lambda w: w.a.__dict__.update(v=100.0),
        lambda w: setattr(type(w.A.__dict__["v"]), "__set__", lambda *a: None),
    )


def test_rule_1_a_descriptor_that_keeps_values_by_owner():
    def world():
        class D:
            def __init__(s):
                s.data = weakref.WeakKeyDictionary()

            def __get__(s, o, t=None):
                return s.data.get(o, 1.0)

            def __set__(s, o, v):
                s.data[o] = v

        class A:
            v = D()

        a = A()

        def fn(x):
            a.v = a.v + 1
            return x * a.v

        return World(fn=fn, a=a, A=A)

    attack(world, lambda w: setattr(w.a, "v", 1.0), replayed=False, unreplayed=["object-keys", "rebuild"])


def test_rule_1_properties_with_state():
    def world():
        class A:
            n = 0

            @property
            def v(s):
                s.n += 1
                return s.n

            @v.setter
            def v(s, k):
                s.n = k * 2

            @v.deleter
            def v(s):
                s.n = -5

        a = A()

        def fn(x):
            y = x * a.v
            a.v = 3
            y = y + a.v
            del a.v
            return y + a.v

        return World(fn=fn, a=a, A=A)

    attack(world, lambda w: setattr(w.A, "v", 4.0), lambda w: None, raises=AttributeError)


def test_rule_1_a_lookup_that_keeps_a_log():
    def world():
        class A:
            def __init__(s):
                s.log = []
                s.v = 2.0

            def __getattribute__(s, n):
                object.__getattribute__(s, "log").append(n)
                return object.__getattribute__(s, n)

        a = A()
        return World(fn=lambda x: x * a.v, a=a, A=A)

    attack(
        world,
        lambda w: object.__setattr__(w.a, "v", 4.0),
        lambda w: delattr(w.A, "__getattribute__"),
        lambda w: setattr(w.A, "v", property(lambda s: 11.0)),
    )


def test_rule_1_super_behind_exchanged_classes():
    def world():
        class A:
            def f(s, x):
                return x * 2

        class B(A):
            def f(s, x):
                return super().f(x) + 1

        class C(A):
            def f(s, x):
                return super().f(x) * 3

        class D(B, C):
            pass

        d = D()
        return World(fn=lambda x: d.f(x) + super(C, d).f(x) + super(B, D).f(d, x), d=d, A=A, B=B, C=C, D=D)

    attack(
        world,
        lambda w: setattr(w.D, "__bases__", (w.C, w.B)),
        lambda w: setattr(w.C, "f", lambda s, x: -x),
        lambda w: delattr(w.B, "f"),
        lambda w: setattr(w.d, "f", lambda x: x),
        lambda w: (delattr(w.d, "f"), setattr(w.d, "__class__", w.A)),
        raises=TypeError,
    )


def test_rule_1_the_class_cell():
    def world():
        class A:
            k = 2.0

            def f(s, x):
                return x * __class__.k

        class B(A):
            k = 3.0

        b = B()
        return World(fn=lambda x: b.f(x), A=A, B=B)

    attack(world, lambda w: setattr(w.A, "k", 4.0), lambda w: setattr(w.B, "k", 5.0))


def test_rule_1_the_dict_of_an_object_is_exchanged():
    def world():
        class A:
            pass

        a = A()
        a.v = 2.0
        return World(fn=lambda x: x * a.v, a=a)

    attack(world, lambda w: setattr(w.a, "__dict__", {"v": 3.0}), lambda w: w.a.__dict__.clear(), raises=AttributeError)


def test_rule_1_the_fields_of_a_pattern_change():
    def world():
        class P:
            __match_args__ = ("a", "b")

            def __init__(s):
                s.a, s.b = 1.0, 2.0

        p = P()

        def fn(x):
            match p:
                case P(u, v):
                    return x * u + v
            return -x

        return World(fn=fn, P=P)

    attack(
        world,
        lambda w: setattr(w.P, "__match_args__", ("b", "a")),
        lambda w: delattr(w.P, "__match_args__"),
        raises=TypeError,
    )


def test_rule_1_a_class_becomes_abstract():
    def world():
        class P(metaclass=abc.ABCMeta):
            def go(self, x):
                return x * 2

            @abc.abstractmethod
            def come(self, x): ...

        P.__abstractmethods__ = frozenset()
        return World(fn=lambda x: P().go(x), P=P)

    attack(world, lambda w: setattr(w.P, "__abstractmethods__", frozenset({"go"})), raises=TypeError)


def test_pitfall_29_defaults_changed_in_place():
    def world():
        l = [1.0]

        def g(x, a=l, *, k=2.0):
            return x * a[0] + k

        return World(fn=lambda x: g(x), g=g, l=l)

    attack(
        world,
        lambda w: w.l.__setitem__(0, 3.0),
        lambda w: w.g.__kwdefaults__.update(k=5.0),
        lambda w: setattr(w.g, "__kwdefaults__", None),
        raises=TypeError,
    )


def test_pitfall_29_names_of_a_function_are_read():
    def world():
        def g(x):
            return x * len(g.__name__) + len(g.__doc__ or "") + len(g.__qualname__)

        return World(fn=lambda x: g(x), g=g)

    attack(
        world,
        lambda w: setattr(w.g, "__name__", "ggggg"),
        lambda w: setattr(w.g, "__doc__", "hi"),
        lambda w: setattr(w.g, "__qualname__", "q"),
    )


def test_pitfall_29_annotations_of_a_function_are_read():
    def world():
        def g(x):
            return x * g.__annotations__["x"] + g.__annotations__["return"]

        g.__annotations__ = {"x": 1, "return": 2}
        return World(fn=lambda x: g(x), g=g)

    attack(
        world,
        lambda w: w.g.__annotations__.update(x=5),
        lambda w: setattr(w.g, "__annotations__", {"x": 7, "return": 1}),
    )
