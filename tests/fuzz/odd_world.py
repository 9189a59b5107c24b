"""The shared world of programs, continued: objects that programs seldom have and a watcher easily misses.

Each part of `WORLD` is in a program only if something in it names it. `grammar.py` says what a hole is.
"""

from __future__ import annotations

WORLD = """\
odd_error = Oops('x', 1)

odd_space = types.SimpleNamespace(n=1, t=make(1, 4), sub=types.SimpleNamespace(k=[1]))

odd_counter = collections.Counter('abca')

odd_ordered = collections.OrderedDict(a=1, b=2, c=3)

odd_chain = collections.ChainMap({'a': 1}, {'b': 2})

odd_bytes = bytearray(b'abc')

odd_count = itertools.count(1)

odd_cycle = itertools.cycle([1, 2, 3])

odd_var = contextvars.ContextVar('odd_var', default=1)

odd_local = threading.local()

odd_weak = weakref.WeakValueDictionary()

odd_heap = [1, 3, 5]

odd_slice = slice(0, 2)

odd_range = range(3)

odd_array = array.array('i', [1, 2, 3])

odd_partial = functools.partial(lambda a, b, c=1: a * b + c, c=2)

odd_param = nn.Parameter(make(3, 4))

odd_linear = nn.Linear(4, 4)
odd_linear.load_state_dict({'weight': make(1, 4, 4), 'bias': make(2, 4)})

odd_norm = nn.BatchNorm1d(4)

odd_drop = nn.Dropout(0.5)

odd_modules = nn.ModuleList([nn.Identity(), nn.ReLU()])

odd_views = (lambda base: [base, base[0], base.view(-1), base.t()])(make(9, 2, 4))

class Missing(dict):
    def __missing__(self, key):
        LOG.append(('missing', key))
        self[key] = found = len(self)
        return found
odd_missing = Missing(a=1)

class Loud:
    def __init__(self, n):
        self.__dict__['n'] = n
    def __setattr__(self, name, value):
        LOG.append(('set', name))
        object.__setattr__(self, name, value)
    def __getattribute__(self, name):
        if name == 'n':
            LOG.append('get n')
        return object.__getattribute__(self, name)
    def __delattr__(self, name):
        LOG.append('del')
        object.__delattr__(self, name)
odd_loud = Loud(2)

class Number:
    def __init__(self, n):
        self.n = n
    def __add__(self, other):
        return Number(self.n + getattr(other, 'n', 1))
    __radd__ = __add__
    def __iadd__(self, other):
        self.n += getattr(other, 'n', 1)
        return self
    def __lt__(self, other):
        LOG.append('lt')
        return self.n < other.n
    def __eq__(self, other):
        return isinstance(other, Number) and self.n == other.n
    def __hash__(self):
        return self.n % 2
    def __bool__(self):
        return self.n > 1
    def __len__(self):
        return abs(self.n) % 4
    def __index__(self):
        return self.n % 2
    def __contains__(self, item):
        return item == self.n
    def __getitem__(self, at):
        if isinstance(at, int) and at > 2:
            raise IndexError(at)
        return self.n
    def __call__(self, x):
        self.n += 1
        return x * self.n
    def __format__(self, spec):
        return 'n' + spec
    def __float__(self):
        return float(self.n)
    def __mul__(self, other):
        return NotImplemented
    def __rmul__(self, other):
        return other
odd_number = Number(3)

odd_numbers = [Number(3), Number(1), Number(2)]

odd_keyed = {Number(1): 1, Number(2): 2}

class Color(enum.IntEnum):
    RED = 1
    BLUE = 2
odd_color = Color.RED

class Perm(enum.Flag):
    R = 1
    W = 2
odd_flags = Perm.R

@dataclasses.dataclass(frozen=True)
class Point:
    a: int
    b: int = 2
    def moved(self):
        return dataclasses.replace(self, a=self.a + 1)
odd_point = Point(1)

class Meta(type):
    def __call__(cls, *args):
        cls.made += 1
        return super().__call__(*args)
    @property
    def twice(cls):
        return cls.made * 2
class Counted(metaclass=Meta):
    made = 0
    instances = []
    def __init__(self):
        self.number = type(self).made
    @classmethod
    def build(cls):
        return cls()
    @staticmethod
    def fixed():
        return 3
    def __init_subclass__(cls, **kw):
        LOG.append(cls.__name__)

class Text(str):
    pass
odd_text = Text('hey')
odd_text.mark = 1

class Whole(int):
    def __add__(self, other):
        return Whole(int(self) + int(other) + 1)
odd_whole = Whole(3)

class Walker:
    def __init__(self):
        self.at = 0
    def __iter__(self):
        return self
    def __next__(self):
        self.at += 1
        if self.at % 4 == 0:
            raise StopIteration
        return self.at
odd_walker = Walker()

class Bag:
    def __init__(self):
        self.kept = {}
    def __setitem__(self, key, value):
        self.kept[key] = value
    def __getitem__(self, key):
        return self.kept[key]
    def __delitem__(self, key):
        del self.kept[key]
    def __iter__(self):
        return iter(self.kept)
    def __contains__(self, key):
        return key in self.kept
odd_bag = Bag()

def talk():
    total = 0
    try:
        while True:
            got = yield total
            total += got or 0
            LOG.append(total)
    except ValueError:
        yield -1
    finally:
        LOG.append('closed')
odd_talk = talk()

def chained(items):
    got = yield from items
    LOG.append(got)
    yield 100
odd_chained = chained([1, 2, 3])

def tensors_of(x):
    for k in range(8):
        x = x + k
        yield x
odd_tensors = tensors_of(make(1, 4))

def dispatching(value):
    return 0
dispatching = functools.singledispatch(dispatching)
dispatching.register(int)(lambda value: 1)
dispatching.register(list)(lambda value: 2)

def wrapped(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        inner.calls += 1
        return fn(*args, **kwargs)
    inner.calls = 0
    return inner

def doubled(x, k=2):
    return x * k
doubled = wrapped(doubled)

def no_gradients(x):
    return x * 2
no_gradients = torch.no_grad()(no_gradients)

def pair_of_closures(n):
    def up(k=1):
        nonlocal n
        n += k
        return n
    def get():
        return n
    return up, get
odd_pair = pair_of_closures(1)
odd_up = odd_pair[0]
odd_get = odd_pair[1]

def dropping(fn):
    try:
        return fn()
    except Exception as e:
        LOG.append((type(e).__name__, str(e)[:40]))
        return 0
"""

IMPORTS = """\
import array
import bisect
import contextvars
import enum
import heapq
import threading
import types
import weakref
"""
