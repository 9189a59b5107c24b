"""Types of the C extension: the frame hook, the probes and the watcher.

The sources are in the folder `_native/` beside this file; docs/design/instrumentation.md explains them.
"""

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final, final

from .recording import Check, Edge, Fact, Place

# The state of a thread.
OFF: Final[int]
WATCHING: Final[int]
SENTINEL: Final[int]
PENDING: Final[int]

# What a code object was classified as; INSTRUMENTED marks our copies.
COPY: Final[int]
SKIP: Final[int]
OURS: Final[int]
LEAF: Final[int]
TRANSPARENT: Final[int]
CONSTANT: Final[int]
BLIND: Final[int]
INSTRUMENTED: Final[int]

# Kinds of probes.
ATTR: Final[int]
SUPER_ATTR: Final[int]
GLOBAL: Final[int]
DEREF: Final[int]
SUBSCR: Final[int]
SLICE: Final[int]
CALL: Final[int]
CALL_EX: Final[int]
BINARY: Final[int]
COMPARE: Final[int]
CONTAINS: Final[int]
IS: Final[int]
UNARY: Final[int]
TRUTH: Final[int]
ITER: Final[int]
NEXT: Final[int]
UNPACK: Final[int]
EXTEND: Final[int]
HASH: Final[int]
WITH: Final[int]
WITH_EXIT: Final[int]
FORMAT: Final[int]
AWAIT: Final[int]
STORE_ATTR: Final[int]
DELETE_ATTR: Final[int]
STORE_SUBSCR: Final[int]
STORE_SLICE: Final[int]
DELETE_SUBSCR: Final[int]
STORE_GLOBAL: Final[int]
DELETE_GLOBAL: Final[int]
STORE_DEREF: Final[int]
DELETE_DEREF: Final[int]
IMPORT_NAME: Final[int]
IMPORT_FROM: Final[int]
BUILD_CLASS: Final[int]
MATCH: Final[int]
MATCH_CLASS: Final[int]
MATCH_KEYS: Final[int]
RAISE: Final[int]
ESCAPE: Final[int]
EXC_MATCH: Final[int]
INTRINSIC: Final[int]
FUNCTION: Final[int]
RETURN: Final[int]
PACK: Final[int]
INSERT: Final[int]

MISSING: Final[object]

class Unwatchable(Exception):
    """This code cannot be watched; the argument says why."""

@final
class Probe:
    """One watched instruction. It fires before the instruction; only FUNCTION fires after."""

    def __new__(
        cls,
        kind: int,
        depth: int,
        count: int,
        arg: object,
        offset: int,
        code: CodeType,
        stores: str | None,
        span: int = -1,
        step: int = 1,
        slot: int = -1,
    ) -> Probe: ...
    @property
    def kind(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def span(self) -> int:
        """How many slots of the stack its operands take up."""
    @property
    def count(self) -> int:
        """Operands read from the stack; for CALL the number of arguments, without a method's self."""
    @property
    def arg(self) -> Any: ...
    @property
    def offset(self) -> int:
        """Of the instruction in the original code; for CALL that of the CALL itself."""
    @property
    def stores(self) -> str | None: ...
    broken: Any
    """Set: the graph breaks at this instruction, and `failed` is told this."""
    @property
    def code(self) -> CodeType:
        """The original code object. (None once it is gone: a probe does not keep it alive.)"""
    @property
    def lineno(self) -> int | None: ...
    def __neg__(self) -> None: ...

class Watcher:
    """One recording of one thread."""

    def __new__(
        cls,
        handlers: dict[int, Callable[..., object]],
        *,
        enter: Callable[[FunctionType], object],
        classify: Callable[[CodeType], tuple[int, object, bool]],
        leaf: Callable[[Any, FunctionType, tuple[Any, ...]], object],
        blind: Callable[[CodeType, str | None], object],
        foreign: Callable[[CodeType], object],
        failed: Callable[[BaseException], object] | None,
        transparent: Callable[[FunctionType, tuple[Any, ...]], object] | None = None,
        on_resume: Callable[[Probe], object] | None = None,
        on_lost: Callable[[bool], object] | None = None,
        on_return: Callable[[Probe, Any], object] | None = None,
    ) -> Watcher: ...
    unfiltered: bool
    """Call the handlers at every probe, whatever its operands."""
    returns: bool
    """Call on_return(probe, value) before every return of a watched frame."""
    def run(self, func: FunctionType, slots: tuple[Any, ...], /) -> Any: ...
    def stop(self) -> None: ...
    def know(self, obj: object, /) -> None: ...
    def forget(self, obj: object, /) -> None: ...
    def knows(self, obj: object, /) -> bool: ...
    def fresh(self, func: object, /) -> bool: ...
    def loosen(self, number: Any, /) -> None:
        """Tell the handler of PACK before something depends on this number; the caller keeps it alive."""
    def approve(self, obj: object, /) -> None: ...
    def intercept(self, code: CodeType, /) -> None: ...
    def call_leaf(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None, /) -> Any: ...
    def paused(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
    def pend(self, calls: int = 0, /) -> None:
        """Watch nothing until the innermost watched frame (or the one so many calls away from it) comes to its next
        probe: then on_resume(probe) is called, and watching goes on with that probe, unless it returns True: then the
        wait goes on. If that frame is left before, on_lost(raised) is called, which may call pend() once more, for the
        caller's frame; else watching is over."""
    def hand_over(self, other: Watcher, /) -> None:
        """Let another watcher record the rest of this run."""
    def frames(self) -> tuple[list[tuple[Any, ...]], Any]:
        """The frames of the run, the root first, and the exception that the program is handling, or None.

        A frame is (kind of its code, its code, the original code, code unit of the instruction in progress, the
        original function, fast locals, is the stack as the last probe saw it, an operand whose slot the instruction
        uses for something else, which one that is or -1, the last probe that fired in it).
        What is not there is MISSING: unbound variables, NULL. Cells are cells."""
    def put(self, calls: int, slot: int, value: Any, /) -> None:
        """Set a slot of the frame so many calls away from the innermost. It must hold a value already."""
    def stack(self, calls: int, depth: int, /) -> list[Any]:
        """The lowest slots of the value stack of the frame so many calls away from the innermost; NULL is MISSING."""
    @property
    def last_probe(self) -> Probe | None: ...
    @property
    def events(self) -> int: ...
    @property
    def calls(self) -> int: ...

@final
class Origin:
    """How to reach one outside value again. A ledger makes them."""

    @property
    def index(self) -> int: ...
    @property
    def edge(self) -> Edge: ...
    @property
    def parent(self) -> Origin | None: ...
    @property
    def key(self) -> Any: ...
    @property
    def place(self) -> Place | None: ...
    @property
    def checks(self) -> list[Check]: ...

class Ledger:
    """The table of known outside objects of one recording; watch/ledger.py says what it is for."""

    place: Place | None
    def __init__(
        self,
        watcher: Watcher,
        check: type[Check],
        edges: tuple[Edge, ...],
        facts: tuple[Fact, ...],
        kinds: dict[type, Any],
        ask_kind: Callable[[Any], Fact | None],
        ask_value: Callable[[Any], tuple[type, Any]],
    ) -> None: ...
    @property
    def origins(self) -> list[Origin]:
        """All origins, parents before children."""
    @property
    def alive(self) -> list[Any]:
        """Every object that was ever known, which keeps its address its own."""
    @property
    def plans(self) -> dict[type, dict[str, int]]:
        """What a class says of a name; written by watch/attributes.py."""
    @property
    def callable_modules(self) -> dict[type, bool]:
        """Do calls of such modules come to `forward`, unless there are hooks? Written by watch/module_calls.py."""
    def find(self, value: object, /) -> Origin | None: ...
    def local(self, index: int, name: str, value: object, /) -> Origin: ...
    def constant(self, value: object, /) -> Origin:
        """The origin of an object that is its own guard: a class, a module's dict, a function of a class."""
    def read(self, parent: Origin, edge: Edge, key: Any, value: object, /) -> Origin:
        """Note that `value` was found at `edge`, `key` of parent."""
    def check(self, origin: Origin, fact: Fact, expected: Any, /) -> None:
        """Add a check, due to the present place."""
    def lacks(self, origin: Origin, key: str, /) -> None:
        """A dict of names has no such name. (A repeated check does no harm.)"""
    def touch(self, origin: Origin, value: object, /) -> None:
        """The program's course depends on the type of this object."""
    def note_change(self, target: object, /) -> None:
        """An object is changed by the program: no shortcut is taken through it."""
    def read_attribute(self, owner: object, name: str, /) -> bool:
        """Note a read of an instance attribute by plan; False: nothing is noted, or not all."""
    def read_registered(self, owner: object, name: str, /) -> bool:
        """Note a read of a module's part; False: nothing is noted, or not all."""
    def close(self) -> None:
        """Let go of everything; origins stay good for those who hold them, without their children."""

def current() -> Watcher | None: ...
def state() -> int: ...
def hook_installed() -> bool: ...
def code_kind(code: CodeType, /) -> int | None: ...
def forget_code(code: CodeType, /) -> None: ...
def distinct(number: Any, /) -> Any:
    """Another object that is the same int, float or text of several characters."""

def type_version(T: type, /) -> int: ...
def mro_lookup(T: type, name: str, /) -> Any: ...
def as_iterator(obj: object, /) -> Any: ...
def tensor_version(tensor: object, /) -> int | None:
    """The version counter of a tensor; None for inference tensors, which have none."""

def fingerprint(tensor: object, strided: object, /) -> tuple[int | None, int, Any, tuple[int, ...], bool]:
    """(version, address, dtype, shape, requires_grad); address 0 unless the tensor's layout is `strided`."""

def answers(functions: tuple[Callable[[], Any], ...], /) -> tuple[Any, ...]:
    """What each function answers, called without arguments."""
