"""What every random program starts with: a small world of classes and functions, some of it random.

The classes look the same from outside (`.t`, `.n`, `.items`, `.total`, `.step(x)`, `(t, n)` to make one) and keep their
state each in another way, so that an object can be exchanged for one of another class.
"""

from __future__ import annotations

IMPORTS = """\
import collections
import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import json
import math
import operator
import random
import re
import sys
import warnings
import torch
from torch import nn
import stator
"""

FIXED = """\
LOG = []

Pair = collections.namedtuple('Pair', 'first second')

class Oops(Exception):
    pass

class Worse(Oops, ValueError):
    def __init__(self, *args):
        super().__init__(*args)
        self.count = len(args)

def make(seed, *shape, dtype=torch.float32):
    count = math.prod(shape)
    return torch.sin(torch.arange(count, dtype=torch.float64) * 1.7 + seed).reshape(shape).to(dtype)

class Scope:
    def __init__(self, name, swallow=False):
        self.name = name
        self.swallow = swallow
    def __enter__(self):
        LOG.append('enter ' + self.name)
        return len(LOG)
    def __exit__(self, kind, error, trace):
        LOG.append(('exit', self.name, kind and kind.__name__))
        return self.swallow

def managed(items):
    items.append(1)
    try:
        yield items
    finally:
        items.append(2)
managed = contextlib.contextmanager(managed)

def count_up(n):
    for i in range(n):
        got = yield i
        if got:
            LOG.append(got)

def make_scaler(factor):
    def scale(x):
        return x * factor
    return scale

def make_counter(start):
    count = start
    def counting(x):
        nonlocal count
        count += 1
        return x + count
    return counting

def cached(n):
    return n * 2 + 1
cached = functools.lru_cache(cached)

def poke(value):
    if isinstance(value, torch.Tensor):
        with torch.no_grad(), contextlib.suppress(RuntimeError):
            value.add_(1)
    elif isinstance(value, (list, tuple)):
        for item in list(value)[:4]:
            poke(item)
    elif isinstance(value, dict):
        for item in list(value.values())[:4]:
            poke(item)
    elif hasattr(value, '__next__'):
        LOG.append(next(value, 'end'))
    elif callable(value) and not isinstance(value, (type, nn.Module)):
        with contextlib.suppress(Exception):
            LOG.append(value(make(1, 4)))
    elif hasattr(value, 'n'):
        value.n += 1

def remember(x, seen=[]):
    seen.append(x)
    return sum(seen[-2:])
"""

# name, text; holes as everywhere. `self` and the parameters are known in bodies.
CLASSES = {
    "Plain": """\
class Plain:
    shared = <small>
    def __init__(self, t, n):
        self.t = t
        self.n = n
        self.items = [n, 1]
    @property
    def total(self):
        return self.n + len(self.items)
    def step(self, x):
        <body T|x:T|self:O>""",
    "Child": """\
class Child(Plain):
    def __init__(self, t, n):
        super().__init__(t, n + 1)
        self.extra = t * 2
    @property
    def total(self):
        return super().total * 2
    def step(self, x):
        y = super().step(x)
        return y + self.shared if isinstance(self.shared, int) else y
    def __eq__(self, other):
        return isinstance(other, Plain) and self.n == other.n
    def __hash__(self):
        return self.n % 3""",
    "Slotted": """\
class Slotted:
    __slots__ = ('t', 'n', 'items', 'extra')
    shared = []
    def __init__(self, t, n):
        self.t, self.n, self.items = t, n, [n]
    total = property(lambda self: self.n * 2)
    def step(self, x):
        self.n += 1
        return x * self.n""",
    "Lazy": """\
class Lazy:
    shared = <small>
    def __init__(self, t, n):
        self._t, self._n = t, n
    @property
    def t(self):
        return self._t
    @t.setter
    def t(self, value):
        self._t = value
        LOG.append('set t')
    def __getattr__(self, name):
        if name.startswith('__') or name in ('_n', '_t'):
            raise AttributeError(name)
        if name == 'n':
            return self._n
        if name == 'items':
            self.items = found = [self._n]
            return found
        raise AttributeError('no ' + name)
    @functools.cached_property
    def total(self):
        return self.n + 10
    def step(self, x):
        <body T|x:T|self:O>""",
    "Described": """\
class Field:
    def __set_name__(self, owner, name):
        self.name = '_' + name
    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return instance.__dict__[self.name]
    def __set__(self, instance, value):
        instance.__dict__['changes'] = instance.__dict__.get('changes', 0) + 1
        instance.__dict__[self.name] = value

class Described:
    t = Field()
    n = Field()
    shared = <small>
    def __init__(self, t, n):
        self.t, self.n, self.items = t, n, []
    @property
    def total(self):
        return self.__dict__.get('changes', 0)
    def step(self, x):
        return x + self.n + self.t""",
    "Data": """\
@dataclasses.dataclass
class Data:
    t: torch.Tensor
    n: int
    items: list = dataclasses.field(default_factory=lambda: [3, 4])
    shared = <small>
    @property
    def total(self):
        return sum(self.items)
    def step(self, x):
        other = dataclasses.replace(self, n=self.n + 1)
        return x * other.n
    def __eq__(self, other):
        return self is other""",
    "Net": """\
class Net(nn.Module):
    shared = <small>
    def __init__(self, t, n):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        with torch.no_grad():
            self.linear.weight.copy_(make(1, 4, 4))
            self.linear.bias.copy_(make(2, 4))
        self.register_buffer('t', t.detach())
        self.n, self.items = n, [n, 2]
    @property
    def total(self):
        return self.n + self.training
    def forward(self, x):
        <body T|x:T|self:O>
    def step(self, x):
        return self.linear(self(x)) if x.is_floating_point() and x.dtype == torch.float32 else x""",
    "Seq": """\
class Seq(list):
    shared = <small>
    def __init__(self, t, n):
        super().__init__([t, t + 1])
        self.n, self.items = n, self
    @property
    def t(self):
        return self[0]
    @t.setter
    def t(self, value):
        self[0] = value
    total = property(len)
    def step(self, x):
        self.append(x)
        return self[-2] + x
    def __eq__(self, other):
        return self is other
    __hash__ = object.__hash__""",
}
USUAL = ("Plain", "Child", "Slotted", "Lazy", "Described", "Data", "Net", "Seq")

FUNCTIONS = """\
def helper(x, n=<small>, scale=<real>):
    <body T|x:T|n:I|scale:F>

def spread(x, *rest, k=<small>, **more):
    <body T|x:T|rest:L|k:I|more:D>

def recurse(x, depth):
    if depth <= 0:
        return x
    return recurse(x * 2 if depth % 2 else x + depth, depth - 1)"""

STATE = """\
g_n = <small>
g_f = <real>
g_flag = <truth>
g_s = '<key>'
g_t = make(<small>, 4)
g_list = [g_t, make(3, 4)]
g_d = {'a': make(5, 4), 'b': g_list[1]}
g_q = (g_t, make(6, 1, 4))
g_j = [<small>, <small>, 2]
g_k = {<small>, <small>}
g_m = {1: <small>, <key_like>: 2, 'a': 3}
g_v = [g_j, [1, 2]]
g_dq = collections.deque([1, 2], maxlen=4)
g_dd = collections.defaultdict(list, a=[1])
g_o = <class>(g_t, <small>)
g_p = <class>(make(7, 4), <small>)
g_fn = <FN>
g_g = <G>"""
STATE_TYPES = dict(
    zip(
        "g_n g_f g_flag g_s g_t g_list g_d g_q g_j g_k g_m g_v g_dq g_dd g_o g_p g_fn g_g".split(),
        "I F B S T L D Q J K M V DQ DD O O FN G".split(),
        strict=True,
    )
)
